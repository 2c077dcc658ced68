//! `make demo`: shows all features in a minute. With an NVIDIA driver it observes the real GPUs. Without
//! one, the fake driver reports which of this demo's own real processes hold and use GPUs.
#![expect(
    clippy::disallowed_methods,
    clippy::expect_used,
    reason = "a demo starts programs, reads its own arguments, and may fail loudly"
)]

mod enforcer;
mod quota;
mod show;

use std::io::{self, BufRead, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};

use end_to_end::exporter::{Exporter, command};
use end_to_end::fake::Scenario;
use end_to_end::redis::Redis;
use end_to_end::ticks::Ticks;
use end_to_end::wait::until;
use end_to_end::{leases, programs};
use rustix::process::{Signal, kill_process};

use crate::enforcer::Enforcer;
use crate::show::{idle_ms, print_numbers, show, utilization};

const TICK: &str = "1s";
/// If the demo runs as root, its processes run as user nobody, because the enforcer protects root's
/// processes.
const NOBODY_UID: u32 = 65534;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.as_slice() {
        [] => demo(false),
        [flag] if flag == "--stay" => demo(true),
        [role, name, device] if role == "holder" => hold(name, device),
        [role, file] if role == "notice" => take_notice(file),
        _ => {
            eprintln!("usage: demo [--stay]");
            ExitCode::from(64)
        }
    }
}

/// Runs as a process in its own session with a device file open, until the demo kills it.
fn hold(name: &str, device: &str) -> ExitCode {
    let device = std::fs::File::open(device);
    let named = std::fs::write("/proc/self/comm", name);
    let session = rustix::process::setsid();
    if rustix::process::geteuid().is_root() {
        let dropped = rustix::thread::set_thread_gid(rustix::process::Gid::from_raw(NOBODY_UID))
            .and_then(|()| rustix::thread::set_thread_uid(rustix::process::Uid::from_raw(NOBODY_UID)));
        dropped.expect("root can become user nobody");
    }
    println!("ready");
    let mut nothing = Vec::new();
    let held = io::stdin().read_to_end(&mut nothing);
    let well = device.is_ok() && named.is_ok() && session.is_ok() && held.is_ok();
    if well { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// The program that the enforcer runs to notify the owner. It reads the notification as JSON on standard
/// input.
fn take_notice(file: &str) -> ExitCode {
    let mut notice = String::new();
    let input = io::stdin().read_to_string(&mut notice).and_then(|_| {
        let mut all = std::fs::OpenOptions::new().create(true).append(true).open(file)?;
        writeln!(all, "{}", notice.trim_end())
    });
    if input.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn demo(stays: bool) -> ExitCode {
    let directory = tempfile::tempdir().expect("a temporary directory");
    if Path::new("/proc/driver/nvidia/version").exists() {
        println!(
            "This machine has an NVIDIA driver. It reports this of its GPUs, in five samples, one each {TICK}:\n"
        );
        watch_real_gpus(&directory.path().join("real.sock"));
        println!(
            "\nThe next part terminates a process, so it uses a fake driver and processes of its own.\n"
        );
    } else {
        println!(
            "This machine has no NVIDIA driver, so the demo uses a fake driver. The processes are real.\n"
        );
    }
    run_demo(directory.path(), stays);
    ExitCode::SUCCESS
}

fn watch_real_gpus(stream: &Path) {
    let mut command = Command::new(programs::exporter());
    let exporter = start(&mut command, stream);
    let mut ticks = Ticks::of(stream);
    for _ in 0..5 {
        show(&ticks.tick());
    }
    print_numbers(&exporter, &USE);
}

/// Returns a scenario in which both use the first GPU.
fn first_gpu(trainer: &Holder, server: &Holder) -> String {
    format!(
        "sampling_period: 100ms\ngpus:\n  - processes:\n      - {{pid: {}, used: 96GiB, sm: 93, memory: 40}}\n      \
         - {{pid: {}, used: 18GiB, sm: 12}}\n",
        trainer.pid(),
        server.pid()
    )
}

/// Explains when a process counts as idle.
const IDLE: &str = "\
The notebook stops computing, and keeps its 40 GiB. The driver no longer reports its utilization, which
alone does not prove that it is idle. Samples of the GPU itself in the same time do:";

fn run_demo(directory: &Path, stays: bool) {
    let device = directory.join("nvidia0");
    std::fs::write(&device, "").expect("a stand-in for a device file");
    let trainer = Holder::start("trainer", &device);
    let mut notebook = Holder::start("notebook", &device);
    let server = Holder::start("inference", &device);
    let pid = notebook.pid();
    let working = first_gpu(&trainer, &server);
    let computing = |notebook_use: &str| {
        format!("{working}  - processes:\n      - {{pid: {pid}, used: 40GiB{notebook_use}}}\n")
    };
    let scenario = Scenario::new(&computing(", sm: 71"));
    let redis = Redis::start();
    let mut command = command(&scenario);
    command
        .args(["--trust-pid-namespace", "--lease.redis", &redis.address(), "--quota.dir"])
        .arg(directory.join("quota"));
    let stream = directory.join("stream.sock");
    let exporter = start(&mut command, &stream);
    let mut ticks = Ticks::of(&stream);
    println!("Three processes hold memory of two GPUs, and all of them compute:\n");
    show(&ticks.find(|snapshot| utilization(snapshot, pid) == Some(71)));

    let enforcer = Enforcer::start(directory, &redis);
    scenario.set(&computing(""));
    println!("{IDLE}\n");
    show(&ticks.find(|snapshot| idle_ms(snapshot, pid) >= 4_000));
    println!("After five idle samples, the rule matches. The process is flagged, its owner is notified:\n");
    println!("  {}\n", enforcer.notice(0));
    enforcer.explain(pid);

    // The driver frees the memory of a process that has exited.
    notebook.ended();
    scenario.set(&format!("{working}  - processes: []\n"));
    println!("It stayed idle, so the enforcer sent SIGTERM. It has exited, and its memory is free:\n");
    show(&ticks.find(|snapshot| snapshot.processes.iter().all(|process| process.pid != pid)));
    println!("  {}\n", enforcer.notice(1));
    println!("The audit log has all of that. The action was written to disk before it began:\n");
    enforcer.print_audit();
    println!();
    print_numbers(&exporter, &USE);
    enforcer.print_numbers();
    let second = show_leases(&redis, &enforcer);
    end_the_lease(second, &exporter, &mut ticks);
    quota::limit(directory, (&exporter, &scenario));
    if stays {
        scenario.set(&format!("{working}  - processes: []\n"));
        stay(&exporter, &enforcer);
    }
}

fn end_the_lease(job: Child, exporter: &Exporter, ticks: &mut Ticks) {
    for _ in 0..3 {
        let _ = ticks.tick();
    }
    print_numbers(exporter, &LEASES);
    leases::end(job, Signal::TERM);
}

fn stay(exporter: &Exporter, enforcer: &Enforcer) {
    println!("\nThe other two processes continue until you press Enter:");
    println!("  exporter http://{}/, enforcer http://{}/", exporter.address(), enforcer.address());
    io::stdin().read_line(&mut String::new()).expect("a standard input");
}

/// Metrics about use and leases, as in a dashboard.
const USE: [&str; 3] =
    ["bailiff_user_gpu_memory_bytes{", "bailiff_held_gpu_seconds_total{", "bailiff_idle_gpu_seconds_total{"];
const LEASES: [&str; 3] =
    ["bailiff_lease_gpus{", "bailiff_lease_events_total{", "bailiff_lease_queue_length"];

/// Kills a lease holder, shows that its GPU is freed for the waiting job, and returns that job.
fn show_leases(redis: &Redis, enforcer: &Enforcer) -> Child {
    println!("\nThe free GPU is leased next. Two jobs request it, so one waits:\n");
    show_lease(redis, &["init", "--gpus", "1"]);
    let [mut first, second] = ["one", "two"].map(|note| job(redis, note));
    let lost = leases::command_of(&first);
    show_lease(redis, &["list"]);
    println!("Job one is killed together with its `bailiff run`, so no process is left to release its GPU.");
    println!(
        "The enforcer finds that the holder has exited, by pid, start time and boot, and releases the lease:\n"
    );
    first.kill().expect("our own child can be ended");
    first.wait().expect("our own child can be waited for");
    kill_process(lost, Signal::KILL).expect("the command can be killed");
    enforcer.print_audit_of("reap_dead");
    until("the second job to have it", || {
        let list = leases::json_of(redis, &["list", "--json"]);
        (list["gpus"][0]["lease"]["note"] == "two").then_some(())
    });
    println!("\nJob two has the GPU:\n");
    show_lease(redis, &["list"]);
    show_lease(redis, &["log", "-n", "3"]);
    second
}

/// Starts a job that waits for a GPU and then sleeps. Returns it once it is in the queue.
fn job(redis: &Redis, note: &str) -> Child {
    let mut command = leases::bailiff(redis, &["run", "--note", note, "--", "sleep", "infinity"]);
    let job = command.spawn().expect("bailiff starts");
    until("its place in the queue", || {
        let queue = leases::json_of(redis, &["list", "--json"]);
        queue.to_string().contains(&format!("\"note\":\"{note}\"")).then_some(())
    });
    job
}

fn show_lease(redis: &Redis, args: &[&str]) {
    println!("$ bailiff lease {}", args.join(" "));
    for line in leases::stdout_of(&leases::run(redis, args)).lines() {
        println!("  {line}");
    }
    println!();
}

fn start(command: &mut Command, stream: &Path) -> Exporter {
    command.args(["--interval", TICK, "--stream"]).arg(stream);
    let exporter = Exporter::spawn(std::mem::replace(command, Command::new("true")));
    println!("bailiff-exporter is up: http://{}/ for people, /metrics for Prometheus.\n", exporter.address());
    exporter
}

/// One of the demo's processes, killed when the demo ends.
struct Holder(Child);

impl Holder {
    fn start(name: &str, device: &Path) -> Self {
        let exe: PathBuf = std::env::current_exe().expect("a running program has a file");
        let mut command = Command::new(exe);
        command.args(["holder", name]).arg(device).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("the program starts");
        let mut ready = String::new();
        let out = child.stdout.take().expect("stdout is piped");
        io::BufReader::new(out).read_line(&mut ready).expect("the program prints a line when it is ready");
        Self(child)
    }

    fn pid(&self) -> u32 {
        self.0.id()
    }

    /// Waits until the process has been terminated.
    fn ended(&mut self) {
        until("the idle one to be ended", || self.0.try_wait().expect("our own child can be waited for"));
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}
