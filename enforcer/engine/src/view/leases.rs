//! The leases of a snapshot with their GPUs and processes.

use bailiff_snapshot::lease::attribution::{Attribution, Members};
use bailiff_snapshot::{Held, Leases, Truth, wire};

use super::holdings::Holdings;
use super::{Target, View};

/// A pool that was read more than this many intervals ago is not used.
const STALE_INTERVALS: u64 = 2;

/// Returns the leases if the server responded recently.
pub(super) fn of(snapshot: &wire::Snapshot) -> Option<&Leases> {
    let reported = snapshot.leases.as_ref()?;
    let age = snapshot.boot_ms.saturating_sub(reported.boot_ms);
    let answered = snapshot.sources.get("redis").is_none_or(|source| source.up);
    (answered && age <= snapshot.interval_ms.saturating_mul(STALE_INTERVALS)).then_some(reported)
}

/// GPUs and processes of one lease.
pub(super) struct Found {
    /// Indexes of its processes.
    pub(super) processes: Vec<usize>,
    /// Indexes of its GPUs.
    pub(super) gpus: Vec<usize>,
    /// Whether all its GPUs are on this node and have complete lists, and it is known for each process whether
    /// it belongs to the lease.
    pub(super) whole: bool,
}

/// What is the same for all leases. Clients of the pool can write very many leases, with very many GPUs, so that nothing
/// may be searched again for each.
pub(super) struct Pool<'a> {
    snapshot: &'a wire::Snapshot,
    /// The pool's id of each GPU of this node.
    ids: Vec<Option<&'a str>>,
    /// The lease that each process on a GPU belongs to: places of the process and the GPU.
    ties: Vec<(usize, usize, Option<Attribution<'a>>)>,
}

impl<'a> Pool<'a> {
    pub(super) fn of(leases: &'a Leases, (snapshot, holdings): (&'a wire::Snapshot, &Holdings)) -> Self {
        let gpus: Vec<_> = snapshot.gpus.iter().map(|gpu| leases.gpu(gpu)).collect();
        let mut ties = Vec::new();
        for (place, process) in snapshot.processes.iter().enumerate() {
            // The process that the driver means may be another one.
            let certain = process.facts.as_ref().is_none_or(|facts| !facts.reused_pid);
            let members = Members::of_wire(process).filter(|_| certain);
            for gpu in holdings.of(place).iter().map(|(gpu, _)| *gpu as usize) {
                let entry = gpus.get(gpu).copied().flatten();
                ties.push((place, gpu, members.map(|members| leases.lease_of(&members, entry))));
            }
        }
        let ids = gpus.into_iter().map(|gpu| gpu.map(|gpu| gpu.id.as_str())).collect();
        Self { snapshot, ids, ties }
    }

    /// Returns the GPUs and processes of a lease.
    pub(super) fn found(&self, held: &Held) -> Found {
        let is_held = |id: &str| held.gpus.iter().any(|held| held == id);
        let gpus = self.ids.iter().enumerate().filter(|(_, id)| id.is_some_and(is_held));
        let gpus: Vec<usize> = gpus.map(|(place, _)| place).collect();
        let reported = |place: &usize| self.snapshot.gpus.get(*place).is_some_and(lists_holders);
        let is_here = |id: &String| self.ids.contains(&Some(id.as_str()));
        let whole = held.gpus.iter().all(is_here) && gpus.iter().all(reported);
        let mut found = Found { processes: Vec::new(), whole, gpus };
        let ties = self.ties.iter().filter(|(_, gpu, _)| found.gpus.contains(gpu));
        for ties in ties.collect::<Vec<_>>().chunk_by(|(one, ..), (other, ..)| one == other) {
            let belongs = ties.iter().map(|(.., attribution)| belongs(attribution.as_ref(), held));
            match belongs.reduce(Truth::or) {
                Some(Truth::True) => found.processes.extend(ties.first().map(|(place, ..)| *place)),
                Some(Truth::Unknown) => found.whole = false,
                Some(Truth::False) | None => {}
            }
        }
        found
    }
}

/// Returns whether a process belongs to a lease.
fn belongs(attribution: Option<&Attribution<'_>>, held: &Held) -> Truth {
    match attribution {
        Some(Attribution::Lease(theirs)) => (theirs.lease == held.lease).into(),
        Some(Attribution::Nothing | Attribution::Legacy(_)) => Truth::False,
        Some(Attribution::Unknown(_)) | None => Truth::Unknown,
    }
}

/// Returns whether a GPU has a complete process list; in MIG mode its instances have the lists.
pub fn lists_holders(gpu: &wire::Gpu) -> bool {
    gpu.instances.is_some() || gpu.fault.is_none() && gpu.listed == Some(gpu.holders.len() as u64)
}

impl View {
    /// Returns whether the GPUs that a target uses are leased to it, or why that is unknown.
    pub(crate) fn has_lease(&self, target: &Target) -> Result<Truth, &'static str> {
        let leases = self.leases().ok_or("the lease server does not respond")?;
        let mut all = Truth::True;
        let mut why = "the driver returned no process list for a GPU";
        for place in &target.processes {
            let members = self.snapshot.processes.get(*place).and_then(Members::of_wire);
            for (gpu, _) in self.holdings_of(*place) {
                let attribution = members.map(|members| leases.lease_of(&members, leases.gpu(gpu)));
                let truth = attribution.map_or(Truth::Unknown, |attribution| attribution.truth());
                if truth == Truth::Unknown {
                    why = match attribution {
                        Some(Attribution::Unknown(why)) => why,
                        _ => "the driver lists a pid for which no process exists",
                    };
                }
                all = all.and(truth);
            }
        }
        match all {
            Truth::False => Ok(Truth::False),
            Truth::True if !self.may_hold_more(target) => Ok(Truth::True),
            _ => Err(why),
        }
    }

    /// Returns the priority of a workload's lease for a GPU; 0 without a lease, `None` if unknown.
    pub(crate) fn priority(&self, target: &Target, gpu: usize) -> Option<i32> {
        let (leases, gpu) = (self.leases()?, self.snapshot.gpus.get(gpu)?);
        let mut highest = None;
        for place in &target.processes {
            if !self.holdings_of(*place).any(|(held, _)| held.index == gpu.index) {
                continue;
            }
            let members = self.snapshot.processes.get(*place).and_then(Members::of_wire)?;
            let priority = match leases.lease_of(&members, leases.gpu(gpu)) {
                Attribution::Lease(held) => held.priority,
                Attribution::Legacy(_) | Attribution::Nothing => 0,
                Attribution::Unknown(_) => return None,
            };
            highest = highest.max(Some(priority));
        }
        highest
    }
}
