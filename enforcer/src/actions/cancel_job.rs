//! Step `cancel_job`: has Slurm cancel a job after the processes, or the prolog's record, and Slurm's view of the job were
//! compared, and verifies the result. No process is signalled.

use std::time::Duration;

use bailiff_engine::guard::Refusal;
use bailiff_engine::job::{self, Cancellable, Job};
use bailiff_engine::policy::{JobComment, JobNodes};
use bailiff_engine::process::ProcessInfo;
use bailiff_engine::verdict::Outcome;
use bailiff_proc::{LATE, Proc};
use bailiff_snapshot::slurm::JobId;

use super::ActionResult;
use super::context::{ActionContext, done};
use super::group::Group;
use super::job_record;
use super::memory::Memory;
use super::slurm::{Programs, Sent};
use super::terminate::released;
use crate::clock::{self, Deadline};
use crate::process_table::ProcessTableError;

/// The verification takes this many times `--verify` longer than Slurm's own time limits.
const MARGIN: u32 = 3;
/// Interval of queries about a job whose processes have exited, or whose cancellation is not known to be accepted.
const INTERVAL: Duration = Duration::from_secs(1);
/// Owner of the records.
const ROOT: u32 = 0;

/// A cancellation in progress.
struct Cancellation<'a> {
    context: &'a ActionContext<'a>,
    programs: Programs<'a>,
    group: Group<'a>,
    nodes: JobNodes,
    job: Job,
    /// GPU memory in the last snapshot before the action.
    before: Option<Memory>,
}

pub(super) fn cancel(context: &ActionContext<'_>, nodes: JobNodes) -> Result<ActionResult, Refusal> {
    let group = context.gather().map_err(at("check of processes"))?;
    check_record(context).map_err(at("check of the record"))?;
    let slurm = &*context.request.slurm;
    let node = slurm.node.clone().unwrap_or_else(|| short(&context.settings.node).to_owned());
    let job = job(&group, node).map_err(at("check of the job"))?;
    exempt_elsewhere(&group, &job.id).map_err(at("check of processes"))?;
    let programs = Programs { slurm, permissions: context.settings.permissions };
    let before = context.inbox.view().map(|view| Memory::of(&view.snapshot));
    let mut cancellation = Cancellation { context, programs, group, nodes, job, before };
    let found = cancellation.decide().map_err(at("query"))?;
    let name = format!("job {} ({})", found.name, found.state);
    // The query may have taken a while.
    cancellation.group.renew_after_a_while().map_err(at(&format!("{name}: check of processes")))?;
    let mut sent = false;
    let mut result = context.carry_out(|_| cancellation.run(&found, &mut sent));
    if result.outcome == Outcome::DryRun {
        result.detail = format!("dry run: would cancel {name}");
    } else if !result.acted {
        result.detail = format!("{name}: confirmation: {}", result.detail);
    }
    result.acted = sent;
    Ok(result)
}

/// Adds the stage of the action to the reason of a refusal.
fn at(stage: &str) -> impl FnOnce(Refusal) -> Refusal {
    move |refusal| Refusal { why: format!("{stage}: {}", refusal.why), ..refusal }
}

/// Compares root's record of the job with the record in the snapshot. A workload has none.
fn check_record(context: &ActionContext<'_>) -> Result<(), Refusal> {
    let Some(record) = &context.request.subject.job else { return Ok(()) };
    let boot_id = Proc::open(&context.settings.procfs).ok().and_then(|proc| proc.boot_id());
    job_record::check(&context.settings.slurm, boot_id.as_deref(), record, ROOT)
}

/// Returns the job of a record or of a workload, on this node.
fn job(group: &Group<'_>, node: String) -> Result<Job, Refusal> {
    match &group.request.subject.job {
        Some(record) if record.node != node => {
            let why = format!("changed: the record of the job names node {}, not {node}", record.node);
            Err(Refusal { outcome: Outcome::IdentityChanged, why })
        }
        Some(record) => Ok(Job::of_record(record, clock::now())),
        None => Ok(Job { id: job_of(group)?, uid: group.owner, node, began: began(group) }),
    }
}

/// Returns a host name up to the first dot.
fn short(name: &str) -> &str {
    name.split('.').next().unwrap_or(name)
}

/// Returns the job that all members of the workload belong to.
fn job_of(group: &Group<'_>) -> Result<JobId, Refusal> {
    let mut ids = group.held.iter().map(|held| held.found.person.place.slurm_job.as_deref());
    let first = ids.next().flatten().filter(|_| group.request.subject.id.0.starts_with("workload:slurm:"));
    let id = first.ok_or_else(|| Refusal::refused("the workload is not a Slurm job"))?;
    if !ids.all(|other| other == Some(id)) {
        return Err(Refusal::refused("not all processes of the workload are in the job's cgroup"));
    }
    id.parse().map_err(|error| Refusal::refused(format!("{error}")))
}

/// Checks the processes that Slurm would end too: those in the job's external step, such as adopted logins. If no process
/// of the job was found, also all processes of its owner outside cgroups of jobs: with `proctrack/linuxproc`, jobs have no
/// cgroups.
fn exempt_elsewhere(group: &Group<'_>, id: &JobId) -> Result<(), Refusal> {
    let protect = group.request.limits.protect.as_ref();
    let may_belong = |person: &&ProcessInfo| match &person.place.slurm_job {
        // The step's own process, which sleeps, belongs to root.
        Some(job) => {
            job == id.as_ref() && person.uid != 0 && person.place.slurm_step.as_deref() == Some("extern")
        }
        None => group.held.is_empty() && person.uid == group.owner,
    };
    for person in group.people().filter(may_belong) {
        let pid = person.stat.key.pid;
        if group.is_unread(pid) {
            return Err(ProcessTableError::Process(pid, LATE).into());
        }
        if let Some(why) = protect.and_then(|protect| (protect.0)(person)) {
            return Err(Refusal::refused(format!(
                "process {pid} may belong to the job, and is exempt: {why}"
            )));
        }
    }
    Ok(())
}

/// Returns when the first member was started, since the Unix epoch.
fn began(group: &Group<'_>) -> Duration {
    let now = clock::now();
    let started = group.keys().iter().map(bailiff_snapshot::ProcessKey::started).min().unwrap_or_default();
    now.wall.saturating_sub(now.boot.saturating_sub(started))
}

impl Cancellation<'_> {
    /// Queries Slurm about the job, and decides whether it may be cancelled.
    fn decide(&self) -> Result<Cancellable, Refusal> {
        let id = self.job.id.as_ref();
        let found = job::decide(&self.programs.query(id)?, &self.job, self.nodes)?;
        if found.name != id {
            job::confirm(&self.programs.query(&found.name)?, &self.job, &found.name)?;
        }
        Ok(found)
    }

    /// Cancels the job. Sets `sent` if a request was sent to Slurm.
    fn run(mut self, found: &Cancellable, sent: &mut bool) -> ActionResult {
        if let Err(why) = self.comment(found) {
            self.group.notes.push(format!("AdminComment was not set: {why}"));
        }
        let (name, result) = match self.cancel(found, sent) {
            Ok(result) if result.outcome != Outcome::NotPermitted => (format!("job {}", found.name), result),
            done => (format!("job {} ({})", found.name, found.state), done.unwrap_or_else(Into::into)),
        };
        let detail = if result.detail.is_empty() { name } else { format!("{name}: {}", result.detail) };
        let notes = done(result.outcome, "", self.group).after.notes;
        let mut result = ActionResult { detail, ..result };
        result.after.notes.extend(notes);
        result
    }

    fn comment(&self, found: &Cancellable) -> Result<(), String> {
        if self.programs.slurm.comment == JobComment::None {
            return Ok(());
        }
        let (request, node) = (self.context.request, &self.job.node);
        let text = format!("bailiff {node} action={} rule={}", request.id, request.rule);
        self.programs.comment(&found.name, &text)
    }

    fn cancel(&mut self, found: &Cancellable, sent: &mut bool) -> Result<ActionResult, Refusal> {
        let patience = self.programs.patience() + self.context.settings.verify * MARGIN;
        // The job may have changed while the action was recorded and the comment was set.
        let again = self.decide().map_err(at("second query"))?;
        if again != *found {
            return Err(Refusal {
                outcome: Outcome::IdentityChanged,
                why: format!(
                    "second query: changed: Slurm names the job {} ({}) now",
                    again.name, again.state
                ),
            });
        }
        self.group.renew_after_a_while().map_err(at("second check of processes"))?;
        // A Slurm job may have no process.
        if self.context.request.subject.job.is_none() && self.group.all_ended() {
            return Err(Refusal { outcome: Outcome::Gone, why: "all processes have exited".to_owned() });
        }
        check_record(self.context).map_err(at("second check of the record"))?;
        self.context.confirm().map_err(at("second confirmation"))?;
        let answer = self.programs.scancel(&found.name).map_err(at("request"))?;
        *sent = true;
        match answer {
            Sent::Accepted => Ok(self.verify(patience, None)),
            Sent::Denied(why) => Ok(ActionResult::new(Outcome::NotPermitted, why)),
            Sent::Unknown(why) => Ok(self.verify(patience, Some(&why))),
        }
    }

    /// Waits until the processes have exited, Slurm shows that the job has ended, and the memory was released.
    /// `unsure` is the reason why Slurm may not have accepted the request.
    fn verify(&mut self, patience: Duration, unsure: Option<&str>) -> ActionResult {
        self.group.begun = true;
        let deadline = Deadline::after(patience);
        let mut state = Err("it was not queried".to_owned());
        loop {
            if let Some(why) = self.context.inbox.events(self.context.request.id).give_up {
                return ActionResult::new(Outcome::Cancelled, why);
            }
            let exited = self.have_exited();
            let late = deadline.passed();
            if exited || late || unsure.is_some() {
                state = self.state();
            }
            let ended = state.as_ref().is_ok_and(|state| job::has_ended(state));
            if exited && ended {
                return self.released(&state.unwrap_or_default());
            }
            if late {
                return self.late(ended, &describe(&state, unsure));
            }
            self.context.wait_for_exit(&self.group.living(), deadline.or(Deadline::after(INTERVAL)));
        }
    }

    /// Returns whether all processes of the job have exited, including those that it has started meanwhile.
    fn have_exited(&mut self) -> bool {
        self.group.all_ended() && matches!(self.group.renew(), Ok(0))
    }

    /// Returns the job's state.
    fn state(&self) -> Result<String, String> {
        let output = self.programs.query(self.job.id.as_ref()).map_err(|refusal| refusal.why)?;
        job::state(&output, &self.job.id).map(str::to_owned)
    }

    fn released(&self, state: &str) -> ActionResult {
        let subject = &self.context.request.subject;
        let held = self.before.as_ref().map(|before| before.held_by(&self.group.keys()));
        if held == Some(0) && !subject.members.iter().any(|member| member.holds) {
            return ActionResult::new(Outcome::Released, state);
        }
        let result = released(self.context, (&self.group.keys(), self.group.age_ms()), self.before.as_ref());
        let held = if result.outcome == Outcome::GoneNotReleased { ": memory_held: " } else { "" };
        let detail = format!("{state}{held}{}", result.detail);
        ActionResult { detail, ..result }
    }

    /// Returns the result if the time for the verification is over.
    fn late(&self, ended: bool, state: &str) -> ActionResult {
        if ended {
            let pids: Vec<String> = self.group.pids().iter().map(ToString::to_string).collect();
            let why = format!("{state}: processes still run: {}; none was signalled", pids.join(", "));
            return ActionResult::new(Outcome::Completing, why);
        }
        ActionResult::new(Outcome::Unknown, state)
    }
}

/// Describes the job's state, and why its cancellation is not known to be accepted.
fn describe(state: &Result<String, String>, unsure: Option<&str>) -> String {
    let state = match state {
        Ok(state) => state.clone(),
        Err(why) => format!("its state is unknown: {why}"),
    };
    unsure.map_or_else(|| state.clone(), |why| format!("{state}; scancel: {why}"))
}
