#![expect(clippy::disallowed_methods, reason = "deadlines are compared with the clock here")]
//! The supervisor: asks a sampling worker for a look and never waits past the deadline. A worker that hangs
//! is killed and left behind, never waited for; another takes over without the GPU that it hung on.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use bailiff_snapshot::{About, Driver, Fault, Sample};

use crate::channel::{Channel, Heard};
use crate::clock::now;
use crate::launcher::{Launcher, Started};
use crate::message::{Report, Request};
use crate::proc::Node;
use crate::round::{Frame, Round};
use crate::settings::{Commands, Settings};

/// Workers that may hang at once, unkillable; past that no more are started until one has ended.
const MOST_LEFT_BEHIND: usize = 3;
/// The longest pause before something that failed is tried again.
const LONGEST_PAUSE: Duration = Duration::from_mins(5);

/// Holds the one worker that is asked, and remembers what hung.
pub struct Supervisor {
    launcher: Launcher,
    settings: Settings,
    node: Node,
    worker: Option<Worker>,
    left_behind: Vec<Worker>,
    /// What is known of each GPU, by index, for the beats in which it tells nothing.
    known: BTreeMap<u32, About>,
    /// GPUs that hung.
    hung: BTreeMap<u32, Pause>,
    /// A driver that could not be opened, or a worker that died.
    down: Option<(Fault, Pause)>,
    /// A look at `/proc` that hung: command lines are left alone from then on.
    plain: bool,
    said: Option<String>,
}

struct Worker {
    process: Started,
    channel: Channel,
    /// `None` while it opens the driver, with the moment that it began.
    driver: Option<Driver>,
    began: Instant,
}

/// When something that failed is tried again: twice as long each time.
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

/// What a worker was doing.
#[derive(Clone, Copy)]
enum Step {
    Opening,
    Gpu(u32),
    Proc,
}

/// How one worker's part of a look ended.
enum Ended {
    Done,
    /// It is still opening the driver, within its time.
    Opening,
    /// Silent past its deadline.
    Hung(Step),
    /// The driver cannot be opened.
    Failed(Fault, String),
    /// It died, or could not be started.
    Died,
}

impl Supervisor {
    /// A supervisor; its first look starts the first worker.
    #[must_use]
    pub fn new(launcher: Launcher, settings: Settings) -> Self {
        Self {
            launcher,
            node: Node::read(&settings),
            settings,
            worker: None,
            left_behind: Vec::new(),
            known: BTreeMap::new(),
            hung: BTreeMap::new(),
            down: None,
            plain: false,
            said: None,
        }
    }

    /// Looks once; back by the deadline with whatever was read by then.
    pub fn look(&mut self, seq: u64) -> Sample {
        let (began, at) = (Instant::now(), now());
        self.left_behind.retain(|worker| !worker.channel.ended());
        let mut round = Round::default();
        // A second worker gets the rest of the time when the first one hung on a GPU.
        for _ in 0..2 {
            let ended = self.ask(&mut round, began);
            let again = matches!(ended, Ended::Hung(Step::Gpu(_)));
            round.fault = self.learn(ended);
            if !again {
                break;
            }
        }
        self.remember(&round);
        let frame = Frame {
            node: &self.node,
            seq,
            at,
            took: began.elapsed(),
            interval: self.settings.interval,
            workers_left_behind: u32::try_from(self.left_behind.len()).unwrap_or(u32::MAX),
        };
        round.finish(&frame, &self.known)
    }

    /// Has one worker do its part.
    fn ask(&mut self, round: &mut Round, began: Instant) -> Ended {
        if let Some((fault, pause)) = &self.down
            && !pause.over()
        {
            return Ended::Failed(*fault, String::new());
        }
        if self.worker.is_none() {
            if self.left_behind.len() >= MOST_LEFT_BEHIND {
                let words =
                    format!("{MOST_LEFT_BEHIND} sampling workers hang in the driver and cannot be ended");
                return Ended::Failed(Fault::Timeout, words);
            }
            self.worker = Worker::start(&self.launcher, &self.worker_settings());
        }
        let skip: Vec<u32> =
            self.hung.iter().filter(|(_, pause)| !pause.over()).map(|(index, _)| *index).collect();
        let Some(worker) = &mut self.worker else { return Ended::Died };
        let overall = began + self.settings.deadline;
        match worker.open(overall, self.settings.open_deadline) {
            Ended::Done => {}
            other => return other,
        }
        round.driver.clone_from(&worker.driver);
        let request = Request {
            skip: skip.into_iter().chain(round.read.keys().copied()).collect(),
            also: round.pids(),
        };
        worker.look(&request, round, self.settings.deadline * 2 / 5)
    }

    /// Draws the consequences, and tells the fault of the driver as a whole.
    fn learn(&mut self, ended: Ended) -> Option<Fault> {
        let (fault, words) = match ended {
            Ended::Done => {
                self.down = None;
                self.say(None);
                return None;
            }
            Ended::Opening => {
                return Some(if self.known.is_empty() { Fault::Starting } else { Fault::Timeout });
            }
            Ended::Hung(Step::Gpu(index)) => {
                let pause = Pause::after(self.hung.get(&index).copied(), self.settings.interval);
                self.hung.insert(index, pause);
                self.abandon();
                self.say(Some(format!("GPU {index} did not answer; it is left out until it does")));
                return Some(Fault::Timeout);
            }
            Ended::Hung(Step::Proc) => {
                self.abandon();
                self.plain = true;
                self.say(Some(
                    "/proc did not answer by the deadline; command lines are left alone".to_owned(),
                ));
                return None;
            }
            Ended::Hung(Step::Opening) => {
                self.abandon();
                (Fault::Timeout, "the driver could not be opened by the deadline".to_owned())
            }
            Ended::Failed(fault, words) if words.is_empty() => return Some(fault),
            Ended::Failed(fault, words) => (fault, format!("NVML cannot be opened: {words}")),
            Ended::Died => (Fault::WorkerFailed, "the sampling worker ended by itself".to_owned()),
        };
        self.worker = None;
        let earlier = self.down.map(|(_, pause)| pause);
        self.down = Some((fault, Pause::after(earlier, self.settings.interval)));
        self.say(Some(words));
        Some(fault)
    }

    /// Leaves a hung worker behind.
    fn abandon(&mut self) {
        if let Some(worker) = self.worker.take() {
            worker.process.kill();
            self.left_behind.push(worker);
        }
    }

    /// Logs a change of state, once.
    fn say(&mut self, words: Option<String>) {
        if self.said == words {
            return;
        }
        match &words {
            Some(words) => tracing::warn!("{words}"),
            None if self.said.is_some() => tracing::info!("the driver answers again"),
            None => {}
        }
        self.said = words;
    }

    /// Keeps the names of GPUs that told them, and forgets the hang of those that answered.
    fn remember(&mut self, round: &Round) {
        if let Some(count) = round.count {
            self.known.retain(|index, _| *index < count);
        }
        for (index, samples) in &round.read {
            self.hung.remove(index);
            if let Some(gpu) = samples.first().filter(|gpu| gpu.about.id.is_some()) {
                self.known.insert(*index, gpu.about.clone());
            }
        }
    }

    fn worker_settings(&self) -> Settings {
        let commands = if self.plain { Commands::Left } else { self.settings.commands };
        Settings { commands, ..self.settings.clone() }
    }
}

impl Worker {
    fn start(launcher: &Launcher, settings: &Settings) -> Option<Self> {
        let process = launcher.worker().inspect_err(|error| tracing::error!("{error}")).ok()?;
        let mut channel = Channel::new(process.stream.try_clone().ok()?).ok()?;
        channel.send(settings).ok()?;
        Some(Self { process, channel, driver: None, began: Instant::now() })
    }

    /// Waits for the driver to be open.
    fn open(&mut self, deadline: Instant, longest: Duration) -> Ended {
        if self.driver.is_some() {
            return Ended::Done;
        }
        match self.channel.receive(deadline) {
            Heard::Message(Report::Opened(driver)) => {
                self.driver = Some(driver);
                Ended::Done
            }
            Heard::Message(Report::Failed(fault, words)) => Ended::Failed(fault, words),
            Heard::Silence if self.began.elapsed() < longest => Ended::Opening,
            Heard::Silence => Ended::Hung(Step::Opening),
            Heard::Message(_) | Heard::Ended => Ended::Died,
        }
    }

    /// Has it look, with this long for each step.
    fn look(&mut self, request: &Request, round: &mut Round, step: Duration) -> Ended {
        if self.channel.send(request).is_err() {
            return Ended::Died;
        }
        let mut at = Step::Proc;
        loop {
            match self.channel.receive(Instant::now() + step) {
                Heard::Message(Report::Reading { index, count }) => {
                    at = Step::Gpu(index);
                    round.count = Some(count);
                }
                Heard::Message(Report::Read(samples)) => {
                    if let Step::Gpu(index) = std::mem::replace(&mut at, Step::Proc) {
                        round.read.insert(index, samples);
                    }
                }
                Heard::Message(Report::Looking { count }) => round.count = Some(count),
                Heard::Message(Report::Done(rest)) => {
                    round.rest = Some(*rest);
                    return Ended::Done;
                }
                Heard::Message(Report::Failed(fault, words)) => return Ended::Failed(fault, words),
                Heard::Silence => return Ended::Hung(at),
                Heard::Message(Report::Opened(_)) | Heard::Ended => return Ended::Died,
            }
        }
    }
}
