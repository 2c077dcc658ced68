//! Program, command line and environment of a process at this time, limited in size; the command line also in
//! time.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::time::Duration;

use bailiff_engine::process::{CommandLine, Program};
use bailiff_snapshot::workload::LONGEST_PATH;
use bailiff_snapshot::{ProcessKey, redact, stat};
use rustix::fs::readlinkat;

use super::{Processes, directory, read};

/// Deadline of reading a command line: reading it may block on the process's memory forever.
const PATIENCE: Duration = Duration::from_millis(200);

/// Whether a thread waits for a command line; a second one is not started, because the first may wait forever.
static WAITING: AtomicBool = AtomicBool::new(false);

impl Processes {
    /// Returns the program that a process runs. What is unreadable, too long or late is unknown.
    #[must_use]
    pub fn runs(&self, key: ProcessKey, line: CommandLine) -> Program {
        let Ok(process) = directory(&self.root, key.pid.to_string()) else { return Program::default() };
        let now = read(&process, "stat").ok().and_then(|text| stat::parse(&text));
        if now.is_none_or(|now| now.key != key) {
            return Program::default();
        }
        let exe = readlinkat(&process, "exe", Vec::new()).ok();
        let exe = exe.map(|path| path.to_string_lossy().into_owned());
        Program {
            exe: exe.filter(|path| path.len() <= LONGEST_PATH),
            command: if line == CommandLine::Needed { command(process) } else { None },
        }
    }

    /// Returns the path of a process's program, if it is readable.
    #[must_use]
    pub fn program(&self, pid: u32) -> Option<String> {
        let link = readlinkat(directory(&self.root, pid.to_string()).ok()?, "exe", Vec::new()).ok()?;
        link.into_string().ok()
    }

    /// Returns the value of an environment variable of a process, if it is readable.
    #[must_use]
    pub fn variable(&self, pid: u32, name: &str) -> Option<String> {
        let text = read(&directory(&self.root, pid.to_string()).ok()?, "environ").ok()?;
        let mut pairs = text.split(|byte| *byte == 0).filter_map(|pair| std::str::from_utf8(pair).ok());
        pairs.find_map(|pair| Some(pair.strip_prefix(name)?.strip_prefix('=')?.to_owned()))
    }
}

/// Reads a command line in a thread, which is abandoned after the deadline.
fn command(process: OwnedFd) -> Option<String> {
    if WAITING.swap(true, Ordering::AcqRel) {
        return None;
    }
    let (answer, line) = channel();
    let reader = std::thread::Builder::new().spawn(move || {
        let line = read(&process, "cmdline").ok().map(|line| redact::command(&line));
        WAITING.store(false, Ordering::Release);
        // The receiver may have given up.
        let _ = answer.send(line);
    });
    if reader.is_err() {
        WAITING.store(false, Ordering::Release);
        return None;
    }
    line.recv_timeout(PATIENCE).ok().flatten().filter(|line| !line.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn program_of_this_process_is_known_and_of_another_start_is_not() {
        let proc_table = Processes::open(Path::new("/proc"), "/dev/nvidia").unwrap();
        let key = proc_table.person(std::process::id()).unwrap().unwrap().stat.key;
        let own = std::env::current_exe().unwrap().display().to_string();
        let runs = proc_table.runs(key, CommandLine::Needed);
        assert_eq!(runs.exe.as_deref(), Some(own.as_str()));
        let name = own.rsplit('/').next().unwrap();
        assert!(runs.command.unwrap().contains(name));
        assert_eq!(proc_table.runs(key, CommandLine::Ignored).command, None);
        let other = ProcessKey { start_ticks: key.start_ticks + 1, ..key };
        assert_eq!(proc_table.runs(other, CommandLine::Needed), Program::default());
    }
}
