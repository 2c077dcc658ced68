//! Runs a command, from the wait for its GPUs to the exit of the last process that it started.

#![expect(clippy::disallowed_methods, reason = "reads the environment and the clock")]

use std::ffi::{OsStr, OsString};
use std::os::unix::process::ExitStatusExt;
use std::process::{ExitCode, ExitStatus};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use super::environment::Environment;
use super::free_memory::{self, FreeMemory};
use super::monitor::GpuUsage;
use super::monitor::{GpuSampler, MonitorOptions};
use super::running::{CommandExit, RunningCommand, Termination, TerminationReason};
use crate::args::TimeLimit;
use crate::command::signals::Signals;
use crate::command::start;
use crate::command::{Event, check_signals};
use crate::exit::Failure;
use crate::lease::command_lease::CommandLease;
use crate::lease::flags;
use crate::output::joined;
use crate::process_tree::ProcessTree;
use crate::visible::Visible;

/// A command to run.
pub(crate) struct Job<'a> {
    /// The program and its arguments.
    pub(crate) command: &'a [OsString],
    pub(crate) time_limit: &'a TimeLimit,
    /// The lease request, if the command gets leased GPUs.
    pub(crate) lease: Option<&'a flags::Run>,
    /// The differences between its environment and that of this process.
    pub(crate) environment: Environment,
    /// Memory that must be free before it starts.
    pub(crate) free_memory: Option<FreeMemory>,
    /// Requested amounts of memory, with the flags that set them.
    pub(crate) amounts: Vec<(&'static str, u64)>,
}

/// State that is set up first: if its setup fails, nothing has to be cleaned up.
pub(crate) struct Prepared {
    process_tree: ProcessTree,
    gpu_sampler: Option<GpuSampler>,
    signals: Signals,
}

impl Prepared {
    /// Starts the sampler, if requested, and blocks signals.
    pub(crate) fn new(options: Option<&MonitorOptions>) -> Result<Self, Failure> {
        let process_tree = ProcessTree::detect();
        // The sampler starts before signals are blocked, because helper processes inherit the mask.
        let gpu_sampler = options.map(GpuSampler::start).transpose();
        // Without a flag that needs the driver, sampling is only for the summary and may fail.
        let gpu_sampler = gpu_sampler.or_else(|why| {
            if options.is_some_and(|options| options.needs_driver) { Err(why) } else { Ok(None) }
        })?;
        Ok(Self { process_tree, gpu_sampler, signals: Signals::block()? })
    }
}

/// The result of a run.
pub(crate) struct Outcome {
    pub(crate) exit: CommandExit,
    /// Why this process stopped the command, if it did.
    pub(crate) termination: Option<Termination>,
    /// The run time, from the command's start.
    pub(crate) took: Duration,
    /// The number of leased GPUs.
    pub(crate) gpus: Option<usize>,
    /// The observed GPU usage, if it was sampled.
    pub(crate) used: Option<GpuUsage>,
}

impl<'a> Job<'a> {
    /// Creates a job with a time limit only.
    pub(crate) fn new(command: &'a [OsString], time_limit: &'a TimeLimit) -> Self {
        Self {
            command,
            time_limit,
            lease: None,
            environment: Environment::default(),
            free_memory: None,
            amounts: Vec::new(),
        }
    }

    /// Runs the command and returns its exit code.
    pub(crate) fn run(self) -> Result<ExitCode, Failure> {
        self.outcome(Prepared::new(None)?)?.code()
    }

    /// Runs the command and releases its GPUs.
    pub(crate) fn outcome(mut self, mut start: Prepared) -> Result<Outcome, Failure> {
        let (sender, events) = channel();
        start.signals.listen(sender.clone())?;
        if let Some(gpu_sampler) = &mut start.gpu_sampler {
            gpu_sampler.open()?;
            // With a lease the GPUs are known only after the wait. An amount that no GPU has is refused
            // before the wait.
            let visible = if self.lease.is_some() { Visible::All } else { self.visible() };
            free_memory::refuse_impossible(&self.amounts, (gpu_sampler, &visible), &events)?;
        }
        let mut lease =
            self.lease.map(|flags| CommandLease::wait(flags, (sender.clone(), &events))).transpose()?;
        let outcome = self.execute(start, (sender, &events), lease.as_mut());
        // Remaining processes keep the lease; it is released when they have exited (see
        // `Pool::reap_local_host`).
        let left = outcome.as_ref().is_ok_and(|outcome| matches!(outcome.exit, CommandExit::Detached(_)));
        if let Some(lease) = lease.filter(|_| !left) {
            lease.release();
        }
        outcome
    }

    fn execute(
        &mut self,
        Prepared { mut process_tree, mut gpu_sampler, signals }: Prepared,
        (sender, events): (Sender<Event>, &Receiver<Event>),
        mut lease: Option<&mut CommandLease<'_>>,
    ) -> Result<Outcome, Failure> {
        if let Some(lease) = &mut lease {
            self.environment.set(lease.environment()?);
        }
        let visible = self.visible();
        if let (Some(_), Some(gpu_sampler)) = (&lease, &mut gpu_sampler) {
            free_memory::refuse_impossible(&self.amounts, (gpu_sampler, &visible), events)?;
        }
        if let (Some(free_memory), Some(gpu_sampler)) = (self.free_memory, &mut gpu_sampler) {
            free_memory.wait((gpu_sampler, &visible), lease.as_deref_mut(), events)?;
        }
        check_signals(events)?;
        process_tree.exclude_existing()?;
        if let Some(lease) = &mut lease {
            lease.pass_on()?;
        }
        let monitor = gpu_sampler
            .filter(GpuSampler::monitors_command)
            .map(|gpu_sampler| gpu_sampler.monitor(visible, sender))
            .transpose()?;
        let environment = self.environment.apply(std::env::vars_os());
        let gpus = lease.as_ref().map(|lease| lease.gpus());
        let command = expand_index(self.command, gpus);
        let child = start(&command, environment, signals.mask()).map_err(|error| {
            let program = self.command.first().map(|arg| arg.to_string_lossy()).unwrap_or_default();
            Failure::start(&program, &error)
        })?;
        process_tree.set_command(child);
        let began = Instant::now();
        let mut running = RunningCommand::new((child, process_tree), self.time_limit, lease, monitor);
        let exit = running.run_to_exit(events)?;
        Ok(Outcome {
            exit,
            termination: running.termination(),
            took: began.elapsed(),
            gpus,
            used: running.used(),
        })
    }

    /// Returns the GPUs that the command can see.
    fn visible(&self) -> Visible {
        let value = |name| self.environment.get(name).map(OsStr::to_owned).or_else(|| std::env::var_os(name));
        let text = |name| value(name).map(|value| value.to_string_lossy().into_owned());
        Visible::parse(text("CUDA_VISIBLE_DEVICES").as_deref(), text("CUDA_DEVICE_ORDER").as_deref())
    }
}

/// Replaces `{index}` by the indexes of the leased GPUs and `{{index}}` by `{index}`. The command sees no
/// other GPUs (`CUDA_VISIBLE_DEVICES` applies to CUDA and to NVIDIA's `OpenCL`), so its indexes start at 0.
fn expand_index(command: &[OsString], gpus: Option<usize>) -> Vec<OsString> {
    let Some(gpus) = gpus else { return command.to_vec() };
    let numbers = joined(0..gpus, ",");
    let expand = |text: &str| {
        let parts: Vec<String> =
            text.split("{{index}}").map(|part| part.replace("{index}", &numbers)).collect();
        OsString::from(parts.join("{index}"))
    };
    let expanded = |arg: &OsString| arg.to_str().map(expand);
    command.iter().map(|arg| expanded(arg).unwrap_or_else(|| arg.clone())).collect()
}

impl Outcome {
    /// Returns the command's exit code as a shell reports it, or why the command was stopped.
    pub(crate) fn code(self) -> Result<ExitCode, Failure> {
        let why = self
            .termination
            .filter(|termination| !termination.of_leftovers)
            .map(|termination| termination.why);
        match (self.exit, why) {
            (CommandExit::Detached(number), _) => Err(Failure::signalled(number)),
            (_, Some(TerminationReason::TimeUp)) => {
                Err(Failure::late("the command was stopped: its time limit was reached"))
            }
            (_, Some(TerminationReason::Idle)) => {
                Err(Failure::late("the command was stopped: its GPUs were idle"))
            }
            (_, Some(TerminationReason::Lost)) => {
                Err(Failure::lost("the command was stopped: its lease was lost"))
            }
            (CommandExit::Ended(status), None) => Ok(shell_code(status).into()),
        }
    }
}

/// Returns the exit code as a shell reports it.
fn shell_code(status: ExitStatus) -> u8 {
    let code = status.code().or_else(|| status.signal().map(|number| 128 + number));
    u8::try_from(code.unwrap_or(255)).unwrap_or(255)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn index_in_arguments_is_expanded() {
        let command = ["krylov", "0:{index}", "{index}{index}{inde", "a{{index}}{index}"].map(OsString::from);
        assert_eq!(expand_index(&command, None), command);
        assert_eq!(expand_index(&command, Some(1)), ["krylov", "0:0", "00{inde", "a{index}0"]);
        assert_eq!(
            expand_index(&command, Some(3)),
            ["krylov", "0:0,1,2", "0,1,20,1,2{inde", "a{index}0,1,2"]
        );
    }
}
