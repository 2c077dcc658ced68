//! `replay`: what rules would have done, by a record of `bailiff-exporter --record FILE`.

use std::io::{BufRead, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bailiff_lifecycle::exit::Exit;
use bailiff_snapshot::wire::{self, WireError};

use super::layout::safe;
use super::simulation::report::Report;
use super::simulation::{Admin, Simulation, print};
use super::{Failure, Form, files};
use bailiff_engine::policy::Policy;

/// A longer line is no snapshot, and is not kept in memory.
const LONGEST_LINE: u64 = 64 << 20;

/// What is wanted.
#[derive(Debug, Clone)]
pub struct ReplaySettings {
    /// The file of rules.
    pub rules: PathBuf,
    /// The record.
    pub record: PathBuf,
    /// What an admin does once a breaker has opened.
    pub admin: Admin,
    /// Output format.
    pub form: Form,
    /// Now, since the Unix epoch; the file of rules is understood at this time.
    pub now: Duration,
}

/// Reads both files, and prints what would have been done.
///
/// # Errors
/// If a file cannot be read, or the rules have faults.
pub fn run(settings: &ReplaySettings, out: &mut dyn Write) -> Result<Exit, Failure> {
    let policy = Arc::new(files::rules(&settings.rules, settings.now)?.policy);
    let mut record = files::lines(&settings.record)?;
    let source = settings.record.display().to_string();
    let report = rehearse(policy, &mut record, (source, settings.admin))?;
    match settings.form {
        Form::Text => print(&report, out)?,
        Form::Json => json(&report, out)?,
    }
    Ok(Exit::Done)
}

/// Takes a record line by line. What is no snapshot is counted: a disk that was full leaves torn lines.
///
/// # Errors
/// If the record cannot be read on, or has no snapshot.
pub fn rehearse(
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
    let why = bad.unwrap_or_else(|| "it is empty".to_owned());
    Err(Failure::Record(format!("{source} is not a record of bailiff-exporter --record: {}", safe(&why))))
}

/// What is wrong with a line; the parser counts lines within it, so its own place is left out.
fn first_bad(number: u64, error: &WireError) -> String {
    let why = error.to_string();
    format!("line {number}: {}", why.split(" at line 1 ").next().unwrap_or(&why))
}

/// Reads a line; false at the end. Of one that is too long a part is left, which is no snapshot.
fn next_line(record: &mut dyn BufRead, line: &mut Vec<u8>) -> std::io::Result<bool> {
    line.clear();
    let mut limited = std::io::Read::take(&mut *record, LONGEST_LINE);
    let read = limited.read_until(b'\n', line)?;
    if limited.limit() == 0 && line.last() != Some(&b'\n') {
        record.skip_until(b'\n')?;
    }
    Ok(read > 0)
}

/// Writes one document and a newline.
pub(super) fn json<T: serde::Serialize>(report: &T, out: &mut dyn Write) -> Result<(), Failure> {
    serde_json::to_writer_pretty(&mut *out, report).map_err(std::io::Error::from)?;
    writeln!(out)?;
    Ok(())
}
