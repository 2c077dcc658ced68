//! Signals during a wait: blocked until the request is withdrawn, then raised again, so that a shell sees the signal.

use nix::sys::signal::{SigSet, Signal, raise};

use crate::command::signals::is_ignored;

/// The blocked signals, in this thread and in threads that it starts.
#[derive(Debug, Clone, Copy)]
pub(super) struct BlockedSignals(SigSet);

impl BlockedSignals {
    /// Blocks the signals; call it before any thread is started. Ignored signals stay ignored (`nohup`, `&` in
    /// scripts).
    pub(super) fn block() -> std::io::Result<Self> {
        let set = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP, Signal::SIGQUIT];
        let set: SigSet = set.into_iter().filter(|signal| !is_ignored(*signal)).collect();
        set.thread_block()?;
        Ok(Self(set))
    }

    /// Waits for a signal, runs `last`, and ends the process by the signal. Locks taken by `last` are held until then.
    pub(super) fn wait_and_die(&self, last: impl FnOnce()) {
        let Ok(signal) = self.0.wait() else { return };
        last();
        // These cannot fail for valid signals.
        let _ = self.0.thread_unblock();
        let _ = raise(signal);
    }
}
