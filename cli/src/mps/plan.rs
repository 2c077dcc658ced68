//! Prepares and starts the daemon of `bailiff mps start`: its environment, GPUs and compute modes.

use std::fs::{self, DirBuilder};
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use bailiff_mps::control::Question;
use bailiff_mps::place::{LOGS, PIPES, VISIBLE};
use bailiff_mps::{Control, ControlError, Form};
use bailiff_proc::is_in_foreign_mount;
use bailiff_snapshot::ComputeMode;

use super::compute_mode::{self, ChangedModes, MpsGpu};
use super::flags::Start;
use super::node::{MpsProcesses, Pipes};
use super::show;
use crate::exit::Failure;
use crate::output::joined;

/// Timeout of the control program, which forks the daemon and exits.
const START_TIMEOUT: Duration = Duration::from_secs(10);

/// Number of attempts to query the started daemon.
const TRIES: u32 = 100;

/// Pause between two attempts to query the started daemon.
const INTERVAL: Duration = Duration::from_millis(50);
/// Mode bits: writable for the group or all users, and that users can only replace their own entries.
const OTHERS: u32 = 0o022;
const STICKY: u32 = 0o1000;

/// A daemon to start, with its GPUs and environment.
pub(super) struct Plan<'a> {
    pub(super) flags: &'a Start,
    pub(super) control: Control,
    pipes: PathBuf,
    pub(super) gpus: Vec<MpsGpu>,
    /// Environment variables of the daemon.
    pub(super) variables: Vec<(&'static str, String)>,
}

pub(super) fn plan(flags: &Start) -> Result<Plan<'_>, Failure> {
    let pipes = flags.common.pipes()?;
    if !flags.log_dir.is_absolute() {
        return Err(Failure::usage(format!(
            "invalid log directory {}: the path must be absolute",
            flags.log_dir.display()
        )));
    }
    if nix::unistd::geteuid().is_root() {
        for directory in [&pipes, &flags.log_dir] {
            check_is_roots(directory, !flags.dry_run)?;
        }
    }
    let all = compute_mode::all(&flags.common)?;
    let control = flags.common.control(&pipes);
    check_unused(&control, &pipes, || {
        MpsProcesses::read(&flags.common.machine.procfs).servers(&pipes, &all)
    })?;
    let gpus = compute_mode::select(all, &flags.gpu)?;
    gpus.iter().try_for_each(check_usable)?;
    // CUDA and nvidia-smi may number GPUs differently; UUIDs are unambiguous.
    let uuids = joined(gpus.iter().map(|gpu| &gpu.uuid), ",");
    let logs = flags.log_dir.display().to_string();
    let variables = vec![(PIPES, pipes.display().to_string()), (LOGS, logs), (VISIBLE, uuids)];
    Ok(Plan { flags, control, pipes, gpus, variables })
}

/// Creates a directory, if that is wanted, unless it exists. Fails if another user can change it or replace it: the daemon
/// of root would follow links in it, and clients would connect to a socket that the user can replace.
fn check_is_roots(directory: &Path, create: bool) -> Result<(), Failure> {
    let failed =
        |why: &dyn std::fmt::Display| Failure::unavailable(format!("{}: {why}", directory.display()));
    if create {
        // What prevents it, the next check reports.
        let _ = DirBuilder::new().mode(0o755).create(directory);
    }
    if is_in_foreign_mount(&std::path::absolute(directory).map_err(|why| failed(&why))?) {
        return Err(failed(&"a mount point in a directory that all users can write to"));
    }
    match fs::symlink_metadata(directory) {
        Ok(found) if found.is_dir() && found.uid() == 0 && found.mode() & OTHERS == 0 => {
            let parent =
                directory.parent().unwrap_or(directory).canonicalize().map_err(|why| failed(&why))?;
            // On the path as it was given, directories can contain links.
            let given = directory.ancestors().skip(1).filter(|above| !above.as_os_str().is_empty());
            match parent.ancestors().chain(given).find(|above| !keeps_entries(above)) {
                Some(above) => Err(failed(&format!("another user can replace it in {}", above.display()))),
                None => Ok(()),
            }
        }
        Ok(_) => {
            Err(failed(&"must be a directory that only root can change, because root starts the daemon"))
        }
        Err(error) if error.kind() == ErrorKind::NotFound && !create => Ok(()),
        Err(error) => Err(failed(&error)),
    }
}

/// Returns whether only root can replace entries of root in a directory.
fn keeps_entries(directory: &Path) -> bool {
    let is_kept =
        |found: fs::Metadata| found.uid() == 0 && (found.mode() & OTHERS == 0 || found.mode() & STICKY != 0);
    fs::metadata(directory).is_ok_and(is_kept)
}

/// Fails if a daemon already runs in the pipe directory, or if servers of an exited daemon still run there.
fn check_unused(control: &Control, pipes: &Path, servers: impl Fn() -> Vec<u32>) -> Result<(), Failure> {
    let pipes = pipes.display();
    match control.query(Question::Servers) {
        Err(ControlError::NoDaemon) => {}
        Ok(_) | Err(ControlError::Refused(_)) => {
            let why = format!("a daemon is already running in {pipes}; use another directory (--pipe-dir)");
            return Err(Failure::unavailable(why));
        }
        Err(error @ ControlError::NoAnswer(_)) => {
            return Err(Failure::unavailable(format!(
                "the daemon in {pipes} hangs ({error}); stop it manually, which also terminates its clients"
            )));
        }
        Err(error) => return Err(Failure::unavailable(error.to_string())),
    }
    let left = joined(servers(), ", ");
    if left.is_empty() {
        return Ok(());
    }
    Err(Failure::busy(format!(
        "server {left} of an exited daemon is still running in {pipes}; wait until its clients have exited"
    )))
}

/// Fails if the daemon could not use this GPU: compute mode PROHIBITED, or other processes use it.
fn check_usable(gpu: &MpsGpu) -> Result<(), Failure> {
    if gpu.mode == Some(ComputeMode::Prohibited) {
        return Err(Failure::unavailable(format!(
            "GPU {} allows no processes (compute mode PROHIBITED)",
            gpu.index
        )));
    }
    let holders = joined(gpu.holders.iter().flatten(), ", ");
    if holders.is_empty() {
        return Ok(());
    }
    Err(Failure::busy(format!(
        "process {holders} uses GPU {} without this daemon, so the daemon could not use the GPU; see bailiff info",
        gpu.index
    )))
}

impl Plan<'_> {
    /// Returns the command line that starts the daemon, in shell syntax.
    pub(super) fn command_line(&self) -> String {
        let variables = joined(self.variables.iter().map(|(name, value)| format!("{name}={value}")), " ");
        format!("+ {variables} {} {}\n", self.control.program().display(), self.form().flag())
    }

    fn form(&self) -> Form {
        if self.flags.foreground { Form::Foreground } else { Form::Background }
    }

    /// Prints the commands that start the daemon, without running them.
    pub(super) fn print(&self) -> Result<(), Failure> {
        for gpu in self.gpus.iter().filter(|gpu| !gpu.is_exclusive()) {
            let args = compute_mode::smi_args(gpu, ComputeMode::ExclusiveProcess).join(" ");
            show(&format!("+ {} {args}\n", self.flags.nvidia_smi.display()))?;
        }
        show(&self.command_line())
    }

    /// Starts the daemon in the background and waits until it responds.
    pub(super) fn start(&self) -> Result<(), Failure> {
        show(&self.command_line())?;
        let variables: Vec<(&str, &str)> =
            self.variables.iter().map(|(name, value)| (*name, value.as_str())).collect();
        let started = self.control.clone().within(START_TIMEOUT).start(&variables);
        started.map_err(|error| {
            let why = if let ControlError::Strange(reply) = error { reply } else { error.to_string() };
            Failure::unavailable(format!("the daemon did not start: {why}"))
        })?;
        self.wait_for_answer()
    }

    /// Waits until the daemon answers.
    pub(super) fn wait_for_answer(&self) -> Result<(), Failure> {
        let mut last = None;
        for _ in 0..TRIES {
            match self.control.query(Question::Servers) {
                Ok(_) => return Ok(()),
                Err(error @ ControlError::NoDaemon) => last = Some(error),
                Err(error) => {
                    return Err(Failure::unavailable(format!(
                        "the daemon was started, but does not respond: {error}"
                    )));
                }
            }
            std::thread::park_timeout(INTERVAL);
        }
        let why = last.map(|error| error.to_string()).unwrap_or_default();
        Err(Failure::unavailable(format!("the daemon was started, but does not respond: {why}")))
    }

    /// Restores the compute modes, unless the GPUs are or may be in use through MPS.
    pub(super) fn restore_modes(&self, changed: ChangedModes) {
        if changed.is_empty() {
            return;
        }
        match self.in_use(&changed) {
            Some(why) => changed.keep(&why),
            None => changed.restore(&self.flags.nvidia_smi),
        }
    }

    /// Returns the reason why the GPUs are or may be in use through MPS; `None` if they are not in use.
    fn in_use(&self, changed: &ChangedModes) -> Option<String> {
        let pipes = self.pipes.display();
        if !matches!(self.control.query(Question::Servers), Err(ControlError::NoDaemon)) {
            return Some(format!("a daemon is running in {pipes}"));
        }
        let now = match compute_mode::all(&self.flags.common) {
            Ok(now) => now,
            Err(failure) => return Some(failure.to_string()),
        };
        let node = MpsProcesses::read(&self.flags.common.machine.procfs);
        if let Some(daemon) =
            node.trusted_daemons().find(|daemon| daemon.details.pipes() == Some(&*self.pipes))
        {
            return Some(format!("daemon {} in {pipes} is still running", daemon.pid));
        }
        let (servers, clients) = (node.servers(&self.pipes, &now), changed.clients(&now));
        if !servers.is_empty() {
            return Some(format!("server {} in {pipes} is still running", joined(&servers, ", ")));
        }
        (!clients.is_empty()).then(|| format!("it has MPS clients ({})", joined(&clients, ", ")))
    }
}
