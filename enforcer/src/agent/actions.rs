//! Actions of the lease agent. Each is recorded in the audit log before it is carried out, and its result
//! afterwards.

use std::sync::Arc;

use bailiff_lease::audit::{Audit as Pooled, Gpu, Lease};
use bailiff_lease::{End, Ended, LeaseError, Pool, ReturnOutcome};
use tokio::sync::mpsc::UnboundedSender;

use super::status::AgentStatus;
use crate::audit::{Audit, BEGUN, Record};
use bailiff_engine::Kind;
use bailiff_engine::policy::Mode;
use bailiff_engine::verdict::{Member, Subject};
use bailiff_engine::view::TargetId;

/// An event that the agent reports.
#[derive(Debug, Clone, PartialEq)]
pub enum AgentEvent {
    /// Its status has changed.
    Status(Option<AgentStatus>),
    /// It has acted, with this result.
    LeaseAction(LeaseAction, LeaseOutcome),
}

bailiff_snapshot::label_values! {
/// Action of the lease agent.
pub enum LeaseAction {
    /// Releases the lease of an exited holder.
    ReapDead = "reap_dead",
    /// Releases a lease that has expired, or that was not renewed in time on a host without an agent.
    ReapLate = "reap_late",
    /// Returns a quarantined GPU that is no longer in use to the pool.
    ClearQuarantine = "clear_quarantine",
    /// Returns a GPU of an exited `GPU.py` client to the pool.
    FreeOrphaned = "free_orphaned",
    /// Returns a lost GPU, which is recorded neither as idle nor as taken, to the pool.
    PutBackLost = "put_back_lost",
}
}

bailiff_snapshot::label_values! {
/// Result of an action.
pub enum LeaseOutcome {
    /// The GPUs are available to the next request.
    Freed = "freed",
    /// Some of the GPUs are quarantined, because a process uses them.
    Withheld = "withheld",
    /// The lease or GPU has changed since the evaluation; nothing was done.
    Changed = "changed",
    /// Unknown: Redis did not respond, or the audit log could not be written.
    Failed = "failed",
}
}

/// Carries out, records and reports actions.
pub(super) struct LeaseExecutor<'a> {
    pub(super) pool: &'a mut Pool,
    pub(super) log: &'a Audit,
    pub(super) policy: &'a str,
    pub(super) events: &'a UnboundedSender<AgentEvent>,
}

impl LeaseExecutor<'_> {
    /// Releases a lease or removes a request.
    pub(super) fn end(
        &mut self,
        (act, lease): (LeaseAction, &Lease),
        busy: &[String],
        detail: &str,
    ) -> Result<(), LeaseError> {
        let end = if act == LeaseAction::ReapLate { End::Late } else { End::dead(lease) };
        let gpus: Vec<&str> = lease.gpus().collect();
        let withheld = busy.iter().any(|id| gpus.contains(&id.as_str()));
        self.record((act, &of_lease(lease)), detail, |pool| {
            Ok(match pool.end(&lease.lease, end, busy)? {
                Ended::Done if withheld => (LeaseOutcome::Withheld, format!("in use: {}", busy.join(", "))),
                Ended::Done => (LeaseOutcome::Freed, String::new()),
                Ended::Kept => (
                    LeaseOutcome::Changed,
                    "the lease was renewed or granted to another holder meanwhile".to_owned(),
                ),
                Ended::Lost => (LeaseOutcome::Changed, "the GPU has another lease now".to_owned()),
                Ended::Already(how) => (LeaseOutcome::Changed, format!("the lease had already ended: {how}")),
            })
        })
    }

    /// Returns a quarantined GPU to the pool.
    pub(super) fn clear(&mut self, gpu: &Gpu, why: &str) -> Result<(), LeaseError> {
        self.record(
            (LeaseAction::ClearQuarantine, &of_gpu(gpu)),
            "no process uses the GPU any more",
            |pool| Ok(back(pool.clear(&gpu.id, why)?)),
        )
    }

    /// Returns a GPU without holder to the pool; `record` is the record that it must have.
    pub(super) fn resolve(&mut self, act: LeaseAction, gpu: &Gpu, detail: &str) -> Result<(), LeaseError> {
        let record = gpu.record.as_ref().map(|record| (record.pid.as_str(), record.time.as_str()));
        let offset = jiff::Zoned::now().offset().seconds();
        self.record((act, &of_gpu(gpu)), detail, |pool| Ok(back(pool.resolve(&gpu.id, record, offset)?)))
    }

    /// Records an action on disk before it is carried out.
    fn record(
        &mut self,
        (act, subject): (LeaseAction, &Subject),
        why: &str,
        action: impl FnOnce(&mut Pool) -> Result<(LeaseOutcome, String), LeaseError>,
    ) -> Result<(), LeaseError> {
        let line = |result, detail| Record {
            policy: self.policy,
            mode: Some(Mode::Enforce),
            step: act.name(),
            result,
            detail,
            target: Some(subject),
            ..Record::default()
        };
        if let Err(unwritten) = self.log.record(&line(BEGUN, why)) {
            tracing::error!(action = act.name(), target = %subject.id, %unwritten, "lease action not carried out");
            drop(self.events.send(AgentEvent::LeaseAction(act, LeaseOutcome::Failed)));
            return Ok(());
        }
        let done = action(self.pool);
        let (result, detail) = match &done {
            Ok((result, detail)) => (*result, detail.clone()),
            Err(error) => (LeaseOutcome::Failed, error.to_string()),
        };
        self.log.append(&line(result.name(), &detail));
        tracing::info!(action = act.name(), target = %subject.id, result = result.name(), why, detail, "leases");
        drop(self.events.send(AgentEvent::LeaseAction(act, result)));
        done.map(drop)
    }
}

fn back(back: ReturnOutcome) -> (LeaseOutcome, String) {
    match back {
        ReturnOutcome::Freed => (LeaseOutcome::Freed, String::new()),
        ReturnOutcome::Not(why) => (LeaseOutcome::Changed, why),
    }
}

/// Creates the audit subject of a lease.
fn of_lease(lease: &Lease) -> Subject {
    let holder = lease.number("pid").map(|pid| Member {
        key: lease.holder(),
        pid,
        uid: lease.number("uid"),
        comm: String::new(),
        exe: None,
        cgroup: String::new(),
        confinement: String::new(),
        notebook: None,
        vram: None,
        holds: false,
    });
    Subject {
        id: TargetId(Arc::from(format!("lease:{}#{}", lease.lease, lease.get("tok").unwrap_or("-")))),
        kind: Kind::Lease,
        uid: lease.number("uid"),
        user: lease.get("user").map(str::to_owned),
        gpus: lease.gpus().map(str::to_owned).collect(),
        job: None,
        pod: None,
        members: holder.into_iter().collect(),
    }
}

/// Creates the audit subject of a GPU.
fn of_gpu(gpu: &Gpu) -> Subject {
    let name = gpu.uuid.as_ref().map_or_else(|| format!("pool:{}", gpu.id), |uuid| format!("gpu:{uuid}"));
    Subject {
        id: TargetId(Arc::from(name)),
        kind: Kind::Gpu,
        uid: None,
        user: None,
        gpus: gpu.uuid.iter().cloned().collect(),
        job: None,
        pod: None,
        members: Vec::new(),
    }
}

/// Returns the lease of a GPU.
pub(super) fn owner<'a>(audit: &'a Pooled, gpu: &Gpu) -> Option<&'a Lease> {
    let owner = gpu.owner.as_deref()?;
    audit.leases.iter().find(|lease| lease.lease == owner && lease.state == "held")
}
