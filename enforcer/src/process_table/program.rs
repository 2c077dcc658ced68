//! What a process runs at this moment: its program, its command line and its environment, bounded in size; a command line in
//! time as well.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::time::Duration;

use bailiff_engine::process::{CommandLine, Program};
use bailiff_snapshot::workload::LONGEST_PATH;
use bailiff_snapshot::{ProcessKey, redact, stat};
use rustix::fs::readlinkat;

use super::{Processes, directory, read};

/// A command line that takes longer is not known: reading it can wait on the process's memory for ever.
const PATIENCE: Duration = Duration::from_millis(200);

/// A thread waits for a command line that has not come, and may wait for ever: there is never a second one.
static WAITING: AtomicBool = AtomicBool::new(false);

impl Processes {
    /// What a process runs; what may not be read, is too long or does not come in time is not known.
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

    /// The path of a process's program, where we may read it.
    #[must_use]
    pub fn program(&self, pid: u32) -> Option<String> {
        let link = readlinkat(directory(&self.root, pid.to_string()).ok()?, "exe", Vec::new()).ok()?;
        link.into_string().ok()
    }

    /// The value of a variable in a process's environment, where we may read it.
    #[must_use]
    pub fn variable(&self, pid: u32, name: &str) -> Option<String> {
        let text = read(&directory(&self.root, pid.to_string()).ok()?, "environ").ok()?;
        let mut pairs = text.split(|byte| *byte == 0).filter_map(|pair| std::str::from_utf8(pair).ok());
        pairs.find_map(|pair| Some(pair.strip_prefix(name)?.strip_prefix('=')?.to_owned()))
    }
}

/// Read by a thread of its own, which is left to itself where it takes too long.
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
