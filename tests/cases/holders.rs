//! Tests holders of GPU memory: real processes in the real `/proc`, with the fake driver.
#![allow(
    clippy::disallowed_methods,
    clippy::expect_used,
    clippy::float_cmp,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a case runs programs, reads files, compares exact figures and fails loudly"
)]

use std::io::BufRead;
use std::process::{Command, Stdio};

use end_to_end::exporter::Exporter;
use end_to_end::fake::Scenario;
use end_to_end::holder::Holder;
use end_to_end::orphan::{Orphan, Scope};
use end_to_end::page::Page;
use end_to_end::procfs::{Process, Procfs};

/// Returns a scenario with one GPU that these processes hold.
fn scenario(processes: &[String]) -> String {
    format!("sampling_period: 20ms\ngpus:\n  - processes: [{}]\n", list(processes))
}

fn list(processes: &[String]) -> String {
    let processes: Vec<String> = processes.iter().map(|process| format!("{{{process}}}")).collect();
    processes.join(", ")
}

fn held(pid: u32) -> String {
    format!("pid: {pid}, used: 1GiB")
}

fn state(page: &Page, pid: u32) -> Option<String> {
    page.label("bailiff_process_state", &[("pid", &pid.to_string())], "state")
}

#[test]
fn holder_is_exported_until_the_tick_after_exit() {
    let mut holder = Holder::sleeping();
    let pid = holder.pid().to_string();
    let scenario_file = Scenario::new(&scenario(&[held(holder.pid())]));
    let exporter = Exporter::start(&scenario_file, &[]);
    let page = exporter.next();
    assert_eq!(page.value("bailiff_process_gpu_memory_bytes", &[("pid", &pid)]), Some(f64::from(1 << 30)));
    let info = |label| page.label("bailiff_process_info", &[("pid", &pid)], label);
    assert_eq!(info("comm").as_deref(), Some("sleep"));
    assert_eq!(info("uid"), Some(rustix::process::getuid().as_raw().to_string()));
    holder.end();
    scenario_file.set(&scenario(&[]));
    let page = exporter.next();
    for family in ["bailiff_process_gpu_memory_bytes", "bailiff_process_info", "bailiff_process_state"] {
        assert_eq!(page.all(family, &[("pid", &pid)]).count(), 0, "{family}");
    }
    assert_eq!(page.value("bailiff_gpu_processes", &[]), Some(0.0));
}

#[test]
fn listed_process_that_exited_is_a_dead_pid() {
    let mut holder = Holder::sleeping();
    let pid = holder.pid();
    let scenario = Scenario::new(&scenario(&[held(pid)]));
    let exporter = Exporter::start(&scenario, &[]);
    exporter.until("the process is running", |page| (state(page, pid)? == "sleeping").then_some(()));
    holder.end();
    let page = exporter.next();
    assert_eq!(state(&page, pid).as_deref(), Some("gone"));
    let parts = |part| page.value("bailiff_gpu_memory_parts_bytes", &[("part", part)]);
    assert_eq!((parts("dead_pids"), parts("holders")), (Some(f64::from(1 << 30)), Some(0.0)));
}

/// A thread of another process can get the pid of a process that has exited.
#[test]
fn listed_pid_of_a_thread_is_a_dead_pid() {
    let holder = Holder::python(
        "import threading\n\
         threading.Thread(target=lambda: threading.Event().wait()).start()\n\
         print('ready')\n",
    );
    let tasks = std::fs::read_dir(format!("/proc/{}/task", holder.pid())).unwrap();
    let mut tasks = tasks.map(|task| task.unwrap().file_name().into_string().unwrap().parse().unwrap());
    let thread: u32 = tasks.find(|thread| *thread != holder.pid()).unwrap();
    let scenario = Scenario::new(&scenario(&[held(holder.pid()), format!("pid: {thread}, used: 2GiB")]));
    let exporter = Exporter::start(&scenario, &[]);
    let page = exporter.until("the process is running", |page| {
        (state(page, holder.pid())? == "sleeping").then(|| page.clone())
    });
    assert_eq!(state(&page, thread).as_deref(), Some("gone"));
    let parts = |part| page.value("bailiff_gpu_memory_parts_bytes", &[("part", part)]);
    assert_eq!(
        (parts("dead_pids"), parts("holders")),
        (Some(2.0 * f64::from(1 << 30)), Some(f64::from(1 << 30)))
    );
    let users = page.all("bailiff_user_gpu_memory_bytes", &[]);
    assert_eq!(users.map(|(_, bytes)| bytes).sum::<f64>(), f64::from(1 << 30));
}

#[test]
fn idle_time_starts_when_work_ends() {
    let holder = Holder::sleeping();
    let pid = holder.pid().to_string();
    let busy = scenario(&[format!("{}, sm: 80", held(holder.pid()))]);
    let idle = scenario(&[held(holder.pid())]);
    let scenario = Scenario::new(&busy);
    let exporter = Exporter::start(&scenario, &[]);
    let of = |page: &Page, name: &str| page.value(name, &[("pid", &pid)]);
    let utilization =
        |page: &Page| page.value("bailiff_process_gpu_utilization_ratio", &[("pid", &pid), ("engine", "sm")]);
    exporter.until("the process is busy", |page| (utilization(page)? > 0.7).then_some(()));
    assert_eq!(of(&exporter.page(), "bailiff_process_gpu_idle_seconds"), Some(0.0));
    let busy_seconds = exporter.until("busy time", |page| {
        of(page, "bailiff_process_gpu_busy_seconds_total").filter(|seconds| *seconds > 0.0)
    });
    scenario.set(&idle);
    exporter.until("the process has been idle for a while", |page| {
        (utilization(page)? == 0.0 && of(page, "bailiff_process_gpu_idle_seconds")? > 0.5).then_some(())
    });
    let page = exporter.page();
    assert!(of(&page, "bailiff_process_gpu_busy_seconds_total").expect("still counted") >= busy_seconds);
    assert_eq!(
        page.all("bailiff_idle_memory_bytes", &[]).map(|(_, bytes)| bytes).sum::<f64>(),
        f64::from(1 << 30)
    );
    scenario.set(&busy);
    exporter.until("the process is busy again", |page| {
        (of(page, "bailiff_process_gpu_idle_seconds")? == 0.0).then_some(())
    });
}

#[test]
fn exited_leader_is_distinguished_from_a_zombie() {
    let leader = Holder::python(
        "import ctypes, threading\n\
         threading.Thread(target=lambda: threading.Event().wait()).start()\n\
         print('ready')\n\
         ctypes.CDLL(None).pthread_exit(None)",
    );
    let parent =
        Holder::python("import os, signal\npid = os.fork() or os._exit(0)\nprint(pid)\nsignal.pause()");
    let zombie = child_of(parent.pid());
    let scenario = Scenario::new(&scenario(&[held(leader.pid()), held(zombie)]));
    let exporter = Exporter::start(&scenario, &[]);
    exporter.until("both processes have started their programs", |page| {
        let found = (state(page, leader.pid())?, state(page, zombie)?);
        (found == ("zombie_leader".into(), "zombie".into())).then_some(())
    });
}

fn child_of(parent: u32) -> u32 {
    end_to_end::wait::until("the child", || {
        let path = format!("/proc/{parent}/task/{parent}/children");
        let children = std::fs::read_to_string(path).ok()?;
        children.split_whitespace().next()?.parse().ok()
    })
}

/// A Slurm step as slurmd starts it. slurmstepd is in a session whose leader has exited. Its child, the task,
/// is in the same session, but in a process group of its own. Prints the pid of the task.
const STEP: &str = "import ctypes, os, signal\n\
    name = lambda to: ctypes.CDLL(None).prctl(15, to)\n\
    if os.fork() == 0:\n\
    \x20   os.setsid()\n\
    \x20   if os.fork() > 0: os._exit(0)\n\
    \x20   name(b'slurmstepd')\n\
    \x20   task = os.fork()\n\
    \x20   if task == 0:\n\
    \x20       os.setpgid(0, 0)\n\
    \x20       name(b'python3')\n\
    \x20       signal.pause()\n\
    \x20   print(task, flush=True)\n\
    signal.pause()";
/// A daemon that has forked twice. Prints its pid.
const DAEMON: &str = "import os, signal\n\
    if os.fork() == 0:\n\
    \x20   os.setsid()\n\
    \x20   if os.fork() > 0: os._exit(0)\n\
    \x20   print(os.getpid(), flush=True)\n\
    signal.pause()";

/// A program, its descendants, and the process whose pid the program printed. All are in one cgroup and are
/// terminated with the test.
struct Session {
    leader: std::process::Child,
    pids: Vec<u32>,
    printed_pid: u32,
    _scope: Scope,
}

impl Session {
    fn of(program: &str) -> Self {
        let mut command = Command::new("setsid");
        command.args(["python3", "-c", program]).stdout(Stdio::piped());
        let mut leader = command.spawn().unwrap();
        let mut line = String::new();
        std::io::BufReader::new(leader.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let printed_pid = line.trim().parse().unwrap();
        let pids: Vec<u32> =
            [leader.id(), printed_pid, parent(printed_pid)].into_iter().filter(|pid| *pid > 1).collect();
        let scope = Scope::new();
        for pid in &pids {
            scope.take(*pid);
        }
        Self { leader, pids, printed_pid, _scope: scope }
    }
}

fn parent(pid: u32) -> u32 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    stat.rsplit(')').next().unwrap().split_whitespace().nth(1).unwrap().parse().unwrap()
}

impl Drop for Session {
    fn drop(&mut self) {
        for pid in self.pids.iter().skip(1) {
            let pid = i32::try_from(*pid).ok().and_then(rustix::process::Pid::from_raw).unwrap();
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        }
        let _ = self.leader.kill();
        let _ = self.leader.wait();
    }
}

#[test]
fn only_a_process_of_an_ended_session_is_orphaned() {
    let orphan = Orphan::under(Command::new("setsid"));
    let (step, daemon) = (Session::of(STEP), Session::of(DAEMON));
    let child = Holder::sleeping();
    let pids = [orphan.pid(), step.printed_pid, daemon.printed_pid, child.pid()];
    let scenario = Scenario::new(&scenario(&pids.map(held)));
    let exporter = Exporter::start(&scenario, &[]);
    let orphaned =
        |page: &Page, pid: u32| page.value("bailiff_process_orphaned", &[("pid", &pid.to_string())]);
    exporter.until("the orphan", |page| orphaned(page, orphan.pid()));
    let page = exporter.page();
    let orphan_values = pids.map(|pid| orphaned(&page, pid));
    // The daemon is not orphaned, because the login session that started it still exists.
    assert_eq!(orphan_values, [Some(1.0), Some(0.0), None, Some(0.0)]);
}

/// A forked worker that inherited the device file is not listed by the driver, but still holds memory.
#[test]
fn process_with_the_device_open_is_found_for_unattributed_memory() {
    let procfs = Procfs::new();
    for pid in [4100, 5000, 5001] {
        procfs.add(&Process::new(pid));
        procfs.open_file(pid, if pid == 5001 { "/dev/null" } else { "/dev/nvidia0" });
    }
    let text = |unaccounted: &str| {
        format!(
            "gpus:\n  - memory: {{total: 80GiB, reserved: 1GiB, unaccounted: {unaccounted}}}\n    processes: [{{pid: 4100, used: 1GiB}}]\n"
        )
    };
    let scenario = Scenario::new(&text("0GiB"));
    let path = procfs.path().to_str().unwrap().to_owned();
    let exporter = Exporter::start(&scenario, &["--procfs", &path]);
    let device_processes = |page: &Page| page.value("bailiff_gpu_unlisted_processes", &[]);
    assert_eq!(device_processes(&exporter.next()), None, "not scanned, since all memory is attributed");
    scenario.set(&text("2GiB"));
    exporter.until("an unlisted process", |page| (device_processes(page)? == 1.0).then_some(()));
    assert_eq!(
        exporter.page().value("bailiff_gpu_memory_unaccounted_bytes", &[]),
        Some(2.0 * f64::from(1 << 30))
    );
}

#[test]
fn reused_pid_starts_new_counters() {
    let procfs = Procfs::new().with(&Process::new(4100));
    let scenario = Scenario::new(&scenario(&["pid: 4100, used: 1GiB".into()]));
    let path = procfs.path().to_str().unwrap().to_owned();
    let exporter = Exporter::start(&scenario, &["--procfs", &path]);
    let idle = |page: &Page| page.value("bailiff_process_gpu_idle_seconds", &[("pid", "4100")]);
    exporter.until("idle for a while", |page| (idle(page)? > 0.5).then_some(()));
    let stat = "4100 (another) S 1 4100 4100 0 -1 0 0 0 0 0 1 1 0 0 20 0 1 0 200 0 0\n";
    procfs.write("4100/stat", stat);
    exporter.until("another process", |page| {
        (page.label("bailiff_process_info", &[("pid", "4100")], "comm")? == "another").then_some(())
    });
    let since = idle(&exporter.page()).unwrap_or_default();
    assert!(since < 0.5, "the new process is reported as idle for {since} s");
}

#[test]
fn largest_holders_are_listed_and_the_rest_summed() {
    let scenario = Scenario::named("8x100");
    let exporter = Exporter::start(&scenario, &["--max-processes", "10"]);
    let page = exporter.next();
    let shown = page.all("bailiff_process_state", &[]).count();
    assert_eq!(shown, 10);
    let sum = |page: &Page, name: &str| page.all(name, &[]).map(|(_, value)| value).sum::<f64>();
    let parts: f64 = page
        .all("bailiff_gpu_memory_parts_bytes", &[])
        .filter(|(labels, _)| matches!(labels["part"].as_str(), "holders" | "dead_pids"))
        .map(|(_, value)| value)
        .sum();
    let all = sum(&page, "bailiff_process_gpu_memory_bytes")
        + sum(&page, "bailiff_gpu_other_processes_memory_bytes");
    assert_eq!(all, parts);
    assert_eq!(sum(&page, "bailiff_gpu_processes"), 800.0);
    assert!(sum(&page, "bailiff_processes_dropped_total") > 0.0);
}

#[test]
fn memory_sums_match_on_every_gpu() {
    for name in ["busy", "idle", "8x4", "mps", "dead-pid", "graphics"] {
        let scenario = Scenario::named(name);
        let exporter = Exporter::start(&scenario, &[]);
        let page = exporter.next();
        for (labels, total) in page.all("bailiff_gpu_memory_total_bytes", &[]) {
            let uuid = labels["gpu_uuid"].as_str();
            let of_gpu = [("gpu_uuid", uuid)];
            let parts: Vec<f64> =
                page.all("bailiff_gpu_memory_parts_bytes", &of_gpu).map(|(_, bytes)| bytes).collect();
            if !parts.is_empty() {
                assert_eq!(parts.iter().sum::<f64>(), total, "{name} {uuid}");
            }
        }
    }
}
