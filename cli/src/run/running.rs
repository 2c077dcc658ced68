//! The event loop of a running command, until all processes that it started have exited.

#![expect(clippy::disallowed_methods, reason = "time limits need a clock")]

use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use bailiff_snapshot::Sample;
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, kill_process, wait};

use super::monitor::GpuUsage;
use super::monitor::UsageMonitor;
use crate::args::TimeLimit;
use crate::command::Event;
use crate::exit::Failure;
use crate::lease::command_lease::CommandLease;
use crate::output::print_message;
use crate::process_tree::ProcessTree;

/// The interval between two SIGKILLs of a process tree that keeps growing.
const RETRY: Duration = Duration::from_millis(100);

/// How a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CommandExit {
    /// The command and all processes that it started have exited.
    Ended(ExitStatus),
    /// The command has exited, processes that it started still run, and this process received this signal.
    Detached(i32),
}

/// Why this process stops a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TerminationReason {
    /// The command's time limit was reached.
    TimeUp,
    /// The command's GPUs were idle.
    Idle,
    /// The command's lease was lost.
    Lost,
}

/// A termination by this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Termination {
    pub(crate) why: TerminationReason,
    /// Whether the command had exited by itself, so that only the processes that it left running were terminated.
    pub(crate) of_leftovers: bool,
}

/// A termination in progress.
#[derive(Debug, Clone, Copy)]
struct Stop {
    termination: Termination,
    /// When the next SIGKILL is sent to the remaining processes.
    kill: Instant,
}

pub(crate) struct RunningCommand<'a, 'f> {
    child: Pid,
    process_tree: ProcessTree,
    time_limit: &'a TimeLimit,
    lease: Option<&'a mut CommandLease<'f>>,
    monitor: Option<UsageMonitor>,
    status: Option<ExitStatus>,
    time_up: Option<Instant>,
    renewal: Option<Instant>,
    stop: Option<Stop>,
    /// When to list the remaining processes again after a failure.
    retry: Option<Instant>,
}

impl<'a, 'f> RunningCommand<'a, 'f> {
    pub(crate) fn new(
        (child, process_tree): (Pid, ProcessTree),
        time_limit: &'a TimeLimit,
        lease: Option<&'a mut CommandLease<'f>>,
        monitor: Option<UsageMonitor>,
    ) -> Self {
        let now = Instant::now();
        Self {
            child,
            process_tree,
            time_limit,
            status: None,
            time_up: time_limit.max_time.map(|time| now + time),
            renewal: lease.as_ref().map(|_| now),
            lease,
            monitor,
            stop: None,
            retry: None,
        }
    }

    /// Returns why the command was stopped, if it was.
    pub(crate) fn termination(&self) -> Option<Termination> {
        self.stop.map(|stop| stop.termination)
    }

    /// Returns the observed GPU usage, if it was sampled.
    pub(crate) fn used(self) -> Option<GpuUsage> {
        self.monitor.map(UsageMonitor::usage)
    }

    /// Handles events until all processes of the command have exited.
    pub(crate) fn run_to_exit(&mut self, events: &Receiver<Event>) -> Result<CommandExit, Failure> {
        loop {
            let due = [self.stop.map(|stop| stop.kill), self.time_up, self.renewal, self.retry]
                .into_iter()
                .flatten()
                .min();
            let event = match due {
                Some(due) => events.recv_timeout(due.saturating_duration_since(Instant::now())),
                None => events.recv().map_err(RecvTimeoutError::from),
            };
            match event {
                Ok(Event::Signal(signal)) if self.status.is_none() => signal.forward(self.child),
                Ok(Event::Signal(signal)) if signal.is_for_command() => {}
                Ok(Event::Signal(signal)) => return Ok(CommandExit::Detached(signal.number)),
                Ok(Event::ChildEnded) | Err(RecvTimeoutError::Timeout) => {
                    if let Some(status) = self.reap() {
                        return Ok(CommandExit::Ended(status));
                    }
                }
                Ok(Event::Sampled(sample)) => self.check_usage(sample),
                Ok(Event::Waited) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(Failure::unavailable(
                        "internal error: the event threads stopped before the command exited",
                    ));
                }
            }
            self.run_due_timers(Instant::now());
        }
    }

    fn run_due_timers(&mut self, now: Instant) {
        let is_due = |when: Option<Instant>| when.is_some_and(|when| when <= now);
        if is_due(self.stop.map(|stop| stop.kill)) {
            self.kill(now);
        }
        if is_due(self.time_up) {
            self.time_up = self.on_time_up(now);
        }
        if is_due(self.renewal) {
            self.renew(now);
        }
    }

    /// Evaluates a sample; stops an idle command that has not exited by itself.
    fn check_usage(&mut self, sample: Option<Box<Sample>>) {
        let Some(monitor) = &mut self.monitor else { return };
        if monitor.observe(sample, &self.process_tree) && self.status.is_none() {
            self.stop((TerminationReason::Idle, Signal::QUIT), self.time_limit.grace, Instant::now());
            print_message("the GPUs are idle: stopping the command");
        }
    }

    /// Reaps exited children; returns the command's status once no process is left.
    fn reap(&mut self) -> Option<ExitStatus> {
        loop {
            match wait(WaitOptions::NOHANG) {
                Ok(Some((pid, status))) if pid == self.child && self.status.is_none() => {
                    self.status = Some(ExitStatus::from_raw(status.as_raw()));
                }
                Ok(Some(_)) | Err(Errno::INTR) => {}
                Ok(None) => break,
                Err(_) => return self.status,
            }
        }
        // Without other children, `wait` fails with ECHILD once the last process of the command has exited.
        let status = self.status.filter(|_| self.process_tree.has_other_children())?;
        let left = self.process_tree.descendants();
        self.retry = left.is_err().then(|| Instant::now() + RETRY);
        left.is_ok_and(|left| left.is_empty()).then_some(status)
    }

    /// Stops the command, or returns the new deadline if the lease was extended.
    fn on_time_up(&mut self, now: Instant) -> Option<Instant> {
        if let Some(left) = self.lease.as_mut().and_then(|lease| lease.extension()) {
            print_message(format_args!(
                "the lease was extended; time left: {}",
                humantime::format_duration(left)
            ));
            return now.checked_add(left);
        }
        self.stop((TerminationReason::TimeUp, Signal::TERM), self.time_limit.grace, now);
        // Printed after the signal, because a blocked standard error must not delay it.
        let target =
            if self.status.is_some() { "the remaining processes of the command" } else { "the command" };
        print_message(format_args!("time limit reached: stopping {target}"));
        None
    }

    fn stop(&mut self, (why, signal): (TerminationReason, Signal), grace: Duration, now: Instant) {
        if self.stop.is_some() {
            return;
        }
        if !grace.is_zero() {
            self.signal_command(signal);
        }
        let termination = Termination { why, of_leftovers: self.status.is_some() };
        self.stop = Some(Stop { termination, kill: now + grace });
    }

    /// Signals the command or, if it has exited, the processes that it left running.
    fn signal_command(&self, signal: Signal) {
        if self.status.is_none() {
            let _ = kill_process(self.child, signal);
            return;
        }
        self.process_tree.signal(signal);
    }

    fn kill(&mut self, now: Instant) {
        self.process_tree.signal(Signal::KILL);
        if let Some(stop) = &mut self.stop {
            stop.kill = now + RETRY;
        }
    }

    fn renew(&mut self, now: Instant) {
        let Some(lease) = &mut self.lease else { return };
        let (lost, grace) = (lease.renew(), lease.grace());
        // The interval starts now, so missed renewals are not made up for.
        self.renewal = Some(now + lease.renew_interval());
        if lost {
            self.stop((TerminationReason::Lost, Signal::TERM), grace, now);
        }
    }
}
