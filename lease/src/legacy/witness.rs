//! The process that a record names, read from `/proc`.

#![expect(clippy::disallowed_methods, reason = "reads /proc")]

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;

use bailiff_snapshot::ProcessKey;
use serde::{Deserialize, Serialize};

use crate::audit::Record;
use crate::holder::LocalHost;
use crate::process::{all, any_lives, directory, pids, stated};
use crate::{LeaseError, Op, Pool};

/// What was seen of whoever wrote a record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Witness {
    /// The record's pid ...
    pub pid: String,
    /// ... and time: it belongs to no other record.
    pub time: String,
    /// The host of whoever looked, ...
    pub host: String,
    /// ... which boot of it, ...
    pub boot: String,
    /// ... and which PID namespace.
    pub pidns: String,
    /// The owner of the process that the record names.
    pub uid: Option<u32>,
    /// It was looked at when the record was written, so that the pid was not yet anybody else's.
    pub prompt: bool,
    /// All could be looked at.
    pub whole: bool,
    /// The process. In PID namespaces of containers the same pid is another's: all that could be meant are here.
    pub processes: Vec<ProcessKey>,
    /// Its session.
    pub session: Option<u32>,
    /// When it was read, in milliseconds since boot.
    pub at_ms: u64,
}

/// Ticks of `start_ticks` in a second: `USER_HZ` of `include/uapi/asm-generic/param.h`.
const TICKS_PER_SECOND: u64 = 100;
/// Seconds by which a clock may be behind UTC: half a day, and a little for clocks that are wrong.
const FURTHEST_WEST: i64 = 13 * 3600;

/// When a record was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found {
    /// As it was written.
    Written,
    /// Some time later.
    Later,
}

impl Witness {
    /// Looks at whoever wrote a record.
    #[must_use]
    pub fn look(local_host: &LocalHost, record: &Record, found: Found) -> Self {
        let mut witness = Self {
            pid: record.pid.clone(),
            time: record.time.clone(),
            host: local_host.host.clone(),
            boot: local_host.boot.clone(),
            pidns: local_host.pidns.clone(),
            uid: None,
            prompt: found == Found::Written,
            whole: local_host.everybody,
            processes: Vec::new(),
            session: None,
            at_ms: since_boot(),
        };
        let Ok(pid) = record.pid.parse::<u32>() else {
            witness.whole = false;
            return witness;
        };
        // The one on this host first: he may be gone in a moment.
        witness.add(pid);
        match namesakes(pid) {
            Ok(others) => others.into_iter().for_each(|other| witness.add(other)),
            Err(_) => witness.whole = false,
        }
        witness
    }

    fn add(&mut self, pid: u32) {
        let process = directory(pid);
        match stated(&process) {
            // The pid is another's by now.
            Ok(Some(stat)) if !self.prompt && self.is_before(stat.key) => {}
            Ok(Some(stat)) => {
                self.uid = self.uid.or_else(|| Some(fs::metadata(&process).ok()?.uid()));
                self.session = self.session.or(Some(stat.session));
                self.processes.push(stat.key);
            }
            Ok(None) => {}
            Err(_) => self.whole = false,
        }
    }

    /// The record was written before this process began, wherever on earth its time was told.
    fn is_before(&self, process: ProcessKey) -> bool {
        let booted = fs::read_to_string("/proc/stat").unwrap_or_default();
        let booted = booted.lines().find_map(|line| line.strip_prefix("btime ")?.trim().parse::<i64>().ok());
        let began = i64::try_from(process.start_ticks / TICKS_PER_SECOND).ok();
        let began = booted.zip(began).map(|(booted, began)| booted + began);
        began.zip(local(&self.time)).is_some_and(|(began, time)| began - time > FURTHEST_WEST)
    }

    /// What was seen of just this record; none where it is of another.
    #[must_use]
    pub fn of(record: &Record) -> Option<Self> {
        let witness: Self = serde_json::from_str(record.seen.as_deref()?).ok()?;
        (witness.pid == record.pid && witness.time == record.time).then_some(witness)
    }

    /// Takes over what an earlier look at the same process saw: the record was half written then.
    pub fn join(&mut self, earlier: &Self) {
        let same = self.pid == earlier.pid && self.boot == earlier.boot && self.pidns == earlier.pidns;
        if same && earlier.time.is_empty() && earlier.prompt {
            self.processes.extend(&earlier.processes);
            self.processes.sort_unstable();
            self.processes.dedup();
            self.uid = earlier.uid.or(self.uid);
            self.session = earlier.session.or(self.session);
            self.prompt = true;
            self.whole |= earlier.whole;
        }
    }

    /// Whether the process runs; none where that cannot be told.
    #[must_use]
    pub fn lives(&self, local_host: &LocalHost) -> Option<bool> {
        if !local_host.is_machine(Some(&self.host), Some(&self.boot)) {
            return None;
        }
        if !local_host.boot.is_empty() && self.boot != local_host.boot {
            return Some(false);
        }
        if any_lives(self.processes.iter().copied()).ok()? {
            return Some(true);
        }
        let told = self.whole
            && local_host.everybody
            && !local_host.pidns.is_empty()
            && self.pidns == local_host.pidns;
        told.then_some(false)
    }
}

impl Pool {
    /// Keeps what was seen beside the record, as long as it is the same one; tells whether it was.
    ///
    /// # Errors
    /// Where there is no answer.
    pub fn keep(&mut self, gpu: &str, witness: &Witness) -> Result<bool, LeaseError> {
        let text = serde_json::to_string(witness).map_err(|error| LeaseError::Strange(error.to_string()))?;
        let told: String =
            self.call(Op::Seen, &[gpu.to_owned(), witness.pid.clone(), witness.time.clone(), text])?;
        Ok(told == "kept")
    }
}

fn since_boot() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    u64::try_from(now.tv_sec * 1000 + now.tv_nsec / 1_000_000).unwrap_or_default()
}

/// `2026-11-21 06:29:57` in seconds, as if it were UTC.
fn local(time: &str) -> Option<i64> {
    let (date, clock) = time.split_once(' ')?;
    let three = |text: &str, mark| {
        let mut parts = text.split(mark).map(str::parse::<i64>);
        let three = (parts.next()?.ok()?, parts.next()?.ok()?, parts.next()?.ok()?);
        parts.next().is_none().then_some(three)
    };
    let (year, month, day) = three(date, '-').filter(|(_, month, _)| (1..=12).contains(month))?;
    let (hour, minute, second) = three(clock, ':')?;
    // Days to a date of the Gregorian calendar, with years that begin in March.
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let days = year * 365 + year / 4 - year / 100 + year / 400 + (153 * month + 2) / 5 + day - 1 - 719_468;
    Some(days * 86400 + hour * 3600 + minute * 60 + second)
}

/// Processes of other PID namespaces that are known by this pid there.
///
/// # Errors
/// Where one of all processes cannot be read: it may be known by this pid.
fn namesakes(pid: u32) -> io::Result<Vec<u32>> {
    let mut found = Vec::new();
    for process in all()? {
        if let Some([outside, inside @ ..]) = pids(&process?)?.as_deref()
            && inside.contains(&pid)
        {
            found.push(*outside);
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::process::{Child, Command, Stdio};

    use super::*;
    use crate::process::lives;

    fn record(pid: u32, time: &str) -> Record {
        Record { pid: pid.to_string(), time: time.to_owned(), lease: None, seen: None }
    }

    /// A shell that runs this and prints one line.
    fn shell(program: &str) -> (Child, String) {
        let mut child = Command::new("bash")
            .args(["-c", program])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        (child, line.trim().to_owned())
    }

    #[test]
    fn times() {
        for (text, expected) in [
            ("1970-01-01 00:00:00", Some(0)),
            ("2026-11-21 06:29:57", Some(1_795_242_597)),
            ("2000-02-29 23:59:59", Some(951_868_799)),
            ("2000-13-01 00:00:00", None),
            ("2000-01-01", None),
            ("", None),
            ("2000-01-01 00:00", None),
        ] {
            assert_eq!(local(text), expected, "{text}");
        }
    }

    #[test]
    fn recorded_process_that_has_ended_is_dead_though_its_parent_lives() {
        let local_host = LocalHost::read();
        // The subshell waits for a word, so that it is read while it is there; then the shell above it lives on.
        let (mut script, pid) = shell("(echo $BASHPID; read word); read word");
        let record = record(pid.parse().unwrap(), "2026-11-21 06:29:57");
        let mut witness = Witness::look(&local_host, &record, Found::Written);
        assert_eq!((witness.lives(&local_host), witness.processes.len()), (Some(true), 1), "{witness:?}");
        std::io::Write::write_all(script.stdin.as_mut().unwrap(), b"go\n").unwrap();
        while lives(witness.processes[0]).unwrap() {
            std::thread::yield_now();
        }
        assert_eq!(witness.lives(&local_host), Some(false));
        witness.whole = false;
        assert_eq!(witness.lives(&local_host), None, "somebody could not be looked at");
        script.kill().unwrap();
        script.wait().unwrap();
    }

    #[test]
    fn witness_in_a_pid_namespace_lives_whatever_bytes_its_name_has() {
        let local_host = LocalHost::read();
        for name in [r"b'trainer\xff'", "'trainer-abcdef\u{fc}'.encode()"] {
            let (mut ended, pid) = shell("echo $$");
            ended.wait().unwrap();
            // A process that is known by this pid in its own namespace, and has this name, cut at its 15th byte.
            let program = format!(
                "import os
open('/proc/sys/kernel/ns_last_pid', 'w').write(str({pid} - 1))
if os.fork() == 0:
    open('/proc/self/comm', 'wb').write({name})
    print(os.getpid(), flush=True)
os.read(0, 1)"
            );
            let unshare = format!("exec unshare --pid --fork --kill-child python3 -c \"{program}\"");
            let (mut namespace, inside) = shell(&unshare);
            assert_eq!(inside, pid, "the next pid could be chosen");
            let record = record(pid.parse().unwrap(), "2026-11-21 06:29:57");
            let witness = Witness::look(&local_host, &record, Found::Written);
            assert_eq!(witness.lives(&local_host), Some(true), "{name}: {witness:?}");
            namespace.kill().unwrap();
            namespace.wait().unwrap();
        }
    }

    #[test]
    fn what_was_seen_is_of_one_record_and_of_one_boot() {
        let local_host = LocalHost { host: "0123456789abcdef".repeat(2), ..LocalHost::read() };
        let seen = Witness::look(&local_host, &record(std::process::id(), "a time"), Found::Written);
        assert_eq!(seen.lives(&local_host), Some(true));
        let mut with = record(std::process::id(), "a time");
        with.seen = serde_json::to_string(&seen).ok();
        assert_eq!(Witness::of(&with).as_ref(), Some(&seen));
        with.time = "another".to_owned();
        assert_eq!(Witness::of(&with), None);
        let rebooted = LocalHost { boot: "another".to_owned(), ..local_host.clone() };
        assert_eq!(seen.lives(&rebooted), Some(false), "nobody outlives a reboot");
        let another =
            LocalHost { host: "another".to_owned(), boot: "another".to_owned(), ..local_host.clone() };
        assert_eq!(seen.lives(&another), None, "somebody of another host has looked");
        let pod = |boot: &str| LocalHost {
            host: "worker-0".to_owned(),
            boot: boot.to_owned(),
            ..local_host.clone()
        };
        let of_pod = Witness { host: "worker-0".to_owned(), ..seen.clone() };
        assert_eq!((of_pod.lives(&pod(&local_host.boot)), of_pod.lives(&pod("another"))), (Some(true), None));
        let elsewhere = LocalHost { pidns: "1".to_owned(), ..local_host };
        let mut dead = seen;
        dead.processes.clear();
        assert_eq!(dead.lives(&elsewhere), None);
    }

    #[test]
    fn whoever_began_after_the_record_did_not_write_it() {
        let local_host = LocalHost::read();
        let mut child = Command::new("sleep").arg("infinity").spawn().unwrap();
        let long_ago = record(child.id(), "2001-01-01 00:00:00");
        let look = |found| Witness::look(&local_host, &long_ago, found).lives(&local_host);
        assert_eq!((look(Found::Later), look(Found::Written)), (Some(false), Some(true)));
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn a_pid_that_is_none_tells_nothing() {
        let local_host = LocalHost::read();
        let mut odd = record(1, "");
        odd.pid = "what is this".to_owned();
        assert_eq!(Witness::look(&local_host, &odd, Found::Written).lives(&local_host), None);
    }
}
