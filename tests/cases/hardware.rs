//! `hardware`, over fake drivers: the report of a driver that does what we take for granted, and of one that does not.
#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "a case runs programs, reads files and fails loudly"
)]

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::park_timeout;
use std::time::Duration;

use end_to_end::cuda::Machine;
use end_to_end::fake::Scenario;
use end_to_end::holder::children;
use end_to_end::programs;
use end_to_end::tenant::start;
use serde_json::Value;

/// A driver's GPU in the terms of `tests/fake-nvml`, kept in step with the workers that live.
struct Gpu<'a> {
    scenario: Scenario,
    /// What is said of a worker that does this work: keys of a process, or nothing where it is not listed.
    lists: &'a dyn Fn(&str) -> String,
    workers: BTreeMap<u32, Seen>,
    written: String,
}

/// A worker or the child of one.
struct Seen {
    work: String,
    parent: u32,
    start: u64,
}

impl Gpu<'_> {
    /// Lists the workers that live. A forked child is not listed; what it keeps of its parent is unaccounted.
    fn keep(&mut self, program: u32) {
        let known: Vec<u32> = self.workers.keys().copied().chain([program]).collect();
        for parent in known {
            for pid in children(parent) {
                if let Some(work) = work(pid) {
                    let start = start(pid).unwrap_or_default();
                    self.workers.entry(pid).or_insert(Seen { work, parent, start });
                }
            }
        }
        self.workers.retain(|pid, seen| start(*pid) == Some(seen.start));
        let mut text =
            "sampling_period: 20ms\nring: 600\ngpus:\n- memory: {total: 80GiB, unaccounted: ".to_owned();
        let orphans = self.workers.values().filter(|seen| seen.parent != program);
        let orphaned = orphans.filter(|seen| !self.workers.contains_key(&seen.parent)).count();
        let _ = writeln!(text, "{}MiB}}\n  processes:", 1024 * orphaned);
        for (pid, seen) in self.workers.iter().filter(|(_, seen)| seen.parent == program) {
            let _ = writeln!(text, "  - {{pid: {pid}, {}}}", (self.lists)(&seen.work));
        }
        if text != self.written {
            self.scenario.set(text.trim_end_matches("  processes:\n"));
            self.written = text;
        }
    }
}

/// What a process's command line says that it works; nothing of what is no worker.
fn work(pid: u32) -> Option<String> {
    // That of a process is empty once its first thread has exited; those of its other threads are not.
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).ok()?.filter_map(Result::ok);
    let mut lines = tasks.filter_map(|task| fs::read_to_string(task.path().join("cmdline")).ok());
    let line = lines.find(|line| !line.is_empty())?;
    let mut words = line.split('\0').skip(1);
    (words.next()? == "worker").then_some(words.next()?.to_owned())
}

/// A driver as our documentation takes it to be.
fn as_documented(work: &str) -> String {
    let says = match work {
        "busy" => "used: 500MiB, sm: 97",
        "streams" => "used: 500MiB, sm: 60",
        "bursts" => "used: 500MiB, sm: 9",
        "memory" | "leaderless" | "forked" => "used: 1012MiB",
        _ => "used: 500MiB",
    };
    says.to_owned()
}

fn command(machine: &Machine, out: &Path) -> Command {
    let mut command = machine.bare(programs::built("hardware"));
    command.args(["--interval", "200ms", "--look-back", "400ms", "--observe", "1s", "--out"]).arg(out);
    command.stdout(Stdio::null());
    command
}

/// Runs it over a driver that lists workers so, and gives its report as JSON and Markdown, and its exit code.
fn report(lists: &dyn Fn(&str) -> String) -> (Value, String, Option<i32>) {
    let (machine, out) = (Machine::new(), tempfile::tempdir().unwrap());
    let scenario = Scenario::new("sampling_period: 20ms\ngpus: [{}]");
    let mut command = command(&machine, out.path());
    command.arg("--nvml-library").arg(programs::fake_nvml()).env("FAKE_NVML_SCENARIO", scenario.path());
    let mut child: Child = command.spawn().unwrap();
    let mut gpu = Gpu { scenario, lists, workers: BTreeMap::new(), written: String::new() };
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        gpu.keep(child.id());
        park_timeout(Duration::from_millis(5));
    };
    let read = |name: &str| fs::read_to_string(out.path().join(name)).unwrap();
    (serde_json::from_str(&read("report.json")).unwrap(), read("report.md"), status.code())
}

/// Verdicts by row.
fn verdicts(report: &Value) -> BTreeMap<&str, &str> {
    let rows = report["rows"].as_array().unwrap().iter();
    rows.map(|row| (row["id"].as_str().unwrap(), row["verdict"].as_str().unwrap())).collect()
}

#[test]
fn a_documented_driver_agrees_in_each_row_that_was_tried() {
    let (report, markdown, code) = report(&as_documented);
    if let Some(path) = std::env::var_os("HARDWARE_DRY_RUN") {
        fs::write(path, &markdown).unwrap();
    }
    let untried = ["row-1", "row-4", "row-8", "two-lists", "dry-run-idle", "dry-run-busy", "dry-run-signals"];
    for (id, verdict) in verdicts(&report) {
        let expected = if untried.contains(&id) { "not tried" } else { "agree" };
        assert_eq!(verdict, expected, "{id}\n{markdown}");
    }
    assert_eq!(code, Some(0));
    assert_eq!((report["driver"].as_str(), report["gpu"].as_str()), (Some("580.95.05"), Some("NVIDIA H200")));
    for row in report["rows"].as_array().unwrap() {
        assert!(markdown.contains(&format!("| {} |", row["id"].as_str().unwrap())), "{row}");
    }
}

#[test]
fn a_driver_without_samples_of_a_busy_process_disagrees() {
    let (report, markdown, code) = report(&|work| match work {
        "busy" => "used: 500MiB".to_owned(),
        _ => as_documented(work),
    });
    let verdicts = verdicts(&report);
    assert_eq!((verdicts["row-3"], verdicts["row-3-shared"]), ("disagree", "disagree"), "{markdown}");
    assert_eq!((verdicts["row-3-streams"], verdicts["row-6"]), ("agree", "agree"), "{markdown}");
    assert!(markdown.contains("a process that computes was published as idle"), "{markdown}");
    assert_eq!(code, Some(1));
}

#[test]
fn without_a_driver_it_says_so_in_one_line_and_exits_with_69() {
    let folder = tempfile::tempdir().unwrap();
    let machine = Machine::new();
    let missing = folder.path().join("libnvidia-ml.so.1");
    let mut command = command(&machine, folder.path());
    let output = command.arg("--nvml-library").arg(&missing).output().unwrap();
    let line = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(69), "{line}");
    assert!(line.starts_with("hardware: no NVIDIA GPU: ") && line.lines().count() == 1, "{line}");
    assert!(!folder.path().join("report.md").exists());
}
