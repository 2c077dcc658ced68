//! Numbers with their units. A unit must be written: 8 of what, and is `8GB` what the driver calls 8 GiB?

use std::time::Duration;

use super::fault::quoted;
use crate::value::Unit;

/// Why a text is no quantity, and how to write it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Wrong {
    /// What is wrong.
    pub(crate) message: String,
    /// The way out.
    pub(crate) help: String,
}

impl Wrong {
    fn new(message: impl Into<String>, help: impl Into<String>) -> Self {
        Self { message: message.into(), help: help.into() }
    }
}

const BYTES: [(&str, f64); 5] = [
    ("B", 1.0),
    ("KiB", 1024.0),
    ("MiB", 1024.0 * 1024.0),
    ("GiB", 1024.0 * 1024.0 * 1024.0),
    ("TiB", 1024.0 * 1024.0 * 1024.0 * 1024.0),
];

/// A number in base units: bytes, seconds, a ratio, a count.
pub(crate) fn number(text: &str, unit: Unit) -> Result<f64, Wrong> {
    match unit {
        Unit::Percent => percent(text),
        Unit::Bytes => bytes(text),
        Unit::BytesPerSecond => rate(text),
        Unit::Duration => time(text).map(|time| time.as_secs_f64()),
        Unit::Count => text.parse::<u32>().map(f64::from).map_err(|_| {
            Wrong::new(
                format!("{} is not a whole number", quoted(text)),
                "this is counted: write `0`, `1`, `2`",
            )
        }),
        Unit::Flag | Unit::Words(_) => Err(Wrong::new("this is no number", "write the word alone")),
    }
}

/// An example of how a unit is written.
pub(super) const fn example(unit: Unit) -> &'static str {
    match unit {
        Unit::Percent => "5%",
        Unit::Bytes => "8GiB",
        Unit::BytesPerSecond => "10MiB/s",
        Unit::Duration => "30m",
        Unit::Count => "2",
        Unit::Flag => "true",
        Unit::Words(_) => "a word",
    }
}

fn percent(text: &str) -> Result<f64, Wrong> {
    let (digits, unit) = split(text);
    let number = digits.parse::<f64>();
    match (number, unit) {
        (Ok(number), "%") => Ok(number / 100.0),
        (Ok(_), "") => Err(no_unit(text, &format!("write `{text}%`"))),
        _ => Err(Wrong::new(format!("{} is not a percentage", quoted(text)), "write it as `5%`")),
    }
}

fn bytes(text: &str) -> Result<f64, Wrong> {
    let (digits, unit) = split(text);
    let Ok(number) = digits.parse::<f64>() else {
        return Err(Wrong::new(
            format!("{} is not an amount of memory", quoted(text)),
            "write it as `512MiB` or `8GiB`",
        ));
    };
    if let Some((_, factor)) = BYTES.iter().find(|(name, _)| *name == unit) {
        return Ok(number * factor);
    }
    if unit.is_empty() {
        return Err(no_unit(text, &format!("write `{text}MiB`, `{text}GiB`, or `{text}B` for bytes")));
    }
    let letter = unit.chars().next().unwrap_or_default().to_ascii_lowercase();
    let meant = BYTES.iter().skip(1).find(|(name, _)| name.to_ascii_lowercase().starts_with(letter));
    let help = match meant {
        Some((meant, _)) => format!("{meant} is meant? write `{digits}{meant}`"),
        None => "known are B, KiB, MiB, GiB, TiB".to_owned(),
    };
    Err(Wrong::new(format!("{} is not a unit of memory here", quoted(unit)), help))
}

fn rate(text: &str) -> Result<f64, Wrong> {
    match text.strip_suffix("/s") {
        Some(text) => bytes(text)
            .map_err(|wrong| Wrong { help: format!("{}, with `/s` after it", wrong.help), ..wrong }),
        None => Err(Wrong::new(format!("{} is not a rate", quoted(text)), "write it as `10MiB/s`")),
    }
}

/// A time, as `30m`, `7d`, `1h 30m`.
pub(crate) fn time(text: &str) -> Result<Duration, Wrong> {
    const NO_LENGTH: [&str; 8] = ["M", "month", "months", "y", "yr", "yrs", "year", "years"];
    let mut units = text.split(|letter: char| !letter.is_ascii_alphabetic());
    if let Some(unit) = units.find(|unit| NO_LENGTH.contains(unit)) {
        return Err(Wrong::new(format!("{} has no fixed length", quoted(unit)), "write days, as `30d`"));
    }
    if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(no_unit(text, &format!("write `{text}s`, `{text}m`, `{text}h` or `{text}d`")));
    }
    humantime::parse_duration(text).map_err(|error| {
        Wrong::new(format!("{} is not a time: {error}", quoted(text)), "write it as `30m`, `7d` or `1h 30m`")
    })
}

/// Number and unit; the number in digits with at most one point, so that neither `inf` nor `1e9` is one.
fn split(text: &str) -> (&str, &str) {
    const LONGEST: usize = 16;
    let end = text.find(|letter: char| !letter.is_ascii_digit() && letter != '.').unwrap_or(text.len());
    let (digits, unit) = text.split_at(end);
    if end > LONGEST || !digits.starts_with(|letter: char| letter.is_ascii_digit()) || digits.ends_with('.') {
        return ("", unit);
    }
    (digits, unit.trim_start())
}

fn no_unit(text: &str, help: &str) -> Wrong {
    Wrong::new(format!("{} has no unit", quoted(text)), help)
}

/// The end of a day, since the Unix epoch, UTC.
pub(super) fn end_of_day(text: &str) -> Result<Duration, Wrong> {
    const DAY: Duration = Duration::from_hours(24);
    let wrong = || Wrong::new(format!("{} is not a day", quoted(text)), "write it as `2026-12-31`");
    let begin = humantime::parse_rfc3339(&format!("{text}T00:00:00Z")).map_err(|_| wrong())?;
    let begin = begin.duration_since(std::time::UNIX_EPOCH).map_err(|_| wrong())?;
    Ok(begin + DAY)
}
