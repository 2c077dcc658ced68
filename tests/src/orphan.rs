//! Processes that were left behind: whoever started them has ended, and the session with him. Each is ended with its test.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use crate::tenant::start;
use crate::wait::until;

/// A process of this test whose parent is init.
pub struct Orphan {
    pid: u32,
    began: Option<u64>,
}

/// A session that starts a process which sleeps, says its pid and ends.
const LEAVING: &str = "import os, signal\n\
    pid = os.fork()\n\
    if pid == 0:\n    signal.pause()\n\
    print(pid, flush=True)";

/// A `/dev` of its own, in which there is a stand-in for a GPU's device file, open as descriptor 3.
const WITH_DEVICE: &str = "mount -t tmpfs none /dev && mknod -m 666 /dev/null c 1 3 && : > /dev/nvidia0 && \
    exec 3<>/dev/nvidia0 && exec setsid \"$@\"";

impl Orphan {
    /// One that sleeps, and was started by this command: `setsid`, say.
    #[must_use]
    pub fn under(mut command: Command) -> Self {
        command.args(["python3", "-c", LEAVING]);
        Self::said_by(command)
    }

    /// One that has inherited a GPU's device file: it shows in `/proc` as `/dev/nvidia0`, as in a container.
    #[must_use]
    pub fn with_device() -> Self {
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private", "sh", "-c", WITH_DEVICE, "sh"]);
        Self::under(command)
    }

    fn said_by(mut command: Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).spawn().expect("the session starts");
        let mut line = String::new();
        let out = child.stdout.take().expect("it has an output");
        BufReader::new(out).read_line(&mut line).expect("it says a pid");
        let pid = line.trim().parse().expect("a pid");
        child.wait().expect("our own child can be waited for");
        Self { pid, began: start(pid) }
    }

    /// Its pid.
    #[must_use]
    pub const fn pid(&self) -> u32 {
        self.pid
    }

    /// Waits until it has ended.
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
