//! Tests `hardware` with fake drivers: the report for a driver that behaves as documented, and for a driver that does
//! not.
#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "a case runs programs, reads files and fails loudly"
)]

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::park_timeout;
use std::time::{Duration, Instant};

use end_to_end::cuda::Machine;
use end_to_end::fake::Scenario;
use end_to_end::holder::children;
use end_to_end::mps::Mps;
use end_to_end::programs;
use end_to_end::tenant::{NOBODY_UID, start};
use serde_json::Value;

/// How a driver behaves.
#[derive(Clone, Copy)]
struct Driver<'a> {
    /// Returns the keys of the process list for a worker with this kind of work.
    lists: &'a dyn Fn(&str) -> String,
    /// Whether the processes are on a MIG instance.
    mig: bool,
    /// Whether accounting mode is on.
    accounting: bool,
    /// Activity of the video decoder in percent while a process decodes.
    video: f64,
    /// DRAM activity in percent while a process copies.
    copies: f64,
    /// Error that the SIGKILL of a worker causes.
    killed: u64,
}

/// Stands in for ffmpeg: makes the last argument, or decodes for ever.
const FFMPEG: &str = "#!/bin/sh
case \"$*\" in *h264_cuvid*) while :; do sleep 0.1; done ;; esac
for last; do :; done
: >\"$last\"
";

/// A driver that behaves as documented, without MIG and accounting.
const DOCUMENTED: Driver<'static> =
    Driver { lists: &as_documented, mig: false, accounting: false, video: 40.0, copies: 1.14, killed: 45 };

/// A GPU in a scenario of `tests/fakes/nvml`, kept in step with the running workers.
struct Gpu<'a> {
    scenario: Scenario,
    driver: Driver<'a>,
    workers: BTreeMap<u32, Observed>,
    /// When a worker that writes outside of memory was first seen.
    faulted: Option<Instant>,
    /// The kernel log, and whether the error was written to it.
    kernel_log: (PathBuf, bool),
    /// Whether a worker that is to be killed was seen, and is gone.
    killed: Option<bool>,
    written: String,
}

/// An observed process: a worker, a worker's child, or the MPS server.
struct Observed {
    work: String,
    parent: u32,
    start: u64,
}

impl Gpu<'_> {
    /// Lists the running workers. A forked child is not listed, so the memory that it keeps from its parent is
    /// unattributed.
    fn keep(&mut self, program: u32) {
        let known: Vec<u32> = self.workers.keys().copied().chain([program]).collect();
        for parent in known {
            for pid in children(parent) {
                if let Some(work) = work(pid) {
                    let start = start(pid).unwrap_or_default();
                    self.workers.entry(pid).or_insert(Observed { work, parent, start });
                }
            }
        }
        self.workers.retain(|pid, seen| start(*pid) == Some(seen.start));
        let orphans = self.workers.values().filter(|seen| seen.work == "forked" && seen.parent != program);
        let orphaned = orphans.filter(|seen| !self.workers.contains_key(&seen.parent)).count();
        self.log_fault();
        let is_listed = |seen: &&Observed| seen.parent == program || seen.work == "mps-server";
        let listed = self.workers.iter().filter(|(_, seen)| is_listed(seen));
        let listed: Vec<(u32, String)> =
            listed.map(|(pid, seen)| (*pid, (self.driver.lists)(&seen.work))).collect();
        let runs = |work: &str| self.workers.values().any(|seen| seen.work == work);
        self.killed = if runs("killed") { Some(false) } else { self.killed.map(|_| true) };
        let is_busy = listed.iter().any(|(_, keys)| keys.contains("sm: 97"));
        let dram = if runs("copies") || runs("host-copies") { self.driver.copies } else { 0.0005 };
        let video = if runs("video") { self.driver.video } else { 0.0 };
        let text = self.text(orphaned, [if is_busy { 97.0 } else { 0.0064 }, dram, video], &listed);
        if text != self.written {
            self.scenario.set(&text);
            self.written = text;
        }
    }

    /// Returns the scenario: the GPU's memory of ended processes in GiB, its activity, that of its memory and that of its video
    /// decoder in percent, and the keys of its processes.
    fn text(&self, orphaned: usize, [percent, dram, video]: [f64; 3], processes: &[(u32, String)]) -> String {
        let gpm = format!("{{1: {percent}, 2: {percent}, 10: {dram}, 30: {video}, 40: 0}}");
        let all = |entry: &dyn Fn(&(u32, String)) -> String| -> String {
            processes.iter().map(entry).collect::<Vec<_>>().join(", ")
        };
        let listed = all(&|(pid, keys)| format!("{{pid: {pid}, {keys}}}"));
        if self.driver.mig {
            let instance = format!(
                "{{gi: 1, profile: 1g.18gb, memory: {{total: 16GiB}}, gpm: {gpm}, processes: [{listed}]}}"
            );
            return format!("gpus:\n- gpm: {{1: 30}}\n  mig: [{instance}]");
        }
        let errors = [self.faulted.map(|_| 31), self.killed.filter(|gone| *gone).map(|_| self.driver.killed)];
        let errors: Vec<u64> = errors.into_iter().flatten().collect();
        let memory = format!("{{total: 80GiB, unaccounted: {}MiB}}", 1024 * orphaned);
        let busy = |keys: &str| if keys.contains("sm: 97") { 97 } else { 0 };
        let accounted = all(&|(pid, keys)| format!("{{pid: {pid}, running: true, gpu: {}}}", busy(keys)));
        let accounting = if self.driver.accounting {
            format!("accounting: {{enabled: true, processes: [{accounted}]}}")
        } else {
            "accounting: {enabled: false}".to_owned()
        };
        let missing = if self.driver.accounting { "" } else { "nvmlDeviceGetAccountingStats_v2" };
        format!(
            "missing: [{missing}]\nsampling_period: 20ms\nring: 600\ngpus:\n- energy_grows: true\n  power: 300W\n  memory: {memory}\n  gpm: {gpm}\n  xid: {errors:?}\n  {accounting}\n  processes: [{listed}]"
        )
    }

    /// Writes the line of a worker that wrote outside of memory to the kernel log.
    fn log_fault(&mut self) {
        let faulty = self.workers.iter().find(|(_, seen)| seen.work == "fault").map(|(pid, _)| *pid);
        self.faulted = self.faulted.or_else(|| faulty.map(|_| Instant::now()));
        // The worker must be in an earlier sample.
        let is_settled = self.faulted.is_some_and(|seen| seen.elapsed() > Duration::from_secs(2));
        if let Some(pid) = faulty.filter(|_| is_settled && !self.kernel_log.1) {
            let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
            let line = format!(
                "4,360,43920577,c;NVRM: Xid (PCI:0000:17:00): 31, pid={pid}, name={}, channel 0x0000001e, intr 00000000\n",
                name.trim_end()
            );
            fs::write(&self.kernel_log.0, line).unwrap();
            self.kernel_log.1 = true;
        }
    }
}

/// Returns the work on a worker's command line, or `None` for other processes. The MPS daemon is recognized by its
/// children.
fn work(pid: u32) -> Option<String> {
    let exe = fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_default();
    match exe.file_name().and_then(OsStr::to_str).unwrap_or_default() {
        "nvidia-cuda-mps-server" => return Some("mps-server".to_owned()),
        "nvidia-cuda-mps-control" => return Some("mps-control".to_owned()),
        _ => {}
    }
    // A process's command line is empty once its first thread has exited, but the command lines of its other threads
    // are not.
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).ok()?.filter_map(Result::ok);
    let mut lines = tasks.filter_map(|task| fs::read_to_string(task.path().join("cmdline")).ok());
    let line = lines.find(|line| !line.is_empty())?;
    if line.contains("h264_cuvid") {
        return Some("video".to_owned());
    }
    let mut args = line.split('\0').skip(1);
    (args.next()? == "worker").then_some(args.next()?.to_owned())
}

/// Returns a process's keys in the scenario, for a driver that behaves as documented.
fn as_documented(work: &str) -> String {
    let process = match work {
        "busy" => "used: 500MiB, sm: 97",
        "killed" => "used: 1012MiB, sm: 97",
        "other-user" => "used: 500MiB, sm: 40",
        "streams" => "used: 500MiB, sm: 60",
        "bursts" => "used: 500MiB, sm: 9",
        "memory" | "leaderless" | "forked" | "terminated" => "used: 1012MiB",
        "mps-idle" => "used: 400MiB, kind: mps",
        "mps-busy" => "used: 400MiB, kind: mps, sm: 97",
        "mps-server" => "used: 30MiB",
        _ => "used: 500MiB",
    };
    process.to_owned()
}

/// Returns the command: from this build, or from the directory in `HARDWARE_PACK`.
fn command(machine: &Machine, out: &Path) -> Command {
    let pack = std::env::var_os("HARDWARE_PACK").map(|pack| Path::new(&pack).join("hardware"));
    let mut command = machine.bare(pack.unwrap_or_else(|| programs::built("hardware")));
    command.args(["--interval", "200ms", "--look-back", "400ms", "--observe", "1s", "--out"]).arg(out);
    command.stdout(Stdio::null());
    command
}

/// Runs the program as this user with a driver, and with these flags. Returns the report as JSON and as Markdown, and
/// the exit code.
fn report(driver: Driver<'_>, uid: Option<u32>, flags: &[&str]) -> (Value, String, Option<i32>) {
    let (machine, mps, out) = (Machine::new(), Mps::of("550"), tempfile::tempdir().unwrap());
    let scenario = Scenario::new("sampling_period: 20ms\ngpus: [{}]");
    for path in [out.path(), scenario.directory(), machine.path("").as_path()] {
        fs::set_permissions(path, Permissions::from_mode(0o777)).unwrap();
    }
    fs::set_permissions(machine.path("truth"), Permissions::from_mode(0o666)).unwrap();
    let mut command = command(&machine, out.path());
    let device = scenario.directory().join("nvidia0");
    fs::write(&device, "").unwrap();
    command.arg("--devices").arg(scenario.directory().join("nvidia")).env("FAKE_CUDA_DEVICE", device);
    command.arg("--nvml-library").arg(programs::fake_nvml()).env("FAKE_NVML_SCENARIO", scenario.path());
    let kernel_log = out.path().join("kmsg");
    fs::write(&kernel_log, "").unwrap();
    command.arg("--kernel-log").arg(&kernel_log).args(flags);
    let ffmpeg = out.path().join("ffmpeg");
    fs::write(&ffmpeg, FFMPEG).unwrap();
    fs::set_permissions(&ffmpeg, Permissions::from_mode(0o755)).unwrap();
    let path = format!("{}:{}:/usr/bin:/bin", mps.bin().display(), out.path().display());
    command.env("PATH", path).env("FAKE_MPS_RELEASE", "550");
    if let Some(uid) = uid {
        command.uid(uid).gid(uid);
    }
    let mut child: Child = command.spawn().unwrap();
    let mut gpu = Gpu {
        scenario,
        driver,
        workers: BTreeMap::new(),
        faulted: None,
        kernel_log: (kernel_log, false),
        killed: None,
        written: String::new(),
    };
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

/// Returns the stable part of a table: each row's id, claim and verdict.
fn stable(markdown: &str) -> Vec<[&str; 3]> {
    let rows = markdown.lines().filter_map(|line| line.strip_prefix("| ")?.strip_suffix(" |"));
    let cells = rows.map(|row| row.split(" | ").collect::<Vec<_>>()).filter(|cells| cells.len() == 6);
    cells.map(|cells| [cells[0], cells[1], cells[5]]).collect()
}

/// Returns the id and the claim of each row that `docs/hardware.md` lists as not run on hardware.
fn not_run(page: &str) -> Vec<[&str; 2]> {
    let (_, section) = page.split_once("\n## Rows that have not run on hardware yet\n").unwrap();
    let section = section.split_once("\n## ").map_or(section, |(section, _)| section);
    let rows =
        section.lines().filter_map(|line| line.strip_prefix("| ")?.strip_suffix(" |")?.split_once(" | "));
    rows.map(|(id, claim)| [id, claim]).filter(|[id, _]| *id != "row").collect()
}

#[test]
fn documented_driver_agrees_in_every_row() {
    let page = fs::read_to_string(programs::root().join("docs/hardware.md")).unwrap();
    for uid in [None, Some(NOBODY_UID)] {
        let (report, markdown, code) = report(DOCUMENTED, uid, &[]);
        let not_tried = ["row-1", "two-lists", "mig-activity", "accounting"];
        for (id, verdict) in verdicts(&report) {
            let is_tried = !not_tried.contains(&id) && (id != "energy-users" || uid.is_none());
            assert_eq!(verdict, if is_tried { "agree" } else { "not tried" }, "{id}\n{markdown}");
        }
        assert_eq!(code, Some(0));
        let machine = (report["driver"].as_str(), report["gpu"].as_str());
        assert_eq!(machine, (Some("580.95.05"), Some("NVIDIA H200")));
        let not_run = not_run(&page);
        let is_new = |[id, ..]: &[&str; 3]| not_run.iter().any(|row| row[0] == *id);
        let (new, reported): (Vec<_>, Vec<_>) = stable(&markdown).into_iter().partition(is_new);
        assert_eq!(stable(&page), reported, "docs/hardware.md has another report");
        let new: Vec<[&str; 2]> = new.iter().map(|[id, claim, _]| [*id, *claim]).collect();
        assert_eq!(not_run, new, "docs/hardware.md lists other rows that have not run");
    }
}

#[test]
fn instance_is_tried_where_mig_is_on() {
    let driver = Driver { mig: true, ..DOCUMENTED };
    let (report, markdown, code) = report(driver, None, &["--rows", "mig-activity"]);
    assert_eq!((verdicts(&report)["mig-activity"], code), ("agree", Some(0)), "{markdown}");
}

#[test]
fn accounting_is_tried_where_it_is_on() {
    let counts_all = |work: &str| as_documented(if work == "idle" { "busy" } else { work });
    let documented = Driver { accounting: true, ..DOCUMENTED };
    for (driver, expected) in [
        (documented, ("agree", Some(0))),
        (Driver { lists: &counts_all, ..documented }, ("disagree", Some(1))),
    ] {
        let (report, markdown, code) = report(driver, None, &["--rows", "accounting"]);
        assert_eq!((verdicts(&report)["accounting"], code), expected, "{markdown}");
    }
}

#[test]
fn driver_with_other_activity_energy_and_errors_disagrees() {
    // An idle process is sampled as busy, a busy one as idle, copies are invisible, and SIGKILL is an application's error.
    let lists = |work: &str| match work {
        "idle" => "used: 500MiB, sm: 50".to_owned(),
        "busy" | "other-user" => "used: 500MiB".to_owned(),
        _ => as_documented(work),
    };
    let driver = Driver { lists: &lists, video: 0.0, copies: 0.0005, killed: 31, ..DOCUMENTED };
    let rows =
        ["energy-idle", "energy-users", "gpm-shared", "gpm-copies", "gpm-video", "gpm-user", "kill-busy"];
    let (report, markdown, code) = report(driver, None, &["--rows", &rows.join(",")]);
    for (id, verdict) in verdicts(&report) {
        assert_eq!(verdict, "disagree", "{id}\n{markdown}");
    }
    assert_eq!((verdicts(&report).len(), code), (rows.len(), Some(1)), "{markdown}");
}

#[test]
fn driver_without_samples_of_a_busy_process_disagrees() {
    let lists = |work: &str| match work {
        "busy" => "used: 500MiB".to_owned(),
        _ => as_documented(work),
    };
    let (report, markdown, code) = report(Driver { lists: &lists, ..DOCUMENTED }, None, &[]);
    let verdicts = verdicts(&report);
    assert_eq!((verdicts["row-3"], verdicts["row-3-shared"]), ("disagree", "disagree"), "{markdown}");
    assert_eq!((verdicts["row-3-streams"], verdicts["row-6"]), ("agree", "agree"), "{markdown}");
    assert!(markdown.contains("a process that computes has no samples above 1 %"), "{markdown}");
    assert_eq!(code, Some(1));
}

#[test]
fn missing_driver_is_one_line_and_exit_code_69() {
    let directory = tempfile::tempdir().unwrap();
    let machine = Machine::new();
    let missing = directory.path().join("libnvidia-ml.so.1");
    let mut command = command(&machine, directory.path());
    let output = command.arg("--nvml-library").arg(&missing).output().unwrap();
    let line = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(69), "{line}");
    assert!(line.starts_with("hardware: no NVIDIA GPU: ") && line.lines().count() == 1, "{line}");
    assert!(!directory.path().join("report.md").exists());
}

#[test]
fn unknown_row_is_exit_code_64() {
    let (machine, out) = (Machine::new(), tempfile::tempdir().unwrap());
    let output = command(&machine, out.path()).args(["--rows", "quota,row-99"]).output().unwrap();
    assert_eq!(output.status.code(), Some(64));
    assert!(String::from_utf8(output.stderr).unwrap().starts_with("hardware: no row row-99\nusage: "));
}
