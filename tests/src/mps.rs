//! A stand-in for MPS: daemons in the test's own directories, clients, and an `nvidia-smi` that records its
//! arguments. All processes that a test starts there are killed with the test.

use std::fs::{self, Permissions};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use tempfile::TempDir;

use crate::cuda::Running;
use crate::programs;
use crate::wait::until;

/// Program names of MPS.
const PARTS: [&str; 2] = ["nvidia-cuda-mps-control", "nvidia-cuda-mps-server"];

/// Directories for daemons, and the programs that start them.
pub struct Mps {
    directory: TempDir,
    release: &'static str,
}

impl Mps {
    /// Creates directories without daemons. The daemons will behave like those in this driver release (535 or
    /// 550).
    ///
    /// # Panics
    /// If a file cannot be written.
    pub fn of(release: &'static str) -> Self {
        let mps = Self { directory: tempfile::tempdir().expect("a temporary directory"), release };
        fs::set_permissions(mps.directory.path(), Permissions::from_mode(0o755))
            .expect("the directory is writable");
        fs::create_dir(mps.bin()).expect("a directory");
        symlink(programs::built(PARTS[0]), mps.bin().join(PARTS[0])).expect("a link");
        let text = format!("echo \"$@\" >> {}", mps.directory.path().join("smi").display());
        let _ = program(&mps.bin().join("nvidia-smi"), &text);
        mps
    }

    /// Returns the directory of the programs.
    pub fn bin(&self) -> PathBuf {
        self.directory.path().join("bin")
    }

    /// Returns the pipe directory of a daemon.
    pub fn pipes(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Returns the log directory of a daemon.
    pub fn logs(&self, name: &str) -> PathBuf {
        self.directory.path().join(format!("{name}-log"))
    }

    /// Returns the arguments of each call of `nvidia-smi`, one line per call.
    pub fn smi_calls(&self) -> Vec<String> {
        let text = fs::read_to_string(self.directory.path().join("smi")).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    /// Returns a command whose PATH contains the stand-in, with this pipe directory.
    pub fn command(&self, program: &Path, name: &str) -> Command {
        let mut command = Command::new(program);
        let path = format!("{}:/usr/bin:/bin", self.bin().display());
        command.env("PATH", path).env("FAKE_MPS_RELEASE", self.release);
        command
            .env("CUDA_MPS_PIPE_DIRECTORY", self.pipes(name))
            .env("CUDA_MPS_LOG_DIRECTORY", self.logs(name));
        command
    }

    /// Starts a daemon with this GPU.
    ///
    /// # Panics
    /// If the daemon does not start.
    pub fn start(&self, name: &str, uuid: &str) {
        let mut command = self.command(&self.bin().join(PARTS[0]), name);
        command.arg("-d").env("CUDA_VISIBLE_DEVICES", uuid);
        assert!(command.status().expect("the program starts").success());
    }

    /// Returns a daemon's reply to a command.
    ///
    /// # Panics
    /// If the daemon cannot be queried.
    pub fn query(&self, name: &str, text: &str) -> String {
        let mut command = self.command(&self.bin().join(PARTS[0]), name);
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("the program starts");
        writeln!(child.stdin.take().expect("a pipe"), "{text}").expect("the program reads its input");
        String::from_utf8(child.wait_with_output().expect("the program exits").stdout).expect("text")
    }

    /// Starts a client of a daemon, and waits until it has reported its start.
    ///
    /// # Panics
    /// If the client does not start.
    pub fn client(&self, name: &str) -> Client {
        let mut command = self.command(&programs::built("fake-mps-client"), name);
        let mut child = command.stdout(Stdio::piped()).spawn().expect("the program starts");
        let mut first = String::new();
        BufReader::new(child.stdout.take().expect("a pipe"))
            .read_line(&mut first)
            .expect("the program prints a word");
        Client { child, first: first.trim_end().to_owned() }
    }

    /// Returns the pid of a daemon.
    ///
    /// # Panics
    /// If the daemon is not running.
    pub fn daemon(&self, name: &str) -> u32 {
        until("a daemon", || parts(&self.pipes(name), PARTS[0]).first().copied())
    }

    /// Returns the pid of a daemon's server, once the server's environment is readable, which is slightly
    /// after its start.
    ///
    /// # Panics
    /// If there is no server.
    pub fn server(&self, name: &str) -> u32 {
        until("a server", || self.servers(name).first().copied())
    }

    /// Returns the servers of a daemon, including leftover servers.
    pub fn servers(&self, name: &str) -> Vec<u32> {
        parts(&self.pipes(name), PARTS[1])
    }

    /// Starts a process of this user with the name of an MPS program: a waiting shell with these variables.
    ///
    /// # Panics
    /// If the process does not start.
    pub fn impostor(&self, part: &str, uid: u32, variables: &[(&str, &str)]) -> Running {
        let directory = self.directory.path().join("impostors");
        fs::create_dir_all(&directory).expect("a directory");
        let program = directory.join(part);
        if !program.exists() {
            fs::copy("/bin/sh", &program).expect("a shell");
        }
        let mut command = Command::new(program);
        command.args(["-c", "echo; read word", "-d"]).uid(uid).gid(uid).current_dir("/").env_clear();
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).envs(variables.iter().copied());
        let mut child = command.spawn().expect("the program starts");
        let mut first = String::new();
        BufReader::new(child.stdout.take().expect("a pipe"))
            .read_line(&mut first)
            .expect("the program starts");
        Running(child)
    }

    /// Returns an `nvidia-smi` that records its arguments and then waits for [`Self::go`].
    ///
    /// # Panics
    /// If a file cannot be written.
    pub fn slow_smi(&self) -> PathBuf {
        let smi = self.directory.path().join("slow-smi");
        let directory = self.directory.path().display();
        program(
            &smi,
            &format!("echo \"$@\" >> {directory}/smi; until [ -e {directory}/go ]; do sleep 0.02; done"),
        )
    }

    /// Lets [`Self::slow_smi`] exit.
    ///
    /// # Panics
    /// If a file cannot be written.
    pub fn go(&self) {
        fs::write(self.directory.path().join("go"), "").expect("the directory is writable");
    }

    /// Returns a control program that passes commands through this shell script if a daemon is running.
    ///
    /// # Panics
    /// If a file cannot be written.
    pub fn wrapped_control(&self, text: &str) -> PathBuf {
        let real = self.bin().join(PARTS[0]);
        let text = format!(
            "case \"$1\" in -d|-f) exec {} \"$@\";; esac\n\
             if [ ! -e \"$CUDA_MPS_PIPE_DIRECTORY/control\" ]; then\n\
             echo 'Cannot find MPS control daemon process' >&2; exit 1\nfi\n{text}",
            real.display()
        );
        program(&self.directory.path().join("wrapped_control"), &text)
    }

    /// Sends a signal to the daemon.
    ///
    /// # Panics
    /// If the daemon is not running.
    pub fn signal(&self, name: &str, with: Signal) {
        assert!(signal(self.daemon(name), with), "the daemon is running");
    }
}

/// Kills all processes whose pipe directory is one of these directories.
impl Drop for Mps {
    fn drop(&mut self) {
        let directory = self.directory.path().to_owned();
        for part in PARTS {
            for pid in parts(&directory, part) {
                signal(pid, Signal::KILL);
            }
        }
    }
}

/// A client, killed with its test.
pub struct Client {
    child: Child,
    /// What the client reported at its start.
    pub first: String,
}

impl Client {
    /// Returns the client's pid.
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

/// Writes a script.
fn program(path: &Path, text: &str) -> PathBuf {
    fs::write(path, format!("#!/bin/sh\n{text}\n")).expect("a script");
    fs::set_permissions(path, Permissions::from_mode(0o755)).expect("a script");
    path.to_owned()
}

/// Returns the running processes of an MPS program with this pipe directory or a directory below it.
fn parts(pipes: &Path, program: &str) -> Vec<u32> {
    let entries = fs::read_dir("/proc").expect("/proc").flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let is = |pid: &u32| {
        let directory = PathBuf::from(format!("/proc/{pid}"));
        let exe = fs::read_link(directory.join("exe")).ok()?;
        let named = exe.file_name()?.to_str()? == program;
        let environ = fs::read(directory.join("environ")).ok()?;
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
