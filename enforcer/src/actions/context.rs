//! Context of an action: the request, the process table, and the confirmation by the newest snapshot.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use bailiff_engine::Kind;
use bailiff_engine::guard::{OnHold, Refusal};
use bailiff_engine::process::Table;
use bailiff_engine::verdict::Outcome;
use bailiff_lifecycle::permissions::FilePermissions;
use bailiff_proc::Pidfd;
use rustix::io::Errno;

use super::ActionResult;
use super::cgroup::Boundary;
use super::group::Group;
use super::inbox::Inbox;
use super::owner_looks::OwnerLooks;
use super::permit::{Permission, Permit, Question, Stage, carry_out};
use super::request::ActionRequest;
use crate::audit::Audit;
use crate::clock::{self, Deadline};
use crate::privileged::{self, SignalError};
use crate::process_table::Processes;

/// Age above which a confirmation is requested again.
const A_WHILE: Duration = Duration::from_millis(10);

/// Time limit for the answer to a question.
const PATIENCE: Duration = Duration::from_secs(10);

/// Settings of the executor.
#[derive(Debug, Clone)]
pub struct ExecutorSettings {
    /// Mount point of the host's `/proc`.
    pub procfs: PathBuf,
    /// Prefix of the paths of GPU device files.
    pub devices: String,
    /// Mount point of cgroups; without it, no cgroup is verified, thawed or killed.
    pub cgroups: Option<PathBuf>,
    /// Time limit after a kill for processes to exit and memory to be released.
    pub verify: Duration,
    /// Path of `nvidia-cuda-mps-control`.
    pub mps_control: PathBuf,
    /// Time limit of the administrator's programs.
    pub program: Duration,
    /// Permissions that these programs must have.
    pub permissions: FilePermissions,
    /// Name of the node, passed to programs.
    pub node: String,
    /// Directory in which Slurm's hooks save the GPUs of jobs.
    pub slurm: PathBuf,
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
            permissions: FilePermissions::Strict,
            node: String::new(),
            slurm: "/run/bailiff/slurm".into(),
        }
    }
}

/// An action in progress, with what it needs.
pub(super) struct ActionContext<'a> {
    pub(super) settings: &'a ExecutorSettings,
    pub(super) audit: &'a Audit,
    pub(super) inbox: &'a Inbox,
    pub(super) proc_table: &'a Processes,
    pub(super) request: &'a ActionRequest,
    /// Process table that was read when the action was announced.
    pub(super) prepared: Cell<Option<Table>>,
    /// Time of the last confirmation that the action may start.
    pub(super) confirmed: Cell<Option<Duration>>,
    /// Owners of pods that were read before.
    pub(super) looks: &'a RefCell<OwnerLooks>,
    /// Whether the action was not carried out because a check took too long.
    pub(super) late: &'a Cell<bool>,
}

impl<'a> ActionContext<'a> {
    /// Returns the context of the same action for another target.
    pub(super) fn about(&self, request: &'a ActionRequest) -> Self {
        Self { request, prepared: Cell::new(None), confirmed: Cell::new(self.confirmed.get()), ..*self }
    }

    /// Records whether an action ended because a process was not read in time: it was cancelled, but nobody called it off.
    pub(super) fn note_if_late(&self, refusal: &Refusal) {
        let is_late = refusal.outcome == Outcome::Cancelled && self.inbox.given_up(self.request.id).is_none();
        self.late.set(self.late.get() || is_late);
    }

    /// Waits until one of these processes exits, the action is cancelled, or the deadline passes.
    pub(super) fn wait_for_exit(&self, living: &[&Pidfd], deadline: Deadline) {
        // Exited processes would end the wait at once.
        let all_live = || living.iter().all(|handle| !handle.ended());
        while !deadline.passed() && all_live() && self.inbox.given_up(self.request.id).is_none() {
            self.inbox.wait(living, deadline);
        }
    }

    /// Opens pidfds of the subject's processes and verifies them.
    pub(super) fn gather(&self) -> Result<Group<'a>, Refusal> {
        match self.request.subject.kind {
            Kind::Process | Kind::Workload | Kind::SlurmJob | Kind::Pod => {
                let boundary = Boundary::open(self.settings.cgroups.as_deref(), &self.request.subject);
                let table = match self.prepared.take() {
                    Some(before) => self.proc_table.since(before, &BTreeSet::new())?,
                    None => self.proc_table.everybody()?,
                };
                let group = Group::gather(self.proc_table, self.request, (self.inbox.view(), table));
                self.late.set(group.as_ref().is_err_and(|refusal| refusal.outcome == Outcome::Cancelled));
                let mut group = group?;
                group.boundary = boundary;
                match group.on_hold(self.settings.cgroups.as_deref()) {
                    Some(pid) if self.request.limits.on_hold == OnHold::Exempt => Err(Refusal {
                        outcome: Outcome::Reprieved,
                        why: format!(
                            "process {pid} is stopped, traced or frozen, which exempts it from this rule"
                        ),
                    }),
                    _ => Ok(group),
                }
            }
            Kind::Gpu | Kind::Lease => Err(Refusal::refused("this kind of target has no processes")),
            Kind::MpsServer => Err(Refusal::refused("an MPS server is never signalled")),
        }
    }

    /// Carries the action out, unless the rule is in dry run or the newest snapshot no longer confirms it.
    pub(super) fn carry_out(&self, act: impl FnOnce(&Permit) -> ActionResult) -> ActionResult {
        carry_out(self.audit, self.request, |permit| match self.confirm().and_then(|()| self.authorize()) {
            Ok(()) => ActionResult { acted: true, ..act(permit) },
            Err(refusal) => refusal.into(),
        })
    }

    /// Has the privileged process check the holders, before they are signalled or their job is cancelled.
    fn authorize(&self) -> Result<(), Refusal> {
        // No process of a pod is signalled, and its containers can have different users.
        if !self.request.action.ends_processes() || self.request.subject.kind == Kind::Pod {
            return Ok(());
        }
        let holders = self.request.subject.members.iter().filter(|member| member.holds);
        if self.request.subject.may_have_no_process() && holders.clone().next().is_none() {
            return Ok(());
        }
        match privileged::authorize(
            holders.filter_map(|member| member.key).collect(),
            self.request.limits.root,
        ) {
            Ok(true) => Ok(()),
            Ok(false) => Err(Refusal {
                outcome: Outcome::Gone,
                why: "all processes of the target that held GPU memory have exited".to_owned(),
            }),
            Err(error @ SignalError::Kernel(Errno::TIMEDOUT)) => {
                self.late.set(true);
                let why = format!("the open files of the holders were not read in time: {error}");
                Err(Refusal { outcome: Outcome::Cancelled, why })
            }
            Err(error) => Err(Refusal::refused(error.to_string())),
        }
    }

    /// Checks that the newest snapshot still confirms the action, unless that was checked a moment ago.
    /// Called immediately before the first signal or other effect.
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
            Some(Permission::Granted) | None => {
                self.late.set(true);
                Err(Refusal {
                    outcome: Outcome::Cancelled,
                    why:
                        "the action did not start within one sampling interval after a snapshot confirmed it"
                            .to_owned(),
                })
            }
        }
    }
}

/// Returns the result of an action that needs no verification, with the signals sent.
pub(super) fn done(outcome: Outcome, detail: impl Into<String>, mut group: Group<'_>) -> ActionResult {
    let mut ending = ActionResult::new(outcome, detail);
    ending.after.sent.append(&mut group.sent);
    ending.after.notes.append(&mut group.notes);
    ending
}
