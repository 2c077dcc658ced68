#![expect(
    clippy::disallowed_methods,
    reason = "starts this program again, as the privileged process, and signals"
)]
//! The privileged process: a child that keeps the capabilities which the daemon drops when it starts. It reads what the
//! kernel denies to the daemon ([`bailiff_proc::denied`]), sends the daemon's signals after checks of its own, and
//! continues stopped processes if the daemon dies.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::OnceLock;
use std::time::Duration;

use anyhow::{Context, Result};
use bailiff_engine::guard::{self, Root, Traits};
use bailiff_engine::process::Devices;
use bailiff_lifecycle::capabilities::{self, Capability};
use bailiff_lifecycle::exit;
use bailiff_proc::channel::{self, Channel, Service};
use bailiff_proc::{Pidfd, Proc, Reader};
use bailiff_snapshot::ProcessKey;
use nix::sys::signal::{SigSet, Signal as Blocked};
use rustix::io::Errno;
use rustix::process::Signal;
use rustix::thread::{clear_ambient_capability_set, set_no_new_privs};
use serde::{Deserialize, Serialize};

use crate::actions::{ExecutorSettings, continue_stopped};
use crate::audit::HeldStill;
use crate::clock::Deadline;
use crate::process_table::{OPEN_FILES, ProcessTableError, Processes};

/// Hidden command that runs the privileged process.
pub const COMMAND: &str = "privileged-process";
/// Bit numbers of capabilities (`linux/capability.h`).
const CAP_KILL: u32 = 5;
const CAP_SYS_PTRACE: u32 = 19;
/// Time limit of a signal. A pause waits for signals that are being sent.
const PATIENCE: Duration = Duration::from_secs(1);
/// Time limit of other requests. Holders can have many open files, which are all examined.
const LONG_PATIENCE: Duration = Duration::from_secs(10);
/// Time after which stopped processes are continued even if the daemon is alive.
const LONGEST: Duration = Duration::from_secs(5);

/// The privileged process of this daemon. There is none in other commands, which then act themselves.
static STARTED: OnceLock<Started> = OnceLock::new();

struct Started {
    signals: Channel,
    may_kill: bool,
}

/// A request of the daemon.
#[derive(Debug, Serialize, Deserialize)]
enum Request {
    /// Allows signals to processes of the user that owns these holders of GPU memory, until the next such request.
    Authorize { holders: Vec<ProcessKey>, allow_root: bool },
    /// Sends a signal to the process of the attached pidfd.
    Signal(i32),
    /// Continues these processes if the daemon dies or is silent.
    Watch(HeldStill),
    /// Nothing is stopped any more.
    Forget,
}

/// Answer to a [`Request`].
#[derive(Debug, Serialize, Deserialize)]
enum Answer {
    Done,
    /// The process has exited.
    Gone,
    /// The signal is not allowed, for this reason.
    Refused(String),
    /// Number of the kernel's error.
    Error(i32),
}

/// Why a signal was not sent.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SignalError {
    /// The kernel refused it, or the privileged process did not answer.
    #[error(transparent)]
    Kernel(#[from] Errno),
    /// The privileged process refused it.
    #[error("the privileged process refused it: {0}")]
    Refused(String),
}

/// Starts the privileged process, then drops this program's capabilities. Call it before other threads are started,
/// because capabilities are per thread.
///
/// # Errors
/// If the process cannot be started, or the kernel refuses.
pub fn separate(settings: &ExecutorSettings) -> Result<()> {
    let mut child = start(settings).context("cannot start the privileged process")?;
    drop_capabilities(&settings.procfs).context("cannot drop capabilities")?;
    std::thread::spawn(move || {
        let status = child.wait().map_or_else(|error| error.to_string(), |status| status.to_string());
        // This program cannot start another one with capabilities.
        tracing::error!(status, "the privileged process has exited, so the enforcer ends");
        std::process::exit(1);
    });
    Ok(())
}

fn start(settings: &ExecutorSettings) -> io::Result<Child> {
    let ((signals, theirs), (reads, their_reads)) = (Channel::pair()?, Channel::pair()?);
    // `/proc/self/exe` is this program, even after an upgrade has replaced the file.
    let child = Command::new("/proc/self/exe")
        .arg0("bailiff-enforcer")
        .arg(COMMAND)
        .arg(&settings.procfs)
        .arg(&settings.devices)
        .env_clear()
        .stdin(theirs)
        .stdout(their_reads)
        .process_group(0)
        .spawn()?;
    bailiff_proc::read_through(reads)?;
    // There is one privileged process, which is started once.
    let _ = STARTED.set(Started { signals, may_kill: has(CAP_KILL) });
    Ok(child)
}

/// Drops the capabilities, and prevents child processes (programs of rules, MPS commands) from gaining any. Root keeps
/// its own, because dropping them would not confine it. With `hidepid`, `CAP_SYS_PTRACE` is needed to see other users'
/// processes.
fn drop_capabilities(procfs: &Path) -> Result<()> {
    set_no_new_privs(true)?;
    clear_ambient_capability_set()?;
    if rustix::process::geteuid().is_root() {
        return Ok(());
    }
    let sees_others = || Proc::open(procfs).is_ok_and(|proc| proc.stat(1).is_ok());
    capabilities::drop_unless_needed(&[Capability::CAP_SYS_PTRACE], sees_others)?;
    if has(CAP_SYS_PTRACE) {
        tracing::warn!(
            "/proc hides the processes of other users (hidepid), so the daemon keeps CAP_SYS_PTRACE"
        );
    }
    Ok(())
}

/// Returns whether processes of other users can be signalled.
pub(crate) fn may_kill() -> bool {
    STARTED.get().map_or_else(|| has(CAP_KILL), |started| started.may_kill)
}

/// Returns whether this program has a capability.
fn has(capability: u32) -> bool {
    let effective = Proc::own().ok().and_then(|proc| proc.own_mask("CapEff:"));
    effective.is_some_and(|bits| bits & (1 << capability) != 0)
}

/// Asks for permission to signal processes of the user that owns these holders. Returns false if all have exited.
pub(crate) fn authorize(holders: Vec<ProcessKey>, root: Root) -> Result<bool, SignalError> {
    let request = Request::Authorize { holders, allow_root: root == Root::Allowed };
    ask(&request, None)?.map_or(Ok(true), Answer::outcome)
}

/// Sends a signal; returns false if the process had exited.
pub(crate) fn send(process: &Pidfd, signal: Signal) -> Result<bool, SignalError> {
    match ask(&Request::Signal(signal.as_raw()), Some(process))? {
        Some(answer) => answer.outcome(),
        None => Ok(process.send(signal)?),
    }
}

/// Has these processes continued if the daemon dies. Returns whether that is certain.
pub(crate) fn watch(still: &HeldStill) -> bool {
    matches!(ask(&Request::Watch(still.clone()), None), Ok(None | Some(Answer::Done)))
}

/// Ends the watch, because nothing is stopped any more.
pub(crate) fn forget() {
    // A process that has exited watches nothing.
    let _ = ask(&Request::Forget, None);
}

/// Sends a request; returns `None` if there is no privileged process.
fn ask(request: &Request, process: Option<&Pidfd>) -> Result<Option<Answer>, Errno> {
    let Some(started) = STARTED.get() else { return Ok(None) };
    let patience = if process.is_some() { PATIENCE } else { LONG_PATIENCE };
    let (answer, _) = started.signals.call(request, process.map(AsFd::as_fd), patience)?;
    Ok(Some(answer))
}

impl Answer {
    /// Returns whether the process was alive.
    fn outcome(self) -> Result<bool, SignalError> {
        match self {
            Self::Done => Ok(true),
            Self::Gone => Ok(false),
            Self::Refused(why) => Err(SignalError::Refused(why)),
            Self::Error(number) => Err(Errno::from_raw_os_error(number).into()),
        }
    }
}

impl From<ProcessTableError> for Answer {
    fn from(error: ProcessTableError) -> Self {
        if error.is_late() {
            Self::Error(Errno::TIMEDOUT.raw_os_error())
        } else {
            Self::Refused(error.to_string())
        }
    }
}

/// Runs the privileged process, until the daemon exits. The sockets are its standard input and output.
///
/// # Errors
/// If it cannot be set up, or a socket fails.
pub fn run(procfs: &Path, devices: String) -> io::Result<()> {
    // The daemon finishes its work after these signals, and needs this process for it.
    [Blocked::SIGTERM, Blocked::SIGINT, Blocked::SIGHUP].into_iter().collect::<SigSet>().thread_block()?;
    exit::end_on_panic();
    std::thread::Builder::new().name("reads".to_owned()).spawn(|| {
        // After an error, no read would be answered, so the daemon must exit too.
        if channel::serve(io::stdout(), &mut Reader).is_err() {
            std::process::exit(1);
        }
    })?;
    let ancestors = ancestors(std::process::id());
    let mut signals = Signals {
        procfs: procfs.to_owned(),
        devices,
        ancestors,
        allowed: None,
        watched: Vec::new(),
        reads_all: has(CAP_SYS_PTRACE),
    };
    let served = channel::serve(io::stdin(), &mut signals);
    signals.silent();
    served
}

/// Returns the pids of a process and its ancestors.
fn ancestors(pid: u32) -> Vec<u32> {
    let Ok(proc) = Proc::own() else { return vec![pid] };
    let parent = |pid: &u32| Some(proc.process(*pid).ok()?.stat_from_status().ok()?.ppid);
    std::iter::successors(Some(pid), parent).take_while(|pid| *pid > 0).collect()
}

/// The state of the privileged process.
struct Signals {
    procfs: PathBuf,
    devices: String,
    /// This process, the daemon and their ancestors, which are never signalled.
    ancestors: Vec<u32>,
    allowed: Option<Allowed>,
    watched: Vec<HeldStill>,
    /// Whether the open files of all processes can be read.
    reads_all: bool,
}

/// Whose processes may be signalled.
struct Allowed {
    uid: u32,
    root: Root,
}

impl Service for Signals {
    type Request = Request;
    type Answer = Answer;

    fn answer(&mut self, request: channel::Request<Request>) -> (Answer, Option<OwnedFd>) {
        if request.until.passed() {
            return (Answer::Error(Errno::TIMEDOUT.raw_os_error()), None);
        }
        let answer = match request.content {
            Request::Authorize { holders, allow_root } => {
                let root = if allow_root { Root::Allowed } else { Root::Protected };
                self.authorize(&holders, root, request.until)
            }
            Request::Signal(number) => self.signal(number, request.file, request.until),
            Request::Watch(still) => {
                self.watched.push(still);
                Ok(Answer::Done)
            }
            Request::Forget => {
                self.watched.clear();
                Ok(Answer::Done)
            }
        };
        (answer.unwrap_or_else(|refusal| refusal), None)
    }

    fn patience(&self) -> Option<Duration> {
        (!self.watched.is_empty()).then_some(LONGEST)
    }

    fn silent(&mut self) {
        for still in self.watched.drain(..) {
            let _ = continue_stopped(&still);
        }
    }
}

impl Signals {
    fn processes(&self) -> Result<Processes, ProcessTableError> {
        Processes::open(&self.procfs, &self.devices)
    }

    /// Checks that the holders are processes of one user with a GPU's device file open.
    fn authorize(&mut self, holders: &[ProcessKey], root: Root, until: Deadline) -> Result<Answer, Answer> {
        self.allowed = None;
        let (processes, until) = (self.processes()?, until.or(Deadline::after(OPEN_FILES)));
        for key in holders {
            let Some((person, devices)) =
                processes.holder(key.pid, until)?.filter(|(person, _)| person.stat.key == *key)
            else {
                continue;
            };
            if devices == Devices::None || (devices == Devices::Denied && self.reads_all) {
                return Err(Answer::Refused(format!("process {} has no device file open", key.pid)));
            }
            if self.allowed.as_ref().is_some_and(|allowed| allowed.uid != person.uid) {
                self.allowed = None;
                return Err(Answer::Refused("the holders have several owners".to_owned()));
            }
            self.allowed = Some(Allowed { uid: person.uid, root });
        }
        Ok(if self.allowed.is_some() { Answer::Done } else { Answer::Gone })
    }

    /// Sends a signal to the process of the attached pidfd.
    fn signal(&self, number: i32, file: Option<OwnedFd>, until: Deadline) -> Result<Answer, Answer> {
        let (Some(signal), Some(pidfd)) = (Signal::from_named_raw(number), file) else {
            return Err(Answer::Error(Errno::INVAL.raw_os_error()));
        };
        let process = Pidfd::from(pidfd);
        // SIGCONT ends no process.
        if signal != Signal::CONT && !self.may_be_signalled(&process)? {
            return Ok(Answer::Gone);
        }
        if until.passed() {
            return Err(Answer::Error(Errno::TIMEDOUT.raw_os_error()));
        }
        match process.send(signal) {
            Ok(true) => Ok(Answer::Done),
            Ok(false) => Ok(Answer::Gone),
            Err(error) => Err(Answer::Error(error.raw_os_error())),
        }
    }

    /// Checks that a process belongs to the allowed user and is not protected. Returns false if it has exited.
    fn may_be_signalled(&self, process: &Pidfd) -> Result<bool, Answer> {
        let Some(pid) = process.pid() else { return Ok(false) };
        let processes = self.processes()?;
        // A process must not be exempt because reads of it hang.
        let person = processes
            .person(pid)
            .or_else(|error| if error.is_late() { processes.person_from_status(pid) } else { Err(error) });
        let Some(person) = person? else { return Ok(false) };
        // What was read belongs to the process of the pidfd only if that process is still running.
        if !process.lives() {
            return Ok(false);
        }
        let Some(allowed) = self.allowed.as_ref().filter(|allowed| allowed.uid == person.uid) else {
            return Err(Answer::Refused(format!("process {pid} does not belong to the owner of the target")));
        };
        let builtin = guard::builtin(&Traits::from(&person), allowed.root);
        let ours = self.ancestors.contains(&pid).then_some("it is the enforcer or one of its ancestors");
        match builtin.or(ours) {
            Some(why) => Err(Answer::Refused(format!("process {pid} is exempt: {why}"))),
            None => Ok(true),
        }
    }
}
