//! `bailiff slurm health`: drains this node while a GPU without a job is in use.

#![expect(clippy::disallowed_methods, reason = "waits between two checks, and reads its state file")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::process::ExitCode;
use std::time::Duration;

use bailiff_snapshot::slurm::JobRecord;
use serde::{Deserialize, Serialize};

use super::config::Config;
use super::flags::Health;
use super::gpus::{Finding, Inspection, Inspector, Scope, Verdict};
use super::hook::map;
use super::job::node_name;
use super::{programs, state};
use crate::exit::Failure;
use crate::output::print_stdout;

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
/// States of jobs that may have processes on the node.
const RUNNING: &str = "--states=running,suspended,completing,configuring,stopped";

/// What the last runs did, in `health.json`.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct History {
    /// The reason with which this program drained the node.
    reason: Option<String>,
    clean_runs: u32,
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
    let (config, inspection) = match Config::read(&common.config) {
        Ok(config) => {
            let inspection = inspect(flags, &config, &node).unwrap_or_else(Inspection::unknown);
            (Some(config), inspection)
        }
        Err(why) => (None, Inspection::unknown(why)),
    };
    let verdict = if config.is_some() { inspection.verdict() } else { Verdict::InvalidConfig };
    state::count(&common.state_dir, "health", verdict.name())?;
    let action = config.and_then(|config| act(flags, &config.health, (&node, verdict), &inspection));
    let text = if common.json {
        let report = Report { hook: "health", node: &node, verdict, inspection: &inspection, action };
        serde_json::to_string(&report).map_err(std::io::Error::from)? + "\n"
    } else {
        let lines = inspection.lines().chain(action).map(|text| format!("bailiff health: {text}"));
        lines.fold(String::new(), |text, line| text + &line + "\n")
    };
    print_stdout(&text)?;
    Ok(if verdict == Verdict::NotClean { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Returns what uses GPUs without a job. Two inspections a second apart must agree, because a job may start or end
/// meanwhile.
fn inspect(flags: &Health, config: &Config, node: &str) -> Result<Inspection, String> {
    let (common, timeout) = (&flags.common, config.health.timeout);
    let gpus: BTreeMap<usize, u32> = map(common, config, node, timeout)?.into_iter().enumerate().collect();
    let mut inspector =
        Inspector::start(&common.machine, config.tolerance, timeout).map_err(|error| error.to_string())?;
    let mut first = None;
    loop {
        let running = running(node, timeout)?;
        let records = state::records(&common.state_dir).map_err(|error| error.to_string())?;
        let scope = Scope { gpus: free(&gpus, &records, &running), running, ..Scope::default() };
        let mut now = inspector.inspect(&scope);
        if now.findings.is_empty() {
            return Ok(now);
        }
        match first.take() {
            None => first = Some(now),
            Some(first) => {
                now.findings.retain(|finding| remains(finding, &first));
                return Ok(now);
            }
        }
        std::thread::sleep(PAUSE);
    }
}

/// Returns whether an earlier inspection found the same process, or unattributed memory, on the same GPU.
fn remains(finding: &Finding, earlier: &Inspection) -> bool {
    let identity = |finding: &Finding| finding.process.as_ref().map(|process| (process.pid, process.key));
    earlier.findings.iter().any(|other| other.gpu == finding.gpu && identity(other) == identity(finding))
}

/// Returns the GPUs that no job can use: those in no record, if all running jobs have records.
fn free(
    gpus: &BTreeMap<usize, u32>,
    records: &[JobRecord],
    running: &BTreeSet<String>,
) -> BTreeMap<usize, u32> {
    let has_record =
        |job: &String| records.iter().any(|record| record.job.as_ref() == job && record.gpus.is_some());
    if !running.iter().all(has_record) {
        return BTreeMap::new();
    }
    let used: BTreeSet<u32> =
        records.iter().flat_map(|record| record.gpus.iter().flatten().map(|gpu| gpu.minor)).collect();
    gpus.iter()
        .filter(|(_, minor)| !used.contains(minor))
        .map(|(position, minor)| (*position, *minor))
        .collect()
}

/// Returns the ids of the jobs on this node.
fn running(node: &str, timeout: Duration) -> Result<BTreeSet<String>, String> {
    let text =
        programs::output("squeue", &["--noheader", "--nodelist", node, RUNNING, "--format=%A"], timeout)?;
    Ok(text.split_whitespace().map(str::to_owned).collect())
}

/// Drains or resumes the node. Returns what was done, or why it was not.
fn act(
    flags: &Health,
    settings: &super::config::Health,
    (node, verdict): (&str, Verdict),
    inspection: &Inspection,
) -> Option<String> {
    let path = flags.common.state_dir.join("health.json");
    let saved = fs::read(&path).ok().and_then(|text| serde_json::from_slice(&text).ok());
    let mut history: History = saved.unwrap_or_default();
    let done = match (verdict, inspection.findings.first()) {
        (Verdict::NotClean, Some(finding)) if settings.drain => {
            history.clean_runs = 0;
            drain(node, reason(finding), settings.timeout, &mut history)
        }
        (Verdict::Clean, _) if settings.resume && history.reason.is_some() => {
            history.clean_runs += 1;
            if history.clean_runs < CLEAN_RUNS {
                Ok(None)
            } else {
                resume(node, settings.timeout, &mut history)
            }
        }
        _ => {
            history.clean_runs = 0;
            Ok(None)
        }
    };
    // Without the file, the node is not resumed.
    let saved = state::write(&path, &history).err().map(|error| format!("{}: {error}", path.display()));
    done.unwrap_or_else(Some).or(saved)
}

/// Returns the reason for the drain: one line of ASCII.
fn reason(finding: &Finding) -> String {
    let plain = |letter: char| if letter.is_ascii_graphic() || letter == ' ' { letter } else { '?' };
    let text: String = finding.to_string().chars().map(plain).filter(|letter| *letter != '"').collect();
    format!("bailiff: {text}").chars().take(MAX_REASON).collect()
}

fn drain(
    node: &str,
    reason: String,
    timeout: Duration,
    history: &mut History,
) -> Result<Option<String>, String> {
    let current = current_reason(node, timeout)?;
    let ours = history.reason.as_ref() == Some(&current);
    if ours && current == reason {
        return Ok(None);
    }
    if !ours && current != NO_REASON && !SLURMS_REASONS.contains(&current.as_str()) {
        return Ok(Some(format!("{node} keeps its reason: {current}")));
    }
    update(node, &["state=drain", &format!("reason={reason}")], timeout)?;
    let done = format!("drained {node}: {reason}");
    history.reason = Some(reason);
    Ok(Some(done))
}

fn resume(node: &str, timeout: Duration, history: &mut History) -> Result<Option<String>, String> {
    let current = current_reason(node, timeout)?;
    let ours = history.reason.take().is_some_and(|reason| reason == current);
    history.clean_runs = 0;
    if !ours {
        return Ok(None);
    }
    update(node, &["state=resume"], timeout)?;
    Ok(Some(format!("resumed {node}")))
}

fn current_reason(node: &str, timeout: Duration) -> Result<String, String> {
    let text = programs::output("sinfo", &["--noheader", "--nodes", node, "--format=%E"], timeout)?;
    text.lines()
        .next()
        .map(|line| line.trim().to_owned())
        .ok_or_else(|| format!("sinfo does not know the node {node}"))
}

fn update(node: &str, settings: &[&str], timeout: Duration) -> Result<(), String> {
    let node = format!("nodename={node}");
    programs::output("scontrol", &[&["update", &node], settings].concat(), timeout).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slurm::gpus::Found;

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
    fn gpus_are_free_only_if_all_running_jobs_have_records() {
        let gpus = BTreeMap::from([(0, 3), (1, 1)]);
        let record: JobRecord = serde_json::from_value(serde_json::json!({
            "boot_id": "b", "job": "7", "sluid": null, "uid": 1000, "node": "n", "boot_ms": 0,
            "gpus": [{"position": 0, "minor": 3, "uuid": null}],
        }))
        .unwrap();
        let jobs = |ids: &[&str]| ids.iter().map(|id| (*id).to_owned()).collect::<BTreeSet<String>>();
        let free = |ids: &[&str]| free(&gpus, std::slice::from_ref(&record), &jobs(ids));
        assert_eq!(free(&["7"]), BTreeMap::from([(1, 1)]));
        assert_eq!(free(&[]), BTreeMap::from([(1, 1)]), "the epilog has not deleted the record yet");
        assert_eq!(free(&["7", "8"]), BTreeMap::new());
    }
}
