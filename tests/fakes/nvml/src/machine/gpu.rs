//! A device and its instances, computed from an entry in the scenario.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};

use super::lists::{Lists, Place, pids};
use super::{MOST_GPUS, MOST_INSTANCES, Nonsense, Wrong, ensure};
use crate::abi::NO_INSTANCE;
use crate::scenario::{self, Garbage, Grow, Lost, Process};

/// First of the pids that faults make up, close to the highest pid on Linux (`PID_MAX_LIMIT`, 2^22).
pub(crate) const MADE_UP_PID: u32 = 4_190_000;

/// A device.
#[derive(Debug)]
pub(crate) struct Gpu {
    pub(crate) index: u32,
    pub(crate) unit: Unit,
    /// The entry in the scenario, for values that need no computation.
    pub(crate) written: scenario::Gpu,
    /// Newest sample of each process that has a sample.
    pub(crate) activities: Vec<Activity>,
    /// Highest utilization of each kind among the device's processes, or the value in the scenario.
    pub(crate) busiest: Activity,
    /// Instances if MIG is on, even if there are none.
    pub(crate) instances: Option<Vec<Instance>>,
    pub(crate) wrong: Wrong,
    pub(crate) lost: Lost,
    /// How often a caller's buffer was too small for the compute list.
    refused: AtomicU32,
}

/// A MIG instance.
#[derive(Debug)]
pub(crate) struct Instance {
    pub(crate) index: u32,
    pub(crate) gi: u32,
    pub(crate) ci: u32,
    pub(crate) gpu_slices: u32,
    pub(crate) compute_slices: u32,
    /// Metrics of GPM by number.
    pub(crate) gpm: Option<BTreeMap<u32, scenario::Metric>>,
    pub(crate) unit: Unit,
}

/// Common data of devices and instances.
#[derive(Debug)]
pub(crate) struct Unit {
    pub(crate) name: String,
    pub(crate) uuid: String,
    pub(crate) memory: Memory,
    pub(crate) lists: Lists,
}

/// Memory in bytes. The total is the sum of the other fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Memory {
    pub(crate) total: u64,
    pub(crate) reserved: u64,
    pub(crate) used: u64,
    pub(crate) free: u64,
}

/// Utilization of a process in percent, and by how many microseconds its sample is older than the driver's
/// newest sample.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Activity {
    pub(crate) pid: u32,
    pub(crate) age: u64,
    pub(crate) sm: u32,
    pub(crate) memory: u32,
    pub(crate) encoder: u32,
    pub(crate) decoder: u32,
    pub(crate) jpg: u32,
    pub(crate) ofa: u32,
}

/// Adds the devices of an entry in the scenario.
pub(crate) fn expand(
    entry: &scenario::Gpu,
    gpus: &mut Vec<Gpu>,
    exported: fn(&str) -> bool,
) -> Result<(), Nonsense> {
    ensure(entry.count == 1 || entry.uuid.is_none(), || {
        "gpus: several devices cannot have one uuid".to_owned()
    })?;
    for nth in 0..entry.count {
        ensure(gpus.len() < MOST_GPUS, || format!("gpus: there are more than {MOST_GPUS}"))?;
        let index = u32::try_from(gpus.len()).unwrap_or(u32::MAX);
        gpus.push(Gpu::compile(entry, Place { index, nth }, exported)?);
    }
    Ok(())
}

impl Gpu {
    fn compile(entry: &scenario::Gpu, place: Place, exported: fn(&str) -> bool) -> Result<Self, Nonsense> {
        let mut lists = Lists::default();
        let mut activities = Vec::new();
        let mut held = 0;
        for process in &entry.processes {
            held += lists.add(process, place, (NO_INSTANCE, NO_INSTANCE));
            activities.extend(pids(process, place).filter_map(|pid| Activity::of(process, pid)));
        }
        let instances = instances(entry, place)?;
        for instance in instances.iter().flatten() {
            held += instance.unit.memory.used;
            lists.extend(&instance.unit.lists);
        }
        let mut memory = Memory::compile(&entry.memory, held)?;
        let busiest = Activity::busiest(&activities, &entry.utilization);
        lists.garbage(&entry.faults.garbage, memory.total);
        if entry.faults.garbage.memory_above_total {
            memory.used = memory.total.saturating_mul(2);
        }
        garbage(&mut activities, &entry.faults.garbage);
        let uuid = || format!("GPU-00000000-0000-4000-8000-{:012x}", place.index + 1);
        Ok(Self {
            index: place.index,
            unit: Unit {
                name: entry.name.clone(),
                uuid: entry.uuid.clone().unwrap_or_else(uuid),
                memory,
                lists,
            },
            written: entry.clone(),
            activities,
            busiest,
            instances,
            wrong: Wrong::of_device(&entry.faults, exported)?,
            lost: entry.faults.lost.clone(),
            refused: AtomicU32::new(0),
        })
    }

    /// Serializes the lists with this driver's entry size.
    pub(crate) fn pack(&mut self, entry_bytes: usize) {
        let instances = self.instances.iter_mut().flatten().map(|instance| &mut instance.unit);
        for unit in instances.chain([&mut self.unit]) {
            unit.lists.pack(entry_bytes);
        }
    }

    /// Returns the number of entries by which the compute list has grown.
    pub(crate) fn growth(&self) -> u32 {
        let refused = self.refused.load(Ordering::Relaxed);
        match self.written.faults.grow {
            Grow::Always(by) => refused.saturating_mul(by),
            Grow::Times(grow) => refused.min(grow.times).saturating_mul(grow.by),
        }
    }

    /// Records that a caller's buffer was too small, which makes a list grow.
    pub(crate) fn refuse(&self) {
        self.refused.fetch_add(1, Ordering::Relaxed);
    }
}

impl Memory {
    fn compile(written: &scenario::Memory, held: u64) -> Result<Self, Nonsense> {
        let (total, reserved) = (written.total.0, written.reserved.0);
        let used = held + written.unaccounted.0;
        let free = total.checked_sub(reserved).and_then(|rest| rest.checked_sub(used));
        let free = free.ok_or_else(|| {
            Nonsense(format!(
                "memory: {used} bytes used and {reserved} reserved are more than the total of {total}"
            ))
        })?;
        Ok(Self { total, reserved, used, free })
    }
}

impl Activity {
    /// Returns `None` if the process is idle, because the driver shows idleness by the absence of samples.
    fn of(process: &Process, pid: u32) -> Option<Self> {
        let Process { sm, memory, encoder, decoder, jpg, ofa, .. } = *process;
        let idle = [sm, memory, encoder, decoder, jpg, ofa].iter().all(|percent| *percent == 0);
        (!idle).then_some(Self { pid, age: process.sample_age.0, sm, memory, encoder, decoder, jpg, ofa })
    }

    fn busiest(all: &[Self], written: &scenario::Utilization) -> Self {
        let most = |given: Option<u32>, of: fn(&Self) -> u32| {
            given.unwrap_or_else(|| all.iter().map(of).max().unwrap_or(0).min(100))
        };
        Self {
            pid: 0,
            age: 0,
            sm: most(written.gpu, |one| one.sm),
            memory: most(written.memory, |one| one.memory),
            encoder: most(written.encoder, |one| one.encoder),
            decoder: most(written.decoder, |one| one.decoder),
            jpg: most(written.jpg, |one| one.jpg),
            ofa: most(written.ofa, |one| one.ofa),
        }
    }
}

fn garbage(activities: &mut Vec<Activity>, written: &Garbage) {
    let whole = |pid, percent| Activity {
        pid,
        age: 0,
        sm: percent,
        memory: percent,
        encoder: percent,
        decoder: percent,
        jpg: percent,
        ofa: percent,
    };
    if written.utilization_above_100 {
        let pid = activities.first().map_or(MADE_UP_PID, |first| first.pid);
        activities.push(whole(pid, 250));
    }
    if written.pid_zero {
        activities.push(whole(0, 50));
    }
    if written.unlisted_pid {
        activities.push(whole(MADE_UP_PID, 50));
    }
}

fn instances(entry: &scenario::Gpu, place: Place) -> Result<Option<Vec<Instance>>, Nonsense> {
    let Some(written) = &entry.mig else { return Ok(None) };
    let mut instances: Vec<Instance> = Vec::with_capacity(written.len());
    for (position, one) in written.iter().enumerate() {
        let index = one.index.unwrap_or_else(|| u32::try_from(position).unwrap_or(u32::MAX));
        ensure(index < MOST_INSTANCES, || format!("mig: index {index} is not below {MOST_INSTANCES}"))?;
        ensure(instances.iter().all(|other| other.index != index), || {
            format!("mig: index {index} is there twice")
        })?;
        instances.push(Instance::compile(one, index, &entry.name, place)?);
    }
    Ok(Some(instances))
}

impl Instance {
    fn compile(written: &scenario::Instance, index: u32, name: &str, place: Place) -> Result<Self, Nonsense> {
        let scenario::Instance { gi, ci, .. } = *written;
        let mut lists = Lists::default();
        let held = written.processes.iter().map(|process| lists.add(process, place, (gi, ci))).sum();
        let scenario::InstanceMemory { total, reserved, unaccounted } = written.memory;
        let memory = Memory::compile(&scenario::Memory { total, reserved, unaccounted }, held)?;
        let (compute_slices, gpu_slices) = slices(&written.profile)?;
        let uuid = || format!("MIG-00000000-0000-4000-8000-{:06x}{gi:03x}{ci:03x}", place.index + 1);
        Ok(Self {
            index,
            gi,
            ci,
            gpu_slices,
            compute_slices,
            gpm: written.gpm.clone(),
            unit: Unit {
                name: format!("{name} MIG {}", written.profile),
                uuid: written.uuid.clone().unwrap_or_else(uuid),
                memory,
                lists,
            },
        })
    }
}

/// Returns the compute slices and the device slices in a profile: 1 and 2 for `1c.2g.35gb`, 2 and 2 for
/// `2g.35gb`.
fn slices(profile: &str) -> Result<(u32, u32), Nonsense> {
    let number =
        |suffix: &str| profile.split('.').find_map(|part| part.strip_suffix(suffix)?.parse::<u32>().ok());
    let gpu =
        number("g").ok_or_else(|| Nonsense(format!("mig: {profile:?} is no profile such as 1g.18gb")))?;
    Ok((number("c").unwrap_or(gpu), gpu))
}
