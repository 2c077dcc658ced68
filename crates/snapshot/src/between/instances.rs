//! Finds out who used each MIG GPU instance in a window. Its compute instances share one measurement of its activity.

use std::collections::{BTreeMap, BTreeSet};

use crate::utilization::InstanceUsers;
use crate::{About, Facts, GpuId, GpuSample, Holder, PidNamespace, Seen, Snapshot};

/// A GPU instance: the UUID of its GPU, and its id.
pub(super) type InstanceKey = (GpuId, u32);

/// Returns the GPU instance of a MIG device.
pub(super) fn key(about: &About) -> Option<InstanceKey> {
    let mig = about.mig.as_ref()?;
    Some((mig.parent.clone()?, mig.gpu_instance?))
}

/// Pids of a GPU instance at one end of the window.
#[derive(Default)]
struct Listed {
    pids: BTreeSet<u32>,
    is_incomplete: bool,
    has_mps: bool,
}

/// Returns who used each GPU instance since the previous snapshot.
pub(super) fn of(
    previous: Option<&Snapshot>,
    (gpus, seen): (&[GpuSample], &BTreeMap<u32, Seen>),
    namespace: PidNamespace,
) -> BTreeMap<InstanceKey, InstanceUsers> {
    let (mut now, mut before) = (BTreeMap::<_, Listed>::new(), BTreeMap::<_, Listed>::new());
    for gpu in gpus {
        let Some(key) = key(&gpu.about) else { continue };
        let listed = now.entry(key).or_default();
        listed.is_incomplete |= gpu.entries.is_none() || !namespace.attributes();
        for entry in gpu.entries.iter().flatten() {
            listed.pids.insert(entry.pid);
            listed.is_incomplete |= entry.pid == 0;
            let found = seen.get(&entry.pid).and_then(Seen::found);
            listed.has_mps |= entry.kinds.mps || found.is_some_and(is_mps);
        }
    }
    for (previous, gpu) in previous.iter().flat_map(|all| all.gpus.iter().map(move |gpu| (all, gpu))) {
        let Some(key) = key(&gpu.about) else { continue };
        let listed = before.entry(key).or_default();
        listed.is_incomplete |= gpu.listed != Some(gpu.holders.len() as u64);
        listed.pids.extend(gpu.holders.iter().map(|holder| holder.process.pid()));
        let facts = |holder: &Holder| previous.processes.get(&holder.process)?.facts.as_ref();
        listed.has_mps |=
            gpu.holders.iter().any(|holder| holder.kinds.mps || facts(holder).is_some_and(is_mps));
    }
    // If not all instances of a GPU were read, a compute instance may be missing.
    let all_read = |(gpu, _): &InstanceKey| {
        let is = |about: &About| about.id.as_ref() == Some(gpu);
        let then = previous.into_iter().flat_map(|previous| &previous.gpus).find(|gpu| is(&gpu.about));
        let now = gpus.iter().find(|gpu| is(&gpu.about));
        now.is_some_and(|gpu| gpu.instances.is_some()) && then.is_some_and(|gpu| gpu.instances.is_some())
    };
    now.into_iter()
        .map(|(key, now)| {
            let before = before.remove(&key).unwrap_or_default();
            let users = match now.pids.union(&before.pids).count() {
                _ if now.has_mps || before.has_mps => InstanceUsers::Mps,
                _ if now.is_incomplete || before.is_incomplete || !all_read(&key) => InstanceUsers::Unknown,
                0 | 1 => InstanceUsers::One,
                _ => InstanceUsers::Several,
            };
            (key, users)
        })
        .collect()
}

/// Returns whether a process is a server of MPS. The driver lists it as an ordinary process.
fn is_mps(facts: &Facts) -> bool {
    facts.role.is_some()
}
