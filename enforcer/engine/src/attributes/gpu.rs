//! Attributes of GPUs and MIG instances.

use super::number;
use crate::value::Value;
use crate::view::{Target, View};
use bailiff_snapshot::wire::{Gpu, Memory};
use bailiff_snapshot::{Label, MemoryUnknown, Word, XidClass};

/// Why a value of a GPU is unknown.
pub(super) const NOT_REPORTED: &str = "not reported by the driver";

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

pub(super) fn flag(target: &Target, view: &View, value: fn(&Gpu) -> Option<bool>) -> Value {
    view.gpu_of(target).and_then(value).map_or(Value::Unknown(NOT_REPORTED), Value::Flag)
}

pub(super) fn recovery_action(target: &Target, view: &View) -> Value {
    words(view.gpu_of(target).and_then(|gpu| gpu.recovery_action.as_ref()).map(std::slice::from_ref))
}

pub(super) fn clock_event(target: &Target, view: &View) -> Value {
    words(view.gpu_of(target).and_then(|gpu| gpu.clock_events.as_deref()))
}

pub(super) fn xid_class(target: &Target, view: &View) -> Value {
    let gpu = view.gpu_of(target).filter(|gpu| gpu.parent_uuid.is_none());
    let classes = gpu.map(|gpu| gpu.xids.keys().map(|xid| XidClass::of(*xid).into()).collect::<Vec<_>>());
    match words(classes.as_deref()) {
        // Whether the driver's events of this GPU are received is not known.
        Value::Words { seen, .. } => Value::Words { seen, complete: false },
        unknown => unknown,
    }
}

/// Returns the observed words; incomplete if one of them is not known to this version.
fn words<T: Label>(words: Option<&[Word<T>]>) -> Value {
    let Some(words) = words else { return Value::Unknown(NOT_REPORTED) };
    let known: Vec<T> = words.iter().filter_map(Word::known).collect();
    let bit = |word: &T| T::WORDS.iter().position(|other| other == word).map_or(0, |position| 1 << position);
    Value::Words {
        seen: known.iter().map(bit).fold(0, |all, bit| all | bit),
        complete: known.len() == words.len(),
    }
}
