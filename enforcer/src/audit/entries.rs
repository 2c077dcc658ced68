//! What the audit log has about one user's targets, for that user.

use std::time::Duration;

use bailiff_engine::policy::Mode;
use bailiff_engine::verdict::{Asked, Subject};
use serde::{Deserialize, Serialize};

use super::journal::{AuditSettings, last_lines, rotated};

/// Number of bytes at the end of each file that are searched. Users can ask often, so the search is short.
const LOOK_BACK: u64 = 4 << 20;
/// Minimum time between two searches.
pub const PAUSE: Duration = Duration::from_millis(250);
/// Maximum number of entries, the newest ones.
const MOST: usize = 50;
/// Steps that concern the owner of a target.
const STEPS: [&str; 10] = [
    "notify",
    "signal",
    "terminate",
    "cancel_job",
    "evict_pod",
    "stop_owner",
    "release_lease",
    "exec",
    "reprieve",
    "hold",
];

/// An entry of the audit log, as its target's owner may see it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct OwnEntry {
    /// Time, RFC 3339.
    pub time: String,
    /// Name of the rule.
    pub rule: String,
    /// Mode of the rule.
    pub mode: Option<Mode>,
    /// Name of the step.
    pub step: String,
    /// Result of the step.
    pub result: String,
    /// Details for people.
    pub detail: String,
    /// Name of the target.
    pub target: String,
    /// Pids and names of its processes.
    pub processes: Vec<(u32, String)>,
    /// Values that made the rule match, such as `gpu_util is 0% (max 1%)`.
    pub found: Vec<String>,
}

/// Which entries are wanted.
#[derive(Debug, Clone, Default)]
pub struct Wanted {
    /// Owner of the target; root may see the entries of all users.
    pub uid: u32,
    /// Only targets with this process.
    pub pid: Option<u32>,
    /// Only targets of this Slurm job.
    pub job: Option<String>,
}

/// Fields of a line.
#[derive(Deserialize)]
struct Line {
    time: String,
    #[serde(default)]
    rule: String,
    mode: Option<Mode>,
    step: String,
    result: String,
    #[serde(default)]
    detail: String,
    target: Subject,
    evidence: Option<Found>,
}

#[derive(Deserialize)]
struct Found {
    leaves: Vec<Asked>,
}

impl Wanted {
    fn entry(&self, line: &[u8]) -> Option<OwnEntry> {
        // Most lines are about others, and parsing costs time.
        let owner = format!("\"uid\":{}", self.uid);
        if self.uid != 0 && !line.windows(owner.len()).any(|part| part == owner.as_bytes()) {
            return None;
        }
        let line: Line = serde_json::from_slice(line).ok()?;
        let Line { target, .. } = &line;
        let is_owners = self.uid == 0 || target.uid == Some(self.uid);
        let has_pid = self.pid.is_none_or(|pid| target.members.iter().any(|member| member.pid == pid));
        let id = target.job.as_ref().map(|job| job.job.to_string());
        let has_job = self
            .job
            .as_ref()
            .is_none_or(|job| id.as_ref() == Some(job) || target.id.0.ends_with(&format!("slurm:{job}")));
        (is_owners && has_pid && has_job && STEPS.contains(&line.step.as_str())).then(|| OwnEntry {
            processes: line.target.members.into_iter().map(|member| (member.pid, member.comm)).collect(),
            target: line.target.id.to_string(),
            found: (line.evidence.into_iter().flat_map(|found| found.leaves))
                .map(|leaf| format!("{} is {} ({})", leaf.name, leaf.value, leaf.comparison))
                .collect(),
            time: line.time,
            rule: line.rule,
            mode: line.mode,
            step: line.step,
            result: line.result,
            detail: line.detail,
        })
    }
}

/// Returns the newest entries that are wanted, in their order. Reads the end of the log and of the file that was rotated last.
pub fn entries(settings: &AuditSettings, wanted: &Wanted) -> Vec<OwnEntry> {
    let files = [rotated(&settings.path), settings.path.clone()];
    let lines = files.iter().flat_map(|path| last_lines(path, LOOK_BACK));
    let mut entries: Vec<OwnEntry> = lines.filter_map(|line| wanted.entry(&line)).collect();
    entries.split_off(entries.len().saturating_sub(MOST))
}
