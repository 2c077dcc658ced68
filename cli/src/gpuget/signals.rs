//! Signals that end a wait: held back until what was asked for has been withdrawn, and then died of, as a shell expects.

use nix::sys::signal::{SigSet, Signal, raise};

use crate::command::signals::is_ignored;

/// Signals that are held back, in this thread and in those that it starts.
#[derive(Debug, Clone, Copy)]
pub(super) struct Held(SigSet);

impl Held {
    /// Holds them back; call it before any thread is started. What was ignored stays ignored (`nohup`, `&` in scripts).
    pub(super) fn back() -> std::io::Result<Self> {
        let set = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP, Signal::SIGQUIT];
        let set: SigSet = set.into_iter().filter(|signal| !is_ignored(*signal)).collect();
        set.thread_block()?;
        Ok(Self(set))
    }

    /// Waits for one, does what has to be done, and dies of it. Nobody else goes on meanwhile whom `last` holds up.
    pub(super) fn die(&self, last: impl FnOnce()) {
        let Ok(signal) = self.0.wait() else { return };
        last();
        // Neither fails for signals that there are.
        let _ = self.0.thread_unblock();
        let _ = raise(signal);
    }
}
