//! Finds the programs that rules name, and checks that no other user can change them.

#![expect(clippy::disallowed_methods, reason = "reads PATH")]

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bailiff_engine::policy::mail::Recipient;
use bailiff_engine::policy::{Action, Channel, Policy};
use bailiff_lifecycle::file;
use bailiff_lifecycle::permissions::FilePermissions;

/// Search path for programs if our own environment has no PATH.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Deadline of the checks when rules are loaded. It is shorter than that of reading the rules.
const PATIENCE: Duration = Duration::from_millis(500);

/// Returns the search path for programs.
pub(crate) fn search_path() -> OsString {
    std::env::var_os("PATH").unwrap_or_else(|| OsString::from(PATH))
}

/// Checks the permissions of a program, which is found as when it is run in `/`. May hang.
///
/// # Errors
/// If other users can change it. A missing program is no error here, because running it reports that.
pub(crate) fn check(name: &str, permissions: FilePermissions) -> io::Result<()> {
    match permissions {
        FilePermissions::Any => Ok(()),
        FilePermissions::Strict => located(name).map_or(Ok(()), |path| permissions.check(&path)),
    }
}

/// Checks the permissions of several programs. May hang.
///
/// # Errors
/// If other users can change one of them.
pub(crate) fn check_all(names: &[String], permissions: FilePermissions) -> io::Result<()> {
    names.iter().try_for_each(|name| check(name, permissions))
}

/// As [`check_all`], but accepts the programs if their file system does not respond. They are checked again before they
/// are run, and then they are not run.
pub(crate) fn check_in_time(names: Vec<String>, permissions: FilePermissions) -> io::Result<()> {
    // The path is only a key: while one check hangs, no further one is started.
    let key = Path::new("the programs of the rules");
    match file::within(key, PATIENCE, move |_| check_all(&names, permissions)) {
        Err(error) if error.kind() == io::ErrorKind::TimedOut => Ok(()),
        checked => checked,
    }
}

/// Returns the programs that a policy names.
pub(crate) fn named_in(policy: &Policy) -> Vec<String> {
    let steps = policy.rules.iter().flat_map(|rule| &rule.then).filter_map(|step| match &step.action {
        Action::Exec(argv) => argv.first(),
        _ => None,
    });
    let channels = policy.channels.values().filter_map(|channel| match channel {
        Channel::Exec(argv) => argv.first(),
        Channel::Mail(mail) => match &mail.to {
            Recipient::Program(argv) => argv.first(),
            Recipient::Address(_) | Recipient::Gecos => None,
        },
        _ => None,
    });
    steps.chain(channels).cloned().collect()
}

/// Returns the path of a program, which is found as when it is run in `/`. May hang.
pub(crate) fn located(name: &str) -> Option<PathBuf> {
    if name.contains('/') {
        return Some(Path::new("/").join(name)).filter(|path| path.exists());
    }
    let directories = search_path();
    let places = std::env::split_paths(&directories).map(|directory| Path::new("/").join(directory));
    places.map(|directory| directory.join(name)).find(|path| path.is_file())
}
