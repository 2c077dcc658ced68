//! The event loop of one command, from its start to its end.

use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::sync::mpsc::{Receiver, channel};

use bailiff_lifecycle::exit::plain;
use bailiff_sampler::{Launcher, Supervisor};
use bailiff_snapshot::stat::Stat;
use bailiff_snapshot::{Fault, Sample, Snapshot, Source};
use rustix::process::{Pid, WaitOptions, wait};

use super::detector::{Basis, Counted, DetectorInput, IdleDetector};
use super::flags::Stop;
use super::log::{Level, Log, list};
use super::settings::{IdleTimeoutSettings, seconds};
use crate::command::signals::{ReceivedSignal, Signals};
use crate::command::start;
use crate::command::{Event, pace};
use crate::exit;
use crate::process_tree::ProcessTree;

/// How the session ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SessionEnd {
    /// The session ended with this exit code.
    Code(u8),
    /// The command was ended by a signal that this process also received.
    Signal(i32),
}

/// Why the session failed.
#[derive(Debug)]
pub(super) enum Failure {
    /// The request is invalid or impossible.
    Stop(Stop),
    /// The command cannot be started.
    Start(exit::Failure),
    /// Another error.
    Message(String),
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::Message(plain(&error))
    }
}

/// A running command and its idle detector.
pub(super) struct Session<'a> {
    pub(super) settings: &'a IdleTimeoutSettings,
    pub(super) log: Log,
    pub(super) child: Pid,
    pub(super) process_tree: ProcessTree,
    pub(super) status: Option<ExitStatus>,
    before: Option<Snapshot>,
    detector: IdleDetector,
    delay: u64,
    /// Number of driver samples taken in the current interval of `--sample-freq`.
    partial_samples: u32,
    /// The signals that this process received.
    received: Vec<i32>,
    last_logged: LastLogged,
}

/// The last logged states, so that each is logged once.
#[derive(Default)]
struct LastLogged {
    counted: Option<(Basis, Vec<String>)>,
    fault: Option<Fault>,
}

/// Runs a command and stops it when its GPUs stay idle.
pub(super) fn run(settings: &IdleTimeoutSettings) -> Result<SessionEnd, Failure> {
    let mut process_tree = ProcessTree::detect();
    let launcher = Launcher::start(&settings.sampler)?;
    let signals = Signals::block()?;
    let mut supervisor = Supervisor::new(launcher, settings.sampler.clone());
    let first = supervisor.sample(1).map(|sample| Snapshot::between(None, sample));
    let fault = first.as_ref().and_then(|first| Source::Nvml.fault(&first.sources));
    if fault == Some(Fault::LibraryNotFound) {
        let library = settings.sampler.nvml_library.as_deref().map(|path| path.display().to_string());
        let library = library.unwrap_or_else(|| "libnvidia-ml.so.1".to_owned());
        return Err(Failure::Stop(Stop::NoDriver(format!("Unable to locate '{library}'"))));
    }
    process_tree.exclude_existing()?;
    if let Some(number) = signals.pending()? {
        return Ok(SessionEnd::Signal(number));
    }
    let child = start(&settings.command, std::env::vars_os(), signals.mask()).map_err(|error| {
        let program = settings.command.first().map(|arg| arg.to_string_lossy()).unwrap_or_default();
        Failure::Start(exit::Failure::start(&program, &error))
    })?;
    process_tree.set_command(child);
    let mut session = Session {
        settings,
        log: Log { debug: settings.debug },
        child,
        process_tree,
        status: None,
        before: first,
        detector: IdleDetector::new(settings.rule),
        delay: u64::try_from(settings.delay).unwrap_or_default(),
        partial_samples: 0,
        received: Vec::new(),
        last_logged: LastLogged::default(),
    };
    session.log_start();
    let (sender, events) = channel();
    signals.listen(sender.clone())?;
    let pace = pace::start(supervisor, (2, settings.sampler.interval), sender)?;
    let end = session.run(&events);
    drop(pace);
    Ok(end)
}

impl Session<'_> {
    fn log_start(&mut self) {
        let IdleTimeoutSettings { rule, sample_interval, samples, delay, .. } = self.settings;
        self.log.line(
            Level::Info,
            format!(
                "Starting GPU idle watcher: threshhold_percentage={}%, sample_freq={}, num_samples={samples}, \
                 delay_samples={delay}, window_size={}",
                rule.threshold,
                seconds(*sample_interval, 1),
                seconds(*sample_interval, (*samples).into())
            ),
        );
        self.log_fault(self.before.as_ref().and_then(|before| Source::Nvml.fault(&before.sources)));
    }

    fn run(&mut self, events: &Receiver<Event>) -> SessionEnd {
        loop {
            match events.recv() {
                Ok(Event::ChildEnded | Event::Waited) => {}
                Ok(Event::Signal(signal)) => self.forward(signal),
                Ok(Event::Sampled(Some(sample))) => {
                    // A command that has exited by itself is not stopped.
                    self.reap();
                    if self.status.is_none() && self.is_idle_after(*sample) {
                        self.end(events);
                        return SessionEnd::Code(1);
                    }
                }
                Ok(Event::Sampled(None)) => {
                    self.log.remark(
                        Level::Warning,
                        "GPU sampling has ended; the command continues without idle detection",
                    );
                }

                // Unreachable while the signal thread runs.
                Err(_) => return SessionEnd::Code(1),
            }
            self.reap();
            if let Some(status) = self.status {
                return self.result(status);
            }
        }
    }

    /// Reaps exited children and records the command's status.
    pub(super) fn reap(&mut self) {
        while let Ok(Some((pid, status))) = wait(WaitOptions::NOHANG) {
            if pid == self.child {
                self.status = Some(ExitStatus::from_raw(status.as_raw()));
            }
        }
    }

    /// Returns the exit code as Python does, or the signal if this process received the same one.
    fn result(&self, status: ExitStatus) -> SessionEnd {
        match status.signal() {
            Some(number) if self.received.contains(&number) => SessionEnd::Signal(number),
            Some(number) => SessionEnd::Code(u8::try_from(256 - number).unwrap_or(1)),
            None => SessionEnd::Code(status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1)),
        }
    }

    /// Forwards a signal to a running command.
    pub(super) fn forward(&mut self, signal: ReceivedSignal) {
        self.received.push(signal.number);
        if self.status.is_none() {
            signal.forward(self.child);
        }
    }

    /// Evaluates a sample; returns true if the command is to be stopped.
    fn is_idle_after(&mut self, sample: Sample) -> bool {
        // Without the process tree the sample counts as missed.
        let Ok(descendants) = self.process_tree.descendants() else { return false };
        let now = Snapshot::between(self.before.as_ref(), sample);
        self.log_fault(Source::Nvml.fault(&now.sources));
        self.partial_samples = (self.partial_samples + 1) % self.settings.samples_per_interval;
        let idle = if self.delay > 1 {
            self.count_delay();
            false
        } else {
            self.evaluate(&now, descendants)
        };
        self.before = Some(now);
        idle
    }

    fn count_delay(&mut self) {
        if self.partial_samples == 0 {
            self.delay -= 1;
            let left = seconds(self.settings.sample_interval, self.delay);
            self.log.line(Level::Info, format!("waiting for delay samples. {left} seconds left"));
        }
    }

    fn evaluate(&mut self, now: &Snapshot, descendants: Vec<(usize, Stat)>) -> bool {
        let tree = descendants.into_iter().map(|(_, stat)| (stat.key.pid, stat.key)).collect();
        let input = DetectorInput {
            before: self.before.as_ref(),
            now,
            tree: &tree,
            visible: &self.settings.visible,
            missed: DetectorInput::missed(self.before.as_ref(), now, self.settings.sampler.interval),
            ends_sample: self.partial_samples == 0,
        };
        let result = self.detector.observe(&input);
        if self.partial_samples != 0 {
            return false;
        }
        let Some(counted) = result.counted else {
            self.log.remark(
                Level::Debug,
                "usage unknown: the driver does not report which processes use which GPU",
            );
            return false;
        };
        self.log_counted(&counted);
        if counted.gpus.is_empty() {
            self.log.remark(Level::Debug, "usage unknown: no GPU counts");
        }
        let threshold = self.settings.rule.threshold;
        for usage in &counted.gpus {
            match usage.decisive_percent(threshold) {
                Some(percent) => {
                    self.log.line(Level::Debug, format!("{} usage {percent}%", usage.gpu));
                }
                None => {
                    self.log.remark(Level::Debug, format!("{} usage unknown: {}", usage.gpu, usage.why));
                }
            }
        }
        if result.idle {
            self.log.line(Level::Error, self.verdict(&counted));
        }
        result.idle
    }

    fn verdict(&self, counted: &Counted) -> String {
        let IdleTimeoutSettings { rule, sample_interval, samples, signal, .. } = self.settings;
        format!(
            "usage for all GPUs: {} was below threshhold {}% for last {} seconds.{}",
            list(counted.gpus.iter().map(|usage| usage.gpu.as_str())),
            rule.threshold,
            seconds(*sample_interval, (*samples).into()),
            if signal.is_none() { " Killing process." } else { "" }
        )
    }

    fn log_counted(&mut self, counted: &Counted) {
        let names: Vec<String> = counted.gpus.iter().map(|usage| usage.gpu.clone()).collect();
        let listed = list(names.iter().map(String::as_str));
        let text = match counted.basis {
            Basis::Used => format!("the command has a context on these GPUs, which count: {listed}"),
            Basis::Visible => {
                format!("the command has no GPU context, so all visible GPUs count: {listed}")
            }
            Basis::Unattributed => format!(
                "the GPUs that the command uses are unknown in this PID namespace, so all visible GPUs count: {listed}"
            ),
            Basis::All => format!("all GPUs count: {listed}"),
        };
        let current = Some((counted.basis, names));
        if self.last_logged.counted != current {
            let level = if counted.gpus.is_empty() { Level::Warning } else { Level::Info };
            self.log.remark(level, text);
            self.last_logged.counted = current;
        }
    }

    fn log_fault(&mut self, fault: Option<Fault>) {
        match fault {
            _ if fault == self.last_logged.fault => return,
            Some(fault) => self.log.remark(
                Level::Warning,
                format!("the driver does not answer ({}); this does not stop the command", fault.name()),
            ),
            None => self.log.remark(Level::Info, "the driver answers again"),
        }
        self.last_logged.fault = fault;
    }
}
