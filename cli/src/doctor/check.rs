//! What a check found, and how it is shown.

use bailiff_exposition::terminal::{Colors, line, wrapped};
use serde::Serialize;

/// How it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum State {
    /// It works.
    Ok,
    /// It works, and somebody should look at it.
    Warn,
    /// It does not work.
    Fail,
    /// It is not there, or not for us to see.
    Skip,
}

impl State {
    const fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warn => "warn",
            Self::Fail => "fail",
            Self::Skip => "skip",
        }
    }
}

/// What a check found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Check {
    /// What was looked at.
    #[serde(rename = "check")]
    pub(crate) name: &'static str,
    pub(crate) state: State,
    /// What was seen.
    pub(crate) text: String,
    /// The way out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) hint: Option<String>,
}

impl Check {
    /// It works.
    pub(crate) fn ok(name: &'static str, text: impl Into<String>) -> Self {
        Self { name, state: State::Ok, text: text.into(), hint: None }
    }

    /// Somebody should look at it.
    pub(crate) fn warn(name: &'static str, text: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { name, state: State::Warn, text: text.into(), hint: Some(hint.into()) }
    }

    /// It does not work.
    pub(crate) fn fail(name: &'static str, text: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { name, state: State::Fail, text: text.into(), hint: Some(hint.into()) }
    }

    /// It is not there.
    pub(crate) fn skip(name: &'static str, text: impl Into<String>, hint: Option<&str>) -> Self {
        Self { name, state: State::Skip, text: text.into(), hint: hint.map(str::to_owned) }
    }

    /// Its lines: what was seen, and below it the way out.
    pub(crate) fn lines(&self, width: usize, colors: Colors) -> Vec<String> {
        let name = format!("{:<4}", self.state.name());
        let state = match self.state {
            State::Ok => colors.good(&name),
            State::Warn => colors.odd(&name),
            State::Fail => colors.bad(&name),
            State::Skip => name,
        };
        let room = width.saturating_sub(INDENT).max(INDENT);
        let mut before = format!("{state}  {:<14}", self.name);
        let mut lines = Vec::new();
        let hint =
            self.hint.as_deref().map(line).into_iter().flat_map(|hint| wrapped(&format!("-> {hint}"), room));
        for part in wrapped(&line(&self.text), room).into_iter().chain(hint) {
            lines.push(format!("{before}{part}"));
            before = " ".repeat(INDENT);
        }
        lines
    }
}

/// Where what was seen begins.
const INDENT: usize = 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_check_fits_the_width() {
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
