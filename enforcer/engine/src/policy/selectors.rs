//! Warnings about selectors that can never match, or that are often unknown.

use std::ops::Range;

use super::{Condition, Field, Pattern};
use crate::yaml::{Fault, Faults, quoted};

/// Maximum length of a process name in the kernel, in bytes (`TASK_COMM_LEN` of `linux/sched.h`, without the terminator).
const LONGEST_COMM: usize = 15;

/// Checks a pattern of a selector.
pub(super) fn check((field, pattern): (Field, &Pattern), at: &Range<usize>, faults: &mut Faults) {
    let written = quoted(&pattern.to_string());
    let start = start(pattern);
    let fault = match field {
        Field::Comms if start.len() > LONGEST_COMM => {
            let message = format!(
                "{written} can never match, because the kernel truncates process names to {LONGEST_COMM} bytes"
            );
            Some((never(pattern, at, message), cut(&start, pattern)))
        }
        Field::Exe | Field::Cgroups if !start.is_empty() && !start.starts_with('/') => {
            let message =
                format!("{written} can never match, because `{}` is compared with a full path", field.name());
            Some((
                never(pattern, at, message),
                format!("write the full path, or {}", quoted(&format!("*/{start}"))),
            ))
        }
        Field::Users if is_numeric(pattern) && !matches!(pattern, Pattern::Text(_)) => {
            let message = format!("{written} is compared with user names, not with uids");
            Some((Fault::warning(at, message), "list the uids one by one, or use names".to_owned()))
        }
        Field::Groups if is_numeric(pattern) => {
            let message = format!("{written} matches only a group without a name");
            Some((Fault::warning(at, message), "use the name of the group".to_owned()))
        }
        _ if resembles_expression(pattern) => {
            let message = format!("{written} is not interpreted as a regular expression");
            let expression = pattern.to_string();
            let whole = expression.trim_start_matches('^').trim_end_matches('$');
            Some((Fault::warning(at, message), format!("write {}", quoted(&format!("re:{whole}")))))
        }
        _ => None,
    };
    if let Some((fault, help)) = fault {
        faults.push(fault.help(help));
    }
}

/// Checks an entry of `protect` or `except`: unknown data of a process exempts its target.
pub(super) fn of_exempt<'a>(
    entry: impl Iterator<Item = &'a Condition>,
    at: &Range<usize>,
    faults: &mut Faults,
) {
    let fields: Vec<Field> = entry.flat_map(Condition::selectors).map(|selector| selector.field).collect();
    for (field, help) in [
        (
            Field::Exe,
            "the executable of another user's process can be read only with CAP_SYS_PTRACE; grant it to the exporter and to the enforcer",
        ),
        (
            Field::Cmdline,
            "start the exporter with --process.command; only the first 256 bytes of a command line are known",
        ),
    ] {
        if fields.contains(&field) {
            let name = field.name();
            let message =
                format!("a process whose `{name}` is unknown is exempt, and so is its whole workload");
            faults.warn(at, message, help);
        }
    }
}

/// Returns an error for an exact text, and a warning for a glob or expression, because its start is a guess.
fn never(pattern: &Pattern, at: &Range<usize>, message: String) -> Fault {
    if matches!(pattern, Pattern::Text(_)) { Fault::error(at, message) } else { Fault::warning(at, message) }
}

/// Returns a name as the kernel truncates it.
fn cut(start: &str, pattern: &Pattern) -> String {
    let kept = &start[..start.floor_char_boundary(LONGEST_COMM)];
    let open = if kept.len() < LONGEST_COMM || !matches!(pattern, Pattern::Text(_)) { "*" } else { "" };
    format!("the kernel truncates it to {}", quoted(&format!("{kept}{open}")))
}

/// Returns the literal start of all texts that a pattern matches, as far as it is easily determined.
fn start(pattern: &Pattern) -> String {
    let text = pattern.to_string();
    match pattern {
        Pattern::Text(_) => text,
        Pattern::Glob(_) => text.chars().take_while(|letter| !"*?[{\\".contains(*letter)).collect(),
        Pattern::Regex(_) => {
            let expression = text.trim_start_matches("re:");
            let plain = |letter: &char| letter.is_alphanumeric() || "-_/ ".contains(*letter);
            let mut start: String = expression.chars().take_while(plain).collect();
            match expression[start.len()..].chars().next() {
                // The start is one of several, or optional.
                _ if expression.contains('|') => start.clear(),
                Some('*' | '?' | '{') => drop(start.pop()),
                _ => {}
            }
            start
        }
    }
}

/// Returns whether a text or glob was probably meant as a regular expression.
fn resembles_expression(pattern: &Pattern) -> bool {
    const SIGNS: [&str; 8] = ["\\d", "\\w", "\\s", "\\.", "]+", ")+", ".+", "(?"];
    let text = pattern.to_string();
    !matches!(pattern, Pattern::Regex(_))
        && (text.starts_with(['^', '.'])
            || text.ends_with('$')
            || (text.contains('(') && text.contains('|'))
            || SIGNS.iter().any(|sign| text.contains(sign)))
}

/// Returns whether a pattern matches only digits.
fn is_numeric(pattern: &Pattern) -> bool {
    let mut text = pattern.to_string();
    if matches!(pattern, Pattern::Regex(_)) {
        text = text.trim_start_matches("re:").replace("\\d", "0").replace('.', "");
    }
    text.contains(|letter: char| letter.is_ascii_digit())
        && !text.contains(|letter: char| letter.is_alphabetic() || "_.@".contains(letter))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::pattern;

    #[test]
    fn start_of_pattern_is_what_every_match_begins_with() {
        let cases = [
            ("tensorboard-server", "tensorboard-server"),
            ("tensorboard*", "tensorboard"),
            ("*board", ""),
            ("job-[0-9]", "job-"),
            ("re:python3?", "python"),
            ("re:ab*c", "a"),
            ("re:a|b", ""),
            ("re:[ab]c", ""),
            ("re:(?i)abc", ""),
            ("re:job-12", "job-12"),
        ];
        for (text, expected) in cases {
            assert_eq!(start(&pattern::read(text).unwrap()), expected, "{text}");
        }
    }

    #[test]
    fn numeric_patterns_have_digits_and_no_letters() {
        for (text, expected) in [
            ("1000", true),
            ("100*", true),
            ("10??", true),
            ("re:10[0-9]+", true),
            ("re:10\\d+", true),
            ("re:100.*", true),
            ("*", false),
            ("user1*", false),
            ("re:[a-z]+[0-9]", false),
        ] {
            assert_eq!(is_numeric(&pattern::read(text).unwrap()), expected, "{text}");
        }
    }
}
