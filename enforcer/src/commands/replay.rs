//! `replay`: what rules would have done, from a record of `bailiff-exporter --record FILE`.

use std::io::{BufRead, Write};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bailiff_exposition::terminal::printable_json;
use bailiff_lifecycle::exit::Exit;
use bailiff_snapshot::wire::{self, WireError};

use super::admin;
use super::layout::safe;
use super::simulation::report::Report;
use super::simulation::{Admin, Simulation, print};
use super::{Failure, files};
use crate::flags;
use bailiff_engine::policy::Policy;

/// Maximum length of a line.
const LONGEST_LINE: u64 = 64 << 20;

/// Reads both files and prints what the rules would have done; `now` is the time since the Unix epoch.
///
/// # Errors
/// If a file cannot be read, or the rules or flags are invalid.
pub fn run(flags: &flags::Replay, now: Duration, out: &mut dyn Write) -> Result<Exit, Failure> {
    let admin = admin(flags.resume_after.as_deref())?;
    let policy = Arc::new(files::rules(&flags.rules, now)?.policy);
    let mut record = files::lines(&flags.record)?;
    let report = rehearse(policy, &mut record, (flags.record.display().to_string(), admin))?;
    if flags.json {
        json(&report, out)?;
    } else {
        print(&report, out)?;
    }
    Ok(Exit::Done)
}

/// Simulates a record line by line. Invalid lines are counted, because a full disk leaves incomplete lines.
fn rehearse(
    policy: Arc<Policy>,
    record: &mut dyn BufRead,
    (source, admin): (String, Admin),
) -> Result<Report, Failure> {
    let mut simulation = Simulation::new(policy, admin);
    let mut line = Vec::new();
    let (mut number, mut snapshots, mut bad) = (0_u64, 0_u64, None);
    while next_line(record, &mut line).map_err(|error| Failure::file(Path::new(&source), error))? {
        number += 1;
        if line.iter().all(u8::is_ascii_whitespace) {
            continue;
        }
        match wire::parse(&line) {
            Ok(snapshot) => {
                snapshots += 1;
                simulation.see(snapshot);
            }
            Err(error) => {
                bad.get_or_insert_with(|| first_bad(number, &error));
                simulation.bad_line();
            }
        }
    }
    if snapshots > 0 {
        return Ok(simulation.finish(source));
    }
    let why = bad.unwrap_or_else(|| "the file is empty".to_owned());
    Err(Failure::Data(format!(
        "{source} is not a recording made by bailiff-exporter --record: {}",
        safe(&why)
    )))
}

/// Describes an invalid line; the parser's own position is left out, because it counts within the line.
fn first_bad(number: u64, error: &WireError) -> String {
    let why = error.to_string();
    format!("line {number}: {}", why.split(" at line 1 ").next().unwrap_or(&why))
}

/// Reads a line; returns false at the end. A line that is too long is truncated, and is then invalid.
fn next_line(record: &mut dyn BufRead, line: &mut Vec<u8>) -> std::io::Result<bool> {
    line.clear();
    let mut limited = std::io::Read::take(&mut *record, LONGEST_LINE);
    let read = limited.read_until(b'\n', line)?;
    if limited.limit() == 0 && line.last() != Some(&b'\n') {
        record.skip_until(b'\n')?;
    }
    Ok(read > 0)
}

/// Writes one JSON document and a newline.
pub(super) fn json<T: serde::Serialize>(report: &T, out: &mut dyn Write) -> Result<(), Failure> {
    let text = serde_json::to_string_pretty(report).map_err(std::io::Error::from)?;
    Ok(writeln!(out, "{}", printable_json(&text))?)
}
