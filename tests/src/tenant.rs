//! Tenants: processes of user nobody, because root's processes are protected. Like processes that hold GPUs, each
//! tenant has a device file open. Each tenant is in its own session.

use std::fs::{self, OpenOptions};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command};
use std::sync::atomic::{AtomicU32, Ordering};

use bailiff_snapshot::State;
use rustix::process::{Pid, Signal, kill_process_group};

use crate::home::Home;
use crate::wait::until;

/// Uid of user nobody, as which the tenants run.
pub const NOBODY_UID: u32 = 65534;

/// A tenant. The tenant and its process group are killed with the test.
pub struct Tenant {
    pid: u32,
    /// `None` once the child has been waited for, because its pid may then be reused.
    child: Option<Child>,
    log: PathBuf,
}

impl Tenant {
    /// Starts a tenant that logs TERM and exits.
    pub fn ending_on_term(home: &Home) -> Self {
        Self::shell(home, "trap 'echo TERM; exit' TERM; echo ready; while :; do read nothing; done")
    }

    /// Starts a tenant that logs and ignores TERM.
    pub fn ignoring_term(home: &Home) -> Self {
        Self::shell(home, "trap 'echo TERM' TERM; echo ready; while :; do read nothing; done")
    }

    /// Starts a shell program, and waits until it has printed its first line.
    pub fn shell(home: &Home, program: &str) -> Self {
        let tenant = Self::running(home, &["/bin/sh", "-c", program]);
        until("the tenant's first line", || (!tenant.output_lines().is_empty()).then_some(()));
        tenant
    }

    /// Starts any program.
    pub fn running(home: &Home, program: &[&str]) -> Self {
        let mut command = Command::new("setsid");
        command.args(program).uid(NOBODY_UID).gid(NOBODY_UID);
        Self::spawn(home, command)
    }

    /// Starts any command line, which must create its session itself.
    ///
    /// # Panics
    /// If the command cannot be started.
    pub fn spawn(home: &Home, mut command: Command) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let log = home.path().join(format!("tenant-{}", NUMBER.fetch_add(1, Ordering::Relaxed)));
        let out = OpenOptions::new().create(true).append(true).open(&log).expect("a log");
        command.current_dir("/").stdin(home.open_device()).stdout(out);
        let child = command.spawn().expect("the tenant starts");
        Self { pid: child.id(), child: Some(child), log }
    }

    /// Returns the pid.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Returns whether the tenant is running. A zombie is not running.
    pub fn is_running(&self) -> bool {
        start(self.pid()).is_some()
    }

    /// Waits until the tenant has exited.
    pub fn gone(&self) {
        until("the tenant has ended", || (!self.is_running()).then_some(()));
    }

    /// Returns the tenant's output, in lines.
    pub fn output_lines(&self) -> Vec<String> {
        let text = fs::read_to_string(&self.log).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    /// Returns how often the tenant has received TERM, according to its log.
    pub fn terms_received(&self) -> usize {
        self.output_lines().iter().filter(|line| *line == "TERM").count()
    }

    /// Waits until the tenant has received TERM this many times.
    pub fn until_terms(&self, times: usize) {
        until("TERM", || (self.terms_received() >= times).then_some(()));
    }

    /// Kills the tenant and waits until it has exited.
    ///
    /// # Panics
    /// If the tenant cannot be killed.
    pub fn end(&mut self) {
        let mut child = self.child.take().expect("the tenant has not been terminated before");
        child.kill().expect("our own child can be ended");
        child.wait().expect("our own child can be waited for");
    }
}

impl Drop for Tenant {
    fn drop(&mut self) {
        let Some(mut child) = self.child.take() else { return };
        let group = i32::try_from(self.pid).ok().and_then(Pid::from_raw);
        let _ = group.map(|group| kill_process_group(group, Signal::KILL));
        let _ = child.kill();
        let _ = child.wait();
    }
}

/// Returns the start time of a running process in clock ticks. A process runs as long as one of its threads
/// runs.
pub fn start(pid: u32) -> Option<u64> {
    let stat = bailiff_snapshot::stat::parse(&fs::read(format!("/proc/{pid}/stat")).ok()?)?;
    let over = matches!(stat.state, State::Zombie | State::Dead) && stat.threads < 2;
    (!over).then_some(stat.key.start_ticks)
}
