//! Format of a line in the audit log: JSON in ASCII, so that a process name cannot control a terminal.

use std::io::{self, Write};
use std::time::SystemTime;

use serde::Serialize;
use serde_json::ser::Formatter;

use super::{About, Record};

#[derive(Serialize)]
struct Line<'a> {
    time: String,
    node: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    boot_id: Option<&'a str>,
    #[serde(flatten)]
    record: &'a Record<'a>,
}

pub(super) fn write(about: &About, at: SystemTime, record: &Record<'_>) -> serde_json::Result<Vec<u8>> {
    let time = humantime::format_rfc3339_millis(at).to_string();
    let mut line = ascii(&Line { time, node: &about.node, boot_id: about.boot_id.as_deref(), record })?;
    line.push(b'\n');
    Ok(line)
}

/// Serializes to JSON with every character outside printable ASCII escaped.
pub(crate) fn ascii(value: &impl Serialize) -> serde_json::Result<Vec<u8>> {
    let mut text = Vec::new();
    value.serialize(&mut serde_json::Serializer::with_formatter(&mut text, Ascii))?;
    Ok(text)
}

struct Ascii;

impl Formatter for Ascii {
    fn write_string_fragment<W: ?Sized + Write>(&mut self, writer: &mut W, fragment: &str) -> io::Result<()> {
        for character in fragment.chars() {
            if matches!(character, ' '..='~') {
                writer.write_all(&[character as u8])?;
            } else {
                for unit in character.encode_utf16(&mut [0; 2]) {
                    write!(writer, "\\u{unit:04x}")?;
                }
            }
        }
        Ok(())
    }
}
