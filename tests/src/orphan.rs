//! Orphaned processes, whose parent and its session have exited. Each process is killed with its test.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::process::{Pid, Signal, kill_process};

use crate::tenant::start;
use crate::wait::until;

/// A process whose parent is init. It is alone in the cgroup of its session.
pub struct Orphan {
    pid: u32,
    began: Option<u64>,
    _scope: Scope,
}

/// A cgroup with the name of a login session. It is removed once it is empty.
pub struct Scope(PathBuf);

impl Scope {
    /// Creates an empty cgroup.
    ///
    /// # Panics
    /// If the cgroup cannot be created, which needs root and a writable `/sys/fs/cgroup`.
    pub fn new() -> Self {
        static MADE: AtomicU32 = AtomicU32::new(0);
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let name = format!("session-test{}n{number}.scope", std::process::id());
        let mounts = fs::read_to_string("/proc/mounts").expect("/proc/mounts is readable");
        let version_2 =
            mounts.lines().find_map(|line| line.split(' ').nth(1).filter(|_| line.contains(" cgroup2 ")));
        let path = Path::new(version_2.expect("cgroups of version 2")).join(name);
        fs::create_dir(&path).expect("a cgroup can be created (needs root)");
        Self(path)
    }

    /// Moves a process into the cgroup.
    ///
    /// # Panics
    /// If the process cannot be moved.
    pub fn take(&self, pid: u32) {
        fs::write(self.0.join("cgroup.procs"), pid.to_string()).expect("a process can be moved");
    }
}

impl Default for Scope {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Scope {
    fn drop(&mut self) {
        // The cgroup is busy until its last process has been waited for.
        for _ in 0..100 {
            if fs::remove_dir(&self.0).is_ok() {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
    }
}

/// A session that starts a sleeping process, prints its pid and exits.
const LEAVING: &str = "import os, signal\n\
    pid = os.fork()\n\
    if pid == 0:\n    signal.pause()\n\
    print(pid, flush=True)";

/// A private `/dev` with a GPU's device file, to which a descriptor refers. No driver is needed for that.
const WITH_DEVICE: &str = "mount -t tmpfs none /dev && mknod -m 666 /dev/null c 1 3 && mknod /dev/gpu c 195 $MINOR && \
    exec python3 -c 'import os, sys\nos.set_inheritable(os.open(\"/dev/gpu\", os.O_PATH), True)\nos.execvp(\"setsid\", sys.argv)' \"$@\"";

impl Orphan {
    /// Starts a sleeping process with this command, for example `setsid`.
    pub fn under(mut command: Command) -> Self {
        command.args(["python3", "-c", LEAVING]);
        Self::run(command)
    }

    /// Starts a process that inherits a descriptor of a GPU's device file with this minor number, as in a container.
    pub fn with_device(minor: u32) -> Self {
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private", "sh", "-c", WITH_DEVICE, "sh"]);
        command.env("MINOR", minor.to_string());
        Self::under(command)
    }

    fn run(mut command: Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).spawn().expect("the session starts");
        let mut line = String::new();
        let out = child.stdout.take().expect("stdout is piped");
        BufReader::new(out).read_line(&mut line).expect("the program prints a pid");
        let pid = line.trim().parse().expect("a pid");
        child.wait().expect("our own child can be waited for");
        let scope = Scope::new();
        scope.take(pid);
        Self { pid, began: start(pid), _scope: scope }
    }

    /// Returns the pid.
    pub const fn pid(&self) -> u32 {
        self.pid
    }

    /// Waits until the process has exited.
    pub fn gone(&self) {
        until("the orphan has ended", || (start(self.pid) != self.began).then_some(()));
    }
}

impl Drop for Orphan {
    fn drop(&mut self) {
        if self.began.is_some() && start(self.pid) == self.began {
            let pid = i32::try_from(self.pid).ok().and_then(Pid::from_raw);
            let _ = pid.map(|pid| kill_process(pid, Signal::KILL));
        }
    }
}
