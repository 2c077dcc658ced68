#![expect(clippy::disallowed_methods, reason = "deadlines are compared with the clock here")]
//! Requests samples from a worker and never waits for it beyond a deadline. A hung worker is killed but not
//! waited for; another worker replaces it and skips the GPU that hung.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use bailiff_proc::clock::{Deadline, now};
use bailiff_snapshot::{About, Driver, Fault, Sample};

use crate::channel::{Channel, Heard};
use crate::launcher::{Asked, Launcher, Started, WorkerError};
use crate::message::{Request, WorkerMessage};
use crate::proc::Node;
use crate::sample_builder::{Frame, SampleBuilder};
use crate::settings::SamplerSettings;

/// Maximum number of hung workers that have not exited after SIGKILL. No more workers are started until one
/// exits.
const MOST_LEFT_BEHIND: usize = 3;
/// Maximum pause before a failed operation is retried.
const LONGEST_PAUSE: Duration = Duration::from_mins(5);

/// Takes samples with one worker at a time, and keeps track of hung workers and GPUs.
pub struct Supervisor {
    launcher: Launcher,
    settings: SamplerSettings,
    node: Node,
    worker: Option<Worker>,
    left_behind: Vec<LeftBehind>,
    /// Last known properties of each GPU by index, for samples in which the GPU could not be read.
    known: BTreeMap<u32, About>,
    /// Hung GPUs by index, with the time of the next attempt.
    hung: BTreeMap<u32, (Pause, Fault)>,
    /// Set while the driver cannot be opened, or after a worker died.
    down: Option<(Fault, Pause)>,
    /// Set when a worker hangs while it reads `/proc`. Later workers do not read command lines or environments until
    /// a retry succeeds.
    plain: Option<Pause>,
    logged: Option<String>,
    /// Error of the kernel log that was logged last.
    kernel_log_error: Option<String>,
    /// Error of the kubelet that was logged last, unless it has answered since.
    kubelet_error: Option<String>,
}

struct Worker {
    process: Started,
    asked: Asked,
    channel: Channel,
    /// `None` until the worker has opened the driver.
    driver: Option<Driver>,
    began: Instant,
}

/// A worker that was sent SIGKILL, and the GPU on which it hung.
struct LeftBehind {
    process: Started,
    gpu: Option<u32>,
}

/// Pause before a failed operation is retried. It is doubled at each failure.
#[derive(Clone, Copy)]
struct Pause {
    until: Instant,
    length: Duration,
}

impl Pause {
    fn after(earlier: Option<Self>, first: Duration) -> Self {
        let length = earlier.map_or(first, |pause| pause.length.saturating_mul(2)).min(LONGEST_PAUSE);
        Self { until: Instant::now() + length, length }
    }

    fn over(&self) -> bool {
        Instant::now() >= self.until
    }
}

/// Step of a worker.
#[derive(Clone, Copy)]
enum Step {
    /// Opening the driver, or a query that is not about a single GPU.
    Driver,
    Gpu(u32),
    Proc,
}

/// How one worker's part of a sample ended.
enum Ended {
    Done,
    /// The worker is still opening the driver, within the deadline.
    Opening,
    /// Not tried, because the last attempt failed recently.
    Paused(Fault),
    /// The worker did not send a message before the deadline.
    Hung(Step),
    /// The worker exited by itself, for example because of a crash in the driver's library.
    Died(Step),
    /// The driver cannot be opened or was unloaded. Contains the driver's message.
    Failed(Fault, String),
    /// The launcher has exited.
    LauncherGone,
}

impl Supervisor {
    /// Creates a supervisor. Its first sample starts the first worker.
    pub fn new(launcher: Launcher, settings: SamplerSettings) -> Self {
        let node = Node::read(&settings);
        if let Some(words) = node.blind() {
            tracing::warn!("{words}");
        }
        Self {
            launcher,
            node,
            settings,
            worker: None,
            left_behind: Vec::new(),
            known: BTreeMap::new(),
            hung: BTreeMap::new(),
            down: None,
            plain: None,
            logged: None,
            kernel_log_error: None,
            kubelet_error: None,
        }
    }

    /// Returns the current fault, in the driver's words if it reported a message.
    pub fn words(&self) -> Option<&str> {
        self.logged.as_deref()
    }

    /// Takes a sample of whatever can be read before the deadlines. Returns `None` if the launcher has
    /// exited: no more workers can be started, and the program should be restarted.
    pub fn sample(&mut self, seq: u64) -> Option<Sample> {
        let (began, at) = (Instant::now(), now());
        self.left_behind.retain(|worker| !worker.process.ended());
        // Workers killed during this sample are not counted as hung, because they may still exit.
        let hanging = self.left_behind.len();
        let skip = self.skipped();
        let mut builder = SampleBuilder::default();
        // If the first worker is lost on a GPU, a second worker reads the rest.
        for _ in 0..2 {
            let ended = self.ask(&mut builder, &skip, began);
            if matches!(ended, Ended::LauncherGone) {
                tracing::error!("{}", WorkerError::LauncherGone);
                return None;
            }
            let again = matches!(ended, Ended::Hung(Step::Gpu(_)) | Ended::Died(Step::Gpu(_)));
            builder.fault = self.learn(ended);
            if !again {
                break;
            }
        }
        self.remember(&builder);
        self.log(&builder);
        let frame = Frame {
            node: &self.node,
            seq,
            at,
            took: began.elapsed(),
            interval: self.settings.interval,
            workers_hung: u32::try_from(hanging).unwrap_or(u32::MAX),
        };
        let fault = |index| self.hung.get(&index).map(|(_, fault)| *fault);
        Some(builder.finish(&frame, (&self.known, &fault)))
    }

    /// Returns the hung GPUs that this sample skips. At most one hung GPU is tried again: only after the worker
    /// that hung on it has exited, and not with the last permitted worker.
    fn skipped(&self) -> Vec<u32> {
        let may_lose_one = self.left_behind.len() + 1 < MOST_LEFT_BEHIND;
        let proven = |index| self.left_behind.iter().any(|worker| worker.gpu == Some(index));
        let due = self.hung.iter().filter(|(index, (pause, _))| pause.over() && !proven(**index));
        let tried =
            due.min_by_key(|(_, (pause, _))| pause.until).map(|(index, _)| *index).filter(|_| may_lose_one);
        self.hung.keys().copied().filter(|index| Some(*index) != tried).collect()
    }

    /// Requests a sample from the worker, which is started if there is none.
    fn ask(&mut self, builder: &mut SampleBuilder, skip: &[u32], began: Instant) -> Ended {
        if let Some((fault, _)) = self.down.filter(|(_, pause)| !pause.over()) {
            return Ended::Paused(fault);
        }
        let asked = self.asked();
        // Dropping the worker closes its channel, and the process then exits.
        self.worker.take_if(|worker| worker.asked != asked);
        let worker = match self.worker.take().map_or_else(|| self.start(asked), Ok) {
            Ok(worker) => self.worker.insert(worker),
            Err(ended) => return ended,
        };
        let deadline = Deadline::after(self.settings.deadline.saturating_sub(began.elapsed()));
        match worker.open(deadline, self.settings.open_deadline) {
            Ended::Done => {}
            other => return other,
        }
        builder.driver.clone_from(&worker.driver);
        // Skip GPUs that an earlier worker has read in this sample, or hung on.
        let lost = self.left_behind.iter().filter_map(|worker| worker.gpu);
        let skip = skip.iter().copied().chain(builder.read.keys().copied()).chain(lost);
        let request = Request { skip: skip.collect(), also: builder.pids() };
        worker.sample(&request, builder, self.settings.deadline)
    }

    /// Returns the kind of worker to use. After a worker hung while reading `/proc`, command lines are read again once the
    /// pause is over and all hung workers have exited.
    fn asked(&self) -> Asked {
        let is_whole = self.worker.as_ref().is_some_and(|worker| worker.asked == Asked::Whole);
        match self.plain {
            None => Asked::Whole,
            Some(pause) if is_whole || (pause.over() && self.left_behind.is_empty()) => Asked::Whole,
            Some(_) => Asked::Plain,
        }
    }

    fn start(&self, asked: Asked) -> Result<Worker, Ended> {
        if self.left_behind.len() >= MOST_LEFT_BEHIND {
            let words =
                format!("{MOST_LEFT_BEHIND} sampling workers hang in the driver and cannot be killed");
            return Err(Ended::Failed(Fault::Timeout, words));
        }
        match self.launcher.worker(asked) {
            Ok(process) => Worker::new(process, asked).map_err(|_| Ended::Died(Step::Driver)),
            Err(WorkerError::LauncherGone) => Err(Ended::LauncherGone),
            Err(error @ WorkerError::ThisTime(_)) => {
                Err(Ended::Failed(Fault::WorkerFailed, error.to_string()))
            }
        }
    }

    /// Updates the state with a worker's result, and returns the fault of the driver.
    fn learn(&mut self, ended: Ended) -> Option<Fault> {
        let (fault, words) = match ended {
            Ended::Done => {
                self.down = None;
                if self.worker.as_ref().is_some_and(|worker| worker.asked == Asked::Whole) {
                    self.plain = None;
                }
                return None;
            }
            Ended::Opening if self.known.is_empty() => return Some(Fault::Starting),
            Ended::Opening => return Some(Fault::Timeout),
            Ended::Paused(fault) => return Some(fault),
            Ended::Hung(Step::Gpu(index)) => return Some(self.lose(index, Fault::Timeout)),
            Ended::Died(Step::Gpu(index)) => return Some(self.lose(index, Fault::WorkerFailed)),
            Ended::Hung(Step::Proc) => {
                self.abandon(None);
                self.plain = Some(Pause::after(self.plain, self.settings.interval));
                self.say(Some(
                    "/proc did not respond by the deadline; for a while, workers do not read command lines or \
                     processes without GPU memory"
                        .to_owned(),
                ));
                return None;
            }
            Ended::Hung(Step::Driver) => {
                (Fault::Timeout, "the driver did not respond by the deadline".to_owned())
            }
            Ended::Failed(fault, words) => (fault, words),
            Ended::Died(Step::Driver | Step::Proc) => {
                (Fault::WorkerFailed, "the sampling worker exited unexpectedly".to_owned())
            }
            Ended::LauncherGone => (Fault::WorkerFailed, WorkerError::LauncherGone.to_string()),
        };
        self.abandon(None);
        let earlier = self.down.map(|(_, pause)| pause);
        self.down = Some((fault, Pause::after(earlier, self.settings.interval)));
        self.say(Some(words));
        Some(fault)
    }

    /// Records a GPU on which the worker hung or died, and abandons the worker.
    fn lose(&mut self, index: u32, fault: Fault) -> Fault {
        let earlier = self.hung.get(&index).map(|(pause, _)| *pause);
        self.hung.insert(index, (Pause::after(earlier, self.settings.interval), fault));
        self.abandon(Some(index));
        self.say(Some(format!(
            "the driver returns no data for GPU {index} ({}); it is retried at increasing intervals",
            fault.name()
        )));
        fault
    }

    /// Logs that `/proc` cannot be read, or that all sources can be read again.
    fn log(&mut self, builder: &SampleBuilder) {
        let Some(rest) = &builder.rest else { return };
        if let Some(words) = &rest.kernel_log_error
            && self.kernel_log_error.replace(words.clone()).as_ref() != Some(words)
        {
            tracing::warn!("{words}");
        }
        if let Some(words) = &rest.pod_resources_error {
            if self.kubelet_error.replace(words.clone()).as_ref() != Some(words) {
                tracing::warn!("cannot read the devices of pods: {words}");
            }
        } else if rest.pod_resources.is_some() && self.kubelet_error.take().is_some() {
            tracing::info!("the kubelet answers again");
        }
        if let Some(fault) = rest.proc_fault {
            let procfs = self.settings.procfs.display();
            self.say(Some(format!(
                "cannot read {procfs} ({}), so processes are not identified",
                fault.name()
            )));
        } else if self.hung.is_empty() && self.plain.is_none() {
            self.say(None);
        }
    }

    /// Kills the worker, and keeps its handle until it has exited.
    fn abandon(&mut self, gpu: Option<u32>) {
        if let Some(worker) = self.worker.take() {
            self.launcher.kill(&worker.process);
            self.left_behind.push(LeftBehind { process: worker.process, gpu });
        }
    }

    /// Logs a fault, or its end if `words` is `None`, unless that was already logged.
    fn say(&mut self, words: Option<String>) {
        if self.logged == words {
            return;
        }
        if let Some(words) = &words {
            tracing::warn!("{words}");
        } else {
            tracing::info!("all sources can be read again");
        }
        self.logged = words;
    }

    /// Stores the properties that GPUs reported. GPUs that could be read no longer count as hung.
    fn remember(&mut self, builder: &SampleBuilder) {
        if let Some(count) = builder.count {
            self.known.retain(|index, _| *index < count);
            self.hung.retain(|index, _| *index < count);
        }
        for (index, samples) in &builder.read {
            self.hung.remove(index);
            if let Some(gpu) = samples.first().filter(|gpu| gpu.about.id.is_some()) {
                self.known.insert(*index, gpu.about.clone());
            }
        }
    }
}

impl Worker {
    fn new(process: Started, asked: Asked) -> std::io::Result<Self> {
        let channel = Channel::new(process.stream.try_clone()?)?;
        Ok(Self { process, asked, channel, driver: None, began: Instant::now() })
    }

    /// Waits until the worker has opened the driver. It counts as hung after `longest` in total.
    fn open(&mut self, deadline: Deadline, longest: Duration) -> Ended {
        if self.driver.is_some() {
            return Ended::Done;
        }
        match self.channel.receive(deadline) {
            Heard::Message(WorkerMessage::Opened(driver)) => {
                self.driver = Some(driver);
                Ended::Done
            }
            Heard::Message(WorkerMessage::Failed(fault, words)) => {
                Ended::Failed(fault, format!("cannot open NVML: {words}"))
            }
            Heard::Silence if self.began.elapsed() < longest => Ended::Opening,
            Heard::Silence => Ended::Hung(Step::Driver),
            Heard::Message(_) | Heard::Ended => Ended::Died(Step::Driver),
        }
    }

    /// Requests a sample. Each GPU may take two fifths of the deadline, and `/proc` four fifths.
    fn sample(&mut self, request: &Request, builder: &mut SampleBuilder, deadline: Duration) -> Ended {
        let mut at = Step::Driver;
        let mut step = deadline * 2 / 5;
        if self.channel.send(request).is_err() {
            return Ended::Died(at);
        }
        loop {
            match self.channel.receive(Deadline::after(step)) {
                Heard::Message(WorkerMessage::Reading { index, count }) => {
                    at = Step::Gpu(index);
                    builder.count = Some(count);
                }
                Heard::Message(WorkerMessage::Read(samples)) => {
                    if let Step::Gpu(index) = std::mem::replace(&mut at, Step::Driver) {
                        builder.read.insert(index, samples);
                    }
                }
                Heard::Message(WorkerMessage::Looking { count }) => {
                    (at, step) = (Step::Proc, deadline * 4 / 5);
                    builder.count = Some(count);
                }
                Heard::Message(WorkerMessage::Done(rest)) => {
                    builder.rest = Some(*rest);
                    return Ended::Done;
                }
                Heard::Message(WorkerMessage::Failed(fault, words)) => return Ended::Failed(fault, words),
                Heard::Silence => return Ended::Hung(at),
                Heard::Message(WorkerMessage::Opened(_)) | Heard::Ended => return Ended::Died(at),
            }
        }
    }
}
