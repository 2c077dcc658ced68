//! Parses the channel `webhook`: the address, and the format and template of the body.

use std::path::PathBuf;

pub use super::context::Format;
use super::context::LoadContext;
use super::program::full_path;
use super::{Address, keys, mail};
use crate::yaml::{Fault, Faults, Fields, Node, expected, text, word};

/// A webhook channel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Webhook {
    /// Address of the server.
    pub address: Address,
    /// Server that the body is for.
    pub format: Format,
    /// Template of the body, if not the default of the format.
    pub body: Option<String>,
    /// File with the routing key, for `pagerduty`.
    pub routing_key_file: Option<PathBuf>,
}

/// Parses the channel; `None` if it is invalid.
pub(super) fn read(node: &Node, context: LoadContext, faults: &mut Faults) -> Option<Webhook> {
    let fields = Fields::open(node, keys::table("webhook"), faults)?;
    let address = address((node, &fields), faults);
    let format = fields.or(
        ("format", Format::Json),
        |node, faults| word(node, (&Format::ALL, Format::name), faults),
        faults,
    );
    let routing_key_file = fields.given("routing_key_file", file, faults);
    let format = format?;
    match (format == Format::PagerDuty, fields.get("routing_key_file")) {
        (true, None) => {
            let help = "the first line of this file is the integration key of the service";
            faults.error(&node.at, "`format: pagerduty` needs `routing_key_file`", help);
        }
        (false, Some(file)) => {
            faults.push(Fault::error(&file.at, "`routing_key_file` needs `format: pagerduty`"));
        }
        _ => {}
    }
    let check = |template: &str| (context.check_body)(format, template);
    let body = fields.given("body", |node, faults| mail::template(node, check, faults), faults);
    Some(Webhook { address: address?, format, body, routing_key_file })
}

fn address((node, fields): (&Node, &Fields<'_>), faults: &mut Faults) -> Option<Address> {
    match (fields.get("url"), fields.get("url_file")) {
        (Some(given), None) => url(given, faults),
        (None, Some(given)) => file(given, faults).map(Address::File),
        _ => {
            faults.push(Fault::error(&node.at, "a webhook must have exactly one of url, url_file"));
            None
        }
    }
}

fn file(node: &Node, faults: &mut Faults) -> Option<PathBuf> {
    let path = text(node, "an absolute path, such as `/etc/bailiff/url`", faults)?;
    full_path(path, node, faults).map(PathBuf::from)
}

fn url(node: &Node, faults: &mut Faults) -> Option<Address> {
    let url = text(node, "a URL, such as `https://example.org/hook`", faults)?;
    let rest = url.strip_prefix("https://").or_else(|| url.strip_prefix("http://"));
    if rest
        .is_some_and(|rest| rest.starts_with(|letter: char| letter.is_ascii_alphanumeric() || letter == '['))
        && !url.contains(|letter: char| letter.is_whitespace() || letter.is_control())
    {
        return Some(Address::Url(url.to_owned()));
    }
    expected(node, "a URL that begins with `https://` or `http://`", faults);
    None
}
