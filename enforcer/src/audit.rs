//! The audit log: JSON Lines, one object for each decision and each change. A destructive action has a line on disk
//! before it is done, and another with what came of it.

mod journal;
mod line;
mod status;
mod waiting;

use std::fmt::Write as _;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bailiff_snapshot::ProcessKey;
use serde::{Deserialize, Serialize};

use crate::clock;
use bailiff_engine::policy::Mode;
use bailiff_engine::verdict::{Evidence, Subject};

use journal::Journal;
pub use journal::{AuditSettings, Begun};
pub(crate) use line::ascii;
use status::LogStatus;
use waiting::{Waiting, Worth};

/// Between two tries, where the last one failed.
const AGAIN: Duration = Duration::from_secs(1);

/// What a line says where an action begins.
pub const BEGUN: &str = "begun";
/// What a line says before processes are stopped for their SIGKILL.
pub const STOPPING: &str = "stopping";
/// Result of an action whose outcome was never written.
pub const INTERRUPTED: &str = "interrupted";

/// The process that writes the log: on every line.
#[derive(Debug, Clone, Default)]
pub struct About {
    /// The node's name.
    pub node: String,
    /// Which boot.
    pub boot_id: Option<String>,
}

/// A decision, a change, or an action.
#[derive(Debug, Clone, Serialize)]
pub struct Record<'a> {
    /// Names an action: its beginning and its end have the same.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<u64>,
    /// SHA-256 of the policy.
    pub policy: &'a str,
    /// The rule's name; empty if no rule asked for it.
    pub rule: &'a str,
    /// Whether the rule may act.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<Mode>,
    /// `terminate`, `flag`, `reload` and so on.
    pub step: &'a str,
    /// What came of it: [`BEGUN`], or a name of an outcome.
    pub result: &'a str,
    /// More, for people.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub detail: &'a str,
    /// Whom it is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target: Option<&'a Subject>,
    /// Why.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub evidence: Option<&'a Evidence>,
    /// What came of an action.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub after: Option<&'a After>,
}

/// What came of an action.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct After {
    /// The signals sent, and to which processes.
    pub sent: Vec<Sent>,
    /// From the first signal until the last process was gone, milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gone_ms: Option<u64>,
    /// GPU memory of the target before, bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vram_before: Option<u64>,
    /// And after.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vram_after: Option<u64>,
    /// What was noticed on the way.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// What is about to be stopped: should this program die, the next start continues it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub held_still: Option<HeldStill>,
}

/// A signal that was sent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Sent {
    /// To this pid ...
    pub pid: u32,
    /// ... of the process that started then.
    pub start_ticks: u64,
    /// Its name.
    pub comm: String,
    /// `SIGTERM`; or what else was sent, `cgroup.kill`.
    pub signal: &'static str,
    /// Milliseconds after the action began.
    pub at_ms: u64,
    /// `sent`, `had ended`, or why not.
    pub result: String,
}

/// What an action holds still.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldStill {
    /// Processes that are sent SIGSTOP.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub processes: Vec<ProcessKey>,
    /// The `cgroup.freeze` of a cgroup that is frozen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub freezer: Option<PathBuf>,
}

/// Why a line is not on disk.
#[derive(Debug, thiserror::Error)]
#[error("the audit log cannot be written: {0}")]
pub struct Unwritten(#[from] std::io::Error);

/// The log; its copies write one file.
#[derive(Debug, Clone)]
pub struct Audit(Arc<Shared>);

#[derive(Debug)]
struct Open {
    about: About,
    /// Continues processes that an earlier run had stopped, and returns their number.
    continue_stopped: fn(&HeldStill) -> usize,
    settings: AuditSettings,
    journal: Mutex<Journal>,
    waiting: Waiting,
    status: Arc<LogStatus>,
    /// What an earlier run has kept waits still, and its file is there.
    took_up: AtomicBool,
}

/// The log, and the thread that writes deferred lines.
#[derive(Debug)]
struct Shared {
    open: Arc<Open>,
    /// Disconnected once that thread has ended.
    writer: Mutex<Receiver<()>>,
}

impl Audit {
    /// Opens the log, in a thread of its own. If that fails it is tried again, and [`Audit::writable`] reports it. An action that
    /// was begun and has no result gets a line that says so, after `continue_stopped` was called for each group of processes
    /// that it had stopped.
    ///
    /// # Errors
    /// If the thread cannot be started, because there would be no retries.
    pub fn open(
        settings: AuditSettings,
        about: About,
        continue_stopped: fn(&HeldStill) -> usize,
    ) -> std::io::Result<Self> {
        let status = Arc::new(LogStatus::default());
        let open = Arc::new(Open {
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

    /// Actions that an earlier run began and gave no result of, as found when the log was opened. May wait for the disk.
    #[must_use]
    pub fn begun_without_result(&self) -> Vec<Begun> {
        self.0.open.with(|journal| journal.interrupted())
    }

    /// Writes a line and waits until it is on the disk.
    ///
    /// # Errors
    /// If it is not known to be there.
    pub fn record(&self, record: &Record<'_>) -> Result<(), Unwritten> {
        self.0.open.record(record)
    }

    /// Writes a line, now or as soon as the disk accepts it: late rather than never.
    pub fn append(&self, record: &Record<'_>) {
        self.0.open.append(record);
    }

    /// Hands a line to the writing thread, for callers that must not wait for a disk.
    pub fn later(&self, record: &Record<'_>) {
        let open = &self.0.open;
        if let Ok(line) = open.line(record) {
            open.add(Worth::Note, line);
        }
    }

    /// Writes what waits, or keeps it for the next start (`Settings::kept`); a disk that hangs is not waited for. Lines that
    /// come later may be lost.
    pub fn close(&self) {
        self.0.close();
    }

    /// Whether the last try to write succeeded, and none hangs; where one failed, it is tried again every second.
    #[must_use]
    pub fn writable(&self) -> bool {
        self.0.open.status.writable()
    }

    /// Whether the disk does not answer: a caller of [`Audit::record`] waits for it.
    #[must_use]
    pub fn hangs(&self) -> bool {
        self.0.open.status.hangs()
    }

    /// How many lines could not be written when they should have been.
    #[must_use]
    pub fn failures(&self) -> u64 {
        self.0.open.status.failures()
    }

    /// How many lines are lost for good.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.0.open.status.lost()
    }
}

impl Open {
    fn record(&self, record: &Record<'_>) -> Result<(), Unwritten> {
        let line = self.line(record)?;
        Ok(self.with(|journal| self.flush(journal, Some(&line)))?)
    }

    fn append(&self, record: &Record<'_>) {
        match self.line(record) {
            Ok(line) => {
                // Also where the disk hangs from here on, it is kept.
                self.add(Worth::Result, line);
                drop(self.with(|journal| self.flush(journal, None)));
            }
            Err(error) => tracing::error!(%error, "a line of the audit log has no form"),
        }
    }

    fn add(&self, worth: Worth, line: Vec<u8>) {
        if !self.waiting.add(worth, line) {
            self.status.lose();
        }
    }

    /// Does something with the journal, which was opened before.
    fn with<T>(&self, act: impl FnOnce(&mut Journal) -> T) -> T {
        let mut journal = self.journal.lock().unwrap_or_else(PoisonError::into_inner);
        self.status.during(|| {
            if !journal.is_open() {
                self.begin(&mut journal);
            }
            act(&mut journal)
        })
    }

    /// Takes up what an earlier run has left: lines that it could not write, and actions without a result.
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
            tracing::warn!(?begun, "an earlier run began an action and did not live to see its end");
            let detail = self.continue_stopped(&begun);
            if let Ok(line) = self.line(&interrupted(&begun, &detail)) {
                self.add(Worth::Result, line);
            }
        }
    }

    /// Continues what an earlier run had stopped for its SIGKILL and did not live to end; says so.
    fn continue_stopped(&self, begun: &Begun) -> String {
        let mut detail =
            "this program ended before the action had a result; how it went is not known".to_owned();
        if begun.boot_id.is_some() && begun.boot_id == self.about.boot_id {
            let count: usize = begun.held_still.iter().map(self.continue_stopped).sum();
            if count > 0 {
                let _ = write!(detail, "; {count} processes that it had stopped were continued");
            }
        }
        detail
    }

    /// Writes what waits, and then this line.
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

    /// Writes what comes, until no more can.
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

    /// Tries again, where the last try failed.
    fn retry(&self) {
        if !self.status.failed() {
            return;
        }
        let recovered = Record {
            id: None,
            policy: "",
            rule: "",
            mode: None,
            step: "audit",
            result: "recovered",
            detail: "the log can be written again",
            target: None,
            evidence: None,
            after: None,
        };
        if self.record(&recovered).is_ok() {
            tracing::info!("the audit log can be written again");
        }
    }

    fn line(&self, record: &Record<'_>) -> Result<Vec<u8>, std::io::Error> {
        line::write(&self.about, clock::today(), record).map_err(std::io::Error::other)
    }
}

fn interrupted<'a>(begun: &'a Begun, detail: &'a str) -> Record<'a> {
    Record {
        id: Some(begun.id),
        policy: &begun.policy,
        rule: &begun.rule,
        mode: None,
        step: &begun.step,
        result: INTERRUPTED,
        detail,
        target: None,
        evidence: None,
        after: None,
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
            tracing::error!(%error, path = %path.display(), "what the audit log did not take is lost");
        }
    }
}

/// What was left to the writing thread is written before the log closes.
impl Drop for Shared {
    fn drop(&mut self) {
        self.close();
    }
}

impl Sent {
    /// Milliseconds of a time.
    #[must_use]
    pub fn millis(time: Duration) -> u64 {
        u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests;
