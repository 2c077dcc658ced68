//! Running programs with a deadline; a program that hangs is killed.

#![expect(clippy::disallowed_methods, reason = "starts programs and finds them")]

use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use bailiff_lifecycle::exit::plain;
use bailiff_lifecycle::permissions::FilePermissions;
use bailiff_subprocess::{ChildError, Talk};

/// Finds another program of this package: next to this one, else in `PATH`. A copy of this program can be in a directory
/// such as `/tmp`, where others can put a program, so one that other users can change is not used.
pub(super) fn find_program(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let beside = env::current_exe().ok().and_then(|exe| Some(exe.parent()?.join(name)));
    beside
        .filter(|file| FilePermissions::Strict.check(file).is_ok())
        .into_iter()
        .chain(env::split_paths(&path).map(|directory| directory.join(name)))
        .find(|file| file.is_file())
}

/// Runs a program with arguments and returns its output, or why there is none.
pub(crate) fn output(program: &Path, args: &[&str], deadline: Duration) -> Result<Output, String> {
    let mut command = Command::new(program);
    command.args(args);
    run(command, deadline)
}

/// Returns a command that starts this program, even if an upgrade has replaced its file.
pub(super) fn itself() -> Command {
    Command::new("/proc/self/exe")
}

/// Runs a command until it exits or the deadline passes.
pub(super) fn run(command: Command, deadline: Duration) -> Result<Output, String> {
    bailiff_subprocess::run(command, &Talk::within(deadline)).map_err(|error| match error {
        ChildError::Start(error) | ChildError::Wait(error) => plain(&error),
        ChildError::Late(deadline) => format!("it did not respond within {deadline:?}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hung_program_is_killed_at_the_deadline() {
        let sleep = output(Path::new("sleep"), &["infinity"], Duration::from_millis(20));
        assert_eq!(sleep.unwrap_err(), "it did not respond within 20ms");
        let echo = output(Path::new("echo"), &["a"], Duration::from_mins(1)).unwrap();
        assert_eq!((echo.stdout.as_slice(), echo.status.code()), (&b"a\n"[..], Some(0)));
        let missing = output(Path::new("/nonexistent/program"), &[], Duration::from_mins(1));
        assert_eq!(missing.unwrap_err(), "no such file or directory");
    }
}
