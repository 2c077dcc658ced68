//! Attributes of GPUs and MIG instances.

use super::number;
use crate::value::Value;
use crate::view::{Target, View};
use bailiff_snapshot::MemoryUnknown;
use bailiff_snapshot::wire::Memory;

pub(super) fn unlisted_processes(target: &Target, view: &View) -> Value {
    let unreadable =
        view.snapshot.device_processes.as_ref().map(|device_processes| device_processes.unreadable);
    #[expect(clippy::cast_precision_loss, reason = "a small count")]
    match (view.gpu_of(target).and_then(|gpu| gpu.unlisted_processes), unreadable) {
        (Some(count), Some(0)) => Value::Number(count as f64),
        (Some(count), _) => Value::AtLeast(count as f64),
        (None, _) => Value::Unknown("open device files were not scanned"),
    }
}

pub(super) fn mig(target: &Target, view: &View) -> Value {
    match view.gpu_of(target) {
        Some(gpu) if gpu.fault.is_none() => Value::Flag(gpu.mig || gpu.parent_uuid.is_some()),
        _ => Value::Unknown("the driver returned no data for the GPU"),
    }
}

/// Returns a part of the GPU's memory, or why it is unknown.
pub(super) fn memory<T: Into<i128>>(
    target: &Target,
    view: &View,
    part: fn(&Memory) -> Option<T>,
    why: &'static str,
) -> Value {
    let gpu = view.gpu_of(target);
    let cgroup = gpu.and_then(|gpu| gpu.memory_unknown.as_ref()?.known());
    number(gpu.and_then(|gpu| part(gpu.memory.as_ref()?)), cgroup.map_or(why, MemoryUnknown::words))
}
