//! Tests a driver that hangs, is lost, slow or missing: the exporter always serves pages, reports what is down,
//! and recovers.
#![allow(
    clippy::disallowed_methods,
    clippy::expect_used,
    clippy::float_cmp,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a case runs programs, reads files, compares exact figures and fails loudly"
)]

use std::fs;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use end_to_end::exporter::{Exporter, command};
use end_to_end::fake::Scenario;
use end_to_end::http;
use end_to_end::page::Page;
use end_to_end::procfs::{Process, Procfs};
use end_to_end::wait::until;
use end_to_end::{exporter, programs};
use rustix::fs::inotify;
use rustix::io::ioctl_fionread;
use rustix::process::Signal;

fn nvml_up(page: &Page) -> Option<f64> {
    page.value("bailiff_source_up", &[("source", "nvml")])
}

fn reason(page: &Page) -> Option<String> {
    page.label("bailiff_source_fault_info", &[("source", "nvml")], "reason")
}

fn gpu_up(page: &Page, gpu: &str) -> Option<f64> {
    page.value("bailiff_gpu_up", &[("gpu", gpu)])
}

/// Returns three GPUs, the second of which has this fault.
fn three(fault: &str) -> String {
    let gpu = |pid: u32, fault: &str| format!("  - processes: [{{pid: {pid}, used: 1GiB}}]\n{fault}");
    format!("sampling_period: 20ms\ngpus:\n{}{}{}", gpu(4100, ""), gpu(4101, fault), gpu(4102, ""))
}

#[test]
fn hung_driver_is_down_and_recovers() {
    let scenario = Scenario::new(&three(""));
    let exporter = Exporter::start(&scenario, &[]);
    exporter.until("the driver is up", |page| (nvml_up(page)? == 1.0).then_some(()));
    scenario.set(&format!("faults: {{hang: true}}\n{}", three("")));
    let began = exporter.tick();
    exporter.until("the driver is down", |page| (nvml_up(page)? == 0.0).then_some(()));
    assert!(exporter.tick() <= began + 3.0, "the fault is reported by the tick that hung or the next tick");
    let page = exporter.page();
    assert_eq!(reason(&page).as_deref(), Some("timeout"));
    assert_eq!(page.all("bailiff_process_gpu_memory_bytes", &[]).count(), 0, "old values are not exported");
    assert_eq!(page.all("bailiff_gpu_memory_used_bytes", &[]).count(), 0);
    scenario.set(&three(""));
    exporter.until("the exporter has recovered", |page| {
        let all = page.all("bailiff_gpu_up", &[]).map(|(_, up)| up).sum::<f64>();
        (nvml_up(page)? == 1.0 && all == 3.0).then_some(())
    });
}

#[test]
fn hung_gpu_does_not_affect_others() {
    let scenario = Scenario::new(&three(""));
    let exporter = Exporter::start(&scenario, &[]);
    exporter.until("all GPUs are up", |page| (gpu_up(page, "2")? == 1.0).then_some(()));
    scenario.set(&three("    faults: {hang: true}\n"));
    exporter.until("the second is down", |page| (gpu_up(page, "1")? == 0.0).then_some(()));
    for _ in 0..5 {
        let page = exporter.next();
        assert_eq!(
            (gpu_up(&page, "0"), gpu_up(&page, "1"), gpu_up(&page, "2")),
            (Some(1.0), Some(0.0), Some(1.0))
        );
        assert_eq!(nvml_up(&page), Some(1.0));
        assert_eq!(page.all("bailiff_process_gpu_memory_bytes", &[]).count(), 2);
        let uuid =
            page.label("bailiff_gpu_up", &[("gpu", "1")], "gpu_uuid").expect("the GPU is still exported");
        assert!(uuid.starts_with("GPU-"), "the UUID is kept: {uuid:?}");
    }
    scenario.set(&three(""));
    exporter.until("the exporter has recovered", |page| (gpu_up(page, "1")? == 1.0).then_some(()));
}

#[test]
fn lost_gpu_does_not_affect_others() {
    for fault in ["    faults: {lost: true}\n", "    faults: {lost: late}\n"] {
        let scenario = Scenario::new(&three(""));
        let exporter = Exporter::start(&scenario, &[]);
        exporter.until("all GPUs are up", |page| (gpu_up(page, "1")? == 1.0).then_some(()));
        scenario.set(&three(fault));
        let page =
            exporter.until("the GPU is lost", |page| (gpu_up(page, "1")? == 0.0).then(|| exporter.page()));
        assert_eq!(
            (gpu_up(&page, "0"), gpu_up(&page, "2"), nvml_up(&page)),
            (Some(1.0), Some(1.0), Some(1.0))
        );
        let reason = page.label("bailiff_gpu_fault_info", &[("gpu", "1")], "reason");
        assert_eq!(reason.as_deref(), Some("lost"));
        assert_eq!(page.all("bailiff_process_gpu_memory_bytes", &[]).count(), 2);
    }
}

#[test]
fn xid_errors_count_once_and_survive_gpu_loss() {
    let scenario = Scenario::new(&three(""));
    let exporter = Exporter::start(&scenario, &[]);
    exporter.until("all GPUs are up", |page| (gpu_up(page, "1")? == 1.0).then_some(()));
    let xids = |page: &Page, xid| page.value("bailiff_gpu_xid_errors_total", &[("gpu", "1"), ("xid", xid)]);
    scenario.set(&three("    xid: [79, 13, 79]\n"));
    exporter.until("all Xid errors are counted", |page| {
        (xids(page, "79")? == 2.0 && xids(page, "13")? == 1.0).then_some(())
    });
    // The last Xid errors from a GPU that falls off the bus.
    scenario.set(&three("    xid: [79, 13, 79, 79]\n    faults: {lost: true}\n"));
    exporter.until("the GPU is lost", |page| (gpu_up(page, "1")? == 0.0).then_some(()));
    exporter.until("the last Xid error", |page| (xids(page, "79")? == 3.0).then_some(()));
}

#[test]
fn slow_driver_is_waited_for_until_its_deadline() {
    let scenario = Scenario::new(&three("    faults: {slow: {nvmlDeviceGetMemoryInfo_v2: 100ms}}\n"));
    let exporter = Exporter::start(&scenario, &[]);
    exporter
        .until("all GPUs are up", |page| (gpu_up(page, "1")? == 1.0 && nvml_up(page)? == 1.0).then_some(()));
}

#[test]
fn library_installed_later_is_opened() {
    let scenario = Scenario::named("idle");
    let library = scenario.directory().join("libnvidia-ml.so.1");
    let mut command = command(&scenario);
    command.args(exporter::TICKS).arg("--nvml-library").arg(&library);
    let exporter = Exporter::spawn(command);
    let page = exporter.next();
    assert_eq!((nvml_up(&page), reason(&page).as_deref()), (Some(0.0), Some("library_not_found")));
    std::os::unix::fs::symlink(programs::fake_nvml(), library).unwrap();
    exporter.until("the driver is up", |page| (nvml_up(page)? == 1.0).then_some(()));
}

#[test]
fn driver_open_failure_is_reported() {
    for (init, expected) in [
        ("driver_not_loaded", "driver_not_loaded"),
        ("lib_rm_version_mismatch", "version_mismatch"),
        ("no_permission", "not_permitted"),
        ("unknown", "error"),
    ] {
        let scenario = Scenario::new(&format!("init: {init}\n{}", three("")));
        let exporter = Exporter::start(&scenario, &[]);
        exporter.until(expected, |page| (reason(page)? == expected).then_some(()));
        scenario.set(&three(""));
        exporter.until("the exporter has recovered", |page| (nvml_up(page)? == 1.0).then_some(()));
    }
}

#[test]
fn without_proc_memory_is_unattributed() {
    let scenario = Scenario::new(&three(""));
    let mut command = command(&scenario);
    command.args(["--interval", "100ms", "--procfs", "/nonexistent"]);
    let exporter = Exporter::spawn(command);
    let page = exporter.next();
    assert_eq!(page.value("bailiff_source_up", &[("source", "proc")]), Some(0.0));
    assert_eq!(page.label("bailiff_pid_namespace_info", &[], "pid_namespace").as_deref(), Some("unknown"));
    assert_eq!(page.all("bailiff_gpu_memory_parts_bytes", &[]).count(), 0);
    assert_eq!(page.all("bailiff_gpu_memory_used_bytes", &[]).count(), 3);
    assert!(exporter.log().contains("/nonexistent"), "{}", exporter.log());
}

#[test]
fn separate_pid_namespace_is_reported() {
    let scenario = Scenario::new(&three(""));
    let outside = command(&scenario);
    let mut inside = Command::new("unshare");
    inside.args(["--pid", "--fork", "--mount-proc", "--kill-child"]);
    inside.arg(outside.get_program()).args(outside.get_args()).args(["--interval", "100ms"]);
    inside.envs(outside.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let exporter = Exporter::spawn(inside);
    assert!(exporter.log().contains("hostPID: true"), "{}", exporter.log());
    let page = exporter.next();
    assert_eq!(page.label("bailiff_pid_namespace_info", &[], "pid_namespace").as_deref(), Some("other"));
    assert_eq!(page.all("bailiff_process_gpu_memory_bytes", &[]).count(), 0);
}

#[test]
fn node_without_gpus_is_reported() {
    let scenario = Scenario::named("none");
    let exporter = Exporter::start(&scenario, &[]);
    exporter.until("no devices", |page| (reason(page)? == "no_devices").then_some(()));
}

#[test]
fn killed_worker_is_replaced() {
    let scenario = Scenario::new(&three(""));
    let exporter = Exporter::start(&scenario, &[]);
    exporter.until("the driver is up", |page| (nvml_up(page)? == 1.0).then_some(()));
    let workers = exporter.children("sampling-worker");
    assert_eq!(workers.len(), 1);
    kill(workers[0]);
    until("another worker", || {
        let now = exporter.children("sampling-worker");
        (now.len() == 1 && now != workers).then_some(())
    });
    exporter.until("the driver is up again", |page| (nvml_up(page)? == 1.0).then_some(()));
}

/// A worker that is stopped while it reads a long made-up `/proc` is as silent as a worker that is waiting for
/// a process.
#[test]
fn command_lines_are_read_again_after_a_hang() {
    let procfs = Procfs::new();
    (2..3000).for_each(|pid| procfs.add(&Process::new(pid)));
    let mut names =
        fs::read_dir(procfs.path()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let first = names.find(|name| name.parse::<u32>().is_ok()).unwrap();
    let walk = inotify::init(inotify::CreateFlags::CLOEXEC).unwrap();
    inotify::add_watch(&walk, procfs.path().join(first), inotify::WatchFlags::OPEN).unwrap();
    let scenario = Scenario::new(&three(""));
    let path = procfs.path().to_str().unwrap().to_owned();
    let exporter = Exporter::start(&scenario, &["--procfs", &path, "--process.command"]);
    let worker = || exporter.children("sampling-worker").first().copied();
    let is_plain =
        |pid: u32| fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|args| args.ends_with(b"\0plain\0"));
    until("the worker is stopped while it reads /proc", || {
        let pid = worker()?;
        until_opened(&walk);
        signal(pid, rustix::process::Signal::STOP);
        until("another worker", || (worker()? != pid).then_some(()));
        exporter.log().contains("/proc did not respond by the deadline").then_some(())
    });
    until("command lines are left alone", || is_plain(worker()?).then_some(()));
    until("command lines are read again", || (!is_plain(worker()?)).then_some(()));
    exporter.until_logged("all sources can be read again");
    assert_eq!(exporter.next().value("bailiff_sampling_workers_hung", &[]), Some(0.0));
}

/// Waits until a file is opened. Earlier events are dropped.
fn until_opened(watch: &OwnedFd) {
    let mut events = [0; 1 << 12];
    while ioctl_fionread(watch).unwrap() > 0 {
        rustix::io::read(watch, &mut events).unwrap();
    }
    rustix::io::read(watch, &mut events).unwrap();
}

#[test]
fn exporter_without_its_launcher_exits() {
    let scenario = Scenario::new(&three(""));
    let mut exporter = Exporter::start(&scenario, &[]);
    exporter.until("the driver is up", |page| (nvml_up(page)? == 1.0).then_some(()));
    kill(exporter.children("sampling-launcher")[0]);
    assert_eq!(exporter.ended(), Some(1));
    assert!(exporter.log().contains("launcher"), "{}", exporter.log());
}

fn kill(pid: u32) {
    signal(pid, rustix::process::Signal::KILL);
}

fn signal(pid: u32, signal: rustix::process::Signal) {
    let pid = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw).unwrap();
    rustix::process::kill_process(pid, signal).unwrap();
}

/// Puts a process into a frozen cgroup v1, where no signal reaches it, not even SIGKILL. A hung driver has the
/// same effect. Systems without cgroup v1 do not support this state.
struct Frozen(PathBuf);

impl Frozen {
    fn freeze(pid: u32) -> Option<Self> {
        let directory = Path::new("/sys/fs/cgroup/freezer").join(format!("bailiff-test-{pid}"));
        fs::create_dir(&directory).ok()?;
        let frozen = Self(directory);
        fs::write(frozen.0.join("cgroup.procs"), pid.to_string()).ok()?;
        fs::write(frozen.0.join("freezer.state"), "FROZEN").ok()?;
        Some(frozen)
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        let _ = fs::write(self.0.join("freezer.state"), "THAWED");
        until("the directory can go", || fs::remove_dir(&self.0).ok());
    }
}

#[test]
fn unkillable_worker_does_not_affect_other_gpus() {
    let scenario = Scenario::new(&three(""));
    let exporter = Exporter::start(&scenario, &["--deadline", "5s"]);
    exporter.until("all GPUs are up", |page| (gpu_up(page, "2")? == 1.0).then_some(()));
    let worker = exporter.children("sampling-worker")[0];
    scenario.set(&three("    faults: {hang: true}\n"));
    until("the worker is in the driver", || {
        let call = fs::read(format!("/proc/{worker}/syscall")).ok()?;
        call.starts_with(b"230 ").then_some(()) // clock_nanosleep, in which the fake driver hangs
    });
    let Some(frozen) = Frozen::freeze(worker) else {
        return eprintln!("no freezer of cgroup version 1 here: not tried");
    };
    exporter.until("the second is down", |page| (gpu_up(page, "1")? == 0.0).then_some(()));
    scenario.set(&three(""));
    for _ in 0..20 {
        let page = exporter.next();
        assert_eq!(
            (gpu_up(&page, "0"), gpu_up(&page, "1"), gpu_up(&page, "2")),
            (Some(1.0), Some(0.0), Some(1.0))
        );
        assert_eq!(page.value("bailiff_sampling_workers_hung", &[]), Some(1.0));
    }
    drop(frozen);
    exporter.until("the exporter has recovered", |page| (gpu_up(page, "1")? == 1.0).then_some(()));
    assert_eq!(exporter.page().value("bailiff_sampling_workers_hung", &[]), Some(0.0));
}

#[test]
fn descriptor_count_stays_constant() {
    let scenario = Scenario::new(&three(""));
    let exporter = Exporter::start(&scenario, &[]);
    let open = |pid: u32| fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, Iterator::count);
    let all = |exporter: &Exporter| {
        let roles = ["sampling-launcher", "sampling-worker"];
        let pids = roles.iter().flat_map(|role| exporter.children(role)).chain([exporter.pid()]);
        pids.map(open).sum::<usize>()
    };
    exporter.until("the driver is up", |page| (nvml_up(page)? == 1.0).then_some(()));
    let before = all(&exporter);
    for _ in 0..3 {
        scenario.set(&three("    faults: {hang: true}\n"));
        exporter.until("the GPU hangs", |page| (gpu_up(page, "1")? == 0.0).then_some(()));
        scenario.set(&three(""));
        exporter.until("the GPU recovers", |page| (gpu_up(page, "1")? == 1.0).then_some(()));
    }
    until("the descriptors are as many as before", || (all(&exporter) <= before).then_some(()));
}

#[test]
fn only_the_worker_keeps_privileges() {
    let scenario = Scenario::new(&three(""));
    let capabilities = |pid: u32, set: &str| {
        let status = fs::read(format!("/proc/{pid}/status")).unwrap();
        let status = String::from_utf8(status).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix(set)?.strip_prefix(':')).unwrap();
        u64::from_str_radix(line.trim(), 16).unwrap()
    };
    // CAP_SYSLOG is kept only for reading the kernel log.
    for (flags, dropped) in [(&[][..], 1 << 34), (&["--kernel-log=/dev/null"], 0)] {
        let exporter = Exporter::start(&scenario, flags);
        exporter.until("the driver is up", |page| (nvml_up(page)? == 1.0).then_some(()));
        for set in ["CapEff", "CapPrm", "CapInh", "CapAmb", "CapBnd"] {
            let own = capabilities(std::process::id(), set);
            assert!(
                capabilities(exporter.pid(), set) == 0 || (set == "CapBnd" && own & 1 << 8 == 0),
                "{set}"
            );
            for role in ["sampling-launcher", "sampling-worker"] {
                assert_eq!(capabilities(exporter.children(role)[0], set), own & !dropped, "{role} {set}");
            }
        }
    }
}

#[test]
fn pages_are_served_while_the_driver_hangs() {
    let scenario = Scenario::new(&format!("faults: {{hang: true}}\n{}", three("")));
    let exporter = Exporter::start(&scenario, &[]);
    let began = Instant::now();
    let pages = std::iter::repeat_with(|| exporter.page()).take(50).count();
    // This is not a performance measurement: if a page waited for the driver, it would wait for its deadline
    // each time.
    assert!(began.elapsed() < Duration::from_millis(500) * 25, "{pages} pages");
}

#[test]
fn sigterm_drains_and_exits() {
    let scenario = Scenario::new(&three(""));
    let mut exporter = Exporter::start(&scenario, &[]);
    exporter.until("the driver is up", |page| (nvml_up(page)? == 1.0).then_some(()));
    let below: Vec<u32> =
        ["sampling-launcher", "sampling-worker"].iter().flat_map(|role| exporter.children(role)).collect();
    assert_eq!(below.len(), 2);
    assert_eq!(exporter.stop(), Some(0));
    until("launcher and worker have ended too", || {
        below.iter().all(|pid| !fs::exists(format!("/proc/{pid}/fd/0")).unwrap_or_default()).then_some(())
    });
}

/// Processes on an instance that the driver did not report are unknown, so they are not reported as gone.
#[test]
fn mig_gpu_is_unknown_until_all_instances_are_read() {
    let mig = include_str!("../fakes/nvml/scenarios/mig.yaml");
    let instances = |page: &Page| page.value("bailiff_gpu_mig_instances", &[("gpu", "0")]);
    // Each driver call, and whether the driver is queried again after it.
    let calls =
        [("GetMaxMigDeviceCount", true), ("GetMigDeviceHandleByIndex", true), ("IsMigDeviceHandle", false)];
    for (call, again) in calls {
        let failing = format!("faults: {{errors: {{nvmlDevice{call}: unknown}}}}\n{mig}");
        let scenario = Scenario::new(&failing);
        let exporter = Exporter::start(&scenario, &[]);
        let are_unknown = |page: &Page| (nvml_up(page)? == 1.0 && instances(page).is_none()).then_some(());
        exporter.until(call, are_unknown);
        let html = http::get(exporter.address(), "/", &[]).unwrap().text();
        assert!(
            html.contains(
                "the processes on GPU 0: MIG is enabled, but the driver did not list the instances"
            ),
            "{call}: {html}"
        );
        scenario.set(mig);
        exporter.until("all instances are reported", |page| (instances(page)? == 3.0).then_some(()));
        if again {
            scenario.set(&failing);
            exporter.until(call, are_unknown);
        }
    }
}

#[test]
fn page_of_a_stopped_exporter_has_no_samples() {
    let scenario = Scenario::new(&three(""));
    let mut command = command(&scenario);
    command.args(["--interval", "500ms", "--deadline", "2s", "--look-back", "1s", "--trust-pid-namespace"]);
    let exporter = Exporter::spawn(command);
    exporter.until("all GPUs are up", |page| (gpu_up(page, "2")? == 1.0).then_some(()));
    // The hung worker delays the next sample.
    let workers = exporter.children("sampling-worker");
    exporter.signal(Signal::STOP);
    for worker in &workers {
        signal(*worker, Signal::STOP);
    }
    let stopped = Instant::now();
    until("two intervals and the deadline", || {
        (stopped.elapsed() > Duration::from_millis(3200)).then_some(())
    });
    exporter.signal(Signal::CONT);
    let page = exporter.page();
    for worker in &workers {
        signal(*worker, Signal::CONT);
    }
    assert!(page.value("bailiff_snapshot_age_seconds", &[]).unwrap() > 3.0);
    assert_eq!((nvml_up(&page), reason(&page).as_deref()), (Some(0.0), Some("outdated")));
    for family in ["bailiff_gpu_up", "bailiff_gpu_memory_used_bytes", "bailiff_process_gpu_memory_bytes"] {
        assert_eq!(page.all(family, &[]).count(), 0, "{family}");
    }
    exporter.until("the exporter has recovered", |page| {
        (nvml_up(page)? == 1.0 && gpu_up(page, "2")? == 1.0).then_some(())
    });
}

#[test]
fn impossible_values_are_absent() {
    let gpu = "  - {temperature: 4294967040, power: 4000000W, energy: 18446744073709551614mJ, clocks: {sm: 4000000000},
     processes: [{pid: 4100, used: 1GiB}], faults: {garbage: {memory_above_total: true}}}\n";
    let scenario = Scenario::new(&format!("sampling_period: 20ms\ngpus:\n{gpu}"));
    let exporter = Exporter::start(&scenario, &[]);
    let page = exporter.next();
    assert_eq!(gpu_up(&page, "0"), Some(1.0));
    for family in [
        "bailiff_gpu_temperature_celsius",
        "bailiff_gpu_power_watts",
        "bailiff_gpu_energy_joules_total",
        "bailiff_gpu_memory_used_bytes",
        "bailiff_gpu_memory_parts_bytes",
        "bailiff_user_gpu_memory_bytes",
        "bailiff_process_gpu_memory_bytes",
    ] {
        assert_eq!(page.all(family, &[]).count(), 0, "{family}");
    }
    assert_eq!(page.value("bailiff_gpu_clock_hertz", &[("gpu", "0"), ("clock", "sm")]), None);
    let gaps = page.value("bailiff_gaps_total", &[("gap", "implausible")]).unwrap();
    assert!(gaps >= 6.0, "{gaps}");
}
