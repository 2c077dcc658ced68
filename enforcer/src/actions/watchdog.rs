#![expect(clippy::disallowed_methods, reason = "starts this program again, as its own watchdog")]
//! What is stopped before its SIGKILL does not stay so if this program dies meanwhile. It is in the audit log before it is
//! stopped, so that the next start continues it; and a child of ours continues it as soon as we are gone.

use std::io::{self, BufRead, BufReader, Write};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use bailiff_snapshot::{ProcessKey, State};
use rustix::process::Signal;
use rustix::thread::{CapabilitySet, configure_capability_in_ambient_set};

use super::permit::Permit;
use super::pidfd::{Handle, readable};
use crate::audit::HeldStill;
use crate::clock::Deadline;
use crate::process_table::Processes;

/// The watchdog continues what is stopped after this long, whatever its parent does.
const LONGEST: Duration = Duration::from_secs(5);
/// How long it may take until it has noted something.
const ACK: Duration = Duration::from_secs(5);

/// Continues what is still the same and still stopped; returns the number of processes.
#[must_use]
pub fn continue_stopped(still: &HeldStill) -> usize {
    if let Some(file) = &still.freezer {
        let opened = std::fs::OpenOptions::new().write(true).open(file);
        drop(opened.and_then(|mut file| file.write_all(b"0")));
    }
    let Ok(proc_table) = Processes::open(Path::new("/proc"), "/dev/nvidia") else { return 0 };
    let continued = still.processes.iter().filter(|key| continue_one(&proc_table, **key));
    continued.count()
}

fn continue_one(proc_table: &Processes, key: ProcessKey) -> bool {
    let Ok(Some(handle)) = Handle::open(key.pid) else { return false };
    let Ok(Some(person)) = proc_table.person(key.pid) else { return false };
    let same = person.stat.key == key && person.stat.state == State::Stopped;
    same && handle.send(Signal::CONT, &Permit::to_continue()).unwrap_or(false)
}

/// The child, until it is dropped.
pub(super) struct Watchdog(Child);

impl Watchdog {
    /// Starts it, with the right to signal where we have it.
    pub(super) fn start(program: &Path) -> io::Result<Self> {
        let ambient = |raise| {
            let _ = configure_capability_in_ambient_set(CapabilitySet::KILL, raise);
        };
        // Only this thread has it, and only while the child is made.
        ambient(true);
        let mut command = Command::new(program);
        command
            .arg0("bailiff-enforcer")
            .arg("watchdog")
            .env_clear()
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .process_group(0);
        let child = command.spawn();
        ambient(false);
        child.map(Self)
    }

    /// Back once it has noted what is about to be stopped.
    pub(super) fn watch(&mut self, still: &HeldStill) -> io::Result<()> {
        let (Some(input), Some(output)) = (&mut self.0.stdin, &mut self.0.stdout) else {
            return Err(io::ErrorKind::BrokenPipe.into());
        };
        let mut line = serde_json::to_vec(still)?;
        line.push(b'\n');
        input.write_all(&line)?;
        if !readable(&[output.as_fd()], Some(Deadline::after(ACK)))?.contains(&true) {
            return Err(io::ErrorKind::TimedOut.into());
        }
        match rustix::io::read(output, &mut [0_u8; 8])? {
            0 => Err(io::ErrorKind::BrokenPipe.into()),
            _ => Ok(()),
        }
    }
}

/// Nothing is held still any more.
impl Drop for Watchdog {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// The child's side: notes each line, and continues all of it once its parent is gone or has been silent for too long.
///
/// # Errors
/// If it cannot read what is to be continued.
pub fn run() -> io::Result<()> {
    let mut input = BufReader::new(io::stdin());
    let mut noted: Vec<HeldStill> = Vec::new();
    let mut line = String::new();
    while readable(&[input.get_ref().as_fd()], Some(Deadline::after(LONGEST)))?.contains(&true) {
        line.clear();
        if input.read_line(&mut line)? == 0 {
            break;
        }
        noted.push(serde_json::from_str(&line)?);
        io::stdout().write_all(b"ok\n")?;
        io::stdout().flush()?;
    }
    for still in &noted {
        let _ = continue_stopped(still);
    }
    Ok(())
}
