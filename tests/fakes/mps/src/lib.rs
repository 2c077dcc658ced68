//! A stand-in for NVIDIA's MPS, based on the observed behaviour of drivers 535.261 and 550.163 without a GPU. The
//! protocol between its parts is its own, but everything that users and programs see is like NVIDIA's: files,
//! processes, replies, exit codes and log lines.
//!
//! * `FAKE_MPS_RELEASE` is `535` or `550` (the default).
//! * With `FAKE_MPS_NO_GPU`, servers do not start. After a server has failed to start, `quit` makes the daemon exit
//!   with code 1, and its client prints nothing and exits with 1, as NVIDIA's does in half of all cases.
//! * With `FAKE_MPS_NO_START`, the daemon does not start.
//!
//! One command does not exist in NVIDIA's MPS: `fake_fault SERVER` puts that server into the state FAULT.
#![expect(
    clippy::disallowed_methods,
    reason = "a program of its own, which has files, processes and a clock"
)]

mod answers;
mod client;
mod daemon;
mod places;
mod sockets;
mod state;

use std::env;
use std::io::{self, BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode, Stdio};

pub use places::Places;
pub use sockets::{connect, receive, send};

/// Tells a forked daemon that it is the forked process.
const FORKED: &str = "FAKE_MPS_FORKED";

/// The control program: a daemon with `-d` or `-f`, otherwise a control client.
///
/// # Errors
/// If an operation on a file, socket or process fails.
pub fn control() -> io::Result<ExitCode> {
    let words: Vec<String> = env::args().skip(1).collect();
    let has = |flag: &str| words.iter().any(|word| word == flag);
    let places = Places::of_environment();
    match (has("-d"), has("-f")) {
        (false, false) => client::query(&places),
        (true, _) if env::var_os(FORKED).is_none() => background(&words),
        _ => daemon::serve(&places),
    }
}

/// Starts the daemon in its own session, and waits until it is ready.
fn background(words: &[String]) -> io::Result<ExitCode> {
    let mut command = Command::new(env::current_exe()?);
    command.arg0("nvidia-cuda-mps-control").args(words).env(FORKED, "1").current_dir("/");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn()?;
    let mut line = String::new();
    if let Some(output) = child.stdout.take() {
        BufReader::new(output).read_line(&mut line)?;
    }
    if line.trim() == daemon::READY {
        return Ok(ExitCode::SUCCESS);
    }
    eprint!("{line}");
    Ok(ExitCode::FAILURE)
}
