//! Sizes and times formatted for people.

use std::fmt::{self, Display};
use std::time::{Duration, UNIX_EPOCH};

pub use bailiff_size::Bytes;

/// Placeholder for a value that was not observed, where a reason does not fit.
pub const UNKNOWN: &str = "?";
/// Placeholder for a value that does not exist.
pub const NOTHING: &str = "–";

/// Start of the year 10000, as time since the Unix epoch. Times from then on are not formatted.
const LAST: Duration = Duration::from_hours(70_389_528);

/// Returns the value as text, or [`UNKNOWN`].
pub fn or_unknown(value: Option<impl Display>) -> String {
    value.map_or_else(|| UNKNOWN.to_owned(), |value| value.to_string())
}

/// A duration, shown in its two largest units.
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

/// Formats a wall-clock time as RFC 3339 in UTC; `None` from the year 10000 on.
pub fn rfc3339(wall: Duration) -> Option<String> {
    let time = UNIX_EPOCH.checked_add(wall).filter(|_| wall < LAST)?;
    Some(humantime::format_rfc3339_seconds(time).to_string())
}

/// Formats a wall-clock time for people, in UTC; `None` from the year 10000 on.
pub fn clock(wall: Duration) -> Option<String> {
    Some(rfc3339(wall)?.replace('T', " ").replace('Z', " UTC"))
}

/// Formats how long before `wall` the time `at` (seconds since the Unix epoch) was. A future time is shown as
/// now, because clocks can be set back.
pub fn ago(at: f64, wall: Duration) -> String {
    let at = Duration::try_from_secs_f64(at).unwrap_or_default();
    format!("{} ago", Span(wall.saturating_sub(at)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_read_well() {
        for (seconds, expected) in [(5, "5 s"), (65, "1 min 5 s"), (3_700, "1 h 1 min"), (90_000, "1 d 1 h")]
        {
            assert_eq!(Span(Duration::from_secs(seconds)).to_string(), expected);
        }
    }

    #[test]
    fn time_is_formatted_in_utc() {
        let at = |seconds| Duration::from_secs(seconds);
        assert_eq!(clock(at(1_700_000_000)).unwrap(), "2023-11-14 22:13:20 UTC");
        assert_eq!(rfc3339(at(1_700_000_000)).unwrap(), "2023-11-14T22:13:20Z");
        for wrong in [LAST, Duration::MAX] {
            assert_eq!(clock(wrong), None);
        }
        for (then, expected) in [(7.0, "3 s ago"), (12.0, "0 s ago"), (f64::NAN, "10 s ago")] {
            assert_eq!(ago(then, at(10)), expected);
        }
    }
}
