//! Account of a GPU: the limit, and the memory used by this process or by all processes that share the quota.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::abi::Device;
use crate::environment;
use crate::log::{self, EventKind};
use crate::settings::{Limit, Uuid};
use crate::shared::{GpuSlot, Shared, subtract};

/// Account of a GPU.
pub(crate) struct GpuAccount {
    device: Device,
    uuid: Option<Uuid>,
    ledger: Ledger,
    /// Whether the context overhead was already charged.
    opened: AtomicBool,
}

/// Where the memory in use is counted.
enum Ledger {
    /// In this process only.
    OwnProcess { limit: u64, used: AtomicU64 },
    /// In the file of a quota that is shared by several processes.
    Shared(GpuSlot),
}

impl GpuAccount {
    /// Opens the account of a GPU, at its first use.
    pub(crate) fn open_account(
        (device, uuid): (Device, Option<Uuid>),
        shared: Option<&'static Shared>,
    ) -> Self {
        let settings = environment::settings();
        let limit = environment::limits().limit(u32::try_from(device).ok(), uuid);
        report_warnings();
        let gpu_slot = shared.zip(uuid).and_then(|(shared, uuid)| shared.gpu_slot(uuid, limit.bytes));
        let ledger = match gpu_slot {
            Some(gpu_slot) => Ledger::Shared(gpu_slot),
            None if settings.shared.is_some() && settings.fail_closed => {
                Ledger::OwnProcess { limit: 0, used: AtomicU64::new(0) }
            }
            None => Ledger::OwnProcess { limit: report_default(limit), used: AtomicU64::new(0) },
        };
        Self { device, uuid, ledger, opened: AtomicBool::new(false) }
    }

    /// Charges the assumed context overhead, once.
    pub(crate) fn open(&self) {
        if !self.opened.load(Ordering::Relaxed) && !self.opened.swap(true, Ordering::Relaxed) {
            self.charge(environment::settings().overhead);
        }
    }

    /// Logs an event, if a log file is configured.
    #[inline]
    pub(crate) fn log(&self, kind: EventKind, call: &'static str, memory: (u64, u64)) {
        if let Some(path) = environment::settings().log.as_deref() {
            let (limit, used) = self.view();
            log::event(path, (kind, call), (self.device, limit, used), memory);
        }
    }

    /// Returns the ordinal of the GPU in this process.
    pub(crate) fn device(&self) -> Device {
        self.device
    }

    pub(crate) fn uuid(&self) -> Option<Uuid> {
        self.uuid
    }

    /// Reserves memory. Returns false if the limit would be exceeded. A request that reaches the limit
    /// exactly is granted.
    pub(crate) fn reserve(&self, bytes: u64) -> bool {
        self.open();
        match &self.ledger {
            Ledger::OwnProcess { limit, used } => reserve(used, *limit, bytes),
            Ledger::Shared(gpu_slot) => gpu_slot.reserve(bytes),
        }
    }

    /// Charges memory that is already in use, even if the limit is exceeded.
    fn charge(&self, bytes: u64) {
        match &self.ledger {
            Ledger::OwnProcess { used, .. } => drop(used.fetch_add(bytes, Ordering::Relaxed)),
            Ledger::Shared(gpu_slot) => gpu_slot.charge(bytes),
        }
    }

    /// Releases reserved memory.
    pub(crate) fn cancel(&self, bytes: u64) {
        match &self.ledger {
            Ledger::OwnProcess { used, .. } => subtract(used, bytes),
            Ledger::Shared(gpu_slot) => gpu_slot.release(bytes),
        }
    }

    /// Counts a granted allocation.
    pub(crate) fn granted(&self) {
        if let Ledger::Shared(gpu_slot) = &self.ledger {
            gpu_slot.granted();
        }
    }

    /// Counts a refused allocation.
    pub(crate) fn denied(&self, bytes: u64) {
        if let Ledger::Shared(gpu_slot) = &self.ledger {
            gpu_slot.denied(bytes);
        }
    }

    /// Releases memory that the driver has freed.
    pub(crate) fn freed(&self, bytes: u64) {
        self.cancel(bytes);
        if let Ledger::Shared(gpu_slot) = &self.ledger {
            gpu_slot.freed();
        }
    }

    /// Returns the limit and the memory in use, in bytes.
    pub(crate) fn view(&self) -> (u64, u64) {
        match &self.ledger {
            Ledger::OwnProcess { limit, used } => (*limit, used.load(Ordering::Relaxed)),
            Ledger::Shared(gpu_slot) => gpu_slot.view(),
        }
    }
}

fn reserve(used: &AtomicU64, limit: u64, bytes: u64) -> bool {
    let more = |used: u64| used.checked_add(bytes).filter(|sum| *sum <= limit);
    used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
}

/// Reports invalid settings, once.
fn report_warnings() {
    static REPORTED: AtomicBool = AtomicBool::new(false);
    if !REPORTED.swap(true, Ordering::Relaxed) {
        environment::limits().warnings.iter().for_each(|warning| log::warn(format_args!("{warning}")));
    }
}

/// Reports, once, that the default limit is in use.
fn report_default(limit: Limit) -> u64 {
    static REPORTED: AtomicBool = AtomicBool::new(false);
    if limit.by_default && !REPORTED.swap(true, Ordering::Relaxed) {
        log::warn(format_args!(
            "WRAPPER_MAX_MEMORY is not set: this process can allocate {} bytes on each GPU (WRAPPER_DEFAULT=off removes this limit)",
            limit.bytes
        ));
    }
    limit.bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reserve_succeeds_exactly_up_to_limit() {
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
    fn subtract_stops_at_zero() {
        for (used, bytes, expected) in [(10, 3, 7), (3, 3, 0), (3, 4, 0), (0, u64::MAX, 0)] {
            let account = AtomicU64::new(used);
            subtract(&account, bytes);
            assert_eq!(account.into_inner(), expected, "{used} less {bytes}");
        }
    }
}
