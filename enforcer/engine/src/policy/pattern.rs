//! Patterns of selectors: texts, globs and regular expressions.

use globset::Glob;
use regex::RegexBuilder;

use super::Pattern;
use crate::yaml::quantity::QuantityError;

/// Maximum size of a compiled expression in bytes: enough for a long list of names, and small enough for
/// hundreds of expressions.
const LARGEST: usize = 1 << 17;

/// Parses a pattern.
pub(super) fn read(text: &str) -> Result<Pattern, QuantityError> {
    if let Some(expression) = text.strip_prefix("re:") {
        return regex(expression);
    }
    if !text.contains(['*', '?', '[', '{']) {
        return Ok(Pattern::Text(text.to_owned()));
    }
    let wrong = |error: globset::Error| {
        QuantityError {
        message: format!("not a glob: {}", error.kind()),
        help: "`*`, `?`, `[…]` and `{a,b}` have a special meaning; to match such a character itself, put it into brackets, such as `[*]`".to_owned(),
    }
    };
    let matcher = Glob::new(text).map_err(wrong)?.compile_matcher();
    Ok(Pattern::Glob(matcher))
}

/// Compiles an expression that must match the whole text. It is compiled alone first, because `a)|(b` would
/// break out of the group.
fn regex(expression: &str) -> Result<Pattern, QuantityError> {
    let build = |expression: &str| RegexBuilder::new(expression).size_limit(LARGEST).build();
    let wrong = |error: regex::Error| {
        QuantityError {
        message: format!("not a regular expression: {}", reason(&error)),
        help: "after `re:`, write an expression that matches the whole text; look-around and back-references are not supported".to_owned(),
    }
    };
    build(expression).map_err(wrong)?;
    build(&format!("^(?:{expression})$")).map(Pattern::Regex).map_err(wrong)
}

/// The last line of the error is the reason; earlier lines repeat the expression.
fn reason(error: &regex::Error) -> String {
    let text = error.to_string();
    let last = text.lines().last().unwrap_or_default();
    last.trim_start_matches("error: ").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_the_whole_text() {
        let cases: &[(&str, &[&str], &[&str])] = &[
            ("root", &["root"], &["root2", "Root", "", "xroot"]),
            ("triton*", &["triton", "tritonserver"], &["mytriton"]),
            ("/usr/*/x", &["/usr/a/b/x"], &["/usr/x"]),
            ("job-?", &["job-1"], &["job-12"]),
            ("job-[0-9]", &["job-1"], &["job-x"]),
            ("{a,b}*", &["a1", "b"], &["c"]),
            ("re:py(thon)?3?", &["py", "python3"], &["python3.11", "xpy"]),
            ("re:a|b", &["a", "b"], &["ab", "xa", "a\nb", "a\n"]),
            ("re:(?i)root", &["ROOT"], &["roots"]),
            ("re:\\w+-\\d{1,4}(\\.\\w+)?", &["node-12.lan", "é-1"], &["node-", "node-12345"]),
            ("a.b", &["a.b"], &["axb"]),
        ];
        for (pattern, yes, no) in cases {
            let read = read(pattern).unwrap();
            for text in *yes {
                assert!(read.matches(text), "{pattern} {text:?}");
            }
            for text in *no {
                assert!(!read.matches(text), "{pattern} {text:?}");
            }
            assert_eq!(&read.to_string(), pattern);
        }
    }

    #[test]
    fn what_is_no_pattern_says_so() {
        for pattern in ["re:(", "re:x)|(y", "re:a{2000}{2000}", "[", "re:(?=a)", "re:\\1"] {
            let wrong = read(pattern).unwrap_err();
            assert!(!wrong.message.contains('\n') && !wrong.help.is_empty(), "{wrong:?}");
        }
    }
}
