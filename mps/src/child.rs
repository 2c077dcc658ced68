#![expect(
    clippy::disallowed_methods,
    reason = "the one file of this crate that runs programs and knows their deadlines"
)]
//! A child with a deadline: it reads one text, says a bounded one, and is killed with its process group when it is late.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, ioctl_fionbio};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};

/// More than this of either output is dropped.
const MOST: usize = 256 << 10;

/// What a child is, and how it is run.
#[derive(Debug)]
pub(crate) struct Run<'a> {
    pub(crate) program: &'a std::path::Path,
    pub(crate) words: &'a [&'a str],
    /// Its whole environment.
    pub(crate) environment: Vec<(OsString, OsString)>,
    pub(crate) input: &'a [u8],
    pub(crate) deadline: Duration,
    pub(crate) late: Late,
}

/// Who is killed when the time is up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Late {
    /// The child, and all that it has started.
    Group,
    /// The child alone: what it has started may be a daemon.
    Child,
}

/// What a child said.
#[derive(Debug)]
pub(crate) struct Said {
    pub(crate) status: ExitStatus,
    pub(crate) output: Vec<u8>,
    pub(crate) errors: Vec<u8>,
}

/// Why there is nothing to hear.
#[derive(Debug)]
pub(crate) enum Failed {
    Start(io::Error),
    Wait(io::Error),
    Late,
}

/// The environment of this program.
pub(crate) fn own_environment() -> Vec<(OsString, OsString)> {
    std::env::vars_os().collect()
}

/// Runs it to its end, or to its deadline.
pub(crate) fn run(run: &Run<'_>) -> Result<Said, Failed> {
    let mut command = Command::new(run.program);
    command.args(run.words).env_clear().envs(run.environment.iter().cloned());
    command.current_dir("/").process_group(0);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(Failed::Start)?;
    let heard =
        Talk::begin(&mut child, run.input).map_err(Failed::Wait).and_then(|talk| talk.end(run.deadline));
    if heard.is_err() {
        kill(&mut child, run.late);
    }
    let (output, errors) = match heard {
        Ok(heard) => heard,
        // A child in an uninterruptible wait does not take the signal: nobody waits for it.
        Err(failed) => {
            drop(std::thread::spawn(move || child.wait()));
            return Err(failed);
        }
    };
    let status = child.wait().map_err(Failed::Wait)?;
    Ok(Said { status, output, errors })
}

/// Our child has not been waited for, so nobody else has its pid, nor its group's number.
fn kill(child: &mut Child, late: Late) {
    if let (Late::Group, Some(group)) = (late, pid(child)) {
        let _ = kill_process_group(group, Signal::KILL);
    }
    drop(child.kill());
}

fn pid(child: &Child) -> Option<Pid> {
    i32::try_from(child.id()).ok().and_then(Pid::from_raw)
}

/// A conversation with a child. It ends with the child, not with its output: a daemon that it has started may keep that.
struct Talk<'a> {
    handle: OwnedFd,
    input: Option<OwnedFd>,
    rest: &'a [u8],
    outputs: [Option<OwnedFd>; 2],
    heard: [Vec<u8>; 2],
}

impl<'a> Talk<'a> {
    fn begin(child: &mut Child, input: &'a [u8]) -> io::Result<Self> {
        let handle = pidfd_open(pid(child).ok_or(Errno::SRCH)?, PidfdFlags::empty())?;
        let to = child.stdin.take().map(OwnedFd::from);
        let outputs = [child.stdout.take().map(OwnedFd::from), child.stderr.take().map(OwnedFd::from)];
        for file in to.iter().chain(outputs.iter().flatten()) {
            ioctl_fionbio(file, true)?;
        }
        Ok(Self { handle, input: to, rest: input, outputs, heard: [Vec::new(), Vec::new()] })
    }

    fn end(mut self, patience: Duration) -> Result<(Vec<u8>, Vec<u8>), Failed> {
        let began = Instant::now();
        loop {
            if self.rest.is_empty() {
                self.input = None;
            }
            let left = patience.saturating_sub(began.elapsed());
            let ended = self.wait(left).map_err(|error| Failed::Wait(error.into()))?;
            if self.input.as_ref().is_some_and(|input| !give(input, &mut self.rest)) {
                self.input = None;
            }
            for (output, heard) in self.outputs.iter_mut().zip(&mut self.heard) {
                if output.as_ref().is_some_and(|output| !take(output, heard)) {
                    *output = None;
                }
            }
            if ended {
                let [output, errors] = self.heard;
                return Ok((output, errors));
            }
            if left.is_zero() {
                return Err(Failed::Late);
            }
        }
    }

    /// Waits until something can be done; tells whether the child has ended.
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

/// Takes what there is, a bounded number of pieces at a time; false once there is no more.
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
