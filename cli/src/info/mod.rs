//! `bailiff info`: shows each GPU with its memory and processes.

mod brief;
pub(crate) mod collect;
mod compact;
mod diff;
mod diff_text;
mod energy;
pub(crate) mod figures;
pub(crate) mod flags;
mod lease_state;
pub(crate) mod report;
mod rows;
mod saved;
mod text;

use std::ffi::OsStr;
use std::io::{self, IsTerminal};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use bailiff_exposition::terminal::Colors;
use bailiff_lifecycle::exit::{Stop, report_outcome};
use bailiff_proc::clock::since_boot;
use bailiff_snapshot::{DeviceProcesses, wire};
use clap::Parser;
use jiff::tz::TimeZone;
use rustix::process::geteuid;
use serde_json::json;

use crate::exit::Failure;
use crate::output::{self, print_stdout};
use crate::screen;
use collect::Collected;
pub(crate) use collect::{age, is_stale};
use figures::Style;
use figures::Units;
use flags::{Info, ScriptArgs};
use report::{DEFAULT_TAG, InfoReport};

/// The timeout of the open-device-file scan.
const SCAN_TIMEOUT: Duration = Duration::from_secs(10);
/// The default of `--top`.
const MAX_HOLDERS: usize = 10;
/// Clears the terminal.
const CLEAR: &str = "\u{1b}[2J";
/// Moves the cursor to the top left.
const HOME: &str = "\u{1b}[H";
/// Erases the rest of a line.
const END_OF_LINE: &str = "\u{1b}[K";
/// Erases everything below the cursor.
const BELOW: &str = "\u{1b}[J";

/// Returns whether the program was started under the name `cuda_info.sh`.
pub(crate) fn is_called(name: &OsStr) -> bool {
    let name = Path::new(name).file_name();
    ["cuda_info.sh", "cuda_info.py", "cuda_info"].iter().any(|known| name == Some(OsStr::new(known)))
}

/// Runs the program under the name `cuda_info.sh`.
pub(crate) fn main() -> ExitCode {
    match ScriptArgs::try_parse() {
        Ok(ScriptArgs { info: flags, .. }) => {
            let flags = Info { full: true, units: Units::Decimal, ..flags };
            info(&flags).unwrap_or_else(Failure::report)
        }
        Err(error) => report_outcome("cuda_info.sh", Err(Stop::from(error))).into(),
    }
}

/// Prints the report, once or repeatedly.
pub(crate) fn info(flags: &Info) -> Result<ExitCode, Failure> {
    if flags.brief {
        let node = rustix::system::uname().nodename().to_string_lossy().into_owned();
        if let Some(line) = brief::line(flags, &node) {
            print_stdout(&format!("{line}\n"))?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    let mut before = flags.since.as_deref().map(saved::read).transpose()?;
    if let Some(before) = &mut before {
        before.filter(&flags.gpu);
    }
    let mut source = collect::open(&flags.source)?;
    if flags.watch && !flags.json && io::stdout().is_terminal() {
        print_stdout(CLEAR)?;
    }
    loop {
        let collected = source.next()?;
        let report = report(flags, &collected)?;
        let pipe_is_open = print_stdout(&render(flags, before.as_ref(), &report)?)?;
        if flags.tag.is_some() {
            saved::save(&report)?;
        }
        if !pipe_is_open {
            return Ok(ExitCode::SUCCESS);
        }
        if !flags.watch {
            return match report.total_failure() {
                None => Ok(ExitCode::SUCCESS),
                Some(fault) => Err(Failure::unavailable(format!(
                    "no GPU can be read: {}; see `bailiff doctor`",
                    text::fault_text(fault)
                ))),
            };
        }
    }
}

fn report(flags: &Info, collected: &Collected) -> Result<InfoReport, Failure> {
    let mut report = InfoReport::new(collected, flags.tag.as_deref().unwrap_or(DEFAULT_TAG));
    if flags.who {
        match device_processes(flags, &collected.snapshot) {
            Some((found, age)) => report.add_device_processes(&found, age, &collected.snapshot),
            None => report.device_processes_failed = true,
        }
    }
    report.select(&flags.gpu).map_err(Failure::usage)?;
    Ok(report)
}

/// Returns the processes with an open device file, and the age of that data. It comes from the exporter,
/// unless this process runs as root and the exporter could not read all processes.
fn device_processes(flags: &Info, snapshot: &wire::Snapshot) -> Option<(DeviceProcesses, Duration)> {
    let scanned = snapshot
        .device_processes
        .as_ref()
        .filter(|device_processes| device_processes.unreadable == 0 || !geteuid().is_root());
    let Some(scanned) = scanned else {
        let own_scan = bailiff_sampler::device_processes(&flags.source.machine.procfs, SCAN_TIMEOUT)?;
        return Some((own_scan.0, Duration::ZERO));
    };
    Some((scanned.clone(), since_boot().saturating_sub(scanned.at())))
}

/// Renders the report, or its differences from an earlier report.
fn render(flags: &Info, before: Option<&InfoReport>, report: &InfoReport) -> Result<String, Failure> {
    if flags.json {
        let json = match before {
            None => output::json(report),
            Some(before) => output::json(&json!({
                "since": before,
                "now": report,
                "changes": diff::compare(before, report),
            })),
        };
        return Ok(json?);
    }
    let style = Style {
        colors: Colors::of_stdout(),
        width: screen::width(),
        max_holders: flags.top.unwrap_or(MAX_HOLDERS),
        zone: TimeZone::system(),
        units: flags.units,
    };
    let lines = match before {
        // One row is left for the prompt.
        None if flags.energy => energy::render(report, &style),
        None if !flags.full && !flags.who => {
            let rows = screen::rows().filter(|_| flags.top.is_none());
            compact::render(report, &style, rows.map(|rows| rows.saturating_sub(1)))
        }
        None => text::render(report, &style),
        Some(before) => diff_text::render(before, report, &style),
    };
    Ok(page(lines, flags))
}

/// Lays out the output; with --watch on a terminal, it is cut to the screen and redrawn in place.
fn page(mut lines: Vec<String>, flags: &Info) -> String {
    if !flags.watch {
        return lines.join("\n") + "\n";
    }
    let Some(rows) = screen::rows().filter(|_| io::stdout().is_terminal()) else {
        return lines.join("\n") + "\n\n";
    };
    let max_lines = rows.saturating_sub(1);
    if lines.len() > max_lines {
        let hidden = lines.len() - max_lines.saturating_sub(1);
        lines.truncate(max_lines.saturating_sub(1));
        lines.push(format!("… and {hidden} more lines; use --gpu to select GPUs"));
    }
    format!("{HOME}{}{END_OF_LINE}\n{BELOW}", lines.join(&format!("{END_OF_LINE}\n")))
}
