//! Notifications to users: what was found and what happens next. Each channel has its own thread, bounded
//! queue and deadline, so that a slow channel delays neither the daemon nor other channels.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::exec::run_program;
use super::formats;
use super::mail::Outbox;
use super::message::{self, Variables, cut};
pub use super::message::{Delivered, Delivery, Notice, NoticeSettings, Part};
use super::pods;
use super::{tty, webhook};
use crate::audit;
use bailiff_engine::policy::Channel;
use bailiff_engine::policy::mail::Mail;
use bailiff_engine::verdict::Outcome;
use bailiff_proc::user_of;
use bailiff_snapshot::pod_api::{EventReason, PodRequest};

/// Maximum number of queued notifications per channel: about all targets, and about those of one user or namespace. Mail is never
/// dropped in practice, because many notifications share a message.
const QUEUE: usize = 512;
const QUEUE_OF_ONE: usize = 64;
const MAIL_QUEUE: usize = 1 << 14;
/// Reasons why a notification is dropped.
const TOO_MANY: &str = "too many notifications are waiting for this channel";
const STOPPED: &str = "the enforcer is shutting down";

/// Threads of the channels. When dropped, each finishes its current notification.
#[derive(Debug)]
pub struct Notices {
    state: Arc<State>,
    lines: BTreeMap<String, Line>,
}

/// Number of queued notifications about the targets of each user, or about the pods of each namespace.
type Counts = Arc<Mutex<BTreeMap<Owner, usize>>>;
type Owner = (Option<u32>, Option<String>);

/// Returns whose target a notification is about. Users in pods choose their uids; others can have subordinate uids.
fn owner(notice: &Notice) -> Owner {
    let namespace = notice.about.0.pod.as_ref().map(|pod| pod.namespace().to_owned());
    (notice.uid.filter(|_| namespace.is_none()).map(user_of), namespace)
}

/// Queue and thread of a channel.
#[derive(Debug)]
struct Line {
    queue: SyncSender<Job>,
    waiting: Counts,
    thread: JoinHandle<()>,
    sends_mail: bool,
}

#[derive(Debug)]
struct State {
    settings: NoticeSettings,
    stopped: AtomicBool,
    deliveries: UnboundedSender<Delivery>,
}

/// What a channel sends for a notification.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Content {
    /// Subject of a mail.
    pub subject: Option<String>,
    /// Text, or JSON.
    pub body: String,
}

impl Content {
    /// Returns what a channel would send for a notification, without secrets and with the other notifications of a mail
    /// left out.
    ///
    /// # Errors
    /// If a template fails, or the body is too large.
    pub fn of(channel: &Channel, notice: &Notice) -> Result<Self, String> {
        let json = |value: serde_json::Result<String>| value.map_err(|error| error.to_string());
        let (subject, body) = match channel {
            Channel::Tty | Channel::Event(_) => (None, cut(&notice.text).to_owned()),
            Channel::Webhook(webhook) => {
                (None, json(serde_json::to_string(&formats::content(webhook, notice)?))?)
            }
            Channel::Mail(mail) => {
                let user = notice.user.as_deref().unwrap_or_default();
                let variables = Variables::of((&notice.node, user), std::iter::once(&notice.part));
                let subject = message::subject(mail.subject.as_deref(), &variables)?;
                (Some(subject), message::body(mail.body.as_deref(), &variables)?.replace("\r\n", "\n"))
            }
            Channel::Exec(_) => (None, json(serde_json::to_string(notice))?),
        };
        Ok(Self { subject, body })
    }
}

/// A notification for one channel, or `None` if only its settings are new.
#[derive(Debug)]
struct Job {
    /// With its owner, because subordinate uids can change while it waits.
    notice: Option<(Arc<Notice>, Owner)>,
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
            let owner = owner(notice);
            let job = Job { notice: Some((Arc::clone(notice), owner.clone())), channel: channel.clone() };
            if !self.line(name, channel).is_some_and(|line| line.add(job, owner)) {
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
        let is_mail = |channel: &Channel| matches!(channel, Channel::Mail(_));
        self.lines.retain(|name, line| {
            channels.get(name).is_some_and(|channel| is_mail(channel) == line.sends_mail)
        });
        for (name, channel) in channels.iter().filter(|(_, channel)| is_mail(channel)) {
            let job = Job { notice: None, channel: channel.clone() };
            if let Some(line) = self.line(name, channel) {
                // If the queue is full, the thread has newer settings soon.
                drop(line.queue.try_send(job));
            }
        }
    }

    /// Returns the queue of a channel, and starts its thread if needed; `None` if that fails.
    fn line(&mut self, name: &str, channel: &Channel) -> Option<&Line> {
        if !self.lines.contains_key(name) {
            let (state, channel_name) = (Arc::clone(&self.state), name.to_owned());
            let thread = std::thread::Builder::new().name("notices".to_owned());
            let sends_mail = matches!(channel, Channel::Mail(_));
            let (queue, jobs) = sync_channel(if sends_mail { MAIL_QUEUE } else { QUEUE });
            let waiting = Counts::default();
            let counts = Arc::clone(&waiting);
            let thread = match channel.clone() {
                Channel::Mail(mail) => {
                    let file = |directory: &PathBuf| directory.join(format!("mail-{channel_name}.json"));
                    let path = state.settings.mail.as_ref().map(file);
                    thread.spawn(move || {
                        let outbox = Outbox::open(path);
                        MailSender { state, channel: channel_name, mail, outbox }.serve(&jobs);
                    })
                }
                _ => thread.spawn(move || serve((&jobs, &counts), &state, &channel_name)),
            };
            self.lines.insert(name.to_owned(), Line { queue, waiting, thread: thread.ok()?, sends_mail });
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

impl Line {
    /// Queues a notification about a target of this owner; returns false if too many wait.
    fn add(&self, job: Job, owner: Owner) -> bool {
        if self.sends_mail {
            // The outbox has a limit for each user.
            return self.queue.try_send(job).is_ok();
        }
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let count = waiting.entry(owner).or_default();
        let is_added = *count < QUEUE_OF_ONE && self.queue.try_send(job).is_ok();
        *count += usize::from(is_added);
        is_added
    }
}

fn serve((jobs, waiting): (&Receiver<Job>, &Counts), state: &State, name: &str) {
    for Job { notice, channel } in jobs {
        let Some((notice, owner)) = notice else { continue };
        let mut counts = waiting.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = counts.get_mut(&owner) {
            *count -= 1;
        }
        counts.retain(|_, count| *count > 0);
        drop(counts);
        let result = if state.stopped.load(Ordering::Relaxed) {
            Err((Delivered::Dropped, STOPPED.to_owned()))
        } else {
            state.notify(&notice, &channel).map_err(|why| (Delivered::Failed, why))
        };
        state.report(notice, name.to_owned(), result);
    }
}

/// Thread of a mail channel.
struct MailSender {
    state: Arc<State>,
    channel: String,
    mail: Box<Mail>,
    outbox: Outbox,
}

impl MailSender {
    fn serve(mut self, jobs: &Receiver<Job>) {
        loop {
            let job = match self.outbox.wait(&self.mail) {
                Some(left) => jobs.recv_timeout(left),
                None => jobs.recv().map_err(|_| RecvTimeoutError::Disconnected),
            };
            match job {
                // Together with others that have come, so that the file is written once.
                Ok(job) => std::iter::once(job).chain(jobs.try_iter()).for_each(|job| self.add(job)),
                // What is left is in the file, for the next run.
                Err(RecvTimeoutError::Timeout) if !self.state.stopped.load(Ordering::Relaxed) => {
                    let report =
                        &mut |notice, result| self.state.report(notice, self.channel.clone(), result);
                    self.outbox.send_due(&self.mail, (&self.state.settings, &self.state.stopped), report);
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            self.outbox.save(self.mail.every);
        }
    }

    fn add(&mut self, Job { notice, channel }: Job) {
        if let Channel::Mail(mail) = channel {
            self.mail = mail;
        }
        if let Some((notice, _)) = notice {
            let report = &mut |notice, result| self.state.report(notice, self.channel.clone(), result);
            self.outbox.add(notice, report);
        }
    }
}

/// Writes an Event about the target, if it is a pod.
fn event(socket: &Path, notice: &Notice) -> Result<(), String> {
    let pod = notice.about.0.pod.clone().ok_or("the target is not a pod, or its name is not known")?;
    let reason = reason(notice.outcome, notice.step == "stop_owner");
    let answer = pods::query(socket, &PodRequest::Event { pod, reason, note: note(notice) })?;
    match answer.status {
        Some(201) => Ok(()),
        Some(status) => Err(format!("the API server answered {status}: {}", answer.message)),
        None => Err(answer.message),
    }
}

fn reason(outcome: Option<Outcome>, stops: bool) -> EventReason {
    match outcome {
        None => EventReason::GpuIdle,
        Some(Outcome::BlockedByPdb) => EventReason::EvictionBlocked,
        Some(Outcome::Released | Outcome::Undetermined) if stops => EventReason::StoppedByRule,
        Some(Outcome::Released | Outcome::Undetermined) => EventReason::EvictedByRule,
        Some(_) if stops => EventReason::StopFailed,
        Some(_) => EventReason::EvictionFailed,
    }
}

/// Returns the text of an Event. It is read later, so it has times in place of durations.
fn note(notice: &Notice) -> String {
    if notice.outcome.is_some() {
        return format!("{}: {}", notice.node, cut(&notice.text));
    }
    let Part { rule, found, since, next, .. } = &notice.part;
    let since = since.as_ref().map(|since| format!(", since {since}")).unwrap_or_default();
    format!("{}: rule {rule}: {found}{since}. {}.", notice.node, next.trim_end_matches('.'))
}

impl State {
    fn notify(&self, notice: &Notice, channel: &Channel) -> Result<(), String> {
        let body = || audit::ascii(notice).map_err(|error| error.to_string());
        match channel {
            Channel::Tty => {
                let lines = [format!("GPU Bailiff on {}:", notice.node), cut(&notice.text).to_owned()];
                tty::notify(&self.settings.dev, notice.uid, &lines).map_err(|error| error.to_string())
            }
            Channel::Webhook(webhook) => {
                let stopped = || self.stopped.load(Ordering::Relaxed);
                let body = formats::body(webhook, notice)?;
                webhook::post(&webhook.address, &body, self.settings.webhook, stopped)
                    .map_err(|error| error.to_string())
            }
            // Sent by an outbox.
            Channel::Mail(_) => Ok(()),
            Channel::Event(socket) => event(socket, notice),
            Channel::Exec(argv) => {
                run_program(argv, &body()?, (self.settings.program, self.settings.permissions))
            }
        }
    }

    fn report(&self, notice: Arc<Notice>, channel: String, result: Result<(), (Delivered, String)>) {
        if let Err((Delivered::Failed | Delivered::Dropped, why)) = &result {
            tracing::warn!(channel, rule = notice.rule, why, "a notification was not delivered");
        }
        // The receiver is closed once the daemon has ended.
        let _ = self.deliveries.send(Delivery { notice, channel, result });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_result_has_its_reason() {
        for (outcome, evicts, stops) in [
            (None, "GPUIdle", "GPUIdle"),
            (Some(Outcome::Released), "EvictedByRule", "StoppedByRule"),
            (Some(Outcome::Undetermined), "EvictedByRule", "StoppedByRule"),
            (Some(Outcome::BlockedByPdb), "EvictionBlocked", "EvictionBlocked"),
            (Some(Outcome::NotTerminated), "EvictionFailed", "StopFailed"),
            (Some(Outcome::GoneNotReleased), "EvictionFailed", "StopFailed"),
        ] {
            let found = [false, true].map(|stops| reason(outcome, stops).name());
            assert_eq!(found, [evicts, stops], "{outcome:?}");
        }
    }
}
