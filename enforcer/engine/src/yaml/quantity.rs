//! Numbers with units. A unit is required: `8` could be bytes or GiB, and `8GB` is less than 8 GiB, the unit
//! that the driver uses.

use std::time::Duration;

use bailiff_size::split;

use super::fault::quoted;
use crate::value::Unit;

/// Why a text is not a valid quantity, and how to write it.
pub use bailiff_size::SizeError as QuantityError;

fn wrong(message: impl Into<String>, help: impl Into<String>) -> QuantityError {
    QuantityError { message: message.into(), help: help.into() }
}

/// Parses a number in base units: bytes, seconds, a ratio or a count.
///
/// # Errors
/// If the text is not a valid value.
pub fn number(text: &str, unit: Unit) -> Result<f64, QuantityError> {
    match unit {
        Unit::Percent => percent(text),
        Unit::Bytes => bytes(text),
        Unit::BytesPerSecond => rate(text),
        Unit::Duration => time(text).map(|time| time.as_secs_f64()),
        Unit::Count => text.parse::<u32>().map(f64::from).map_err(|_| {
            wrong(
                format!("{} is not a whole number", quoted(text)),
                "expected a whole number, such as `1` or `2`",
            )
        }),
        Unit::Flag | Unit::Words(_) => Err(wrong("this is not a number", "write only the word")),
    }
}

/// Returns an example of the unit.
pub const fn example(unit: Unit) -> &'static str {
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

fn percent(text: &str) -> Result<f64, QuantityError> {
    let (digits, unit) = split(text);
    let number = digits.parse::<f64>();
    match (number, unit) {
        (Ok(number), "%") => Ok(number / 100.0),
        (Ok(ratio), "") if ratio <= 1.0 && text.contains('.') => {
            // Rounded, so that 0.07 is 7% and not 7.000000000000001%.
            let percent = (ratio * 1e6).round() / 1e4;
            Err(no_unit(text, &format!("write `{percent}%` instead of {text}")))
        }
        (Ok(_), "") => Err(no_unit(text, &format!("write `{text}%`"))),
        _ => Err(wrong(format!("{} is not a percentage", quoted(text)), "write it as `5%`")),
    }
}

#[expect(clippy::cast_precision_loss, reason = "compared with figures that are as coarse")]
fn bytes(text: &str) -> Result<f64, QuantityError> {
    bailiff_size::size(text).map(|bytes| bytes as f64)
}

fn rate(text: &str) -> Result<f64, QuantityError> {
    match text.strip_suffix("/s") {
        Some(text) => bytes(text)
            .map_err(|error| QuantityError { help: format!("{}, with `/s` after it", error.help), ..error }),
        None => Err(wrong(format!("{} is not a rate", quoted(text)), "write it as `10MiB/s`")),
    }
}

/// Parses a duration such as `30m`, `7d` or `1h 30m`.
///
/// # Errors
/// If the text is not a valid duration.
pub fn time(text: &str) -> Result<Duration, QuantityError> {
    const NO_LENGTH: [&str; 8] = ["M", "month", "months", "y", "yr", "yrs", "year", "years"];
    let mut units = text.split(|letter: char| !letter.is_ascii_alphabetic());
    if let Some(unit) = units.find(|unit| NO_LENGTH.contains(unit)) {
        return Err(wrong(format!("{} has no fixed length", quoted(unit)), "write days, such as `30d`"));
    }
    if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(no_unit(text, &format!("write `{text}s`, `{text}m`, `{text}h` or `{text}d`")));
    }
    humantime::parse_duration(text).map_err(|error| {
        wrong(format!("{} is not a time: {error}", quoted(text)), "write it as `30m`, `7d` or `1h 30m`")
    })
}

fn no_unit(text: &str, help: &str) -> QuantityError {
    wrong(format!("{} has no unit", quoted(text)), help)
}

/// Returns the end of a day (UTC) since the Unix epoch.
///
/// # Errors
/// If the text is not a day.
pub fn end_of_day(text: &str) -> Result<Duration, QuantityError> {
    const DAY: Duration = Duration::from_hours(24);
    let error = || wrong(format!("{} is not a date", quoted(text)), "write it as `2026-12-31`");
    Ok(moment(&format!("{text}T00:00:00Z")).ok_or_else(error)? + DAY)
}

/// Parses a time of RFC 3339, since the Unix epoch.
pub fn moment(text: &str) -> Option<Duration> {
    humantime::parse_rfc3339(text).ok()?.duration_since(std::time::UNIX_EPOCH).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_are_what_they_say() {
        let gib = 1024.0 * 1024.0 * 1024.0;
        for (text, unit, wanted) in [
            ("1%", Unit::Percent, 0.01),
            ("110%", Unit::Percent, 1.1),
            ("0.5 %", Unit::Percent, 0.005),
            ("512MiB", Unit::Bytes, gib / 2.0),
            ("8 GiB", Unit::Bytes, 8.0 * gib),
            ("1.5GiB", Unit::Bytes, 1.5 * gib),
            ("2TiB", Unit::Bytes, 2048.0 * gib),
            ("1KiB", Unit::Bytes, 1024.0),
            ("0B", Unit::Bytes, 0.0),
            ("10MiB/s", Unit::BytesPerSecond, 10_485_760.0),
            ("30m", Unit::Duration, 1800.0),
            ("7d", Unit::Duration, 604_800.0),
            ("1h 30m", Unit::Duration, 5400.0),
            ("0s", Unit::Duration, 0.0),
            ("500ms", Unit::Duration, 0.5),
            ("0", Unit::Count, 0.0),
            ("4294967295", Unit::Count, 4_294_967_295.0),
        ] {
            let read = number(text, unit).unwrap();
            assert!((read - wanted).abs() <= wanted * 1e-12, "{text}: {read}, not {wanted}");
        }
    }

    #[test]
    fn what_is_no_quantity_has_a_way_out() {
        for (unit, texts) in [
            (
                Unit::Percent,
                &["", "0", "1", "%", "-1%", "1e3%", "inf%", "nan%", ".5%", "5.%", "1%%", "1.2.3%", "１%"][..],
            ),
            (
                Unit::Bytes,
                &[
                    "",
                    "0",
                    "8GB",
                    "8G",
                    "8gb",
                    "8g",
                    "8gib",
                    "8Gib",
                    "GiB",
                    "-8GiB",
                    "8GiB/s",
                    "99999999999999999GiB",
                ],
            ),
            (Unit::BytesPerSecond, &["10", "10MiB", "10MB/s", "/s", "10MiB/h"]),
            (
                Unit::Duration,
                &[
                    "",
                    "0",
                    "30",
                    "1M",
                    "1y",
                    "2 months",
                    "1 year",
                    "-5m",
                    "soon",
                    "5 m m",
                    "99999999999999999999d",
                ],
            ),
            (Unit::Count, &["", "-1", "1.0", "1e3", "0x10", "4294967296", "2GiB"]),
            (Unit::Flag, &["true"]),
        ] {
            for text in texts {
                let wrong = number(text, unit).unwrap_err();
                assert!(!wrong.message.is_empty() && !wrong.help.is_empty(), "{unit:?} {text}");
            }
        }
    }

    #[test]
    fn a_day_ends_with_the_next() {
        assert_eq!(end_of_day("1970-01-01"), Ok(Duration::from_hours(24)));
        assert_eq!(end_of_day("2026-12-31").unwrap().as_secs(), 1_798_761_600);
        assert!(end_of_day("2028-02-29").is_ok());
        for text in ["2026-02-29", "2026-13-01", "2026-1-1", "26-01-01", "2026-12-31 ", "1969-12-31", "", "x"]
        {
            assert!(end_of_day(text).is_err(), "{text}");
        }
    }
}
