//! What an action is carried out with: the request, the process table, the permit that the newest snapshot still agrees.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use bailiff_engine::Kind;
use bailiff_engine::guard::{OnHold, Refusal};
use bailiff_engine::process::Table;
use bailiff_engine::verdict::Outcome;
use bailiff_snapshot::ProcessKey;

use super::cgroup::Boundary;
use super::group::Group;
use super::inbox::Inbox;
use super::permit::{Permission, Permit, Question, Stage, carry_out};
use super::request::ActionRequest;
use super::result::ActionResult;
use crate::audit::Audit;
use crate::clock::{self, Deadline};
use crate::process_table::Processes;

/// A confirmation that is older than this is asked for again.
const A_WHILE: Duration = Duration::from_millis(10);

/// How long an answer is waited for.
const PATIENCE: Duration = Duration::from_secs(10);

/// What the executor works with.
#[derive(Debug, Clone)]
pub struct ExecutorSettings {
    /// Where `/proc` is.
    pub procfs: PathBuf,
    /// What the paths of device files begin with.
    pub devices: String,
    /// Where cgroups of version 2 are mounted; none if they are not, and then no group is ended whole.
    pub cgroups: Option<PathBuf>,
    /// How long an ended process may take to be gone, and its memory to be back.
    pub verify: Duration,
    /// `nvidia-cuda-mps-control`.
    pub mps_control: PathBuf,
    /// How long a program of the admin's may run.
    pub program: Duration,
    /// The node's name, for programs and webhooks.
    pub node: String,
    /// This program, to be started as the watchdog of what is stopped before its SIGKILL.
    pub watchdog: PathBuf,
}

impl Default for ExecutorSettings {
    fn default() -> Self {
        Self {
            procfs: "/proc".into(),
            devices: "/dev/nvidia".to_owned(),
            cgroups: Some("/sys/fs/cgroup".into()),
            verify: Duration::from_secs(10),
            mps_control: "nvidia-cuda-mps-control".into(),
            program: Duration::from_secs(30),
            node: String::new(),
            watchdog: "/proc/self/exe".into(),
        }
    }
}

/// One action, with what it is done with.
pub(super) struct ActionContext<'a> {
    pub(super) settings: &'a ExecutorSettings,
    pub(super) audit: &'a Audit,
    pub(super) inbox: &'a Inbox,
    pub(super) proc_table: &'a Processes,
    pub(super) request: &'a ActionRequest,
    /// The process table when the action was announced.
    pub(super) prepared: Cell<Option<Table>>,
    /// When it was last confirmed that it may begin.
    pub(super) confirmed: Cell<Option<Duration>>,
}

impl<'a> ActionContext<'a> {
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

/// For actions that end where they are done.
pub(super) fn done(outcome: Outcome, detail: impl Into<String>, mut group: Group<'_>) -> ActionResult {
    let mut ending = ActionResult::new(outcome, detail);
    ending.after.sent.append(&mut group.sent);
    ending.after.notes.append(&mut group.notes);
    ending
}
