//! Parser of `/proc/PID/stat`. It opens no file.

use crate::{ProcessKey, State};

/// Contents of `/proc/PID/stat`. Field numbers are those of proc(5).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stat {
    /// Pid and start time: fields 1 and 22.
    pub key: ProcessKey,
    /// Name: field 2 without the parentheses. It may contain any byte.
    pub comm: String,
    /// Process state: field 3.
    pub state: State,
    /// Parent's pid: field 4.
    pub ppid: u32,
    /// Session: field 6, the pid of the session leader, which may have exited.
    pub session: u32,
    /// CPU time in clock ticks, user and system: fields 14 and 15.
    pub cpu_ticks: u64,
    /// CPU time of its reaped children in clock ticks: fields 16 and 17. The kernel's values are signed;
    /// `None` if one is negative.
    pub reaped_ticks: Option<u64>,
    /// Number of threads: field 20.
    pub threads: u32,
    /// Whether it is a kernel thread: `PF_KTHREAD` (`include/linux/sched.h`) in field 9.
    pub kernel_thread: bool,
}

impl Stat {
    /// Returns the values of a process about which nothing is known.
    pub const fn unknown(pid: u32) -> Self {
        Self {
            key: ProcessKey { pid, start_ticks: 0 },
            comm: String::new(),
            state: State::Unknown,
            ppid: 1,
            session: 0,
            cpu_ticks: 0,
            reaped_ticks: None,
            threads: 1,
            kernel_thread: false,
        }
    }
}

/// Number of the last field that is parsed.
const LAST: usize = 22;
const PF_KTHREAD: u32 = 0x0020_0000;

/// Parses one line; `None` if it is truncated or malformed.
pub fn parse(line: &[u8]) -> Option<Stat> {
    let open = line.iter().position(|byte| *byte == b'(')?;
    let close = line.iter().rposition(|byte| *byte == b')')?;
    let pid = number(line.get(..open)?)?;
    let comm = String::from_utf8_lossy(line.get(open + 1..close)?).into_owned();
    let rest = std::str::from_utf8(line.get(close + 1..)?).ok()?;
    let mut fields = [""; LAST - 2];
    for (place, field) in fields.iter_mut().zip(rest.split_ascii_whitespace()) {
        *place = field;
    }
    let field = |number: usize| fields.get(number - 3).copied();
    let value = |number: usize| field(number)?.parse::<u64>().ok();
    let small = |number: usize| u32::try_from(value(number)?).ok();
    Some(Stat {
        key: ProcessKey { pid, start_ticks: value(22)? },
        comm,
        state: State::of_letter(field(3)?),
        ppid: small(4)?,
        // A process outside the reader's PID namespace has session 0, and so has a kernel thread.
        session: small(6).unwrap_or_default(),
        cpu_ticks: value(14)?.checked_add(value(15)?)?,
        reaped_ticks: value(16).zip(value(17)).and_then(|(user, system)| user.checked_add(system)),
        threads: small(20)?,
        kernel_thread: small(9)? & PF_KTHREAD != 0,
    })
}

fn number(bytes: &[u8]) -> Option<u32> {
    std::str::from_utf8(bytes).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn line(comm: &[u8]) -> Vec<u8> {
        let tail =
            b" S 11 41 40 34816 41 4194304 1 2 3 4 250 50 5 6 20 0 3 0 987654 1 2 18446744073709551615\n";
        [b"41 (", comm, b")", tail.as_slice()].concat()
    }

    #[test]
    fn an_ordinary_line() {
        let stat = parse(&line(b"python3")).unwrap();
        assert_eq!(stat.key, ProcessKey { pid: 41, start_ticks: 987_654 });
        assert_eq!((stat.comm.as_str(), stat.state, stat.ppid), ("python3", State::Sleeping, 11));
        assert_eq!((stat.session, stat.cpu_ticks, stat.threads, stat.kernel_thread), (40, 300, 3, false));
        assert_eq!(stat.reaped_ticks, Some(11));
    }

    #[test]
    fn reaped_time_that_makes_no_sense_is_none() {
        for (fields, expected) in [("7 8", Some(15)), ("-7 8", None), ("7 -1", None), ("x 8", None)] {
            let line = format!("41 (a) S 11 41 40 0 41 0 1 2 3 4 250 50 {fields} 20 0 3 0 9 1 2 3\n");
            assert_eq!(parse(line.as_bytes()).unwrap().reaped_ticks, expected, "{fields}");
        }
        let most = u64::MAX;
        let line = format!("41 (a) S 11 41 40 0 41 0 1 2 3 4 250 50 {most} 1 20 0 3 0 9 1 2 3\n");
        assert_eq!(parse(line.as_bytes()).unwrap().reaped_ticks, None);
    }

    #[test]
    fn hostile_names_stay_names() {
        for comm in [b"a) R 1 (".as_slice(), b"new\nline", b"\xff\xfe", b"", b") (", b"\"\\"] {
            let stat = parse(&line(comm)).unwrap();
            assert_eq!((stat.key.pid, stat.ppid), (41, 11), "{comm:?}");
            assert_eq!(stat.comm, String::from_utf8_lossy(comm));
        }
    }

    proptest! {
        #[test]
        fn a_cut_line_is_no_line_and_nothing_panics(cut in 0usize..90, noise: Vec<u8>) {
            let whole = line(b"x");
            let end = whole.len().min(cut);
            if let Some(stat) = parse(&whole[..end]) {
                prop_assert_eq!(stat.key.pid, 41);
            }
            let _ = parse(&noise);
        }
    }
}
