//! `bailiff why`: why a process ended, or what a rule will do to it. Each source that knows causes is read; what cannot be
//! read is named, and without a finding the answer is "not known".

#![expect(clippy::disallowed_methods, reason = "opens the kernel log and files of the user")]

use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Read, Seek, SeekFrom};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, UNIX_EPOCH};

use bailiff_exposition::terminal::cut;
use bailiff_ledger::Ledger;
use bailiff_mps::log::Event;
use bailiff_mps::place::{DEFAULT_LOGS, LOGS};
use bailiff_proc::clock::now;
use bailiff_proc::open_below;
use bailiff_snapshot::{ForgedRecords, LoggedXid, XidClass};
use clap::Args;
use rustix::fs::{CWD, Dir, DirEntry, Mode, OFlags, fstat, openat};
use rustix::io::Errno;
use rustix::process::geteuid;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::{Coming, UserSocket};
use crate::exit::{Failure, succeed};
use crate::output::{self, escaped, joined};
use crate::slurm::programs;

/// The flags of `why`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Why {
    /// The process. It may have ended.
    #[arg(value_name = "PID", conflicts_with_all = ["job", "last"])]
    pid: Option<u32>,
    /// A Slurm job.
    #[arg(long, value_name = "ID", conflicts_with = "last")]
    job: Option<String>,
    /// Only the last action against any of your processes (default: all that is known).
    #[arg(long)]
    last: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    socket: UserSocket,
}

const EXAMPLES: &str = "Examples:
  bailiff why 4711                           why this process ended, or is about to
  bailiff why --job 8231                     the same for a Slurm job
  bailiff why --last                         the last action against any of your processes

Sources: the rules of bailiff-enforcer and its audit log (only entries about your own processes),
with a pid also the kernel log (Xid errors, the OOM killer), your GPU memory quotas, and the log of
MPS, which does not say whose fault it was; with --job Slurm. Kubernetes is not asked: see the
events of kubectl describe pod. Sources that you may not read are named. A pid can be reused.

Exit codes: 0: a cause was found, or a rule will act; 1: not known; 64: invalid flags.";

/// Maximum number of records of the kernel log that are read.
const MOST_RECORDS: usize = 65_536;
/// More than the longest record.
const LONGEST_RECORD: usize = 16 << 10;
/// Number of bytes at the end of a log that are read.
const LOOK_BACK: u64 = 1 << 20;
const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);
/// Does not block on a FIFO.
const FILE: OFlags = OFlags::RDONLY.union(OFlags::NONBLOCK).union(OFlags::NOCTTY);
/// Maximum number of quota files.
const MOST_QUOTAS: usize = 256;
/// Maximum number of findings in a source.
const MOST: usize = 50;
/// Time limit for a program of Slurm.
const PATIENCE: Duration = Duration::from_secs(5);

/// Something that happened.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
struct Finding {
    /// Time, RFC 3339 in UTC; `None` if the source has none.
    time: Option<String>,
    source: &'static str,
    text: String,
}

/// All that is known.
#[derive(Debug, Default, Serialize)]
struct Known {
    /// Steps that rules will take.
    coming: Vec<Coming>,
    findings: Vec<Finding>,
    /// Events that may concern the process: the source does not name whose they are.
    possible: Vec<Finding>,
    /// Sources that could not be read, with the reason.
    unread: Vec<(&'static str, String)>,
}

/// An entry of the audit log.
#[derive(Debug, Deserialize)]
struct Entry {
    time: String,
    rule: String,
    mode: Option<String>,
    step: String,
    result: String,
    detail: String,
    target: String,
    found: Vec<String>,
}

/// The response of the enforcer.
#[derive(Debug, Deserialize)]
struct Answer {
    coming: Vec<Coming>,
    entries: Vec<Entry>,
}

type Findings = Result<Vec<Finding>, String>;

/// Name of a source, and how it is read.
type Source = (&'static str, fn(&Why) -> Findings);

/// Prints what is known.
pub(crate) fn why(flags: &Why) -> Result<ExitCode, Failure> {
    let mut known = Known::default();
    enforcer(flags, &mut known);
    let others: [Source; 3] = [("kernel log", kernel_log), ("quota", quotas), ("slurm", slurm)];
    for (source, read) in others {
        match read(flags) {
            Ok(found) => known.findings.extend(found.into_iter().take(MOST)),
            Err(why) => known.unread.push((source, why)),
        }
    }
    match mps(flags) {
        Ok(found) => known.possible = found,
        Err(why) => known.unread.push(("mps", why)),
    }
    known.findings.sort();
    let text = if flags.json { output::json(&known)? } else { text(&known) };
    succeed(&text)?;
    let is_known = !(known.coming.is_empty() && known.findings.is_empty());
    Ok(if is_known { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn text(known: &Known) -> String {
    let coming = known.coming.iter().map(|step| format!("{}\n", coming(step)));
    let line = |Finding { time, source, text }: &Finding| {
        format!("{}  {source}: {text}\n", time.as_deref().unwrap_or("                    "))
    };
    let findings = known.findings.iter().map(line);
    let possible = known.possible.iter().map(|finding| format!("perhaps: {}", line(finding).trim_start()));
    let unread = known.unread.iter().map(|(source, why)| format!("not read: {source}: {}\n", escaped(why)));
    let is_known = !(known.coming.is_empty() && known.findings.is_empty());
    let nothing = (!is_known).then(|| "not known\n".to_owned());
    joined(coming.chain(findings).chain(nothing).chain(possible).chain(unread), "")
}

fn coming(step: &Coming) -> String {
    let span = |seconds: f64| Duration::try_from_secs_f64(seconds.ceil()).map(humantime::format_duration);
    let (target, rule) = (escaped(&step.target), escaped(&step.rule));
    let when = match step.due_in.map(span) {
        Some(Ok(left)) => format!("in {left} at the earliest"),
        _ => "at an unknown time".to_owned(),
    };
    let dry_run = if step.mode == "enforce" { "" } else { " (dry-run: it will not be carried out)" };
    let held = step.held.and_then(|left| span(left).ok()).map(|left| format!("; held for {left} more"));
    let withheld = step.withheld.as_ref().map(|why| format!("; withheld: {}", escaped(why)));
    format!(
        "coming: {}{dry_run} {when}, if the condition of rule {rule} stays true: {target}{}",
        escaped(&step.step),
        held.or(withheld).unwrap_or_default()
    )
}

/// Adds what the enforcer knows.
fn enforcer(flags: &Why, known: &mut Known) {
    let question = json!({"command": "why", "pid": flags.pid, "job": flags.job});
    let answer: Answer = match flags.socket.ask(&question) {
        Ok(answer) => answer,
        Err(failure) => return known.unread.push(("enforcer", failure.to_string())),
    };
    let entries = answer.entries.iter().map(|entry| Finding {
        time: Some(entry.time.clone()),
        source: "enforcer",
        text: escaped(&entry_text(entry)),
    });
    if flags.last {
        let is_action = |entry: &Entry| {
            let is_notice = matches!(entry.step.as_str(), "notify" | "hold" | "reprieve");
            !is_notice && !matches!(entry.result.as_str(), "begun" | "due" | "withheld" | "stopping")
        };
        let last = answer.entries.iter().rposition(is_action);
        known.findings.extend(last.into_iter().filter_map(|last| entries.clone().nth(last)));
        return;
    }
    known.findings.extend(entries);
    known.coming = answer.coming;
}

fn entry_text(entry: &Entry) -> String {
    let dry_run = if entry.mode.as_deref() == Some("dry-run") { " (dry-run)" } else { "" };
    let detail = if entry.detail.is_empty() { String::new() } else { format!(": {}", entry.detail) };
    let found = if entry.found.is_empty() { String::new() } else { format!("; {}", entry.found.join(", ")) };
    format!(
        "{} {}{dry_run} by rule {}, {}{detail}{found}",
        entry.step, entry.result, entry.rule, entry.target
    )
}

/// Returns what the kernel logged about a process. The log does not name the user of an Xid error's process.
fn kernel_log(flags: &Why) -> Findings {
    let Some(pid) = flags.pid else { return Ok(Vec::new()) };
    let open =
        OpenOptions::new().read(true).custom_flags(OFlags::NONBLOCK.bits().cast_signed()).open("/dev/kmsg");
    let read = open.and_then(|mut log| records(&mut log, pid, geteuid().as_raw()));
    read.map_err(|error| bailiff_lifecycle::exit::plain(&error))
}

/// Returns the records about a process, without those that may be forged.
fn records(log: &mut impl Read, pid: u32, uid: u32) -> io::Result<Vec<Finding>> {
    let (mut found, mut forged) = (Vec::new(), ForgedRecords::default());
    // The record before the first one may have been overwritten.
    forged.after_lost();
    let mut buffer = vec![0; LONGEST_RECORD];
    for _ in 0..MOST_RECORDS {
        match log.read(&mut buffer) {
            Ok(0) => break,
            Ok(count) => {
                let text = String::from_utf8_lossy(&buffer[..count]);
                if !text.lines().next().is_some_and(|line| forged.may_include(line)) {
                    found.extend(record(&text, pid, uid));
                }
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => break,
            Err(error) if error.kind() == ErrorKind::BrokenPipe => forged.after_lost(),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(found)
}

/// Parses a record of `/dev/kmsg` that names a process (`oom_kill_process` in `mm/oom_kill.c`; [`LoggedXid`]).
fn record(record: &str, pid: u32, uid: u32) -> Option<Finding> {
    let (head, line) = record.split_once(';')?;
    let micros = head.split(',').nth(2)?.parse().ok()?;
    // Users can write records of other facilities.
    let is_of_kernel = head.split(',').next()?.parse::<u64>().is_ok_and(|priority| priority >> 3 == 0);
    let line = line.lines().next().filter(|_| is_of_kernel)?;
    let text = if let Some(xid) = LoggedXid::parse(record).filter(|xid| xid.pid == pid) {
        format!("Xid {} ({}) of a process with this pid", xid.xid, XidClass::of(xid.xid).name())
    } else {
        let killed = ["Out of memory: Killed process ", "Memory cgroup out of memory: Killed process "];
        let rest = killed.iter().find_map(|start| line.strip_prefix(start))?;
        rest.strip_prefix(&format!("{pid} ("))?;
        // The name, which comes first, can contain any text.
        let owner = rest.rsplit_once("UID:")?.1.split(' ').next()?.parse::<u32>().ok()?;
        (owner == uid || uid == 0)
            .then(|| "the kernel killed it, because RAM was short (OOM killer)".to_owned())?
    };
    let (boot, wall) = (now().boot, now().wall);
    let at = wall.saturating_sub(boot.saturating_sub(Duration::from_micros(micros)));
    let time = humantime::format_rfc3339_seconds(UNIX_EPOCH + at).to_string();
    Some(Finding { time: Some(time), source: "kernel log", text })
}

/// Returns the requests for GPU memory of a process that the user's shared quotas refused.
fn quotas(flags: &Why) -> Findings {
    let Some(pid) = flags.pid else { return Ok(Vec::new()) };
    let ledgers = ledgers(Path::new("/run/bailiff/quota"))
        .map_err(|error| bailiff_lifecycle::exit::plain(&error))?
        .into_iter();
    let processes = ledgers.flat_map(|ledger| ledger.processes);
    let refused =
        processes.filter(|process| process.pid == pid && process.denied > 0).map(|process| Finding {
            time: None,
            source: "quota",
            text: format!(
                "{} requests of {} for GPU memory were refused",
                process.denied,
                escaped(&process.name)
            ),
        });
    Ok(refused.collect())
}

/// Returns the user's quotas in the directory that all users share. Any user can create a directory or a link with this
/// name there, or mount a file system over one.
fn ledgers(shared: &Path) -> io::Result<Vec<Ledger>> {
    let uid = geteuid().as_raw();
    let directory = openat(CWD, shared, DIRECTORY, Mode::empty())
        .and_then(|shared| open_below(shared, uid.to_string(), DIRECTORY));
    let directory = match directory {
        Ok(directory) if fstat(&directory)?.st_uid == uid => directory,
        Ok(_) | Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::XDEV) => return Ok(Vec::new()),
        Err(error) => return Err(error.into()),
    };
    let entries = Dir::read_from(&directory)?.flatten();
    let files = entries.filter(|entry| !entry.file_name().to_bytes().starts_with(b".")).take(MOST_QUOTAS);
    let file =
        |entry: DirEntry| open_below(&directory, OsStr::from_bytes(entry.file_name().to_bytes()), FILE);
    Ok(files.filter_map(|entry| bailiff_ledger::read_open(&file(entry).ok()?.into()).ok()).collect())
}

/// Returns the fatal errors that an MPS server logged. It does not log whose they are.
fn mps(flags: &Why) -> Findings {
    if flags.pid.is_none() {
        return Ok(Vec::new());
    }
    let directory = std::env::var_os(LOGS).unwrap_or_else(|| DEFAULT_LOGS.into());
    let text = match tail(&Path::new(&directory).join("server.log")) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        text => text.map_err(|error| bailiff_lifecycle::exit::plain(&error))?,
    };
    let faults = text.lines().rev().filter(|line| Event::of(line) == Event::ClientFault);
    let finding = |line: &str| Finding { time: None, source: "mps", text: cut(&escaped(line), 200) };
    Ok(faults.map(finding).take(MOST).collect())
}

fn tail(path: &Path) -> io::Result<String> {
    let mut file =
        OpenOptions::new().read(true).custom_flags(OFlags::NONBLOCK.bits().cast_signed()).open(path)?;
    let about = file.metadata()?;
    if !about.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    file.seek(SeekFrom::Start(about.len().saturating_sub(LOOK_BACK)))?;
    let mut bytes = Vec::new();
    File::take(file, LOOK_BACK).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Returns the state of a job. Slurm decides whether the user may see it.
fn slurm(flags: &Why) -> Findings {
    let Some(job) = &flags.job else { return Ok(Vec::new()) };
    let shown = programs::output("scontrol", &["show", "job", job], PATIENCE)?;
    let uid = geteuid().as_raw();
    let jobs = shown.split("\n\n").filter_map(state_of_job);
    let of_user = jobs.filter(|(owner, _)| *owner == uid || uid == 0).map(|(_, text)| text);
    Ok(of_user.map(|text| Finding { time: None, source: "slurm", text: escaped(&text) }).collect())
}

/// Returns a job's owner and state. Its name is on the first line, and can contain any field.
fn state_of_job(shown: &str) -> Option<(u32, String)> {
    let mut lines = shown.trim_start().lines();
    let job = lines.next()?.strip_prefix("JobId=")?.split(' ').next()?;
    let fields: Vec<&str> = lines.flat_map(str::split_whitespace).collect();
    let field = |name: &str| fields.iter().find_map(|field| field.strip_prefix(name)?.strip_prefix('='));
    let owner = field("UserId")?.rsplit_once('(')?.1.strip_suffix(')')?.parse().ok()?;
    let [reason, code] = ["Reason", "ExitCode"].map(|name| field(name).unwrap_or("unknown"));
    Some((owner, format!("job {job}: {}, reason {reason}, exit code {code}", field("JobState")?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fault_of_an_unknown_client_of_mps_is_only_possible() {
        let fault = Finding { time: None, source: "mps", text: "a fatal GPU error".into() };
        let known = Known { possible: vec![fault], ..Known::default() };
        assert_eq!(text(&known), "not known\nperhaps: mps: a fatal GPU error\n");
    }

    #[test]
    fn name_of_a_job_is_not_taken_for_its_state() {
        let shown = "JobId=7 JobName=x UserId=root(0) JobState=FAILED Reason=None
   UserId=alice(1000) GroupId=alice(1000) MCS_label=N/A
   JobState=RUNNING Reason=None Dependency=(null)
   Requeue=1 Restarts=0 BatchFlag=1 Reboot=0 ExitCode=0:0
   Comment=UserId=root(0)";
        let state = "job 7: RUNNING, reason None, exit code 0:0".to_owned();
        assert_eq!(state_of_job(shown), Some((1000, state)));
        assert_eq!(state_of_job(""), None);
    }

    /// A kernel log, which returns one record to each read.
    struct Log(Vec<&'static str>);

    impl Read for Log {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            let text = if self.0.is_empty() { "" } else { self.0.remove(0) };
            buffer[..text.len()].copy_from_slice(text.as_bytes());
            Ok(text.len())
        }
    }

    /// A user can name a cgroup, and log packets with a prefix.
    #[test]
    fn record_that_a_user_may_have_written_is_no_finding() {
        const NAME: &str = "6,7,5,c;,cpuset=\n";
        const BEFORE: &str = "6,7,5,-;x\n SUBSYSTEM=pci\n";
        const OOM: &str =
            "3,9,6,c;Memory cgroup out of memory: Killed process 4711 (a) UID:1000 pgtables:48kB\n";
        const WHOLE: &str =
            "3,9,6,-;Memory cgroup out of memory: Killed process 4711 (a) UID:1000 pgtables:48kB\n";
        const XID: &str = "4,9,6,c;NVRM: Xid (PCI:0000:3b:00): 31, pid=4711, name=a, Ch 00000008\n";
        const PACKET: &str =
            "4,9,6,-;NVRM: Xid (PCI:0000:3b:00): 31, pid=4711, name=a, Ch 1IN=lo OUT= MAC=\n";
        for (log, count) in [
            (vec![NAME, OOM], 0),
            (vec![NAME, XID], 0),
            (vec![PACKET], 0),
            (vec![XID], 0),
            (vec![NAME, WHOLE], 1),
            (
                vec![
                    "6,6,4,-;the first\n",
                    "6,7,20000000,-;x\n",
                    "4,9,20000006,c;NVRM: Xid (PCI:0000:3b:00): 31, pid=4711, name=a, Ch 00000008\n",
                ],
                1,
            ),
            (vec![BEFORE, WHOLE], 1),
        ] {
            let shown = log.join("");
            assert_eq!(records(&mut Log(log), 4711, 1000).unwrap().len(), count, "{shown}");
        }
    }

    /// Any user can create an entry of this name in the directory, and replace it at any time.
    #[test]
    fn quota_directory_that_is_a_link_is_not_read() {
        let shared = tempfile::tempdir().unwrap();
        let (own, other) = (shared.path().join(geteuid().as_raw().to_string()), shared.path().join("other"));
        std::fs::create_dir(&other).unwrap();
        bailiff_ledger::create(&other.join("quota"), &[]).unwrap();
        let count = || ledgers(shared.path()).unwrap().len();
        assert_eq!(count(), 0, "none");
        std::os::unix::fs::symlink(&other, &own).unwrap();
        assert_eq!(count(), 0, "a link");
        std::fs::remove_file(&own).unwrap();
        std::fs::rename(&other, &own).unwrap();
        assert_eq!(count(), 1, "a directory");
    }

    #[test]
    fn records_of_the_kernel_that_name_a_process_are_found() {
        let oom = "4,812,9000000,-;Memory cgroup out of memory: Killed process 4711 (python3) total-vm:1kB, \
                   anon-rss:1kB, UID:1000 pgtables:48kB oom_score_adj:0";
        let xid = "4,812,9000000,-;NVRM: Xid (PCI:0000:3b:00): 31, pid=4711, name=python3, Ch 00000008";
        let texts = |text: &str, pid, uid| record(text, pid, uid).map(|found| found.text);
        assert!(texts(oom, 4711, 1000).is_some_and(|text| text.contains("OOM killer")));
        assert!(texts(oom, 4711, 0).is_some(), "root");
        assert_eq!(
            texts(xid, 4711, 1000).as_deref(),
            Some("Xid 31 (application) of a process with this pid")
        );
        for (text, pid, uid) in [
            (oom, 4711, 1001),
            (oom, 471, 1000),
            (xid, 4712, 1000),
            (&oom.replace("4,812", "12,812"), 4711, 1000),
            (&oom.replace("UID:1000", ""), 4711, 1000),
            (&oom.replace("python3", "x) UID:1000 ("), 4711, 1001),
        ] {
            assert_eq!(texts(text, pid, uid), None, "{text} {pid} {uid}");
        }
    }
}
