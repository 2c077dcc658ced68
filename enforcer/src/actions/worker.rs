//! Work of the executor's thread: checks an action with the guard, carries it out and records the result.

use std::cell::Cell;
use std::sync::Arc;

use super::context::{ActionContext, ExecutorSettings};
use super::inbox::{FRESH, Inbox};
use super::request::ActionRequest;
use super::result::ActionResult;
use super::terminate::Termination;
use super::{exec, mps, release, signal};
use crate::audit::Audit;
use crate::clock::Deadline;
use crate::process_table::Processes;
use bailiff_engine::guard::Refusal;
use bailiff_engine::policy::Action;
use bailiff_engine::process::Table;
use bailiff_engine::verdict::{ActionReport, Outcome, Subject};

/// Data of the executor's thread.
pub(super) struct Worker {
    pub(super) settings: ExecutorSettings,
    pub(super) audit: Audit,
    pub(super) inbox: Arc<Inbox>,
}

impl Worker {
    /// Carries out an action and writes its result to the audit log.
    pub(super) fn act(&self, request: &ActionRequest, prepared: Option<Table>) -> ActionReport {
        let mut ending = self.end(request, prepared).unwrap_or_else(ActionResult::from);
        // An action that was refused after it sent a signal counts as failed.
        let undone = matches!(ending.outcome, Outcome::Refused | Outcome::IdentityChanged);
        if undone && !ending.after.sent.is_empty() {
            ending.outcome = Outcome::Failed;
        }
        if matches!(request.action, Action::Terminate { .. } | Action::Signal(_)) {
            ending.acted = ending.acted && !ending.after.sent.is_empty();
        }
        if ending.after.vram_before.is_none() {
            ending.after.vram_before = vram(&request.subject);
        }
        self.audit.append(&request.record(ending.outcome.name(), &ending.detail, Some(&ending.after)));
        ActionReport {
            id: request.id,
            outcome: ending.outcome,
            detail: ending.detail,
            released: ending.released,
            acted: ending.acted,
        }
    }

    /// Reads the process table for an announced action. Returns it with the end of its validity.
    pub(super) fn prepare(&self) -> Option<(Table, Deadline)> {
        let good = Deadline::after(FRESH * 2);
        let proc_table = Processes::open(&self.settings.procfs, &self.settings.devices).ok()?;
        Some((proc_table.everybody().ok()?, good))
    }

    fn end(&self, request: &ActionRequest, prepared: Option<Table>) -> Result<ActionResult, Refusal> {
        let proc_table = Processes::open(&self.settings.procfs, &self.settings.devices)?;
        let context = ActionContext {
            settings: &self.settings,
            audit: &self.audit,
            inbox: &self.inbox,
            proc_table: &proc_table,
            request,
            prepared: Cell::new(prepared),
            confirmed: Cell::new(None),
        };
        match &request.action {
            Action::Terminate { grace, .. } => {
                let group = context.gather()?;
                Ok(context.carry_out(|permit| Termination::new(&context, group, *grace, permit).run()))
            }
            Action::Signal(signal) => signal::send(&context, *signal),
            Action::ShutdownMps => mps::shut_down(&context),
            Action::Exec(program) => exec::run(&context, program),
            Action::ReleaseLease => release::release(&context),
            Action::Flag(_) | Action::Notify(_) => {
                Err(Refusal::refused("this step has no action to carry out"))
            }
        }
    }
}

/// Returns the subject's GPU memory when it was evaluated; `None` if a part is unknown.
fn vram(subject: &Subject) -> Option<u64> {
    subject.members.iter().map(|member| member.vram).sum()
}
