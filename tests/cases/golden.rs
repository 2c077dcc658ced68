//! Tests complete pages against golden files. `UPDATE_GOLDEN=1` renews the files; review the difference. The
//! driver is fake and `/proc` is made up, so the pages are the same on every machine. Values that depend on
//! time are masked. Needs root, to set the owner of made-up processes.
#![allow(
    clippy::disallowed_methods,
    clippy::expect_used,
    clippy::float_cmp,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a case runs programs, reads files, compares exact figures and fails loudly"
)]

use std::fs;
use std::process::Command;

use end_to_end::exporter;
use end_to_end::fake::Scenario;
use end_to_end::page::Page;
use end_to_end::procfs::{Process, Procfs};
use end_to_end::programs;

const POD: &str = "9c5b4a5e_7d1f_4f0e_9a3b_0a1b2c3d4e5f";
const CONTAINER: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

/// Metric families whose values depend on when the test ran or on how the program was built.
const MASKED: [&str; 18] = [
    "bailiff_build_info",
    "bailiff_http_requests_total",
    "bailiff_idle_gpu_seconds_total",
    "bailiff_held_gpu_seconds_total",
    "bailiff_unknown_gpu_seconds_total",
    "bailiff_process_gpu_busy_seconds_total",
    "bailiff_process_gpu_idle_seconds",
    "bailiff_process_gpu_memory_byte_seconds_total",
    "bailiff_snapshot_age_seconds",
    "bailiff_snapshot_duration_seconds",
    "bailiff_snapshot_timestamp_seconds",
    "bailiff_source_duration_seconds",
    "process_cpu_seconds_total",
    "process_max_fds",
    "process_open_fds",
    "process_resident_memory_bytes",
    "process_start_time_seconds",
    "process_virtual_memory_bytes",
];

/// Returns the four processes in the scenarios: a Slurm job, a pod, a service and a session.
fn procfs() -> Procfs {
    let job = "0::/system.slice/slurmstepd.scope/job_4711/step_0/user/task_0\n";
    let pod = format!("0::/kubepods.slice/kubepods-pod{POD}.slice/cri-containerd-{CONTAINER}.scope\n");
    let procfs = Procfs::new();
    procfs.write("self/cgroup", "0::/\n");
    procfs.write("cgroup/cgroup.controllers", "");
    procfs
        .with(&Process { cgroup: job.into(), ..Process::new(4100) })
        .with(&Process { cgroup: pod, comm: "vllm".into(), ..Process::new(4101) })
        .with(&Process { cgroup: "0::/system.slice/jupyter.service\n".into(), ..Process::new(4102) })
        .with(&Process { state: 'R', ..Process::new(4103) })
        .with(&Process::new(4104))
        .with(&Process::new(4110))
        .with(&Process::new(4111))
}

fn command(scenario: &Scenario, procfs: &Procfs) -> Command {
    let mut command = exporter::command(scenario);
    let pods = procfs.path().join("pods");
    fs::create_dir_all(pods.join(format!("ml_serve-0_{}", POD.replace('_', "-")))).unwrap();
    command.args(["--once", "--interval", "700ms", "--deadline", "1s", "--procfs"]).arg(procfs.path());
    command.arg("--pods").arg(pods).arg("--cgroupfs").arg(procfs.path().join("cgroup"));
    command
}

fn page(mut command: Command) -> String {
    let output = command.output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    String::from_utf8(output.stdout).unwrap()
}

fn masked(page: &str) -> String {
    let line = |line: &str| {
        let name = line.split(['{', ' ']).next().unwrap_or_default();
        match line.rsplit_once(' ') {
            Some((series, _)) if MASKED.contains(&name) => {
                let series = if name == "bailiff_build_info" { name } else { series };
                format!("{series} …\n")
            }
            _ => format!("{line}\n"),
        }
    };
    page.lines().map(line).collect()
}

fn golden(name: &str, page: &str) {
    assert!(!Page::read(page).is_empty());
    let path = programs::root().join("tests/golden").join(format!("{name}.prom"));
    let page = masked(page);
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        fs::write(&path, &page).unwrap();
    }
    let expected = fs::read_to_string(&path).unwrap_or_default();
    if expected != page {
        let difference = expected.lines().zip(page.lines()).find(|(expected, found)| expected != found);
        panic!("{} differs, first in {difference:#?}; UPDATE_GOLDEN=1 renews it", path.display());
    }
}

fn check(name: &str) {
    golden(name, &page(command(&Scenario::named(name), &procfs())));
}

#[test]
fn idle() {
    check("idle");
}

#[test]
fn busy() {
    check("busy");
}

#[test]
fn mig() {
    check("mig");
}

#[test]
fn mps() {
    check("mps");
}

#[test]
fn graphics() {
    check("graphics");
}

#[test]
fn dead_pid() {
    check("dead-pid");
}

#[test]
fn lost() {
    check("lost");
}

#[test]
fn hung() {
    check("hung");
}

/// Each release with the activity of engines. The node of the newest one has the controller `dmem`.
#[test]
fn driver_releases() {
    for release in ["r535", "r580", "r615"] {
        let (scenario, procfs) = (Scenario::named(release), procfs());
        if release == "r615" {
            limit_memory(&procfs);
        }
        let mut command = command(&scenario, &procfs);
        command.arg("--gpm");
        golden(release, &page(command));
    }
}

/// Limits the memory on GPU 0 of the Slurm job in which process 4100 runs.
fn limit_memory(procfs: &Procfs) {
    let job = "cgroup/system.slice/slurmstepd.scope/job_4711";
    for (name, gib) in [("max", 80), ("min", 8), ("current", 11), ("peak", 12)] {
        let text = format!("nvidia/0000:17:00.0/vidmem {}\n", gib * (1_u64 << 30));
        procfs.write(&format!("{job}/dmem.{name}"), &text);
    }
    procfs.write(&format!("{job}/step_0/user/task_0/dmem.max"), "nvidia/0000:17:00.0/vidmem max\n");
    procfs.write("cgroup/dmem.capacity", &format!("nvidia/0000:17:00.0/vidmem {}\n", 143_771_u64 << 20));
    std::os::unix::fs::symlink("cgroup:[4026531835]", procfs.path().join("self/ns/cgroup")).unwrap();
}

#[test]
fn driver_that_does_not_open() {
    let (scenario, procfs) = (Scenario::new("init: hang\ngpus: [{}]\n"), procfs());
    golden("hung-at-start", &page(command(&scenario, &procfs)));
}

#[test]
fn no_gpus() {
    check("none");
}

#[test]
fn no_driver() {
    check("no-driver");
}

#[test]
fn no_library() {
    let (scenario, procfs) = (Scenario::named("idle"), procfs());
    let mut command = command(&scenario, &procfs);
    command.args(["--nvml-library", "/nonexistent/libnvidia-ml.so.1"]);
    golden("no-library", &page(command));
}

#[test]
fn zombie_leader() {
    let procfs = procfs();
    procfs.add(&Process { state: 'Z', threads: vec!['S', 'Z'], ..Process::new(4100) });
    procfs.add(&Process { state: 'Z', ..Process::new(4101) });
    golden("zombie-leader", &page(command(&Scenario::named("idle"), &procfs)));
}

#[test]
fn another_pid_namespace() {
    let procfs = procfs();
    fs::remove_file(procfs.path().join("self/ns/pid")).unwrap();
    std::os::unix::fs::symlink("pid:[4026532999]", procfs.path().join("self/ns/pid")).unwrap();
    golden("another-pid-namespace", &page(command(&Scenario::named("busy"), &procfs)));
}

#[test]
fn commands_when_enabled() {
    let (scenario, procfs) = (Scenario::named("busy"), procfs());
    let mut command = command(&scenario, &procfs);
    command.arg("--process.command");
    let page = Page::read(&page(command));
    let command = page.label("bailiff_process_info", &[("pid", "4100")], "command");
    assert_eq!(command.as_deref(), Some("python3 train.py --api-key=…"));
}

/// The full page for 800 processes is too long to review, so only the 16 largest processes and the sum of the
/// rest are compared.
#[test]
fn eight_gpus_with_100_processes() {
    let (scenario, procfs) = (Scenario::named("8x100"), procfs());
    let mut command = command(&scenario, &procfs);
    command.args(["--max-processes", "16"]);
    golden("8x100", &page(command));
}
