//! Parses memory sizes in two forms: the form in flags, rules and reports, and the form in the quota
//! library's environment variables (as in cuda-wrapper). The quota library runs inside other programs,
//! so this crate returns errors and never panics.
#![deny(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::unreachable,
    clippy::indexing_slicing,
    clippy::string_slice,
    clippy::arithmetic_side_effects,
    reason = "a panic would end the host program"
)]
#![cfg_attr(not(test), forbid(clippy::disallowed_methods))]

mod human;

pub use human::{Bytes, SizeError, size, split};

/// Limit value that means no limit.
pub const UNLIMITED: u64 = u64::MAX;

/// Parses the value of a limit variable; `unlimited` means no limit.
pub fn limit(text: &str) -> Option<u64> {
    match bytes(text) {
        None if text.eq_ignore_ascii_case("unlimited") => Some(UNLIMITED),
        other => other,
    }
}

/// Parses the size in a variable: `4217928960`, `4GiB`, `4096MiB`, `4G` (a power of 1024) or `4GB` (a
/// power of 1000).
pub fn bytes(text: &str) -> Option<u64> {
    let end = text.find(|char: char| !char.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at_checked(end)?;
    let factor: u64 = match unit.trim_start().to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" | "ki" | "kib" => 1 << 10,
        "m" | "mi" | "mib" => 1 << 20,
        "g" | "gi" | "gib" => 1 << 30,
        "t" | "ti" | "tib" => 1 << 40,
        "kb" => 1000,
        "mb" => 1_000_000,
        "gb" => 1_000_000_000,
        "tb" => 1_000_000_000_000,
        _ => return None,
    };
    number.parse::<u64>().ok()?.checked_mul(factor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variable_values_are_parsed() {
        for (text, expected) in [
            ("4217928960", Some(4_217_928_960)),
            ("1", Some(1)),
            ("4GiB", Some(4 << 30)),
            ("4096MiB", Some(4 << 30)),
            ("4G", Some(4 << 30)),
            ("4g", Some(4 << 30)),
            ("4 GiB", Some(4 << 30)),
            ("4GB", Some(4_000_000_000)),
            ("512k", Some(512 << 10)),
            ("7b", Some(7)),
            ("0", Some(0)),
            ("0G", Some(0)),
            ("unlimited", Some(UNLIMITED)),
            ("Unlimited", Some(UNLIMITED)),
            ("18446744073709551615", Some(u64::MAX)),
            ("18446744073709551616", None),
            ("17179869184G", None),
            ("", None),
            ("G", None),
            ("-1", None),
            ("+1", None),
            ("1.5G", None),
            ("4Gi B", None),
            ("abc", None),
            ("0x10", None),
            ("4 G 4", None),
        ] {
            assert_eq!(limit(text), expected, "{text:?}");
        }
    }
}
