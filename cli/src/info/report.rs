//! A report: what `--json` prints, what is kept under a tag, and what the text is made from. What was not observed is
//! left out of it.

use std::collections::BTreeMap;
use std::time::Duration;

use bailiff_snapshot::lease::Ticket;
use bailiff_snapshot::utilization::IDLE_AT_MOST_PERCENT;
use bailiff_snapshot::{DeviceProcess, DeviceProcesses, Stuck, Why, wire};
use serde::{Deserialize, Serialize};

use super::leased::{Leased, Pool};
use super::look::{By, Seen};

/// The version of the form.
pub(crate) const VERSION: u32 = 1;
/// The name of a report that was given none.
pub(crate) const DEFAULT_TAG: &str = "default";

/// All of it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Report {
    pub(crate) version: u32,
    pub(crate) tag: String,
    /// When it was seen, milliseconds since the Unix epoch.
    pub(crate) wall_ms: u64,
    pub(crate) seen_by: By,
    /// How old it was when it was told.
    pub(crate) age_ms: u64,
    /// The time between two looks.
    pub(crate) interval_ms: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) boot_id: Option<String>,
    pub(crate) pid_namespace: String,
    pub(crate) sources: BTreeMap<String, wire::Source>,
    /// What is wrong with the driver, where that was told in words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) words: Option<String>,
    /// What is wrong with the pool of leases.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) error: Option<String>,
    /// Who waits for GPUs of the pool; none where there is no pool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) queue: Option<Vec<Ticket>>,
    pub(crate) gpus: Vec<Gpu>,
    /// Processes whose open files we may not see; none where nobody looked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) unreadable: Option<u64>,
    /// How old that is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) device_processes_age_ms: Option<u64>,
    /// It was asked for, and could not be looked for.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) device_processes_failed: bool,
}

/// A GPU or MIG instance.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Gpu {
    pub(crate) index: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) uuid: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) parent_uuid: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) name: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) compute_capability: Option<(i32, i32)>,
    /// Why nothing is known of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) fault: Option<String>,
    pub(crate) mig: bool,
    /// How many MIG instances it has, in which its processes are listed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) instances: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) memory: Option<Memory>,
    /// Percent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) utilization: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) compute_mode: Option<String>,
    /// Where it is in the pool of leases; none where it is of none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) lease: Option<Leased>,
    /// Who holds it, those who hold the most first; none where the driver gave no list.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) holders: Option<Vec<Holder>>,
    /// Who has its device file open; none where nobody looked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) device_processes: Option<Vec<DeviceProcess>>,
}

/// Where the memory is: `total = free + reserved + computing + graphics + dead_pids + other_namespaces + unaccounted`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Memory {
    pub(crate) total: u64,
    pub(crate) used: u64,
    pub(crate) free: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) reserved: Option<u64>,
    /// Held by processes that compute; some of them draw as well.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) computing: Option<u64>,
    /// Held by processes that only draw: screens, compositors, browsers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) graphics: Option<u64>,
    /// Held by pids that the driver lists and that do not exist.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) dead_pids: Option<u64>,
    /// Held by processes of PID namespaces that cannot be seen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) other_namespaces: Option<u64>,
    /// Held by nobody who is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) unaccounted: Option<i64>,
    /// What those held who ended, and did not come back; none where that cannot be told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) unreleased: Option<u64>,
}

/// A process on a GPU.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Holder {
    pub(crate) pid: u32,
    /// With the pid and the boot, who it is; none where `/proc` does not show it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) start_ticks: Option<u64>,
    /// `C`, `G`, `M+C`, `C+G`.
    pub(crate) kinds: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) memory: Option<u64>,
    /// Percent of the busiest engine, between the last two looks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) utilization: Option<u32>,
    /// Why that is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) unknown: Option<Why>,
    /// How long it was seen idle since it was seen busy; time that nobody saw adds nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) idle_ms: Option<u64>,
    pub(crate) state: String,
    /// Its parent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) ppid: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) orphaned: Option<bool>,
    /// How it is stuck, by the name of the kind.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) stuck: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) user: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) uid: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) comm: Option<String>,
    /// `mps_server` or `mps_control`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) role: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) container: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) pod: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) namespace: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) slurm_job: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) unit: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) workload: Option<String>,
    /// It has the GPU by a lease; none where that cannot be told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) leased: Option<bool>,
}

/// What is known beside the GPUs.
struct Node<'a> {
    processes: BTreeMap<u32, &'a wire::Process>,
    pool: Pool<'a>,
}

impl Report {
    /// Makes one of what was seen.
    pub(crate) fn of(seen: &Seen, tag: &str) -> Self {
        let snapshot = &seen.snapshot;
        let node = Node {
            processes: snapshot.processes.iter().map(|process| (process.pid, process)).collect(),
            pool: Pool::of(snapshot),
        };
        Self {
            version: VERSION,
            tag: tag.to_owned(),
            wall_ms: snapshot.wall_ms,
            seen_by: seen.by,
            age_ms: u64::try_from(seen.age.as_millis()).unwrap_or(u64::MAX),
            interval_ms: snapshot.interval_ms,
            boot_id: snapshot.boot_id.clone(),
            pid_namespace: snapshot.pid_namespace.clone(),
            sources: snapshot.sources.clone(),
            words: seen.words.clone(),
            error: seen.error.clone(),
            queue: node.pool.queue(),
            gpus: snapshot.gpus.iter().map(|gpu| Gpu::of(gpu, &node)).collect(),
            unreadable: None,
            device_processes_age_ms: None,
            device_processes_failed: false,
        }
    }

    /// Keeps these GPUs alone; tells a name that is none's. The instances of a GPU go with it.
    pub(crate) fn keep(&mut self, names: &[String]) -> Result<(), String> {
        if names.is_empty() {
            return Ok(());
        }
        let missing = names.iter().find(|name| !self.gpus.iter().any(|gpu| gpu.is_called(name)));
        if let Some(name) = missing {
            return Err(format!("--gpu: {name:?} is no GPU of this machine, by number or UUID"));
        }
        self.leave(names);
        Ok(())
    }

    /// Keeps those of these GPUs that it has; no name is all.
    pub(crate) fn leave(&mut self, names: &[String]) {
        self.gpus.retain(|gpu| names.is_empty() || names.iter().any(|name| gpu.is_called(name)));
    }

    /// Adds who has device files open, as it was so long ago; the minor numbers are the snapshot's.
    pub(crate) fn add_device_processes(
        &mut self,
        device_processes: &DeviceProcesses,
        age: Duration,
        snapshot: &wire::Snapshot,
    ) {
        self.unreadable = Some(device_processes.unreadable);
        self.device_processes_age_ms = Some(u64::try_from(age.as_millis()).unwrap_or(u64::MAX));
        for gpu in &mut self.gpus {
            let minor = snapshot.gpus.iter().find(|seen| seen.index == gpu.index).and_then(|seen| seen.minor);
            gpu.device_processes = minor.map(|minor| {
                device_processes
                    .processes
                    .iter()
                    .filter(|device_process| device_process.minors.contains(&minor))
                    .cloned()
                    .collect()
            });
        }
    }

    /// A source that did not answer, and why.
    pub(crate) fn down(&self) -> impl Iterator<Item = (&str, &str)> {
        self.sources.iter().filter_map(|(name, source)| Some((name.as_str(), source.fault.as_deref()?)))
    }

    /// Why no GPU could be read, where none was.
    pub(crate) fn blind(&self) -> Option<&str> {
        let nvml = self.sources.get("nvml")?;
        let any = self.gpus.iter().any(|gpu| gpu.fault.is_none());
        nvml.fault.as_deref().filter(|_| !any)
    }
}

impl Gpu {
    fn of(gpu: &wire::Gpu, node: &Node<'_>) -> Self {
        let one = |holder: &wire::Holder| {
            let process = node.processes.get(&holder.pid).copied();
            let stuck = gpu.stuck.get(&holder.pid).cloned();
            Holder { leased: node.pool.has(process, gpu), stuck, ..Holder::of(holder, process) }
        };
        let holders = gpu.listed.map(|_| {
            let mut holders: Vec<Holder> = gpu.holders.iter().map(one).collect();
            holders.sort_by_key(|holder| (std::cmp::Reverse(holder.memory), holder.pid));
            holders
        });
        Self {
            index: gpu.index.clone(),
            uuid: gpu.uuid.clone(),
            parent_uuid: gpu.parent_uuid.clone(),
            name: gpu.name.clone(),
            compute_capability: gpu.compute_capability,
            fault: gpu.fault.clone(),
            mig: gpu.mig,
            instances: gpu.instances,
            memory: gpu.memory.as_ref().map(|memory| Memory::of(memory, holders.as_deref())),
            utilization: gpu.utilization,
            compute_mode: gpu.compute_mode.clone(),
            lease: node.pool.gpu(gpu),
            holders,
            device_processes: None,
        }
    }

    fn is_called(&self, name: &str) -> bool {
        let whole = self.index.split(':').next() == Some(name);
        whole || self.index == name || [&self.uuid, &self.parent_uuid].contains(&&Some(name.to_owned()))
    }
}

impl Memory {
    fn of(memory: &wire::Memory, holders: Option<&[Holder]>) -> Self {
        let sum = |draws: bool| {
            let alive =
                holders?.iter().filter(|holder| holder.state != "gone" && (holder.kinds == "G") == draws);
            alive.map(|holder| holder.memory).sum::<Option<u64>>()
        };
        Self {
            total: memory.total,
            used: memory.used,
            free: memory.free,
            reserved: memory.reserved,
            computing: sum(false),
            graphics: sum(true),
            dead_pids: memory.dead_pids,
            other_namespaces: memory.other_namespaces,
            unaccounted: memory.unaccounted,
            unreleased: memory.unreleased,
        }
    }
}

impl Holder {
    fn of(holder: &wire::Holder, process: Option<&wire::Process>) -> Self {
        let facts = process.and_then(|process| process.facts.as_ref());
        let place = facts.map(|facts| &facts.place);
        // Without an observation there is no idle time; one that was made earlier stands.
        let observed = holder.utilization.is_some() || holder.idle_ms > 0;
        Self {
            pid: holder.pid,
            start_ticks: process.and_then(|process| process.start_ticks),
            kinds: holder.kinds.clone(),
            memory: holder.memory,
            utilization: holder.utilization,
            unknown: holder.unknown,
            idle_ms: observed.then_some(holder.idle_ms),
            state: process.map_or_else(|| "unknown".to_owned(), |process| process.state.clone()),
            ppid: facts.map(|facts| facts.ppid),
            orphaned: facts.and_then(|facts| facts.orphaned),
            stuck: None,
            user: facts.and_then(|facts| facts.user.clone()),
            uid: facts.and_then(|facts| facts.uid),
            comm: facts.map(|facts| facts.comm.clone()),
            role: facts.and_then(|facts| facts.role.clone()),
            container: place.and_then(|place| place.container.clone()),
            pod: place.and_then(|place| place.pod.clone().or_else(|| place.pod_uid.clone())),
            namespace: place.and_then(|place| place.namespace.clone()),
            slurm_job: place.and_then(|place| place.slurm_job.clone()),
            unit: place.and_then(|place| place.unit.clone()),
            workload: facts.and_then(|facts| facts.workload.clone()),
            leased: None,
        }
    }

    /// Its owner: the name where it is known.
    pub(crate) fn owner(&self) -> Option<String> {
        self.user.clone().or_else(|| self.uid.map(|uid| uid.to_string()))
    }

    /// How it is stuck; none where it is not, or that cannot be told.
    pub(crate) fn stuck(&self) -> Option<Stuck> {
        Stuck::of_name(self.stuck.as_deref()?)
    }

    /// It was seen not to use the GPU between the last two looks.
    pub(crate) fn is_idle(&self) -> bool {
        self.utilization.is_some_and(|percent| percent <= IDLE_AT_MOST_PERCENT)
    }
}
