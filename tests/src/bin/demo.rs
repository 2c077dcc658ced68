//! `make demo`: the whole story in a minute. With an NVIDIA driver it watches the real GPUs; without one, the
//! fake driver says which of this demo's own processes, real ones, hold and use GPUs.
#![expect(
    clippy::disallowed_methods,
    clippy::expect_used,
    reason = "a demo starts programs, reads its own arguments, and may fail loudly"
)]

use std::collections::BTreeMap;
use std::io::{self, BufRead, IsTerminal, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};

use bailiff_snapshot::wire::{self, Snapshot};
use end_to_end::beats::Beats;
use end_to_end::exporter::{Exporter, command};
use end_to_end::fake::Scenario;
use end_to_end::redis::Redis;
use end_to_end::wait::until;
use end_to_end::{http, leases, programs};
use rustix::process::{Signal, kill_process};

const BEAT: &str = "1s";
/// Where root runs the demo, its processes are nobody's: the enforcer leaves root's alone.
const NOBODY: u32 = 65534;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.as_slice() {
        [] => demo(),
        [role, name, device] if role == "holder" => hold(name, device),
        [role, file] if role == "notice" => take_notice(file),
        _ => {
            eprintln!("usage: demo");
            ExitCode::from(64)
        }
    }
}

/// A process of a session of its own, with a device file open, that holds on until the demo lets go of it.
fn hold(name: &str, device: &str) -> ExitCode {
    let device = std::fs::File::open(device);
    let named = std::fs::write("/proc/self/comm", name);
    let session = rustix::process::setsid();
    if rustix::process::geteuid().is_root() {
        let dropped = rustix::thread::set_thread_gid(rustix::process::Gid::from_raw(NOBODY))
            .and_then(|()| rustix::thread::set_thread_uid(rustix::process::Uid::from_raw(NOBODY)));
        dropped.expect("root may become nobody");
    }
    println!("ready");
    let mut nothing = Vec::new();
    let held = io::stdin().read_to_end(&mut nothing);
    let well = device.is_ok() && named.is_ok() && session.is_ok() && held.is_ok();
    if well { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// The program that the enforcer runs to tell the owner: a notice comes as JSON on standard input.
fn take_notice(file: &str) -> ExitCode {
    let mut notice = String::new();
    let told = io::stdin().read_to_string(&mut notice).and_then(|_| {
        let mut all = std::fs::OpenOptions::new().create(true).append(true).open(file)?;
        writeln!(all, "{}", notice.trim_end())
    });
    if told.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn demo() -> ExitCode {
    let folder = tempfile::tempdir().expect("a temporary folder");
    if Path::new("/proc/driver/nvidia/version").exists() {
        println!("An NVIDIA driver is here: this is what it says of its GPUs, for five beats of {BEAT}.\n");
        watch_real_gpus(&folder.path().join("real.sock"));
        println!("\nWhat comes now ends a process, so it is not done to yours: a fake driver stands in.\n");
    } else {
        println!("No NVIDIA driver here: the fake driver of the tests stands in; the processes are real.\n");
    }
    tell_the_story(folder.path());
    ExitCode::SUCCESS
}

fn watch_real_gpus(stream: &Path) {
    let mut command = Command::new(programs::exporter());
    let exporter = start(&mut command, stream);
    let mut beats = Beats::of(stream);
    for _ in 0..5 {
        show(&beats.beat());
    }
    print_numbers(&exporter, &USE);
}

fn tell_the_story(folder: &Path) {
    let device = folder.join("nvidia0");
    std::fs::write(&device, "").expect("a stand-in for a device file");
    let trainer = Holder::start("trainer", &device);
    let mut notebook = Holder::start("notebook", &device);
    let server = Holder::start("inference", &device);
    let (trained, pid, served) = (trainer.pid(), notebook.pid(), server.pid());
    let working = format!(
        "sampling_period: 100ms\ngpus:\n  - processes:\n      - {{pid: {trained}, used: 96GiB, sm: 93, memory: 40}}\n      \
         - {{pid: {served}, used: 18GiB, sm: 12}}\n"
    );
    let computing = |notebook_use: &str| {
        format!("{working}  - processes:\n      - {{pid: {pid}, used: 40GiB{notebook_use}}}\n")
    };
    let scenario = Scenario::new(&computing(", sm: 71"));
    let redis = Redis::start();
    let mut command = command(&scenario);
    command.args(["--trust-pid-namespace", "--lease.redis", &redis.address()]);
    let stream = folder.join("stream.sock");
    let exporter = start(&mut command, &stream);
    let mut beats = Beats::of(&stream);
    println!("Three processes hold two GPUs, and all of them work:\n");
    show(&beats.find(|snapshot| utilization(snapshot, pid) == Some(71)));

    let enforcer = Enforcer::start(folder, &redis);
    scenario.set(&computing(""));
    println!(
        "The notebook's owner goes home. It keeps its 40 GiB and computes nothing; the driver now says\nnothing of it, and that alone is no proof. It is, once the GPU's own sampler was seen alive:\n"
    );
    show(&beats.find(|snapshot| idle_ms(snapshot, pid) >= 4_000));
    println!("Five samples say so, and the rule matches. It is flagged, and its owner is told:\n");
    println!("  {}\n", enforcer.notice(0));
    enforcer.explain(pid);

    // As the driver would: the memory of a process that has ended is free.
    notebook.ended();
    scenario.set(&format!("{working}  - processes: []\n"));
    println!("Nothing changed, so it was sent SIGTERM, and was gone. Its memory is seen to come back:\n");
    show(&beats.find(|snapshot| snapshot.processes.iter().all(|process| process.pid != pid)));
    println!("  {}\n", enforcer.notice(1));
    println!("All of it is in the audit log; the deed itself was written and synced before it was done:\n");
    enforcer.print_audit();
    println!();
    print_numbers(&exporter, &USE);
    enforcer.print_numbers();
    hand_gpus_out(&redis, &enforcer);
    let _ = beats.beat();
    println!();
    print_numbers(&exporter, &LEASES);
}

/// What a dashboard shows of use, and of leases.
const USE: [&str; 3] =
    ["bailiff_user_gpu_memory_bytes{", "bailiff_held_gpu_seconds_total{", "bailiff_idle_gpu_seconds_total{"];
const LEASES: [&str; 3] =
    ["bailiff_lease_gpus{", "bailiff_lease_events_total{", "bailiff_lease_queue_length"];

/// A lease is lost, and its GPU freed for who waits.
fn hand_gpus_out(redis: &Redis, enforcer: &Enforcer) {
    println!("\nThe same two GPUs, handed out. Three jobs want one each, so one waits:\n");
    show_lease(redis, &["init", "--gpus", "0,1"]);
    let mut jobs: Vec<Child> = ["one", "two", "three"].map(|note| job(redis, note)).into();
    let lost = leases::heir(&jobs[0]);
    show_lease(redis, &["list"]);
    println!("Job one is killed, and so is the bailiff that ran it: nobody is left to give its GPU back.");
    println!(
        "The enforcer sees that the holder is dead, by its start time and boot and not by its pid alone:\n"
    );
    jobs[0].kill().expect("our own child can be ended");
    jobs[0].wait().expect("our own child can be waited for");
    kill_process(lost, Signal::KILL).expect("its command can be ended");
    enforcer.print_audit_of("reap");
    until("the third job to have it", || (leases::states(redis) == ["leased"; 2]).then_some(()));
    println!("\nJob three has it:\n");
    show_lease(redis, &["list"]);
    show_lease(redis, &["log", "-n", "3"]);
    for job in jobs.drain(1..) {
        leases::end(job, Signal::TERM);
    }
}

/// A job that waits for its turn, and then does nothing; there once it has its place.
fn job(redis: &Redis, note: &str) -> Child {
    let mut command = leases::bailiff(redis, &["run", "--note", note, "--", "sleep", "infinity"]);
    let job = command.spawn().expect("bailiff starts");
    until("its place", || {
        let told = leases::told(redis, &["list", "--json"]);
        told.to_string().contains(&format!("\"note\":\"{note}\"")).then_some(())
    });
    job
}

fn show_lease(redis: &Redis, words: &[&str]) {
    println!("$ bailiff lease {}", words.join(" "));
    for line in leases::said(&leases::run(redis, words)).lines() {
        println!("  {line}");
    }
    println!();
}

/// The enforcer, with one rule.
struct Enforcer {
    child: Child,
    folder: PathBuf,
}

impl Enforcer {
    fn start(folder: &Path, redis: &Redis) -> Self {
        let ours = std::env::current_exe().expect("a running program has a file");
        let notices = folder.join("notices");
        let rules = format!(
            "version: 1
notify:
  owner: {{exec: ['{}', notice, '{}']}}
leases: {{redis: '{}'}}
rules:
{RULE}",
            ours.display(),
            notices.display(),
            redis.address(),
        );
        std::fs::write(folder.join("rules.yaml"), rules).expect("rules can be written");
        println!(
            "bailiff-enforcer judges them by this rule (in real life: for 30 minutes, not for 5 samples):\n"
        );
        println!("{}", RULE.replace("    startup_grace: 0s\n", ""));
        let at = |flag: &str, name: &str| format!("{flag}={}", folder.join(name).display());
        let mut command = Command::new(programs::enforcer());
        command.arg("run").arg(folder.join("rules.yaml"));
        command.args([at("--stream", "stream.sock"), at("--control", "control.sock")]);
        command.args([at("--audit", "audit.jsonl"), at("--state", ""), at("--devices", "nvidia")]);
        command.args(["--trust-pid-namespace", "--web.listen-address=127.0.0.1:0"]);
        let log = std::fs::File::create(folder.join("enforcer.log")).expect("a log");
        let child = command.stderr(log).spawn().expect("the enforcer starts");
        let enforcer = Self { child, folder: folder.to_owned() };
        until("the enforcer's socket", || folder.join("control.sock").exists().then_some(()));
        enforcer
    }

    /// The text of a notice.
    fn notice(&self, number: usize) -> String {
        until("the notice", || {
            let all = std::fs::read_to_string(self.folder.join("notices")).ok()?;
            let notice: serde_json::Value = serde_json::from_str(all.lines().nth(number)?).ok()?;
            Some(notice["text"].as_str()?.to_owned())
        })
    }

    /// What `bailiff-enforcer explain` says.
    fn explain(&self, pid: u32) {
        println!("$ bailiff-enforcer explain --pid {pid}");
        let control = self.folder.join("control.sock");
        let mut command = Command::new(programs::enforcer());
        command.args(["explain", "--pid", &pid.to_string(), "--control"]).arg(control);
        let output = command.output().expect("explain runs");
        for line in String::from_utf8_lossy(&output.stdout).lines() {
            println!("  {line}");
        }
    }

    fn print_audit(&self) {
        let lines = until("the result", || {
            let log = std::fs::read_to_string(self.folder.join("audit.jsonl")).ok()?;
            log.contains("\"released\"").then_some(log)
        });
        for line in lines.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok()) {
            let of = |name: &str| line[name].as_str().unwrap_or_default().to_owned();
            println!("  {} {:<10} {:<10} {}", of("time"), of("step"), of("result"), of("detail"));
        }
    }

    /// The line of one of the agent's own deeds.
    fn print_audit_of(&self, step: &str) {
        let line = until("the agent's deed", || {
            let log = std::fs::read_to_string(self.folder.join("audit.jsonl")).ok()?;
            let mut lines =
                log.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
            lines.find(|line| line["step"] == step)
        });
        println!("  {line}");
    }

    fn print_numbers(&self) {
        let log = std::fs::read_to_string(self.folder.join("enforcer.log")).unwrap_or_default();
        let address = log.lines().find_map(|line| line.split("address=").nth(1)?.trim().parse().ok());
        let page = http::get(address.expect("it says where it serves"), "/metrics", &[]).expect("it answers");
        for line in page.text().lines().filter(|line| {
            line.starts_with("bailiff_kills_total") || line.starts_with("bailiff_memory_released_bytes_total")
        }) {
            println!("  {line}");
        }
    }
}

impl Drop for Enforcer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The demo's one rule.
const RULE: &str = "  - name: idle
    mode: enforce
    of: workload
    when: {gpu_util: {max: 1%}, cpu_util: {max: 5%}}
    for: {samples: 5}
    startup_grace: 0s
    then: [{flag: warning}, {notify: [owner]}, {after: {samples: 5}, terminate: {grace: 3s}}]
";

fn start(command: &mut Command, stream: &Path) -> Exporter {
    command.args(["--interval", BEAT, "--stream"]).arg(stream);
    let exporter = Exporter::spawn(std::mem::replace(command, Command::new("true")));
    println!("bailiff-exporter is up: http://{}/ for people, /metrics for Prometheus.\n", exporter.address());
    exporter
}

/// The figures that a dashboard would show.
fn print_numbers(exporter: &Exporter, wanted: &[&str]) {
    println!("What Prometheus sees of that:\n");
    let answer = http::get(exporter.address(), "/metrics", &[]).expect("the exporter answers");
    for line in answer.text().lines().filter(|line| wanted.iter().any(|name| line.starts_with(name))) {
        println!("  {line}");
    }
}

/// One of the demo's processes; it ends with the demo.
struct Holder(Child);

impl Holder {
    fn start(name: &str, device: &Path) -> Self {
        let ours: PathBuf = std::env::current_exe().expect("a running program has a file");
        let mut command = Command::new(ours);
        command.args(["holder", name]).arg(device).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("it starts");
        let mut ready = String::new();
        let out = child.stdout.take().expect("it has an output");
        io::BufReader::new(out).read_line(&mut ready).expect("it says when it is ready");
        Self(child)
    }

    fn pid(&self) -> u32 {
        self.0.id()
    }

    /// Waits for somebody to end it.
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

fn holder_of(snapshot: &Snapshot, pid: u32) -> Option<&wire::Holder> {
    snapshot.gpus.iter().flat_map(|gpu| &gpu.holders).find(|holder| holder.pid == pid)
}

fn utilization(snapshot: &Snapshot, pid: u32) -> Option<u32> {
    holder_of(snapshot, pid)?.utilization
}

fn idle_ms(snapshot: &Snapshot, pid: u32) -> u64 {
    holder_of(snapshot, pid).map_or(0, |holder| holder.idle_ms)
}

/// Prints GPUs and holders in 80 columns.
fn show(snapshot: &Snapshot) {
    let (bold, plain) = if io::stdout().is_terminal() { ("\x1b[1m", "\x1b[0m") } else { ("", "") };
    for (name, source) in snapshot.sources.iter().filter(|(_, source)| !source.up) {
        println!("  {name} is down: {}", source.fault.as_deref().unwrap_or("unknown"));
    }
    let names: BTreeMap<u32, &wire::Process> =
        snapshot.processes.iter().map(|process| (process.pid, process)).collect();
    for gpu in &snapshot.gpus {
        let memory = gpu.memory.as_ref();
        let memory =
            memory.map_or("?".into(), |memory| format!("{} of {}", gib(memory.used), gib(memory.total)));
        println!("  {bold}GPU {}  {}  {memory} used{plain}", gpu.index, gpu.name.as_deref().unwrap_or("?"));
        if !gpu.holders.is_empty() {
            println!(
                "  {:>9} {:<12} {:<16} {:>9} {:>6} {:>7}  STATE",
                "PID", "USER", "NAME", "MEMORY", "USE", "IDLE"
            );
        }
        for holder in &gpu.holders {
            show_holder(holder, names.get(&holder.pid).copied());
        }
        println!();
    }
}

fn show_holder(holder: &wire::Holder, process: Option<&wire::Process>) {
    let facts = process.and_then(|process| process.facts.as_ref());
    let user = facts.and_then(|facts| facts.user.clone()).unwrap_or_else(|| "?".into());
    // Escaped: a process may call itself anything, also in control characters.
    let name = facts.map_or("?".into(), |facts| facts.comm.escape_debug().to_string());
    let memory = holder.memory.map_or("?".into(), gib);
    let used = holder.utilization.map_or("?".into(), |percent| format!("{percent} %"));
    let idle = match holder.utilization {
        Some(_) => format!("{} s", holder.idle_ms / 1000),
        None => "?".into(),
    };
    let state = process.map_or("?", |process| process.state.as_str());
    println!("  {:>9} {user:<12.12} {name:<16.16} {memory:>9} {used:>6} {idle:>7}  {state}", holder.pid);
}

#[expect(clippy::cast_precision_loss, reason = "one digit after the point is shown")]
fn gib(bytes: u64) -> String {
    format!("{:.1} GiB", bytes as f64 / f64::from(1 << 30))
}
