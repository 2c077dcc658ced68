//! `--min-free`: GPU memory that must be free before a command starts.

#![expect(clippy::disallowed_methods, reason = "a wait has a deadline")]

use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use bailiff_exposition::human::Bytes;
use bailiff_snapshot::{Gpu, MemoryUnknown, Snapshot};

use super::monitor::GpuSampler;
use crate::command::{Event, check_signals};
use crate::exit::Failure;
use crate::lease::command_lease::CommandLease;
use crate::output::print_message;
use crate::visible::Visible;

/// The interval between two samples.
const POLL: Duration = Duration::from_millis(500);

/// The required free memory, and how long to wait for it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FreeMemory {
    pub(crate) bytes: u64,
    pub(crate) nonblock: bool,
    /// The deadline of the wait.
    pub(crate) until: Option<Instant>,
}

/// Refuses amounts of memory that no visible GPU has. A GPU that does not report its size may have enough.
pub(crate) fn refuse_impossible(
    amounts: &[(&str, u64)],
    (gpu_sampler, visible): (&mut GpuSampler, &Visible),
    events: &Receiver<Event>,
) -> Result<(), Failure> {
    let Some((flag, max)) = amounts.iter().max_by_key(|(_, bytes)| bytes) else { return Ok(()) };
    gpu_sampler.sample()?;
    while gpu_sampler.is_starting() {
        check_signals(events)?;
        gpu_sampler.sample()?;
    }
    let gpus =
        gpu_sampler.newest().into_iter().flat_map(|now| &now.gpus).filter(|gpu| visible.sees(&gpu.about));
    let sizes = gpus.map(|gpu| Some((gpu.memory?.total, gpu.about.index.as_str())));
    let Some(sizes) = sizes.collect::<Option<Vec<_>>>() else { return Ok(()) };
    match sizes.into_iter().max_by_key(|(total, _)| *total) {
        Some((total, index)) if total < *max => {
            let (max, total) = (Bytes((*max).into()), Bytes(total.into()));
            Err(Failure::usage(format!("{flag}: {max} exceeds the memory of GPU {index} ({total})")))
        }
        _ => Ok(()),
    }
}

impl FreeMemory {
    /// Waits until each visible GPU has enough free memory; renews the lease meanwhile.
    pub(crate) fn wait(
        self,
        (gpu_sampler, visible): (&mut GpuSampler, &Visible),
        mut lease: Option<&mut CommandLease<'_>>,
        events: &Receiver<Event>,
    ) -> Result<(), Failure> {
        let mut renewed = Instant::now();
        let mut reported = false;
        while let Some(why) = self.shortage(gpu_sampler.sample()?, visible) {
            // The driver reports the limit of this command's cgroup as the GPU's memory.
            let limited = |now: &Snapshot| {
                let mut gpus = now.gpus.iter().filter(|gpu| visible.sees(&gpu.about));
                gpus.find_map(|gpu| gpu.memory_unknown.filter(|why| *why == MemoryUnknown::OwnCgroupLimited))
            };
            if let Some(unknown) = gpu_sampler.newest().and_then(limited) {
                return Err(Failure::unavailable(format!("{why}: {}", unknown.words())));
            }
            let now = Instant::now();
            // While the driver is still being opened, free memory is not known yet.
            if self.nonblock && !gpu_sampler.is_starting() {
                return Err(Failure::busy(why));
            }
            if self.until.is_some_and(|until| until <= now) {
                return Err(Failure::late(why));
            }
            if !std::mem::replace(&mut reported, true) {
                print_message(format_args!("waiting: {why}"));
            }
            if let Some(lease) = lease.as_mut().filter(|lease| now >= renewed + lease.renew_interval()) {
                renewed = now;
                if lease.renew() {
                    return Err(Failure::lost("the lease was lost before the command started"));
                }
            }
            let pause = self.until.map_or(POLL, |until| POLL.min(until - now));
            if let Ok(Event::Signal(signal)) = events.recv_timeout(pause) {
                return Err(Failure::signalled(signal.number));
            }
        }
        Ok(())
    }

    /// Describes the missing memory, if any.
    fn shortage(self, now: &Snapshot, visible: &Visible) -> Option<String> {
        let required = Bytes(self.bytes.into());
        let mut gpus = now.gpus.iter().filter(|gpu| visible.sees(&gpu.about)).peekable();
        if gpus.peek().is_none() {
            return Some(format!("--min-free: the free memory of all GPUs is unknown ({required} required)"));
        }
        let lacks = |gpu: &Gpu| gpu.memory.is_none_or(|memory| memory.free < self.bytes);
        let gpu = gpus.find(|gpu| lacks(gpu))?;
        let name = gpu.about.id.as_ref().map_or(gpu.about.index.as_str(), |id| id.0.as_str());
        let free = gpu
            .memory
            .map_or_else(|| "an unknown amount".to_owned(), |memory| Bytes(memory.free.into()).to_string());
        Some(format!("--min-free: {free} free on {name}, {required} required"))
    }
}
