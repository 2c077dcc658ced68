#![expect(clippy::disallowed_methods, reason = "the one file of the enforcer that runs programs")]
//! A program of the admin's: without a shell, without our environment, in a process group of its own, and with a
//! deadline after which it is ended.

use std::ffi::OsString;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags};
use rustix::io::{Errno, ioctl_fionbio};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};

use super::clock::Deadline;
use super::pidfd::wait;

/// More of what a program says is not read.
const MOST: usize = 64 << 10;
/// Where programs are looked for if we have no path ourselves.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// A program and how it is run.
#[derive(Debug, Clone, Copy)]
pub(super) struct Program<'a> {
    /// Its name and arguments.
    pub(super) argv: &'a [String],
    /// Its environment, besides PATH.
    pub(super) variables: &'a [(&'a str, &'a str)],
    /// What it reads.
    pub(super) input: &'a [u8],
    /// How long it may run.
    pub(super) deadline: Duration,
}

/// Why a program did not do its work.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failed {
    #[error("no program is named")]
    Empty,
    #[error("it cannot be run: {0}")]
    Start(#[from] io::Error),
    #[error("it cannot be waited for: {0}")]
    Wait(#[from] Errno),
    #[error("it did not end within {0:?} and was ended")]
    Late(Duration),
    #[error("{0}")]
    Status(ExitStatus),
}

/// Runs it and gives what it said; `heard` says whether that is wanted.
pub(super) fn run(program: &Program<'_>, heard: Heard) -> Result<Vec<u8>, Failed> {
    let (name, arguments) = program.argv.split_first().ok_or(Failed::Empty)?;
    let path = std::env::var_os("PATH").unwrap_or_else(|| OsString::from(PATH));
    let mut command = Command::new(name);
    command.args(arguments).env_clear().env("PATH", path).current_dir("/").process_group(0);
    command.envs(program.variables.iter().copied());
    command.stdin(Stdio::piped()).stderr(Stdio::null());
    command.stdout(if heard == Heard::Yes { Stdio::piped() } else { Stdio::null() });
    let mut child = command.spawn()?;
    let said = converse(&mut child, program);
    if said.is_err() {
        end(&mut child);
    }
    let status = child.wait()?;
    match said? {
        said if status.success() => Ok(said),
        _ => Err(Failed::Status(status)),
    }
}

/// Whether what a program says is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Heard {
    /// It is.
    Yes,
    /// It is dropped.
    No,
}

/// Gives it its input and takes its output, until it has ended.
fn converse(child: &mut Child, program: &Program<'_>) -> Result<Vec<u8>, Failed> {
    let deadline = Deadline::after(program.deadline);
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw).ok_or(Errno::SRCH)?;
    let handle = pidfd_open(pid, PidfdFlags::empty())?;
    let (mut input, mut output) = (child.stdin.take(), child.stdout.take());
    if let Some(input) = &input {
        ioctl_fionbio(input, true)?;
    }
    if let Some(output) = &output {
        ioctl_fionbio(output, true)?;
    }
    let mut rest = program.input;
    let mut said = Vec::new();
    loop {
        if rest.is_empty() {
            input = None;
        }
        let mut files = vec![PollFd::new(&handle, PollFlags::IN)];
        files.extend(output.as_ref().map(|output| PollFd::new(output, PollFlags::IN)));
        files.extend(input.as_ref().map(|input| PollFd::new(input, PollFlags::OUT)));
        wait(&mut files, Some(deadline))?;
        let ended = files.first().is_some_and(|handle| !handle.revents().is_empty());
        if input.as_ref().is_some_and(|input| !give(input, &mut rest)) {
            input = None;
        }
        if output.as_ref().is_some_and(|output| !take(output, &mut said)) {
            output = None;
        }
        if ended {
            return Ok(said);
        }
        if deadline.passed() {
            return Err(Failed::Late(program.deadline));
        }
    }
}

/// False once it reads no more.
fn give(input: impl AsFd, rest: &mut &[u8]) -> bool {
    match rustix::io::write(input, rest) {
        Ok(written) => {
            *rest = rest.get(written..).unwrap_or_default();
            true
        }
        Err(Errno::AGAIN | Errno::INTR) => true,
        Err(_) => false,
    }
}

/// Takes all there is; false once there is no more.
fn take(output: impl AsFd, said: &mut Vec<u8>) -> bool {
    let mut piece = [0; 4096];
    loop {
        match rustix::io::read(&output, &mut piece) {
            Ok(0) => return false,
            Ok(read) => {
                let room = MOST.saturating_sub(said.len()).min(read);
                said.extend_from_slice(piece.get(..room).unwrap_or_default());
            }
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => return true,
            Err(_) => return false,
        }
    }
}

/// Our child has not been waited for, so nobody else has its pid, nor its group's number.
fn end(child: &mut Child) {
    if let Some(group) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
        let _ = kill_process_group(group, Signal::KILL);
    }
    drop(child.kill());
}
