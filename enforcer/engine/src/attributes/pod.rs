//! Attributes of pods: the GPUs that the kubelet has allocated to them.

use super::{number, seconds};
use crate::value::Value;
use crate::view::{Target, View};
use bailiff_snapshot::pod_resources::PodGpuState;

const NO_GPUS: &str = "the kubelet's answer contains no GPU of the pod";

pub(super) fn allocated_gpus(target: &Target, view: &View) -> Value {
    let count = u32::try_from(view.pod_allocations(target).count()).ok();
    number(count.filter(|count| *count > 0), NO_GPUS)
}

pub(super) fn allocation_unused_for(target: &Target, view: &View) -> Value {
    let mut shortest = None;
    let mut unknown = false;
    // In whichever container, and on whichever GPU: a privileged container can use another one than the allocated.
    if !target.processes.is_empty() {
        return Value::Number(0.0);
    }
    for allocation in view.pod_allocations(target) {
        match (allocation.state.known(), allocation.unused_since_ms) {
            (Some(PodGpuState::Busy | PodGpuState::Idle), _) => return Value::Number(0.0),
            (Some(PodGpuState::NoProcess), Some(since)) => {
                let unused = view.snapshot.boot_ms.saturating_sub(since);
                shortest = Some(shortest.map_or(unused, |least: u64| least.min(unused)));
            }
            _ => unknown = true,
        }
    }
    match shortest {
        _ if unknown => Value::Unknown("it is unknown whether the pod uses one of its GPUs"),
        Some(unused) => Value::Number(seconds(unused)),
        None => Value::Unknown(NO_GPUS),
    }
}
