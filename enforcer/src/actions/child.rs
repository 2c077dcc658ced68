#![expect(clippy::disallowed_methods, reason = "the one file of the enforcer that runs programs")]
//! A program of the admin's: without a shell, without our environment, and with a deadline after which it is ended.

use std::ffi::OsString;
use std::process::{Command, ExitStatus};
use std::time::Duration;

use bailiff_subprocess::{Late, Talk};

/// Where programs are looked for if we have no path ourselves.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Why a program did not do its work.
#[derive(Debug, thiserror::Error)]
pub(super) enum ChildError {
    #[error("no program is named")]
    Empty,
    #[error(transparent)]
    Run(#[from] bailiff_subprocess::ChildError),
    #[error("{0}")]
    Status(ExitStatus),
}

/// Runs a program with this on its standard input; its output is ignored.
pub(super) fn run(argv: &[String], input: &[u8], deadline: Duration) -> Result<(), ChildError> {
    let (name, arguments) = argv.split_first().ok_or(ChildError::Empty)?;
    let path = std::env::var_os("PATH").unwrap_or_else(|| OsString::from(PATH));
    let mut command = Command::new(name);
    command.args(arguments).env_clear().env("PATH", path).current_dir("/");
    let talk = Talk { input, heard: false, deadline, late: Late::Group };
    let status = bailiff_subprocess::run(command, &talk)?.status;
    if status.success() { Ok(()) } else { Err(ChildError::Status(status)) }
}
