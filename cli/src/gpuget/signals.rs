//! Signals that end a wait: held back until what was asked for has been withdrawn, and then died of, as a shell expects.

#![expect(clippy::disallowed_methods, reason = "reads which signals are ignored")]

use std::fs;

use nix::sys::signal::{SigSet, Signal, raise};

/// Signals that are held back, in this thread and in those that it starts.
#[derive(Debug, Clone, Copy)]
pub(super) struct Held(SigSet);

impl Held {
    /// Holds them back; call it before any thread is started. What was ignored stays ignored (`nohup`, `&` in scripts).
    pub(super) fn back() -> std::io::Result<Self> {
        let ignored = ignored();
        let mut set = SigSet::empty();
        for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP, Signal::SIGQUIT] {
            if ignored & (1 << (signal as i32 - 1)) == 0 {
                set.add(signal);
            }
        }
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

/// A bit each.
fn ignored() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or_default()
}
