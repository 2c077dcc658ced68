//! One command, from its start to its end: everything that can happen, one after the other.

use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::sync::mpsc::{Receiver, channel};

use bailiff_lifecycle::exit::plain;
use bailiff_sampler::{Launcher, Supervisor};
use bailiff_snapshot::stat::Stat;
use bailiff_snapshot::{Fault, Sample, Snapshot, Source};
use rustix::process::{Pid, Signal, WaitOptions, getpgid, getpgrp, kill_process, wait};

use super::flags::Stop;
use super::log::{Level, Log, list};
use super::settings::{Settings, seconds};
use super::watch::{Basis, Counted, Look, Watch};
use crate::command::signals::{Signals, Told};
use crate::command::start::start;
use crate::command::{Event, pace};
use crate::exit;
use crate::process_tree::ProcessTree;

/// How it ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ended {
    /// With this exit code.
    Code(u8),
    /// By a signal that we were sent, too.
    Signal(i32),
}

/// Why it could not go on.
#[derive(Debug)]
pub(super) enum Failure {
    /// What was asked for cannot be had.
    Stop(Stop),
    /// The command cannot be started.
    Start(exit::Failure),
    /// In words.
    Words(String),
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::Words(plain(&error))
    }
}

/// A command under watch.
pub(super) struct Session<'a> {
    pub(super) settings: &'a Settings,
    pub(super) log: Log,
    pub(super) child: Pid,
    pub(super) process_tree: ProcessTree,
    pub(super) status: Option<ExitStatus>,
    before: Option<Snapshot>,
    watch: Watch,
    delay: u64,
    looks: u32,
    told: Vec<i32>,
    said: Said,
}

/// What was said last, so that it is said once.
#[derive(Default)]
struct Said {
    counted: Option<(Basis, Vec<String>)>,
    fault: Option<Fault>,
}

/// Runs a command and watches it.
pub(super) fn run(settings: &Settings) -> Result<Ended, Failure> {
    let mut process_tree = ProcessTree::look();
    let launcher = Launcher::start(&settings.sampler)?;
    let signals = Signals::block()?;
    let mut supervisor = Supervisor::new(launcher, settings.sampler.clone());
    let first = supervisor.look(1).map(|sample| Snapshot::between(None, sample));
    let fault = first.as_ref().and_then(fault);
    if fault == Some(Fault::LibraryNotFound) {
        let library = settings.sampler.nvml_library.as_deref().map(|path| path.display().to_string());
        let library = library.unwrap_or_else(|| "libnvidia-ml.so.1".to_owned());
        return Err(Failure::Stop(Stop::NoDriver(format!("Unable to locate '{library}'"))));
    }
    process_tree.set_apart()?;
    if let Some(number) = signals.pending()? {
        return Ok(Ended::Signal(number));
    }
    let child = start(&settings.command, std::env::vars_os(), signals.mask()).map_err(|error| {
        let program = settings.command.first().map(|word| word.to_string_lossy()).unwrap_or_default();
        Failure::Start(exit::Failure::start(&program, &error))
    })?;
    process_tree.begin(child);
    let mut session = Session {
        settings,
        log: Log { debug: settings.debug },
        child,
        process_tree,
        status: None,
        before: first,
        watch: Watch::new(settings.rule),
        delay: u64::try_from(settings.delay).unwrap_or_default(),
        looks: 0,
        told: Vec::new(),
        said: Said::default(),
    };
    session.begin();
    let (tell, events) = channel();
    signals.listen(tell.clone())?;
    let pace = pace::start(supervisor, (2, settings.sampler.interval), tell)?;
    let ended = session.live(&events);
    drop(pace);
    Ok(ended)
}

fn fault(snapshot: &Snapshot) -> Option<Fault> {
    snapshot.sources.get(&Source::Nvml).and_then(|state| state.fault)
}

impl Session<'_> {
    fn begin(&mut self) {
        let Settings { rule, every, samples, delay, .. } = self.settings;
        self.log.line(
            Level::Info,
            format!(
                "Starting GPU idle watcher: threshhold_percentage={}%, sample_freq={}, num_samples={samples}, \
                 delay_samples={delay}, window_size={}",
                rule.threshold,
                seconds(*every, 1),
                seconds(*every, (*samples).into())
            ),
        );
        self.tell_fault(self.before.as_ref().and_then(fault));
    }

    fn live(&mut self, events: &Receiver<Event>) -> Ended {
        loop {
            match events.recv() {
                Ok(Event::ChildEnded | Event::Waited) => {}
                Ok(Event::Signal(signal)) => self.pass_on(told),
                Ok(Event::Sampled(Some(sample))) => {
                    // Who has ended by itself is not ended by us.
                    self.reap();
                    if self.status.is_none() && self.see(*sample) {
                        self.end(events);
                        return Ended::Code(1);
                    }
                }
                Ok(Event::Sampled(None)) => {
                    self.log
                        .remark(Level::Warning, "the watch has ended, and the command goes on without it");
                }

                // The thread of signals ends with us.
                Err(_) => return Ended::Code(1),
            }
            self.reap();
            if let Some(status) = self.status {
                return self.ended(status);
            }
        }
    }

    /// Notes who has ended.
    pub(super) fn reap(&mut self) {
        while let Ok(Some((pid, status))) = wait(WaitOptions::NOHANG) {
            if pid == self.child {
                self.status = Some(ExitStatus::from_raw(status.as_raw()));
            }
        }
    }

    /// As Python gives a command's code on, unless it took a signal of ours to heart.
    fn ended(&self, status: ExitStatus) -> Ended {
        match status.signal() {
            Some(number) if self.told.contains(&number) => Ended::Signal(number),
            Some(number) => Ended::Code(u8::try_from(256 - number).unwrap_or(1)),
            None => Ended::Code(status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1)),
        }
    }

    /// Passes a signal on, unless the terminal has sent it to the command, too.
    pub(super) fn pass_on(&mut self, told: Told) {
        self.told.push(told.number);
        if self.status.is_some() || (told.by_terminal && getpgid(Some(self.child)) == Ok(getpgrp())) {
            return;
        }
        if let Some(signal) = Signal::from_named_raw(told.number) {
            // Until it has been waited for, its pid is nobody else's.
            let _ = kill_process(self.child, signal);
        }
    }

    /// Takes a look; true where the command is to be ended.
    fn see(&mut self, sample: Sample) -> bool {
        // A look without those is one that was missed.
        let Ok(below) = self.process_tree.below() else { return false };
        let now = Snapshot::between(self.before.as_ref(), sample);
        self.tell_fault(fault(&now));
        self.looks = (self.looks + 1) % self.settings.looks;
        let idle = if self.delay > 1 {
            self.wait();
            false
        } else {
            self.judge(&now, below)
        };
        self.before = Some(now);
        idle
    }

    fn wait(&mut self) {
        if self.looks == 0 {
            self.delay -= 1;
            let left = seconds(self.settings.every, self.delay);
            self.log.line(Level::Info, format!("waiting for delay samples. {left} seconds left"));
        }
    }

    fn judge(&mut self, now: &Snapshot, below: Vec<(usize, Stat)>) -> bool {
        let tree = below.into_iter().map(|(_, stat)| (stat.key.pid, stat.key)).collect();
        let look = Look {
            before: self.before.as_ref(),
            now,
            tree: &tree,
            visible: &self.settings.visible,
            missed: Look::missed(self.before.as_ref(), now, self.settings.sampler.interval),
            ends_sample: self.looks == 0,
        };
        let seen = self.watch.see(&look);
        if self.looks != 0 {
            return false;
        }
        let Some(counted) = seen.counted else {
            self.log.remark(Level::Debug, "usage unknown: the driver does not tell who uses which GPU");
            return false;
        };
        self.tell_counted(&counted);
        if counted.gpus.is_empty() {
            self.log.remark(Level::Debug, "usage unknown: no GPU counts");
        }
        let threshold = self.settings.rule.threshold;
        for figure in &counted.gpus {
            match figure.shown(threshold) {
                Some(percent) => {
                    self.log.line(Level::Debug, format!("{} usage {percent}%", figure.gpu));
                }
                None => {
                    self.log.remark(Level::Debug, format!("{} usage unknown: {}", figure.gpu, figure.why));
                }
            }
        }
        if seen.idle {
            self.log.line(Level::Error, self.verdict(&counted));
        }
        seen.idle
    }

    fn verdict(&self, counted: &Counted) -> String {
        let Settings { rule, every, samples, signal, .. } = self.settings;
        format!(
            "usage for all GPUs: {} was below threshhold {}% for last {} seconds.{}",
            list(counted.gpus.iter().map(|figure| figure.gpu.as_str())),
            rule.threshold,
            seconds(*every, (*samples).into()),
            if signal.is_none() { " Killing process." } else { "" }
        )
    }

    fn tell_counted(&mut self, counted: &Counted) {
        let names: Vec<String> = counted.gpus.iter().map(|figure| figure.gpu.clone()).collect();
        let told = list(names.iter().map(String::as_str));
        let text = match counted.basis {
            Basis::Used => format!("the command has a context on these GPUs, which count: {told}"),
            Basis::Visible => {
                format!("the command has a context on no GPU, so all visible ones count: {told}")
            }
            Basis::Unattributed => format!(
                "in this PID namespace nobody can tell which GPUs the command uses, so all visible ones count: {told}"
            ),
            Basis::All => format!("all GPUs count: {told}"),
        };
        let told = Some((counted.basis, names));
        if self.said.counted != told {
            let level = if counted.gpus.is_empty() { Level::Warning } else { Level::Info };
            self.log.remark(level, text);
            self.said.counted = told;
        }
    }

    fn tell_fault(&mut self, fault: Option<Fault>) {
        match fault {
            _ if fault == self.said.fault => return,
            Some(fault) => self.log.remark(
                Level::Warning,
                format!("the driver does not answer ({}); nobody is ended for that", fault.name()),
            ),
            None => self.log.remark(Level::Info, "the driver answers again"),
        }
        self.said.fault = fault;
    }
}
