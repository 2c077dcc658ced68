//! A stand-in for NVIDIA's MPS, after what drivers 535.261 and 550.163 were seen to do without a GPU. The wire between its parts
//! is its own; what people and programs see is not: files, processes, answers, exit codes and lines of logs.
//!
//! `FAKE_MPS_RELEASE` is `535` or `550` (the usual); with `FAKE_MPS_NO_GPU` no server starts, and after one has failed to,
//! `quit` ends the daemon with exit code 1 and its client exits with 1 and prints nothing, as NVIDIA's does in half of all cases;
//! with `FAKE_MPS_NO_START` no daemon starts. One command is its own: `fake_fault SERVER`, after which that server is in the state FAULT.
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

/// Says to a daemon's forked self that it is that.
const FORKED: &str = "FAKE_MPS_FORKED";

/// The control program: a daemon with `-d` or `-f`, else one that asks.
///
/// # Errors
/// If files, sockets or processes fail it.
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

/// Starts the daemon in a session of its own and waits until it is ready.
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
