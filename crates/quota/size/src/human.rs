//! Parses and formats the memory sizes in flags, rules and reports. A size is a number with a unit: B, KiB,
//! MiB, GiB or TiB.

use std::fmt::{self, Display, Write};

const UNITS: [(&str, u64); 5] =
    [("B", 1), ("KiB", 1 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30), ("TiB", 1 << 40)];
/// Maximum length of a number. A longer number is a mistake and could not be represented exactly.
const LONGEST: usize = 16;
const EXAMPLE: &str = "write it as `512MiB` or `8GiB`";

/// Error for a text that is not a memory size.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SizeError {
    /// What is wrong with the text.
    pub message: String,
    /// How to write the size correctly.
    pub help: String,
}

impl Display for SizeError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}: {}", self.message, self.help)
    }
}

impl std::error::Error for SizeError {}

/// Parses a memory size such as `8GiB`, `1.5 GiB` or `512MiB`. The unit is required and must be a power of
/// 1024, because `8GB` is ambiguous: it means 7.5 GiB in SI units, but 8 GiB in the driver's tools.
///
/// # Errors
/// If the text is not a memory size, or if the size exceeds `u64::MAX`.
pub fn size(text: &str) -> Result<u64, SizeError> {
    let (digits, unit) = split(text);
    let number = digits.parse::<f64>().ok().filter(|_| !unit.starts_with([',', '.']));
    let Some(number) = number else {
        return Err(error(format!("{} is not an amount of memory", quoted(text)), EXAMPLE));
    };
    let Some((_, factor)) = UNITS.iter().find(|(name, _)| *name == unit) else {
        return Err(no_such_unit(text, digits, unit));
    };
    bytes(number, *factor).ok_or_else(|| error(format!("{} is too large", quoted(text)), EXAMPLE))
}

#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a unit is a power of two, and the product is checked against the range of the type"
)]
fn bytes(number: f64, factor: u64) -> Option<u64> {
    let bytes = number * factor as f64;
    (bytes < u64::MAX as f64).then_some(bytes as u64)
}

/// Splits a size into number and unit. The number consists of digits and at most one decimal point; `inf` and
/// `1e9` are rejected.
pub fn split(text: &str) -> (&str, &str) {
    let end = text.find(|char: char| !char.is_ascii_digit() && char != '.').unwrap_or(text.len());
    let (digits, unit) = text.split_at_checked(end).unwrap_or((text, ""));
    if end > LONGEST || !digits.starts_with(|char: char| char.is_ascii_digit()) || digits.ends_with('.') {
        return ("", unit);
    }
    (digits, unit.trim_start())
}

fn no_such_unit(text: &str, digits: &str, unit: &str) -> SizeError {
    if unit.is_empty() {
        let help = format!("write `{text}MiB`, `{text}GiB`, or `{text}B` for bytes");
        return error(format!("{} has no unit", quoted(text)), help);
    }
    let first = unit.chars().next().unwrap_or_default().to_ascii_lowercase();
    let similar = UNITS.iter().skip(1).find(|(name, _)| name.to_ascii_lowercase().starts_with(first));
    let help = match similar {
        Some((similar, _)) => format!("did you mean {similar}? write `{digits}{similar}`"),
        None => "valid units: B, KiB, MiB, GiB, TiB".to_owned(),
    };
    error(format!("{} is not a memory unit", quoted(unit)), help)
}

fn error(message: String, help: impl Into<String>) -> SizeError {
    SizeError { message, help: help.into() }
}

/// Quotes a text for a message, shortened to 60 characters.
fn quoted(text: &str) -> String {
    const MOST: usize = 60;
    if text.chars().count() > MOST {
        return format!("`{}…`", text.chars().take(MOST).collect::<String>());
    }
    format!("`{text}`")
}

/// Formats a number of bytes as `80.0 GiB`, or with `{:#}` as `80.0GiB`, which is how flags and rules write
/// it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bytes(pub i128);

impl Display for Bytes {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = self.0.unsigned_abs();
        let fits = |(_, factor): &&(&str, u64)| tenths(bytes, *factor) < 10_240;
        let (unit, factor) = UNITS.iter().find(fits).or(UNITS.last()).copied().unwrap_or(("B", 1));
        if self.0 < 0 {
            out.write_char('-')?;
        }
        let tenths = tenths(bytes, factor);
        match factor {
            1 => write!(out, "{bytes}")?,
            _ => write!(out, "{}.{}", tenths / 10, tenths % 10)?,
        }
        let space = if out.alternate() { "" } else { " " };
        write!(out, "{space}{unit}")
    }
}

/// Returns the value in tenths of a unit, rounded.
fn tenths(bytes: u128, factor: u64) -> u128 {
    let factor = u128::from(factor);
    bytes.saturating_mul(10).saturating_add(factor / 2).checked_div(factor).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn size_with_unit_is_parsed() {
        for (text, bytes) in [
            ("0B", 0),
            ("512MiB", 512 << 20),
            ("8 GiB", 8 << 30),
            ("1.5GiB", 3 << 29),
            ("2TiB", 2 << 40),
            ("1KiB", 1024),
            ("0.1KiB", 102),
        ] {
            assert_eq!(size(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn size_without_binary_unit_is_refused_with_a_fix() {
        for (text, help) in [
            ("4", "write `4MiB`, `4GiB`, or `4B` for bytes"),
            ("8GB", "did you mean GiB? write `8GiB`"),
            ("8g", "did you mean GiB? write `8GiB`"),
            ("8gib", "did you mean GiB? write `8GiB`"),
            ("1.5M", "did you mean MiB? write `1.5MiB`"),
            ("1e9B", "valid units: B, KiB, MiB, GiB, TiB"),
            ("8q", "valid units: B, KiB, MiB, GiB, TiB"),
            ("8GiB/s", "did you mean GiB? write `8GiB`"),
        ] {
            assert_eq!(size(text).unwrap_err().help, help, "{text}");
        }
        for text in ["", "GiB", "-8GiB", "1,5GiB", "1.GiB", ".5GiB", "1.2.3GiB", "inf", "99999999TiB"] {
            assert_eq!(size(text).unwrap_err().help, "write it as `512MiB` or `8GiB`", "{text}");
        }
    }

    #[test]
    fn size_is_formatted_in_the_largest_unit_below_1024() {
        for (bytes, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1536, "1.5 KiB"),
            (-(3 << 30), "-3.0 GiB"),
            (80 << 30, "80.0 GiB"),
            ((80 << 30) - 1, "80.0 GiB"),
            ((1 << 30) - 1, "1.0 GiB"),
            (3 << 50, "3072.0 TiB"),
        ] {
            assert_eq!(Bytes(bytes).to_string(), text);
        }
        assert_eq!(format!("{:#}", Bytes(3 << 29)), "1.5GiB");
    }

    #[test]
    fn parsed_size_is_formatted_unchanged() {
        for text in ["12B", "1.7GiB", "99.9MiB", "1023.9GiB", "15.5TiB"] {
            assert_eq!(format!("{:#}", Bytes(size(text).unwrap().into())), text);
        }
    }
}
