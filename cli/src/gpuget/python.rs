//! What Python takes for a number, and how it shows a text.

use std::fmt::Write as _;

/// What `int()` makes of a text, of whatever size, as `str()` shows it; nothing where it is none.
pub(super) fn int(text: &str) -> Option<String> {
    let text = text.trim();
    let (negative, digits) = match text.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    // An underscore may stand between two digits.
    if !digits.split('_').all(|part| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit())) {
        return None;
    }
    let digits: String = digits.chars().filter(char::is_ascii_digit).collect();
    let digits = digits.trim_start_matches('0');
    let sign = if negative && !digits.is_empty() { "-" } else { "" };
    Some(format!("{sign}{}", if digits.is_empty() { "0" } else { digits }))
}

/// What `repr()` makes of a text.
pub(super) fn repr(text: &str) -> String {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    let mut shown = String::from(quote);
    for letter in text.chars() {
        // To a string no write fails.
        let _ = match letter {
            '\\' => write!(shown, "\\\\"),
            '\n' => write!(shown, "\\n"),
            '\r' => write!(shown, "\\r"),
            '\t' => write!(shown, "\\t"),
            letter if letter == quote => write!(shown, "\\{letter}"),
            letter if letter.is_ascii_control() => write!(shown, "\\x{:02x}", u32::from(letter)),
            letter => write!(shown, "{letter}"),
        };
    }
    shown.push(quote);
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_as_python_reads_them() {
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
    fn texts_as_python_shows_them() {
        for (text, shown) in [
            ("abc", "'abc'"),
            ("it's", "\"it's\""),
            ("it's \"so\"", "'it\\'s \"so\"'"),
            ("a\\b\n\u{1}", "'a\\\\b\\n\\x01'"),
        ] {
            assert_eq!(repr(text), shown);
        }
    }
}
