#![expect(clippy::disallowed_methods, reason = "starts this program again, as its own watchdog")]
//! Watchdog for processes that are stopped before SIGKILL, in case the enforcer dies in between. A child
//! process then continues them at once; if that fails, the enforcer's next start does, from the audit log.

use std::io::{self, BufRead, BufReader, Write};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use bailiff_proc::{Pidfd, readable};
use bailiff_snapshot::{ProcessKey, State};
use rustix::process::Signal;
use rustix::thread::{CapabilitySet, configure_capability_in_ambient_set};

use super::permit::{Permit, send};
use crate::audit::HeldStill;
use crate::clock::Deadline;
use crate::process_table::Processes;

/// Time after which the watchdog continues the processes even if the enforcer is alive.
const LONGEST: Duration = Duration::from_secs(5);
/// Time limit for the watchdog to acknowledge a request.
const ACK: Duration = Duration::from_secs(5);

/// Continues the processes that are unchanged and still stopped; returns their number.
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
    let Ok(Some(handle)) = Pidfd::open(key.pid) else { return false };
    let Ok(Some(person)) = proc_table.person(key.pid) else { return false };
    let same = person.stat.key == key && person.stat.state == State::Stopped;
    same && send(&handle, Signal::CONT, &Permit::to_continue()).unwrap_or(false)
}

/// The watchdog process; killed when dropped.
pub(super) struct Watchdog(Child);

impl Watchdog {
    /// Starts the watchdog, with `CAP_KILL` if the enforcer has it.
    pub(super) fn start(program: &Path) -> io::Result<Self> {
        let ambient = |raise| {
            let _ = configure_capability_in_ambient_set(CapabilitySet::KILL, raise);
        };
        // The capability is ambient only in this thread, and only while the child is started.
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

    /// Sends the watchdog what is about to be stopped, and waits for its acknowledgement.
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

/// Ends the watchdog, because nothing is stopped any more.
impl Drop for Watchdog {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// Runs the watchdog: reads one request per line, and continues all processes once its parent is gone or silent.
///
/// # Errors
/// If a request cannot be read.
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
