//! Evidence about the process in a record, read from `/proc`.

use bailiff_proc::clock::since_boot;
use bailiff_proc::{Proc, Process, ReadError, unless_gone};
use bailiff_snapshot::ProcessKey;
use serde::{Deserialize, Serialize};

use crate::audit::Record;
use crate::holder::LocalHost;
use crate::process::any_lives;
use crate::{LeaseError, Op, Pool};

/// What was observed about the process that wrote a record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WriterEvidence {
    /// The record's pid.
    pub pid: String,
    /// The record's time. Together with the pid it identifies the record.
    pub time: String,
    /// The machine id of the observer.
    pub host: String,
    /// Boot id of the observer.
    pub boot: String,
    /// PID namespace of the observer.
    pub pidns: String,
    /// Owner of the process in the record.
    pub uid: Option<u32>,
    /// Whether the process was read when the record was written, before the pid could be reused.
    pub prompt: bool,
    /// Whether all processes could be read.
    pub whole: bool,
    /// Processes to which the pid may refer. There can be several, because the same pid is a different process in
    /// each container's PID namespace.
    pub processes: Vec<ProcessKey>,
    /// The session of the process.
    pub session: Option<u32>,
    /// When the process was read, in milliseconds since boot.
    pub at_ms: u64,
}

/// Seconds by which a local clock may be behind UTC: 12 hours, and one hour for inaccurate clocks.
const FURTHEST_WEST: i64 = 13 * 3600;

/// When the record was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found {
    /// When it was written.
    Written,
    /// At a later time.
    Later,
}

impl WriterEvidence {
    /// Reads the process that wrote a record.
    pub fn collect(local_host: &LocalHost, record: &Record, found: Found) -> Self {
        let mut evidence = Self {
            pid: record.pid.clone(),
            time: record.time.clone(),
            host: local_host.host.clone(),
            boot: local_host.boot.clone(),
            pidns: local_host.pidns.clone(),
            uid: None,
            prompt: found == Found::Written,
            whole: local_host.all_users,
            processes: Vec::new(),
            session: None,
            at_ms: u64::try_from(since_boot().as_millis()).unwrap_or_default(),
        };
        let Ok(pid) = record.pid.parse::<u32>() else {
            evidence.whole = false;
            return evidence;
        };
        match Proc::own() {
            Ok(proc) => evidence.add_all(&proc, pid),
            Err(_) => evidence.whole = false,
        }
        evidence
    }

    /// Adds the process of this namespace first, because it may exit soon.
    fn add_all(&mut self, proc: &Proc, pid: u32) {
        self.add(proc, proc.process(pid));
        match processes_with_inner_pid(proc, pid) {
            Ok(others) => others.into_iter().for_each(|other| self.add(proc, Ok(other))),
            Err(_) => self.whole = false,
        }
    }

    fn add(&mut self, proc: &Proc, process: Result<Process, ReadError>) {
        let read = process.and_then(|process| Ok((process.patiently(Process::stat)?, process)));
        match unless_gone(read) {
            // The pid has been reused since.
            Ok(Some((stat, _))) if !self.prompt && self.is_before(proc, stat.key) => {}
            Ok(Some((stat, process))) => {
                self.uid = self.uid.or_else(|| process.owner().ok());
                self.session = self.session.or(Some(stat.session));
                self.processes.push(stat.key);
            }
            Ok(None) => {}
            Err(_) => self.whole = false,
        }
    }

    /// Whether the record was written before this process started, in any time zone.
    fn is_before(&self, proc: &Proc, process: ProcessKey) -> bool {
        let started = i64::try_from(process.started().as_secs()).ok();
        let started = proc.boot_time().zip(started).map(|(booted, started)| i64::from(booted) + started);
        started.zip(local(&self.time)).is_some_and(|(started, time)| started - time > FURTHEST_WEST)
    }

    /// Returns the evidence about exactly this record, or `None` if there is none or it is about another record.
    pub fn of(record: &Record) -> Option<Self> {
        let evidence: Self = serde_json::from_str(record.seen.as_deref()?).ok()?;
        (evidence.pid == record.pid && evidence.time == record.time).then_some(evidence)
    }

    /// Adds earlier evidence about the same process, collected when the record did not have a time yet.
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

    /// Whether the process is running; `None` if that cannot be determined.
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
        let complete = self.whole
            && local_host.all_users
            && !local_host.pidns.is_empty()
            && self.pidns == local_host.pidns;
        complete.then_some(false)
    }
}

impl Pool {
    /// Stores evidence with the record, if the record is unchanged. Returns whether it was stored.
    ///
    /// # Errors
    /// If Redis does not respond.
    pub fn store(&mut self, gpu: &str, evidence: &WriterEvidence) -> Result<bool, LeaseError> {
        let text =
            serde_json::to_string(evidence).map_err(|error| LeaseError::unexpected(error.to_string()))?;
        let answer: String =
            self.call(Op::Seen, &[gpu.to_owned(), evidence.pid.clone(), evidence.time.clone(), text])?;
        Ok(answer == "kept")
    }
}

/// Parses `2026-11-21 06:29:57` into seconds, as if it were UTC.
fn local(time: &str) -> Option<i64> {
    let (date, clock) = time.split_once(' ')?;
    let three = |text: &str, mark| {
        // Other programs write the text, and numbers of 32 bits cannot overflow below.
        let mut parts = text.split(mark).map(|part| part.parse::<i32>().map(i64::from));
        let three = (parts.next()?.ok()?, parts.next()?.ok()?, parts.next()?.ok()?);
        parts.next().is_none().then_some(three)
    };
    let (year, month, day) = three(date, '-').filter(|(_, month, _)| (1..=12).contains(month))?;
    let (hour, minute, second) = three(clock, ':')?;
    // Days of the Gregorian calendar, counted in years that start in March.
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let days = year * 365 + year / 4 - year / 100 + year / 400 + (153 * month + 2) / 5 + day - 1 - 719_468;
    Some(days * 86400 + hour * 3600 + minute * 60 + second)
}

/// Returns the processes in nested PID namespaces that have this pid there. Users can make reads of `status` slow.
///
/// # Errors
/// If a process cannot be read, because it may have this pid.
fn processes_with_inner_pid(proc: &Proc, pid: u32) -> Result<Vec<Process>, ReadError> {
    let has_pid = move |proc: &Proc, outer| {
        let pids = proc.process(outer)?.inner_pids()?;
        Ok(pids.iter().skip(1).any(|inner| *inner == pid))
    };
    let mut found = Vec::new();
    for (outer, read) in proc.each(proc.pids()?, None, has_pid)? {
        if unless_gone(read)? == Some(true) {
            found.extend(unless_gone(proc.process(outer))?);
        }
    }
    Ok(found)
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "starts processes")]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::process::{Child, Command, Stdio};

    use super::*;
    use bailiff_proc::lives;

    fn record(pid: u32, time: &str) -> Record {
        Record { pid: pid.to_string(), time: time.to_owned(), lease: None, seen: None }
    }

    /// Starts a shell with this program and reads the first line of its output.
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
    fn local_times_are_parsed() {
        for (text, expected) in [
            ("1970-01-01 00:00:00", Some(0)),
            ("2026-11-21 06:29:57", Some(1_795_242_597)),
            ("2000-02-29 23:59:59", Some(951_868_799)),
            ("2000-13-01 00:00:00", None),
            ("2000-01-01", None),
            ("", None),
            ("2000-01-01 00:00", None),
            ("9223372036854775807-01-01 00:00:00", None),
            ("2000-01-01 9223372036854775807:00:00", None),
        ] {
            assert_eq!(local(text), expected, "{text}");
        }
    }

    #[test]
    fn exited_process_is_dead_while_its_parent_runs() {
        let local_host = LocalHost::read();
        // The subshell waits for input, so that its `/proc` files can be read. After its exit, only its parent
        // shell is running.
        let (mut script, pid) = shell("(echo $BASHPID; read word); read word");
        let record = record(pid.parse().unwrap(), "2026-11-21 06:29:57");
        let mut evidence = WriterEvidence::collect(&local_host, &record, Found::Written);
        assert_eq!((evidence.lives(&local_host), evidence.processes.len()), (Some(true), 1), "{evidence:?}");
        std::io::Write::write_all(script.stdin.as_mut().unwrap(), b"go\n").unwrap();
        while lives(evidence.processes[0]).unwrap() {
            std::thread::yield_now();
        }
        assert_eq!(evidence.lives(&local_host), Some(false));
        evidence.whole = false;
        assert_eq!(evidence.lives(&local_host), None, "a process could not be read");
        script.kill().unwrap();
        script.wait().unwrap();
    }

    #[test]
    fn process_in_pid_namespace_is_found_despite_invalid_utf8_name() {
        let local_host = LocalHost::read();
        for name in [r"b'trainer\xff'", "'trainer-abcdef\u{fc}'.encode()"] {
            let (mut ended, pid) = shell("echo $$");
            ended.wait().unwrap();
            // A process with this pid in its own namespace, and with this name, which the kernel truncates to 15
            // bytes.
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
            let evidence = WriterEvidence::collect(&local_host, &record, Found::Written);
            assert_eq!(evidence.lives(&local_host), Some(true), "{name}: {evidence:?}");
            namespace.kill().unwrap();
            namespace.wait().unwrap();
        }
    }

    #[test]
    fn evidence_applies_to_one_record_and_boot() {
        let local_host = LocalHost { host: "0123456789abcdef".repeat(2), ..LocalHost::read() };
        let seen =
            WriterEvidence::collect(&local_host, &record(std::process::id(), "a time"), Found::Written);
        assert_eq!(seen.lives(&local_host), Some(true));
        let mut with = record(std::process::id(), "a time");
        with.seen = serde_json::to_string(&seen).ok();
        assert_eq!(WriterEvidence::of(&with).as_ref(), Some(&seen));
        with.time = "another".to_owned();
        assert_eq!(WriterEvidence::of(&with), None);
        let rebooted = LocalHost { boot: "another".to_owned(), ..local_host.clone() };
        assert_eq!(seen.lives(&rebooted), Some(false), "no process survives a reboot");
        let another =
            LocalHost { host: "another".to_owned(), boot: "another".to_owned(), ..local_host.clone() };
        assert_eq!(seen.lives(&another), None, "the evidence is from another host");
        let pod = |boot: &str| LocalHost {
            host: "worker-0".to_owned(),
            boot: boot.to_owned(),
            ..local_host.clone()
        };
        let of_pod = WriterEvidence { host: "worker-0".to_owned(), ..seen.clone() };
        assert_eq!((of_pod.lives(&pod(&local_host.boot)), of_pod.lives(&pod("another"))), (Some(true), None));
        let elsewhere = LocalHost { pidns: "1".to_owned(), ..local_host };
        let mut dead = seen;
        dead.processes.clear();
        assert_eq!(dead.lives(&elsewhere), None);
    }

    #[test]
    fn process_started_after_the_record_is_not_its_writer() {
        let local_host = LocalHost::read();
        let mut child = Command::new("sleep").arg("infinity").spawn().unwrap();
        let long_ago = record(child.id(), "2001-01-01 00:00:00");
        let lives = |found| WriterEvidence::collect(&local_host, &long_ago, found).lives(&local_host);
        assert_eq!((lives(Found::Later), lives(Found::Written)), (Some(false), Some(true)));
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn record_with_invalid_pid_yields_unknown() {
        let local_host = LocalHost::read();
        let mut invalid = record(1, "");
        invalid.pid = "not a pid".to_owned();
        assert_eq!(WriterEvidence::collect(&local_host, &invalid, Found::Written).lives(&local_host), None);
    }
}
