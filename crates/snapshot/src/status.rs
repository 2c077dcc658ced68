//! Parses the content of `/proc/PID/status`. Does not open the file.

use crate::stat::Stat;
use crate::{ProcessKey, State};

/// Maximum size. The longest line lists up to 65,536 groups (`NGROUPS_MAX`), with at most eleven bytes each.
pub const LONGEST: usize = 1 << 20;

/// Contents of `/proc/PID/status` (proc(5)). The process name in it may contain any bytes, including partial
/// characters. A field is read only if its line is complete, so a truncated file has no wrong values.
#[derive(Debug, Clone, Copy)]
pub struct Status<'a>(&'a [u8]);

impl<'a> Status<'a> {
    /// Wraps the contents of a file.
    pub const fn new(text: &'a [u8]) -> Self {
        Self(text)
    }

    /// Returns the pid in each PID namespace, from the reader's to the process's own (`NSpid`, Linux 4.1).
    pub fn pids(self) -> Option<Vec<u32>> {
        self.numbers("NSpid:")
    }

    /// Returns the pid of the process to which the thread belongs (`Tgid`).
    pub fn tgid(self) -> Option<u32> {
        self.numbers("Tgid:")?.first().copied()
    }

    /// Returns the real, effective, saved and filesystem uid (`Uid`).
    pub fn uids(self) -> Option<Vec<u32>> {
        self.numbers("Uid:")
    }

    /// Returns a bit mask, such as `SigIgn:` or `CapEff:`.
    pub fn mask(self, name: &str) -> Option<u64> {
        u64::from_str_radix(self.field(name)?.trim(), 16).ok()
    }

    /// Returns what `stat` would contain, with this start time and without CPU time, which are not in this file.
    pub fn stat(self, start_ticks: u64) -> Option<Stat> {
        let first = |name| self.numbers(name)?.first().copied();
        Some(Stat {
            key: ProcessKey { pid: first("Pid:")?, start_ticks },
            comm: self.name()?,
            state: State::of_letter(self.field("State:")?.split_ascii_whitespace().next()?),
            ppid: first("PPid:")?,
            session: first("NSsid:")?,
            cpu_ticks: 0,
            reaped_ticks: None,
            threads: first("Threads:")?,
            kernel_thread: false,
        })
    }

    /// Returns the name. The kernel writes a line feed in it as `\n`, and a backslash as `\\`.
    fn name(self) -> Option<String> {
        let line = self.0.split(|byte| *byte == b'\n').next()?.strip_prefix(b"Name:\t")?;
        let line = String::from_utf8_lossy(line);
        let parts: Vec<String> = line.split("\\\\").map(|part| part.replace("\\n", "\n")).collect();
        Some(parts.join("\\"))
    }

    fn numbers(self, name: &str) -> Option<Vec<u32>> {
        let numbers = self.field(name)?.split_ascii_whitespace().map(|number| number.parse().ok());
        numbers.collect::<Option<Vec<u32>>>().filter(|numbers| !numbers.is_empty())
    }

    fn field(self, name: &str) -> Option<&'a str> {
        let mut lines = self.0.split_inclusive(|byte| *byte == b'\n');
        let value = lines.find_map(|line| line.strip_prefix(name.as_bytes()))?;
        std::str::from_utf8(value.strip_suffix(b"\n")?).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TAIL: &[u8] = b"\nUid:\t1000\t0\t0\t0\nNSpid:\t4100\t7\nSigIgn:\t0000000000000005\n";

    #[test]
    fn fields_are_read_whatever_bytes_the_name_has() {
        for name in [b"python3".as_slice(), b"trainer\xff", b"trainer-abcdef\xc3", b"", b"NSpid:\t1\\nUid:"] {
            let text = [b"Name:\t", name, TAIL].concat();
            let status = Status::new(&text);
            assert_eq!(status.pids(), Some(vec![4100, 7]), "{name:?}");
            assert_eq!(status.uids(), Some(vec![1000, 0, 0, 0]), "{name:?}");
            assert_eq!((status.mask("SigIgn:"), status.mask("CapEff:")), (Some(5), None), "{name:?}");
        }
    }

    #[test]
    fn field_that_is_malformed_is_absent() {
        for text in ["", "NSpid:", "NSpid:\n", "NSpid:\tx\n", "NSpid:\t7 x\n", "NSpid:\t-7\n", "SigIgn:\tx\n"]
        {
            let status = Status::new(text.as_bytes());
            assert_eq!((status.pids(), status.mask("SigIgn:")), (None, None), "{text}");
        }
    }

    proptest! {
        #[test]
        fn field_of_a_line_that_was_cut_is_absent(cut in 0usize..70, noise: Vec<u8>) {
            let whole = [b"Name:\tx", TAIL].concat();
            let status = Status::new(&whole[..cut.min(whole.len())]);
            prop_assert!(status.pids().is_none_or(|pids| pids == [4100, 7]));
            prop_assert!(status.mask("SigIgn:").is_none_or(|mask| mask == 5));
            let _ = (Status::new(&noise).pids(), Status::new(&noise).mask("SigIgn:"));
        }
    }
}
