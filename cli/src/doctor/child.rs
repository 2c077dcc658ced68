//! Programs that are asked, with a deadline: one that hangs is killed and not waited for.

#![expect(clippy::disallowed_methods, reason = "starts programs and finds them")]

use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use bailiff_child::{ChildError, Talk};
use bailiff_lifecycle::exit::plain;

/// A program of ours: beside this one, else where the shell would find it.
pub(super) fn ours(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let beside = env::current_exe().ok().and_then(|exe| Some(exe.parent()?.to_owned()));
    beside
        .into_iter()
        .chain(env::split_paths(&path))
        .map(|directory| directory.join(name))
        .find(|file| file.is_file())
}

/// What a program says; why not, where it does not say it in time.
pub(crate) fn said(program: &Path, words: &[&str], patience: Duration) -> Result<Output, String> {
    let mut command = Command::new(program);
    command.args(words);
    run(command, patience)
}

/// This very program, also after an upgrade has replaced its file.
pub(super) fn itself() -> Command {
    Command::new("/proc/self/exe")
}

/// Runs it to its end, or to its deadline.
pub(super) fn run(command: Command, patience: Duration) -> Result<Output, String> {
    bailiff_child::run(command, &Talk::within(patience)).map_err(|failed| match failed {
        ChildError::Start(error) | ChildError::Wait(error) => plain(&error),
        ChildError::Late(patience) => format!("it did not answer within {patience:?}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_hangs_is_not_waited_for() {
        let sleep = said(Path::new("sleep"), &["infinity"], Duration::from_millis(20));
        assert_eq!(sleep.unwrap_err(), "it did not answer within 20ms");
        let echo = said(Path::new("echo"), &["a"], Duration::from_mins(1)).unwrap();
        assert_eq!((echo.stdout.as_slice(), echo.status.code()), (&b"a\n"[..], Some(0)));
        let missing = said(Path::new("/nonexistent/program"), &[], Duration::from_mins(1));
        assert_eq!(missing.unwrap_err(), "no such file or directory");
    }
}
