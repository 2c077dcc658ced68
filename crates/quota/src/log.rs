//! Log output: a few messages on standard error, each once, and every event in the log file if one is
//! configured. Logging never uses standard output, never blocks the program, and never raises a signal.

use std::ffi::{CStr, c_int};
use std::fmt::{self, Arguments, Write};
use std::mem::MaybeUninit;
use std::ptr;

use crate::abi::Device;
use crate::environment;

/// Kind of an event.
#[derive(Clone, Copy)]
pub(crate) enum EventKind {
    Granted,
    Denied,
    Freed,
}

/// Appends an event to the log file.
#[cold]
pub(crate) fn event(
    path: &CStr,
    (kind, call): (EventKind, &str),
    (device, limit, used): (Device, u64, u64),
    (bytes, address): (u64, u64),
) {
    let kind = match kind {
        EventKind::Granted => "granted",
        EventKind::Denied => "denied",
        EventKind::Freed => "freed",
    };
    let mut line = Line::begin();
    let _ = writeln!(
        line,
        "event={kind} call={call} gpu={device} bytes={bytes} address={address:#x} used={used} limit={limit}"
    );
    append(path, line.bytes());
}

/// Reports a problem on standard error and in the log file.
pub(crate) fn warn(text: Arguments<'_>) {
    let mut line = Line { bytes: [0; 512], length: 0 };
    let _ = writeln!(line, "bailiff-quota: {text}");
    // SAFETY: the descriptor belongs to the program and may be closed, in which case the call fails.
    unsafe { write_nonblocking(libc::STDERR_FILENO, line.bytes()) };
    if let Some(path) = environment::settings().log.as_deref() {
        let mut line = Line::begin();
        let _ = writeln!(line, "event=note text=\"{text}\"");
        append(path, line.bytes());
    }
}

/// A log line. Longer text is truncated.
struct Line {
    bytes: [u8; 512],
    length: usize,
}

impl Line {
    /// Returns a line that starts with the time and the pid.
    fn begin() -> Self {
        let mut line = Self { bytes: [0; 512], length: 0 };
        let nanoseconds = now();
        // SAFETY: `getpid` has no preconditions.
        let pid = unsafe { libc::getpid() };
        let seconds = nanoseconds.checked_div(1_000_000_000).unwrap_or(0);
        let _ = write!(line, "{} pid={pid} ", Utc { seconds, milliseconds: nanoseconds / 1_000_000 % 1000 });
        line
    }

    fn bytes(&self) -> &[u8] {
        self.bytes.get(..self.length).unwrap_or_default()
    }
}

impl Write for Line {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let room = self.bytes.get_mut(self.length..).unwrap_or_default();
        let length = text.len().min(room.len());
        room.iter_mut().zip(text.bytes()).for_each(|(place, byte)| *place = byte);
        self.length = self.length.saturating_add(length);
        Ok(())
    }
}

/// Returns the current time in nanoseconds since 1970.
pub(crate) fn now() -> u64 {
    clock(libc::CLOCK_REALTIME)
}

/// Returns the time on a clock in nanoseconds.
pub(crate) fn clock(which: c_int) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is to a local variable.
    unsafe { libc::clock_gettime(which, &raw mut time) };
    let (seconds, rest) = (u64::try_from(time.tv_sec).unwrap_or(0), u64::try_from(time.tv_nsec).unwrap_or(0));
    seconds.saturating_mul(1_000_000_000).saturating_add(rest)
}

/// A UTC time. It is formatted here because the C library's functions read files and take locks.
struct Utc {
    seconds: u64,
    milliseconds: u64,
}

impl fmt::Display for Utc {
    #[expect(clippy::arithmetic_side_effects, reason = "a calendar of numbers far below the largest")]
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (days, second) = (self.seconds / 86_400, self.seconds % 86_400);
        // Years are counted from March, so that the leap day is the last day in a year.
        let day = days + 719_468;
        let (era, of_era) = (day / 146_097, day % 146_097);
        let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
        let of_year = of_era - (365 * year + year / 4 - year / 100);
        let march = (5 * of_year + 2) / 153;
        let month = if march < 10 { march + 3 } else { march - 9 };
        let (year, day) = (era * 400 + year + u64::from(month < 3), of_year - (153 * march + 2) / 5 + 1);
        let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
        write!(
            to,
            "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{:03}Z",
            self.milliseconds
        )
    }
}

/// Appends a line to the log file. The file is opened for each line, because the program could close a
/// descriptor that it does not know and reuse the number.
fn append(path: &CStr, line: &[u8]) {
    let flags = libc::O_WRONLY
        | libc::O_APPEND
        | libc::O_CREAT
        | libc::O_CLOEXEC
        | libc::O_NOFOLLOW
        | libc::O_NONBLOCK;
    // SAFETY: the path is a C string, and the descriptor is opened and closed here.
    unsafe {
        let file = libc::open(path.as_ptr(), flags, 0o600);
        if file < 0 {
            return;
        }
        let mut about = MaybeUninit::<libc::stat>::uninit();
        let known = libc::fstat(file, about.as_mut_ptr()) == 0;
        // Writes only to a regular file, not to a FIFO or a device.
        if known && about.assume_init().st_mode & libc::S_IFMT == libc::S_IFREG {
            libc::write(file, line.as_ptr().cast(), line.len());
        }
        libc::close(file);
    }
}

/// Writes a line if the write does not block, and discards the SIGPIPE from a closed pipe.
///
/// # Safety
/// Writing to the descriptor must be permitted. The descriptor may be closed.
unsafe fn write_nonblocking(file: c_int, line: &[u8]) {
    let mut ready = libc::pollfd { fd: file, events: libc::POLLOUT, revents: 0 };
    // SAFETY: `poll` gets one element, the signal sets and the time are local, and the buffer has the given
    // length.
    unsafe {
        if libc::poll(&raw mut ready, 1, 0) != 1 || ready.revents != libc::POLLOUT {
            return;
        }
        let (mut pipe, mut before, mut pending) = (empty(), empty(), empty());
        libc::sigaddset(&raw mut pipe, libc::SIGPIPE);
        libc::sigpending(&raw mut pending);
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const pipe, &raw mut before);
        let written = libc::write(file, line.as_ptr().cast(), line.len());
        if written < 0 && libc::sigismember(&raw const pending, libc::SIGPIPE) == 0 {
            let none = libc::timespec { tv_sec: 0, tv_nsec: 0 };
            libc::sigtimedwait(&raw const pipe, ptr::null_mut(), &raw const none);
        }
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, ptr::null_mut());
    }
}

fn empty() -> libc::sigset_t {
    let mut set = MaybeUninit::uninit();
    // SAFETY: `sigemptyset` initializes the set.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        set.assume_init()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn utc_times_are_formatted() {
        for (seconds, expected) in [
            (0, "1970-01-01T00:00:00.007Z"),
            (951_782_400, "2000-02-29T00:00:00.007Z"),
            (951_868_800, "2000-03-01T00:00:00.007Z"),
            (1_767_225_599, "2025-12-31T23:59:59.007Z"),
            (1_767_225_600, "2026-01-01T00:00:00.007Z"),
            (1_795_305_600, "2026-11-22T00:00:00.007Z"),
            (4_102_444_800, "2100-01-01T00:00:00.007Z"),
        ] {
            assert_eq!(Utc { seconds, milliseconds: 7 }.to_string(), expected);
        }
    }

    #[test]
    fn too_long_line_is_cut() {
        let mut line = Line { bytes: [0; 512], length: 0 };
        for _ in 0..100 {
            let _ = write!(line, "0123456789");
        }
        assert_eq!(line.bytes().len(), 512);
        assert!(line.bytes().starts_with(b"01234567890"));
    }
}
