//! Progress messages of a wait for GPUs, on standard error.

#![expect(clippy::disallowed_methods, reason = "measures the wait")]

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use bailiff_exposition::human::Span;
use bailiff_lease::Grant;

use crate::output::{joined, print_message, write_stderr};

/// The interval of messages if standard error is not a terminal.
const INTERVAL: Duration = Duration::from_mins(1);

/// The progress of a wait: on a terminal one line that is rewritten, else a line immediately and then every minute.
pub(super) struct Progress {
    want: u32,
    began: Instant,
    terminal: bool,
    /// The time of the last message.
    written: Option<Instant>,
    over: bool,
}

impl Progress {
    pub(super) fn new(want: u32) -> Self {
        let terminal = std::io::stderr().is_terminal();
        Self { want, began: Instant::now(), terminal, written: None, over: false }
    }

    /// Reports the number of requests ahead in the queue.
    pub(super) fn waiting(&mut self, before: u64) {
        if let Some(line) = self.line(before, Instant::now()) {
            if self.terminal {
                write_stderr(&format!("\r\x1b[Kbailiff: {line}"));
            } else {
                print_message(line);
            }
        }
    }

    /// Returns the line to print now, if any.
    fn line(&mut self, before: u64, now: Instant) -> Option<String> {
        if self.over || (!self.terminal && self.written.is_some_and(|written| now < written + INTERVAL)) {
            return None;
        }
        let first = self.written.replace(now).is_none();
        let gpus = if self.want == 1 { "a GPU".to_owned() } else { format!("{} GPUs", self.want) };
        let waited =
            if first || self.terminal { String::new() } else { format!(" for {}", Span(now - self.began)) };
        let behind = match before {
            0 => String::new(),
            1 => ", behind 1 other".to_owned(),
            others => format!(", behind {others} others"),
        };
        Some(format!("waiting for {gpus}{waited}{behind}"))
    }

    /// Clears the line, so that another message can be printed.
    pub(super) fn clear(&mut self) {
        if self.terminal && self.written.take().is_some() {
            write_stderr("\r\x1b[K");
        }
    }

    /// Ends the current line and prints nothing from then on.
    pub(super) fn interrupt(&mut self) {
        if self.terminal && !self.over && self.written.take().is_some() {
            write_stderr("\n");
        }
        self.over = true;
    }

    /// Reports the granted GPUs.
    pub(super) fn granted(&mut self, grant: &Grant) {
        let waited = self.began.elapsed();
        self.clear();
        if !std::mem::replace(&mut self.over, true) {
            print_message(leased(&grant.gpus, waited));
        }
    }
}

/// Returns `GPU 1 leased after 3 min 2 s`; without the time if it was below a second.
fn leased(gpus: &[u32], waited: Duration) -> String {
    let (ids, name) = (joined(gpus, ","), if gpus.len() == 1 { "GPU" } else { "GPUs" });
    let after = if waited.as_secs() == 0 { String::new() } else { format!(" after {}", Span(waited)) };
    format!("{name} {ids} leased{after}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wait_without_terminal_is_reported_every_minute() {
        let began = Instant::now();
        let mut progress = Progress { want: 2, began, terminal: false, written: None, over: false };
        let mut line = |seconds, before| progress.line(before, began + Duration::from_secs(seconds));
        assert_eq!(line(0, 2).as_deref(), Some("waiting for 2 GPUs, behind 2 others"));
        assert_eq!(line(59, 1), None);
        assert_eq!(line(60, 1).as_deref(), Some("waiting for 2 GPUs for 1 min 0 s, behind 1 other"));
        assert_eq!(line(119, 0), None);
        assert_eq!(line(125, 0).as_deref(), Some("waiting for 2 GPUs for 2 min 5 s"));
    }

    #[test]
    fn grant_names_gpus_and_wait() {
        assert_eq!(leased(&[1], Duration::from_millis(900)), "GPU 1 leased");
        assert_eq!(leased(&[0, 3], Duration::from_secs(182)), "GPUs 0,3 leased after 3 min 2 s");
    }
}
