//! A command, and all that it starts, from the wait for its GPUs to the end of the last of them.

#![expect(clippy::disallowed_methods, reason = "a command has an environment, and takes its time")]

use std::ffi::{OsStr, OsString};
use std::os::unix::process::ExitStatusExt;
use std::process::{ExitCode, ExitStatus};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use rustix::process::{getpid, set_child_subreaper};

use super::environment::Environment;
use super::live::{self, Live, Lived, Why};
use super::room::Room;
use super::usage::Use;
use super::watch::{Looker, Wish};
use crate::command::Event;
use crate::command::signals::Signals;
use crate::command::start::start;
use crate::exit::Failure;
use crate::flags::{self, Terms};
use crate::idle_timeout::visible::Visible;
use crate::lease::held::Held;

/// A command that is to be run.
pub(crate) struct Job<'a> {
    /// A program and its arguments.
    pub(crate) command: &'a [OsString],
    pub(crate) terms: &'a Terms,
    /// The GPUs that it is to have, where it is to have some.
    pub(crate) lease: Option<&'a flags::Run>,
    /// What its environment has that ours has not.
    pub(crate) environment: Environment,
    /// How much memory has to be free before it starts.
    pub(crate) room: Option<Room>,
}

/// What has to be there before anything is made that a signal must not leave behind.
pub(crate) struct Ready {
    looker: Option<Looker>,
    signals: Signals,
}

/// How it went.
pub(crate) struct Outcome {
    pub(crate) lived: Lived,
    /// Why we have ended it, if we have.
    pub(crate) why: Option<Why>,
    /// How long it took, from its start.
    pub(crate) took: Duration,
    /// How many GPUs it had for itself.
    pub(crate) gpus: Option<usize>,
    /// What was seen of its use of GPUs, if somebody has looked.
    pub(crate) used: Option<Use>,
}

impl Ready {
    /// From now on no signal ends us but SIGKILL. This one looks how the command uses its GPUs.
    pub(crate) fn get(watch: Option<&Wish>) -> Result<Self, Failure> {
        // Before signals are kept back, from which helpers would have the same.
        let looker = watch.map(Looker::start).transpose()?;
        Ok(Self { looker, signals: Signals::keep()? })
    }
}

impl<'a> Job<'a> {
    /// One without anything but its terms.
    pub(crate) fn of(command: &'a [OsString], terms: &'a Terms) -> Self {
        Self { command, terms, lease: None, environment: Environment::default(), room: None }
    }

    /// Runs it, and gives on how it ended.
    pub(crate) fn run(self) -> Result<ExitCode, Failure> {
        self.outcome(Ready::get(None)?)?.code()
    }

    /// Runs it, and gives its GPUs back.
    pub(crate) fn outcome(mut self, Ready { looker, signals }: Ready) -> Result<Outcome, Failure> {
        let (tell, events) = channel();
        signals.listen(tell.clone())?;
        let mut lease = self.lease.map(|flags| Held::wait(flags, (tell.clone(), &events))).transpose()?;
        let outcome = self.live((&signals, &events), lease.as_mut(), looker.map(|looker| (looker, tell)));
        // Whoever is left has the lease, and it is freed when they have ended: see `Pool::reap_here`.
        let left = outcome.as_ref().is_ok_and(|outcome| matches!(outcome.lived, Lived::Left(_)));
        if let Some(lease) = lease.filter(|_| !left) {
            lease.release();
        }
        outcome
    }

    fn live(
        &mut self,
        (signals, events): (&Signals, &Receiver<Event>),
        mut lease: Option<&mut Held<'_>>,
        mut looker: Option<(Looker, Sender<Event>)>,
    ) -> Result<Outcome, Failure> {
        if let Some(lease) = &mut lease {
            self.environment.set(lease.environment()?);
        }
        let visible = self.visible();
        if let (Some(room), Some((looker, _))) = (self.room, &mut looker) {
            room.wait((looker, &visible), lease.as_deref_mut(), events)?;
        }
        // Whoever loses his parent becomes our child, so that the last one's end is seen at once.
        set_child_subreaper(Some(getpid())).map_err(std::io::Error::from)?;
        let apart = live::apart();
        if let Some(lease) = &mut lease {
            lease.pass_on()?;
        }
        let watched = looker.map(|(looker, tell)| looker.watch(visible, tell)).transpose()?;
        let environment = self.environment.whole(std::env::vars_os());
        let child = start(self.command, environment, signals.mask()).map_err(|error| {
            let program = self.command.first().map(|word| word.to_string_lossy()).unwrap_or_default();
            Failure::start(&program, &error)
        })?;
        let began = Instant::now();
        let gpus = lease.as_ref().map(|lease| lease.gpus());
        let mut live = Live::new((child, apart), self.terms, lease, watched);
        let lived = live.until_all_end(events)?;
        Ok(Outcome { lived, why: live.why(), took: began.elapsed(), gpus, used: live.used() })
    }

    /// The GPUs that the command can see.
    fn visible(&self) -> Visible {
        let told = |name| self.environment.get(name).map(OsStr::to_owned).or_else(|| std::env::var_os(name));
        let text = |name| told(name).map(|value| value.to_string_lossy().into_owned());
        Visible::parse(text("CUDA_VISIBLE_DEVICES").as_deref(), text("CUDA_DEVICE_ORDER").as_deref())
    }
}

impl Outcome {
    /// The command's own code, as a shell tells it; or why it was ended.
    pub(crate) fn code(self) -> Result<ExitCode, Failure> {
        match (self.lived, self.why) {
            (Lived::Left(number), _) => Err(Failure::signalled(number)),
            (_, Some(Why::TimeUp)) => Err(Failure::late("the command was ended: its time was up")),
            (_, Some(Why::Idle)) => Err(Failure::late("the command was ended: it left its GPUs idle")),
            (_, Some(Why::Lost)) => Err(Failure::lost("the command was ended: its lease was lost")),
            (Lived::Ended(status), None) => Ok(shells(status).into()),
        }
    }
}

/// As a shell tells it.
fn shells(status: ExitStatus) -> u8 {
    let code = status.code().or_else(|| status.signal().map(|number| 128 + number));
    u8::try_from(code.unwrap_or(255)).unwrap_or(255)
}
