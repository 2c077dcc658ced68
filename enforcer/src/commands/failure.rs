//! Why a command could not do its work.

use std::io;
use std::path::{Path, PathBuf};

use bailiff_lifecycle::exit::{Exit, plain};

/// Why a command could not do its work.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The rules file or test file has faults: listed in full, over several lines.
    #[error("{0}")]
    Faults(String),
    /// A file cannot be read.
    #[error("cannot read {}: {}", path.display(), plain(error))]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// The settings are invalid.
    #[error("{0}")]
    Settings(String),
    /// A file is not a record.
    #[error("{0}")]
    Record(String),
    /// Prometheus does not give what is needed.
    #[error("{0}")]
    Prometheus(String),
    /// What was found cannot be written.
    #[error("cannot write the report: {}", plain(.0))]
    Write(#[from] io::Error),
}

impl Failure {
    /// A file cannot be read.
    pub(crate) fn file(path: &Path, error: io::Error) -> Self {
        Self::File { path: path.to_owned(), error }
    }

    /// The exit code of the program.
    #[must_use]
    pub const fn exit(&self) -> Exit {
        match self {
            Self::Faults(_) | Self::Settings(_) => Exit::Usage,
            Self::File { .. } | Self::Record(_) | Self::Prometheus(_) | Self::Write(_) => Exit::Failed,
        }
    }
}
