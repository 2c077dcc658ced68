//! The log in the format of Python's `logging`. Lines of the logger `gpu_idle_timeout` have the texts of
//! `gpu_idle_timeout.py`; additional lines have the logger name `bailiff`.

use std::fmt::Display;
use std::io::Write;

use super::NAME;
use crate::output::joined;

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
    /// Logs a line that `gpu_idle_timeout.py` also logs.
    pub(super) fn line(&self, level: Level, text: impl Display) {
        self.write(level, NAME, &text);
    }

    /// Logs a line that `gpu_idle_timeout.py` does not have.
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
        // A write error is ignored, so that it does not end the monitoring of the command.
        let _ = writeln!(std::io::stderr(), "{now}: {level}: {name}: {text}");
    }
}

/// Formats names as Python prints a list of strings.
pub(super) fn list<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    format!("[{}]", joined(names.into_iter().map(|name| format!("'{name}'")), ", "))
}
