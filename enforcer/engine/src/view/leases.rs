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

impl Found {
    pub(super) fn of(
        held: &Held,
        leases: &Leases,
        (snapshot, holdings): (&wire::Snapshot, &Holdings),
    ) -> Self {
        let of_it = |gpu: &wire::Gpu| leases.gpu(gpu).is_some_and(|gpu| held.gpus.contains(&gpu.id));
        let gpus: Vec<usize> =
            (0..).zip(&snapshot.gpus).filter(|(_, gpu)| of_it(gpu)).map(|(place, _)| place).collect();
        let seen = |id: &String| {
            let ours = |gpu: &&wire::Gpu| leases.gpu(*gpu).is_some_and(|gpu| gpu.id == *id);
            snapshot.gpus.iter().any(|gpu| ours(&gpu))
        };
        let reported = |place: &usize| snapshot.gpus.get(*place).is_some_and(lists_holders);
        let mut found = Self {
            processes: Vec::new(),
            whole: held.gpus.iter().all(seen) && gpus.iter().all(reported),
            gpus,
        };
        for (place, process) in snapshot.processes.iter().enumerate() {
            let on_it = holdings.of(place).iter().map(|(gpu, _)| *gpu as usize);
            let ties = on_it.filter(|gpu| found.gpus.contains(gpu)).filter_map(|gpu| snapshot.gpus.get(gpu));
            let belongs = ties.map(|gpu| belongs(process, gpu, (held, leases))).reduce(Truth::or);
            match belongs {
                Some(Truth::True) => found.processes.push(place),
                Some(Truth::Unknown) => found.whole = false,
                Some(Truth::False) | None => {}
            }
        }
        found
    }
}

/// Returns whether a process on a GPU belongs to a lease.
fn belongs(process: &wire::Process, gpu: &wire::Gpu, (held, leases): (&Held, &Leases)) -> Truth {
    match Members::of_wire(process).map(|members| leases.lease_of(&members, leases.gpu(gpu))) {
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
