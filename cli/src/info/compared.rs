//! Two reports compared, as text.

use std::time::Duration;

use bailiff_exposition::terminal::line;

use super::figures::{Units, ctime, or_unknown, span};
use super::report::{Gpu, Memory, Report};
use super::since::{Back, Boots, Change, Since, compare, earlier, missing};
use super::text::{Style, notes, pair, told};
use crate::table::{Cell, Column, Table, Tone};

const COLUMNS: [(&str, Column); 6] = [
    ("WHAT", Column::Left),
    ("PID", Column::Right),
    ("USER", Column::Gives),
    ("NAME", Column::Gives),
    ("WAS", Column::Right),
    ("IS", Column::Right),
];

/// What has changed since an earlier report, line by line.
pub(crate) fn text(before: &Report, now: &Report, style: &Style) -> Vec<String> {
    let mut lines = Vec::new();
    for (gpu, since) in now.gpus.iter().zip(compare(before, now)) {
        lines.extend(block((before, now), gpu, &since, style));
        lines.push(String::new());
    }
    for gpu in missing(before, now) {
        let name = gpu.uuid.as_ref().map(|uuid| format!(", {}", line(uuid))).unwrap_or_default();
        lines.push(pair(
            "missing",
            &style.colors.bad(&format!("GPU {}{name} was there before", line(&gpu.index))),
        ));
    }
    lines.extend(notes(now, style));
    lines
}

fn block((before, now): (&Report, &Report), gpu: &Gpu, since: &Since, style: &Style) -> Vec<String> {
    let was = earlier(before, gpu).and_then(|was| was.memory.as_ref());
    let units = style.units;
    let memory = |part: fn(&Memory) -> u64, moved: Option<i64>| {
        let is = or_unknown(gpu.memory.as_ref(), |memory| units.size(part(memory)));
        moved_text(&is, was.map(|was| units.size(part(was))), (moved, units))
    };
    let mut lines = super::text::head(now, gpu, style);
    // In place of the last two of the seven lines.
    lines.truncate(lines.len().saturating_sub(2));
    lines.push(pair("memory used", &memory(|memory| memory.used, since.used)));
    lines.push(pair("memory free", &memory(|memory| memory.free, since.free)));
    let unaccounted = |memory: Option<&Memory>| {
        or_unknown(memory.and_then(|memory| memory.unaccounted), |bytes| units.signed(bytes))
    };
    let was_unaccounted = was.map(|was| unaccounted(Some(was)));
    let moved = moved_text(&unaccounted(gpu.memory.as_ref()), was_unaccounted, (since.unaccounted, units));
    lines.push(pair("memory unaccounted", &moved));
    let uuid = gpu.uuid.as_ref().map(|uuid| format!(", {}", line(uuid))).unwrap_or_default();
    lines.push(pair("gpu", &format!("{}{uuid}", line(&gpu.index))));
    lines.extend(told("since", &since_when(before, now, since, style), style, str::to_owned));
    if let Some(back) = &since.back {
        lines.extend(back_lines(back, style));
    }
    lines.extend(changes(since, style));
    lines
}

fn moved_text(is: &str, was: Option<String>, (moved, units): (Option<i64>, Units)) -> String {
    match (was, moved) {
        (Some(was), Some(moved)) if moved != 0 => format!("{is}, was {was}: {}", units.change(moved)),
        (Some(_), Some(_)) => format!("{is}, as before"),
        (Some(was), None) => format!("{is}, was {was}"),
        (None, _) => is.to_owned(),
    }
}

fn since_when(before: &Report, now: &Report, since: &Since, style: &Style) -> String {
    let time = span(Duration::from_millis(now.wall_ms.saturating_sub(before.wall_ms)));
    let when = format!("{}, {}, {time} before", line(&before.tag), ctime(before.wall_ms, &style.zone));
    match Boots::of(before, now) {
        _ if !since.was_there => format!("{when}; this GPU was not there"),
        Boots::Same => when,
        Boots::Another => format!("{when}, and another boot"),
        Boots::UnknownReason => format!("{when}, of nobody knows which boot"),
    }
}

fn back_lines(back: &Back, style: &Style) -> Vec<String> {
    const NAME: &str = "of those who ended";
    match back {
        Back::All { bytes } => {
            told(NAME, &format!("{} came back", style.units.size(*bytes)), style, str::to_owned)
        }
        Back::Stayed { bytes } => {
            told(NAME, &format!("{} did not come back", style.units.size(*bytes)), style, |part| {
                style.colors.bad(part)
            })
        }
        Back::Unknown { why } => {
            told(NAME, &format!("nobody can tell whether memory came back: {why}"), style, str::to_owned)
        }
    }
}

fn changes(since: &Since, style: &Style) -> Vec<String> {
    let Some(changes) = &since.holders else {
        return vec!["who came and who ended cannot be told".to_owned()];
    };
    let mut table = Table::new(&COLUMNS);
    for change in changes {
        table.row(row(change, style.units));
    }
    let lines = table.lines(style.width, style.colors);
    if lines.is_empty() { vec!["the same hold the same".to_owned()] } else { lines }
}

fn row(change: &Change, units: Units) -> Vec<Cell> {
    let size = |bytes| units.size(bytes);
    let tone = if change.how == super::since::How::Died { Tone::Bad } else { Tone::Plain };
    vec![
        Cell::of(change.how.name(), tone),
        change.pid.to_string().into(),
        or_unknown(change.user.clone(), |user| user).into(),
        or_unknown(change.comm.clone(), |comm| comm).into(),
        or_unknown(change.was, size).into(),
        or_unknown(change.is, size).into(),
    ]
}
