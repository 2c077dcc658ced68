//! Python's `int()` and `repr()`, and the usage of its argparse.

use std::fmt::Write as _;

/// Parses an integer of any size as `int()` does and formats it as `str()` does; `None` if it is invalid.
pub(crate) fn int(text: &str) -> Option<String> {
    let text = text.trim();
    let (negative, digits) = match text.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    // Python allows an underscore between two digits.
    if !digits.split('_').all(|part| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit())) {
        return None;
    }
    let digits: String = digits.chars().filter(char::is_ascii_digit).collect();
    let digits = digits.trim_start_matches('0');
    let sign = if negative && !digits.is_empty() { "-" } else { "" };
    Some(format!("{sign}{}", if digits.is_empty() { "0" } else { digits }))
}

/// Returns the usage, which is the first paragraph of a help text.
pub(crate) fn usage(help: &str) -> &str {
    help.split("\n\n").next().unwrap_or(help).trim_end()
}

/// Formats a text as `repr()` does.
pub(crate) fn repr(text: &str) -> String {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    let mut quoted = String::from(quote);
    for letter in text.chars() {
        // Writing to a string cannot fail.
        let _ = match letter {
            '\\' => write!(quoted, "\\\\"),
            '\n' => write!(quoted, "\\n"),
            '\r' => write!(quoted, "\\r"),
            '\t' => write!(quoted, "\\t"),
            letter if letter == quote => write!(quoted, "\\{letter}"),
            letter if letter.is_ascii_control() => write!(quoted, "\\x{:02x}", u32::from(letter)),
            letter => write!(quoted, "{letter}"),
        };
    }
    quoted.push(quote);
    quoted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_are_parsed_as_by_python() {
        for (text, number) in [
            ("3", Some("3")),
            (" 3\n", Some("3")),
            ("+03", Some("3")),
            ("-5", Some("-5")),
            ("-0", Some("0")),
            ("1_000", Some("1000")),
            ("123456789012345678901234567890", Some("123456789012345678901234567890")),
            ("", None),
            ("-", None),
            ("_1", None),
            ("1_", None),
            ("1__0", None),
            ("3.0", None),
            ("0x3", None),
            ("- 3", None),
        ] {
            assert_eq!(int(text).as_deref(), number, "{text:?}");
        }
    }

    #[test]
    fn texts_are_quoted_as_by_python() {
        for (text, quoted) in [
            ("abc", "'abc'"),
            ("it's", "\"it's\""),
            ("it's \"so\"", "'it\\'s \"so\"'"),
            ("a\\b\n\u{1}", "'a\\\\b\\n\\x01'"),
        ] {
            assert_eq!(repr(text), quoted);
        }
    }
}
