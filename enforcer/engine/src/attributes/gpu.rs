//! Attributes of GPUs and MIG instances.

use super::{Attribute, number};
use crate::Kind;
use crate::value::{Unit, Value};
use crate::view::{Target, View};
use bailiff_snapshot::wire::Memory;

pub(super) static VRAM_FREE: Attribute = Attribute {
    name: "vram_free",
    of: &[Kind::Gpu],
    unit: Unit::Bytes,
    help: "Free memory of the GPU.",
    source: "nvml",
    read: |target, view| number(memory(target, view).map(|memory| memory.free), "not reported by the driver"),
};

pub(super) static VRAM_USED: Attribute = Attribute {
    name: "vram_used",
    of: &[Kind::Gpu],
    unit: Unit::Bytes,
    help: "Used memory of the GPU, by all processes.",
    source: "nvml",
    read: |target, view| number(memory(target, view).map(|memory| memory.used), "not reported by the driver"),
};

pub(super) static VRAM_UNACCOUNTED: Attribute = Attribute {
    name: "vram_unaccounted",
    of: &[Kind::Gpu],
    unit: Unit::Bytes,
    help: "Memory of the GPU that is used and that no listed process holds. Reads are not at one instant, so it may be slightly negative. Unknown where one holder's memory is.",
    source: "nvml",
    read: |target, view| {
        number(memory(target, view).and_then(|memory| memory.unaccounted), "a part of the sum is not known")
    },
};

pub(super) static VRAM_UNRELEASED: Attribute = Attribute {
    name: "vram_unreleased",
    of: &[Kind::Gpu],
    unit: Unit::Bytes,
    help: "Memory not released after its holders exited, for whatever reason; tracked until it is released. Unknown in the first samples after an exit, and if other processes started, exited or grew meanwhile.",
    source: "nvml, proc",
    read: |target, view| {
        let unreleased = memory(target, view).and_then(|memory| memory.unreleased);
        number(unreleased, "not decided yet, or a part of the sum is unknown")
    },
};

pub(super) static UNLISTED_DEVICE_PROCESSES: Attribute = Attribute {
    name: "unlisted_processes",
    of: &[Kind::Gpu],
    unit: Unit::Count,
    help: "Processes that have the GPU's device file open and that the driver does not list: forked workers that inherited it. Services of the driver and of monitoring (nvidia-persistenced, DCGM and similar, with a uid below 1000) do not count. Scanned once a minute, and only while 256MiB or more are unaccounted or all listed processes exited; otherwise unknown, as in MIG mode with an instance that gave no list.",
    source: "proc",
    read: unlisted_processes,
};

fn unlisted_processes(target: &Target, view: &View) -> Value {
    let unreadable =
        view.snapshot.device_processes.as_ref().map(|device_processes| device_processes.unreadable);
    #[expect(clippy::cast_precision_loss, reason = "a small count")]
    match (view.gpu_of(target).and_then(|gpu| gpu.unlisted_processes), unreadable) {
        (Some(count), Some(0)) => Value::Number(count as f64),
        (Some(count), _) => Value::AtLeast(count as f64),
        (None, _) => Value::Unknown("there was no scan of open device files"),
    }
}

pub(super) static PROCESS_COUNT: Attribute = Attribute {
    name: "process_count",
    of: &[Kind::Gpu],
    unit: Unit::Count,
    help: "Processes that the driver lists on the GPU.",
    source: "nvml",
    read: |target, view| number(view.gpu_of(target).and_then(|gpu| gpu.listed), "the driver gave no list"),
};

pub(super) static MIG: Attribute = Attribute {
    name: "mig",
    of: &[Kind::Gpu],
    unit: Unit::Flag,
    help: "MIG is on.",
    source: "nvml",
    read: mig,
};

fn mig(target: &Target, view: &View) -> Value {
    match view.gpu_of(target) {
        Some(gpu) if gpu.fault.is_none() => Value::Flag(gpu.mig || gpu.parent_uuid.is_some()),
        _ => Value::Unknown("the GPU does not answer"),
    }
}

fn memory<'a>(target: &Target, view: &'a View) -> Option<&'a Memory> {
    view.gpu_of(target)?.memory.as_ref()
}
