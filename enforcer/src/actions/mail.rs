//! Mail to the owners of targets. Notifications that come together share a message, and a recipient gets at most one
//! message in each `every`. What was not delivered is kept in a file, so that a restart loses nothing and sends nothing
//! twice.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::{Duration, UNIX_EPOCH};

use bailiff_engine::policy::Mode;
use bailiff_engine::policy::mail::{Encryption, Mail, Recipient, USER};
use bailiff_engine::verdict::Subject;
use bailiff_lifecycle::file;
use lettre::address::Address;
use lettre::message::header::ContentType;
use lettre::message::{Mailbox, Message};
use lettre::transport::smtp::authentication::Credentials;
use lettre::transport::smtp::client::{Tls, TlsParameters};
use lettre::transport::smtp::extension::ClientId;
use lettre::{SmtpTransport, Transport};
use serde::{Deserialize, Serialize};

use super::exec::program_output;
use super::message::{self, Part};
use super::notices::{Delivered, Notice, NoticeSettings};
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

/// Why a message was not sent.
#[derive(Debug, Clone, PartialEq, Eq)]
enum MailError {
    /// The server may accept it later.
    Later(String),
    /// It will not be accepted.
    Never(String),
}

/// What is to be sent on one channel.
#[derive(Debug)]
pub(super) struct Outbox {
    /// The file; `None` to keep nothing over a restart.
    path: Option<PathBuf>,
    mailboxes: BTreeMap<u32, Pending>,
    /// End of the pause after the server did not accept a message.
    pause: Option<(Deadline, Duration)>,
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
        let read = path.as_ref().and_then(|path| file::read(path, 1 << 30).ok());
        let mailboxes = read.and_then(|(_, bytes)| serde_json::from_slice(&bytes).ok()).unwrap_or_default();
        Self { path, mailboxes, pause: None, is_saved: true }
    }

    /// Adds a notification, in place of an earlier one of the same step about the same target.
    pub(super) fn add(&mut self, notice: Arc<Notice>, report: &mut Report<'_>) {
        let Some(uid) = notice.uid else {
            let why = "the target has no owner, or several".to_owned();
            report(notice, Err((Delivered::Failed, why)));
            return;
        };
        let pending = self.mailboxes.entry(uid).or_default();
        pending.user.clone_from(&notice.user);
        let is_same = |other: &Waiting| {
            (&other.rule, &other.step, &other.subject.id) == (&notice.rule, &notice.step, &notice.about.0.id)
        };
        pending.notices.retain(|other| !is_same(other));
        pending.notices.push(Waiting::from(&*notice));
        self.is_saved = false;
    }

    /// Returns the time until the next message is due; `None` if there is none.
    pub(super) fn wait(&mut self, mail: &Mail) -> Option<Duration> {
        let pause = self.pause.map(|(until, _)| until.left()).unwrap_or_default();
        let waiting = self.mailboxes.values_mut().filter(|pending| !pending.notices.is_empty());
        waiting.map(|pending| pending.due(mail).left().max(pause)).min()
    }

    /// Saves what was not delivered.
    pub(super) fn save(&mut self) {
        if let Some(path) = self.path.as_ref().filter(|_| !self.is_saved) {
            let wall = now().wall;
            let is_needed = |pending: &Pending| {
                let is_recent = |last: Duration| wall.saturating_sub(last) < GIVEN_UP;
                !pending.notices.is_empty() || pending.last.is_some_and(is_recent)
            };
            self.mailboxes.retain(|_, pending| is_needed(pending));
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
        let node = settings.node.as_str();
        let due: Vec<u32> = self
            .mailboxes
            .iter_mut()
            .filter_map(|(uid, pending)| {
                (!pending.notices.is_empty() && pending.due(mail).passed()).then_some(*uid)
            })
            .collect();
        for uid in due {
            if self.pause.is_some_and(|(until, _)| !until.passed()) {
                break;
            }
            let Some(pending) = self.mailboxes.get_mut(&uid) else { continue };
            let result = pending.send((mail, node, uid), (settings, stopped));
            let later = match result {
                Ok(()) => {
                    self.pause = None;
                    pending.last = Some(now().wall);
                    None
                }
                Err(MailError::Later(_)) => {
                    let pause =
                        self.pause.map_or(settings.mail_pause, |(_, pause)| (pause * 2).min(LONGEST_PAUSE));
                    self.pause = Some((Deadline::after(pause), pause));
                    Some(GIVEN_UP)
                }
                Err(MailError::Never(_)) => None,
            };
            pending.due = None;
            let result = result.map_err(|(MailError::Later(why) | MailError::Never(why))| why);
            let wall = now().wall;
            for waiting in std::mem::take(&mut pending.notices) {
                let keeps = later.is_some_and(|at_most| wall.saturating_sub(waiting.at) < at_most);
                let outcome = if keeps { Delivered::Deferred } else { Delivered::Failed };
                report(waiting.notice(node), result.clone().map_err(|why| (outcome, why)));
                if keeps {
                    pending.notices.push(waiting);
                }
            }
            self.is_saved = false;
            // At once, so that a crash does not send it again.
            self.save();
        }
    }
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

    fn send(
        &self,
        (mail, node, uid): (&Mail, &str, u32),
        (settings, stopped): Setting<'_>,
    ) -> Result<(), MailError> {
        let never = |why: String| MailError::Never(why);
        let user = self.user.clone().unwrap_or_else(|| uid.to_string());
        let to = recipient(&mail.to, (&user, uid), settings)?;
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
}

impl From<&Notice> for Waiting {
    fn from(notice: &Notice) -> Self {
        Self {
            at: notice.when.duration_since(UNIX_EPOCH).unwrap_or_default(),
            step: notice.step.clone(),
            rule: notice.rule.clone(),
            text: notice.text.clone(),
            part: notice.part.clone(),
            subject: Arc::clone(&notice.about.0),
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

/// Returns the address of a user.
fn recipient(
    to: &Recipient,
    (user, uid): (&str, u32),
    settings: &NoticeSettings,
) -> Result<Address, MailError> {
    let never = || MailError::Never(format!("user {user} has no valid mail address"));
    let program = match to {
        Recipient::Address(template) => return template.replace(USER, user).parse().map_err(|_| never()),
        Recipient::Gecos => vec![GETENT.to_owned(), "passwd".to_owned(), uid.to_string()],
        Recipient::Program(argv) => [argv.as_slice(), &[user.to_owned()]].concat(),
    };
    let text = program_output(&program, (settings.program, settings.permissions))
        .map_err(|why| MailError::Later(format!("the address of user {user} is unknown: {why}")))?;
    let text = if *to == Recipient::Gecos { text.split(':').nth(4).unwrap_or_default() } else { &text };
    // A GECOS field has several parts.
    let mut words = text.split([',', ';', ' ', '<', '>', '\n']).filter(|word| word.contains('@'));
    words.next().and_then(|word| word.parse().ok()).ok_or_else(never)
}

fn transport(mail: &Mail, node: &str) -> Result<SmtpTransport, MailError> {
    let later = |why: String| MailError::Later(why);
    let parameters =
        || TlsParameters::new_rustls(mail.host.clone()).map_err(|error| later(format!("TLS: {error}")));
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
        let password = password.ok_or_else(|| later("cannot read the file with the password".to_owned()))?;
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
            Ok(Err(error)) if error.is_permanent() => {
                return Err(MailError::Never(format!("the server refused it: {error}")));
            }
            Ok(Err(error)) => return later(&error.to_string()),
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

impl lettre::message::header::Header for AutoSubmitted {
    fn name() -> lettre::message::header::HeaderName {
        lettre::message::header::HeaderName::new_from_ascii_str("Auto-Submitted")
    }

    fn parse(_: &str) -> Result<Self, Box<dyn std::error::Error + Send + Sync>> {
        Ok(Self)
    }

    fn display(&self) -> lettre::message::header::HeaderValue {
        lettre::message::header::HeaderValue::new(Self::name(), "auto-generated".to_owned())
    }
}
