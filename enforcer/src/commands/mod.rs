//! The commands besides `run`: clients of the daemon, and evaluation of recorded data.

pub mod backtest;
pub mod check;
pub mod explain;
mod files;
mod layout;
pub mod pause;
mod playback;
pub mod replay;
pub mod simulation;
pub mod status;
pub mod test;

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use bailiff_exposition::terminal::line;
use bailiff_lifecycle::control;
use bailiff_lifecycle::exit::{Exit, Stop, plain};
use serde_json::Value;

use self::simulation::Admin;
use crate::control::Question;

pub use status::columns;

/// Sends a request to the daemon.
///
/// # Errors
/// If no daemon responds, or the response is an error.
pub fn query(control: &Path, question: &Question) -> Result<Value> {
    let answer = say(control, question)?;
    if answer["ok"] == true {
        return Ok(answer);
    }
    bail!("{}", refusal(&answer))
}

fn say(control: &Path, question: &Question) -> Result<Value> {
    let question = serde_json::to_value(question).context("cannot serialize the request")?;
    control::query(control, &question)
}

fn refusal(answer: &Value) -> String {
    answer["error"].as_str().map_or_else(|| "refused without a reason".to_owned(), line)
}

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The rules file or test file is invalid: all errors, on several lines.
    #[error("{0}")]
    Faults(String),
    /// A file cannot be read.
    #[error("cannot read {}: {}", path.display(), plain(error))]
    File {
        /// Path of the file.
        path: PathBuf,
        /// Error of the system.
        error: io::Error,
    },
    /// Invalid flags.
    #[error("{0}")]
    Settings(String),
    /// A file is not a record, or Prometheus lacks required data.
    #[error("{0}")]
    Data(String),
    /// Prometheus does not answer a query.
    #[error(transparent)]
    Prometheus(#[from] bailiff_prometheus::Refused),
    /// The output cannot be written.
    #[error("cannot write the report: {}", plain(.0))]
    Write(#[from] io::Error),
}

impl Failure {
    /// Creates the error for a file that cannot be read.
    pub(crate) fn file(path: &Path, error: io::Error) -> Self {
        Self::File { path: path.to_owned(), error }
    }

    /// Exit code of the program.
    pub const fn exit(&self) -> Exit {
        match self {
            Self::Faults(_) | Self::Settings(_) => Exit::Usage,
            Self::File { .. } | Self::Data(_) | Self::Prometheus(_) | Self::Write(_) => Exit::Failed,
        }
    }
}

/// Prints errors of several lines; the caller prints the others.
///
/// # Errors
/// If the caller has to print the error.
pub fn report(outcome: Result<Exit, Failure>) -> Result<Exit, Stop> {
    match outcome {
        Ok(exit) => Ok(exit),
        Err(Failure::Faults(faults)) => {
            // A closed standard error is no reason for another exit code.
            let _ = writeln!(io::stderr(), "{}", faults.trim_end());
            Ok(Exit::Usage)
        }
        Err(failure @ Failure::Settings(_)) => Err(Stop::Usage(failure.to_string())),
        Err(failure) => Err(Stop::Failed(failure.into())),
    }
}

/// Returns the assumed behavior of the administrator, from `--resume-after`.
fn admin(resume_after: Option<&str>) -> Result<Admin, Failure> {
    resume_after.map_or(Ok(Admin::Away), |text| length("--resume-after", text).map(Admin::Resumes))
}

/// Parses a duration such as `1h`.
fn length(flag: &str, text: &str) -> Result<Duration, Failure> {
    humantime::parse_duration(text)
        .map_err(|error| Failure::Settings(format!("{flag} {text:?} is not a duration such as 1h: {error}")))
}

/// Parses a time, or an age such as `7d`, to a time since the Unix epoch.
fn moment(flag: &str, text: &str, now: Duration) -> Result<Duration, Failure> {
    let wrong = || {
        let what = "neither a time such as 2026-03-01T00:00:00Z nor an age such as 7d";
        Failure::Settings(format!("{flag} {text:?} is {what}"))
    };
    bailiff_prometheus::moment(text, now).ok_or_else(wrong)
}
