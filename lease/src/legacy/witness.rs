//! Who wrote a record: the process that it names and all above it, looked at in `/proc`.

#![expect(clippy::disallowed_methods, reason = "reads /proc")]

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;

use bailiff_snapshot::{ProcessKey, workload};
use serde::{Deserialize, Serialize};

use crate::audit::Record;
use crate::holder::Here;
use crate::process::{all, any_lives, folder, lives, pids, stated};
use crate::{Op, Pool, Trouble};

/// Nobody is further from the first process.
const DEEPEST: usize = 256;
/// How often a line of ancestors is read that changes meanwhile.
const TRIES: usize = 3;

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
    /// The process and all above it but the first, and those that only start other people's work. In PID namespaces of
    /// containers the same pid is another's: all who could be meant are here.
    pub line: Vec<ProcessKey>,
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

/// One of a line.
struct Ancestor {
    key: ProcessKey,
    uid: u32,
    comm: String,
}

impl Witness {
    /// Looks at whoever wrote a record.
    #[must_use]
    pub fn look(here: &Here, record: &Record, found: Found) -> Self {
        let mut witness = Self {
            pid: record.pid.clone(),
            time: record.time.clone(),
            host: here.host.clone(),
            boot: here.boot.clone(),
            pidns: here.pidns.clone(),
            uid: None,
            prompt: found == Found::Written,
            whole: here.everybody,
            line: Vec::new(),
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
        match (0..TRIES).find_map(|_| line(pid)) {
            // The pid is another's by now.
            Some(line) if !self.prompt && line.first().is_some_and(|first| self.is_before(first.key)) => {}
            Some(line) => {
                self.uid = self.uid.or_else(|| line.first().map(|first| first.uid));
                self.line.extend(own(line).into_iter().map(|ancestor| ancestor.key));
                self.line.sort_unstable();
                self.line.dedup();
            }
            None => self.whole = false,
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
            self.line.extend(&earlier.line);
            self.line.sort_unstable();
            self.line.dedup();
            self.uid = earlier.uid.or(self.uid);
            self.prompt = true;
            self.whole |= earlier.whole;
        }
    }

    /// Whether somebody of the line lives; none where that cannot be told.
    #[must_use]
    pub fn lives(&self, here: &Here) -> Option<bool> {
        if !here.is_machine(Some(&self.host), Some(&self.boot)) {
            return None;
        }
        if !here.boot.is_empty() && self.boot != here.boot {
            return Some(false);
        }
        if any_lives(self.line.iter().copied()).ok()? {
            return Some(true);
        }
        let told = self.whole && here.everybody && !here.pidns.is_empty() && self.pidns == here.pidns;
        told.then_some(false)
    }
}

impl Pool {
    /// Keeps what was seen beside the record, as long as it is the same one; tells whether it was.
    ///
    /// # Errors
    /// Where there is no answer.
    pub fn keep(&mut self, gpu: &str, witness: &Witness) -> Result<bool, Trouble> {
        let text = serde_json::to_string(witness).map_err(|error| Trouble::Strange(error.to_string()))?;
        let told: String =
            self.call(Op::Seen, &[gpu.to_owned(), witness.pid.clone(), witness.time.clone(), text])?;
        Ok(told == "kept")
    }
}

/// A process and all above it but the first; nobody where it is not there or is none of a user's, none where it changed
/// while it was read.
fn line(pid: u32) -> Option<Vec<Ancestor>> {
    let mut line = Vec::new();
    let mut next = pid;
    while next > 1 && line.len() < DEEPEST {
        let process = folder(next);
        let Some(stat) = stated(&process).ok()? else {
            return if line.is_empty() { Some(line) } else { None };
        };
        if stat.kernel_thread {
            break;
        }
        let uid = fs::metadata(&process).ok()?.uid();
        line.push(Ancestor { key: stat.key, uid, comm: stat.comm });
        next = stat.ppid;
    }
    // Whoever lost his parent meanwhile has another now.
    line.iter()
        .all(|ancestor| lives(ancestor.key).unwrap_or(false) || ancestor.key.pid == pid)
        .then_some(line)
}

/// Without root's own at the top that only start other people's work: a listener for logins lives as long as the node.
fn own(mut line: Vec<Ancestor>) -> Vec<Ancestor> {
    while line.len() > 1
        && line.last().is_some_and(|last| last.uid == 0 && workload::keeps_others(&last.comm))
    {
        line.pop();
    }
    line
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
    fn a_subshell_that_has_ended_is_known_by_those_above_it() {
        let here = Here::look();
        // The subshell waits for a word, so that it is looked at while it is there; then the shell above it lives on.
        let (mut script, pid) = shell("(echo $BASHPID; read word); read word");
        let record = record(pid.parse().unwrap(), "2026-11-21 06:29:57");
        let witness = Witness::look(&here, &record, Found::Written);
        assert_eq!(witness.lives(&here), Some(true));
        assert!(witness.line.iter().any(|process| process.pid == script.id()), "{witness:?}");
        assert!(witness.line.iter().all(|process| process.pid > 1), "{witness:?}");
        let subshell = witness.line.iter().find(|process| process.pid.to_string() == pid).copied().unwrap();
        let mut alone = witness.clone();
        alone.line.retain(|process| process.pid == script.id() || *process == subshell);
        std::io::Write::write_all(script.stdin.as_mut().unwrap(), b"go\n").unwrap();
        while lives(subshell).unwrap() {
            std::thread::yield_now();
        }
        assert_eq!(alone.lives(&here), Some(true), "the shell above it lives");
        script.kill().unwrap();
        script.wait().unwrap();
        assert_eq!(alone.lives(&here), Some(false));
        alone.whole = false;
        assert_eq!(alone.lives(&here), None, "somebody could not be looked at");
    }

    #[test]
    fn witness_in_a_pid_namespace_lives_whatever_bytes_its_name_has() {
        let here = Here::look();
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
            let witness = Witness::look(&here, &record, Found::Written);
            assert_eq!(witness.lives(&here), Some(true), "{name}: {witness:?}");
            namespace.kill().unwrap();
            namespace.wait().unwrap();
        }
    }

    #[test]
    fn what_was_seen_is_of_one_record_and_of_one_boot() {
        let here = Here { host: "0123456789abcdef".repeat(2), ..Here::look() };
        let seen = Witness::look(&here, &record(std::process::id(), "a time"), Found::Written);
        assert_eq!(seen.lives(&here), Some(true));
        let mut with = record(std::process::id(), "a time");
        with.seen = serde_json::to_string(&seen).ok();
        assert_eq!(Witness::of(&with).as_ref(), Some(&seen));
        with.time = "another".to_owned();
        assert_eq!(Witness::of(&with), None);
        let rebooted = Here { boot: "another".to_owned(), ..here.clone() };
        assert_eq!(seen.lives(&rebooted), Some(false), "nobody outlives a reboot");
        let another = Here { host: "another".to_owned(), boot: "another".to_owned(), ..here.clone() };
        assert_eq!(seen.lives(&another), None, "somebody of another host has looked");
        let pod = |boot: &str| Here { host: "worker-0".to_owned(), boot: boot.to_owned(), ..here.clone() };
        let of_pod = Witness { host: "worker-0".to_owned(), ..seen.clone() };
        assert_eq!((of_pod.lives(&pod(&here.boot)), of_pod.lives(&pod("another"))), (Some(true), None));
        let elsewhere = Here { pidns: "1".to_owned(), ..here };
        let mut dead = seen;
        dead.line.clear();
        assert_eq!(dead.lives(&elsewhere), None);
    }

    #[test]
    fn whoever_began_after_the_record_did_not_write_it() {
        let here = Here::look();
        let mut child = Command::new("sleep").arg("infinity").spawn().unwrap();
        let long_ago = record(child.id(), "2001-01-01 00:00:00");
        let look = |found| Witness::look(&here, &long_ago, found).lives(&here);
        assert_eq!((look(Found::Later), look(Found::Written)), (Some(false), Some(true)));
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn a_pid_that_is_none_tells_nothing() {
        let here = Here::look();
        let mut odd = record(1, "");
        odd.pid = "what is this".to_owned();
        assert_eq!(Witness::look(&here, &odd, Found::Written).lives(&here), None);
    }

    #[test]
    fn listeners_of_root_are_nobodys_kin() {
        let one = |pid, uid, comm: &str| Ancestor {
            key: ProcessKey { pid, start_ticks: 1 },
            uid,
            comm: comm.to_owned(),
        };
        let pids = |line| own(line).into_iter().map(|one| one.key.pid).collect::<Vec<u32>>();
        let by_ssh = vec![one(9, 1000, "bash"), one(8, 1000, "sshd"), one(7, 0, "sshd"), one(6, 0, "sshd")];
        assert_eq!(pids(by_ssh), [9, 8]);
        assert_eq!(pids(vec![one(9, 0, "sudo"), one(8, 1000, "bash"), one(7, 0, "sshd")]), [9, 8]);
        assert_eq!(
            pids(vec![one(9, 1000, "sh"), one(7, 0, "scheduler")]),
            [9, 7],
            "it may hold it for others"
        );
        assert_eq!(pids(vec![one(9, 0, "sshd")]), [9]);
    }
}
