//! The commands that talk with a daemon that runs, and those that need none.

pub mod backtest;
pub mod check;
pub mod explain;
mod failure;
mod files;
mod paper;
pub mod pause;
pub mod rehearsal;
pub mod replay;
pub mod schema;
pub mod status;
mod table;
pub mod test;
mod wanted;

use std::io::{self, IsTerminal};
use std::path::Path;

use anyhow::{Context, Result, bail};
use bailiff_exposition::bounded_prose;
use bailiff_lifecycle::control;
use serde_json::Value;

use crate::control::Question;
pub use failure::Failure;
pub use wanted::{past, told};

/// How a command tells what it found.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Form {
    /// For people: 80 columns, and nothing in it that a terminal would obey.
    #[default]
    Text,
    /// One JSON document.
    Json,
}

/// Whether colours are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ink {
    /// Text as it is.
    Plain,
    /// Colours of a terminal.
    Colour,
}

impl Ink {
    /// Colours where standard output is a terminal.
    #[must_use]
    pub fn of_stdout() -> Self {
        if io::stdout().is_terminal() { Self::Colour } else { Self::Plain }
    }

    /// What is wrong.
    fn bad(self, text: &str) -> String {
        self.dress("\u{1b}[31m", text)
    }

    /// What stands above a table.
    fn title(self, text: &str) -> String {
        self.dress("\u{1b}[1m", text)
    }

    fn dress(self, code: &str, text: &str) -> String {
        match self {
            Self::Plain => text.to_owned(),
            Self::Colour => format!("{code}{text}\u{1b}[0m"),
        }
    }
}

/// Asks the daemon, and takes only a yes for an answer.
///
/// # Errors
/// Where nobody answers, or the answer is no; it says why.
pub fn ask(control: &Path, question: &Question) -> Result<Value> {
    let answer = say(control, question)?;
    if answer["ok"] == true {
        return Ok(answer);
    }
    bail!("{}", refusal(&answer))
}

fn say(control: &Path, question: &Question) -> Result<Value> {
    let question = serde_json::to_value(question).context("cannot write the question")?;
    control::ask(control, &question)
}

fn refusal(answer: &Value) -> String {
    answer["error"].as_str().map_or_else(|| "it was refused, and not told why".to_owned(), line)
}

/// Foreign text as one line that no terminal is moved by.
fn line(text: &str) -> String {
    bounded_prose(text).replace('\n', " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn foreign_text_stays_on_its_line() {
        assert_eq!(line("a\u{1b}[2J\nb\r\u{202e}c"), "a\u{fffd}[2J b\u{fffd}\u{fffd}c");
    }
}
