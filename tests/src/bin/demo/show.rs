//! The demo's output: GPUs with their holders, and metrics from a page.

use std::collections::BTreeMap;
use std::io::{self, IsTerminal};

use bailiff_snapshot::wire::{self, Snapshot};
use end_to_end::exporter::Exporter;
use end_to_end::http;

/// Prints the metrics that a dashboard would show.
pub(crate) fn print_numbers(exporter: &Exporter, expected: &[&str]) {
    println!("Prometheus gets:\n");
    let answer = http::get(exporter.address(), "/metrics", &[]).expect("the exporter responds");
    for line in answer.text().lines().filter(|line| expected.iter().any(|name| line.starts_with(name))) {
        println!("  {line}");
    }
}

fn holder_of(snapshot: &Snapshot, pid: u32) -> Option<&wire::Holder> {
    snapshot.gpus.iter().flat_map(|gpu| &gpu.holders).find(|holder| holder.pid == pid)
}

pub(crate) fn utilization(snapshot: &Snapshot, pid: u32) -> Option<u32> {
    holder_of(snapshot, pid)?.utilization
}

pub(crate) fn idle_ms(snapshot: &Snapshot, pid: u32) -> u64 {
    holder_of(snapshot, pid).map_or(0, |holder| holder.idle_ms)
}

/// Prints GPUs and holders in 80 columns.
pub(crate) fn show(snapshot: &Snapshot) {
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
    // Escaped, because a process name can contain control characters.
    let name = facts.map_or("?".into(), |facts| facts.comm.escape_debug().to_string());
    let memory = holder.memory.map_or("?".into(), gib);
    let used = holder.utilization.map_or("?".into(), |percent| format!("{percent} %"));
    let idle = match holder.utilization {
        Some(_) => format!("{} s", holder.idle_ms / 1000),
        None => "?".into(),
    };
    let state = process.map_or("?", |process| &process.state);
    println!("  {:>9} {user:<12.12} {name:<16.16} {memory:>9} {used:>6} {idle:>7}  {state}", holder.pid);
}

#[expect(clippy::cast_precision_loss, reason = "one digit after the point is shown")]
pub(crate) fn gib(bytes: u64) -> String {
    format!("{:.1} GiB", bytes as f64 / f64::from(1 << 30))
}
