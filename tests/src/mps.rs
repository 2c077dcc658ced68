//! The stand-in for MPS: daemons in folders of a test's own, programs that compute under them, and an `nvidia-smi` that notes what
//! it was asked. Whatever a test has started there is ended with it.

use std::fs::{self, Permissions};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use tempfile::TempDir;

use crate::programs;
use crate::wait::until;

/// What the parts of MPS are called.
const PARTS: [&str; 2] = ["nvidia-cuda-mps-control", "nvidia-cuda-mps-server"];

/// Folders for daemons, and programs to start them.
pub struct Mps {
    folder: TempDir,
    release: &'static str,
}

impl Mps {
    /// Folders without daemons, and the ways of this driver's release: 535 or 550.
    ///
    /// # Panics
    /// Where nothing can be written.
    #[must_use]
    pub fn of(release: &'static str) -> Self {
        let mps = Self { folder: tempfile::tempdir().expect("a temporary folder"), release };
        fs::set_permissions(mps.folder.path(), Permissions::from_mode(0o755)).expect("our own folder");
        fs::create_dir(mps.bin()).expect("a folder");
        symlink(programs::built(PARTS[0]), mps.bin().join(PARTS[0])).expect("a link");
        let smi = mps.bin().join("nvidia-smi");
        let text = format!("#!/bin/sh\necho \"$@\" >> {}\n", mps.folder.path().join("smi").display());
        fs::write(&smi, text).expect("a script");
        fs::set_permissions(&smi, Permissions::from_mode(0o755)).expect("a script");
        mps
    }

    /// Where its programs are.
    #[must_use]
    pub fn bin(&self) -> PathBuf {
        self.folder.path().join("bin")
    }

    /// A pipe directory, by a name.
    #[must_use]
    pub fn pipes(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Its logs.
    #[must_use]
    pub fn logs(&self, name: &str) -> PathBuf {
        self.folder.path().join(format!("{name}-log"))
    }

    /// What `nvidia-smi` was asked, a line a time.
    #[must_use]
    pub fn asked(&self) -> Vec<String> {
        let text = fs::read_to_string(self.folder.path().join("smi")).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    /// A program that finds the stand-in, and knows this pipe directory.
    #[must_use]
    pub fn command(&self, program: &Path, name: &str) -> Command {
        let mut command = Command::new(program);
        let path = format!("{}:/usr/bin:/bin", self.bin().display());
        command.env("PATH", path).env("FAKE_MPS_RELEASE", self.release);
        command
            .env("CUDA_MPS_PIPE_DIRECTORY", self.pipes(name))
            .env("CUDA_MPS_LOG_DIRECTORY", self.logs(name));
        command
    }

    /// Starts a daemon that has this GPU.
    ///
    /// # Panics
    /// Where it does not start.
    pub fn start(&self, name: &str, uuid: &str) {
        let mut command = self.command(&self.bin().join(PARTS[0]), name);
        command.arg("-d").env("CUDA_VISIBLE_DEVICES", uuid);
        assert!(command.status().expect("it runs").success());
    }

    /// What a daemon says to this.
    ///
    /// # Panics
    /// Where it cannot be asked.
    #[must_use]
    pub fn ask(&self, name: &str, text: &str) -> String {
        let mut command = self.command(&self.bin().join(PARTS[0]), name);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it runs");
        writeln!(child.stdin.take().expect("a pipe"), "{text}").expect("it reads");
        String::from_utf8(child.wait_with_output().expect("it ends").stdout).expect("text")
    }

    /// A program that computes under a daemon; back when it has said how that went.
    ///
    /// # Panics
    /// Where it does not start.
    #[must_use]
    pub fn client(&self, name: &str) -> Client {
        let mut command = self.command(&programs::built("fake-mps-client"), name);
        let mut child = command.stdout(Stdio::piped()).spawn().expect("it runs");
        let mut first = String::new();
        BufReader::new(child.stdout.take().expect("a pipe")).read_line(&mut first).expect("it says a word");
        Client { child, first: first.trim_end().to_owned() }
    }

    /// The pid of a daemon.
    ///
    /// # Panics
    /// Where there is none.
    #[must_use]
    pub fn daemon(&self, name: &str) -> u32 {
        until("a daemon", || parts(&self.pipes(name), PARTS[0]).first().copied())
    }

    /// The pid of a daemon's server, as soon as it shows whose it is: its starter goes on a moment before that.
    ///
    /// # Panics
    /// Where there is none.
    #[must_use]
    pub fn server(&self, name: &str) -> u32 {
        until("a server", || self.servers(name).first().copied())
    }

    /// The servers of a daemon that live, or are left of it.
    #[must_use]
    pub fn servers(&self, name: &str) -> Vec<u32> {
        parts(&self.pipes(name), PARTS[1])
    }

    /// Sends the daemon a signal.
    ///
    /// # Panics
    /// Where there is none.
    pub fn signal(&self, name: &str, with: Signal) {
        assert!(signal(self.daemon(name), with), "it lives");
    }
}

/// Ends all that has one of its folders for a pipe directory.
impl Drop for Mps {
    fn drop(&mut self) {
        let folder = self.folder.path().to_owned();
        for part in PARTS {
            for pid in parts(&folder, part) {
                signal(pid, Signal::KILL);
            }
        }
    }
}

/// A program that computes, ended with its test.
pub struct Client {
    child: Child,
    /// How its start went.
    pub first: String,
}

impl Client {
    /// Its pid.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Living parts whose pipe directory is this, or below it.
fn parts(pipes: &Path, program: &str) -> Vec<u32> {
    let entries = fs::read_dir("/proc").expect("/proc").flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let is = |pid: &u32| {
        let folder = PathBuf::from(format!("/proc/{pid}"));
        let exe = fs::read_link(folder.join("exe")).ok()?;
        let named = exe.file_name()?.to_str()? == program;
        let environ = fs::read(folder.join("environ")).ok()?;
        let mut pairs = environ.split(|byte| *byte == 0).filter_map(|pair| std::str::from_utf8(pair).ok());
        let own = pairs.find_map(|pair| pair.strip_prefix("CUDA_MPS_PIPE_DIRECTORY="))?;
        (named && Path::new(own).starts_with(pipes)).then_some(())
    };
    let mut found: Vec<u32> = pids.filter(|pid| is(pid).is_some()).collect();
    found.sort_unstable();
    found
}

fn signal(pid: u32, signal: Signal) -> bool {
    let raw = Pid::from_raw(pid.cast_signed()).expect("a pid");
    let handle = pidfd_open(raw, PidfdFlags::empty());
    handle.is_ok_and(|handle| pidfd_send_signal(handle, signal).is_ok())
}
