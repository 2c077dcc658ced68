//! The log, as Python's `logging` writes it: lines of `gpu_idle_timeout` are the original's word for word, and what it had
//! nothing to say about is told by the name of `bailiff`.

use std::fmt::Display;
use std::io::Write;

use super::NAME;

/// How much a line matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Level {
    Debug,
    Info,
    Warning,
    Error,
}

/// Writes to standard error.
pub(super) struct Log {
    pub(super) debug: bool,
}

impl Log {
    /// A line of the original's.
    pub(super) fn line(&self, level: Level, text: impl Display) {
        self.write(level, NAME, &text);
    }

    /// A line of ours.
    pub(super) fn remark(&self, level: Level, text: impl Display) {
        self.write(level, "bailiff", &text);
    }

    fn write(&self, level: Level, name: &str, text: &dyn Display) {
        if level == Level::Debug && !self.debug {
            return;
        }
        let level = match level {
            Level::Debug => "DEBUG",
            Level::Info => "INFO",
            Level::Warning => "WARNING",
            Level::Error => "ERROR",
        };
        let now = jiff::Zoned::now().strftime("%Y-%m-%d %H:%M:%S,%3f").to_string();
        // A reader that has gone is no reason to leave a command unwatched.
        let _ = writeln!(std::io::stderr(), "{now}: {level}: {name}: {text}");
    }
}

/// Names as Python writes a list of them.
pub(super) fn list<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    let names: Vec<String> = names.into_iter().map(|name| format!("'{name}'")).collect();
    format!("[{}]", names.join(", "))
}
