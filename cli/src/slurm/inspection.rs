//! What is found on GPUs, and what could not be read.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use bailiff_exposition::human::Bytes;
use bailiff_exposition::terminal::line;
use bailiff_snapshot::ProcessKey;
use serde::Serialize;

/// Something on a GPU that keeps it from being clean.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Finding {
    /// Position of the GPU in gres.conf.
    pub(super) gpu: usize,
    /// Memory in bytes; `None` if it is unknown.
    pub(super) bytes: Option<u64>,
    /// The process; `None` for memory that no visible process holds.
    pub(super) process: Option<Found>,
}

/// A process in a [`Finding`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Found {
    pub(super) pid: u32,
    /// Start time; `None` if `/proc` does not show the process.
    #[serde(skip)]
    pub(super) key: Option<ProcessKey>,
    pub(super) comm: Option<String>,
    pub(super) uid: Option<u32>,
    pub(super) user: Option<String>,
    /// Job according to its cgroup.
    pub(super) job: Option<String>,
    /// Whether the driver lists the process, or it only has the device file open.
    pub(super) listed: bool,
}

impl fmt::Display for Finding {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "gpu {}: ", self.gpu)?;
        let Some(process) = &self.process else {
            let bytes = Bytes(self.bytes.unwrap_or_default().into());
            return write!(out, "{bytes} in use, but held by no visible process");
        };
        match self.bytes {
            Some(bytes) => write!(out, "{} held by ", Bytes(bytes.into()))?,
            None if process.listed => out.write_str("memory held by ")?,
            None => out.write_str("device file open in ")?,
        }
        write!(out, "pid {} ({process})", process.pid)
    }
}

impl fmt::Display for Found {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let user = self.user.clone().or_else(|| self.uid.map(|uid| format!("uid {uid}")));
        let job = self.job.as_ref().map(|job| format!("job {job}"));
        let known: Vec<String> = [user, self.comm.as_deref().map(line), job].into_iter().flatten().collect();
        let text = if known.is_empty() { "not visible in /proc".to_owned() } else { known.join(", ") };
        out.write_str(&text)
    }
}

bailiff_snapshot::label_values! {
/// Result of a hook.
pub enum Verdict {
    /// Nothing is on the GPUs.
    Clean = "clean",
    /// Something is on the GPUs.
    NotClean = "not_clean",
    /// The GPUs could not be read.
    Unknown = "unknown",
    /// The job has no GPUs.
    NoGpus = "no_gpus",
    /// The settings file is invalid.
    InvalidConfig = "invalid_config",
}
}

/// What was found on the GPUs at one time.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub(super) struct Inspection {
    pub(super) findings: Vec<Finding>,
    /// What could not be read.
    pub(super) unknown: Vec<String>,
    /// UUID of each GPU by its minor number.
    #[serde(skip)]
    pub(super) uuids: BTreeMap<u32, String>,
    #[serde(skip)]
    pub(super) unread: Unread,
    /// How many entries of `unknown` do not change while a hook waits.
    #[serde(skip)]
    pub(super) lasting: usize,
}

/// What an inspection could not read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Unread {
    /// Everything.
    pub(super) all: bool,
    /// Positions of GPUs whose processes are unknown.
    pub(super) gpus: BTreeSet<usize>,
    /// Positions of GPUs whose memory in use is unknown.
    pub(super) memory: BTreeSet<usize>,
    /// Open files of all processes.
    pub(super) files: bool,
    /// Processes whose open files are unknown.
    pub(super) pids: BTreeSet<u32>,
}

impl Unread {
    /// Returns whether it is unknown if an earlier finding is still true.
    fn includes(&self, finding: &Finding) -> bool {
        let is_gpu_unread = self.gpus.contains(&finding.gpu);
        self.all
            || match &finding.process {
                // The driver is not needed to see that its files are closed.
                Some(process) if !process.listed => self.files || self.pids.contains(&process.pid),
                Some(process) => is_gpu_unread || self.files || self.pids.contains(&process.pid),
                None => is_gpu_unread || self.memory.contains(&finding.gpu),
            }
    }
}

impl Inspection {
    /// Returns whether the GPUs are clean, as far as they could be read.
    pub(super) fn verdict(&self) -> Verdict {
        match (self.findings.is_empty(), self.unknown.is_empty()) {
            (true, true) => Verdict::Clean,
            (false, _) => Verdict::NotClean,
            (true, false) => Verdict::Unknown,
        }
    }

    /// Returns whether waiting may change the verdict.
    pub(super) fn may_change(&self) -> bool {
        !self.findings.is_empty() || self.unknown.len() > self.lasting
    }

    /// Returns one line for each finding, and for each part that could not be read.
    pub(super) fn lines(&self) -> impl Iterator<Item = String> {
        let findings = self.findings.iter().map(|finding| format!("not clean: {finding}"));
        findings.chain(self.unknown.iter().map(|why| format!("unknown: {why}")))
    }

    /// Returns an inspection that could read nothing.
    pub(super) fn unknown(why: impl Into<String>) -> Self {
        let unread = Unread { all: true, ..Unread::default() };
        Self { unknown: vec![why.into()], unread, ..Self::default() }
    }

    /// Adds those of an earlier inspection's findings that this one could not check.
    pub(super) fn keep(&mut self, earlier: Vec<Finding>) {
        let pid = |finding: &Finding| finding.process.as_ref().map(|process| process.pid);
        for finding in earlier.into_iter().filter(|finding| self.unread.includes(finding)) {
            if !self.findings.iter().any(|now| (now.gpu, pid(now)) == (finding.gpu, pid(&finding))) {
                self.findings.push(finding);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finding(gpu: usize, pid: Option<u32>) -> Finding {
        let process = pid.map(|pid| Found {
            pid,
            key: None,
            comm: None,
            uid: None,
            user: None,
            job: None,
            listed: pid == 43,
        });
        Finding { gpu, bytes: None, process }
    }

    #[test]
    fn finding_is_kept_only_if_it_could_not_be_checked() {
        let earlier =
            || vec![finding(0, Some(41)), finding(0, Some(42)), finding(1, Some(43)), finding(1, None)];
        let kept = |unread: Unread, now: Vec<Finding>| {
            let mut inspection = Inspection { findings: now, unread, ..Inspection::default() };
            inspection.keep(earlier());
            let pid = |finding: &Finding| finding.process.as_ref().map_or(0, |process| process.pid);
            inspection.findings.iter().map(pid).collect::<Vec<u32>>()
        };
        let none = Unread::default;
        assert_eq!(kept(none(), vec![]), [0; 0]);
        assert_eq!(kept(Unread { pids: BTreeSet::from([42, 99]), ..none() }, vec![]), [42]);
        assert_eq!(kept(Unread { pids: BTreeSet::from([42]), ..none() }, vec![finding(0, Some(42))]), [42]);
        assert_eq!(kept(Unread { gpus: BTreeSet::from([0, 1]), ..none() }, vec![]), [43, 0]);
        assert_eq!(kept(Unread { memory: BTreeSet::from([0, 1]), ..none() }, vec![]), [0]);
        assert_eq!(kept(Unread { files: true, ..none() }, vec![]), [41, 42, 43]);
        assert_eq!(kept(Inspection::unknown("x").unread, vec![]), [41, 42, 43, 0]);
    }
}
