//! `bailiff lease` with a test's own pool.
#![expect(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    clippy::panic,
    reason = "runs programs and fails loudly"
)]

use std::ffi::OsString;
use std::fs;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

use crate::programs;
use crate::redis::Redis;
use crate::wait::until;

/// A test's pool.
pub trait LeasePool {
    /// Returns the environment variable that selects the pool.
    fn variable(&self) -> (&'static str, OsString);
}

impl LeasePool for Redis {
    fn variable(&self) -> (&'static str, OsString) {
        ("LEASE_REDIS_URL", self.address().into())
    }
}

/// A directory for this machine's own pool. It can be read by other users and is in memory, like `/run`.
pub struct Directory(TempDir);

impl Directory {
    /// Creates an empty directory.
    ///
    /// # Panics
    /// If that fails.
    pub fn new() -> Self {
        let memory = Path::new("/dev/shm");
        let directory =
            if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() }.unwrap();
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
        Self(directory)
    }

    /// Creates a directory with a pool of these GPUs.
    ///
    /// # Panics
    /// If that fails.
    pub fn of(gpus: &str) -> Self {
        let directory = Self::new();
        stdout_of(&run(&directory, &["init", "--gpus", gpus]));
        directory
    }

    /// Returns the path of the pool.
    pub fn path(&self) -> PathBuf {
        self.0.path().join("lease")
    }
}

impl Default for Directory {
    fn default() -> Self {
        Self::new()
    }
}

impl LeasePool for Directory {
    fn variable(&self) -> (&'static str, OsString) {
        ("LEASE_DIR", self.path().into())
    }
}

/// Returns the command `bailiff lease …` for a pool.
///
/// # Panics
/// If `bailiff` has not been built.
pub fn bailiff(pool: &impl LeasePool, args: &[&str]) -> Command {
    let mut command = Command::new(programs::bailiff());
    for other in ["LEASE_REDIS_URL", "LEASE_DIR", "BAILIFF_LEASE_ID"] {
        command.env_remove(other);
    }
    let (name, value) = pool.variable();
    command.arg("lease").args(args).env(name, value);
    command
}

/// Runs `bailiff lease …` on a pool.
///
/// # Panics
/// If the command cannot be started.
pub fn run(pool: &impl LeasePool, args: &[&str]) -> Output {
    bailiff(pool, args).output().unwrap()
}

/// Returns the exit code of a run.
///
/// # Panics
/// If the run was terminated by a signal.
pub fn code(output: &Output) -> i32 {
    output.status.code().unwrap_or_else(|| panic!("{output:?}"))
}

/// Returns the standard output of a successful run.
///
/// # Panics
/// If the run failed.
#[expect(clippy::must_use_candidate, reason = "a caller may only need the success")]
pub fn stdout_of(output: &Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// Returns the state of each GPU, in order.
///
/// # Panics
/// If the pool cannot be listed.
pub fn states(pool: &impl LeasePool) -> Vec<String> {
    let list: Value = serde_json::from_str(&stdout_of(&run(pool, &["list", "--json"]))).unwrap();
    list["gpus"].as_array().unwrap().iter().map(|gpu| gpu["state"].as_str().unwrap().to_owned()).collect()
}

/// Creates a pool of these GPUs in its own Redis server.
///
/// # Panics
/// If that fails.
pub fn pool(gpus: &str) -> Redis {
    let redis = Redis::start();
    stdout_of(&run(&redis, &["init", "--gpus", gpus]));
    redis
}

/// Starts a command under a lease, and waits until it is running.
///
/// # Panics
/// If that fails.
pub fn hold(pool: &impl LeasePool, args: &[&str]) -> Child {
    let mut command = bailiff(pool, args);
    command.args(["--", "sh", "-c", "echo begun; exec sleep infinity"]).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut first = [0; 6];
    child.stdout.as_mut().unwrap().read_exact(&mut first).unwrap();
    assert_eq!(&first, b"begun\n");
    child
}

/// Signals a child and waits until it has exited.
///
/// # Panics
/// If that fails.
pub fn end(mut child: Child, signal: Signal) {
    kill_process(Pid::from_child(&child), signal).unwrap();
    child.wait().unwrap();
}

/// Returns the process of the command that a runner has started under a lease.
///
/// # Panics
/// If the runner does not start a command.
pub fn command_of(runner: &Child) -> Pid {
    let children = format!("/proc/{0}/task/{0}/children", runner.id());
    let text = until("the command to be there", || {
        fs::read_to_string(&children).ok().filter(|text| !text.is_empty())
    });
    Pid::from_raw(text.split(' ').next().unwrap().parse().unwrap()).unwrap()
}

/// Runs `bailiff lease …` and parses its JSON output.
///
/// # Panics
/// If that fails.
pub fn json_of(redis: &Redis, args: &[&str]) -> Value {
    serde_json::from_str(&stdout_of(&run(redis, args))).unwrap()
}

/// A task that holds a GPU for a moment, under a kernel lock, and records if another task had the GPU at
/// the same time.
const TASK: &str =
    "exec 9>$0/gpu-$CUDA_VISIBLE_DEVICES; flock -n 9 || echo $CUDA_VISIBLE_DEVICES >>$0/doubled
sleep 0.0$(($$ % 5 + 1)); echo $CUDA_VISIBLE_DEVICES >>$0/done";

/// Many tasks, each of which needs a GPU.
pub struct Tasks {
    directory: TempDir,
    tasks: Vec<Child>,
}

impl Tasks {
    /// Starts all tasks at once.
    ///
    /// # Panics
    /// If that fails.
    pub fn start(pool: &impl LeasePool, count: usize) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let task = || bailiff(pool, &["run", "--", "sh", "-c", TASK]).arg(directory.path()).spawn().unwrap();
        let tasks = (0..count).map(|_| task()).collect();
        Self { directory, tasks }
    }

    /// Returns the runners.
    pub fn runners(&self) -> &[Child] {
        &self.tasks
    }

    /// Waits for all tasks. Tasks that were not killed must succeed. Returns the GPUs that were used, one
    /// for each task that finished.
    ///
    /// # Panics
    /// If a task fails, or if a GPU had two holders.
    pub fn all_end(self, killed: &[u32]) -> Vec<String> {
        for mut task in self.tasks {
            let status = task.wait().unwrap();
            assert!(status.success() || killed.contains(&task.id()), "{status:?}");
        }
        let lines = |name: &str| {
            let text = fs::read_to_string(self.directory.path().join(name)).unwrap_or_default();
            text.lines().map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(lines("doubled"), Vec::<String>::new());
        lines("done")
    }
}
