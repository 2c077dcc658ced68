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
    help: "Used memory of the GPU, over all processes.",
    source: "nvml",
    read: |target, view| number(memory(target, view).map(|memory| memory.used), "not reported by the driver"),
};

pub(super) static VRAM_UNACCOUNTED: Attribute = Attribute {
    name: "vram_unaccounted",
    of: &[Kind::Gpu],
    unit: Unit::Bytes,
    help: "Used GPU memory that no listed process holds. Can be slightly negative, because the values are read at different moments. Unknown if the memory of any holder is unknown.",
    source: "nvml",
    read: |target, view| {
        number(
            memory(target, view).and_then(|memory| memory.unaccounted),
            "a value needed to calculate it is unknown",
        )
    },
};

pub(super) static VRAM_UNRELEASED: Attribute = Attribute {
    name: "vram_unreleased",
    of: &[Kind::Gpu],
    unit: Unit::Bytes,
    help: "GPU memory that was not released after its holders exited, for any reason. It is tracked until it is released. Unknown in the first samples after an exit, and if other processes started, exited or allocated memory meanwhile.",
    source: "nvml, proc",
    read: |target, view| {
        let unreleased = memory(target, view).and_then(|memory| memory.unreleased);
        number(unreleased, "not decided yet, or a value needed to calculate it is unknown")
    },
};

pub(super) static UNLISTED_DEVICE_PROCESSES: Attribute = Attribute {
    name: "unlisted_processes",
    of: &[Kind::Gpu],
    unit: Unit::Count,
    help: "Processes that have the GPU's device file open but that the driver does not list, such as forked workers that inherited it. Excludes driver and monitoring services (nvidia-persistenced, DCGM and similar, with a uid below 1000). The scan runs once a minute, and only while 256MiB or more are unaccounted for, or all listed processes have exited. Unknown without a scan, and in MIG mode if the driver returned no process list for an instance.",
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
        (None, _) => Value::Unknown("open device files were not scanned"),
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
    help: "MIG mode is enabled.",
    source: "nvml",
    read: mig,
};

fn mig(target: &Target, view: &View) -> Value {
    match view.gpu_of(target) {
        Some(gpu) if gpu.fault.is_none() => Value::Flag(gpu.mig || gpu.parent_uuid.is_some()),
        _ => Value::Unknown("the driver returned no data for the GPU"),
    }
}

fn memory<'a>(target: &Target, view: &'a View) -> Option<&'a Memory> {
    view.gpu_of(target)?.memory.as_ref()
}
