//! One of our daemons that serves pages: started, queried, and terminated with its test.

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};

use bailiff_snapshot::State;
use rustix::process::{Pid, Signal, kill_process};

use crate::http;
use crate::page::Page;
use crate::wait::until;

/// A running daemon.
pub struct Daemon {
    name: &'static str,
    child: Child,
    address: SocketAddr,
    log: Arc<Mutex<Vec<String>>>,
}

impl Daemon {
    /// Starts a command line, and waits until it logs its address.
    ///
    /// # Panics
    /// If the daemon does not listen.
    pub fn spawn(name: &'static str, mut command: Command) -> Self {
        let mut child = command.stderr(Stdio::piped()).spawn().expect("the program starts");
        let stderr = child.stderr.take().expect("stderr is piped");
        let log = Arc::new(Mutex::new(Vec::new()));
        let lines = Arc::clone(&log);
        std::thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                lines.lock().unwrap_or_else(PoisonError::into_inner).push(line);
            }
        });
        let mut daemon = Self { name, child, address: SocketAddr::from(([0, 0, 0, 0], 0)), log };
        daemon.address = until("the program says where it listens", || {
            daemon.log().lines().find_map(listening).or_else(|| {
                let ended = daemon.child.try_wait().expect("our own child can be waited for");
                assert!(ended.is_none(), "the {name} ended");
                None
            })
        });
        daemon
    }

    /// Returns the address on which the daemon listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the daemon's pid.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns the pids of the daemon and its descendants.
    ///
    /// # Panics
    /// If `/proc` cannot be read.
    pub fn processes(&self) -> Vec<u32> {
        let all = fs::read_dir("/proc").expect("there is a /proc");
        let pids = all.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok());
        pids.filter(|pid| self.is_above(*pid)).collect()
    }

    fn is_above(&self, pid: u32) -> bool {
        let mut pid = pid;
        while pid > 1 && pid != self.pid() {
            let Ok(stat) = fs::read(format!("/proc/{pid}/stat")) else { return false };
            let Some(stat) = bailiff_snapshot::stat::parse(&stat) else { return false };
            pid = stat.ppid;
        }
        pid == self.pid()
    }

    /// Returns the sum of the highest memory use of all its processes, in MiB.
    pub fn peak_mib(&self) -> u64 {
        let peak = |pid| {
            let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
            let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
            line.trim().strip_suffix(" kB")?.parse::<u64>().ok()
        };
        self.processes().into_iter().filter_map(peak).sum::<u64>() / 1024
    }

    /// Returns the log so far.
    pub fn log(&self) -> String {
        self.log.lock().unwrap_or_else(PoisonError::into_inner).join("\n")
    }

    /// Waits until the daemon has logged this text. The log is read asynchronously.
    pub fn until_logged(&self, text: &str) {
        until(text, || self.log().contains(text).then_some(()));
    }

    /// Returns the current page.
    ///
    /// # Panics
    /// If the daemon does not respond with a page.
    pub fn page(&self) -> Page {
        let answer = http::get(self.address, "/metrics", &[]).expect("the program responds");
        assert_eq!(answer.status, 200, "{}", answer.text());
        Page::read(&answer.text())
    }

    /// Reads pages until the closure returns a value.
    pub fn until<T>(&self, what: &str, mut query: impl FnMut(&Page) -> Option<T>) -> T {
        until(what, || query(&self.page()))
    }

    /// Sends the daemon a signal.
    ///
    /// # Panics
    /// If the signal cannot be sent.
    pub fn signal(&self, signal: Signal) {
        // The pid cannot be reused before the daemon has been waited for.
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw).expect("a pid");
        kill_process(pid, signal).expect("our own child can be signalled");
    }

    /// Runs `act` while the daemon is stopped by SIGSTOP.
    ///
    /// # Panics
    /// If the daemon cannot be stopped.
    pub fn while_stopped<T>(&self, act: impl FnOnce() -> T) -> T {
        self.signal(Signal::STOP);
        until("it stands still", || {
            let stat = bailiff_snapshot::stat::parse(&fs::read(format!("/proc/{}/stat", self.pid())).ok()?)?;
            (stat.state == State::Stopped).then_some(())
        });
        let done = act();
        self.signal(Signal::CONT);
        done
    }

    /// Sends SIGTERM and returns the exit code.
    ///
    /// # Panics
    /// If the daemon does not exit.
    pub fn stop(&mut self) -> Option<i32> {
        self.signal(Signal::TERM);
        self.ended()
    }

    /// Kills the daemon and waits until it has exited.
    ///
    /// # Panics
    /// If the daemon cannot be killed.
    pub fn kill(&mut self) {
        self.child.kill().expect("our own child can be ended");
        self.child.wait().expect("our own child can be waited for");
    }

    /// Waits until the daemon has exited, and returns its exit code.
    ///
    /// # Panics
    /// If the daemon does not exit.
    pub fn ended(&mut self) -> Option<i32> {
        until("the program ends", || self.child.try_wait().expect("our own child can be waited for")).code()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("the {}'s log:\n{}", self.name, self.log());
        }
    }
}

fn listening(line: &str) -> Option<SocketAddr> {
    let (_, address) = line.split_once("address=")?;
    address.split_whitespace().next()?.trim_matches('"').parse().ok()
}
