//! Notifications: users learn what was found and what comes next. Each channel has its own thread, bounded queue and
//! deadline: nothing waits for a chat server, and no channel for another.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime};

use serde::{Serialize, Serializer};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::child;
use super::{tty, webhook};
use crate::audit;
use bailiff_engine::policy::{Channel, Mode};
use bailiff_engine::verdict::{Evidence, Member, Subject};

/// Notices that wait for a channel, at most.
const QUEUE: usize = 64;
/// Why a notice is not sent.
const TOO_MANY: &str = "too many notices wait for this channel";
const STOPPED: &str = "the enforcer is ending";
/// A longer sentence is cut: terminals and chats show no more.
const MOST_TEXT: usize = 1000;

/// How channels are served.
#[derive(Debug, Clone)]
pub struct NoticeSettings {
    /// Where terminals are.
    pub dev: PathBuf,
    /// How long one try of a webhook may take.
    pub webhook: Duration,
    /// How long a program may run.
    pub program: Duration,
}

impl Default for NoticeSettings {
    fn default() -> Self {
        Self { dev: "/dev".into(), webhook: Duration::from_secs(10), program: Duration::from_secs(30) }
    }
}

/// The content of a notification.
#[derive(Debug, Clone, Serialize)]
pub struct Notice {
    /// One line: what was found, what happens next, and when.
    #[serde(serialize_with = "calm")]
    pub text: String,
    /// The node.
    pub node: String,
    /// The rule.
    pub rule: String,
    /// The step of the rule.
    pub step: String,
    /// The target's name.
    pub target: String,
    /// The owner's name.
    pub user: Option<String>,
    /// The owner.
    pub uid: Option<u32>,
    /// UUIDs of its GPUs.
    pub gpus: Vec<String>,
    /// Its processes.
    pub members: Vec<Member>,
    /// Why.
    pub evidence: Option<Evidence>,
    /// When it was found.
    #[serde(serialize_with = "time")]
    pub when: SystemTime,
    /// The target and the mode of the rule, for the audit log.
    #[serde(skip)]
    pub about: (Arc<Subject>, Mode),
}

/// What came of a notice on one channel.
#[derive(Debug)]
pub struct Delivery {
    /// The notice.
    pub notice: Arc<Notice>,
    /// The channel's name.
    pub channel: String,
    /// Delivered, or why not.
    pub result: Result<(), String>,
}

/// How a notice went.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Delivered {
    /// The channel took it.
    Ok,
    /// It did not.
    Failed,
    /// Too many were waiting, or the program ended first.
    Dropped,
}

impl Delivered {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Ok, Self::Failed, Self::Dropped];

    /// Its label value.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Failed => "failed",
            Self::Dropped => "dropped",
        }
    }
}

/// How often which channel took a notice or did not.
pub type Counts = BTreeMap<(String, Delivered), u64>;

/// The threads of the channels. When dropped, each finishes its current notification.
#[derive(Debug)]
pub struct Notices {
    state: Arc<State>,
    lines: BTreeMap<String, Line>,
}

/// To a channel.
#[derive(Debug)]
struct Line {
    queue: SyncSender<Job>,
    thread: JoinHandle<()>,
}

#[derive(Debug)]
struct State {
    settings: NoticeSettings,
    counts: Mutex<Counts>,
    stopped: AtomicBool,
    deliveries: UnboundedSender<Delivery>,
}

/// A notice for one channel.
#[derive(Debug)]
struct Job {
    notice: Arc<Notice>,
    name: String,
    channel: Channel,
}

impl Notices {
    /// Ready to send, and what comes of each notice; a channel's thread begins with its first notice.
    #[must_use]
    pub fn new(settings: NoticeSettings) -> (Self, UnboundedReceiver<Delivery>) {
        let (deliveries, results) = unbounded_channel();
        let stopped = AtomicBool::new(false);
        let state = State { settings, counts: Mutex::default(), stopped, deliveries };
        (Self { state: Arc::new(state), lines: BTreeMap::new() }, results)
    }

    /// Sends to all of these channels; never waits.
    pub fn notify<'a>(
        &mut self,
        notice: &Arc<Notice>,
        channels: impl IntoIterator<Item = (&'a str, &'a Channel)>,
    ) {
        for (name, channel) in channels {
            let job = Job { notice: Arc::clone(notice), name: name.to_owned(), channel: channel.clone() };
            if self.line(name).is_none_or(|line| line.queue.try_send(job).is_err()) {
                self.state.report(
                    Arc::clone(notice),
                    name.to_owned(),
                    Err((Delivered::Dropped, TOO_MANY.to_owned())),
                );
            }
        }
    }

    /// Ends the threads of all channels but these.
    pub fn keep(&mut self, channels: &BTreeMap<String, Channel>) {
        self.lines.retain(|name, _| channels.contains_key(name));
    }

    /// The line to a channel; none if its thread could not be started.
    fn line(&mut self, name: &str) -> Option<&Line> {
        if !self.lines.contains_key(name) {
            let (queue, jobs) = sync_channel(QUEUE);
            let state = Arc::clone(&self.state);
            let thread = std::thread::Builder::new().name("notices".to_owned());
            let thread = thread.spawn(move || serve(&jobs, &state)).ok()?;
            self.lines.insert(name.to_owned(), Line { queue, thread });
        }
        self.lines.get(name)
    }

    /// How it went so far.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.state.counts.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Drop for Notices {
    fn drop(&mut self) {
        self.state.stopped.store(true, Ordering::Relaxed);
        let lines = std::mem::take(&mut self.lines).into_values();
        // All queues close before the first thread is waited for.
        let threads: Vec<JoinHandle<()>> = lines.map(|Line { thread, .. }| thread).collect();
        for thread in threads {
            drop(thread.join());
        }
    }
}

fn serve(jobs: &Receiver<Job>, state: &State) {
    for job in jobs {
        if state.stopped.load(Ordering::Relaxed) {
            state.report(job.notice, job.name, Err((Delivered::Dropped, STOPPED.to_owned())));
            continue;
        }
        let result = state.notify(&job).map_err(|why| (Delivered::Failed, why));
        state.report(job.notice, job.name, result);
    }
}

impl State {
    fn notify(&self, job: &Job) -> Result<(), String> {
        let notice = &*job.notice;
        let body = || audit::ascii(notice).map_err(|error| error.to_string());
        match &job.channel {
            Channel::Tty => {
                let lines = [format!("GPU Bailiff on {}:", notice.node), cut(&notice.text).to_owned()];
                tty::notify(&self.settings.dev, notice.uid, &lines).map_err(|error| error.to_string())
            }
            Channel::Webhook(address) => {
                let stopped = || self.stopped.load(Ordering::Relaxed);
                webhook::post(address, &body()?, self.settings.webhook, stopped)
                    .map_err(|error| error.to_string())
            }
            Channel::Exec(argv) => {
                child::run(argv, &body()?, self.settings.program).map_err(|error| error.to_string())
            }
        }
    }

    fn report(&self, notice: Arc<Notice>, channel: String, result: Result<(), (Delivered, String)>) {
        let delivered = result.as_ref().map_or_else(|(delivered, _)| *delivered, |()| Delivered::Ok);
        let result = result.map_err(|(_, why)| why);
        if let Err(why) = &result {
            tracing::warn!(channel, rule = notice.rule, why, "a notice was not delivered");
        }
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        *counts.entry((channel.clone(), delivered)).or_default() += 1;
        drop(counts);
        // The receiver is gone once the daemon has ended.
        let _ = self.deliveries.send(Delivery { notice, channel, result });
    }
}

fn cut(text: &str) -> &str {
    let end = text.char_indices().map(|(at, _)| at).take_while(|at| *at <= MOST_TEXT).last();
    if text.len() > MOST_TEXT { text.get(..end.unwrap_or_default()).unwrap_or_default() } else { text }
}

/// For chat tools: one line, in which no name of a process calls people, makes a link or turns the writing.
fn calm<S: Serializer>(text: &str, to: S) -> Result<S::Ok, S::Error> {
    let mut calm = String::new();
    for character in cut(text).chars() {
        match character {
            '<' => calm.push('‹'),
            '>' => calm.push('›'),
            '@' => calm.push('＠'),
            '"' | '\'' => calm.push(character),
            other => calm.extend(other.escape_debug()),
        }
    }
    to.serialize_str(&calm)
}

fn time<S: Serializer>(when: &SystemTime, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(&humantime::format_rfc3339_millis(*when))
}
