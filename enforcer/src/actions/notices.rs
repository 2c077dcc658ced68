//! Notifications to users: what was found and what happens next. Each channel has its own thread, bounded
//! queue and deadline, so that a slow channel delays neither the daemon nor other channels.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime};

use serde::{Serialize, Serializer};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::exec::run_program;
use super::mail::Outbox;
pub use super::message::Part;
use super::{tty, webhook};
use crate::audit;
use bailiff_engine::policy::mail::Mail;
use bailiff_engine::policy::{Channel, Mode};
use bailiff_engine::verdict::{Evidence, Member, Subject};
use bailiff_lifecycle::permissions::FilePermissions;

/// Maximum number of queued notifications per channel. Mail is never dropped in practice, because many notifications share
/// a message.
const QUEUE: usize = 64;
const MAIL_QUEUE: usize = 1 << 14;
/// Reasons why a notification is dropped.
const TOO_MANY: &str = "too many notifications are waiting for this channel";
const STOPPED: &str = "the enforcer is shutting down";
/// Maximum length of a text in bytes; longer texts are cut, because terminals and chats show no more.
const MOST_TEXT: usize = 1000;

/// Settings of the channels.
#[derive(Debug, Clone)]
pub struct NoticeSettings {
    /// Directory of terminal devices.
    pub dev: PathBuf,
    /// Time limit of one attempt to post to a webhook.
    pub webhook: Duration,
    /// Time limit of a program.
    pub program: Duration,
    /// Permissions that a program must have.
    pub permissions: FilePermissions,
    /// Directory of files with mail that was not delivered yet; `None` to keep none over a restart.
    pub mail: Option<PathBuf>,
    /// First pause after a mail server did not accept a message.
    pub mail_pause: Duration,
    /// Name of the node.
    pub node: String,
}

impl Default for NoticeSettings {
    fn default() -> Self {
        Self {
            dev: "/dev".into(),
            webhook: Duration::from_secs(10),
            program: Duration::from_secs(30),
            permissions: FilePermissions::Strict,
            mail: None,
            mail_pause: Duration::from_mins(1),
            node: String::new(),
        }
    }
}

/// The content of a notification.
#[derive(Debug, Clone, Serialize)]
pub struct Notice {
    /// Text of one line: what was found, what happens next, and when.
    #[serde(serialize_with = "calm")]
    pub text: String,
    /// Name of the node.
    pub node: String,
    /// Name of the rule.
    pub rule: String,
    /// Name of the rule's step.
    pub step: String,
    /// Id of the target.
    pub target: String,
    /// User name of the target's owner.
    pub user: Option<String>,
    /// Uid of the target's owner.
    pub uid: Option<u32>,
    /// UUIDs of the target's GPUs.
    pub gpus: Vec<String>,
    /// Processes of the target.
    pub members: Vec<Member>,
    /// Values that made the rule match.
    pub evidence: Option<Evidence>,
    /// Time of the notification.
    #[serde(serialize_with = "time")]
    pub when: SystemTime,
    /// Parts of the text, for templates.
    #[serde(skip)]
    pub part: Part,
    /// Target, and mode of the rule, for the audit log.
    #[serde(skip)]
    pub about: (Arc<Subject>, Mode),
}

/// Result of a notification on one channel.
#[derive(Debug)]
pub struct Delivery {
    /// The notification.
    pub notice: Arc<Notice>,
    /// Name of the channel.
    pub channel: String,
    /// Whether it was delivered, or why not.
    pub result: Result<(), (Delivered, String)>,
}

bailiff_snapshot::label_values! {
/// Outcome of a notification on one channel.
pub enum Delivered {
    /// Accepted by the channel.
    Ok = "ok",
    /// Not accepted by the channel.
    Failed = "failed",
    /// Not accepted yet; it is sent again later.
    Deferred = "deferred",
    /// Not sent, because the queue was full or the enforcer was stopping.
    Dropped = "dropped",
}
}

impl Delivery {
    /// Returns the outcome.
    pub fn outcome(&self) -> Delivered {
        self.result.as_ref().map_or_else(|(outcome, _)| *outcome, |()| Delivered::Ok)
    }
}

/// Threads of the channels. When dropped, each finishes its current notification.
#[derive(Debug)]
pub struct Notices {
    state: Arc<State>,
    lines: BTreeMap<String, Line>,
}

/// Queue and thread of a channel.
#[derive(Debug)]
struct Line {
    queue: SyncSender<Job>,
    thread: JoinHandle<()>,
}

#[derive(Debug)]
struct State {
    settings: NoticeSettings,
    stopped: AtomicBool,
    deliveries: UnboundedSender<Delivery>,
}

/// A notification for one channel, or `None` if only its settings are new.
#[derive(Debug)]
struct Job {
    notice: Option<Arc<Notice>>,
    name: String,
    channel: Channel,
}

impl Notices {
    /// Returns the sender of notifications and the receiver of their results. Starts no thread yet.
    pub fn new(settings: NoticeSettings) -> (Self, UnboundedReceiver<Delivery>) {
        let (deliveries, results) = unbounded_channel();
        let stopped = AtomicBool::new(false);
        let state = State { settings, stopped, deliveries };
        (Self { state: Arc::new(state), lines: BTreeMap::new() }, results)
    }

    /// Queues a notification for these channels; never waits.
    pub fn notify<'a>(
        &mut self,
        notice: &Arc<Notice>,
        channels: impl IntoIterator<Item = (&'a str, &'a Channel)>,
    ) {
        for (name, channel) in channels {
            let job =
                Job { notice: Some(Arc::clone(notice)), name: name.to_owned(), channel: channel.clone() };
            if self.line(name, channel).is_none_or(|line| line.queue.try_send(job).is_err()) {
                self.state.report(
                    Arc::clone(notice),
                    name.to_owned(),
                    Err((Delivered::Dropped, TOO_MANY.to_owned())),
                );
            }
        }
    }

    /// Ends the threads of all channels except these, and starts those that may have mail from an earlier run.
    pub fn keep(&mut self, channels: &BTreeMap<String, Channel>) {
        self.lines.retain(|name, _| channels.contains_key(name));
        for (name, channel) in channels.iter().filter(|(_, channel)| matches!(channel, Channel::Mail(_))) {
            let job = Job { notice: None, name: name.clone(), channel: channel.clone() };
            // If the queue is full, the thread has newer settings soon.
            let _ = self.line(name, channel).map(|line| line.queue.try_send(job));
        }
    }

    /// Returns the queue of a channel, and starts its thread if needed; `None` if that fails.
    fn line(&mut self, name: &str, channel: &Channel) -> Option<&Line> {
        if !self.lines.contains_key(name) {
            let (queue, jobs) =
                sync_channel(if matches!(channel, Channel::Mail(_)) { MAIL_QUEUE } else { QUEUE });
            let state = Arc::clone(&self.state);
            let mail =
                state.settings.mail.as_ref().map(|directory| directory.join(format!("mail-{name}.json")));
            let thread = std::thread::Builder::new().name("notices".to_owned());
            let thread = thread.spawn(move || serve(&jobs, &state, mail.as_deref())).ok()?;
            self.lines.insert(name.to_owned(), Line { queue, thread });
        }
        self.lines.get(name)
    }
}

impl Drop for Notices {
    fn drop(&mut self) {
        self.state.stopped.store(true, Ordering::Relaxed);
        let lines = std::mem::take(&mut self.lines).into_values();
        // All queues are closed before the first thread is joined.
        let threads: Vec<JoinHandle<()>> = lines.map(|Line { thread, .. }| thread).collect();
        for thread in threads {
            drop(thread.join());
        }
    }
}

fn serve(jobs: &Receiver<Job>, state: &State, mail: Option<&Path>) {
    let mut sender: Option<MailSender> = None;
    loop {
        let left = sender.as_mut().and_then(|sender| sender.outbox.wait(&sender.mail));
        let job = match left {
            Some(left) => jobs.recv_timeout(left),
            None => jobs.recv().map_err(|_| RecvTimeoutError::Disconnected),
        };
        match job {
            Ok(Job { notice, name, channel: Channel::Mail(mail_settings) }) => {
                let outbox = sender.take().map(|sender| sender.outbox);
                let outbox = outbox.unwrap_or_else(|| Outbox::open(mail.map(Path::to_owned)));
                let mut new = MailSender { name, mail: mail_settings, outbox };
                new.add(notice, state);
                // Together with others that have come, so that the file is written once.
                for Job { notice, .. } in jobs.try_iter() {
                    new.add(notice, state);
                }
                new.outbox.save();
                sender = Some(new);
            }
            Ok(Job { notice: Some(notice), name, .. }) if state.stopped.load(Ordering::Relaxed) => {
                state.report(notice, name, Err((Delivered::Dropped, STOPPED.to_owned())));
            }
            Ok(Job { notice: Some(notice), name, channel }) => {
                let result = state.notify(&notice, &channel).map_err(|why| (Delivered::Failed, why));
                state.report(notice, name, result);
            }
            Ok(Job { notice: None, .. }) => {}
            Err(RecvTimeoutError::Timeout) => {
                if let Some(sender) = &mut sender {
                    sender.send_due(state);
                }
            }
            Err(RecvTimeoutError::Disconnected) => break,
        }
    }
}

/// The part of a channel's thread that sends mail.
struct MailSender {
    name: String,
    mail: Box<Mail>,
    outbox: Outbox,
}

impl MailSender {
    fn add(&mut self, notice: Option<Arc<Notice>>, state: &State) {
        if let Some(notice) = notice {
            let report = &mut |notice, result| state.report(notice, self.name.clone(), result);
            self.outbox.add(notice, report);
        }
    }

    fn send_due(&mut self, state: &State) {
        // What is left is in the file, for the next run.
        if !state.stopped.load(Ordering::Relaxed) {
            let report = &mut |notice, result| state.report(notice, self.name.clone(), result);
            self.outbox.send_due(&self.mail, (&state.settings, &state.stopped), report);
        }
    }
}

impl State {
    fn notify(&self, notice: &Notice, channel: &Channel) -> Result<(), String> {
        let body = || audit::ascii(notice).map_err(|error| error.to_string());
        match channel {
            Channel::Tty => {
                let lines = [format!("GPU Bailiff on {}:", notice.node), cut(&notice.text).to_owned()];
                tty::notify(&self.settings.dev, notice.uid, &lines).map_err(|error| error.to_string())
            }
            Channel::Webhook(address) => {
                let stopped = || self.stopped.load(Ordering::Relaxed);
                webhook::post(address, &body()?, self.settings.webhook, stopped)
                    .map_err(|error| error.to_string())
            }
            // Sent by an outbox.
            Channel::Mail(_) => Ok(()),
            Channel::Exec(argv) => {
                run_program(argv, &body()?, (self.settings.program, self.settings.permissions))
            }
        }
    }

    fn report(&self, notice: Arc<Notice>, channel: String, result: Result<(), (Delivered, String)>) {
        if let Err((_, why)) = &result {
            tracing::warn!(channel, rule = notice.rule, why, "a notification was not delivered");
        }
        // The receiver is closed once the daemon has ended.
        let _ = self.deliveries.send(Delivery { notice, channel, result });
    }
}

fn cut(text: &str) -> &str {
    let end = text.char_indices().map(|(at, _)| at).take_while(|at| *at <= MOST_TEXT).last();
    if text.len() > MOST_TEXT { text.get(..end.unwrap_or_default()).unwrap_or_default() } else { text }
}

/// Serializes one line for chat tools: a process name cannot mention users, add a link or reverse the text.
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
