//! What the executor's thread does with an action: the guard is asked, the action is done or not, and what came of it is
//! written and reported.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use bailiff_snapshot::ProcessKey;

use super::cgroup::Boundary;
use super::clock::{self, Deadline};
use super::executor::ExecutorSettings;
use super::group::Group;
use super::inbox::{FRESH, Inbox};
use super::permit::{Permission, Permit, Question, Stage, carry_out};
use super::request::ActionRequest;
use super::result::ActionResult;
use super::terminate::Termination;
use super::{exec, mps, release, signal};
use crate::audit::Audit;
use crate::process_table::Processes;
use bailiff_engine::Kind;
use bailiff_engine::guard::{OnHold, Refusal};
use bailiff_engine::policy::Action;
use bailiff_engine::process::Table;
use bailiff_engine::verdict::{ActionReport, Outcome, Subject};

/// The executor's thread.
pub(super) struct Worker {
    pub(super) settings: ExecutorSettings,
    pub(super) audit: Audit,
    pub(super) inbox: Arc<Inbox>,
}

/// One action, with what it is done with.
pub(super) struct Work<'a> {
    pub(super) settings: &'a ExecutorSettings,
    pub(super) audit: &'a Audit,
    pub(super) inbox: &'a Inbox,
    pub(super) proc_table: &'a Processes,
    pub(super) request: &'a ActionRequest,
    /// The process table when the action was announced.
    pub(super) prepared: Cell<Option<Table>>,
    /// When it was last confirmed that it may begin.
    confirmed: Cell<Option<Duration>>,
}

/// A confirmation that is older than this is asked for again.
const A_WHILE: Duration = Duration::from_millis(10);
/// How long an answer is waited for.
const PATIENCE: Duration = Duration::from_secs(10);

impl Worker {
    /// Does an action, and has written what came of it when it returns.
    pub(super) fn act(&self, request: &ActionRequest, prepared: Option<Table>) -> ActionReport {
        let mut ending = self.end(request, prepared).unwrap_or_else(ActionResult::from);
        // What was done in part was not refused: it counts, and so does that it went wrong.
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

    /// Reads the process table for an announced action; returns until when it is valid.
    pub(super) fn prepare(&self) -> Option<(Table, Deadline)> {
        let good = Deadline::after(FRESH * 2);
        let proc_table = Processes::open(&self.settings.procfs, &self.settings.devices).ok()?;
        Some((proc_table.everybody().ok()?, good))
    }

    fn end(&self, request: &ActionRequest, prepared: Option<Table>) -> Result<ActionResult, Refusal> {
        let proc_table = Processes::open(&self.settings.procfs, &self.settings.devices)?;
        let work = Work {
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
                let group = work.gather()?;
                Ok(work.carry_out(|permit| Termination::new(&work, group, *grace, permit).run()))
            }
            Action::Signal(signal) => signal::send(&work, *signal),
            Action::ShutdownMps => mps::shut_down(&work),
            Action::Exec(program) => exec::run(&work, program),
            Action::ReleaseLease => release::release(&work),
            Action::Flag(_) | Action::Notify(_) => Err(Refusal::refused("that is no action")),
        }
    }
}

impl<'a> Work<'a> {
    /// Opens pidfds of the subject's processes, or refuses.
    pub(super) fn gather(&self) -> Result<Group<'a>, Refusal> {
        match self.request.subject.kind {
            Kind::Process | Kind::Workload => {
                let boundary = Boundary::open(self.settings.cgroups.as_deref(), &self.request.subject);
                let table = match self.prepared.take() {
                    Some(before) => self.proc_table.since(before, &BTreeSet::new())?,
                    None => self.proc_table.everybody()?,
                };
                let mut group = Group::gather(self.proc_table, self.request, (self.holding(), table))?;
                group.boundary = boundary;
                match group.on_hold(self.settings.cgroups.as_deref()) {
                    Some(pid) if self.request.limits.on_hold == OnHold::Exempt => Err(Refusal {
                        outcome: Outcome::Reprieved,
                        why: format!("{pid} is stopped, traced or frozen, which exempts it from this rule"),
                    }),
                    _ => Ok(group),
                }
            }
            Kind::Gpu | Kind::Lease => Err(Refusal::refused("that has no processes of its own")),
            Kind::MpsServer => Err(Refusal::refused("a server of MPS is never signalled")),
        }
    }

    /// Carries the action out, unless the rule is in dry run or the newest snapshot no longer agrees.
    pub(super) fn carry_out(&self, act: impl FnOnce(&Permit) -> ActionResult) -> ActionResult {
        carry_out(self.audit, self.request, |permit| match self.confirm() {
            Ok(()) => ActionResult { acted: true, ..act(permit) },
            Err(refusal) => refusal.into(),
        })
    }

    /// Checks that the newest snapshot still agrees, unless that was done a moment ago: immediately before the
    /// first signal, and before any other effect.
    pub(super) fn confirm(&self) -> Result<(), Refusal> {
        let recent = self.confirmed.get().is_some_and(|at| clock::running().saturating_sub(at) < A_WHILE);
        if recent && self.inbox.given_up(self.request.id).is_none() {
            return Ok(());
        }
        let question = Question { id: self.request.id, stage: Stage::First };
        let answer = self.inbox.ask(question, Deadline::after(PATIENCE));
        let late = self.request.until.is_some_and(|until| clock::since_boot() > until);
        match answer {
            Some(Permission::Granted) if !late => {
                self.confirmed.set(Some(clock::running()));
                Ok(())
            }
            Some(Permission::Denied(why) | Permission::Later(why)) => {
                let called_off = self.inbox.given_up(self.request.id).is_some();
                let outcome = if called_off { Outcome::Cancelled } else { Outcome::Reprieved };
                Err(Refusal { outcome, why })
            }
            Some(Permission::Granted) | None => Err(Refusal {
                outcome: Outcome::Cancelled,
                why: "its confirmation is older than one sampling interval".to_owned(),
            }),
        }
    }

    /// All that the newest snapshot lists.
    fn holding(&self) -> BTreeSet<ProcessKey> {
        let view = self.inbox.view();
        let listed = view.iter().flat_map(|view| &view.snapshot.processes);
        let named = listed
            .filter_map(|process| Some(ProcessKey { pid: process.pid, start_ticks: process.start_ticks? }));
        named.collect()
    }
}

/// What the subject held when it was evaluated; none if a part is not known.
fn vram(subject: &Subject) -> Option<u64> {
    subject.members.iter().map(|member| member.vram).sum()
}

/// For actions that end where they are done.
pub(super) fn done(outcome: Outcome, detail: impl Into<String>, mut group: Group<'_>) -> ActionResult {
    let mut ending = ActionResult::new(outcome, detail);
    ending.after.sent.append(&mut group.sent);
    ending.after.notes.append(&mut group.notes);
    ending
}
