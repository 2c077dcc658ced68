//! Sizes and times as people say them.

use std::fmt::{self, Display, Write};
use std::time::Duration;

/// What stands where nothing was observed.
pub const UNKNOWN: &str = "–";

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
}
