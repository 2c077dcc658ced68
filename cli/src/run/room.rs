//! Memory that has to be free before a command starts.

#![expect(clippy::disallowed_methods, reason = "a wait has an end")]

use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use bailiff_exposition::human::Bytes;
use bailiff_snapshot::{Gpu, Snapshot};

use super::job::told_to_end;
use super::watch::Looker;
use crate::command::Event;
use crate::exit::Failure;
use crate::idle_timeout::visible::Visible;
use crate::lease::held::Held;
use crate::say::say;

/// Between two looks.
const AGAIN: Duration = Duration::from_millis(500);

/// How much is needed, and how long that may take.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Room {
    pub(crate) bytes: u64,
    pub(crate) nonblock: bool,
    /// Longer than this nobody waits.
    pub(crate) until: Option<Instant>,
}

/// Refuses amounts of memory that no GPU has which the command can see. A GPU that does not report its size may have it.
pub(crate) fn refuse_impossible(
    amounts: &[(&str, u64)],
    (looker, visible): (&mut Looker, &Visible),
    events: &Receiver<Event>,
) -> Result<(), Failure> {
    let Some((flag, most)) = amounts.iter().max_by_key(|(_, bytes)| bytes) else { return Ok(()) };
    looker.look()?;
    while looker.is_starting() {
        told_to_end(events)?;
        looker.look()?;
    }
    let gpus = looker.newest().into_iter().flat_map(|now| &now.gpus).filter(|gpu| visible.sees(&gpu.about));
    let sizes = gpus.map(|gpu| Some((gpu.memory?.total, gpu.about.index.as_str())));
    let Some(sizes) = sizes.collect::<Option<Vec<_>>>() else { return Ok(()) };
    match sizes.into_iter().max_by_key(|(total, _)| *total) {
        Some((total, index)) if total < *most => {
            let (most, total) = (Bytes((*most).into()), Bytes(total.into()));
            Err(Failure::usage(format!("{flag}: {most} is more than GPU {index} has ({total})")))
        }
        _ => Ok(()),
    }
}

impl Room {
    /// Waits until each GPU that can be seen has so much. GPUs that are held stay so meanwhile.
    pub(crate) fn wait(
        self,
        (looker, visible): (&mut Looker, &Visible),
        mut lease: Option<&mut Held<'_>>,
        events: &Receiver<Event>,
    ) -> Result<(), Failure> {
        let mut renewed = Instant::now();
        let mut said = false;
        while let Some(why) = self.lacks(looker.look()?, visible) {
            let now = Instant::now();
            // A driver that is just being opened has not refused anything.
            if self.nonblock && !looker.is_starting() {
                return Err(Failure::busy(why));
            }
            if self.until.is_some_and(|until| until <= now) {
                return Err(Failure::late(why));
            }
            if !std::mem::replace(&mut said, true) {
                say(format_args!("waiting: {why}"));
            }
            if let Some(lease) = lease.as_mut().filter(|lease| now >= renewed + lease.pace()) {
                renewed = now;
                if lease.renew() {
                    return Err(Failure::lost("the lease was lost before the command began"));
                }
            }
            let pause = self.until.map_or(AGAIN, |until| AGAIN.min(until - now));
            if let Ok(Event::Told(told)) = events.recv_timeout(pause) {
                return Err(Failure::signalled(told.number));
            }
        }
        Ok(())
    }

    /// What is missing, if anything is.
    fn lacks(self, now: &Snapshot, visible: &Visible) -> Option<String> {
        let wanted = Bytes(self.bytes.into());
        let mut gpus = now.gpus.iter().filter(|gpu| visible.sees(&gpu.about)).peekable();
        if gpus.peek().is_none() {
            return Some(format!("--min-free: no GPU tells whether {wanted} are free"));
        }
        let lacks = |gpu: &Gpu| gpu.memory.is_none_or(|memory| memory.free < self.bytes);
        let gpu = gpus.find(|gpu| lacks(gpu))?;
        let name = gpu.about.id.as_ref().map_or(gpu.about.index.as_str(), |id| id.0.as_str());
        let free = gpu.memory.map_or_else(
            || "nobody knows how much".to_owned(),
            |memory| Bytes(memory.free.into()).to_string(),
        );
        Some(format!("--min-free: {free} free on {name}, of {wanted} that are wanted"))
    }
}
