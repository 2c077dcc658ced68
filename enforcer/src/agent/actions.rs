//! What the agent does, each with a line of the audit log on the disk before it and another with what came of it.

use std::sync::Arc;

use bailiff_lease::audit::{Audit as Pooled, Gpu, Lease};
use bailiff_lease::{End, Ended, LeaseError, Pool, ReturnOutcome};
use bailiff_snapshot::ProcessKey;
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc::UnboundedSender;

use super::status::AgentStatus;
use crate::audit::{Audit, BEGUN, Record};
use bailiff_engine::Kind;
use bailiff_engine::policy::Mode;
use bailiff_engine::verdict::{Member, Subject};
use bailiff_engine::view::TargetId;

/// Something that the agent says.
#[derive(Debug, Clone, PartialEq)]
pub enum AgentEvent {
    /// Its status, after a change.
    Status(Option<AgentStatus>),
    /// What it did.
    LeaseAction(LeaseAction, Result),
}

/// What the agent does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LeaseAction {
    /// Ends a lease whose holder has ended.
    ReapDead,
    /// Ends a lease whose time is over, or of a host without an agent that was not renewed in time.
    ReapLate,
    /// A GPU that was withheld, and is quiet, goes back.
    ClearWithheld,
    /// A GPU that a client of GPU.py has left behind goes back.
    FreeOrphaned,
    /// A GPU that was lost on its way goes back.
    PutBackLost,
}

impl LeaseAction {
    /// Its name in metrics and the audit log.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::ReapDead => "reap_dead",
            Self::ReapLate => "reap_late",
            Self::ClearWithheld => "clear_withheld",
            Self::FreeOrphaned => "free_orphaned",
            Self::PutBackLost => "put_back_lost",
        }
    }
}

/// What came of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Result {
    /// What was held goes to the next.
    Freed,
    /// Some of its GPUs are quarantined, because a process uses them.
    Withheld,
    /// It was not any more as it was evaluated, and nothing was done.
    Changed,
    /// Unknown: Redis did not answer, or the audit log could not be written.
    Failed,
}

impl Result {
    /// Its label value.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Freed => "freed",
            Self::Withheld => "withheld",
            Self::Changed => "changed",
            Self::Failed => "failed",
        }
    }
}

/// Executes, records and reports lease actions.
pub(super) struct LeaseExecutor<'a> {
    pub(super) pool: &'a mut Pool,
    pub(super) log: &'a Audit,
    pub(super) policy: &'a str,
    pub(super) events: &'a UnboundedSender<AgentEvent>,
}

impl LeaseExecutor<'_> {
    /// Ends a lease or a ticket.
    pub(super) fn end(
        &mut self,
        (act, lease): (LeaseAction, &Lease),
        busy: &[String],
        detail: &str,
    ) -> std::result::Result<(), LeaseError> {
        let end = if act == LeaseAction::ReapLate { End::Late } else { End::dead(lease) };
        let gpus: Vec<&str> = lease.gpus().collect();
        let withheld = busy.iter().any(|id| gpus.contains(&id.as_str()));
        self.record((act, &of_lease(lease)), detail, |pool| {
            Ok(match pool.end(&lease.lease, end, busy)? {
                Ended::Done if withheld => (Result::Withheld, format!("in use: {}", busy.join(", "))),
                Ended::Done => (Result::Freed, String::new()),
                Ended::Kept => (Result::Changed, "it was renewed or handed on meanwhile".to_owned()),
                Ended::Lost => (Result::Changed, "it is another one by now".to_owned()),
                Ended::Already(how) => (Result::Changed, format!("it had ended: {how}")),
            })
        })
    }

    /// Puts a GPU back that is withheld.
    pub(super) fn clear(&mut self, gpu: &Gpu, why: &str) -> std::result::Result<(), LeaseError> {
        self.record((LeaseAction::ClearWithheld, &of_gpu(gpu)), "no process uses it any more", |pool| {
            Ok(back(pool.clear(&gpu.id, why)?))
        })
    }

    /// Returns a GPU without holder to the pool, with this record or none.
    pub(super) fn resolve(
        &mut self,
        act: LeaseAction,
        gpu: &Gpu,
        detail: &str,
    ) -> std::result::Result<(), LeaseError> {
        let record = gpu.record.as_ref().map(|record| (record.pid.as_str(), record.time.as_str()));
        let offset = jiff::Zoned::now().offset().seconds();
        self.record((act, &of_gpu(gpu)), detail, |pool| Ok(back(pool.resolve(&gpu.id, record, offset)?)))
    }

    /// Nothing is done that is not on the disk before.
    fn record(
        &mut self,
        (act, subject): (LeaseAction, &Subject),
        why: &str,
        action: impl FnOnce(&mut Pool) -> std::result::Result<(Result, String), LeaseError>,
    ) -> std::result::Result<(), LeaseError> {
        let line = |result, detail| Record {
            id: None,
            policy: self.policy,
            rule: "",
            mode: Some(Mode::Enforce),
            step: act.name(),
            result,
            detail,
            target: Some(subject),
            evidence: None,
            after: None,
        };
        if let Err(unwritten) = self.log.record(&line(BEGUN, why)) {
            tracing::error!(act = act.name(), target = %subject.id, %unwritten, "not done");
            drop(self.events.send(AgentEvent::LeaseAction(act, Result::Failed)));
            return Ok(());
        }
        let done = action(self.pool);
        let (result, detail) = match &done {
            Ok((result, detail)) => (*result, detail.clone()),
            Err(error) => (Result::Failed, error.to_string()),
        };
        self.log.append(&line(result.name(), &detail));
        tracing::info!(act = act.name(), target = %subject.id, result = result.name(), why, detail, "leases");
        drop(self.events.send(AgentEvent::LeaseAction(act, result)));
        done.map(drop)
    }
}

fn back(back: ReturnOutcome) -> (Result, String) {
    match back {
        ReturnOutcome::Freed => (Result::Freed, String::new()),
        ReturnOutcome::Not(why) => (Result::Changed, why),
    }
}

/// A lease, for the audit log.
fn of_lease(lease: &Lease) -> Subject {
    let number = |field| lease.get(field).and_then(|text| text.parse::<u64>().ok());
    let small = |field| number(field).and_then(|number| u32::try_from(number).ok());
    let holder = small("pid").map(|pid| Member {
        key: number("start").map(|start_ticks| ProcessKey { pid, start_ticks }),
        pid,
        uid: small("uid"),
        comm: String::new(),
        exe: None,
        cgroup: String::new(),
        confinement: String::new(),
        vram: None,
        holds: false,
    });
    Subject {
        id: TargetId(Arc::from(format!("lease:{}#{}", lease.lease, lease.get("tok").unwrap_or("-")))),
        kind: Kind::Lease,
        uid: small("uid"),
        user: lease.get("user").map(str::to_owned),
        gpus: lease.gpus().map(str::to_owned).collect(),
        members: holder.into_iter().collect(),
    }
}

/// A GPU of the pool, for the audit log.
fn of_gpu(gpu: &Gpu) -> Subject {
    let name = gpu.uuid.as_ref().map_or_else(|| format!("pool:{}", gpu.id), |uuid| format!("gpu:{uuid}"));
    Subject {
        id: TargetId(Arc::from(name)),
        kind: Kind::Gpu,
        uid: None,
        user: None,
        gpus: gpu.uuid.iter().cloned().collect(),
        members: Vec::new(),
    }
}

/// The lease that has a GPU.
pub(super) fn owner<'a>(audit: &'a Pooled, gpu: &Gpu) -> Option<&'a Lease> {
    let owner = gpu.owner.as_deref()?;
    audit.leases.iter().find(|lease| lease.lease == owner && lease.state == "held")
}
