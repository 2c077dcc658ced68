//! Identity of a process: pid and start time in a PID namespace. Does not use the program's heap.

use std::ffi::{CStr, c_int};
use std::io::Write;

/// Fields of `/proc/PID/stat`.
#[derive(Debug, PartialEq, Eq)]
struct Stat {
    name: [u8; 16],
    state: u8,
    threads: u64,
    start: u64,
}

/// Identity of this process.
pub(crate) struct OwnProcess {
    pub(crate) pid: u32,
    pub(crate) start: u64,
    /// Inode of the PID namespace.
    pub(crate) namespace: u64,
    pub(crate) name: [u8; 16],
}

impl OwnProcess {
    /// Reads the identity. Returns `None` without `/proc`, because other processes could not detect this
    /// process's exit.
    pub(crate) fn read() -> Option<Self> {
        // SAFETY: `getpid` has no preconditions.
        let pid = u32::try_from(unsafe { libc::getpid() }).ok()?;
        let stat = read(c"/proc/self/stat").and_then(|text| parse(text.bytes()))?;
        Some(Self { pid, start: stat.start, namespace: namespace()?, name: stat.name })
    }
}

/// Returns whether a process in this PID namespace has certainly exited, so that its memory is free.
pub(crate) fn is_gone(pid: u32, start: u64) -> bool {
    let Ok(id) = c_int::try_from(pid) else { return false };
    // SAFETY: signal 0 only checks whether the process exists. A missing entry in `/proc` does not prove an
    // exit, because `/proc` can be mounted to hide other users' processes.
    let known = unsafe { libc::kill(id, 0) } == 0 || errno() != libc::ESRCH;
    if !known {
        return true;
    }
    let mut path = [0; 32];
    // The path is shorter than the buffer, which is filled with zeros.
    let _ = write!(&mut path[..], "/proc/{pid}/stat");
    let text = CStr::from_bytes_until_nul(&path).ok().and_then(read);
    let Some(stat) = text.and_then(|text| parse(text.bytes())) else { return false };
    // A zombie leader with other threads running still holds its memory.
    stat.start != start || (matches!(stat.state, b'Z' | b'X') && stat.threads <= 1)
}

/// Returns the boot id, which shows whether a file was last used before a reboot.
pub(crate) fn boot() -> Option<[u8; 16]> {
    let text = read(c"/proc/sys/kernel/random/boot_id")?;
    let mut digits = text.bytes().iter().filter_map(|byte| char::from(*byte).to_digit(16));
    let mut boot = [0; 16];
    for byte in &mut boot {
        let (high, low) = (digits.next()?, digits.next()?);
        *byte = u8::try_from((high << 4) | low).ok()?;
    }
    Some(boot)
}

fn namespace() -> Option<u64> {
    let mut about = std::mem::MaybeUninit::<libc::stat>::uninit();
    // SAFETY: the path is a C string, and the result goes to a local variable.
    let found = unsafe { libc::stat(c"/proc/self/ns/pid".as_ptr(), about.as_mut_ptr()) } == 0;
    // SAFETY: `stat` has succeeded and initialized the variable.
    found.then(|| unsafe { about.assume_init() }.st_ino)
}

/// Returns the C library's error number.
pub(crate) fn errno() -> c_int {
    // SAFETY: the pointer is thread-local and always valid.
    unsafe { *libc::__errno_location() }
}

/// First bytes of a file.
struct Text {
    bytes: [u8; 1024],
    length: usize,
}

impl Text {
    fn bytes(&self) -> &[u8] {
        self.bytes.get(..self.length).unwrap_or_default()
    }
}

fn read(path: &CStr) -> Option<Text> {
    let mut text = Text { bytes: [0; 1024], length: 0 };
    // SAFETY: the path is a C string, the buffer has the given length, and the descriptor is opened and
    // closed here.
    let length = unsafe {
        let file = libc::open(path.as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC);
        if file < 0 {
            return None;
        }
        let length = libc::read(file, text.bytes.as_mut_ptr().cast(), text.bytes.len());
        libc::close(file);
        length
    };
    text.length = usize::try_from(length).ok().filter(|length| *length > 0)?;
    Some(text)
}

/// Parses `/proc/PID/stat`. The name can contain any bytes; after its closing parenthesis there are only
/// numbers.
fn parse(text: &[u8]) -> Option<Stat> {
    let open = text.iter().position(|byte| *byte == b'(')?;
    let close = text.iter().rposition(|byte| *byte == b')')?;
    let mut name = [0; 16];
    let bytes = text.get(open.checked_add(1)?..close)?;
    name.iter_mut().zip(bytes).for_each(|(place, byte)| *place = *byte);
    let mut fields = text.get(close.checked_add(2)?..)?.split(|byte| *byte == b' ');
    let state = *fields.next()?.first()?;
    let number = |field: &[u8]| std::str::from_utf8(field).ok()?.parse().ok();
    let threads = number(fields.nth(16)?)?;
    let start = number(fields.nth(1)?)?;
    Some(Stat { name, state, threads, start })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stat(name: &str, state: char, threads: u64, start: u64) -> String {
        format!("77 ({name}) {state} 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 {threads} 0 {start} 22 23\n")
    }

    #[test]
    fn stat_is_parsed_for_any_name() {
        for name in ["python", "a b", ") S 1 (", "x)\n", ""] {
            let mut padded = [0; 16];
            padded[..name.len()].copy_from_slice(name.as_bytes());
            let expected = Stat { name: padded, state: b'S', threads: 3, start: 4711 };
            assert_eq!(parse(stat(name, 'S', 3, 4711).as_bytes()), Some(expected), "{name:?}");
        }
        for text in [
            "",
            "77",
            "77 (x",
            "77 (x)",
            "77 (x) ",
            ")(",
            "77 (x) S 1 2 3",
            "77 (x) S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 t 0 s",
        ] {
            assert_eq!(parse(text.as_bytes()), None, "{text:?}");
        }
    }

    #[test]
    fn process_is_gone_if_pid_or_start_differ() {
        let own = OwnProcess::read().unwrap_or_else(|| panic!("/proc must be mounted"));
        assert_eq!(own.pid, std::process::id());
        assert!(!is_gone(own.pid, own.start));
        assert!(is_gone(own.pid, own.start + 1), "the pid was reused");
        assert!(is_gone(4_194_305, 1), "the pid is above the highest pid on Linux");
        assert!(!is_gone(u32::MAX, 1), "whether an invalid pid has exited is unknown");
        assert!(boot().is_some());
    }

    #[test]
    fn zombie_is_gone() {
        // SAFETY: the child exits at once.
        let child = unsafe {
            let child = libc::fork();
            if child == 0 {
                libc::_exit(0);
            }
            child
        };
        let pid = u32::try_from(child).unwrap_or_else(|_| panic!("a child"));
        let path = std::ffi::CString::new(format!("/proc/{pid}/stat")).unwrap_or_default();
        let stat = loop {
            let stat = read(&path).and_then(|text| parse(text.bytes())).unwrap_or_else(|| panic!("a zombie"));
            if stat.state == b'Z' {
                break stat;
            }
        };
        assert!(is_gone(pid, stat.start));
        // SAFETY: the pid belongs to a child of this process.
        unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) };
    }
}
