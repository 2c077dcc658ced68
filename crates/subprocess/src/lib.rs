#![expect(clippy::disallowed_methods, reason = "knows the deadlines of programs")]
//! Runs a child program with a deadline, an input and a bounded output. At the deadline, the child is killed together
//! with its process group, but not waited for, because a child in uninterruptible sleep does not react to signals.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc::{SendError, sync_channel};
use std::thread::Builder;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, ioctl_fionbio};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};

/// Maximum size of each output. Further output is dropped.
pub const MOST: usize = 256 << 10;

/// Options of a run.
#[derive(Debug, Clone, Copy)]
pub struct Talk<'a> {
    /// Standard input.
    pub input: &'a [u8],
    /// Whether to read the child's output. Otherwise the output goes to `/dev/null`.
    pub heard: bool,
    /// Time limit.
    pub deadline: Duration,
    /// Which processes are killed at the deadline.
    pub late: Late,
}

impl Talk<'_> {
    /// Returns options without input and with output.
    pub const fn within(deadline: Duration) -> Self {
        Self { input: b"", heard: true, deadline, late: Late::Group }
    }
}

/// Which processes are killed at the deadline.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Late {
    /// The child and all processes that it started.
    Group,
    /// Only the child, because a process that it started may be a daemon.
    Child,
}

/// Why a program did not finish.
#[derive(Debug, thiserror::Error)]
pub enum ChildError {
    /// The program could not be started.
    #[error("cannot run the program: {0}")]
    Start(io::Error),
    /// The exit status is unknown.
    #[error("cannot wait for the program: {0}")]
    Wait(io::Error),
    /// The program was killed at the deadline.
    #[error("the program did not exit within {0:?} and was killed")]
    Late(Duration),
}

/// Runs a program in its own process group until it exits or until the deadline. Processes that it started may keep
/// its outputs open; they are not waited for.
///
/// # Errors
/// If the program cannot be started, or does not exit in time.
pub fn run(mut command: Command, talk: &Talk<'_>) -> Result<Output, ChildError> {
    let began = Instant::now();
    let output = || if talk.heard { Stdio::piped() } else { Stdio::null() };
    command.process_group(0).stdin(Stdio::piped()).stdout(output()).stderr(output());
    let mut child = start(command, talk)?;
    let heard = Pipes::begin(&mut child, talk.input)
        .map_err(ChildError::Wait)
        .and_then(|pipes| pipes.end(began, talk.deadline));
    match heard {
        Ok([stdout, stderr]) => {
            Ok(Output { status: child.wait().map_err(ChildError::Wait)?, stdout, stderr })
        }
        Err(failed) => {
            kill(&mut child, talk.late);
            drop(std::thread::spawn(move || child.wait()));
            Err(failed)
        }
    }
}

/// Starts the program in a separate thread, because exec from a hung file system may block. If the program starts
/// after the deadline, it is killed at once.
fn start(mut command: Command, talk: &Talk<'_>) -> Result<Child, ChildError> {
    let late = talk.late;
    // A rendezvous channel: the child is either received or returned to the sender, but never lost between the two.
    let (sender, receiver) = sync_channel(0);
    let starting = Builder::new().name("start".to_owned()).spawn(move || {
        if let Err(SendError(Ok(mut child))) = sender.send(command.spawn()) {
            kill(&mut child, late);
            drop(child.wait());
        }
    });
    starting.map_err(ChildError::Start)?;
    match receiver.recv_timeout(talk.deadline) {
        Ok(started) => started.map_err(ChildError::Start),
        Err(_) => Err(ChildError::Late(talk.deadline)),
    }
}

/// Kills the child. It has not been waited for, so its pid and its group id cannot have been reused.
fn kill(child: &mut Child, late: Late) {
    if let (Late::Group, Some(group)) = (late, pid(child)) {
        let _ = kill_process_group(group, Signal::KILL);
    }
    drop(child.kill());
}

fn pid(child: &Child) -> Option<Pid> {
    i32::try_from(child.id()).ok().and_then(Pid::from_raw)
}

/// Pipes of a running child.
struct Pipes<'a> {
    handle: OwnedFd,
    input: Option<OwnedFd>,
    rest: &'a [u8],
    outputs: [Option<OwnedFd>; 2],
    heard: [Vec<u8>; 2],
}

impl<'a> Pipes<'a> {
    fn begin(child: &mut Child, input: &'a [u8]) -> io::Result<Self> {
        let handle = pidfd_open(pid(child).ok_or(Errno::SRCH)?, PidfdFlags::empty())?;
        let to = child.stdin.take().map(OwnedFd::from);
        let outputs = [child.stdout.take().map(OwnedFd::from), child.stderr.take().map(OwnedFd::from)];
        for file in to.iter().chain(outputs.iter().flatten()) {
            ioctl_fionbio(file, true)?;
        }
        Ok(Self { handle, input: to, rest: input, outputs, heard: [Vec::new(), Vec::new()] })
    }

    fn end(mut self, began: Instant, deadline: Duration) -> Result<[Vec<u8>; 2], ChildError> {
        loop {
            if self.rest.is_empty() {
                self.input = None;
            }
            let left = deadline.saturating_sub(began.elapsed());
            let ended = self.wait(left).map_err(|error| ChildError::Wait(error.into()))?;
            if self.input.as_ref().is_some_and(|input| !give(input, &mut self.rest)) {
                self.input = None;
            }
            for (output, heard) in self.outputs.iter_mut().zip(&mut self.heard) {
                if output.as_ref().is_some_and(|output| !take(output, heard)) {
                    *output = None;
                }
            }
            if ended {
                return Ok(self.heard);
            }
            if left.is_zero() {
                return Err(ChildError::Late(deadline));
            }
        }
    }

    /// Waits for an event. Returns whether the child has exited.
    fn wait(&self, left: Duration) -> Result<bool, Errno> {
        let mut files = vec![PollFd::new(&self.handle, PollFlags::IN)];
        files.extend(self.outputs.iter().flatten().map(|output| PollFd::new(output, PollFlags::IN)));
        files.extend(self.input.as_ref().map(|input| PollFd::new(input, PollFlags::OUT)));
        let left = Timespec::try_from(left).ok();
        match poll(&mut files, left.as_ref()) {
            Ok(_) => Ok(files.first().is_some_and(|handle| !handle.revents().is_empty())),
            Err(Errno::INTR) => Ok(false),
            Err(error) => Err(error),
        }
    }
}

/// Writes pending input. Returns false once the child no longer reads.
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

/// Reads available output, in a bounded number of pieces. Returns false at the end of the output.
fn take(output: impl AsFd, heard: &mut Vec<u8>) -> bool {
    let mut piece = [0; 4096];
    for _ in 0..64 {
        match rustix::io::read(&output, &mut piece) {
            Ok(0) => return false,
            Ok(read) => {
                let room = MOST.saturating_sub(heard.len()).min(read);
                heard.extend_from_slice(piece.get(..room).unwrap_or_default());
            }
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => return true,
            Err(_) => return false,
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, talk: &Talk<'_>) -> Result<Output, ChildError> {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", script]);
        run(command, talk)
    }

    #[test]
    fn it_reads_says_and_ends() {
        let long = vec![b'x'; 1 << 20];
        let talk = Talk { input: &long, ..Talk::within(Duration::from_mins(1)) };
        let output = shell("wc -c; echo no >&2; exit 3", &talk).unwrap();
        assert_eq!((output.stdout.as_slice(), output.stderr.as_slice()), (&b"1048576\n"[..], &b"no\n"[..]));
        assert_eq!(output.status.code(), Some(3));
        let output = shell("cat", &talk).unwrap();
        assert_eq!(output.stdout.len(), MOST, "further output is dropped");
        let unheard = shell("echo a", &Talk { heard: false, ..talk }).unwrap();
        assert!(unheard.stdout.is_empty());
    }

    #[test]
    fn late_program_and_its_group_are_killed_and_not_waited_for() {
        let directory = tempfile::tempdir().unwrap();
        let note = directory.path().join("pid");
        let script = format!("sleep 1000 & echo $! > {0}.new; mv {0}.new {0}; wait", note.display());
        let talk = Talk::within(Duration::from_millis(300));
        let late = shell(&script, &talk).unwrap_err();
        assert_eq!(late.to_string(), "the program did not exit within 300ms and was killed");
        let grandchild = std::fs::read_to_string(&note).unwrap();
        let directory = format!("/proc/{}/cmdline", grandchild.trim());
        let began = Instant::now();
        while std::fs::read(&directory).is_ok_and(|words| !words.is_empty()) {
            assert!(began.elapsed() < Duration::from_mins(1), "{grandchild} still runs");
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_daemon_that_keeps_the_outputs_is_not_waited_for() {
        let output = shell("sleep 1000 & echo $!", &Talk::within(Duration::from_mins(1))).unwrap();
        let daemon: i32 = String::from_utf8(output.stdout).unwrap().trim().parse().unwrap();
        rustix::process::kill_process(Pid::from_raw(daemon).unwrap(), Signal::KILL).unwrap();
    }

    #[test]
    fn what_cannot_be_started_says_so() {
        let missing = run(Command::new("/nonexistent/program"), &Talk::within(Duration::from_mins(1)));
        assert!(matches!(missing, Err(ChildError::Start(_))), "{missing:?}");
    }
}
