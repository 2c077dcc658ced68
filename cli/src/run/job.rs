//! A command, and all that it starts, from the wait for its GPUs to the end of the last of them.

#![expect(clippy::disallowed_methods, reason = "a command has an environment, and takes its time")]

use std::ffi::{OsStr, OsString};
use std::os::unix::process::ExitStatusExt;
use std::process::{ExitCode, ExitStatus};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use super::environment::Environment;
use super::live::{Ending, Live, Lived, Why};
use super::room::{self, Room};
use super::usage::Use;
use super::watch::{Looker, Wish};
use crate::command::Event;
use crate::command::signals::Signals;
use crate::command::start::start;
use crate::exit::Failure;
use crate::flags::{self, Terms};
use crate::idle_timeout::visible::Visible;
use crate::lease::held::Held;
use crate::tree::Family;

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
    /// Amounts of memory that a GPU must have, with the flags that name them.
    pub(crate) amounts: Vec<(&'static str, u64)>,
}

/// What is there before anything is made that would have to be removed.
pub(crate) struct Start {
    family: Family,
    looker: Option<Looker>,
    signals: Signals,
}

impl Start {
    /// From now on no signal ends us; how a command uses its GPUs is watched where that is wished for.
    pub(crate) fn new(wish: Option<&Wish>) -> Result<Self, Failure> {
        let family = Family::look();
        // Before signals are kept back, from which helpers would have the same.
        let looker = wish.map(Looker::start).transpose();
        // Nobody has asked for more than a summary, and there is nothing to summarize.
        let looker = looker
            .or_else(|why| if wish.is_some_and(|wish| wish.needs_driver) { Err(why) } else { Ok(None) })?;
        Ok(Self { family, looker, signals: Signals::keep()? })
    }
}

/// How it went.
pub(crate) struct Outcome {
    pub(crate) lived: Lived,
    /// Whom we have ended, and why.
    pub(crate) ending: Option<Ending>,
    /// How long it took, from its start.
    pub(crate) took: Duration,
    /// How many GPUs it had for itself.
    pub(crate) gpus: Option<usize>,
    /// What was seen of its use of GPUs, if somebody has looked.
    pub(crate) used: Option<Use>,
}

impl<'a> Job<'a> {
    /// One without anything but its terms.
    pub(crate) fn of(command: &'a [OsString], terms: &'a Terms) -> Self {
        Self {
            command,
            terms,
            lease: None,
            environment: Environment::default(),
            room: None,
            amounts: Vec::new(),
        }
    }

    /// Runs it, and gives on how it ended.
    pub(crate) fn run(self) -> Result<ExitCode, Failure> {
        self.outcome(Start::new(None)?)?.code()
    }

    /// Runs it, and gives its GPUs back.
    pub(crate) fn outcome(mut self, mut start: Start) -> Result<Outcome, Failure> {
        let (tell, events) = channel();
        start.signals.listen(tell.clone())?;
        if let Some(looker) = &mut start.looker {
            looker.open()?;
            // With a lease its GPUs are known only after a wait, so a size that no GPU has is refused before it.
            let visible = if self.lease.is_some() { Visible::All } else { self.visible() };
            room::refuse_impossible(&self.amounts, (looker, &visible), &events)?;
        }
        let mut lease = self.lease.map(|flags| Held::wait(flags, (tell.clone(), &events))).transpose()?;
        let outcome = self.live(start, (tell, &events), lease.as_mut());
        // Whoever is left has the lease, and it is freed when they have ended: see `Pool::reap_here`.
        let left = outcome.as_ref().is_ok_and(|outcome| matches!(outcome.lived, Lived::Left(_)));
        if let Some(lease) = lease.filter(|_| !left) {
            lease.release();
        }
        outcome
    }

    fn live(
        &mut self,
        Start { mut family, mut looker, signals }: Start,
        (tell, events): (Sender<Event>, &Receiver<Event>),
        mut lease: Option<&mut Held<'_>>,
    ) -> Result<Outcome, Failure> {
        if let Some(lease) = &mut lease {
            self.environment.set(lease.environment()?);
        }
        let visible = self.visible();
        if let (Some(_), Some(looker)) = (&lease, &mut looker) {
            room::refuse_impossible(&self.amounts, (looker, &visible), events)?;
        }
        if let (Some(room), Some(looker)) = (self.room, &mut looker) {
            room.wait((looker, &visible), lease.as_deref_mut(), events)?;
        }
        told_to_end(events)?;
        family.set_apart()?;
        if let Some(lease) = &mut lease {
            lease.pass_on()?;
        }
        let watched = looker.filter(Looker::stays).map(|looker| looker.watch(visible, tell)).transpose()?;
        let environment = self.environment.whole(std::env::vars_os());
        let gpus = lease.as_ref().map(|lease| lease.gpus());
        let command = numbered(self.command, gpus);
        let child = start(&command, environment, signals.mask()).map_err(|error| {
            let program = self.command.first().map(|word| word.to_string_lossy()).unwrap_or_default();
            Failure::start(&program, &error)
        })?;
        family.begin(child);
        let began = Instant::now();
        let mut live = Live::new((child, family), self.terms, lease, watched);
        let lived = live.until_all_end(events)?;
        Ok(Outcome { lived, ending: live.ending(), took: began.elapsed(), gpus, used: live.used() })
    }

    /// The GPUs that the command can see.
    fn visible(&self) -> Visible {
        let told = |name| self.environment.get(name).map(OsStr::to_owned).or_else(|| std::env::var_os(name));
        let text = |name| told(name).map(|value| value.to_string_lossy().into_owned());
        Visible::parse(text("CUDA_VISIBLE_DEVICES").as_deref(), text("CUDA_DEVICE_ORDER").as_deref())
    }
}

/// A command with the numbers of its GPUs in place of `{index}`, where it has some of its own. It sees no others, so to it
/// they are the first, and `{{index}}` is `{index}` itself: `CUDA_VISIBLE_DEVICES` counts for CUDA and for NVIDIA's `OpenCL`.
fn numbered(command: &[OsString], gpus: Option<usize>) -> Vec<OsString> {
    let Some(gpus) = gpus else { return command.to_vec() };
    let numbers = (0..gpus).map(|number| number.to_string()).collect::<Vec<_>>().join(",");
    let told = |text: &str| {
        let parts: Vec<String> =
            text.split("{{index}}").map(|part| part.replace("{index}", &numbers)).collect();
        OsString::from(parts.join("{index}"))
    };
    let word = |word: &OsString| word.to_str().map(told);
    command.iter().map(|bytes| word(bytes).unwrap_or_else(|| bytes.clone())).collect()
}

/// Whether a signal has come meanwhile.
pub(super) fn told_to_end(events: &Receiver<Event>) -> Result<(), Failure> {
    for event in events.try_iter() {
        if let Event::Told(told) = event {
            return Err(Failure::signalled(told.number));
        }
    }
    Ok(())
}

impl Outcome {
    /// The command's own code, as a shell tells it; or why it was ended.
    pub(crate) fn code(self) -> Result<ExitCode, Failure> {
        let why = self.ending.filter(|ending| !ending.of_the_rest).map(|ending| ending.why);
        match (self.lived, why) {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_told_the_numbers_of_its_gpus() {
        let command = ["krylov", "0:{index}", "{index}{index}{inde", "a{{index}}{index}"].map(OsString::from);
        assert_eq!(numbered(&command, None), command);
        assert_eq!(numbered(&command, Some(1)), ["krylov", "0:0", "00{inde", "a{index}0"]);
        assert_eq!(numbered(&command, Some(3)), ["krylov", "0:0,1,2", "0,1,20,1,2{inde", "a{index}0,1,2"]);
    }
}
