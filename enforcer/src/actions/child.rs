#![expect(clippy::disallowed_methods, reason = "the one file of the enforcer that runs programs")]
//! Runs a program of the administrator without a shell, with PATH as its only variable, and with a deadline.

use std::ffi::OsString;
use std::process::{Command, ExitStatus};
use std::time::Duration;

use bailiff_subprocess::{Late, Talk};

/// Search path for programs if our own environment has no PATH.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Error of running a program.
#[derive(Debug, thiserror::Error)]
pub(super) enum ChildError {
    #[error("no program is given")]
    Empty,
    #[error(transparent)]
    Run(#[from] bailiff_subprocess::ChildError),
    #[error("{0}")]
    Status(ExitStatus),
}

/// Runs a program with `input` on its standard input; its output is ignored.
pub(super) fn run(argv: &[String], input: &[u8], deadline: Duration) -> Result<(), ChildError> {
    let (name, arguments) = argv.split_first().ok_or(ChildError::Empty)?;
    let path = std::env::var_os("PATH").unwrap_or_else(|| OsString::from(PATH));
    let mut command = Command::new(name);
    command.args(arguments).env_clear().env("PATH", path).current_dir("/");
    let talk = Talk { input, heard: false, deadline, late: Late::Group };
    let status = bailiff_subprocess::run(command, &talk)?.status;
    if status.success() { Ok(()) } else { Err(ChildError::Status(status)) }
}
