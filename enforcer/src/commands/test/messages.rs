//! Messages that a rule test expects: the subject and body of a mail, the body of a webhook.

use std::collections::BTreeMap;

use bailiff_engine::policy::{Channel, Policy};
use bailiff_engine::yaml::{self, Fault, Faults, Fields, Node};
use serde_json::Value;

use super::parse::{list, string, table};
use crate::actions::notices::Content;

/// What the channels of a notification send, by name, or why they cannot.
pub(super) type Contents = BTreeMap<String, Result<Content, String>>;

/// Parts of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    Subject,
    Body,
}

/// How a part is compared with an expected text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Comparison {
    Equal,
    Contains,
}

/// Keys of an expected message.
const KEYS: [(&str, Part, Comparison); 4] = [
    ("subject", Part::Subject, Comparison::Equal),
    ("subject_contains", Part::Subject, Comparison::Contains),
    ("body", Part::Body, Comparison::Equal),
    ("body_contains", Part::Body, Comparison::Contains),
];

/// An expected message.
#[derive(Debug)]
pub(super) struct Message {
    channel: String,
    /// Each expected text, with the index of its key.
    texts: Vec<(usize, String)>,
}

/// Parses the messages of an expected step.
pub(super) fn read(fields: &Fields<'_>, policy: &Policy, faults: &mut Faults) -> Vec<Message> {
    let Some(node) = fields.get("messages") else { return Vec::new() };
    if fields.get("step").and_then(Node::text) != Some("notify") {
        faults.push(Fault::error(&node.at, "`messages` needs `step: notify`"));
    }
    let items = list(node, faults).unwrap_or_default();
    items.iter().filter_map(|item| message(item, policy, faults)).collect()
}

fn message(node: &Node, policy: &Policy, faults: &mut Faults) -> Option<Message> {
    let fields = Fields::open(node, table("message"), faults)?;
    let channel = fields.given("channel", string, faults)?;
    let kind = policy.channels.get(&channel);
    if let (None, Some(named)) = (kind, fields.get("channel")) {
        let known: Vec<&str> = policy.channels.keys().map(String::as_str).collect();
        let message = format!("there is no channel {channel:?}; the file has {}", known.join(", "));
        faults.push(Fault::error(&named.at, message));
    }
    let mut texts = Vec::new();
    for (place, (key, part, _)) in KEYS.iter().enumerate() {
        let Some(given) = fields.get(key) else { continue };
        if *part == Part::Subject && kind.is_some_and(|kind| !matches!(kind, Channel::Mail(_))) {
            faults.push(Fault::error(&given.at, "only a mail has a subject"));
        }
        for item in yaml::many(given, "texts", faults).unwrap_or_default() {
            texts.extend(string(item, faults).map(|text| (place, text)));
        }
    }
    if texts.is_empty() && fields.entries.len() == 1 {
        let message =
            "an expected message has at least one of subject, subject_contains, body, body_contains";
        faults.push(Fault::error(&node.at, message));
    }
    Some(Message { channel, texts })
}

impl Message {
    /// Returns what was expected and what was sent; `None` if they agree.
    pub(super) fn mismatch(&self, contents: &Contents) -> Option<(String, String)> {
        let channel = &self.channel;
        let content = match contents.get(channel) {
            None => {
                return Some((format!("a message on {channel}"), "no message on this channel".to_owned()));
            }
            Some(Err(why)) => return Some((format!("a message on {channel}"), why.clone())),
            Some(Ok(content)) => content,
        };
        self.texts.iter().find_map(|(place, expected)| {
            let (key, part, comparison) = KEYS.get(*place)?;
            let sent = match part {
                Part::Subject => content.subject.as_deref().unwrap_or_default(),
                Part::Body => &content.body,
            };
            let agrees = match comparison {
                Comparison::Equal => is_same(sent, expected),
                Comparison::Contains => sent.contains(expected),
            };
            (!agrees).then(|| (format!("{key} on {channel}: {expected}"), sent.to_owned()))
        })
    }
}

/// Compares texts, and JSON by its meaning.
fn is_same(sent: &str, expected: &str) -> bool {
    let json = |text: &str| serde_json::from_str::<Value>(text).ok();
    sent.trim_end() == expected.trim_end() || json(sent).is_some_and(|sent| json(expected) == Some(sent))
}
