//! Texts of messages, from templates. Names of processes and rules come from others, so no control character or mark
//! that changes the direction of text passes.

use minijinja::value::Serde;
use minijinja::{Environment, UndefinedBehavior};
use serde::{Deserialize, Serialize};

/// Default subject.
const SUBJECT: &str = "{% if notices|length + omitted == 1 %}{{ notices[0].what|capitalize }} on {{ node }}: {{ notices[0].short }}\
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
    /// A few words for a subject: `idle, will be terminated in about 10m`.
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
    let part = Part { since: Some(String::new()), keep: Some(String::new()), ..Part::default() };
    render(template, &Variables { node: "node", user: "user", notices: vec![&part], omitted: 0 }).map(drop)
}

/// Returns a subject in one line.
pub(super) fn subject(template: Option<&str>, variables: &Variables<'_>) -> Result<String, String> {
    let text = render(template.unwrap_or(SUBJECT), variables)?;
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    Ok(plain(&text).chars().take(LONGEST_SUBJECT).collect())
}

/// Returns the text of a message.
pub(super) fn body(template: Option<&str>, variables: &Variables<'_>) -> Result<String, String> {
    let text = render(template.unwrap_or(BODY), variables)?;
    Ok(text.lines().map(|line| plain(line) + "\r\n").collect())
}

fn render(template: &str, variables: &Variables<'_>) -> Result<String, String> {
    let mut environment = Environment::new();
    environment.set_undefined_behavior(UndefinedBehavior::Strict);
    environment.render_str(template, Serde(variables)).map_err(|error| error.to_string())
}

/// Escapes control characters and marks that change the direction of text.
fn plain(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '"' | '\'' | '\\' | '\t' => plain.push(character),
            other => plain.extend(other.escape_debug()),
        }
    }
    plain
}
