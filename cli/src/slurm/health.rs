//! `bailiff slurm health`: drains this node while a GPU without a job is in use.

#![expect(clippy::disallowed_methods, reason = "waits between two checks, and reads its state file")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use bailiff_proc::clock::Deadline;
use bailiff_snapshot::slurm::JobRecord;
use serde::{Deserialize, Serialize};

use super::config::Config;
use super::flags::Health;
use super::gpus::{Inspector, Scope};
use super::hook::map;
use super::inspection::{Finding, Inspection, Verdict};
use super::job::node_name;
use super::{programs, state};
use crate::exit::Failure;
use crate::output::{json, print_stdout};

/// Time between the two checks that must agree.
const PAUSE: Duration = Duration::from_secs(1);
/// Maximum length of a reason, which `sinfo` shows in one line.
const MAX_REASON: usize = 200;
/// Reasons of Slurm itself, which a better reason replaces.
const SLURMS_REASONS: [&str; 2] = ["Prolog error", "Epilog error"];
/// What `sinfo` prints for a node without a reason.
const NO_REASON: &str = "none";
/// Number of consecutive clean runs before the node is resumed.
const CLEAN_RUNS: u32 = 3;
/// Start of the reasons of this program.
const OWN_REASON: &str = "bailiff: gpu ";
/// Time limit of a run. slurmd kills a `HealthCheckProgram` after 60 s.
const LIMIT: Duration = Duration::from_secs(50);

/// The last runs, in `health.json`.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct History {
    /// Number of consecutive clean runs.
    clean_runs: u32,
}

/// A run on this node.
struct Run<'a> {
    node: &'a str,
    /// Time limit of each command.
    timeout: Duration,
    deadline: Deadline,
}

impl Run<'_> {
    /// Returns the time limit of the next command.
    fn limit(&self) -> Duration {
        self.timeout.min(self.deadline.left())
    }

    /// Runs a program of Slurm.
    fn output(&self, program: &str, arguments: &[&str]) -> Result<String, String> {
        programs::output(program, arguments, self.limit())
    }
}

/// The result of a run.
#[derive(Debug, Serialize)]
struct Report<'a> {
    hook: &'static str,
    node: &'a str,
    verdict: Verdict,
    #[serde(flatten)]
    inspection: &'a Inspection,
    /// What was done to the node.
    #[serde(skip_serializing_if = "Option::is_none")]
    action: Option<String>,
}

/// Runs the health check.
pub(super) fn health(flags: &Health) -> Result<ExitCode, Failure> {
    let (common, node) = (&flags.common, node_name()?);
    state::prepare(&common.state_dir)?;
    let Some(_lock) = state::lock(&common.state_dir, "health")? else {
        print_stdout("bailiff health: another run is in progress\n")?;
        return Ok(ExitCode::SUCCESS);
    };
    let deadline = Deadline::after(LIMIT);
    let (verdict, inspection, action) = match Config::read(&common.config) {
        Ok(config) => {
            let run = Run { node: &node, timeout: config.health.timeout, deadline };
            let inspection = inspect(flags, &config, &run).unwrap_or_else(Inspection::unknown);
            let action = act(flags, &config.health, &run, &inspection);
            (inspection.verdict(), inspection, action)
        }
        Err(why) => (Verdict::InvalidConfig, Inspection::unknown(why), None),
    };
    state::count(&common.state_dir, "health", verdict.name())?;
    let text = if common.json {
        let report = Report { hook: "health", node: &node, verdict, inspection: &inspection, action };
        json(&report)?
    } else {
        let lines = inspection.lines().chain(action).map(|text| format!("bailiff health: {text}"));
        lines.fold(String::new(), |text, line| text + &line + "\n")
    };
    print_stdout(&text)?;
    Ok(if verdict == Verdict::NotClean { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Returns what uses GPUs without a job. Two inspections a second apart must agree, because a job may start or end
/// meanwhile.
fn inspect(flags: &Health, config: &Config, run: &Run<'_>) -> Result<Inspection, String> {
    let common = &flags.common;
    let gpus: BTreeMap<usize, u32> =
        map(common, config, run.node, run.limit())?.into_iter().enumerate().collect();
    let mut inspector =
        Inspector::start(&common.machine, config, run.limit()).map_err(|error| error.to_string())?;
    let mut first: Option<Inspection> = None;
    let records = || state::records(&common.state_dir).map_err(|error| error.to_string());
    loop {
        let earlier = records()?;
        let running = running(run)?;
        forget(&common.state_dir, run.node, &earlier, &running).map_err(|error| error.to_string())?;
        let gpus = free(&gpus, &records()?, &running)?;
        let mut now = inspector.inspect(&Scope { gpus, ..Scope::default() });
        if now.findings.is_empty() {
            return Ok(now);
        }
        if let Some(first) = first {
            now.findings.retain(|finding| remains(finding, &first));
            return Ok(now);
        }
        first = Some(now);
        std::thread::sleep(PAUSE);
    }
}

/// Returns whether an earlier inspection found the same process, or unattributed memory, on the same GPU.
fn remains(finding: &Finding, earlier: &Inspection) -> bool {
    let identity = |finding: &Finding| finding.process.as_ref().map(|process| (process.pid, process.key));
    earlier.findings.iter().any(|other| other.gpu == finding.gpu && identity(other) == identity(finding))
}

/// Returns the GPUs that no running job has. Fails if the GPUs of a running job are not recorded.
fn free(
    gpus: &BTreeMap<usize, u32>,
    records: &[JobRecord],
    running: &BTreeSet<String>,
) -> Result<BTreeMap<usize, u32>, String> {
    let record_of = |job: &String| records.iter().find(|record| record.is_named(job));
    let mut used = BTreeSet::new();
    for job in running {
        let recorded = record_of(job).and_then(|record| record.gpus.as_ref());
        let recorded = recorded.ok_or_else(|| format!("job {job} has no record of its GPUs"))?;
        used.extend(recorded.iter().map(|gpu| gpu.minor));
    }
    let free = gpus.iter().filter(|(_, minor)| !used.contains(minor));
    Ok(free.map(|(position, minor)| (*position, *minor)).collect())
}

/// Deletes the records of jobs of this node that Slurm no longer lists, because their epilog did not run. The records were
/// read before Slurm's list, so none of them is of a job that has started since.
fn forget(
    state_dir: &Path,
    node: &str,
    records: &[JobRecord],
    running: &BTreeSet<String>,
) -> std::io::Result<()> {
    let is_running = |record: &JobRecord| running.iter().any(|job| record.is_named(job));
    let mut ended = records.iter().filter(|record| record.node == node && !is_running(record));
    ended.try_for_each(|record| state::forget(state_dir, &record.job))
}

/// Returns the ids of the jobs on this node, also in hidden partitions.
fn running(run: &Run<'_>) -> Result<BTreeSet<String>, String> {
    let text = run.output("squeue", &["--noheader", "--all", "--nodelist", run.node, "--format=%A"])?;
    Ok(text.split_whitespace().map(str::to_owned).collect())
}

/// Drains or resumes the node. Returns what was done, or why it was not.
fn act(
    flags: &Health,
    settings: &super::config::Health,
    run: &Run<'_>,
    inspection: &Inspection,
) -> Option<String> {
    let path = flags.common.state_dir.join("health.json");
    let saved = fs::read(&path).ok().and_then(|text| serde_json::from_slice(&text).ok());
    let mut history: History = saved.unwrap_or_default();
    let is_clean = inspection.verdict() == Verdict::Clean;
    history.clean_runs = if is_clean { history.clean_runs.saturating_add(1) } else { 0 };
    // Without the file, the node is not resumed.
    let saved = state::write(&path, &history).err().map(|error| format!("{}: {error}", path.display()));
    let done = match inspection.findings.first() {
        Some(finding) if settings.drain => drain(run, &reason(finding)),
        None if settings.resume && history.clean_runs >= CLEAN_RUNS => resume(run),
        _ => Ok(None),
    };
    done.unwrap_or_else(Some).or(saved)
}

/// Returns the reason for the drain: one line of ASCII.
fn reason(finding: &Finding) -> String {
    let plain = |letter: char| if letter.is_ascii_graphic() || letter == ' ' { letter } else { '?' };
    let text: String = finding.to_string().chars().map(plain).filter(|letter| *letter != '"').collect();
    format!("bailiff: {text}").chars().take(MAX_REASON).collect()
}

fn drain(run: &Run<'_>, reason: &str) -> Result<Option<String>, String> {
    let (node, current) = (run.node, current_reason(run)?);
    if current == *reason {
        return Ok(None);
    }
    let is_slurms = current == NO_REASON || SLURMS_REASONS.contains(&current.as_str());
    if !is_slurms && !current.starts_with(OWN_REASON) {
        return Ok(Some(format!("{node} keeps its reason: {current}")));
    }
    update(run, &["state=drain", &format!("reason={reason}")])?;
    Ok(Some(format!("drained {node}: {reason}")))
}

fn resume(run: &Run<'_>) -> Result<Option<String>, String> {
    if !current_reason(run)?.starts_with(OWN_REASON) {
        return Ok(None);
    }
    update(run, &["state=resume"])?;
    Ok(Some(format!("resumed {}", run.node)))
}

fn current_reason(run: &Run<'_>) -> Result<String, String> {
    let text = run.output("sinfo", &["--noheader", "--nodes", run.node, "--format=%E"])?;
    let line = text.lines().next().map(|line| line.trim().to_owned());
    line.ok_or_else(|| format!("sinfo does not know the node {}", run.node))
}

fn update(run: &Run<'_>, settings: &[&str]) -> Result<(), String> {
    let node = format!("nodename={}", run.node);
    run.output("scontrol", &[&["update", &node], settings].concat()).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slurm::inspection::Found;

    #[test]
    fn reason_is_one_line_of_ascii() {
        let process = Found {
            pid: 4711,
            key: None,
            comm: Some("tr\u{e4}in\n".repeat(100)),
            uid: Some(1000),
            user: Some("alice".to_owned()),
            job: Some("17".to_owned()),
            listed: true,
        };
        let finding = Finding { gpu: 0, bytes: Some(40 << 30), process: Some(process) };
        let text = reason(&finding);
        assert!(text.starts_with("bailiff: gpu 0: 40.0 GiB held by pid 4711 (alice, tr?in"), "{text}");
        assert!(text.len() == MAX_REASON && text.bytes().all(|byte| (b' '..=b'~').contains(&byte)), "{text}");
    }

    #[test]
    fn gpus_are_known_to_be_free_only_if_all_running_jobs_have_records() {
        let gpus = BTreeMap::from([(0, 3), (1, 1)]);
        let record: JobRecord = serde_json::from_value(serde_json::json!({
            "boot_id": "b", "job": "7", "sluid": null, "uid": 1000, "user": null, "node": "n", "boot_ms": 0,
            "gpus": [{"position": 0, "minor": 3, "uuid": null}],
        }))
        .unwrap();
        let jobs = |ids: &[&str]| ids.iter().map(|id| (*id).to_owned()).collect::<BTreeSet<String>>();
        let free = |ids: &[&str]| free(&gpus, std::slice::from_ref(&record), &jobs(ids));
        assert_eq!(free(&["7"]), Ok(BTreeMap::from([(1, 1)])));
        assert_eq!(free(&[]), Ok(gpus.clone()), "the record of a job that no longer runs hides nothing");
        assert_eq!(free(&["7", "8"]), Err("job 8 has no record of its GPUs".to_owned()));
    }
}
