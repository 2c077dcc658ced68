//! Bodies of webhooks, from templates. A value can only be a part of a string, so it cannot change the structure of the
//! body; characters with which it could mention users or add a link are replaced.

use std::path::Path;
use std::str::Split;
use std::time::{SystemTime, UNIX_EPOCH};

use bailiff_engine::Kind;
use bailiff_engine::policy::Mode;
use bailiff_engine::policy::webhook::{Format, Webhook};
use bailiff_engine::verdict::Subject;
use bailiff_engine::view::TargetId;
use bailiff_lifecycle::file;
use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use minijinja::value::{Value as Inserted, ValueKind};
use minijinja::{Environment, Error, ErrorKind, Output};
use serde::Serialize;
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::message::{Notice, Part, plain, render, time, unlinked};
use crate::audit;

/// Precedes each inserted text, so that a text outside of a string is an error, and one in the name of a key is found. It
/// is a noncharacter, which no inserted text contains because it is escaped there.
const MARK: char = '\u{fdd0}';
/// Maximum length of an inserted text in characters.
const MOST_TEXT: usize = 1000;
/// Maximum size of a file with a routing key, in bytes.
const MOST_KEY: u64 = 4096;

/// What the API of a server takes.
struct Api {
    /// Template of the body; empty for the notification itself.
    body: &'static str,
    /// Characters that are replaced in inserted texts.
    replaced: &'static [(char, &'static str)],
    /// Paths of strings in the body, and their maximum length in characters. `*` stands for each item of a list.
    limits: &'static [(&'static str, usize)],
    /// Maximum size of the body in bytes.
    most: usize,
}

/// Without a format that says more: characters of mentions and HTML. Some servers pass texts on to chats.
const PLAIN: &[(char, &str)] = &[('<', "‹"), ('>', "›"), ('@', "＠")];
/// Slack parses `<…>` and entities, and its mrkdwn has no escape for the others
/// (<https://docs.slack.dev/messaging/formatting-message-text>).
const MRKDWN: &[(char, &str)] =
    &[('&', "&amp;"), ('<', "&lt;"), ('>', "&gt;"), ('@', "＠"), ('*', "∗"), ('~', "∼"), ('`', "ˋ")];
/// Characters of links, images, code, entities and escapes in Markdown. Not all servers support backslash escapes, and
/// Mattermost looks for mentions after it has resolved them.
const MARKDOWN: &[(char, &str)] = &[
    ('<', "‹"),
    ('>', "›"),
    ('@', "＠"),
    ('&', "＆"),
    ('[', "［"),
    (']', "］"),
    ('*', "∗"),
    ('~', "∼"),
    ('`', "ˋ"),
    ('\\', "＼"),
];
/// Maximum size if the server documents none; that of `PagerDuty`'s events.
const LARGE: usize = 512_000;

const JSON: Api = Api { body: "", replaced: PLAIN, limits: &[], most: usize::MAX };

/// Limits: <https://docs.slack.dev/reference/block-kit/blocks/section-block>, and `chat.postMessage` for the text. With
/// `verbatim`, Slack turns no URL or name into a link.
const SLACK: Api = Api {
    body: r#"{
  "text": "GPU Bailiff on {{ node }}: {{ notice.what }}: {{ notice.short }}",
  "mrkdwn": false,
  "blocks": [{"type": "section", "text": {"type": "mrkdwn", "verbatim": true, "text": "*GPU Bailiff on {{ node }}: {{ notice.what }}: {{ notice.short }}*
    {%- if notice.notebook %}\n*Notebook:* {{ notice.notebook }}{% endif %}\n*Observed:* {{ notice.found }}
    {%- if notice.since %}\n*Since:* {{ notice.since }}{% endif %}\n*Next:* {{ notice.next }}
    {%- if notice.keep %}\n*To keep it:* {{ notice.keep }}{% endif %}\n*Rule:* {{ notice.rule }}
    {%- if user %}\n*User:* {{ user }}{% endif %}"}}]
}"#,
    replaced: MRKDWN,
    limits: &[("text", 4000), ("blocks/*/text/text", 3000), ("blocks/*/fields/*/text", 2000)],
    most: LARGE,
};

/// Limit: `PostMessageMaxRunesV2` in `server/public/model/post.go` of mattermost/mattermost. `<…>` has a meaning, too, for
/// compatibility with Slack.
const MATTERMOST: Api = Api {
    body: r#"{"text": "**GPU Bailiff on {{ node }}: {{ notice.what }}: {{ notice.short }}**
    {%- if notice.notebook %}\n**Notebook:** {{ notice.notebook }}{% endif %}\n**Observed:** {{ notice.found }}
    {%- if notice.since %}\n**Since:** {{ notice.since }}{% endif %}\n**Next:** {{ notice.next }}
    {%- if notice.keep %}\n**To keep it:** {{ notice.keep }}{% endif %}\n**Rule:** {{ notice.rule }}
    {%- if user %}\n**User:** {{ user }}{% endif %}"}"#,
    replaced: MARKDOWN,
    limits: &[("text", 16_383)],
    most: LARGE,
};

/// Form and size: <https://learn.microsoft.com/connectors/teams/>, a message of about 28 KB. The limits of strings keep
/// the default body below that, whatever its characters are.
const TEAMS: Api = Api {
    body: r#"{"type": "message", "attachments": [{
  "contentType": "application/vnd.microsoft.card.adaptive",
  "contentUrl": null,
  "content": {
    "$schema": "http://adaptivecards.io/schemas/adaptive-card.json",
    "type": "AdaptiveCard",
    "version": "1.2",
    "body": [
      {"type": "TextBlock", "wrap": true, "weight": "bolder", "text": "GPU Bailiff on {{ node }}: {{ notice.what }}: {{ notice.short }}"},
      {"type": "FactSet", "facts": [
        {%- if notice.notebook %}{"title": "Notebook", "value": "{{ notice.notebook }}"},{% endif %}
        {"title": "Observed", "value": "{{ notice.found }}"},
        {%- if notice.since %}{"title": "Since", "value": "{{ notice.since }}"},{% endif %}
        {"title": "Next", "value": "{{ notice.next }}"},
        {%- if notice.keep %}{"title": "To keep it", "value": "{{ notice.keep }}"},{% endif %}
        {%- if user %}{"title": "User", "value": "{{ user }}"},{% endif %}
        {"title": "Rule", "value": "{{ notice.rule }}"}
      ]}
    ]
  }
}]}"#,
    replaced: MARKDOWN,
    limits: &[
        ("attachments/*/content/body/*/text", 250),
        ("attachments/*/content/body/*/facts/*/value", 250),
    ],
    most: 28_000,
};

/// Form: `docs/setup/webhooks.md` of matrix-org/matrix-hookshot. An event has at most 65,536 bytes
/// (<https://spec.matrix.org/latest/client-server-api/#size-limits>), and Hookshot's event contains each text twice.
const MATRIX: Api = Api {
    body: r#"{
  "text": "**GPU Bailiff on {{ node }}: {{ notice.what }}: {{ notice.short }}**
    {%- if notice.notebook %}  \nNotebook: {{ notice.notebook }}{% endif %}  \nObserved: {{ notice.found }}
    {%- if notice.since %}  \nSince: {{ notice.since }}{% endif %}  \nNext: {{ notice.next }}
    {%- if notice.keep %}  \nTo keep it: {{ notice.keep }}{% endif %}  \nRule: {{ notice.rule }}
    {%- if user %}  \nUser: {{ user }}{% endif %}",
  "html": "<strong>GPU Bailiff on {{ node }}: {{ notice.what }}: {{ notice.short }}</strong>
    {%- if notice.notebook %}<br>Notebook: {{ notice.notebook }}{% endif %}<br>Observed: {{ notice.found }}
    {%- if notice.since %}<br>Since: {{ notice.since }}{% endif %}<br>Next: {{ notice.next }}
    {%- if notice.keep %}<br>To keep it: {{ notice.keep }}{% endif %}<br>Rule: {{ notice.rule }}
    {%- if user %}<br>User: {{ user }}{% endif %}"
}"#,
    replaced: MARKDOWN,
    limits: &[("text", 3000), ("html", 3000)],
    most: LARGE,
};

/// Form: `reference/events-v2/openapiv3.json` of PagerDuty/api-schema; limits: `docs/events-API-v2/02-Trigger-Events.md` of
/// PagerDuty/developer-docs. The routing key is added afterwards, because it is a secret.
const PAGERDUTY: Api = Api {
    body: r#"{
  "event_action": "trigger",
  "dedup_key": "{{ notice.id }}",
  "client": "GPU Bailiff",
  "payload": {
    "summary": "{{ node }}: {{ notice.what }}: {{ notice.short }}",
    "source": "{{ node }}",
    "severity": "warning",
    "timestamp": "{{ notice.when }}",
    "component": "{{ notice.target }}",
    "class": "{{ notice.rule }}",
    "custom_details": {
      "observed": "{{ notice.found }}",
      {%- if notice.notebook %}"notebook": "{{ notice.notebook }}",{% endif %}
      {%- if notice.since %}"since": "{{ notice.since }}",{% endif %}
      {%- if notice.keep %}"to keep it": "{{ notice.keep }}",{% endif %}
      {%- if user %}"user": "{{ user }}",{% endif %}
      "gpus": "{{ notice.gpus|join(', ') }}",
      "next": "{{ notice.next }}"
    }
  }
}"#,
    replaced: PLAIN,
    limits: &[("payload/summary", 1024), ("dedup_key", 255)],
    most: LARGE,
};

/// Form: `postableAlerts` in `api/v2/openapi.yaml` of prometheus/alertmanager, which limits no length.
const ALERTMANAGER: Api = Api {
    body: r#"[{
  "labels": {
    "alertname": "BailiffNotification",
    "severity": "warning",
    "node": "{{ node }}",
    "rule": "{{ notice.rule }}",
    "step": "{{ notice.step }}",
    {%- if user %}"user": "{{ user }}",{% endif %}
    "target": "{{ notice.target }}"
  },
  "annotations": {
    "summary": "{{ node }}: {{ notice.what }}: {{ notice.short }}",
    "description": "{{ notice.text }}",
    {%- if notice.notebook %}"notebook": "{{ notice.notebook }}",{% endif %}
    {%- if notice.keep %}"keep": "{{ notice.keep }}",{% endif %}
    "next": "{{ notice.next }}"
  },
  "startsAt": "{{ notice.when }}"
}]"#,
    replaced: PLAIN,
    limits: &[],
    most: LARGE,
};

const fn api(format: Format) -> Api {
    match format {
        Format::Json => JSON,
        Format::Slack => SLACK,
        Format::Mattermost => MATTERMOST,
        Format::Teams => TEAMS,
        Format::Matrix => MATRIX,
        Format::PagerDuty => PAGERDUTY,
        Format::Alertmanager => ALERTMANAGER,
    }
}

/// Variables of a template.
#[derive(Debug, Serialize)]
struct Variables<'a> {
    node: &'a str,
    user: Option<&'a str>,
    notice: NoticeVariables<'a>,
}

#[derive(Debug, Serialize)]
struct NoticeVariables<'a> {
    #[serde(flatten)]
    part: &'a Part,
    text: &'a str,
    step: &'a str,
    target: &'a str,
    uid: Option<u32>,
    #[serde(serialize_with = "time")]
    when: SystemTime,
    /// The same for all notifications of a rule about a target.
    id: String,
}

impl<'a> Variables<'a> {
    fn of(notice: &'a Notice) -> Self {
        // A hash, because PagerDuty limits the length, and names are longer.
        let id = Sha256::digest(format!("{}\n{}\n{}", notice.node, notice.rule, notice.target));
        let id = BASE64_URL_SAFE_NO_PAD.encode(id);
        let Notice { part, text, step, target, uid, when, .. } = notice;
        Self {
            node: &notice.node,
            user: notice.user.as_deref(),
            notice: NoticeVariables { part, text, step, target, uid: *uid, when: *when, id },
        }
    }
}

/// Returns whether a template of a body is valid: it must result in JSON, whether optional values are there or not.
///
/// # Errors
/// Why it is not.
pub(crate) fn check(format: Format, template: &str) -> Result<(), String> {
    let text = || Some("text".to_owned());
    let full = Part { since: text(), keep: text(), notebook: text(), ..Part::default() };
    for (part, user) in [(full, text()), (Part::default(), None)] {
        let subject = Subject {
            id: TargetId("process:1@1".into()),
            kind: Kind::Process,
            uid: user.as_ref().map(|_| 1000),
            user,
            gpus: Vec::new(),
            job: None,
            pod: None,
            members: Vec::new(),
        };
        let notice = Notice {
            text: String::new(),
            node: String::new(),
            rule: String::new(),
            step: String::new(),
            target: String::new(),
            user: subject.user.clone(),
            uid: subject.uid,
            gpus: Vec::new(),
            members: Vec::new(),
            evidence: None,
            when: UNIX_EPOCH,
            part,
            outcome: None,
            about: (subject.into(), Mode::DryRun),
        };
        rendered(&api(format), template, &notice)?;
    }
    Ok(())
}

/// Returns the body for a notification.
///
/// # Errors
/// Why it cannot be made.
pub(super) fn body(webhook: &Webhook, notice: &Notice) -> Result<Vec<u8>, String> {
    let mut body = content(webhook, notice)?;
    if let (Some(path), Value::Object(keys)) = (&webhook.routing_key_file, &mut body) {
        keys.insert("routing_key".to_owned(), routing_key(path)?.into());
    }
    let bytes = audit::ascii(&body).map_err(|error| error.to_string())?;
    let most = api(webhook.format).most;
    if bytes.len() > most {
        return Err(format!("the body has {} bytes; the server accepts {most}", bytes.len()));
    }
    Ok(bytes)
}

/// Returns the body for a notification, without secrets.
///
/// # Errors
/// Why it cannot be made.
pub(super) fn content(webhook: &Webhook, notice: &Notice) -> Result<Value, String> {
    let api = api(webhook.format);
    match webhook.body.as_deref().unwrap_or(api.body) {
        "" => serde_json::to_value(notice).map_err(|error| error.to_string()),
        template => rendered(&api, template, notice),
    }
}

fn routing_key(path: &Path) -> Result<String, String> {
    let line = file::first_line(path, MOST_KEY).ok().flatten().filter(|line| !line.is_empty());
    line.ok_or_else(|| "cannot read the file with the routing key".to_owned())
}

fn rendered(api: &Api, template: &str, notice: &Notice) -> Result<Value, String> {
    let mut environment = Environment::new();
    let replaced = api.replaced;
    environment.set_formatter(move |out, _, value| insert(out, value, replaced));
    let text = render(environment, template, Variables::of(notice))?;
    let mut body: Value = serde_json::from_str(&text).map_err(|error| {
        format!("the result is not JSON, in which each value is a part of a string: {error}")
    })?;
    unmark(&mut body)?;
    for (path, most) in api.limits {
        limit(&mut body, path.split('/'), *most);
    }
    Ok(body)
}

/// Writes a value as a part of a JSON string, except numbers and booleans.
fn insert(out: &mut Output<'_>, value: &Inserted, replaced: &[(char, &str)]) -> Result<(), Error> {
    let written = match (value.kind(), value.as_str()) {
        (ValueKind::None, _) => Ok(()),
        (ValueKind::Bool | ValueKind::Number, _) => write!(out, "{value}"),
        (_, Some(text)) => {
            let text = safe(text, replaced);
            let quoted = serde_json::to_string(&text).unwrap_or_default();
            let inner = quoted.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')).unwrap_or_default();
            write!(out, "{MARK}{inner}")
        }
        _ => {
            let why = "only texts and numbers can be inserted; for a list, use `join`";
            return Err(Error::new(ErrorKind::InvalidOperation, why));
        }
    };
    written.map_err(Error::from)
}

/// Returns a text without control characters and characters that have a meaning for the server.
fn safe(text: &str, replaced: &[(char, &str)]) -> String {
    let mut safe = String::with_capacity(text.len());
    for character in unlinked(&shortened(&plain(text), MOST_TEXT)).chars() {
        match replaced.iter().find(|(other, _)| *other == character) {
            Some((_, replacement)) => safe.push_str(replacement),
            None => safe.push(character),
        }
    }
    safe
}

/// Removes the marks; an error if a text was inserted into a key.
fn unmark(value: &mut Value) -> Result<(), String> {
    match value {
        Value::String(text) => text.retain(|character| character != MARK),
        Value::Array(items) => items.iter_mut().try_for_each(unmark)?,
        Value::Object(keys) => {
            if keys.keys().any(|key| key.contains(MARK)) {
                return Err("a value cannot be a part of a key".to_owned());
            }
            keys.values_mut().try_for_each(unmark)?;
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
    Ok(())
}

/// Shortens the strings at a path.
fn limit(value: &mut Value, mut path: Split<'_, char>, most: usize) {
    match (path.next(), value) {
        (None, Value::String(text)) => *text = shortened(text, most),
        (Some("*"), Value::Array(items)) => {
            for item in items {
                limit(item, path.clone(), most);
            }
        }
        (Some(key), Value::Object(keys)) => {
            if let Some(value) = keys.get_mut(key) {
                limit(value, path, most);
            }
        }
        _ => {}
    }
}

/// Returns at most this number of characters; a shortened text ends with an ellipsis.
fn shortened(text: &str, most: usize) -> String {
    if text.chars().count() <= most {
        return text.to_owned();
    }
    let mut start: String = text.chars().take(most.saturating_sub(1)).collect();
    // An entity of Slack such as `&amp;` is not cut in two.
    let is_cut = |at: &usize| start.len() - at < "&amp;".len() && !start.ends_with(';');
    if let Some(entity) = start.rfind('&').filter(is_cut) {
        start.truncate(entity);
    }
    start + "…"
}
