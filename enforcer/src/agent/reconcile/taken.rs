//! Finds the process that took a GPU by `GPU.py`'s rules.

use std::path::PathBuf;

use bailiff_lease::LeaseError;
use bailiff_lease::audit::{Gpu, Lease, Record};
use bailiff_lease::holder::Recorded;
use bailiff_lease::legacy::{Found, Taker, WriterEvidence};
use bailiff_lease::process::session_has_open;
use bailiff_snapshot::millis;

use super::{Pass, Reconciler};
use crate::agent::actions::{LeaseExecutor, owner};
use crate::agent::memory::is_nowhere;
use crate::clock;

/// A GPU that was taken by the rules of `GPU.py`, or that is lost: recorded neither as idle nor as taken.
pub(super) struct Taken {
    pub(super) by: Taker,
    session: Option<u32>,
    /// Time in milliseconds since boot.
    at_ms: u64,
}

impl Taken {
    pub(super) const fn has_ended(&self) -> bool {
        matches!(self.by, Taker::Ended(_) | Taker::Gone)
    }
}

impl Reconciler<'_> {
    /// Returns the process that took a GPU for a client of `GPU.py`; `None` for other GPUs.
    pub(super) fn taken(
        &mut self,
        pass: &Pass<'_>,
        gpu: &Gpu,
        (actor, keeps): (&mut LeaseExecutor<'_>, bool),
    ) -> Result<Option<Taken>, LeaseError> {
        if is_nowhere(gpu) {
            let nowhere = self.memory.nowhere(&gpu.id).map(Taker::Nowhere);
            return Ok(nowhere.map(|by| Taken { by, session: None, at_ms: u64::MAX }));
        }
        let Some(record) = &gpu.record else { return Ok(None) };
        let process = format!("{} {}", record.pid, record.time);
        Ok(match owner(pass.audit, gpu) {
            // Until the client has confirmed the grant, the lease ends with the client, as any other lease
            // does.
            Some(lease) if lease.get("mode") == Some("compat") && lease.get("known").is_some() => {
                let by = match self.local_host.recorded(lease) {
                    Recorded::Running => Taker::Runs,
                    Recorded::Ended => Taker::Ended(self.memory.ended(&gpu.id, &process)),
                    Recorded::Gone => Taker::Gone,
                    Recorded::Unknown => Taker::Unknown,
                };
                Some(Taken { by, session: lease.number("session"), at_ms: pass.granted(lease) })
            }
            None if record.lease.is_none() && gpu.owner.is_none() && gpu.is_unlisted() => {
                let witness = self.witness(gpu, record, (actor, keeps))?;
                let by = match witness.as_ref().and_then(|witness| witness.lives(&self.local_host)) {
                    Some(true) => Taker::Runs,
                    Some(false) => Taker::Ended(self.memory.ended(&gpu.id, &process)),
                    None => Taker::Unknown,
                };
                let (session, at_ms) =
                    witness.map_or((None, u64::MAX), |witness| (witness.session, witness.at_ms));
                Some(Taken { by, session, at_ms })
            }
            _ => None,
        })
    }

    /// Returns whether an older process of the session that took a GPU has its device file open, or may have.
    pub(super) fn is_open(&self, pass: &Pass<'_>, gpu: &Gpu, taken: &Taken) -> bool {
        let Some(session) = taken.session else { return false };
        let minors = pass.evidence.iter().flat_map(|evidence| evidence.minors(gpu));
        minors
            .map(|minor| PathBuf::from(format!("{}{minor}", self.devices)))
            .any(|device| session_has_open(session, taken.at_ms, &device).unwrap_or(true))
    }

    /// Returns what is known about the process that wrote a record. If the writing was not reported, the process
    /// is examined now, but not in the first pass, because the report may still arrive.
    fn witness(
        &mut self,
        gpu: &Gpu,
        record: &Record,
        (actor, keeps): (&mut LeaseExecutor<'_>, bool),
    ) -> Result<Option<WriterEvidence>, LeaseError> {
        let known_witness = self.shared.mailbox().witnesses.get(&gpu.id).cloned();
        let known_witness = known_witness
            .filter(|known_witness| known_witness.pid == record.pid && known_witness.time == record.time);
        if let Some(witness) = known_witness.or_else(|| WriterEvidence::of(record)) {
            return Ok(Some(witness));
        }
        let known = self.unreported.insert(gpu.id.clone(), record.clone());
        if known.as_ref() != Some(record) {
            return Ok(None);
        }
        let witness = WriterEvidence::collect(&self.local_host, record, Found::Later);
        if keeps {
            actor.pool.store(&gpu.id, &witness)?;
        }
        self.shared.mailbox().witnesses.insert(gpu.id.clone(), witness.clone());
        Ok(Some(witness))
    }
}

impl Pass<'_> {
    /// Returns the time of a lease's grant in milliseconds since boot.
    fn granted(&self, lease: &Lease) -> u64 {
        let age =
            lease.number::<u64>("granted").map(|at| self.audit.now.saturating_sub(at)).unwrap_or_default();
        let now = millis(clock::since_boot());
        now.saturating_sub(age)
    }
}
