//! The formats of sizes and times in reports.

use std::time::Duration;

use bailiff_exposition::human::Bytes;
use bailiff_exposition::terminal::Colors;
use jiff::Timestamp;
use jiff::tz::TimeZone;

/// The placeholder of an unknown value in the long report.
pub(crate) const UNKNOWN: &str = "-";
/// The placeholder of a value that does not apply.
pub(crate) const NONE: &str = "-";

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Units {
    /// Powers of 1024: `79.6GiB`.
    #[default]
    Binary,
    /// Powers of 1000, as in `cuda_info.sh`: `2.1G`, `447.8M`.
    Decimal,
}

impl Units {
    /// Formats bytes with one decimal digit.
    pub(crate) fn size(self, bytes: u64) -> String {
        if self == Self::Binary {
            return format!("{:#}", Bytes(bytes.into()));
        }
        #[expect(clippy::cast_precision_loss, reason = "one digit is shown")]
        let value = bytes as f64;
        match value {
            _ if value < 1e3 => format!("{bytes}"),
            _ if value < 1e6 => format!("{:.1}K", value / 1e3),
            _ if value < 1e9 => format!("{:.1}M", value / 1e6),
            _ => format!("{:.1}G", value / 1e9),
        }
    }

    /// Formats bytes that may be negative.
    pub(crate) fn signed(self, bytes: i64) -> String {
        let sign = if bytes < 0 { "-" } else { "" };
        format!("{sign}{}", self.size(bytes.unsigned_abs()))
    }

    /// Formats a change in bytes: `+64.4GiB`.
    pub(crate) fn change(self, bytes: i64) -> String {
        let sign = if bytes > 0 { "+" } else { "" };
        format!("{sign}{}", self.signed(bytes))
    }
}

/// Returns the difference in bytes, clamped to the range of `i64`.
pub(crate) fn difference(was: u64, is: u64) -> i64 {
    let bytes = i128::from(is) - i128::from(was);
    i64::try_from(bytes).unwrap_or(if bytes < 0 { i64::MIN } else { i64::MAX })
}

/// Formats a value, or returns the placeholder.
pub(crate) fn or_unknown<T>(value: Option<T>, text: impl FnOnce(T) -> String) -> String {
    value.map_or_else(|| UNKNOWN.to_owned(), text)
}

/// Formats a time as `ctime(3)`, in the given time zone.
pub(crate) fn ctime(wall_ms: u64, zone: &TimeZone) -> String {
    let stamp = i64::try_from(wall_ms).ok().and_then(|ms| Timestamp::from_millisecond(ms).ok());
    or_unknown(stamp, |stamp| stamp.to_zoned(zone.clone()).strftime("%a %b %e %H:%M:%S %Y").to_string())
}

/// Formats a duration in its two largest units, such as `3m20s`.
pub(crate) fn span(time: Duration) -> String {
    let seconds = time.as_secs();
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{}m{}s", seconds / 60, seconds % 60),
        3600..86_400 => format!("{}h{}m", seconds / 3600, seconds / 60 % 60),
        _ => format!("{}d{}h", seconds / 86_400, seconds / 3600 % 24),
    }
}

/// The layout of a report.
#[derive(Debug, Clone)]
pub(crate) struct Style {
    pub(crate) colors: Colors,
    /// The width in columns.
    pub(crate) width: usize,
    /// The maximum number of holders listed per GPU.
    pub(crate) max_holders: usize,
    pub(crate) zone: TimeZone,
    pub(crate) units: Units,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decimal_sizes_match_the_original() {
        let units = Units::Decimal;
        let cases = [
            (0, "0"),
            (999, "999"),
            (1_000, "1.0K"),
            (999_949, "999.9K"),
            (96_000_000, "96.0M"),
            (447_800_000, "447.8M"),
            (738_664_448, "738.7M"),
            (1_739_000_000, "1.7G"),
            (2_147_024_896, "2.1G"),
            (150_754_820_096, "150.8G"),
        ];
        for (bytes, text) in cases {
            assert_eq!(units.size(bytes), text);
        }
        assert_eq!((units.signed(-96_000_000).as_str(), units.change(-1_000).as_str()), ("-96.0M", "-1.0K"));
        assert_eq!((units.change(1_000).as_str(), units.change(0).as_str()), ("+1.0K", "0"));
        assert_eq!(Units::Binary.change(-(80 << 30)), "-80.0GiB");
        assert_eq!((difference(5, 3), difference(0, u64::MAX)), (-2, i64::MAX));
    }

    #[test]
    fn times_match_ctime() {
        let of = |ms| ctime(ms, &TimeZone::UTC);
        assert_eq!(of(1_417_440_326_000), "Mon Dec  1 13:25:26 2014");
        assert_eq!(of(1_416_833_837_999), "Mon Nov 24 12:57:17 2014");
        assert_eq!(of(u64::MAX), UNKNOWN);
    }

    #[test]
    fn spans_have_two_units() {
        for (seconds, text) in [(0, "0s"), (65, "1m5s"), (3_700, "1h1m"), (90_000, "1d1h")] {
            assert_eq!(span(Duration::from_secs(seconds)), text);
        }
    }
}
