//! Tenants: processes of user nobody, who is not root and so not protected, each in its own session and with a
//! device file open, as processes that hold GPUs have.

use std::fs::{self, OpenOptions};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command};
use std::sync::atomic::{AtomicU32, Ordering};

use bailiff_snapshot::State;
use rustix::process::{Pid, Signal, kill_process_group};

use crate::home::Home;
use crate::wait::until;

/// The uid of user nobody, which runs them.
pub const NOBODY_UID: u32 = 65534;

/// A tenant; it and its process group end with the test.
pub struct Tenant {
    pid: u32,
    /// None once it has been waited for, when its pid may be reused.
    child: Option<Child>,
    log: PathBuf,
}

impl Tenant {
    /// A tenant that logs TERM and exits.
    #[must_use]
    pub fn ending_on_term(home: &Home) -> Self {
        Self::shell(home, "trap 'echo TERM; exit' TERM; echo ready; while :; do read nothing; done")
    }

    /// A tenant that logs TERM and ignores it.
    #[must_use]
    pub fn ignoring_term(home: &Home) -> Self {
        Self::shell(home, "trap 'echo TERM' TERM; echo ready; while :; do read nothing; done")
    }

    /// A shell program that has printed its first line.
    #[must_use]
    pub fn shell(home: &Home, program: &str) -> Self {
        let tenant = Self::running(home, &["/bin/sh", "-c", program]);
        until("the tenant's first line", || (!tenant.output_lines().is_empty()).then_some(()));
        tenant
    }

    /// Any program.
    #[must_use]
    pub fn running(home: &Home, program: &[&str]) -> Self {
        let mut command = Command::new("setsid");
        command.args(program).uid(NOBODY_UID).gid(NOBODY_UID);
        Self::spawn(home, command)
    }

    /// Any command line, which has to create its session itself.
    ///
    /// # Panics
    /// If it cannot be started.
    #[must_use]
    pub fn spawn(home: &Home, mut command: Command) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let log = home.path().join(format!("tenant-{}", NUMBER.fetch_add(1, Ordering::Relaxed)));
        let out = OpenOptions::new().create(true).append(true).open(&log).expect("a log");
        command.current_dir("/").stdin(home.open_device()).stdout(out);
        let child = command.spawn().expect("the tenant starts");
        Self { pid: child.id(), child: Some(child), log }
    }

    /// Its pid.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Returns whether it is running; a zombie is not.
    #[must_use]
    pub fn is_running(&self) -> bool {
        start(self.pid()).is_some()
    }

    /// Waits until it has ended.
    pub fn gone(&self) {
        until("the tenant has ended", || (!self.is_running()).then_some(()));
    }

    /// Its output, in lines.
    #[must_use]
    pub fn output_lines(&self) -> Vec<String> {
        let text = fs::read_to_string(&self.log).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    /// How often it received TERM, according to its log.
    #[must_use]
    pub fn terms_received(&self) -> usize {
        self.output_lines().iter().filter(|line| *line == "TERM").count()
    }

    /// Waits until it has received TERM this many times.
    pub fn until_terms(&self, times: usize) {
        until("TERM", || (self.terms_received() >= times).then_some(()));
    }

    /// Ends it, and waits for its end.
    ///
    /// # Panics
    /// If it cannot be ended.
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

/// The start time of a running process, in clock ticks; it runs as long as one of its threads does.
#[must_use]
pub fn start(pid: u32) -> Option<u64> {
    let stat = bailiff_snapshot::stat::parse(&fs::read(format!("/proc/{pid}/stat")).ok()?)?;
    let over = matches!(stat.state, State::Zombie | State::Dead) && stat.threads < 2;
    (!over).then_some(stat.key.start_ticks)
}
