//! Audit log in JSON Lines: one object for each decision, change and action. A destructive action is written
//! to disk before it starts, and again with its result.

pub mod entries;
mod journal;
mod status;
mod waiting;

use std::fmt::Write as _;
use std::io::{self, Write};
use std::ops::Deref;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bailiff_engine::policy::Mode;
use bailiff_engine::verdict::{Evidence, Subject};
use bailiff_snapshot::ProcessKey;
use journal::Journal;
use serde::{Deserialize, Serialize};
use serde_json::ser::Formatter;
use serde_with_macros::skip_serializing_none;
use waiting::{Waiting, Worth};

use crate::clock;

pub use journal::{AuditSettings, Begun};
pub use status::LogStatus;

/// Wait before a failed write is retried.
const AGAIN: Duration = Duration::from_secs(1);

/// `result` of the line that is written before an action starts.
pub const BEGUN: &str = "begun";
/// `result` of the line that is written before processes are stopped with SIGSTOP and killed.
pub const STOPPING: &str = "stopping";
/// `result` of an action that an earlier run started and for which it wrote no result.
pub const INTERRUPTED: &str = "interrupted";

/// Identification of the writing process, included in every line.
#[derive(Debug, Clone, Default)]
pub struct About {
    /// Name of the node.
    pub node: String,
    /// Boot id of the kernel.
    pub boot_id: Option<String>,
}

/// Content of one line: a decision, a change, or an action.
#[skip_serializing_none]
#[derive(Debug, Clone, Default, Serialize)]
pub struct Record<'a> {
    /// Id of an action, the same in all lines about it.
    pub id: Option<u64>,
    /// SHA-256 of the policy file.
    pub policy: &'a str,
    /// Name of the rule; empty if no rule requested the change.
    pub rule: &'a str,
    /// Mode of the rule: dry run or enforce.
    pub mode: Option<Mode>,
    /// Name of the step: `terminate`, `flag`, `reload` and so on.
    pub step: &'a str,
    /// Result: [`BEGUN`], or the name of an outcome.
    pub result: &'a str,
    /// Human-readable details.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub detail: &'a str,
    /// Target of the rule.
    pub target: Option<&'a Subject>,
    /// Values that made the rule match.
    pub evidence: Option<&'a Evidence>,
    /// Effects of an action.
    #[serde(flatten)]
    pub after: Option<&'a After>,
}

/// Effects of an action, as far as they are known.
#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct After {
    /// Signals that were sent, and the process that received each.
    pub sent: Vec<Sent>,
    /// Milliseconds from the start of the action until its last process had ended.
    pub gone_ms: Option<u64>,
    /// GPU memory of the target before the action, in bytes.
    pub vram_before: Option<u64>,
    /// GPU memory that is still held or unaccounted after the action, in bytes.
    pub vram_after: Option<u64>,
    /// Remarks, such as an extended grace period.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// Processes that are about to be stopped. If the enforcer dies, its next start continues them.
    pub held_still: Option<HeldStill>,
}

/// A signal that was sent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Sent {
    /// Pid of the process.
    pub pid: u32,
    /// Start time of the process, in clock ticks since boot.
    pub start_ticks: u64,
    /// Name of the process.
    pub comm: String,
    /// Name of the signal, such as `SIGTERM`, or `cgroup.kill`.
    pub signal: &'static str,
    /// Milliseconds after the start of the action.
    pub at_ms: u64,
    /// `sent`, `had ended`, or the error.
    pub result: String,
}

/// Processes that an action stops or freezes before it kills them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldStill {
    /// Processes that receive SIGSTOP.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub processes: Vec<ProcessKey>,
    /// Path of the `cgroup.freeze` file, if a cgroup is frozen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub freezer: Option<PathBuf>,
}

/// Error of a line that could not be written to disk.
#[derive(Debug, thiserror::Error)]
#[error("cannot write the audit log: {0}")]
pub struct Unwritten(#[from] std::io::Error);

/// Handle of the audit log; clones share one file.
#[derive(Debug, Clone)]
pub struct Audit(Arc<Shared>);

/// The audit log.
#[derive(Debug)]
pub struct AuditLog {
    about: About,
    /// Continues processes that an earlier run stopped; returns their number.
    continue_stopped: fn(&HeldStill) -> usize,
    settings: AuditSettings,
    journal: Mutex<Journal>,
    waiting: Waiting,
    /// Whether lines can be written.
    pub status: Arc<LogStatus>,
    /// Whether the file of kept lines exists and its lines are not yet all in the log.
    took_up: AtomicBool,
}

/// The log and its writing thread.
#[derive(Debug)]
struct Shared {
    open: Arc<AuditLog>,
    /// Disconnected once the writing thread has ended.
    writer: Mutex<Receiver<()>>,
}

impl Audit {
    /// Opens the log on a separate thread, with retries. Unfinished actions of an earlier run get the result
    /// [`INTERRUPTED`], after `continue_stopped` was called for each group of processes they had stopped.
    ///
    /// # Errors
    /// If the thread cannot be started, because there would be no retries.
    pub fn open(
        settings: AuditSettings,
        about: About,
        continue_stopped: fn(&HeldStill) -> usize,
    ) -> std::io::Result<Self> {
        let status = Arc::new(LogStatus::default());
        let open = Arc::new(AuditLog {
            about,
            continue_stopped,
            journal: Mutex::new(Journal::new(settings.clone(), Arc::clone(&status))),
            settings,
            waiting: Waiting::default(),
            status,
            took_up: AtomicBool::new(false),
        });
        let (ends, writer) = channel();
        let theirs = Arc::clone(&open);
        std::thread::Builder::new().name("audit".to_owned()).spawn(move || {
            theirs.write();
            drop::<std::sync::mpsc::Sender<()>>(ends);
        })?;
        Ok(Self(Arc::new(Shared { open, writer: Mutex::new(writer) })))
    }

    /// Writes all queued lines, or saves them in the file [`AuditSettings::kept`] for the next start. Does
    /// not wait for a hanging disk. Lines that are added later may be lost.
    pub fn close(&self) {
        self.0.close();
    }
}

impl Deref for Audit {
    type Target = AuditLog;

    fn deref(&self) -> &AuditLog {
        &self.0.open
    }
}

impl AuditLog {
    /// Writes a line and waits until it is on disk.
    ///
    /// # Errors
    /// If the line may not be on disk.
    pub fn record(&self, record: &Record<'_>) -> Result<(), Unwritten> {
        let line = self.line(record)?;
        Ok(self.with(|journal| self.flush(journal, Some(&line)))?)
    }

    /// Writes a line. If that fails, the line is kept and the write is retried.
    pub fn append(&self, record: &Record<'_>) {
        match self.line(record) {
            Ok(line) => {
                // Queued first, so that the line is kept even if the disk hangs from now on.
                self.add(Worth::Result, line);
                drop(self.with(|journal| self.flush(journal, None)));
            }
            Err(error) => tracing::error!(%error, "cannot serialize a line of the audit log"),
        }
    }

    /// Queues a line for the writing thread, for callers that must not wait for a disk.
    pub fn later(&self, record: &Record<'_>) {
        if let Ok(line) = self.line(record) {
            // A user causes findings about targets, but no changes of the enforcer itself.
            self.add(if record.target.is_some() { Worth::Note } else { Worth::Result }, line);
        }
    }

    fn add(&self, worth: Worth, line: Vec<u8>) {
        self.status.dropped(self.waiting.add(worth, line));
    }

    /// Calls `act` with the journal, and opens the journal before the first call.
    fn with<T>(&self, act: impl FnOnce(&mut Journal) -> T) -> T {
        let mut journal = self.journal.lock().unwrap_or_else(PoisonError::into_inner);
        self.status.during(|| {
            if !journal.is_open() {
                self.begin(&mut journal);
            }
            act(&mut journal)
        })
    }

    /// Queues the lines that an earlier run could not write, and a line for each of its unfinished actions.
    fn begin(&self, journal: &mut Journal) {
        let kept = match self.settings.kept.as_deref().map(waiting::kept) {
            Some(Err(error)) => {
                tracing::error!(%error, "lines that an earlier run could not write to the audit log are lost");
                Vec::new()
            }
            kept => kept.and_then(Result::ok).unwrap_or_default(),
        };
        journal.begin(&kept);
        self.took_up.store(!kept.is_empty(), Ordering::Relaxed);
        for line in kept {
            self.add(Worth::Result, line);
        }
        for begun in journal.interrupted() {
            tracing::warn!(?begun, "an earlier run began an action and exited before its result was written");
            let detail = self.continue_stopped(&begun);
            if let Ok(line) = self.line(&interrupted(&begun, &detail)) {
                self.add(Worth::Result, line);
            }
        }
    }

    /// Continues the processes that an interrupted action had stopped on this boot. Returns the log text.
    fn continue_stopped(&self, begun: &Begun) -> String {
        let mut detail =
            "the enforcer exited before the action had a result; its outcome is unknown".to_owned();
        if begun.boot_id.is_some() && begun.boot_id == self.about.boot_id {
            let count: usize = begun.held_still.iter().map(self.continue_stopped).sum();
            if count > 0 {
                let _ = write!(detail, "; {count} processes that it had stopped were continued");
            }
        }
        detail
    }

    /// Writes all queued lines, and then `last`.
    fn flush(&self, journal: &mut Journal, last: Option<&[u8]>) -> std::io::Result<()> {
        let waiting = self.waiting.all();
        let lines = waiting.iter().map(|(_, line)| line.as_slice()).chain(last);
        let (kept, written) = journal.write(lines);
        self.waiting.written(waiting.get(..kept.min(waiting.len())).unwrap_or_default());
        if written.is_ok()
            && self.took_up.swap(false, Ordering::Relaxed)
            && let Some(path) = &self.settings.kept
        {
            waiting::forget(path);
        }
        written
    }

    /// Body of the writing thread: writes queued lines and retries failed writes until the queue is closed.
    fn write(&self) {
        self.with(|_| ());
        loop {
            let more = self.waiting.wait(AGAIN, self.status.failed());
            if self.status.failed() {
                self.retry();
            } else if !self.waiting.is_empty() {
                drop(self.with(|journal| self.flush(journal, None)));
            }
            if !more {
                return;
            }
        }
    }

    /// Retries after a failed write, by writing a line that reports the recovery.
    fn retry(&self) {
        if !self.status.failed() {
            return;
        }
        let detail = "the audit log can be written again";
        let recovered = Record { step: "audit", result: "recovered", detail, ..Record::default() };
        if self.record(&recovered).is_ok() {
            tracing::info!("the audit log can be written again");
        }
    }

    fn line(&self, record: &Record<'_>) -> Result<Vec<u8>, std::io::Error> {
        write(&self.about, UNIX_EPOCH + clock::now().wall, record).map_err(std::io::Error::other)
    }
}

fn interrupted<'a>(begun: &'a Begun, detail: &'a str) -> Record<'a> {
    Record {
        id: Some(begun.id),
        policy: &begun.policy,
        rule: &begun.rule,
        step: &begun.step,
        result: INTERRUPTED,
        detail,
        ..Record::default()
    }
}

impl Shared {
    fn close(&self) {
        let open = &self.open;
        open.waiting.close();
        let writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        while writer.recv_timeout(AGAIN) == Err(RecvTimeoutError::Timeout) && !open.status.hangs() {}
        if let Some(path) = &open.settings.kept
            && let Err(error) = open.waiting.keep(path)
        {
            tracing::error!(%error, path = %path.display(), "lines that could not be written to the audit log are lost");
        }
    }
}

/// Writes all queued lines before the log is closed.
impl Drop for Shared {
    fn drop(&mut self) {
        self.close();
    }
}

#[derive(Serialize)]
struct Line<'a> {
    time: String,
    node: &'a str,
    boot_id: Option<&'a str>,
    #[serde(flatten)]
    record: &'a Record<'a>,
}

fn write(about: &About, at: SystemTime, record: &Record<'_>) -> serde_json::Result<Vec<u8>> {
    let time = humantime::format_rfc3339_millis(at).to_string();
    let mut line = ascii(&Line { time, node: &about.node, boot_id: about.boot_id.as_deref(), record })?;
    line.push(b'\n');
    Ok(line)
}

/// Serializes to JSON with every character outside printable ASCII escaped.
pub(crate) fn ascii(value: &impl Serialize) -> serde_json::Result<Vec<u8>> {
    let mut text = Vec::new();
    value.serialize(&mut serde_json::Serializer::with_formatter(&mut text, Ascii))?;
    Ok(text)
}

struct Ascii;

impl Formatter for Ascii {
    fn write_string_fragment<W: ?Sized + Write>(&mut self, writer: &mut W, fragment: &str) -> io::Result<()> {
        for character in fragment.chars() {
            if matches!(character, ' '..='~') {
                writer.write_all(&[character as u8])?;
            } else {
                for unit in character.encode_utf16(&mut [0; 2]) {
                    write!(writer, "\\u{unit:04x}")?;
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
