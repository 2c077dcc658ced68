//! What a user sees on a terminal: the line printed at login, and `bailiff info --watch` in tmux.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::bench::usage::Usage;
use crate::programs;
use crate::wait::until;

/// Prints the login line once, and returns the duration, which includes the start of the process.
///
/// # Panics
/// If nothing is printed.
pub fn login(stream: &Path) -> Duration {
    let began = Instant::now();
    let output = Command::new(programs::bailiff())
        .args(["info", "--brief", "--user", "root", "--stream"])
        .arg(stream)
        .output()
        .expect("bailiff starts");
    let took = began.elapsed();
    assert!(String::from_utf8_lossy(&output.stdout).contains("GiB"), "{output:?}");
    took
}

/// `bailiff info --watch` in a tmux of its own, which ends with this value.
pub struct Watch {
    socket: TempDir,
    pid: u32,
}

impl Watch {
    /// Starts tmux with this many columns and rows, and waits for the first report.
    ///
    /// # Panics
    /// If tmux does not start.
    pub fn start(stream: &Path, (columns, rows): (u16, u16)) -> Self {
        let mut watch = Self { socket: tempfile::tempdir().expect("a temporary directory"), pid: 0 };
        let program = programs::bailiff();
        let line = format!("exec {} info --watch --stream {}", program.display(), stream.display());
        let (columns, rows) = (columns.to_string(), rows.to_string());
        watch.tmux(&["-f", "/dev/null", "new-session", "-d", "-x", &columns, "-y", &rows, &line]);
        until("a report in tmux", || watch.text().contains("NVIDIA").then_some(()));
        watch.pid = watch.tmux(&["display", "-p", "#{pane_pid}"]).trim().parse().expect("a pid");
        let name = fs::read_to_string(format!("/proc/{}/comm", watch.pid)).unwrap_or_default();
        assert_eq!(name.trim(), "bailiff", "the shell has been replaced");
        watch
    }

    /// Returns what the terminal shows.
    pub fn text(&self) -> String {
        self.tmux(&["capture-pane", "-p"])
    }

    /// Returns the number of lines that were scrolled out of the terminal: 0 if reports replace each other.
    ///
    /// # Panics
    /// If tmux does not know it.
    pub fn scrolled(&self) -> u32 {
        self.tmux(&["display", "-p", "#{history_size}"]).trim().parse().expect("a number")
    }

    /// Returns the CPU time that the program uses in this period.
    pub fn cpu(&self, span: Duration) -> Duration {
        let before = Usage::of(&[self.pid]).cpu;
        std::thread::park_timeout(span);
        Usage::of(&[self.pid]).cpu.saturating_sub(before)
    }

    fn tmux(&self, arguments: &[&str]) -> String {
        let output = Command::new("tmux")
            .arg("-S")
            .arg(self.socket.path().join("tmux"))
            .args(arguments)
            .output()
            .expect("tmux is installed");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.tmux(&["kill-server"]);
    }
}
