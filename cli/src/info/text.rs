//! A report as text: for each GPU the seven lines of the original, then where its memory is and who holds it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bailiff_exposition::terminal::{Colors, line, wrapped};
use bailiff_snapshot::Stuck;
use bailiff_snapshot::stuck::{REPORTED_UNATTRIBUTED, UNRELEASED_FREED_BY};
use jiff::tz::TimeZone;

use super::figures::{UNKNOWN, Units, ctime, or_unknown, span};
use super::leased::waiting;
use super::look::By;
use super::report::{Gpu, Holder, Memory, Report};
use super::rows;

/// How a report is shown.
#[derive(Debug, Clone)]
pub(crate) struct Style {
    pub(crate) colors: Colors,
    /// Columns.
    pub(crate) width: usize,
    /// Holders of a GPU that are shown one by one.
    pub(crate) most: usize,
    pub(crate) zone: TimeZone,
    pub(crate) units: Units,
}

/// Stuck holders of a kind that are named.
const MOST_NAMED: usize = 3;

/// Where values begin.
const INDENT: usize = 25;

/// A value of the report, with its name before it.
pub(crate) fn pair(name: &str, value: &str) -> String {
    format!("{name:<20}     {value}")
}

/// The same of a sentence, which may need more than one line.
pub(crate) fn told(name: &str, words: &str, style: &Style, dress: impl Fn(&str) -> String) -> Vec<String> {
    let parts = wrapped(&line(words), style.width.saturating_sub(INDENT).max(INDENT));
    let names = std::iter::once(name).chain(std::iter::repeat(""));
    parts.iter().zip(names).map(|(part, name)| pair(name, &dress(part))).collect()
}

/// All of it, line by line.
pub(crate) fn text(report: &Report, style: &Style) -> Vec<String> {
    let mut lines = Vec::new();
    for gpu in &report.gpus {
        lines.extend(block(report, gpu, style));
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

/// One GPU.
fn block(report: &Report, gpu: &Gpu, style: &Style) -> Vec<String> {
    let mut lines = head(report, gpu, style);
    lines.extend(parts(gpu, style));
    lines.extend(about(gpu, style));
    lines.extend(rows::holders(gpu, style));
    lines.extend(stuck(gpu, style));
    lines.extend(rows::device_processes(gpu, style));
    lines
}

/// The seven lines of the original.
pub(crate) fn head(report: &Report, gpu: &Gpu, style: &Style) -> Vec<String> {
    let memory =
        |part: fn(&Memory) -> u64| or_unknown(gpu.memory.as_ref(), |memory| style.units.size(part(memory)));
    let capability = or_unknown(gpu.compute_capability, |(major, minor)| format!("({major}, {minor})"));
    vec![
        pair("timestamp", &ctime(report.wall_ms, &style.zone)),
        pair("tag", &line(&report.tag)),
        pair("name", &style.colors.title(&line(gpu.name.as_deref().unwrap_or(UNKNOWN)))),
        pair("compute capability", &capability),
        pair("memory total", &memory(|memory| memory.total)),
        pair("memory used", &memory(|memory| memory.used)),
        pair("memory free", &memory(|memory| memory.free)),
    ]
}

/// Where the memory is.
fn parts(gpu: &Gpu, style: &Style) -> Vec<String> {
    let Some(memory) = &gpu.memory else { return Vec::new() };
    let known = |part: Option<u64>| or_unknown(part, |bytes| style.units.size(bytes));
    let mut lines = vec![pair("memory reserved", &known(memory.reserved))];
    if gpu.instances.is_some() {
        lines.push(pair("memory held", "in its instances"));
        return lines;
    }
    lines.push(pair("memory computing", &known(memory.computing)));
    lines.push(pair("memory graphics", &known(memory.graphics)));
    if memory.dead_pids.is_some_and(|bytes| bytes > 0) {
        let dead = format!("{}, of processes that do not exist", known(memory.dead_pids));
        lines.push(pair("memory of the dead", &style.colors.bad(&dead)));
    }
    if memory.other_namespaces.is_some_and(|bytes| bytes > 0) {
        let hidden =
            format!("{}, of processes that cannot be seen from here", known(memory.other_namespaces));
        lines.push(pair("memory elsewhere", &hidden));
    }
    lines.push(pair("memory unaccounted", &unaccounted(gpu, memory, style)));
    if let Some(bytes @ 1..) = memory.unreleased {
        let words =
            format!("{}, of those who ended; what frees it: {UNRELEASED_FREED_BY}", style.units.size(bytes));
        lines.extend(told("memory unreleased", &words, style, |part| style.colors.bad(part)));
    }
    lines
}

/// Who can make no progress or was left behind, a line a kind, and what frees what they hold.
fn stuck(gpu: &Gpu, style: &Style) -> Vec<String> {
    let mut kinds: BTreeMap<Stuck, Vec<&Holder>> = BTreeMap::new();
    for holder in gpu.holders.iter().flatten() {
        if let Some(kind) = holder.stuck() {
            kinds.entry(kind).or_default().push(holder);
        }
    }
    let one = |(kind, holders): (Stuck, Vec<&Holder>)| {
        let who = |holder: &&Holder| match holder.ppid.filter(|_| kind == Stuck::Zombie) {
            Some(parent) => format!("{} (child of {parent})", holder.pid),
            None => holder.pid.to_string(),
        };
        let named: Vec<String> = holders.iter().take(MOST_NAMED).map(who).collect();
        let rest = holders.len().saturating_sub(MOST_NAMED);
        let rest = if rest > 0 { format!(" and {rest} more") } else { String::new() };
        let words =
            format!("{}{rest}: {}. What frees it: {}", named.join(", "), kind.words(), kind.freed_by());
        told("stuck", &words, style, |part| style.colors.odd(part))
    };
    kinds.into_iter().flat_map(one).collect()
}

/// What nobody is known to hold, and how to find out more.
fn unaccounted(gpu: &Gpu, memory: &Memory, style: &Style) -> String {
    let much = memory.unaccounted.is_some_and(|bytes| bytes >= REPORTED_UNATTRIBUTED);
    let text = or_unknown(memory.unaccounted, |bytes| style.units.signed(bytes));
    match (much, &gpu.device_processes) {
        (true, None) => style.colors.odd(&format!("{text}, of nobody; --who tells who has the device open")),
        (true, Some(_)) => style.colors.odd(&format!("{text}, of nobody; below is who has the device open")),
        (false, _) => text,
    }
}

/// Which GPU it is, and how it is used.
fn about(gpu: &Gpu, style: &Style) -> Vec<String> {
    let uuid = gpu.uuid.as_ref().map(|uuid| format!(", {}", line(uuid))).unwrap_or_default();
    let mut lines = vec![pair("gpu", &format!("{}{uuid}", line(&gpu.index)))];
    let plain = |part: &str| part.to_owned();
    if let Some(fault) = &gpu.fault {
        let words = format!("{}; `bailiff doctor` tells the way out", fault_words(fault));
        lines.extend(told("fault", &words, style, |part| style.colors.bad(part)));
        return lines;
    }
    lines.push(pair("utilization", &or_unknown(gpu.utilization, |percent| format!("{percent}%"))));
    let mode = gpu.compute_mode.as_ref().map(|mode| line(mode).replace('_', " "));
    lines.push(pair("compute mode", mode.as_deref().unwrap_or(UNKNOWN)));
    if let Some(lease) = &gpu.lease {
        lines.extend(told("leased to", &lease.text(), style, plain));
    }
    lines
}

/// Why nothing is known, in words.
pub(crate) fn fault_words(fault: &str) -> String {
    match fault {
        "library_not_found" => "the driver's library was not found",
        "driver_not_loaded" => "the driver's kernel module is not loaded",
        "version_mismatch" => "the driver's library and its kernel module are of different releases",
        "no_devices" => "the driver has no GPU",
        "timeout" => "it does not answer",
        "starting" => "the driver is still being opened",
        "lost" => "it has fallen off the bus",
        "not_permitted" => "a right is missing",
        "worker_failed" => "whoever asked it has crashed",
        "error" => "it answers with an error",
        other => return line(other),
    }
    .to_owned()
}

/// What each user holds, where that is not seen at one look.
fn users(report: &Report, style: &Style) -> Vec<String> {
    let mut users: BTreeMap<String, rows::User> = BTreeMap::new();
    let mut gpus = BTreeSet::new();
    for gpu in &report.gpus {
        for holder in gpu.holders.iter().flatten() {
            gpus.insert(&gpu.index);
            let owner = owner(holder);
            users.entry(owner).or_default().add(&gpu.index, holder);
        }
    }
    let plain =
        gpus.len() < 2 && report.gpus.iter().all(|gpu| gpu.holders.iter().flatten().count() <= style.most);
    if plain { Vec::new() } else { rows::users(users, style) }
}

fn owner(holder: &Holder) -> String {
    holder.owner().unwrap_or_else(|| UNKNOWN.to_owned())
}

/// Who saw it, and what was not seen.
pub(crate) fn notes(report: &Report, style: &Style) -> Vec<String> {
    let age = span(Duration::from_millis(report.age_ms));
    let interval = span_exact(Duration::from_millis(report.interval_ms));
    let by = match report.seen_by {
        By::Exporter => format!("bailiff-exporter {age} ago, which looks every {interval}"),
        By::Itself => format!("this command, for {interval}"),
    };
    let plain = |part: &str| part.to_owned();
    let mut lines = vec![pair("seen by", &by)];
    if let Some(waiting) = report.queue.as_deref().and_then(waiting) {
        lines.extend(told("waiting", &waiting, style, plain));
    }
    for (source, fault) in report.down() {
        let words = report.words.as_deref().filter(|_| source == "nvml");
        let words = words.map(|words| format!(" ({words})")).unwrap_or_default();
        let words = format!("{source}: {}{words}", fault_words(fault));
        lines.extend(told("not seen", &words, style, |part| style.colors.bad(part)));
    }
    if let Some(error) = &report.error {
        lines.extend(told("not seen", &format!("leases: {error}"), style, |part| style.colors.odd(part)));
    }
    if report.pid_namespace != "host" && report.blind().is_none() {
        lines.push(pair("not seen", "processes: this is not the host's PID namespace"));
    }
    if report.device_processes_failed {
        lines.push(pair("not seen", "who has the device open: it could not be looked for"));
    }
    if let Some(age) = report.device_processes_age_ms {
        lines.push(pair("files", &format!("looked through {} ago", span(Duration::from_millis(age)))));
    }
    if let Some(unreadable) = report.unreadable.filter(|unreadable| *unreadable > 0) {
        let words = format!("open files of {unreadable} processes: of others (root sees all), or too many");
        lines.extend(told("not seen", &words, style, plain));
    }
    lines
}

/// Short intervals have milliseconds.
fn span_exact(time: Duration) -> String {
    if time.subsec_millis() == 0 { span(time) } else { format!("{time:?}") }
}
