//! Commands of `bailiff` that real users run.

use std::fs::File;
use std::process::Command;

use crate::home::Home;
use crate::programs;

/// Runs a command of `bailiff` that uses the enforcer's socket for users, as the user with this uid. Returns the exit code and
/// the output.
///
/// # Panics
/// If the program cannot be started.
pub fn as_user(uid: u32, home: &Home, arguments: &[&str]) -> (Option<i32>, String) {
    // The user cannot traverse the directories on the path to the program.
    let program = File::open(programs::bailiff()).expect("the program is built");
    let mut command = Command::new("setpriv");
    let (user, group) = (format!("--reuid={uid}"), format!("--regid={uid}"));
    command.args([&user, &group, "--clear-groups", "/proc/self/fd/0"]).stdin(program).args(arguments);
    let output = command.arg("--socket").arg(home.path().join("user.sock")).output().expect("setpriv starts");
    let text = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8_lossy(&text).into_owned())
}
