//! The commands besides `run`: clients of the daemon, and evaluation of recorded data.

pub mod backtest;
pub mod check;
pub mod explain;
mod files;
mod layout;
mod past_flags;
pub mod pause;
mod playback;
pub mod replay;
pub mod simulation;
pub mod status;
pub mod test;

use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use bailiff_exposition::terminal::line;
use bailiff_lifecycle::control;
use bailiff_lifecycle::exit::{Exit, plain};
use serde_json::Value;

use crate::control::Question;

pub use past_flags::report;
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
            Self::File { .. } | Self::Data(_) | Self::Write(_) => Exit::Failed,
        }
    }
}
