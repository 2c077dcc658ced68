//! Mail to the owners of targets. Notifications that come together share a message, and a recipient gets at most one
//! message in each `every`. What was not delivered is kept in a file, so that a restart loses nothing and sends nothing
//! twice.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, UNIX_EPOCH};

use bailiff_engine::Kind;
use bailiff_engine::policy::Mode;
use bailiff_engine::policy::mail::{Mail, Recipient, USER};
use bailiff_engine::verdict::Subject;
use bailiff_lifecycle::file;
use lettre::address::Address;
use lettre::message::header::{ContentType, Header, HeaderName, HeaderValue};
use lettre::message::{Mailbox, Message};
use serde::{Deserialize, Serialize};

use super::exec::program_output;
use super::message::{self, Delivered, Notice, NoticeSettings, Part};
use super::smtp::{MailError, deliver};
use crate::clock::{Deadline, now};
use crate::disk;

/// Notifications that come within this time share a message.
const TOGETHER: Duration = Duration::from_secs(2);
/// Longest pause between attempts, of which each is twice as long as the one before.
const LONGEST_PAUSE: Duration = Duration::from_mins(30);
/// A notification that could not be delivered for this time has failed.
const GIVEN_UP: Duration = Duration::from_hours(24);
const GETENT: &str = "/usr/bin/getent";

/// Maximum number of notifications that wait for a user, and for all users. Of further ones, those of the user with the
/// most are dropped.
const MOST_OF_ONE: usize = 1000;
const MOST_OF_ALL: usize = 20_000;
/// Maximum number of a target's processes that are kept for the report of the delivery.
const MOST_MEMBERS: usize = 4;
/// Maximum size of the file.
const LARGEST_FILE: u64 = 256 << 20;

/// What is to be sent on one channel.
#[derive(Debug)]
pub(super) struct Outbox {
    /// The file; `None` to keep nothing over a restart.
    path: Option<PathBuf>,
    mailboxes: BTreeMap<u32, Pending>,
    /// End of the pause after the server could not be reached.
    pause: Option<(Deadline, Duration)>,
    /// The user of the latest attempt. The next round begins after this user, so that none is left out.
    latest: u32,
    is_saved: bool,
}

/// What is to be sent to one user.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Pending {
    user: Option<String>,
    /// Time of the last message since the epoch.
    last: Option<Duration>,
    notices: Vec<Waiting>,
    #[serde(skip)]
    due: Option<Deadline>,
    /// Pause after the latest attempt failed, twice as long as the one before.
    #[serde(skip)]
    pause: Duration,
}

/// A notification that was not delivered yet.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Waiting {
    /// Time of the notification since the epoch.
    at: Duration,
    step: String,
    rule: String,
    text: String,
    part: Part,
    subject: Arc<Subject>,
    mode: Mode,
}

/// Returns whether a text is a mail address, with or without a name.
pub(crate) fn is_address(text: &str) -> bool {
    text.parse::<Mailbox>().is_ok()
}

/// Settings of the channels, and whether the enforcer is shutting down.
pub(super) type Setting<'a> = (&'a NoticeSettings, &'a AtomicBool);
/// Result of a notification.
pub(super) type Report<'a> = dyn FnMut(Arc<Notice>, Result<(), (Delivered, String)>) + 'a;

impl Outbox {
    /// Reads what an earlier run did not deliver.
    pub(super) fn open(path: Option<PathBuf>) -> Self {
        let mailboxes = path.as_deref().map_or_else(|| Ok(BTreeMap::new()), saved).unwrap_or_else(|error| {
            if error.kind() != ErrorKind::NotFound {
                tracing::error!(?path, %error, "cannot read the mail that was not delivered yet; it is lost");
            }
            BTreeMap::new()
        });
        Self { path, mailboxes, pause: None, latest: 0, is_saved: true }
    }

    /// Adds a notification, in place of an earlier one of the same step about the same target.
    pub(super) fn add(&mut self, notice: Arc<Notice>, report: &mut Report<'_>) {
        let Some(uid) = notice.uid else {
            let why = "the target has no owner, or several".to_owned();
            report(notice, Err((Delivered::Failed, why)));
            return;
        };
        let all: usize = self.mailboxes.values().map(|pending| pending.notices.len()).sum();
        let pending = self.mailboxes.entry(uid).or_default();
        let is_same = |other: &&Waiting| {
            (&other.rule, &other.step, &other.subject.id) == (&notice.rule, &notice.step, &notice.about.0.id)
        };
        // The time of the first one counts, so that it is given up some day.
        let first = pending.notices.iter().find(is_same).map(|other| other.at);
        let own = pending.notices.len();
        let is_new = first.is_none();
        if is_new && (own >= MOST_OF_ONE || all >= MOST_OF_ALL && !self.drop_one((own, &notice.node), report))
        {
            report(notice, Err(too_much()));
            return;
        }
        let pending = self.mailboxes.entry(uid).or_default();
        // A lease has the name that its holder gave.
        let is_known = notice.about.0.kind != Kind::Lease;
        pending.user = notice.user.clone().filter(|_| is_known).or(pending.user.take());
        pending.notices.retain(|other| !is_same(&other));
        let waiting = Waiting::from(&*notice);
        pending.notices.push(Waiting { at: first.unwrap_or(waiting.at), ..waiting });
        self.is_saved = false;
    }

    /// Drops the latest notification of the user with the most, if there are more than these. Returns whether that was
    /// possible: the mail of many users must not displace that of another.
    fn drop_one(&mut self, (own, node): (usize, &str), report: &mut Report<'_>) -> bool {
        let most = self.mailboxes.values_mut().max_by_key(|pending| pending.notices.len());
        let most = most.filter(|pending| pending.notices.len() > own);
        let dropped = most.and_then(|pending| pending.notices.pop());
        let Some(dropped) = dropped else { return false };
        report(dropped.notice(node), Err(too_much()));
        true
    }

    /// Returns the time until the next message is due; `None` if there is none.
    pub(super) fn wait(&mut self, mail: &Mail) -> Option<Duration> {
        let pause = self.pause.map(|(until, _)| until.left()).unwrap_or_default();
        let waiting = self.mailboxes.values_mut().filter(|pending| !pending.notices.is_empty());
        waiting.map(|pending| pending.due(mail).left().max(pause)).min()
    }

    /// Saves what was not delivered, and when the latest messages were sent.
    pub(super) fn save(&mut self, every: Duration) {
        if let Some(path) = self.path.as_ref().filter(|_| !self.is_saved) {
            let wall = now().wall;
            let is_recent = |last: Duration| wall.saturating_sub(last) < every;
            self.mailboxes
                .retain(|_, pending| !pending.notices.is_empty() || pending.last.is_some_and(is_recent));
            let bytes = serde_json::to_vec(&self.mailboxes).unwrap_or_default();
            if let Err(error) = disk::replace(path, &bytes) {
                let path = path.display();
                tracing::error!(%path, %error, "cannot save the mail that was not delivered yet");
            }
        }
        self.is_saved = true;
    }

    /// Sends the messages that are due.
    pub(super) fn send_due(
        &mut self,
        mail: &Mail,
        (settings, stopped): Setting<'_>,
        report: &mut Report<'_>,
    ) {
        let is_due = |(uid, pending): (&u32, &mut Pending)| {
            (!pending.notices.is_empty() && pending.due(mail).passed()).then_some(*uid)
        };
        let mut due: Vec<u32> = self.mailboxes.iter_mut().filter_map(is_due).collect();
        let after = due.partition_point(|uid| *uid <= self.latest);
        due.rotate_left(after);
        for uid in due {
            if self.pause.is_some_and(|(until, _)| !until.passed()) || stopped.load(Ordering::Relaxed) {
                break;
            }
            self.latest = uid;
            let Some(pending) = self.mailboxes.get_mut(&uid) else { continue };
            let result = pending.send((mail, uid), (settings, stopped));
            if let Err(error) = &result {
                tracing::warn!(uid, why = error.why(), "a mail was not sent");
            }
            pending.finish(&result, settings, report);
            self.pause = match result {
                Ok(()) => None,
                Err(MailError::Server(_)) => {
                    let longer = |(_, pause): (Deadline, Duration)| (pause * 2).min(LONGEST_PAUSE);
                    let pause = self.pause.map_or(settings.mail_pause, longer);
                    Some((Deadline::after(pause), pause))
                }
                // Another user's message may be accepted.
                Err(MailError::Later(_) | MailError::Never(_)) => self.pause,
            };
            self.is_saved = false;
            // At once, so that a crash does not send it again.
            self.save(mail.every);
        }
    }
}

fn too_much() -> (Delivered, String) {
    (Delivered::Dropped, "too much mail waits".to_owned())
}

fn saved(path: &Path) -> std::io::Result<BTreeMap<u32, Pending>> {
    let (_, bytes) = file::read(path, LARGEST_FILE)?;
    Ok(serde_json::from_slice(&bytes)?)
}

impl Pending {
    /// Returns when the next message may be sent.
    fn due(&mut self, mail: &Mail) -> Deadline {
        let last = self.last;
        *self.due.get_or_insert_with(|| {
            // If the clock was set back, the last message seems to be later than now.
            let since = last.map(|last| now().wall.saturating_sub(last));
            let left = since.map(|since| mail.every.saturating_sub(since)).unwrap_or_default();
            Deadline::after(left.max(TOGETHER))
        })
    }

    fn send(&self, (mail, uid): (&Mail, u32), (settings, stopped): Setting<'_>) -> Result<(), MailError> {
        let never = |why: String| MailError::Never(why);
        let node = settings.node.as_str();
        let account = || account(uid, settings);
        let user = self.user.clone().map_or_else(|| account().map(|[name, _]| name), Ok)?;
        let to = match &mail.to {
            Recipient::Address(template) => template.replace(USER, &user).parse().ok(),
            Recipient::Gecos => address_in(&account()?[1]),
            Recipient::Program(argv) => {
                let argv = [argv.as_slice(), std::slice::from_ref(&user)].concat();
                address_in(&program(&argv, settings)?)
            }
        };
        let to = to.ok_or_else(|| never(format!("user {user} has no valid mail address")))?;
        let parts = self.notices.iter().map(|waiting| &waiting.part);
        let variables = message::Variables::of((node, &user), parts);
        let subject = message::subject(mail.subject.as_deref(), &variables).map_err(never)?;
        let body = message::body(mail.body.as_deref(), &variables).map_err(never)?;
        let from: Mailbox =
            mail.from.parse().map_err(|error| never(format!("the sender's address: {error}")))?;
        let id = format!("<{}.{uid}@{}>", now().wall.as_millis(), from.email.domain());
        let message = Message::builder()
            .message_id(Some(id))
            .from(from)
            .to(Mailbox::new(None, to))
            .subject(subject)
            .header(AutoSubmitted)
            .header(ContentType::TEXT_PLAIN)
            .body(body)
            .map_err(|error| never(error.to_string()))?;
        deliver((mail, node), &message, stopped)
    }

    /// Reports the result of an attempt, and keeps what will be tried again.
    fn finish(&mut self, result: &Result<(), MailError>, settings: &NoticeSettings, report: &mut Report<'_>) {
        let wall = now().wall;
        self.due = None;
        match result {
            Ok(()) => (self.last, self.pause) = (Some(wall), Duration::ZERO),
            Err(MailError::Server(_)) => {}
            Err(MailError::Later(_) | MailError::Never(_)) => {
                self.pause = (self.pause * 2).clamp(settings.mail_pause, LONGEST_PAUSE);
                self.due = Some(Deadline::after(self.pause));
            }
        }
        let is_final = matches!(result, Ok(()) | Err(MailError::Never(_)));
        for waiting in std::mem::take(&mut self.notices) {
            let keeps = !is_final && wall.saturating_sub(waiting.at) < GIVEN_UP;
            let outcome = if keeps { Delivered::Deferred } else { Delivered::Failed };
            let result = result.as_ref().copied().map_err(|error| (outcome, error.why().to_owned()));
            report(waiting.notice(&settings.node), result);
            if keeps {
                self.notices.push(waiting);
            }
        }
    }
}

impl From<&Notice> for Waiting {
    fn from(notice: &Notice) -> Self {
        Self {
            at: notice.when.duration_since(UNIX_EPOCH).unwrap_or_default(),
            step: notice.step.clone(),
            rule: notice.rule.clone(),
            text: notice.text.clone(),
            part: notice.part.clone(),
            subject: Arc::new(Subject {
                members: notice.about.0.members.iter().take(MOST_MEMBERS).cloned().collect(),
                ..(*notice.about.0).clone()
            }),
            mode: notice.about.1,
        }
    }
}

impl Waiting {
    /// Returns the notification, for the report of its delivery.
    fn notice(&self, node: &str) -> Arc<Notice> {
        let subject = &self.subject;
        Arc::new(Notice {
            text: self.text.clone(),
            node: node.to_owned(),
            rule: self.rule.clone(),
            step: self.step.clone(),
            target: subject.id.to_string(),
            user: subject.user.clone(),
            uid: subject.uid,
            gpus: subject.gpus.clone(),
            members: subject.members.clone(),
            evidence: None,
            when: UNIX_EPOCH + self.at,
            part: self.part.clone(),
            outcome: None,
            about: (Arc::clone(subject), self.mode),
        })
    }
}

/// Returns the name and the GECOS field of a user, which the user may have written.
fn account(uid: u32, settings: &NoticeSettings) -> Result<[String; 2], MailError> {
    let argv = [GETENT.to_owned(), "passwd".to_owned(), uid.to_string()];
    let line = program(&argv, settings)?;
    let mut fields = line.split(':');
    let (name, gecos) = (fields.next().unwrap_or_default(), fields.nth(3).unwrap_or_default());
    Ok([name, gecos].map(str::to_owned))
}

fn program(argv: &[String], settings: &NoticeSettings) -> Result<String, MailError> {
    program_output(argv, (settings.program, settings.permissions))
        .map_err(|why| MailError::Later(format!("{}: {why}", argv.join(" "))))
}

/// Returns the first mail address in a text. A GECOS field has several parts.
fn address_in(text: &str) -> Option<Address> {
    let mut words = text.split([',', ';', ' ', '<', '>', '\n']).filter(|word| word.contains('@'));
    words.next().and_then(|word| word.parse().ok())
}

/// Tells mail programs not to reply automatically (RFC 3834).
#[derive(Debug, Clone, Copy)]
struct AutoSubmitted;

impl Header for AutoSubmitted {
    fn name() -> HeaderName {
        HeaderName::new_from_ascii_str("Auto-Submitted")
    }

    fn parse(_: &str) -> Result<Self, Box<dyn std::error::Error + Send + Sync>> {
        Ok(Self)
    }

    fn display(&self) -> HeaderValue {
        HeaderValue::new(Self::name(), "auto-generated".to_owned())
    }
}
