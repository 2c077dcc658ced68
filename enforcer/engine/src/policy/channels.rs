//! Parses `notify`: the channels for notifications.

use std::collections::BTreeMap;

use super::context::LoadContext;
use super::program::{full_path, program};
use super::{Address, Channel, keys, mail};
use crate::yaml::{Data, Entry, Fault, Faults, Fields, Node, expected, name, nothing_given, text};

/// Returns the channels by name; invalid ones are left out.
pub(super) fn read(node: &Node, context: LoadContext, faults: &mut Faults) -> BTreeMap<String, Channel> {
    let Data::Map(entries) = &node.data else {
        expected(node, "a map from names to channels, such as `{owner: {tty: true}}`", faults);
        return BTreeMap::new();
    };
    let mut channels = BTreeMap::new();
    for entry in entries {
        name("a channel", (&entry.name, &entry.at), faults);
        if entry.value.is_null() {
            faults.push(nothing_given(entry));
        } else if let Some(channel) = channel(&entry.value, context, faults) {
            channels.insert(entry.name.clone(), channel);
        }
    }
    channels
}

fn channel(node: &Node, context: LoadContext, faults: &mut Faults) -> Option<Channel> {
    let given = only_one(node, "channel", faults)?;
    match given.name.as_str() {
        "tty" => match &given.value.data {
            Data::Scalar { text, plain: true } if text == "true" => Some(Channel::Tty),
            _ => {
                expected(&given.value, "`true` (to disable the channel, remove it)", faults);
                None
            }
        },
        "webhook" => webhook(&given.value, faults).map(Channel::Webhook),
        "mail" => mail::read(&given.value, context, faults).map(|mail| Channel::Mail(Box::new(mail))),
        _ => program(&given.value, faults).map(Channel::Exec),
    }
}

/// Returns the only key of a map that takes exactly one of several keys.
fn only_one<'a>(node: &'a Node, map: &str, faults: &mut Faults) -> Option<&'a Entry> {
    let (table, before) = (keys::table(map), faults.errors());
    let fields = Fields::open(node, table, faults)?;
    if faults.errors() > before {
        return None;
    }
    if let [only] = fields.entries {
        return Some(only);
    }
    let at = fields.entries.get(1).map_or(fields.at, |second| &second.at);
    faults.push(Fault::error(
        at,
        format!("{} must have exactly one of {}", table.what(), table.names().join(", ")),
    ));
    None
}

fn webhook(node: &Node, faults: &mut Faults) -> Option<Address> {
    let given = only_one(node, "webhook", faults)?;
    if given.name == "url_file" {
        let path = text(&given.value, "an absolute path, such as `/etc/bailiff/url`", faults)?;
        return full_path(path, &given.value, faults).map(|path| Address::File(path.into()));
    }
    let url = text(&given.value, "a URL, such as `https://example.org/hook`", faults)?;
    let rest = url.strip_prefix("https://").or_else(|| url.strip_prefix("http://"));
    if rest
        .is_some_and(|rest| rest.starts_with(|letter: char| letter.is_ascii_alphanumeric() || letter == '['))
        && !url.contains(|letter: char| letter.is_whitespace() || letter.is_control())
    {
        return Some(Address::Url(url.to_owned()));
    }
    expected(&given.value, "a URL that begins with `https://` or `http://`", faults);
    None
}
