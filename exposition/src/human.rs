//! Sizes and times as people say them.

use std::fmt::{self, Display, Write};
use std::time::{Duration, UNIX_EPOCH};

/// What stands where nothing was observed, and there is no room for a reason.
pub const UNKNOWN: &str = "?";
/// What stands where there is no such thing.
pub const NOTHING: &str = "–";

/// From the year 10000 on a moment is not told.
const LAST: Duration = Duration::from_hours(70_389_528);

/// A value, or what stands for none.
pub fn or_unknown(value: Option<impl Display>) -> String {
    value.map_or_else(|| UNKNOWN.to_owned(), |value| value.to_string())
}

/// Bytes as people say them.
#[derive(Debug, Clone, Copy)]
pub struct Bytes(pub i128);

impl Display for Bytes {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
        let mut tenths = self.0 * 10;
        let mut unit = 0;
        while tenths.abs() >= 10_240 && unit + 1 < UNITS.len() {
            tenths /= 1024;
            unit += 1;
        }
        if tenths < 0 {
            out.write_char('-')?;
        }
        let tenths = tenths.unsigned_abs();
        match unit {
            0 => write!(out, "{} B", tenths / 10),
            _ => write!(out, "{}.{} {}", tenths / 10, tenths % 10, UNITS[unit]),
        }
    }
}

/// A time as people say it, in its two largest units.
#[derive(Debug, Clone, Copy)]
pub struct Span(pub Duration);

impl Display for Span {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.0.as_secs();
        match seconds {
            0..60 => write!(out, "{seconds} s"),
            60..3600 => write!(out, "{} min {} s", seconds / 60, seconds % 60),
            3600..86_400 => write!(out, "{} h {} min", seconds / 3600, seconds / 60 % 60),
            _ => write!(out, "{} d {} h", seconds / 86_400, seconds / 3600 % 24),
        }
    }
}

/// A moment of the wall clock as programs read it, in UTC; none where the clock cannot be right.
#[must_use]
pub fn rfc3339(wall: Duration) -> Option<String> {
    let time = UNIX_EPOCH.checked_add(wall).filter(|_| wall < LAST)?;
    Some(humantime::format_rfc3339_seconds(time).to_string())
}

/// The same as people read it.
#[must_use]
pub fn clock(wall: Duration) -> Option<String> {
    Some(rfc3339(wall)?.replace('T', " ").replace('Z', " UTC"))
}

/// How long ago a moment was, in seconds since the Unix epoch; one to come is now, as clocks are set back.
#[must_use]
pub fn ago(at: f64, wall: Duration) -> String {
    let at = Duration::try_from_secs_f64(at).unwrap_or_default();
    format!("{} ago", Span(wall.saturating_sub(at)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_times_read_well() {
        let sizes = [
            (0, "0 B"),
            (1023, "1023 B"),
            (1536, "1.5 KiB"),
            (-(3 << 30), "-3.0 GiB"),
            (80 << 30, "80.0 GiB"),
        ];
        for (bytes, expected) in sizes {
            assert_eq!(Bytes(bytes).to_string(), expected);
        }
        for (seconds, expected) in [(5, "5 s"), (65, "1 min 5 s"), (3_700, "1 h 1 min"), (90_000, "1 d 1 h")]
        {
            assert_eq!(Span(Duration::from_secs(seconds)).to_string(), expected);
        }
    }

    #[test]
    fn moments_are_told_in_utc() {
        let at = |seconds| Duration::from_secs(seconds);
        assert_eq!(clock(at(1_700_000_000)).unwrap(), "2023-11-14 22:13:20 UTC");
        assert_eq!(rfc3339(at(1_700_000_000)).unwrap(), "2023-11-14T22:13:20Z");
        for wrong in [LAST, Duration::MAX] {
            assert_eq!(clock(wrong), None);
        }
        for (then, told) in [(7.0, "3 s ago"), (12.0, "0 s ago"), (f64::NAN, "10 s ago")] {
            assert_eq!(ago(then, at(10)), told);
        }
    }
}
