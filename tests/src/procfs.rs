//! A made-up `/proc`, for pages that must be the same on every machine.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

/// Owner of made-up processes: a uid without a user name.
pub const OWNER: u32 = 4_242_424;

/// A directory that looks like `/proc`.
pub struct Procfs {
    directory: TempDir,
}

/// One made-up process.
#[derive(Debug, Clone)]
pub struct Process {
    /// Pid.
    pub pid: u32,
    /// Name.
    pub comm: String,
    /// State letter.
    pub state: char,
    /// Pid of the parent.
    pub ppid: u32,
    /// Leader of the session, or `None` if the process is the leader.
    pub session: Option<u32>,
    /// Content of the cgroup file.
    pub cgroup: String,
    /// State letters of the threads other than the leader.
    pub threads: Vec<char>,
    /// Uid of the owner.
    pub owner: u32,
}

impl Process {
    /// Returns a sleeping Python process in a user's session.
    pub fn new(pid: u32) -> Self {
        Self {
            pid,
            comm: "python3".into(),
            state: 'S',
            ppid: 1,
            session: None,
            cgroup: "0::/user.slice/user-1000.slice/session-3.scope\n".into(),
            threads: Vec::new(),
            owner: OWNER,
        }
    }
}

impl Procfs {
    /// Creates a `/proc` of the initial PID namespace, without processes.
    ///
    /// # Panics
    /// If a file cannot be written.
    pub fn new() -> Self {
        let procfs = Self { directory: tempfile::tempdir().expect("a temporary directory") };
        procfs.write("sys/kernel/random/boot_id", "11111111-2222-3333-4444-555555555555\n");
        procfs.write("stat", "cpu 0 0 0 0\nbtime 1700000000\n");
        procfs.write("self/ns/.keep", "");
        symlink("pid:[4026531836]", procfs.path().join("self/ns/pid")).expect("a link");
        procfs
            .write("1/stat", &stat(&Process { comm: "systemd".into(), ppid: 0, ..Process::new(1) }, 1, 'S'));
        procfs.write("1/cgroup", "0::/init.scope\n");
        procfs
    }

    /// Returns the path.
    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    /// Adds a process.
    ///
    /// # Panics
    /// If a file cannot be written.
    pub fn with(self, process: &Process) -> Self {
        self.add(process);
        self
    }

    /// Adds a process, or replaces it.
    ///
    /// # Panics
    /// If a file cannot be written.
    pub fn add(&self, process: &Process) {
        let pid = process.pid;
        self.write(&format!("{pid}/stat"), &stat(process, pid, process.state));
        self.write(&format!("{pid}/cgroup"), &process.cgroup);
        self.write(&format!("{pid}/cmdline"), "python3\0train.py\0--api-key=sesame\0");
        self.write(&format!("{pid}/io"), "read_bytes: 4096\nwrite_bytes: 8192\n");
        self.write(&format!("{pid}/task/{pid}/stat"), &stat(process, pid, process.state));
        for (thread, state) in (pid + 1..).zip(&process.threads) {
            self.write(&format!("{pid}/task/{thread}/stat"), &stat(process, thread, *state));
        }
        let directory = self.path().join(pid.to_string());
        let owner = rustix::fs::Uid::from_raw(process.owner);
        rustix::fs::chown(&directory, Some(owner), None)
            .expect("these tests need root, to give made-up processes an owner");
    }

    /// Adds an open file to a process.
    ///
    /// # Panics
    /// If a file cannot be written.
    pub fn open_file(&self, pid: u32, target: &str) {
        let descriptors = self.path().join(format!("{pid}/fd"));
        fs::create_dir_all(&descriptors).expect("a directory");
        symlink(target, descriptors.join("3")).expect("a link");
    }

    /// Removes a process.
    ///
    /// # Panics
    /// If the process cannot be removed.
    pub fn remove(&self, pid: u32) {
        fs::remove_dir_all(self.path().join(pid.to_string())).expect("a made-up process can end");
    }

    /// Writes any file in the made-up `/proc`.
    ///
    /// # Panics
    /// If the file cannot be written.
    pub fn write(&self, name: &str, text: &str) {
        let path: PathBuf = self.path().join(name);
        fs::create_dir_all(path.parent().expect("a file has a directory")).expect("a directory");
        fs::write(path, text).expect("a file");
    }
}

impl Default for Procfs {
    fn default() -> Self {
        Self::new()
    }
}

fn stat(process: &Process, id: u32, state: char) -> String {
    let threads = process.threads.len() + 1;
    let Process { comm, ppid, .. } = process;
    let session = process.session.unwrap_or(process.pid);
    format!(
        "{id} ({comm}) {state} {ppid} {session} {session} 0 -1 4194304 0 0 0 0 1500 500 30 20 20 0 {threads} 0 100 0 0\n",
    )
}
