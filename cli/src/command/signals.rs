//! Signals: what we are told is passed on to the command; and how to die of one.

#![expect(clippy::disallowed_methods, reason = "reads which signals are ignored")]

use std::fs;
use std::io;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::mpsc::Sender;

use bailiff_snapshot::Status;
use nix::errno::Errno;
use nix::libc;
use nix::sys::signal::{SigHandler, SigSet, SigmaskHow, Signal, raise, signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use rustix::process::{Resource, Rlimit, setrlimit};

use super::Event;

/// What is passed on.
const TOLD: [Signal; 6] =
    [Signal::SIGINT, Signal::SIGQUIT, Signal::SIGTERM, Signal::SIGHUP, Signal::SIGUSR1, Signal::SIGUSR2];

/// A signal that we were sent.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Told {
    pub(crate) number: i32,
    /// By a key of the terminal, or its end: the command's group was sent it, too.
    pub(crate) by_terminal: bool,
}

impl Told {
    /// It means something to the command alone, and nothing once that has ended.
    pub(crate) const fn is_for_the_command(self) -> bool {
        matches!(self.number, libc::SIGUSR1 | libc::SIGUSR2)
    }
}

/// Signals that are kept for [`Self::listen`], from before any thread is started. How they are treated is not changed,
/// so a command inherits what is ignored (nohup), and a signal that is ignored is not passed on.
pub(crate) struct Signals {
    kept: SigSet,
    mask: SigSet,
}

impl Signals {
    pub(crate) fn keep() -> io::Result<Self> {
        hear_of_children()?;
        // The kernel keeps what is blocked, even where it is ignored.
        let mut set: SigSet = TOLD.into_iter().filter(|signal| !is_ignored(*signal)).collect();
        set.add(Signal::SIGCHLD);
        let mask = set.thread_swap_mask(SigmaskHow::SIG_BLOCK)?;
        Ok(Self { kept: set, mask })
    }

    /// Those that were blocked before.
    pub(crate) const fn mask(&self) -> &SigSet {
        &self.mask
    }

    /// One that has come already and was to end us.
    pub(crate) fn waiting(&self) -> io::Result<Option<i32>> {
        let signals = SignalFd::with_flags(&self.kept, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?;
        while let Some(signal) = signals.read_signal()? {
            if let Ok(number) = i32::try_from(signal.ssi_signo)
                && number != libc::SIGCHLD
            {
                return Ok(Some(number));
            }
        }
        Ok(None)
    }

    /// Tells of each from now on.
    pub(crate) fn listen(&self, tell: Sender<Event>) -> io::Result<()> {
        let signals = SignalFd::with_flags(&self.kept, SfdFlags::SFD_CLOEXEC)?;
        std::thread::Builder::new().name("signals".to_owned()).spawn(move || {
            loop {
                let event = match signals.read_signal() {
                    Ok(Some(signal)) => event(&signal),
                    Ok(None) | Err(Errno::EINTR) => continue,
                    Err(_) => return,
                };
                if event.is_some_and(|event| tell.send(event).is_err()) {
                    return;
                }
            }
        })?;
        Ok(())
    }
}

/// The last that was noted; 0 before.
static DEFERRED: AtomicI32 = AtomicI32::new(0);

extern "C" fn note(number: libc::c_int) {
    DEFERRED.store(number, Ordering::Relaxed);
}

/// From now on a signal that was to end us is noted and not obeyed. Unlike one that is blocked it means to a program that is started
/// what it always does.
#[expect(unsafe_code, reason = "handlers may be unsound")]
pub(crate) fn defer() -> io::Result<()> {
    for told in [Signal::SIGINT, Signal::SIGQUIT, Signal::SIGTERM, Signal::SIGHUP] {
        if !is_ignored(told) {
            // SAFETY: it stores a number, which a handler may.
            unsafe { signal(told, SigHandler::Handler(note)) }?;
        }
    }
    Ok(())
}

/// One that was noted.
pub(crate) fn deferred() -> Option<i32> {
    Some(DEFERRED.load(Ordering::Relaxed)).filter(|number| *number != 0)
}

/// Where a parent had this signal ignored, nobody would tell of a child's end, nor how it was. Like `timeout(1)` this is not
/// given on to the command.
#[expect(unsafe_code, reason = "handlers may be unsound")]
fn hear_of_children() -> io::Result<()> {
    // SAFETY: no handler is set.
    unsafe { signal(Signal::SIGCHLD, SigHandler::SigDfl) }?;
    Ok(())
}

fn event(signal: &libc::signalfd_siginfo) -> Option<Event> {
    let number = i32::try_from(signal.ssi_signo).ok()?;
    if number == libc::SIGCHLD {
        return Some(Event::ChildEnded);
    }
    Some(Event::Told(Told { number, by_terminal: signal.ssi_code == libc::SI_KERNEL }))
}

/// Whether a signal does nothing to this process, as SIGHUP under nohup.
pub(crate) fn is_ignored(signal: Signal) -> bool {
    let status = fs::read("/proc/self/status").unwrap_or_default();
    Status::new(&status).mask("SigIgn:").unwrap_or_default() & (1 << (signal as i32 - 1)) != 0
}

/// Ends this process by a signal, so that a shell sees what it would have seen of the command. Returns where that
/// cannot be, as for the first process of a container.
pub(crate) fn die_of(number: i32) {
    let Ok(signal) = Signal::try_from(number) else { return };
    // The command has left its core already, if it was to leave one.
    let _ = setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) });
    let set: SigSet = std::iter::once(signal).collect();
    let _ = raise(signal).and_then(|()| set.thread_unblock());
}
