//! The account of a GPU: how much this process, or all that share a quota, may have of it, and has.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::abi::Device;
use crate::settings::{Limit, Uuid};
use crate::shared::{Seat, Shared};
use crate::{log, start};

/// The account of a GPU.
pub(crate) struct Gpu {
    device: Device,
    uuid: Option<Uuid>,
    ledger: Ledger,
    /// What a context takes was charged.
    opened: AtomicBool,
}

/// Where it is added up.
enum Ledger {
    /// For this process alone.
    Own { limit: u64, used: AtomicU64 },
    /// In a file, for several.
    Shared(Seat),
}

impl Gpu {
    /// Opens the account of a GPU that is used for the first time.
    pub(crate) fn meet((device, uuid): (Device, Option<Uuid>), shared: Option<&'static Shared>) -> Self {
        let settings = start::settings();
        let limit = start::limits().limit(u32::try_from(device).ok(), uuid);
        complain();
        let seat = shared.zip(uuid).and_then(|(shared, uuid)| shared.seat(uuid, limit.bytes));
        let ledger = match seat {
            Some(seat) => Ledger::Shared(seat),
            None if settings.shared.is_some() && settings.fail_closed => {
                Ledger::Own { limit: 0, used: AtomicU64::new(0) }
            }
            None => Ledger::Own { limit: warned(limit), used: AtomicU64::new(0) },
        };
        Self { device, uuid, ledger, opened: AtomicBool::new(false) }
    }

    /// This process has a context there.
    pub(crate) fn open(&self) {
        if !self.opened.load(Ordering::Relaxed) && !self.opened.swap(true, Ordering::Relaxed) {
            self.charge(start::settings().overhead);
        }
    }

    /// Its ordinal in this process.
    pub(crate) fn device(&self) -> Device {
        self.device
    }

    /// Its name.
    pub(crate) fn uuid(&self) -> Option<Uuid> {
        self.uuid
    }

    /// Takes room, if there is; exactly up to the limit.
    pub(crate) fn reserve(&self, bytes: u64) -> bool {
        self.open();
        match &self.ledger {
            Ledger::Own { limit, used } => reserve(used, *limit, bytes),
            Ledger::Shared(seat) => seat.reserve(bytes),
        }
    }

    /// Charges what is in use already, whether there is room or not.
    fn charge(&self, bytes: u64) {
        match &self.ledger {
            Ledger::Own { used, .. } => drop(used.fetch_add(bytes, Ordering::Relaxed)),
            Ledger::Shared(seat) => seat.charge(bytes),
        }
    }

    /// Gives back what was reserved and not used.
    pub(crate) fn cancel(&self, bytes: u64) {
        match &self.ledger {
            Ledger::Own { used, .. } => subtract(used, bytes),
            Ledger::Shared(seat) => seat.release(bytes),
        }
    }

    /// Counts a grant.
    pub(crate) fn granted(&self) {
        if let Ledger::Shared(seat) = &self.ledger {
            seat.granted();
        }
    }

    /// Counts a refusal.
    pub(crate) fn denied(&self, bytes: u64) {
        if let Ledger::Shared(seat) = &self.ledger {
            seat.denied(bytes);
        }
    }

    /// Gives back what the driver has freed.
    pub(crate) fn freed(&self, bytes: u64) {
        self.cancel(bytes);
        if let Ledger::Shared(seat) = &self.ledger {
            seat.freed();
        }
    }

    /// The limit, and how much is used.
    pub(crate) fn view(&self) -> (u64, u64) {
        match &self.ledger {
            Ledger::Own { limit, used } => (*limit, used.load(Ordering::Relaxed)),
            Ledger::Shared(seat) => seat.view(),
        }
    }
}

fn reserve(used: &AtomicU64, limit: u64, bytes: u64) -> bool {
    let more = |used: u64| used.checked_add(bytes).filter(|sum| *sum <= limit);
    used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
}

/// Subtracts, and stops at 0: where a file was changed by others it may say less than was added.
pub(crate) fn subtract(used: &AtomicU64, bytes: u64) {
    let less = |used: u64| Some(used.saturating_sub(bytes));
    // It is always some, so it cannot fail.
    let _ = used.fetch_update(Ordering::SeqCst, Ordering::Relaxed, less);
}

/// Says once what could not be understood.
fn complain() {
    static SAID: AtomicBool = AtomicBool::new(false);
    if !SAID.swap(true, Ordering::Relaxed) {
        start::limits().complaints.iter().for_each(|complaint| log::say(format_args!("{complaint}")));
    }
}

/// Says once that nobody asked for the limit that holds.
fn warned(limit: Limit) -> u64 {
    static SAID: AtomicBool = AtomicBool::new(false);
    if limit.by_default && !SAID.swap(true, Ordering::Relaxed) {
        log::say(format_args!(
            "WRAPPER_MAX_MEMORY is not set: this process may allocate {} bytes of each GPU (WRAPPER_DEFAULT=off lifts that)",
            limit.bytes
        ));
    }
    limit.bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exactly_the_limit_is_granted() {
        for (used, limit, bytes, expected) in [
            (0, 10, 10, Some(10)),
            (0, 10, 11, None),
            (4, 10, 6, Some(10)),
            (4, 10, 7, None),
            (10, 10, 0, Some(10)),
            (11, 10, 1, None),
            (1, u64::MAX, u64::MAX - 1, Some(u64::MAX)),
            (1, u64::MAX, u64::MAX, None),
            (2, 10, u64::MAX, None),
            (0, 0, 1, None),
        ] {
            let account = AtomicU64::new(used);
            assert_eq!(reserve(&account, limit, bytes), expected.is_some(), "{used} of {limit} and {bytes}");
            assert_eq!(account.into_inner(), expected.unwrap_or(used), "{used} of {limit} and {bytes}");
        }
    }

    #[test]
    fn nothing_goes_below_zero() {
        for (used, bytes, expected) in [(10, 3, 7), (3, 3, 0), (3, 4, 0), (0, u64::MAX, 0)] {
            let account = AtomicU64::new(used);
            subtract(&account, bytes);
            assert_eq!(account.into_inner(), expected, "{used} less {bytes}");
        }
    }
}
