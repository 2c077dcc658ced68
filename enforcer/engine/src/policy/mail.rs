//! Parses the channel `mail`: the server, the sender, the recipient, and the templates of a message.

use std::path::PathBuf;
use std::time::Duration;

use super::context::LoadContext;
use super::keys;
use super::program::{full_path, program};
use crate::yaml::{Faults, Fields, Node, expected, some_time, text, word};

/// Default of `every`.
const EVERY: Duration = Duration::from_hours(1);
/// Part of `to` that stands for the name of the target's owner.
pub const USER: &str = "{user}";

bailiff_snapshot::label_values! {
/// Encryption of the connection to a mail server.
pub enum Encryption {
    /// Begins without TLS, and continues with TLS; fails if the server does not offer it.
    StartTls = "starttls",
    /// TLS from the beginning.
    Tls = "tls",
    /// None.
    None = "none",
}
}

impl Encryption {
    /// Returns the usual port (RFC 6409, RFC 8314, RFC 5321).
    const fn port(self) -> u16 {
        match self {
            Self::StartTls => 587,
            Self::Tls => 465,
            Self::None => 25,
        }
    }
}

/// A mail channel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mail {
    /// Host of the mail server (SMTP).
    pub host: String,
    /// Its port.
    pub port: u16,
    /// Encryption of the connection.
    pub encryption: Encryption,
    /// User name, and file with the password, if the server requires them.
    pub login: Option<(String, PathBuf)>,
    /// Address of the sender, with or without a name.
    pub from: String,
    /// How the address of a user is found.
    pub to: Recipient,
    /// Template of the subject, if not the default.
    pub subject: Option<String>,
    /// Template of the body, if not the default.
    pub body: Option<String>,
    /// Minimum time between two messages to the same recipient.
    pub every: Duration,
}

/// How the address of a user is found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Recipient {
    /// An address, with [`USER`] in place of the name of the user.
    Address(String),
    /// The user's GECOS field.
    Gecos,
    /// A program, to which the name of the user is passed, and which prints the address.
    Program(Vec<String>),
}

/// Parses the channel; `None` if it is invalid.
pub(super) fn read(node: &Node, context: LoadContext, faults: &mut Faults) -> Option<Mail> {
    let fields = Fields::open(node, keys::table("mail"), faults)?;
    let encryption = fields.or(
        ("encryption", Encryption::StartTls),
        |node, faults| word(node, (&Encryption::ALL, Encryption::name), faults),
        faults,
    )?;
    let server = fields.given("server", server, faults);
    let from = fields.given("from", |node, faults| address(node, context, faults), faults);
    let to = recipient((node, &fields), context, faults);
    let login = login((node, &fields), faults);
    // The file is not used if one of them is invalid.
    let template = |node: &Node, faults: &mut Faults| template(node, context.check_template, faults);
    let (subject, body) = (fields.given("subject", template, faults), fields.given("body", template, faults));
    let zero = ("the value must be above 0", "every notification would be a message of its own");
    let every = fields.or(("every", EVERY), |node, faults| some_time(node, zero, faults), faults);
    let (host, port) = server?;
    Some(Mail {
        host,
        port: port.unwrap_or(encryption.port()),
        encryption,
        login,
        from: from?,
        to: to?,
        subject,
        body,
        every: every?,
    })
}

/// Parses `HOST` or `HOST:PORT`.
fn server(node: &Node, faults: &mut Faults) -> Option<(String, Option<u16>)> {
    const WHAT: &str = "a host, such as `smtp.example.org` or `smtp.example.org:587`";
    let server = text(node, WHAT, faults)?;
    let (host, port) = match server.rsplit_once(':') {
        Some((host, port)) if !host.ends_with(':') => (host, port.parse().ok().map(Some)),
        _ => (server, Some(None)),
    };
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let is_host = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '.' | '-' | '_' | ':');
    match port.filter(|port| *port != Some(0)) {
        Some(port) if !host.is_empty() && host.chars().all(is_host) => Some((host.to_owned(), port)),
        _ => {
            expected(node, WHAT, faults);
            None
        }
    }
}

fn address(node: &Node, context: LoadContext, faults: &mut Faults) -> Option<String> {
    const WHAT: &str = "a mail address, such as `gpu@example.org` or `GPU Bailiff <gpu@example.org>`";
    let address = text(node, WHAT, faults)?;
    if (context.is_mail_address)(address) {
        return Some(address.to_owned());
    }
    expected(node, WHAT, faults);
    None
}

fn recipient(
    (node, fields): (&Node, &Fields<'_>),
    context: LoadContext,
    faults: &mut Faults,
) -> Option<Recipient> {
    match ["to", "to_gecos", "to_program"].map(|name| fields.get(name)) {
        [Some(to), None, None] => {
            let address = text(to, "a mail address, such as `{user}@example.org`", faults)?;
            if (context.is_mail_address)(&address.replace(USER, "user")) {
                return Some(Recipient::Address(address.to_owned()));
            }
            expected(to, "a mail address, in which `{user}` stands for the owner's name", faults);
            None
        }
        [None, Some(gecos), None] if gecos.text() == Some("true") => Some(Recipient::Gecos),
        [None, Some(gecos), None] => {
            expected(gecos, "`true`", faults);
            None
        }
        [None, None, Some(argv)] => program(argv, faults).map(Recipient::Program),
        _ => {
            let help = "for example `to: \"{user}@example.org\"`";
            faults.error(&node.at, "`mail` needs exactly one of `to`, `to_gecos` and `to_program`", help);
            None
        }
    }
}

/// Returns the user name and the file with the password.
fn login((node, fields): (&Node, &Fields<'_>), faults: &mut Faults) -> Option<(String, PathBuf)> {
    match (fields.get("user"), fields.get("password_file")) {
        (None, None) => None,
        (Some(user), Some(file)) => {
            let user = text(user, "a user name", faults)?;
            let path = text(file, "an absolute path, such as `/etc/bailiff/mail-password`", faults)?;
            full_path(path, file, faults).map(|path| (user.to_owned(), path.into()))
        }
        _ => {
            let help = "a server that requires no login needs neither";
            faults.error(&node.at, "`user` and `password_file` must be used together", help);
            None
        }
    }
}

/// Parses a template; the error of the check is why it is invalid.
pub(super) fn template(
    node: &Node,
    check: impl Fn(&str) -> Result<(), String>,
    faults: &mut Faults,
) -> Option<String> {
    let template = text(node, "a template, such as `GPU memory on {{ node }}`", faults)?;
    match check(template) {
        Ok(()) => Some(template.to_owned()),
        Err(why) => {
            faults.error(
                &node.at,
                format!("this template is invalid: {why}"),
                "docs/rules.md lists its variables",
            );
            None
        }
    }
}
