//! A command that runs: everything that can happen, one after the other, until nobody is left whom it started.

#![expect(clippy::disallowed_methods, reason = "terms have an end")]

use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use bailiff_snapshot::Sample;
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, getpgid, getpgrp, kill_process, wait};

use super::usage::Use;
use super::watch::Watched;
use crate::command::Event;
use crate::command::signals::Told;
use crate::exit::Failure;
use crate::flags::Terms;
use crate::lease::held::Held;
use crate::say::say;
use crate::tree::Family;

/// Between two kills of a tree that goes on growing.
const AGAIN: Duration = Duration::from_millis(100);

/// How it went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lived {
    /// The command and all that it started have ended.
    Ended(ExitStatus),
    /// The command has ended, others have not, and we were told to go by this signal.
    Left(i32),
}

/// Why we end a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Why {
    /// Its time was up.
    TimeUp,
    /// It left its GPUs idle.
    Idle,
    /// Somebody else has its GPUs.
    Lost,
}

/// An end that we have made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ending {
    pub(crate) why: Why,
    /// The command had ended by itself, and only those were ended whom it had left.
    pub(crate) of_the_rest: bool,
}

/// The command is being ended.
#[derive(Debug, Clone, Copy)]
struct Stop {
    ending: Ending,
    /// All that is left is killed then, and again.
    kill: Instant,
}

/// A command that runs.
pub(crate) struct Live<'a, 'f> {
    child: Pid,
    family: Family,
    terms: &'a Terms,
    lease: Option<&'a mut Held<'f>>,
    watched: Option<Watched>,
    status: Option<ExitStatus>,
    up: Option<Instant>,
    pace: Option<Instant>,
    stop: Option<Stop>,
    /// When to look again who is left, where that could not be told.
    again: Option<Instant>,
}

impl<'a, 'f> Live<'a, 'f> {
    pub(crate) fn new(
        (child, family): (Pid, Family),
        terms: &'a Terms,
        lease: Option<&'a mut Held<'f>>,
        watched: Option<Watched>,
    ) -> Self {
        let now = Instant::now();
        Self {
            child,
            family,
            terms,
            status: None,
            up: terms.max_time.map(|time| now + time),
            pace: lease.as_ref().map(|_| now),
            lease,
            watched,
            stop: None,
            again: None,
        }
    }

    /// Why we have ended it, if we have.
    pub(crate) fn ending(&self) -> Option<Ending> {
        self.stop.map(|stop| stop.ending)
    }

    /// What it had of its GPUs, where somebody has looked.
    pub(crate) fn used(self) -> Option<Use> {
        self.watched.map(Watched::used)
    }

    /// Lets it live until nobody is left whom it started.
    pub(crate) fn until_all_end(&mut self, events: &Receiver<Event>) -> Result<Lived, Failure> {
        loop {
            let due =
                [self.stop.map(|stop| stop.kill), self.up, self.pace, self.again].into_iter().flatten().min();
            let event = match due {
                Some(due) => events.recv_timeout(due.saturating_duration_since(Instant::now())),
                None => events.recv().map_err(RecvTimeoutError::from),
            };
            match event {
                Ok(Event::Told(told)) if self.status.is_none() => self.pass_on(told),
                Ok(Event::Told(told)) if told.is_for_the_command() => {}
                Ok(Event::Told(told)) => return Ok(Lived::Left(told.number)),
                Ok(Event::ChildEnded) | Err(RecvTimeoutError::Timeout) => {
                    if let Some(status) = self.reap() {
                        return Ok(Lived::Ended(status));
                    }
                }
                Ok(Event::Looked(sample)) => self.see(sample),
                Ok(Event::Waited) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(Failure::unavailable("the command's end was not seen"));
                }
            }
            self.do_what_is_due(Instant::now());
        }
    }

    fn do_what_is_due(&mut self, now: Instant) {
        let is_due = |when: Option<Instant>| when.is_some_and(|when| when <= now);
        if is_due(self.stop.map(|stop| stop.kill)) {
            self.kill(now);
        }
        if is_due(self.up) {
            self.up = self.time_up(now);
        }
        if is_due(self.pace) {
            self.renew(now);
        }
    }

    /// Takes a look at how it uses its GPUs. Whoever has ended by itself is not ended by us.
    fn see(&mut self, sample: Option<Box<Sample>>) {
        let Some(watched) = &mut self.watched else { return };
        if watched.see(sample, &self.family) && self.status.is_none() {
            self.end((Why::Idle, Signal::QUIT), self.terms.grace, Instant::now());
            say("the GPUs are idle: the command is told to end");
        }
    }

    /// Notes who has ended; how the command did, once nobody is left.
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
        // Nobody else waits for our children, so as long as one is left it is there to be found.
        let status = self.status.filter(|_| self.family.has_others())?;
        let left = self.family.below();
        self.again = left.is_err().then(|| Instant::now() + AGAIN);
        left.is_ok_and(|left| left.is_empty()).then_some(status)
    }

    /// Passes a signal on, unless the terminal has sent it to the command, too.
    fn pass_on(&self, told: Told) {
        if told.by_terminal && getpgid(Some(self.child)) == Ok(getpgrp()) {
            return;
        }
        if let Some(signal) = Signal::from_named_raw(told.number) {
            // Until it has been waited for, its pid is nobody else's.
            let _ = kill_process(self.child, signal);
        }
    }

    /// Tells the command to end, unless it was given more time meanwhile: until when, then.
    fn time_up(&mut self, now: Instant) -> Option<Instant> {
        if let Some(left) = self.lease.as_mut().and_then(|lease| lease.more_time()) {
            say(format_args!("given more time: {}", humantime::format_duration(left)));
            return now.checked_add(left);
        }
        self.end((Why::TimeUp, Signal::TERM), self.terms.grace, now);
        // Whoever does not read what we say must not keep us from what we do.
        let whom = if self.status.is_some() { "what the command has left" } else { "the command" };
        say(format_args!("the time is up: {whom} is told to end"));
        None
    }

    fn end(&mut self, (why, signal): (Why, Signal), grace: Duration, now: Instant) {
        if self.stop.is_some() {
            return;
        }
        if !grace.is_zero() {
            self.ask_to_end(signal);
        }
        let ending = Ending { why, of_the_rest: self.status.is_some() };
        self.stop = Some(Stop { ending, kill: now + grace });
    }

    /// Where the command has ended, those whom it left behind are asked.
    fn ask_to_end(&self, signal: Signal) {
        if self.status.is_none() {
            let _ = kill_process(self.child, signal);
            return;
        }
        self.family.signal(signal);
    }

    fn kill(&mut self, now: Instant) {
        self.family.signal(Signal::KILL);
        if let Some(stop) = &mut self.stop {
            stop.kill = now + AGAIN;
        }
    }

    fn renew(&mut self, now: Instant) {
        let Some(lease) = &mut self.lease else { return };
        let (lost, grace) = (lease.renew(), lease.grace());
        // Late by more than an interval is not made up for.
        self.pace = Some(now + lease.pace());
        if lost {
            self.end((Why::Lost, Signal::TERM), grace, now);
        }
    }
}
