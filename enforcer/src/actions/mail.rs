//! Mail to the owners of targets. Notifications that come together share a message, and a recipient gets at most one
//! message in each `every`. What was not delivered is kept in a file, so that a restart loses nothing and sends nothing
//! twice.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::{Duration, UNIX_EPOCH};

use bailiff_engine::Kind;
use bailiff_engine::policy::Mode;
use bailiff_engine::policy::mail::{Encryption, Mail, Recipient, USER};
use bailiff_engine::verdict::Subject;
use bailiff_lifecycle::file;
use lettre::address::Address;
use lettre::message::header::{ContentType, Header, HeaderName, HeaderValue};
use lettre::message::{Mailbox, Message};
use lettre::transport::smtp::authentication::Credentials;
use lettre::transport::smtp::client::{Tls, TlsParameters};
use lettre::transport::smtp::extension::ClientId;
use lettre::{SmtpTransport, Transport};
use serde::{Deserialize, Serialize};

use super::exec::program_output;
use super::message::{self, Delivered, Notice, NoticeSettings, Part};
use crate::clock::{Deadline, now};
use crate::disk;

/// Notifications that come within this time share a message.
const TOGETHER: Duration = Duration::from_secs(2);
/// Longest pause between attempts, of which each is twice as long as the one before.
const LONGEST_PAUSE: Duration = Duration::from_mins(30);
/// A notification that could not be delivered for this time has failed.
const GIVEN_UP: Duration = Duration::from_hours(24);
/// Time limit of each read from and write to the server, and of a whole message.
const ANSWER: Duration = Duration::from_secs(10);
const WHOLE: Duration = Duration::from_secs(30);
/// How often a shutdown is checked meanwhile.
const CHECK: Duration = Duration::from_millis(200);
/// Maximum size of the file with the password, in bytes.
const MOST: u64 = 4096;
const GETENT: &str = "/usr/bin/getent";

/// Maximum number of notifications that wait for a user, and for all users. Further ones are dropped.
const MOST_OF_ONE: usize = 1000;
const MOST_OF_ALL: usize = 20_000;
/// Maximum number of a target's processes that are kept for the report of the delivery.
const MOST_MEMBERS: usize = 4;
/// Maximum size of the file.
const LARGEST_FILE: u64 = 256 << 20;

/// Why a message was not sent.
#[derive(Debug, Clone, PartialEq, Eq)]
enum MailError {
    /// The server cannot be reached, so no message can be sent.
    Server(String),
    /// This message may be accepted later.
    Later(String),
    /// It will not be accepted.
    Never(String),
}

impl MailError {
    fn why(&self) -> &str {
        let (Self::Server(why) | Self::Later(why) | Self::Never(why)) = self;
        why
    }
}

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
        if first.is_none() && (pending.notices.len() >= MOST_OF_ONE || all >= MOST_OF_ALL) {
            report(notice, Err((Delivered::Dropped, "too much mail waits".to_owned())));
            return;
        }
        // A lease has the name that its holder gave.
        let is_known = notice.about.0.kind != Kind::Lease;
        pending.user = notice.user.clone().filter(|_| is_known).or(pending.user.take());
        pending.notices.retain(|other| !is_same(&other));
        let waiting = Waiting::from(&*notice);
        pending.notices.push(Waiting { at: first.unwrap_or(waiting.at), ..waiting });
        self.is_saved = false;
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
        deliver(transport(mail, node)?, message, stopped)
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

fn transport(mail: &Mail, node: &str) -> Result<SmtpTransport, MailError> {
    let error = |why: String| MailError::Server(why);
    let parameters =
        || TlsParameters::new_rustls(mail.host.clone()).map_err(|why| error(format!("TLS: {why}")));
    let tls = match mail.encryption {
        Encryption::StartTls => Tls::Required(parameters()?),
        Encryption::Tls => Tls::Wrapper(parameters()?),
        Encryption::None => Tls::None,
    };
    let mut builder = SmtpTransport::builder_dangerous(&mail.host)
        .port(mail.port)
        .tls(tls)
        .timeout(Some(ANSWER))
        .hello_name(ClientId::Domain(node.to_owned()));
    if let Some((user, path)) = &mail.login {
        let password = file::first_line(path, MOST).ok().flatten();
        let password = password.ok_or_else(|| error("cannot read the file with the password".to_owned()))?;
        builder = builder.credentials(Credentials::new(user.clone(), password));
    }
    Ok(builder.build())
}

/// Sends a message in a thread of its own, because a server can make it last as long as it likes.
fn deliver(transport: SmtpTransport, message: Message, stopped: &AtomicBool) -> Result<(), MailError> {
    let later = |why: &str| Err(MailError::Later(why.to_owned()));
    let (sender, result) = sync_channel(1);
    let thread = std::thread::Builder::new().name("mail".to_owned());
    let send = move || drop(sender.send(transport.send(&message)));
    thread.spawn(send).map_err(|error| MailError::Later(error.to_string()))?;
    let deadline = Deadline::after(WHOLE);
    loop {
        match result.recv_timeout(deadline.left().min(CHECK)) {
            Ok(Ok(_)) => return Ok(()),
            Ok(Err(error)) if error.is_permanent() || error.is_client() => {
                return Err(MailError::Never(format!("the server refused it: {error}")));
            }
            // What the server needs time for may depend on the recipient.
            Ok(Err(error)) if error.is_transient() || error.is_timeout() => return later(&error.to_string()),
            Ok(Err(error)) => return Err(MailError::Server(error.to_string())),
            Err(RecvTimeoutError::Disconnected) => return later("its thread ended"),
            Err(RecvTimeoutError::Timeout) if deadline.passed() => {
                return later("the server did not respond in time");
            }
            Err(RecvTimeoutError::Timeout) if stopped.load(Ordering::Relaxed) => {
                return later("the enforcer is shutting down");
            }
            Err(RecvTimeoutError::Timeout) => {}
        }
    }
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
