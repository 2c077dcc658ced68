//! A snapshot as rules see it: targets with their processes and GPUs, and what follows from two snapshots.

mod account;
mod between;
mod holdings;
pub mod leases;
mod quotas;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bailiff_snapshot::{Held, Leases, MpsServer, ProcessKey, wire};
use serde::{Deserialize, Serialize};

use crate::Kind;
use crate::value::Value;

/// Ticks of `start_ticks` in a second: `USER_HZ` of `include/uapi/asm-generic/param.h`, which x86-64 and aarch64
/// use.
const TICKS_PER_SECOND: u64 = 100;

/// The name of a target, stable as long as it is the same one: `process:4100@98765` (pid and start tick),
/// `process:4100#12` (listed by the driver alone, first in snapshot 12), `workload:unit:/system.slice/nb.service`, `gpu:GPU-…`,
/// `lease:NAME#TOKEN`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct TargetId(pub Arc<str>);

impl fmt::Display for TargetId {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

/// Something that a rule can be about.
#[derive(Debug, Clone)]
pub struct Target {
    /// Its name.
    pub id: TargetId,
    /// What it is.
    pub kind: Kind,
    /// Those of the snapshot's `processes` that belong to it.
    pub processes: Vec<usize>,
    /// Those of the snapshot's `relatives` that belong to it; none without a scan.
    pub relatives: Option<Vec<usize>>,
    /// Of a workload: those of the snapshot's `relatives` that descend from its processes and are counted to another workload.
    /// An action may touch them.
    pub below: Vec<usize>,
    /// Those of the snapshot's `gpus` that it holds or is.
    pub gpus: Vec<usize>,
    /// The lease that it is.
    pub lease: Option<Leased>,
    /// CPU time a second, of all its processes; a core that is always busy is 1.
    pub cpu: Value,
    /// Bytes a second to and from storage, of those of its processes that hold memory.
    pub io: Value,
    /// One of its processes may hold a GPU that is lost, so that what is seen of it is a part.
    pub(crate) on_lost: bool,
}

/// A lease as a target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Leased {
    /// Its place among those that are held.
    pub place: usize,
    /// The processes on its GPUs are all known, and whether they belong to it.
    pub whole: bool,
}

/// A snapshot and its targets.
#[derive(Debug, Clone)]
pub struct View {
    /// What was seen.
    pub snapshot: wire::Snapshot,
    /// All targets.
    pub targets: Vec<Target>,
    holdings: holdings::Holdings,
    /// For the next one.
    account: account::Account,
}

/// Whether a source answered for a GPU, so that an absent target is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Health {
    /// It did.
    Well,
    /// It did not.
    Ill,
}

impl View {
    /// When it was seen, since boot.
    #[must_use]
    pub const fn boot(&self) -> Duration {
        Duration::from_millis(self.snapshot.boot_ms)
    }

    /// The interval's period.
    #[must_use]
    pub const fn interval(&self) -> Duration {
        Duration::from_millis(self.snapshot.interval_ms)
    }

    /// Its processes belong to this host and boot, and can be identified.
    #[must_use]
    pub fn trusted(&self) -> bool {
        self.snapshot.pid_namespace == "host" && self.snapshot.boot_id.is_some()
    }

    /// An MPS server as reported by its daemon; none if the exporter does not see it as one.
    pub(crate) fn mps_server(&self, target: &Target) -> Option<&MpsServer> {
        let process = self.processes(target).find_map(key)?;
        self.snapshot.mps.as_ref()?.server(process)
    }

    /// How a source did.
    #[must_use]
    pub fn source(&self, name: &str) -> Health {
        match self.snapshot.sources.get(name) {
            Some(source) if source.up => Health::Well,
            _ => Health::Ill,
        }
    }

    /// Whether a GPU, by its UUID, may be held by an unseen process: it gave no list, or is absent.
    #[must_use]
    pub fn hides(&self, uuid: &str) -> bool {
        let is_gpu = |gpu: &&wire::Gpu| gpu.uuid.as_deref() == Some(uuid);
        let gpu = self.snapshot.gpus.iter().find(is_gpu);
        gpu.is_none_or(|gpu| gpu.fault.is_some() || gpu.listed.is_none())
    }

    /// The GPU that a target is.
    #[must_use]
    pub fn gpu_of(&self, target: &Target) -> Option<&wire::Gpu> {
        self.snapshot.gpus.get(*target.gpus.first()?).filter(|_| target.kind == Kind::Gpu)
    }

    /// The pool of leases, where it answered, and not long before this snapshot.
    #[must_use]
    pub fn leases(&self) -> Option<&Leases> {
        leases::of(&self.snapshot)
    }

    /// The lease that a target is.
    #[must_use]
    pub fn held(&self, target: &Target) -> Option<&Held> {
        self.leases()?.held.get(target.lease?.place)
    }

    /// The processes of a target that hold memory.
    pub fn processes<'a>(&'a self, target: &'a Target) -> impl Iterator<Item = &'a wire::Process> {
        target.processes.iter().filter_map(|process| self.snapshot.processes.get(*process))
    }

    /// The others.
    pub fn relatives<'a>(&'a self, target: &'a Target) -> impl Iterator<Item = &'a wire::Relative> {
        let all = self.snapshot.relatives.as_deref().unwrap_or_default();
        target.relatives.iter().flatten().filter_map(|relative| all.get(*relative))
    }

    /// Those that descend from them, whatever workload they are counted to.
    pub(crate) fn below<'a>(&'a self, target: &'a Target) -> impl Iterator<Item = &'a wire::Relative> {
        let all = self.snapshot.relatives.as_deref().unwrap_or_default();
        target.below.iter().filter_map(|relative| all.get(*relative))
    }

    /// The GPUs of a target.
    pub fn gpus<'a>(&'a self, target: &'a Target) -> impl Iterator<Item = &'a wire::Gpu> {
        target.gpus.iter().filter_map(|gpu| self.snapshot.gpus.get(*gpu))
    }

    /// All that a target's processes hold.
    pub fn holdings<'a>(
        &'a self,
        target: &'a Target,
    ) -> impl Iterator<Item = (&'a wire::Gpu, &'a wire::Holder)> {
        target.processes.iter().flat_map(|process| self.holdings_of(*process))
    }

    /// What one process of the snapshot holds.
    pub fn holdings_of(&self, process: usize) -> impl Iterator<Item = (&wire::Gpu, &wire::Holder)> {
        self.holdings.of(process).iter().filter_map(|(gpu, holder)| {
            let gpu = self.snapshot.gpus.get(*gpu as usize)?;
            Some((gpu, gpu.holders.get(*holder as usize)?))
        })
    }

    /// The largest figure of a target's holdings.
    pub fn most(&self, target: &Target, figure: impl Fn(&wire::Holder) -> Option<f64>) -> Value {
        let figures = self.holdings(target).map(|(_, holder)| figure(holder));
        self.or_more(target, joined(figures, f64::max))
    }

    /// The sum of a figure of a target's holdings.
    pub fn sum(&self, target: &Target, figure: impl Fn(&wire::Holder) -> Option<f64>) -> Value {
        let figures = self.holdings(target).map(|(_, holder)| figure(holder));
        self.or_more(target, joined(figures, |sum, figure| sum + figure))
    }

    /// A figure of what a target holds is a lower bound where it may hold more than is seen.
    pub(crate) fn or_more(&self, target: &Target, value: Value) -> Value {
        match value {
            Value::Number(number) if self.may_hold_more(target) => Value::AtLeast(number),
            value => value,
        }
    }

    /// Whether a target may hold more than is seen: a GPU gave no list, or a lost GPU may be held by it.
    pub(crate) fn may_hold_more(&self, target: &Target) -> bool {
        target.on_lost || self.blind()
    }

    /// Whether a GPU gave no list, so that any target may hold more than is seen. The holders of a lost GPU are
    /// remembered; in MIG mode the instances have the lists.
    #[must_use]
    pub fn blind(&self) -> bool {
        self.snapshot.gpus.iter().any(|gpu| {
            let remembered =
                || self.snapshot.lost.iter().any(|lost| lost.is(&gpu.index, gpu.uuid.as_deref()));
            let without_list = gpu.instances.is_none() && (gpu.fault.is_some() || gpu.listed.is_none());
            without_list && !(gpu.fault.as_deref() == Some("lost") && remembered())
        })
    }

    /// How long a process has lived.
    #[must_use]
    pub fn age(&self, process: &wire::Process) -> Option<Duration> {
        let started = Duration::from_millis(process.start_ticks?.checked_mul(1000 / TICKS_PER_SECOND)?);
        Some(self.boot().saturating_sub(started))
    }
}

/// Joins figures; what was not observed makes the rest a lower bound.
pub(crate) fn joined(figures: impl Iterator<Item = Option<f64>>, join: impl Fn(f64, f64) -> f64) -> Value {
    let mut whole: Option<f64> = None;
    let mut complete = true;
    for figure in figures {
        match figure {
            Some(figure) => whole = Some(whole.map_or(figure, |whole| join(whole, figure))),
            None => complete = false,
        }
    }
    match whole {
        Some(whole) if complete => Value::Number(whole),
        Some(whole) => Value::AtLeast(whole),
        None => Value::Unknown("not observed"),
    }
}

/// Identity of a process of a snapshot; none if `/proc` did not confirm it.
#[must_use]
pub fn key(process: &wire::Process) -> Option<ProcessKey> {
    Some(ProcessKey { pid: process.pid, start_ticks: process.start_ticks? })
}
