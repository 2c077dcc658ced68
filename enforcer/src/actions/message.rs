//! Notifications, and the texts of messages, from templates. Names of processes and rules come from others, so no control
//! character or mark that changes the direction of text passes.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bailiff_engine::policy::Mode;
use bailiff_engine::verdict::{Evidence, Member, Outcome, Subject};
use bailiff_lifecycle::permissions::FilePermissions;
use minijinja::value::Serde;
use minijinja::{Environment, UndefinedBehavior};
use serde::{Deserialize, Serialize, Serializer};

/// Maximum length of a text in bytes; longer texts are cut, because terminals and chats show no more.
const MOST_TEXT: usize = 1000;
/// Default subject.
const SUBJECT: &str = "{% if notices|length + omitted == 1 %}{{ notices[0].what[:1]|upper }}{{ notices[0].what[1:] }} on {{ node }}: {{ notices[0].short }}\
                       {% else %}{{ notices|length + omitted }} notices about your GPU memory on {{ node }}{% endif %}";
/// Default text.
const BODY: &str = include_str!("message.txt");
/// Maximum length of a subject in characters.
const LONGEST_SUBJECT: usize = 200;
/// Maximum number of notices in a message; more are only counted.
const MOST: usize = 50;

/// Parts of a notification, for templates.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    /// What it is about: `your process (python3, pid 42)`.
    pub what: String,
    /// A few words for a subject: `will be terminated in about 10m`.
    pub short: String,
    /// What was observed, with the GPU memory.
    pub found: String,
    /// Since when, as a time and a duration; `None` after an action.
    pub since: Option<String>,
    /// What will happen, or has happened, and when.
    pub next: String,
    /// How the owner can prevent it; `None` if it cannot be prevented any more.
    pub keep: Option<String>,
    /// Rule.
    pub rule: String,
    /// GPUs, by UUID.
    pub gpus: Vec<String>,
    /// Notebook that the environment of the named process names; `None` if it is unknown. The user can choose any text.
    pub notebook: Option<String>,
}

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
    /// Result of the action that it is about.
    #[serde(skip)]
    pub outcome: Option<Outcome>,
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

/// Variables of a template.
#[derive(Debug, Serialize)]
pub(super) struct Variables<'a> {
    /// Name of the node.
    pub node: &'a str,
    /// Name of the user.
    pub user: &'a str,
    /// The notifications, up to a maximum.
    pub notices: Vec<&'a Part>,
    /// Number of further notifications.
    pub omitted: usize,
}

impl<'a> Variables<'a> {
    /// Returns the variables of a message with these notifications.
    pub(super) fn of(
        (node, user): (&'a str, &'a str),
        notices: impl ExactSizeIterator<Item = &'a Part>,
    ) -> Self {
        let omitted = notices.len().saturating_sub(MOST);
        Self { node, user, notices: notices.take(MOST).collect(), omitted }
    }
}

/// Returns whether a template is valid: it must be rendered without an error.
///
/// # Errors
/// Why it is not.
pub(crate) fn check(template: &str) -> Result<(), String> {
    let text = || Some(String::new());
    let part = Part { since: text(), keep: text(), notebook: text(), ..Part::default() };
    let variables = Variables { node: "node", user: "user", notices: vec![&part], omitted: 0 };
    render(Environment::new(), template, variables).map(drop)
}

/// Returns a subject in one line.
pub(super) fn subject(template: Option<&str>, variables: &Variables<'_>) -> Result<String, String> {
    let text = render(Environment::new(), template.unwrap_or(SUBJECT), variables)?;
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    Ok(plain(&text).chars().take(LONGEST_SUBJECT).collect())
}

/// Returns the text of a message.
pub(super) fn body(template: Option<&str>, variables: &Variables<'_>) -> Result<String, String> {
    let text = render(Environment::new(), template.unwrap_or(BODY), variables)?;
    Ok(text.lines().map(|line| plain(line) + "\r\n").collect())
}

/// Renders a template. The error has its line.
pub(super) fn render(
    mut environment: Environment<'_>,
    template: &str,
    variables: impl Serialize,
) -> Result<String, String> {
    environment.set_undefined_behavior(UndefinedBehavior::Strict);
    environment.render_str(template, Serde(variables)).map_err(|error| {
        let line = error.line().map(|line| format!(" (line {line} of the template)")).unwrap_or_default();
        let detail = error.detail().map(|detail| format!(": {detail}")).unwrap_or_default();
        format!("{}{detail}{line}", error.kind())
    })
}

/// Escapes control characters and marks that change the direction of text.
pub(super) fn plain(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '"' | '\'' | '\\' | '\t' => plain.push(character),
            other => plain.extend(other.escape_debug()),
        }
    }
    plain
}

pub(super) fn cut(text: &str) -> &str {
    let end = text.char_indices().map(|(at, _)| at).take_while(|at| *at <= MOST_TEXT).last();
    if text.len() > MOST_TEXT { text.get(..end.unwrap_or_default()).unwrap_or_default() } else { text }
}

/// Replaces what makes chat tools turn an address into a link.
pub(super) fn unlinked(text: &str) -> String {
    let mut unlinked = String::with_capacity(text.len());
    for letter in text.replace("://", "：//").chars() {
        // Also `WWW.` and `www2.` begin an address.
        let host = unlinked.trim_end_matches(|letter: char| letter.is_ascii_digit());
        let is_address = letter == '.' && host.to_ascii_lowercase().ends_with("www");
        unlinked.push(if is_address { '．' } else { letter });
    }
    unlinked
}

/// Serializes one line for chat tools: a process name cannot mention users, add a link or reverse the text.
fn calm<S: Serializer>(text: &str, to: S) -> Result<S::Ok, S::Error> {
    let mut calm = String::new();
    for character in unlinked(cut(text)).chars() {
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

pub(super) fn time<S: Serializer>(when: &SystemTime, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(&humantime::format_rfc3339_millis(*when))
}
