//! The long text of a report: for each GPU the seven lines of `cuda_info.sh`, then its memory breakdown and
//! holders.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bailiff_exposition::terminal::{Tone, line, wrapped};
use bailiff_snapshot::stuck::{REPORTED_UNATTRIBUTED, UNRELEASED_FREED_BY};
use bailiff_snapshot::{CgroupMemory, PidNamespace, Stuck, XidClass};

use super::collect::SeenBy;
use super::figures::{Style, UNKNOWN, ctime, or_unknown, span};
use super::lease_state::queue_text;
use super::report::{GpuReport, Holder, InfoReport, Memory};
use super::rows;

/// The maximum number of stuck holders listed per kind.
const MAX_NAMED: usize = 3;

/// The column at which values begin.
const INDENT: usize = 25;

pub(crate) fn pair(name: &str, value: &str) -> String {
    format!("{name:<20}     {value}")
}

/// Formats a name and a text that may be wrapped.
pub(crate) fn wrapped_pair(name: &str, text: &str, style: &Style, tone: Tone) -> Vec<String> {
    let parts = wrapped(&line(text), style.width.saturating_sub(INDENT).max(INDENT));
    let names = std::iter::once(name).chain(std::iter::repeat(""));
    parts.iter().zip(names).map(|(part, name)| pair(name, &tone.paint(part, style.colors))).collect()
}

pub(crate) fn render(report: &InfoReport, style: &Style) -> Vec<String> {
    let mut lines = Vec::new();
    for gpu in &report.gpus {
        lines.extend(gpu_lines(report, gpu, style));
        lines.push(String::new());
    }
    let users = users(report, style);
    if !users.is_empty() {
        lines.extend(users);
        lines.push(String::new());
    }
    lines.extend(notes(report, style));
    lines
}

fn gpu_lines(report: &InfoReport, gpu: &GpuReport, style: &Style) -> Vec<String> {
    let mut lines = head(report, gpu, style);
    lines.extend(memory_lines(gpu, style));
    lines.extend(state_lines(gpu, style));
    lines.extend(limit_lines(gpu, style));
    lines.extend(rows::holders(gpu, style));
    lines.extend(stuck_lines(gpu, style));
    lines.extend(xid_lines(gpu, style));
    lines.extend(notebook_lines(gpu, style));
    lines.extend(rows::device_processes(gpu, style));
    lines
}

/// Returns the seven lines that `cuda_info.sh` prints for a GPU.
pub(crate) fn head(report: &InfoReport, gpu: &GpuReport, style: &Style) -> Vec<String> {
    let memory =
        |part: fn(&Memory) -> u64| or_unknown(gpu.memory.as_ref(), |memory| style.units.size(part(memory)));
    let capability = or_unknown(gpu.compute_capability, |(major, minor)| format!("({major}, {minor})"));
    vec![
        pair("timestamp", &ctime(report.wall_ms, &style.zone)),
        pair("tag", &line(&report.tag)),
        pair("name", &style.colors.title(&line(gpu.name.as_deref().unwrap_or(UNKNOWN)))),
        pair("compute capability", &capability),
        pair("memory total", &memory(|memory| memory.observed.total)),
        pair("memory used", &memory(|memory| memory.observed.used)),
        pair("memory free", &memory(|memory| memory.observed.free)),
    ]
}

fn memory_lines(gpu: &GpuReport, style: &Style) -> Vec<String> {
    let Some(memory) = &gpu.memory else {
        let why = gpu.memory_unknown().map(|why| wrapped_pair("memory unknown", why, style, Tone::Warn));
        return why.unwrap_or_default();
    };
    let known = |part: Option<u64>| or_unknown(part, |bytes| style.units.size(bytes));
    let mut lines = vec![pair("memory reserved", &known(memory.observed.reserved))];
    if gpu.instances.is_some() {
        lines.push(pair("memory held", "see the MIG instances"));
        return lines;
    }
    lines.push(pair("memory computing", &known(memory.computing)));
    lines.push(pair("memory graphics", &known(memory.graphics)));
    if memory.observed.dead_pids.is_some_and(|bytes| bytes > 0) {
        let dead = format!("{}, held by processes that do not exist", known(memory.observed.dead_pids));
        lines.push(pair("memory dead PIDs", &style.colors.bad(&dead)));
    }
    if memory.observed.other_namespaces.is_some_and(|bytes| bytes > 0) {
        let hidden =
            format!("{}, held by processes in other PID namespaces", known(memory.observed.other_namespaces));
        lines.push(pair("memory other PID ns", &hidden));
    }
    lines.push(pair("memory unaccounted", &unaccounted(gpu, memory, style)));
    if let Some(bytes @ 1..) = memory.observed.unreleased {
        let text = format!(
            "{}, not released after its holders exited; fix: {UNRELEASED_FREED_BY}",
            style.units.size(bytes)
        );
        lines.extend(wrapped_pair("memory unreleased", &text, style, Tone::Bad));
    }
    lines
}

/// Returns the stuck and orphaned holders by kind, and how to free their memory.
fn stuck_lines(gpu: &GpuReport, style: &Style) -> Vec<String> {
    let mut kinds: BTreeMap<Stuck, Vec<&Holder>> = BTreeMap::new();
    for holder in gpu.holders.iter().flatten() {
        if let Some(kind) = holder.stuck() {
            kinds.entry(kind).or_default().push(holder);
        }
    }
    let kind_lines = |(kind, holders): (Stuck, Vec<&Holder>)| {
        let label = |holder: &&Holder| match holder.ppid.filter(|_| kind == Stuck::Zombie) {
            Some(parent) => format!("{} (child of {parent})", holder.pid),
            None => holder.pid.to_string(),
        };
        let named: Vec<String> = holders.iter().take(MAX_NAMED).map(label).collect();
        let rest = holders.len().saturating_sub(MAX_NAMED);
        let rest = if rest > 0 { format!(" and {rest} more") } else { String::new() };
        let text = format!("{}{rest}: {}; fix: {}", named.join(", "), kind.words(), kind.freed_by());
        wrapped_pair("stuck", &text, style, Tone::Warn)
    };
    kinds.into_iter().flat_map(kind_lines).collect()
}

/// Returns the notebooks of the listed holders, as their environments name them.
pub(super) fn notebook_lines(gpu: &GpuReport, style: &Style) -> Vec<String> {
    let holders = gpu.holders.iter().flatten().take(style.max_holders);
    let lines = holders.filter_map(|holder| {
        let text = format!("{}: {}", holder.pid, holder.notebook.as_ref()?);
        Some(wrapped_pair("notebook", &text, style, Tone::Plain))
    });
    lines.flatten().collect()
}

/// Returns the holders with Xid errors of their own.
fn xid_lines(gpu: &GpuReport, style: &Style) -> Vec<String> {
    let holders = gpu.holders.iter().flatten().filter(|holder| !holder.xids.is_empty());
    let lines = holders.take(MAX_NAMED).flat_map(|holder| {
        let text = format!("{}: {}", holder.pid, xids(&holder.xids));
        wrapped_pair("errors of process", &text, style, Tone::Warn)
    });
    lines.collect()
}

fn xids(xids: &BTreeMap<u64, u64>) -> String {
    let xid = |(xid, count): (&u64, &u64)| format!("{count} x Xid {xid} ({})", XidClass::of(*xid).words());
    xids.iter().map(xid).collect::<Vec<_>>().join(", ")
}

/// Formats the unattributed memory, with a hint if it is large.
fn unaccounted(gpu: &GpuReport, memory: &Memory, style: &Style) -> String {
    let is_large = memory.observed.unaccounted.is_some_and(|bytes| bytes >= REPORTED_UNATTRIBUTED);
    let text = or_unknown(memory.observed.unaccounted, |bytes| style.units.signed(bytes));
    match (is_large, &gpu.device_processes) {
        (true, None) => style.colors.odd(&format!("{text}, not held by any listed process; see --who")),
        (true, Some(_)) => style.colors.odd(&format!("{text}, not held by any listed process; see below")),
        (false, _) => text,
    }
}

/// Returns the GPU's identity, utilization and lease, or its fault.
fn state_lines(gpu: &GpuReport, style: &Style) -> Vec<String> {
    let uuid = gpu.uuid.as_ref().map(|uuid| format!(", {}", line(uuid))).unwrap_or_default();
    let mut lines = vec![pair("gpu", &format!("{}{uuid}", line(&gpu.index)))];
    if let Some(fault) = &gpu.fault {
        let text = format!("{}; see `bailiff doctor`", fault_text(fault));
        lines.extend(wrapped_pair("fault", &text, style, Tone::Bad));
        return lines;
    }
    lines.push(pair("utilization", &or_unknown(gpu.utilization, |percent| format!("{percent}%"))));
    if !gpu.activity.is_empty() {
        let engine = |(engine, ratio): (&String, &f64)| {
            format!("{} {:.1}%", line(engine).replace('_', " "), ratio * 100.0)
        };
        let text = gpu.activity.iter().map(engine).collect::<Vec<_>>().join(", ");
        lines.extend(wrapped_pair("activity", &text, style, Tone::Plain));
    }
    if let Some(needs) = gpu.needs() {
        lines.extend(wrapped_pair("recovery action", &needs, style, Tone::Bad));
    }
    if !gpu.xids.is_empty() {
        lines.extend(wrapped_pair("errors", &xids(&gpu.xids), style, Tone::Warn));
    }
    let mode = gpu.compute_mode.as_ref().map(|mode| line(mode).replace('_', " "));
    lines.push(pair("compute mode", mode.as_deref().unwrap_or(UNKNOWN)));
    if let Some(lease) = &gpu.lease {
        lines.extend(wrapped_pair("lease", &lease.text(), style, Tone::Plain));
    }
    lines
}

/// Returns the memory limits of cgroups.
fn limit_lines(gpu: &GpuReport, style: &Style) -> Vec<String> {
    let text = |cgroup: &CgroupMemory| {
        let size = |bytes| or_unknown(bytes, |bytes| style.units.size(bytes));
        let soft = cgroup.soft.map(|bytes| format!(", {} guaranteed", style.units.size(bytes)));
        let soft = soft.unwrap_or_default();
        let hard = cgroup.hard.map_or_else(|| "none".to_owned(), |bytes| style.units.size(bytes));
        format!(
            "{hard}{soft}, {} used, cgroup {} ({})",
            size(cgroup.used),
            cgroup.cgroup,
            cgroup.backend.name()
        )
    };
    let limited = gpu.cgroups.iter().filter(|cgroup| cgroup.has_own_limit());
    limited.flat_map(|cgroup| wrapped_pair("memory limit", &text(cgroup), style, Tone::Plain)).collect()
}

pub(crate) fn fault_text(fault: &str) -> String {
    match fault {
        "library_not_found" => "NVML library not found",
        "driver_not_loaded" => "the NVIDIA kernel module is not loaded",
        "version_mismatch" => "the NVML library and the kernel module have different versions",
        "no_devices" => "the driver reports no GPUs",
        "timeout" => "the driver did not respond",
        "starting" => "the driver is still being opened",
        "lost" => "the GPU has fallen off the bus",
        "not_permitted" => "permission denied",
        "worker_failed" => "the helper process that queries the driver has crashed",
        "error" => "the driver returned an error",
        other => return line(other),
    }
    .to_owned()
}

/// Returns the memory per user, unless all holders of a single GPU are listed anyway.
fn users(report: &InfoReport, style: &Style) -> Vec<String> {
    let mut users: BTreeMap<String, rows::UserUsage> = BTreeMap::new();
    let mut gpus = BTreeSet::new();
    for gpu in &report.gpus {
        for holder in gpu.holders.iter().flatten() {
            gpus.insert(&gpu.index);
            let owner = owner(holder);
            users.entry(owner).or_default().add(&gpu.index, holder);
        }
    }
    let all_listed = gpus.len() < 2
        && report.gpus.iter().all(|gpu| gpu.holders.iter().flatten().count() <= style.max_holders);
    if all_listed { Vec::new() } else { rows::users(users, style) }
}

fn owner(holder: &Holder) -> String {
    holder.owner().unwrap_or_else(|| UNKNOWN.to_owned())
}

/// Returns the source of the data, and what is unavailable.
pub(crate) fn notes(report: &InfoReport, style: &Style) -> Vec<String> {
    let age = span(Duration::from_millis(report.age_ms));
    let interval = span_exact(Duration::from_millis(report.interval_ms));
    let by = match report.seen_by {
        SeenBy::Exporter => format!("bailiff-exporter, {age} ago, sampling every {interval}"),
        SeenBy::Itself => format!("this command, sampled over {interval}"),
    };
    let mut lines = vec![pair("source", &by)];
    if let Some(queue) = report.queue.as_deref().and_then(queue_text) {
        lines.extend(wrapped_pair("waiting", &queue, style, Tone::Plain));
    }
    for (source, fault) in report.down() {
        let message = report.driver_message.as_deref().filter(|_| source == "nvml");
        let message = message.map(|message| format!(" ({message})")).unwrap_or_default();
        let text = format!("{source}: {}{message}", fault_text(fault));
        lines.extend(wrapped_pair("unavailable", &text, style, Tone::Bad));
    }
    if let Some(error) = &report.error {
        lines.extend(wrapped_pair("unavailable", &format!("leases: {error}"), style, Tone::Warn));
    }
    if report.pid_namespace != PidNamespace::Host && report.total_failure().is_none() {
        lines.push(pair("unavailable", "processes: this is not the host's PID namespace"));
    }
    if report.device_processes_failed {
        lines.push(pair("unavailable", "processes with the device open: the scan failed"));
    }
    if let Some(age) = report.device_processes_age_ms {
        lines.push(pair("open files", &format!("scanned {} ago", span(Duration::from_millis(age)))));
    }
    if let Some(unreadable) = report.unreadable.filter(|unreadable| *unreadable > 0) {
        let text =
            format!("open files of {unreadable} processes: permission denied (use sudo), or too many files");
        lines.extend(wrapped_pair("unavailable", &text, style, Tone::Plain));
    }
    lines
}

/// Formats a duration, with milliseconds if it has any.
fn span_exact(time: Duration) -> String {
    if time.subsec_millis() == 0 { span(time) } else { format!("{time:?}") }
}
