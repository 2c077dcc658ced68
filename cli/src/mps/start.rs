//! Starts a control daemon: compute modes, the daemon, and a look whether it answers.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use bailiff_mps::control::{Question, log_variable};
use bailiff_mps::place::{PIPES, VISIBLE};
use bailiff_mps::{Control, ControlError, Form};
use bailiff_snapshot::ComputeMode;

use super::flags::Start;
use super::gpus::{self, Changed, Gpu};
use super::node::{Node, Pipes};
use super::{alone, foreground, show};
use crate::command::signals;
use crate::exit::Failure;

/// How long its parent may take to end.
const PATIENCE: Duration = Duration::from_secs(10);
/// A daemon that has started is asked so often whether it answers.
const TRIES: u32 = 100;
/// Between two of them.
const INTERVAL: Duration = Duration::from_millis(50);

/// What is to be started.
pub(super) struct Plan<'a> {
    pub(super) flags: &'a Start,
    pub(super) control: Control,
    pipes: PathBuf,
    pub(super) gpus: Vec<Gpu>,
    /// Environment of the daemon.
    pub(super) variables: Vec<(&'static str, String)>,
}

/// Starts it.
pub(super) fn start(flags: &Start) -> Result<ExitCode, Failure> {
    if flags.dry_run {
        return plan(flags)?.tell().map(|()| ExitCode::SUCCESS);
    }
    let alone = alone::lock();
    let plan = plan(flags)?;
    if flags.foreground {
        return foreground::serve(&plan, alone);
    }
    // Between mode and daemon nobody would set the mode back.
    signals::defer()?;
    let changed = Changed::exclusive(&flags.nvidia_smi, &plan.gpus)?;
    let told = || signals::deferred().map_or(Ok(()), |number| Err(Failure::signalled(number)));
    if let Err(failure) = told().and_then(|()| plan.begin()) {
        plan.give_back(changed);
        return Err(failure);
    }
    show("the daemon answers; clients of it take no CUDA_VISIBLE_DEVICES of their own\n")?;
    told().map(|()| ExitCode::SUCCESS)
}

fn plan(flags: &Start) -> Result<Plan<'_>, Failure> {
    let pipes = flags.common.pipes()?;
    if !flags.log_dir.is_absolute() {
        return Err(Failure::usage(format!(
            "{} is no log directory: it begins with a slash",
            flags.log_dir.display()
        )));
    }
    let all = gpus::all(&flags.common)?;
    let control = flags.common.control(&pipes);
    free(&control, &pipes, || Node::look(&flags.common.machine.procfs).servers(&pipes, &all))?;
    let gpus = gpus::named(all, &flags.gpu)?;
    gpus.iter().try_for_each(usable)?;
    // UUIDs mean the same GPUs to nvidia-smi and to CUDA, numbers may not.
    let uuids: Vec<&str> = gpus.iter().map(|gpu| gpu.uuid.as_str()).collect();
    let logs = flags.log_dir.display().to_string();
    let variables = vec![
        (PIPES, pipes.display().to_string()),
        (log_variable(&logs).0, logs.clone()),
        (VISIBLE, uuids.join(",")),
    ];
    Ok(Plan { flags, control, pipes, gpus, variables })
}

/// Whether no daemon is in that pipe directory, nor a server that one has left.
fn free(control: &Control, pipes: &Path, servers: impl Fn() -> Vec<u32>) -> Result<(), Failure> {
    let place = pipes.display();
    match control.query(Question::Servers) {
        Err(ControlError::NoDaemon) => {}
        Ok(_) | Err(ControlError::Refused(_)) => {
            let why = format!("a daemon answers in {place} already; --pipe-dir names another one's place");
            return Err(Failure::unavailable(why));
        }
        Err(error @ ControlError::NoAnswer(_)) => {
            return Err(Failure::unavailable(format!(
                "a daemon is in {place} and hangs ({error}); ending it would take its clients with it, so that is left \
                 to you"
            )));
        }
        Err(error) => return Err(Failure::unavailable(error.to_string())),
    }
    let left: Vec<String> = servers().iter().map(u32::to_string).collect();
    if left.is_empty() {
        return Ok(());
    }
    Err(Failure::busy(format!(
        "server {} is left of a daemon of {place} that has ended: wait until its clients have ended, and it with them",
        left.join(", ")
    )))
}

/// Whether a GPU can become the daemon's.
fn usable(gpu: &Gpu) -> Result<(), Failure> {
    if gpu.mode == Some(ComputeMode::Prohibited) {
        return Err(Failure::unavailable(format!("GPU {} is closed to all (PROHIBITED)", gpu.index)));
    }
    let holders: Vec<String> = gpu.holders.iter().flatten().map(u32::to_string).collect();
    if holders.is_empty() {
        return Ok(());
    }
    Err(Failure::busy(format!(
        "process {} computes on GPU {} without this daemon, which could then not use it; bailiff info tells whose it is",
        holders.join(", "),
        gpu.index
    )))
}

impl Plan<'_> {
    /// The daemon's command line, as a shell takes it.
    pub(super) fn line(&self) -> String {
        let variables: Vec<String> =
            self.variables.iter().map(|(name, value)| format!("{name}={value}")).collect();
        format!("+ {} {} {}\n", variables.join(" "), self.control.program().display(), self.form().flag())
    }

    fn form(&self) -> Form {
        if self.flags.foreground { Form::Foreground } else { Form::Background }
    }

    /// What would be run.
    fn tell(&self) -> Result<(), Failure> {
        for gpu in self.gpus.iter().filter(|gpu| !gpu.is_exclusive()) {
            let words = gpus::command(gpu, ComputeMode::ExclusiveProcess).join(" ");
            show(&format!("+ {} {words}\n", self.flags.nvidia_smi.display()))?;
        }
        show(&self.line())
    }

    fn begin(&self) -> Result<(), Failure> {
        show(&self.line())?;
        let variables: Vec<(&str, &str)> =
            self.variables.iter().map(|(name, value)| (*name, value.as_str())).collect();
        let started = self.control.clone().within(PATIENCE).start(&variables);
        started.map_err(|error| {
            let why = if let ControlError::Strange(said) = error { said } else { error.to_string() };
            Failure::unavailable(format!("the daemon did not start: {why}"))
        })?;
        self.answers()
    }

    /// Waits until it answers.
    pub(super) fn answers(&self) -> Result<(), Failure> {
        let mut last = None;
        for _ in 0..TRIES {
            match self.control.query(Question::Servers) {
                Ok(_) => return Ok(()),
                Err(error @ ControlError::NoDaemon) => last = Some(error),
                Err(error) => {
                    return Err(Failure::unavailable(format!("the daemon was started: {error}")));
                }
            }
            std::thread::park_timeout(INTERVAL);
        }
        let why = last.map(|error| error.to_string()).unwrap_or_default();
        Err(Failure::unavailable(format!("the daemon was started: {why}")))
    }
    /// Sets compute modes back, unless somebody is on those GPUs through MPS, or may be.
    pub(super) fn give_back(&self, changed: Changed) {
        if changed.is_empty() {
            return;
        }
        match self.in_use(&changed) {
            Some(why) => changed.leave(&why),
            None => changed.undo(&self.flags.nvidia_smi),
        }
    }

    /// Who has those GPUs, or may have them.
    fn in_use(&self, changed: &Changed) -> Option<String> {
        let place = self.pipes.display();
        if !matches!(self.control.query(Question::Servers), Err(ControlError::NoDaemon)) {
            return Some(format!("a daemon is in {place}"));
        }
        let now = match gpus::all(&self.flags.common) {
            Ok(now) => now,
            Err(failure) => return Some(failure.to_string()),
        };
        let node = Node::look(&self.flags.common.machine.procfs);
        if let Some(daemon) = node.believed().find(|daemon| daemon.is.pipes() == Some(&*self.pipes)) {
            return Some(format!("the daemon {} of {place} lives", daemon.pid));
        }
        let list = |pids: &[u32]| pids.iter().map(u32::to_string).collect::<Vec<_>>().join(", ");
        let (servers, clients) = (node.servers(&self.pipes, &now), changed.clients(&now));
        if !servers.is_empty() {
            return Some(format!("server {} of {place} lives", list(&servers)));
        }
        (!clients.is_empty()).then(|| format!("clients of MPS are on it ({})", list(&clients)))
    }
}
