//! Signals: forwarding to the command, and termination of this process by a signal.

use std::io;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::mpsc::Sender;

use bailiff_proc::Proc;
use nix::errno::Errno;
use nix::libc;
use nix::sys::signal::{SigHandler, SigSet, SigmaskHow, Signal, raise, signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use rustix::process::{Pid, Resource, Rlimit, getpgid, getpgrp, kill_process, setrlimit};

use super::Event;

/// The signals that are forwarded to the command.
const FORWARDED: [Signal; 6] =
    [Signal::SIGINT, Signal::SIGQUIT, Signal::SIGTERM, Signal::SIGHUP, Signal::SIGUSR1, Signal::SIGUSR2];

#[derive(Debug, Clone, Copy)]
pub(crate) struct ReceivedSignal {
    pub(crate) number: i32,
    /// Whether the terminal sent the signal (a key or a hangup). It then also sent it to the command's
    /// process group.
    pub(crate) by_terminal: bool,
}

impl ReceivedSignal {
    /// Returns whether the signal concerns only the command, so that it is ignored once the command has
    /// exited.
    pub(crate) const fn is_for_command(self) -> bool {
        matches!(self.number, libc::SIGUSR1 | libc::SIGUSR2)
    }

    /// Forwards the signal to the command, unless the terminal has also sent it there.
    pub(crate) fn forward(self, command: Pid) {
        if self.by_terminal && getpgid(Some(command)) == Ok(getpgrp()) {
            return;
        }
        if let Some(signal) = rustix::process::Signal::from_named_raw(self.number) {
            // The pid is not reused before this process has waited for the command.
            let _ = kill_process(command, signal);
        }
    }
}

/// Signals that are blocked before any thread starts, so that [`Self::listen`] receives them. Their
/// disposition is unchanged: the command inherits ignored signals (nohup), and an ignored signal is not
/// forwarded.
pub(crate) struct Signals {
    blocked: SigSet,
    mask: SigSet,
}

impl Signals {
    /// Blocks the forwarded signals and SIGCHLD.
    pub(crate) fn block() -> io::Result<Self> {
        reset_sigchld()?;
        // The kernel queues a blocked signal even if it is ignored, so ignored signals are not blocked.
        let mut set: SigSet = FORWARDED.into_iter().filter(|signal| !is_ignored(*signal)).collect();
        set.add(Signal::SIGCHLD);
        let mask = set.thread_swap_mask(SigmaskHow::SIG_BLOCK)?;
        Ok(Self { blocked: set, mask })
    }

    /// Returns the signal mask before [`Self::block`].
    pub(crate) const fn mask(&self) -> &SigSet {
        &self.mask
    }

    /// Returns a pending signal that would have ended this process.
    pub(crate) fn pending(&self) -> io::Result<Option<i32>> {
        let signals = SignalFd::with_flags(&self.blocked, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?;
        while let Some(signal) = signals.read_signal()? {
            if let Ok(number) = i32::try_from(signal.ssi_signo)
                && number != libc::SIGCHLD
            {
                return Ok(Some(number));
            }
        }
        Ok(None)
    }

    /// Starts a thread that sends an event for each signal.
    pub(crate) fn listen(&self, events: Sender<Event>) -> io::Result<()> {
        let signals = SignalFd::with_flags(&self.blocked, SfdFlags::SFD_CLOEXEC)?;
        std::thread::Builder::new().name("signals".to_owned()).spawn(move || {
            loop {
                let event = match signals.read_signal() {
                    Ok(Some(signal)) => event(&signal),
                    Ok(None) | Err(Errno::EINTR) => continue,
                    Err(_) => return,
                };
                if event.is_some_and(|event| events.send(event).is_err()) {
                    return;
                }
            }
        })?;
        Ok(())
    }
}

/// The last deferred signal; 0 if none.
static DEFERRED: AtomicI32 = AtomicI32::new(0);

extern "C" fn record(number: libc::c_int) {
    DEFERRED.store(number, Ordering::Relaxed);
}

/// Records terminating signals from now on instead of exiting. Unlike a blocked signal, a handler is reset by
/// `exec`, so programs started later receive signals as usual.
#[expect(unsafe_code, reason = "handlers may be unsound")]
pub(crate) fn defer() -> io::Result<()> {
    for deferred in [Signal::SIGINT, Signal::SIGQUIT, Signal::SIGTERM, Signal::SIGHUP] {
        if !is_ignored(deferred) {
            // SAFETY: the handler only stores to an atomic, which is async-signal-safe.
            unsafe { signal(deferred, SigHandler::Handler(record)) }?;
        }
    }
    Ok(())
}

/// Returns the last deferred signal.
pub(crate) fn deferred() -> Option<i32> {
    Some(DEFERRED.load(Ordering::Relaxed)).filter(|number| *number != 0)
}

/// Resets SIGCHLD to its default. If a parent had set it to be ignored, the exit of a child and its status
/// would be lost. As in `timeout(1)`, the command does not inherit the ignored signal.
#[expect(unsafe_code, reason = "handlers may be unsound")]
fn reset_sigchld() -> io::Result<()> {
    // SAFETY: the default disposition does not install a handler.
    unsafe { signal(Signal::SIGCHLD, SigHandler::SigDfl) }?;
    Ok(())
}

fn event(signal: &libc::signalfd_siginfo) -> Option<Event> {
    let number = i32::try_from(signal.ssi_signo).ok()?;
    if number == libc::SIGCHLD {
        return Some(Event::ChildEnded);
    }
    Some(Event::Signal(ReceivedSignal { number, by_terminal: signal.ssi_code == libc::SI_KERNEL }))
}

/// Returns whether this process ignores a signal, such as SIGHUP under nohup.
pub(crate) fn is_ignored(signal: Signal) -> bool {
    let ignored = Proc::own().ok().and_then(|proc| proc.own_mask("SigIgn:"));
    ignored.unwrap_or_default() & (1 << (signal as i32 - 1)) != 0
}

/// Ends this process by a signal, so that a shell sees the same status as from the command. Returns if that
/// is impossible, as for the init process of a container.
pub(crate) fn terminate_by(number: i32) {
    let Ok(signal) = Signal::try_from(number) else { return };
    // Only the command itself should leave a core dump.
    let _ = setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) });
    let set: SigSet = std::iter::once(signal).collect();
    let _ = raise(signal).and_then(|()| set.thread_unblock());
}
