//! Executor: a thread that runs one destructive action at a time: checks it with the guard, carries it out and
//! records the result. Callers never wait for it.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::Arc;
use std::thread::JoinHandle;

use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use super::ActionResult;
use super::context::{ActionContext, ExecutorSettings};
use super::inbox::{FRESH, Inbox, Task};
use super::owner_looks::OwnerLooks;
use super::permit::Question;
use super::request::ActionRequest;
use super::terminate::Termination;
use super::{cancel_job, evict_pod, exec, mps, release, signal, stop_owner};
use crate::audit::Audit;
use crate::clock::Deadline;
use crate::process_table::Processes;
use bailiff_engine::guard::Refusal;
use bailiff_engine::policy::{Action, Mode};
use bailiff_engine::process::Table;
use bailiff_engine::verdict::{ActionReport, Outcome, Subject};
use bailiff_engine::view::TargetId;

/// Number of consecutive attempts that did not start in time or were refused, after which an action has failed.
const ATTEMPTS: u8 = 3;
/// Maximum number of targets whose attempts are counted.
const MOST_COUNTED: usize = 1 << 14;

/// Handle of the executor. When dropped, the executor finishes its current step, records the result and ends.
#[derive(Debug)]
pub struct Executor {
    inbox: Arc<Inbox>,
    thread: Option<JoinHandle<()>>,
}

/// Channels from the executor.
#[derive(Debug)]
pub struct Channels {
    /// Results of actions.
    pub reports: UnboundedReceiver<ActionReport>,
    /// Questions whether the action in flight may continue; each is answered with [`Inbox::permit`].
    pub questions: UnboundedReceiver<Question>,
}

impl Executor {
    /// Starts the executor. Each action results in one report, in order.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub fn start(settings: ExecutorSettings, audit: Audit) -> std::io::Result<(Self, Channels)> {
        let (questions, asked) = unbounded_channel();
        let inbox = Arc::new(Inbox::new(questions)?);
        let (reports, receiver) = unbounded_channel();
        let mut worker = Worker {
            settings,
            audit,
            inbox: Arc::clone(&inbox),
            attempts: BTreeMap::new(),
            looks: RefCell::default(),
        };
        let thread = std::thread::Builder::new().name("hand".to_owned()).spawn(move || {
            let (mut prepared, mut coming) = (None, None);
            while let Some(task) = worker.inbox.next(coming) {
                match task {
                    Task::Prepare(until) => {
                        coming = Some(until);
                        // The old table is freed first, because two tables of a large node need much memory.
                        drop(prepared.take());
                        prepared = worker.prepare();
                    }
                    Task::ActionRequest(request) => {
                        let fresh = prepared.take().filter(|(_, good): &(_, Deadline)| !good.passed());
                        let report = worker.act(&request, fresh.map(|(table, _)| table));
                        coming = None;
                        worker.inbox.done();
                        // The receiver is closed during shutdown; the audit log has the report.
                        drop(reports.send(report));
                    }
                }
            }
        })?;
        Ok((Self { inbox, thread: Some(thread) }, Channels { reports: receiver, questions: asked }))
    }

    /// Stops the executor, and waits until the result of its current step is recorded.
    pub fn finish(&mut self) {
        self.inbox.stop();
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}

impl Deref for Executor {
    type Target = Inbox;

    fn deref(&self) -> &Inbox {
        &self.inbox
    }
}

impl Drop for Executor {
    fn drop(&mut self) {
        self.finish();
    }
}

/// Data of the executor's thread.
struct Worker {
    settings: ExecutorSettings,
    audit: Audit,
    inbox: Arc<Inbox>,
    /// Number of consecutive attempts that were refused, or in which a check took too long, by target.
    attempts: BTreeMap<TargetId, u8>,
    /// Owners of pods that were read before.
    looks: RefCell<OwnerLooks>,
}

impl Worker {
    /// Carries out an action and writes its result to the audit log.
    fn act(&mut self, request: &ActionRequest, prepared: Option<Table>) -> ActionReport {
        let late = Cell::new(false);
        let mut ending = self.end(request, prepared, &late).unwrap_or_else(ActionResult::from);
        // An action that was refused after it sent a signal counts as failed.
        if ending.outcome.refusal() && !ending.after.sent.is_empty() {
            ending.outcome = Outcome::Failed;
        }
        // A dry run is not tried again.
        let is_refused = ending.outcome.may_pass() && request.mode != Mode::DryRun;
        if self.is_last(&request.subject.id, late.get() || is_refused) {
            ending.outcome = Outcome::Failed;
            ending.detail = format!("{ATTEMPTS} attempts in a row: {}", ending.detail);
        }
        if matches!(request.action, Action::Terminate { .. } | Action::Signal(_)) {
            ending.acted = ending.acted && !ending.after.sent.is_empty();
        }
        if ending.after.vram_before.is_none() {
            ending.after.vram_before = vram(&request.subject);
        }
        self.audit.append(&request.record(ending.outcome.name(), &ending.detail, Some(&ending.after)));
        ActionReport {
            released: ending.released,
            acted: ending.acted,
            retry_after: ending.retry_after,
            stopped: ending.stopped,
            ..ActionReport::new(request.id, ending.outcome, ending.detail)
        }
    }

    /// Counts an attempt. Returns whether it was one too many without effect: a user who delays the checks of an
    /// action, or has them refuse it, must not be exempt from it unnoticed.
    fn is_last(&mut self, target: &TargetId, is_counted: bool) -> bool {
        if !is_counted {
            self.attempts.remove(target);
            return false;
        }
        if self.attempts.len() >= MOST_COUNTED {
            self.attempts.clear();
        }
        let attempts = self.attempts.entry(target.clone()).or_default();
        *attempts += 1;
        let is_last = *attempts >= ATTEMPTS;
        if is_last {
            self.attempts.remove(target);
        }
        is_last
    }

    /// Reads the process table for an announced action. Returns it with the end of its validity.
    fn prepare(&self) -> Option<(Table, Deadline)> {
        let proc_table = Processes::open(&self.settings.procfs, &self.settings.devices).ok()?;
        let table = proc_table.everybody().ok()?;
        // However long that took: members are read again, and so are new processes.
        Some((table, Deadline::after(FRESH * 2)))
    }

    fn end(
        &self,
        request: &ActionRequest,
        prepared: Option<Table>,
        late: &Cell<bool>,
    ) -> Result<ActionResult, Refusal> {
        let proc_table = Processes::open(&self.settings.procfs, &self.settings.devices)?;
        let context = ActionContext {
            settings: &self.settings,
            audit: &self.audit,
            inbox: &self.inbox,
            proc_table: &proc_table,
            request,
            prepared: Cell::new(prepared),
            confirmed: Cell::new(None),
            looks: &self.looks,
            late,
        };
        match &request.action {
            Action::Terminate { grace, .. } => {
                let group = context.gather()?;
                Ok(context.carry_out(|permit| Termination::new(&context, group, *grace, permit).run()))
            }
            Action::CancelJob { nodes, .. } => cancel_job::cancel(&context, *nodes),
            Action::EvictPod { recreated, .. } => Ok(evict_pod::evict(&context, *recreated)),
            Action::StopOwner { .. } => Ok(stop_owner::stop(&context)),
            Action::Signal(signal) => signal::send(&context, *signal),
            Action::ShutdownMps => mps::shut_down(&context),
            Action::Exec(program) => exec::run(&context, program),
            Action::ReleaseLease => release::release(&context),
            Action::Flag(_) | Action::Notify(_) => Err(Refusal::refused("that is no action")),
        }
    }
}

/// Returns the subject's GPU memory when it was evaluated; `None` if a part is unknown.
fn vram(subject: &Subject) -> Option<u64> {
    subject.members.iter().map(|member| member.vram).sum()
}
