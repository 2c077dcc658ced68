//! Parses `notify`: the channels for notifications.

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::context::LoadContext;
use super::program::program;
use super::{Channel, keys, mail, webhook};
use crate::yaml::{Data, Entry, Fault, Faults, Fields, Node, expected, name, nothing_given};

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
    let given = only_one(node, faults)?;
    match given.name.as_str() {
        "tty" => yes(&given.value, faults).then_some(Channel::Tty),
        // The socket is filled in once `kubernetes` was read.
        "event" => yes(&given.value, faults).then(|| Channel::Event(PathBuf::new())),
        "webhook" => webhook::read(&given.value, context, faults).map(Channel::Webhook),
        "mail" => mail::read(&given.value, context, faults).map(|mail| Channel::Mail(Box::new(mail))),
        _ => program(&given.value, faults).map(Channel::Exec),
    }
}

/// Returns whether a value is `true`, the only value that there is.
fn yes(node: &Node, faults: &mut Faults) -> bool {
    let is_true = matches!(&node.data, Data::Scalar { text, plain: true } if text == "true");
    if !is_true {
        expected(node, "`true` (to disable the channel, remove it)", faults);
    }
    is_true
}

/// Returns the only key of a channel.
fn only_one<'a>(node: &'a Node, faults: &mut Faults) -> Option<&'a Entry> {
    let (table, before) = (keys::table("channel"), faults.errors());
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
