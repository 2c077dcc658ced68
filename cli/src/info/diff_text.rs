//! The text of a comparison of two reports.

use std::time::Duration;

use bailiff_exposition::terminal::{Cell, Column, Table, Tone, line};

use super::diff::{BootMatch, Change, ChangeKind, GpuChanges, MemoryRelease, compare, earlier, missing};
use super::figures::{Style, UNKNOWN, Units, ctime, or_unknown, span};
use super::report::{GpuReport, InfoReport, Memory};
use super::text::{notes, pair, wrapped_pair};

type ChangeRow<'a> = (&'a Change, Units);
type ChangeColumn = (&'static str, Column, fn(&ChangeRow<'_>) -> Cell);
const COLUMNS: [ChangeColumn; 6] = [
    ("WHAT", Column::Never, |(change, _)| {
        Cell::of(change.how.name(), if change.how == ChangeKind::Died { Tone::Bad } else { Tone::Plain })
    }),
    ("PID", Column::Right, |(change, _)| change.pid.to_string().into()),
    ("USER", Column::To(6), |(change, _)| change.user.as_deref().unwrap_or(UNKNOWN).into()),
    ("NAME", Column::To(6), |(change, _)| change.comm.as_deref().unwrap_or(UNKNOWN).into()),
    ("WAS", Column::Right, |(change, units)| or_unknown(change.was, |bytes| units.size(bytes)).into()),
    ("IS", Column::Right, |(change, units)| or_unknown(change.is, |bytes| units.size(bytes)).into()),
];

/// Returns the lines of the changes since an earlier report.
pub(crate) fn render(before: &InfoReport, now: &InfoReport, style: &Style) -> Vec<String> {
    let mut lines = Vec::new();
    for (gpu, since) in now.gpus.iter().zip(compare(before, now)) {
        lines.extend(gpu_lines((before, now), gpu, &since, style));
        lines.push(String::new());
    }
    for gpu in missing(before, now) {
        let name = gpu.uuid.as_ref().map(|uuid| format!(", {}", line(uuid))).unwrap_or_default();
        lines.push(pair(
            "missing",
            &style.colors.bad(&format!("GPU {}{name} is missing now", line(&gpu.index))),
        ));
    }
    lines.extend(notes(now, style));
    lines
}

fn gpu_lines(
    (before, now): (&InfoReport, &InfoReport),
    gpu: &GpuReport,
    since: &GpuChanges,
    style: &Style,
) -> Vec<String> {
    let previous = earlier(before, gpu).and_then(|previous| previous.memory.as_ref());
    let units = style.units;
    let memory = |part: fn(&Memory) -> u64, change: Option<i64>| {
        let current = or_unknown(gpu.memory.as_ref(), |memory| units.size(part(memory)));
        change_text(&current, previous.map(|previous| units.size(part(previous))), (change, units))
    };
    let mut lines = super::text::head(now, gpu, style);
    // The last two of these seven lines, used and free memory, are replaced by lines with the change.
    lines.truncate(lines.len().saturating_sub(2));
    lines.push(pair("memory used", &memory(|memory| memory.observed.used, since.used)));
    lines.push(pair("memory free", &memory(|memory| memory.observed.free, since.free)));
    let unaccounted = |memory: Option<&Memory>| {
        or_unknown(memory.and_then(|memory| memory.observed.unaccounted), |bytes| units.signed(bytes))
    };
    let was_unaccounted = previous.map(|previous| unaccounted(Some(previous)));
    let change = change_text(&unaccounted(gpu.memory.as_ref()), was_unaccounted, (since.unaccounted, units));
    lines.push(pair("memory unaccounted", &change));
    let uuid = gpu.uuid.as_ref().map(|uuid| format!(", {}", line(uuid))).unwrap_or_default();
    lines.push(pair("gpu", &format!("{}{uuid}", line(&gpu.index))));
    lines.extend(wrapped_pair("since", &compared_report(before, now, since, style), style, Tone::Plain));
    if let Some(release) = &since.back {
        lines.extend(release_lines(release, style));
    }
    lines.extend(changes(since, style));
    lines
}

fn change_text(current: &str, previous: Option<String>, (change, units): (Option<i64>, Units)) -> String {
    match (previous, change) {
        (Some(previous), Some(change)) if change != 0 => {
            format!("{current}, was {previous}: {}", units.change(change))
        }
        (Some(_), Some(_)) => format!("{current}, unchanged"),
        (Some(previous), None) => format!("{current}, was {previous}"),
        (None, _) => current.to_owned(),
    }
}

fn compared_report(before: &InfoReport, now: &InfoReport, since: &GpuChanges, style: &Style) -> String {
    let time = span(Duration::from_millis(now.wall_ms.saturating_sub(before.wall_ms)));
    let earlier = format!("{}, {}, {time} before", line(&before.tag), ctime(before.wall_ms, &style.zone));
    match BootMatch::of(before, now) {
        _ if !since.was_there => format!("{earlier}; this GPU was not present"),
        BootMatch::Same => earlier,
        BootMatch::Different => format!("{earlier}, before a reboot"),
        BootMatch::Unknown => format!("{earlier}; it is unknown whether the machine was rebooted"),
    }
}

fn release_lines(release: &MemoryRelease, style: &Style) -> Vec<String> {
    let (text, tone) = match release {
        MemoryRelease::All { bytes } => (format!("{} released", style.units.size(*bytes)), Tone::Plain),
        MemoryRelease::Stayed { bytes } => (format!("{} not released", style.units.size(*bytes)), Tone::Bad),
        MemoryRelease::Unknown { why } => {
            (format!("unknown whether memory was released: {why}"), Tone::Plain)
        }
    };
    wrapped_pair("exited processes", &text, style, tone)
}

fn changes(since: &GpuChanges, style: &Style) -> Vec<String> {
    let Some(changes) = &since.holders else {
        return vec!["changes in holders are unknown".to_owned()];
    };
    let rows = changes.iter().map(|change| (change, style.units));
    let lines = Table::of(&COLUMNS, rows).lines(style.width, style.colors);
    if lines.is_empty() { vec!["no holders have changed".to_owned()] } else { lines }
}
