//! The result of a check and its text form.

use bailiff_exposition::terminal::{Colors, line, wrapped};
use serde::Serialize;

bailiff_snapshot::label_values! {
/// The state of the checked part.
pub enum State {
    /// No problem.
    Ok = "ok",
    /// The checked part works, but needs attention.
    Warn = "warn",
    /// The checked part does not work.
    Fail = "fail",
    /// The checked part is not installed, or this user may not see it.
    Skip = "skip",
}
}

/// The result of a check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Check {
    #[serde(rename = "check")]
    pub(crate) name: &'static str,
    pub(crate) state: State,
    /// Text of the finding.
    pub(crate) text: String,
    /// How to fix the problem.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) hint: Option<String>,
}

impl Check {
    /// Creates a check without a problem.
    pub(crate) fn ok(name: &'static str, text: impl Into<String>) -> Self {
        Self { name, state: State::Ok, text: text.into(), hint: None }
    }

    /// Creates a check that needs attention.
    pub(crate) fn warn(name: &'static str, text: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { name, state: State::Warn, text: text.into(), hint: Some(hint.into()) }
    }

    /// Creates a failed check.
    pub(crate) fn fail(name: &'static str, text: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { name, state: State::Fail, text: text.into(), hint: Some(hint.into()) }
    }

    /// Creates a check that does not apply or is not possible.
    pub(crate) fn skip(name: &'static str, text: impl Into<String>, hint: Option<&str>) -> Self {
        Self { name, state: State::Skip, text: text.into(), hint: hint.map(str::to_owned) }
    }

    /// Returns the lines of the check: the finding, then the hint.
    pub(crate) fn lines(&self, width: usize, colors: Colors) -> Vec<String> {
        let name = format!("{:<4}", self.state.name());
        let state = match self.state {
            State::Ok => colors.good(&name),
            State::Warn => colors.odd(&name),
            State::Fail => colors.bad(&name),
            State::Skip => name,
        };
        let text_width = width.saturating_sub(INDENT).max(INDENT);
        let mut prefix = format!("{state}  {:<14}", self.name);
        let mut lines = Vec::new();
        let hint = self
            .hint
            .as_deref()
            .map(line)
            .into_iter()
            .flat_map(|hint| wrapped(&format!("-> {hint}"), text_width));
        for part in wrapped(&line(&self.text), text_width).into_iter().chain(hint) {
            lines.push(format!("{prefix}{part}"));
            prefix = " ".repeat(INDENT);
        }
        lines
    }
}

/// The column at which the finding begins.
const INDENT: usize = 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn check_lines_fit_the_width() {
        let check =
            Check::fail("gpus", "GPU 1 has fallen\noff the bus", "dmesg | grep -i xid, and then reset it");
        let lines = check.lines(50, Colors::Plain);
        let expected = [
            "fail  gpus          GPU 1 has fallen off the bus",
            "                    -> dmesg | grep -i xid, and",
            "                    then reset it",
        ];
        assert_eq!(lines, expected);
        assert_eq!(
            Check::ok("x", "y").lines(80, Colors::Colour),
            ["\u{1b}[32mok  \u{1b}[0m  x             y"]
        );
    }
}
