//! `--get`: waits in the same queue as GPU.py clients, for a lease that outlives this program.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bailiff_lease::Leases as _;
use bailiff_lease::holder::LocalHost;
use bailiff_lease::{Grant, Pool, Ticket, TicketStatus};
use nix::sys::signal::{SigSet, Signal, raise};

use super::environment::PoolAddress;
use super::{Failure, print_line};
use crate::command::signals::is_ignored;
use crate::lease::request::{name, user_fields};
use crate::lease::{LEASE, TICKET, offset};
use crate::output::joined;

/// The pause between two attempts to reach Redis.
const RETRY: Duration = Duration::from_millis(200);

/// The lease to withdraw if a signal arrives; `None` after it was printed. The lock decides which happens first.
type PendingLease = Arc<Mutex<Option<String>>>;

/// Waits for a GPU and prints its index.
pub(super) fn get(address: &PoolAddress, mut pool: Pool) -> Result<(), Failure> {
    let signals = BlockedSignals::block()?;
    let (parent, local_host) = (super::parent(), LocalHost::read());
    let pending = PendingLease::default();
    withdraw_on_signal(address, signals, Arc::clone(&pending))?;
    if pool.view()?.managed.is_empty() {
        super::warn(&format!(
            "no GPU is managed under the prefix {}; waits until some are (is it the right one?)",
            address.prefix
        ));
    }
    let mut request = ticket(&local_host, parent)?;
    loop {
        *lock(&pending) = Some(request.lease.clone());
        match pool.wait(&request, (&local_host, None), |_| {})? {
            TicketStatus::Held(grant) if deliver(&mut pool, (&request, &grant), &pending)? => return Ok(()),
            // The grant is no longer valid: wait again to get its current state.
            TicketStatus::Held(_) => {}
            // The lease was released or reaped before it was delivered, and another holder may have the GPU.
            TicketStatus::Ended(_) | TicketStatus::Conflict(_) => {
                std::thread::park_timeout(RETRY);
                request = ticket(&local_host, parent)?;
            }
            other => return Err(Failure::Other(format!("Redis answered what is not understood: {other:?}"))),
        }
    }
}

fn lock(pending: &PendingLease) -> MutexGuard<'_, Option<String>> {
    pending.lock().unwrap_or_else(PoisonError::into_inner)
}

fn withdraw_on_signal(
    address: &PoolAddress,
    signals: BlockedSignals,
    pending: PendingLease,
) -> Result<(), Failure> {
    let address = address.clone();
    let thread = std::thread::Builder::new().name("signals".to_owned());
    thread.spawn(move || {
        let mut guard = None;
        signals.wait_and_die(|| {
            let lease_to_withdraw = lock(&pending);
            if let (Some(lease), Ok(mut pool)) = (&*lease_to_withdraw, address.open()) {
                // If Redis does not answer, another client reaps the lease after this process has exited.
                let _ = pool.release(lease, None, (offset(), std::process::id()));
            }
            // Held until the process dies, so that the main thread cannot deliver the lease.
            guard = Some(lease_to_withdraw);
        });
    })?;
    Ok(())
}

/// Acknowledges a grant and prints it; returns false if the lease has ended meanwhile.
fn deliver(
    pool: &mut Pool,
    (ticket, grant): (&Ticket, &Grant),
    pending: &PendingLease,
) -> Result<bool, Failure> {
    loop {
        let mut pending_lease = lock(pending);
        match pool.touch(&ticket.lease, LEASE, Some(grant.token)) {
            Ok(TicketStatus::Held(_)) => {
                if let Err(failure) = print_line(&joined(&grant.gpus, ",")) {
                    pool.release(&ticket.lease, Some(grant.token), (offset(), std::process::id()))?;
                    return Err(match failure {
                        Failure::ClosedPipe => {
                            Failure::Other("nobody reads the number; the GPU was given back".to_owned())
                        }
                        failure => failure,
                    });
                }
                *pending_lease = None;
                return Ok(true);
            }
            Ok(_) => return Ok(false),
            Err(error) if error.passes() => {}
            Err(error) => return Err(error.into()),
        }
        drop(pending_lease);
        std::thread::park_timeout(RETRY);
    }
}

/// Creates a ticket for the calling process.
fn ticket(local_host: &LocalHost, parent: u32) -> Result<Ticket, Failure> {
    let mut about = local_host.holder(parent);
    about.extend(local_host.taker(parent));
    about.push(("legacy_pid", parent.to_string()));
    about.extend(user_fields());
    about.push(("cmd", "GPU.py --get".to_owned()));
    Ok(Ticket { lease: name()?, want: 1, priority: 0, ttl: TICKET, nonblock: false, about })
}

/// Signals that are blocked during the wait until the request is withdrawn, and then raised again, so that a shell
/// sees the signal; in this thread and in threads that it starts.
#[derive(Debug, Clone, Copy)]
struct BlockedSignals(SigSet);

impl BlockedSignals {
    /// Blocks the signals; call it before any thread is started. Ignored signals stay ignored (`nohup`, `&` in
    /// scripts).
    fn block() -> std::io::Result<Self> {
        let set = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP, Signal::SIGQUIT];
        let set: SigSet = set.into_iter().filter(|signal| !is_ignored(*signal)).collect();
        set.thread_block()?;
        Ok(Self(set))
    }

    /// Waits for a signal, runs `last`, and ends the process by the signal. Locks taken by `last` are held until then.
    fn wait_and_die(&self, last: impl FnOnce()) {
        let Ok(signal) = self.0.wait() else { return };
        last();
        // These cannot fail for valid signals.
        let _ = self.0.thread_unblock();
        let _ = raise(signal);
    }
}
