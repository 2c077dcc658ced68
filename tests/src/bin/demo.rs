//! `make demo`: the whole story in a minute. With an NVIDIA driver it watches the real GPUs; without one, the
//! fake driver says which of this demo's own processes, real ones, hold and use GPUs.
#![expect(
    clippy::disallowed_methods,
    clippy::expect_used,
    reason = "a demo starts programs, reads its own arguments, and may fail loudly"
)]

use std::collections::BTreeMap;
use std::io::{self, IsTerminal, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};

use bailiff_snapshot::wire::{self, Snapshot};
use end_to_end::beats::Beats;
use end_to_end::exporter::{Exporter, command};
use end_to_end::fake::Scenario;
use end_to_end::wait::until;
use end_to_end::{http, programs};

const BEAT: &str = "1s";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.as_slice() {
        [] => demo(),
        [role, name] if role == "holder" => hold(name),
        _ => {
            eprintln!("usage: demo");
            ExitCode::from(64)
        }
    }
}

/// A process that holds on until the demo lets go of it.
fn hold(name: &str) -> ExitCode {
    let named = std::fs::write("/proc/self/comm", name);
    let mut nothing = Vec::new();
    let held = io::stdin().read_to_end(&mut nothing);
    if named.is_ok() && held.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn demo() -> ExitCode {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let stream = folder.path().join("stream.sock");
    if Path::new("/proc/driver/nvidia/version").exists() {
        println!("An NVIDIA driver is here: this is what it says of its GPUs, for ten beats of {BEAT}.\n");
        watch_real_gpus(&stream);
    } else {
        println!("No NVIDIA driver here: the fake driver of the tests stands in; the processes are real.\n");
        tell_the_story(&stream);
    }
    ExitCode::SUCCESS
}

fn watch_real_gpus(stream: &Path) {
    let mut command = Command::new(programs::exporter());
    let exporter = start(&mut command, stream);
    let mut beats = Beats::of(stream);
    for _ in 0..10 {
        show(&beats.beat());
    }
    print_numbers(&exporter);
}

fn tell_the_story(stream: &Path) {
    let trainer = Holder::start("trainer");
    let mut notebook = Holder::start("notebook");
    let server = Holder::start("inference");
    let (trained, pid, served) = (trainer.pid(), notebook.pid(), server.pid());
    let computing = |notebook_use: &str| {
        format!(
            "sampling_period: 100ms\ngpus:\n  - processes:\n      - {{pid: {trained}, used: 96GiB, sm: 93, memory: 40}}\n      \
             - {{pid: {served}, used: 18GiB, sm: 12}}\n  \
             - processes:\n      - {{pid: {pid}, used: 40GiB{notebook_use}}}\n"
        )
    };
    let scenario = Scenario::new(&computing(", sm: 71"));
    let mut command = command(&scenario);
    command.arg("--trust-pid-namespace");
    let exporter = start(&mut command, stream);
    let mut beats = Beats::of(stream);
    println!("Three processes hold two GPUs, and all of them work:\n");
    show(&beats.find(|snapshot| utilization(snapshot, pid) == Some(71)));

    scenario.set(&computing(""));
    println!(
        "The notebook's owner goes home. It keeps its 40 GiB and computes nothing; the driver now says\nnothing of it, and that alone is no proof. It is, once the GPU's own sampler was seen alive:\n"
    );
    show(&beats.find(|snapshot| idle_ms(snapshot, pid) >= 5_000));

    notebook.end();
    let text = computing("");
    let without: Vec<&str> = text.lines().filter(|line| !line.contains(&format!("pid: {pid},"))).collect();
    scenario.set(&without.join("\n"));
    println!("Its process ends. At the next beat its series are gone and its memory is free again:\n");
    show(&beats.find(|snapshot| snapshot.processes.iter().all(|process| process.pid != pid)));
    print_numbers(&exporter);
}

fn start(command: &mut Command, stream: &Path) -> Exporter {
    command.args(["--interval", BEAT, "--stream"]).arg(stream);
    let exporter = Exporter::spawn(std::mem::replace(command, Command::new("true")));
    println!("bailiff-exporter is up: http://{}/ for people, /metrics for Prometheus.\n", exporter.address());
    exporter
}

/// The figures that a dashboard would show.
fn print_numbers(exporter: &Exporter) {
    println!("What Prometheus sees of that:\n");
    let answer = http::get(exporter.address(), "/metrics", &[]).expect("the exporter answers");
    let wanted = [
        "bailiff_user_gpu_memory_bytes{",
        "bailiff_held_gpu_seconds_total{",
        "bailiff_idle_gpu_seconds_total{",
    ];
    for line in answer.text().lines().filter(|line| wanted.iter().any(|name| line.starts_with(name))) {
        println!("  {line}");
    }
}

/// One of the demo's processes; it ends with the demo.
struct Holder(Child);

impl Holder {
    fn start(name: &str) -> Self {
        let ours: PathBuf = std::env::current_exe().expect("a running program has a file");
        let child =
            Command::new(ours).args(["holder", name]).stdin(Stdio::piped()).spawn().expect("it starts");
        let comm = format!("/proc/{}/comm", child.id());
        until("its name", || (std::fs::read_to_string(&comm).ok()?.trim() == name).then_some(()));
        Self(child)
    }

    fn pid(&self) -> u32 {
        self.0.id()
    }

    fn end(&mut self) {
        drop(self.0.stdin.take());
        self.0.wait().expect("our own child can be waited for");
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        self.end();
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
