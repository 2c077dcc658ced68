//! `bailiff info`: each GPU, its memory, and who holds it.

mod compact;
mod compared;
pub(crate) mod figures;
pub(crate) mod flags;
mod kept;
mod leased;
mod look;
mod pool;
mod report;
mod rows;
mod since;
mod text;

use std::ffi::OsStr;
use std::io::{self, IsTerminal};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use bailiff_exposition::terminal::Colors;
use bailiff_lifecycle::exit::{Stop, tell};
use bailiff_snapshot::{DeviceProcesses, Moment, wire};
use clap::Parser;
use jiff::tz::TimeZone;
use rustix::process::geteuid;
use serde_json::json;

use crate::exit::Failure;
use crate::output::print_stdout;
use crate::screen;
use figures::Units;
use flags::{Called, Info};
use look::{Seen, SnapshotSource};
pub(crate) use look::{age, is_stale};
use report::{DEFAULT_TAG, Report};
use text::Style;

/// Looking through the open files of all processes takes no longer.
const DEVICE_PROCESSES_PATIENCE: Duration = Duration::from_secs(10);
/// Holders of a GPU that are shown one by one.
const MOST: usize = 10;
/// Empties a terminal, before the first report is drawn.
const CLEAR: &str = "\u{1b}[2J";
/// To the top left.
const HOME: &str = "\u{1b}[H";
/// Erases the rest of a line.
const END_OF_LINE: &str = "\u{1b}[K";
/// Erases all that is below.
const BELOW: &str = "\u{1b}[J";

/// Whether a program of this name is the script whose report this is.
pub(crate) fn is_called(name: &OsStr) -> bool {
    let name = Path::new(name).file_name();
    ["cuda_info.sh", "cuda_info.py", "cuda_info"].iter().any(|ours| name == Some(OsStr::new(ours)))
}

/// The program under one of those names.
pub(crate) fn main() -> ExitCode {
    match Called::try_parse() {
        Ok(Called { info: flags, .. }) => {
            let flags = Info { full: true, units: Units::Decimal, ..flags };
            info(&flags).unwrap_or_else(Failure::tell)
        }
        Err(error) => tell("cuda_info.sh", Err(Stop::from(error))).into(),
    }
}

/// Looks and shows, once or again and again.
pub(crate) fn info(flags: &Info) -> Result<ExitCode, Failure> {
    let mut before = flags.since.as_deref().map(kept::read).transpose()?;
    if let Some(before) = &mut before {
        before.leave(&flags.gpu);
    }
    let mut source = SnapshotSource::open(&flags.look)?;
    if flags.watch && !flags.json && io::stdout().is_terminal() {
        print_stdout(CLEAR)?;
    }
    loop {
        let seen = source.next()?;
        let report = report(flags, &seen)?;
        let read = print_stdout(&shown(flags, before.as_ref(), &report)?)?;
        if flags.tag.is_some() {
            kept::keep(&report)?;
        }
        if !read {
            return Ok(ExitCode::SUCCESS);
        }
        if !flags.watch {
            return match report.blind() {
                None => Ok(ExitCode::SUCCESS),
                Some(fault) => Err(Failure::unavailable(format!(
                    "no GPU can be read: {}; `bailiff doctor` tells the way out",
                    text::fault_words(fault)
                ))),
            };
        }
    }
}

fn report(flags: &Info, seen: &Seen) -> Result<Report, Failure> {
    let mut report = Report::of(seen, flags.tag.as_deref().unwrap_or(DEFAULT_TAG));
    if flags.who {
        match device_processes(flags, &seen.snapshot) {
            Some((found, age)) => report.add_device_processes(&found, age, &seen.snapshot),
            None => report.device_processes_failed = true,
        }
    }
    report.keep(&flags.gpu).map_err(Failure::usage)?;
    Ok(report)
}

/// Who has device files open, and how long ago: as the exporter has seen it, unless we may look into more processes than it;
/// else as we see it.
fn device_processes(flags: &Info, snapshot: &wire::Snapshot) -> Option<(DeviceProcesses, Duration)> {
    let theirs = snapshot
        .device_processes
        .as_ref()
        .filter(|device_processes| device_processes.unreadable == 0 || !geteuid().is_root());
    let Some(theirs) = theirs else {
        let ours = bailiff_sampler::device_processes(&flags.look.machine.procfs, DEVICE_PROCESSES_PATIENCE)?;
        return Some((ours, Duration::ZERO));
    };
    let at = Moment { boot: Duration::from_millis(theirs.boot_ms), ..Moment::default() };
    let device_processes = DeviceProcesses { at, who: theirs.who.clone(), unreadable: theirs.unreadable };
    Some((device_processes, look::since_boot().saturating_sub(at.boot)))
}

/// The report, or how it differs from an earlier one.
fn shown(flags: &Info, before: Option<&Report>, report: &Report) -> Result<String, Failure> {
    if flags.json {
        let json = match before {
            None => serde_json::to_string(report),
            Some(before) => serde_json::to_string(&json!({
                "since": before,
                "now": report,
                "changes": since::compare(before, report),
            })),
        };
        return Ok(json.map_err(io::Error::from)? + "\n");
    }
    let style = Style {
        colors: Colors::of_stdout(),
        width: screen::width(),
        most: flags.top.unwrap_or(MOST),
        zone: TimeZone::system(),
        units: flags.units,
    };
    let lines = match before {
        // A prompt, or the end of the last line, needs a row as well.
        None if !flags.full && !flags.who => {
            let rows = screen::rows().filter(|_| flags.top.is_none());
            compact::text(report, &style, rows.map(|rows| rows.saturating_sub(1)))
        }
        None => text::text(report, &style),
        Some(before) => compared::text(before, report, &style),
    };
    Ok(page(lines, flags))
}

/// Under --watch a terminal shows the newest alone, as much of it as there is room for.
fn page(mut lines: Vec<String>, flags: &Info) -> String {
    if !flags.watch {
        return lines.join("\n") + "\n";
    }
    let Some(rows) = screen::rows().filter(|_| io::stdout().is_terminal()) else {
        return lines.join("\n") + "\n\n";
    };
    let room = rows.saturating_sub(1);
    if lines.len() > room {
        let hidden = lines.len() - room.saturating_sub(1);
        lines.truncate(room.saturating_sub(1));
        lines.push(format!("… and {hidden} lines more; --gpu shows some GPUs alone"));
    }
    format!("{HOME}{}{END_OF_LINE}\n{BELOW}", lines.join(&format!("{END_OF_LINE}\n")))
}
