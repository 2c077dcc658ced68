//! Errors of commands.

use std::io;
use std::path::{Path, PathBuf};

use bailiff_lifecycle::exit::{Exit, plain};

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
    #[must_use]
    pub const fn exit(&self) -> Exit {
        match self {
            Self::Faults(_) | Self::Settings(_) => Exit::Usage,
            Self::File { .. } | Self::Data(_) | Self::Write(_) => Exit::Failed,
        }
    }
}
