//! Ends processes that a finished job left on its GPUs. A process is signalled only if it provably belongs to the job.

#![expect(clippy::disallowed_methods, reason = "signals processes of a finished job")]

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bailiff_lifecycle::file;
use bailiff_proc::clock::Deadline;
use bailiff_proc::{Pidfd, Proc, Process, ReadError};
use bailiff_snapshot::slurm::is_of_node;
use bailiff_snapshot::{Place, ProcessKey, State};
use rustix::process::Signal;
use serde::Serialize;

use super::inspection::Finding;
use super::job::Job;
use super::programs::is_slurms;

/// Slurm's daemons, which run as root.
const SLURM: [&str; 2] = ["slurmd", "slurmstepd"];
/// Maximum wait for the exit of killed processes. A longer wait is left to the check of the GPUs.
const AFTER_KILL: Duration = Duration::from_secs(2);
/// Time limit for reading one process.
const PATIENCE: Duration = Duration::from_secs(1);

/// What happened to a process that the job left behind.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Leftover {
    pub(super) pid: u32,
    /// Whether the process was sent a signal and has exited.
    pub(super) ended: bool,
    /// Why it was not sent a signal, or has not exited.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) why: Option<String>,
}

/// Ends the processes of a job, and remembers what happened to each.
pub(super) struct Leftovers {
    rule: Arc<Rule>,
    /// Time between SIGTERM and SIGKILL.
    grace: Duration,
    deadline: Deadline,
    results: BTreeMap<u32, Leftover>,
}

impl Leftovers {
    /// Returns nothing ended yet. `started` is when the job started, since boot.
    pub(super) fn new(
        (job, node): (&Job, &str),
        started: Option<Duration>,
        grace: Duration,
        deadline: Deadline,
    ) -> Self {
        let rule = Arc::new(Rule { job: job.clone(), node: node.to_owned(), started });
        Self { rule, grace, deadline, results: BTreeMap::new() }
    }

    /// Returns what happened to each process.
    pub(super) fn results(self) -> Vec<Leftover> {
        self.results.into_values().collect()
    }

    /// Ends the processes of the job among the findings, with SIGTERM, and with SIGKILL after the grace time.
    pub(super) fn end(&mut self, findings: &[Finding]) {
        let mut held = Vec::new();
        for process in findings.iter().filter_map(|finding| finding.process.as_ref()) {
            let (pid, key) = (process.pid, process.key);
            if held.iter().any(|(held, _)| *held == pid) {
                continue;
            }
            match self.hold(pid, key) {
                Ok(pidfd) => held.push((pid, pidfd)),
                Err(why) => self.note(pid, Some(why)),
            }
        }
        if held.is_empty() {
            return;
        }
        send(&held, Signal::TERM, self.grace.min(self.deadline.left()));
        let alive: Vec<(u32, Pidfd)> = held
            .into_iter()
            .filter_map(|(pid, pidfd)| {
                let ended = pidfd.ended();
                if ended {
                    self.note(pid, None);
                }
                (!ended).then_some((pid, pidfd))
            })
            .collect();
        send(&alive, Signal::KILL, AFTER_KILL);
        for (pid, pidfd) in alive {
            self.note(pid, (!pidfd.ended()).then(|| "it has not exited after SIGKILL".to_owned()));
        }
    }

    /// Opens a process of the job. Its owner can make the read of its environment hang.
    fn hold(&self, pid: u32, key: Option<ProcessKey>) -> Result<Pidfd, String> {
        let rule = Arc::clone(&self.rule);
        let path = format!("/proc/{pid}");
        let patience = PATIENCE.min(self.deadline.left());
        let checked = file::within(Path::new(&path), patience, move |_| Ok(rule.hold(key)));
        checked.unwrap_or_else(|error| Err(format!("it cannot be read: {error}")))
    }

    /// Remembers what happened to a process. The driver may still list one that was ended.
    fn note(&mut self, pid: u32, why: Option<String>) {
        if self.results.get(&pid).is_some_and(|known| known.ended) {
            return;
        }
        self.results.insert(pid, Leftover { pid, ended: why.is_none(), why });
    }
}

/// Sends a signal to each process, and waits until they have exited.
fn send(held: &[(u32, Pidfd)], signal: Signal, patience: Duration) {
    for (_, pidfd) in held {
        // A process that cannot be signalled is reported, because it does not exit.
        let _ = pidfd.send(signal);
    }
    let deadline = Deadline::after(patience);
    for (_, pidfd) in held {
        let _ = pidfd.exited_by(Some(deadline));
    }
}

/// Which processes belong to the job.
struct Rule {
    job: Job,
    /// Slurm's name of this node.
    node: String,
    /// When the job started, since boot; `None` without a record of its prolog.
    started: Option<Duration>,
}

impl Rule {
    /// Opens a process that belongs to the job. The error is the reason why it is not signalled.
    fn hold(&self, key: Option<ProcessKey>) -> Result<Pidfd, String> {
        let key = key.ok_or("it is not visible in /proc")?;
        let gone = || "it has exited".to_owned();
        let unreadable = |error: ReadError| {
            if error == ReadError::Gone { gone() } else { format!("it cannot be read: {error}") }
        };
        // Everything is read after the pidfd was opened, so that all of it is about the process that is signalled.
        let pidfd = Pidfd::of(key).map_err(unreadable)?.ok_or_else(gone)?;
        let process = Proc::own().and_then(|proc| proc.process(key.pid)).map_err(unreadable)?;
        let refusal = self.refusal(&process, key).map_err(unreadable)?;
        process.check(key).map_err(unreadable)?;
        refusal.map_or(Ok(pidfd), Err)
    }

    /// Returns why a process is not signalled; `None` if it belongs to the job.
    fn refusal(&self, process: &Process, key: ProcessKey) -> Result<Option<String>, ReadError> {
        let why = |why: &str| Ok(Some(why.to_owned()));
        let stat = process.stat()?;
        if process.uids()?.iter().any(|uid| *uid != self.job.uid) {
            return why("it belongs to another user than the job");
        }
        if stat.state == State::DiskSleep {
            return why("it is in an uninterruptible sleep (state D)");
        }
        let exe = process.exe().unwrap_or_default();
        if self.job.uid == 0 && SLURM.iter().any(|name| is_slurms(&exe, name) || is_slurms(&stat.comm, name))
        {
            return why("it belongs to Slurm");
        }
        let place = Place::parse(&String::from_utf8_lossy(&process.patiently(Process::cgroup)?));
        match &place.slurm_job {
            Some(job) if self.job.is_named(job) && is_of_node(&place, &self.node) => return Ok(None),
            Some(_) => return why("it belongs to another job"),
            None => {}
        }
        if self.job.uid == 0 {
            return why("it belongs to root and is not in the job's cgroup");
        }
        if place.is_contained() {
            return why("it is in a container");
        }
        if !is_slurmds(&place)? {
            return why("it is in a service, a login session, or another cgroup");
        }
        match self.started {
            None => return why("the start of the job is unknown, because its prolog left no record"),
            Some(started) if key.started() < started => return why("it is older than the job"),
            Some(_) => {}
        }
        let ids: Vec<String> =
            ["SLURM_JOB_ID", "SLURM_JOBID"].into_iter().filter_map(|name| process.variable(name)).collect();
        if !ids.is_empty() && ids.iter().all(|id| self.job.is_named(id)) {
            Ok(None)
        } else {
            why("its environment does not name the job")
        }
    }
}

/// Returns whether a process that is not in the cgroup of a job is where slurmd starts processes: with
/// `proctrack/linuxproc`, in slurmd's own cgroup.
fn is_slurmds(place: &Place) -> Result<bool, ReadError> {
    let own = Place::parse(&String::from_utf8_lossy(&Proc::own()?.process(std::process::id())?.cgroup()?));
    Ok(place.cgroup == own.cgroup)
}
