#![expect(clippy::disallowed_methods, reason = "a worker times its own steps")]
//! The sampling worker: a process that loads NVML and reads `/proc`, one look for each request on standard
//! input. It tells what it begins before it begins it, so that the supervisor knows where it hung.

use std::collections::BTreeSet;
use std::io::{self, Write};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use bailiff_snapshot::{Fault, Gap, GpuSample};
use rustix::process::Signal;

use crate::channel;
use crate::clock::now;
use crate::message::{Report, Request, Rest};
use crate::nvml::{Context, Gpus};
use crate::proc::Processes;
use crate::settings::Settings;

/// Device files are looked through at most this often.
const OPENERS_PAUSE: Duration = Duration::from_mins(1);
/// And only where a GPU has at least this much in use that no listed process holds.
const OPENERS_FROM: u64 = 256 << 20;

/// The worker process itself, until standard input closes.
#[must_use]
pub fn serve() -> ExitCode {
    // A worker that hangs does not see its input close: it ends with the launcher, as far as it can be ended.
    let with_launcher = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
    match with_launcher.map_err(io::Error::from).and_then(|()| work()) {
        Ok(()) => ExitCode::SUCCESS,
        // Nobody is left to be told: the supervisor sees the socket close.
        Err(_) => ExitCode::FAILURE,
    }
}

fn work() -> io::Result<()> {
    let mut requests = io::stdin().lock();
    let Some(settings) = channel::read::<Settings>(&mut requests)? else { return Ok(()) };
    let (gpus, driver) = match Gpus::open(settings.nvml_library.as_deref()) {
        Ok(open) => open,
        Err((fault, words)) => return say(&Report::Failed(fault, words)),
    };
    say(&Report::Opened(driver))?;
    let processes = Processes::open(&settings);
    let mut worker = Worker { settings, gpus, processes, openers: None };
    while let Some(request) = channel::read::<Request>(&mut requests)? {
        if let Err((fault, words)) = worker.look(&request)? {
            // The driver was unloaded or replaced: only a new process can load it anew.
            return say(&Report::Failed(fault, words));
        }
    }
    Ok(())
}

struct Worker {
    settings: Settings,
    gpus: Gpus,
    processes: Result<Processes, Fault>,
    /// When device files were looked through.
    openers: Option<Instant>,
}

impl Worker {
    fn look(&mut self, request: &Request) -> io::Result<Result<(), (Fault, String)>> {
        let began = Instant::now();
        let mut rest = Rest::default();
        let count = match self.gpus.count() {
            Ok(count) => count,
            Err(error) => return Ok(Err(error)),
        };
        let mut pids: BTreeSet<u32> = request.also.iter().copied().collect();
        let mut nobodys = false;
        for index in (0..count).filter(|index| !request.skip.contains(index)) {
            say(&Report::Reading { index, count })?;
            let context = Context { interval: self.settings.interval, gaps: &mut rest.gaps };
            let samples = self.gpus.read(index, context);
            for gpu in &samples {
                let entries = gpu.entries.iter().flatten();
                pids.extend(entries.map(|entry| entry.pid).filter(|pid| *pid != 0));
                nobodys |= of_nobody(gpu) >= OPENERS_FROM;
            }
            say(&Report::Read(samples))?;
        }
        self.gpus.listen(count, &request.skip);
        rest.nvml_took = began.elapsed();
        say(&Report::Looking { count })?;
        self.look_at_processes(&pids.into_iter().collect::<Vec<u32>>(), nobodys, &mut rest);
        say(&Report::Done(Box::new(rest)))?;
        Ok(Ok(()))
    }

    fn look_at_processes(&mut self, pids: &[u32], nobodys: bool, rest: &mut Rest) {
        let began = Instant::now();
        let at = now();
        match &mut self.processes {
            Ok(processes) => {
                rest.processes = processes.look(pids, at, &mut rest.gaps);
                let due = self.openers.is_none_or(|looked| looked.elapsed() >= OPENERS_PAUSE);
                if nobodys && due {
                    rest.openers = processes.openers(at);
                    self.openers = Some(Instant::now());
                }
            }
            Err(fault) => {
                rest.proc_fault = Some(*fault);
                rest.gaps.count(Gap::Unreadable);
            }
        }
        rest.proc_took = began.elapsed();
    }
}

/// Memory in use that no listed process holds, as far as can be told.
fn of_nobody(gpu: &GpuSample) -> u64 {
    let (Some(memory), Some(entries)) = (gpu.memory, &gpu.entries) else { return 0 };
    if gpu.telemetry.mig_enabled == Some(true) && gpu.about.mig.is_none() {
        return 0;
    }
    let held = entries.iter().filter_map(|entry| entry.memory).fold(0_u64, u64::saturating_add);
    let reserved = if memory.reserved.is_none() { OPENERS_FROM * 2 } else { 0 };
    memory.used.saturating_sub(held).saturating_sub(reserved)
}

fn say(report: &Report) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(&channel::frame(report)?)?;
    out.flush()
}
