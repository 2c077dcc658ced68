//! The audit log: JSON Lines, one object for each decision and each change. A destructive deed has a line on disk
//! before it is done, and another with what came of it.

mod journal;
mod line;

use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use serde::Serialize;

use crate::actions::clock;
use crate::actions::watchdog::HeldStill;
use crate::policy::Mode;
use crate::verdict::{Evidence, Subject};

pub use journal::{Begun, Settings};
use journal::{Journal, Standing};
pub(crate) use line::ascii;

/// Lines that wait for the writing thread, at most.
const QUEUE: usize = 1024;
/// Of which so many are written at once.
const BATCH: usize = 256;
/// Between two tries, where the last one failed.
const AGAIN: Duration = Duration::from_secs(1);

/// What a line says where a deed begins.
pub const BEGUN: &str = "begun";
/// What a line says before processes are stopped for their SIGKILL.
pub const STOPPING: &str = "stopping";
/// What a line says of a deed whose result nobody lived to write.
pub const INTERRUPTED: &str = "interrupted";

/// Whose log it is: on every line.
#[derive(Debug, Clone, Default)]
pub struct About {
    /// The node's name.
    pub node: String,
    /// Which boot.
    pub boot_id: Option<String>,
}

/// A decision, a change, or a deed.
#[derive(Debug, Clone, Serialize)]
pub struct Record<'a> {
    /// Names a deed: its beginning and its end have the same.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<u64>,
    /// SHA-256 of the policy.
    pub policy: &'a str,
    /// The rule's name; empty where no rule asked for it.
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
    /// What came of a deed.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub after: Option<&'a After>,
}

/// What came of a deed.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct After {
    /// What was sent to whom.
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
    /// Milliseconds after the deed began.
    pub at_ms: u64,
    /// `sent`, `had ended`, or why not.
    pub result: String,
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
    journal: Mutex<Journal>,
    standing: Arc<Standing>,
}

/// The log, and the thread that writes what nobody waits for.
#[derive(Debug)]
struct Shared {
    open: Arc<Open>,
    queue: Option<SyncSender<Vec<u8>>>,
    writer: Option<JoinHandle<()>>,
}

impl Audit {
    /// Opens the log. Where that fails it is tried again at each line, and [`Audit::writable`] says so. A deed that
    /// was begun and has no result gets a line that says it.
    ///
    /// # Errors
    /// Where no thread can be had: nobody would try again.
    pub fn open(settings: Settings, about: About) -> std::io::Result<Self> {
        let standing = Arc::new(Standing::default());
        let journal = Mutex::new(Journal::open(settings, Arc::clone(&standing)));
        let open = Arc::new(Open { about, journal, standing });
        let begun = open.journal().interrupted.clone();
        for begun in begun {
            open.tell(&interrupted(&begun));
        }
        let (queue, lines) = sync_channel(QUEUE);
        let theirs = Arc::clone(&open);
        let writer =
            std::thread::Builder::new().name("audit".to_owned()).spawn(move || theirs.write(&lines))?;
        Ok(Self(Arc::new(Shared { open, queue: Some(queue), writer: Some(writer) })))
    }

    /// Deeds that an earlier run began and gave no result of, as found when the log was opened.
    #[must_use]
    pub fn begun_without_result(&self) -> Vec<Begun> {
        self.0.open.journal().interrupted.clone()
    }

    /// Writes a line and waits until it is on the disk.
    ///
    /// # Errors
    /// Where it is not known to be there.
    pub fn record(&self, record: &Record<'_>) -> Result<(), Unwritten> {
        self.0.open.record(record)
    }

    /// Writes a line, now or once the disk takes it again: what has happened is told late rather than not.
    pub fn tell(&self, record: &Record<'_>) {
        self.0.open.tell(record);
    }

    /// Leaves a line to the writing thread, for those who must not wait for a disk.
    pub fn later(&self, record: &Record<'_>) {
        let Ok(line) = self.0.open.line(record) else { return };
        let Some(queue) = &self.0.queue else { return };
        if let Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) = queue.try_send(line) {
            self.0.open.standing.lose();
        }
    }

    /// Whether the last try to write succeeded; where it did not, it is tried again every second.
    #[must_use]
    pub fn writable(&self) -> bool {
        self.0.open.standing.writable()
    }

    /// How many lines could not be written when they should have been.
    #[must_use]
    pub fn failures(&self) -> u64 {
        self.0.open.standing.failures()
    }

    /// How many lines are lost for good.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.0.open.standing.lost()
    }
}

impl Open {
    fn record(&self, record: &Record<'_>) -> Result<(), Unwritten> {
        let line = self.line(record)?;
        self.journal().write(&line)?;
        Ok(())
    }

    fn tell(&self, record: &Record<'_>) {
        match self.line(record) {
            Ok(line) => self.journal().write_sometime(vec![line]),
            Err(error) => tracing::error!(%error, "a line of the audit log has no form"),
        }
    }

    /// Writes what comes, until nobody can send more.
    fn write(&self, lines: &Receiver<Vec<u8>>) {
        loop {
            match lines.recv_timeout(AGAIN) {
                Ok(line) => {
                    let more = lines.try_iter().take(BATCH - 1);
                    let batch = std::iter::once(line).chain(more).collect();
                    self.journal().write_sometime(batch);
                }
                Err(RecvTimeoutError::Timeout) => self.retry(),
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    /// Tries again, where the last try failed.
    fn retry(&self) {
        if self.standing.writable() {
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

    fn journal(&self) -> MutexGuard<'_, Journal> {
        self.journal.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn interrupted(begun: &Begun) -> Record<'_> {
    Record {
        id: Some(begun.id),
        policy: &begun.policy,
        rule: &begun.rule,
        mode: None,
        step: &begun.step,
        result: INTERRUPTED,
        detail: "this program ended before the deed had a result; how it went is not known",
        target: None,
        evidence: None,
        after: None,
    }
}

/// What was left to the writing thread is written before the log closes.
impl Drop for Shared {
    fn drop(&mut self) {
        self.queue = None;
        if let Some(writer) = self.writer.take() {
            drop(writer.join());
        }
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
