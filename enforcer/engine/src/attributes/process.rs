//! Attributes of processes and workloads; `age` also of leases and MPS servers.

use super::{Attribute, seconds};
use crate::Kind;
use crate::value::{Unit, Value};
use crate::view::{Target, View, joined};
use bailiff_snapshot::{State, Truth, wire};

pub(super) static GPU_UTIL: Attribute = Attribute {
    name: "gpu_util",
    of: &[Kind::Process, Kind::Workload, Kind::Gpu, Kind::MpsServer],
    unit: Unit::Percent,
    help: "GPU utilization by the target: the busiest engine on its busiest GPU. For `target: gpu`, the utilization of the GPU. Unknown if one of its GPUs was not observed or is lost, unless another GPU is busy enough to decide the comparison.",
    source: "nvml",
    read: gpu_util,
};

fn gpu_util(target: &Target, view: &View) -> Value {
    if target.kind == Kind::Gpu {
        return match view.gpu_of(target).and_then(|gpu| gpu.utilization) {
            Some(percent) => Value::Number(f64::from(percent) / 100.0),
            None => Value::Unknown("not reported by the driver"),
        };
    }
    view.most(target, |holder| holder.utilization.map(|percent| f64::from(percent) / 100.0))
}

pub(super) static VRAM: Attribute = Attribute {
    name: "vram",
    of: &[Kind::Process, Kind::Workload],
    unit: Unit::Bytes,
    help: "GPU memory that the target holds, summed over its GPUs. Unknown if the driver does not report it for one GPU, unless the memory on the others decides the comparison.",
    source: "nvml",
    read: vram,
};

fn vram(target: &Target, view: &View) -> Value {
    #[expect(clippy::cast_precision_loss, reason = "2^53 bytes are more than any GPU has")]
    view.sum(target, |holder| holder.memory.map(|bytes| bytes as f64))
}

pub(super) static VRAM_SHARE: Attribute = Attribute {
    name: "vram_share",
    of: &[Kind::Process, Kind::Workload],
    unit: Unit::Percent,
    help: "Share of a GPU's memory that the target holds, on the GPU where this share is largest.",
    source: "nvml",
    read: vram_share,
};

fn vram_share(target: &Target, view: &View) -> Value {
    let shares = view.holdings(target).map(|(gpu, holder)| {
        let total = gpu.memory.as_ref()?.total;
        #[expect(clippy::cast_precision_loss, reason = "2^53 bytes are more than any GPU has")]
        (total > 0).then_some(holder.memory? as f64 / total as f64)
    });
    view.or_more(target, joined(shares, f64::max))
}

pub(super) static CPU_UTIL: Attribute = Attribute {
    name: "cpu_util",
    of: &[Kind::Process, Kind::Workload],
    unit: Unit::Percent,
    help: "CPU utilization of the process and its descendants without GPU memory; for a workload, of all its processes. 100% is one core. Unknown in the first sample of a process.",
    source: "proc",
    read: |target, _| target.cpu,
};

pub(super) static IO_RATE: Attribute = Attribute {
    name: "io_rate",
    of: &[Kind::Process, Kind::Workload],
    unit: Unit::BytesPerSecond,
    help: "Bytes per second read from and written to storage. Unknown without the permission to read it (CAP_SYS_PTRACE).",
    source: "proc",
    read: |target, _| target.io,
};

pub(super) static AGE: Attribute = Attribute {
    name: "age",
    of: &[Kind::Process, Kind::Workload, Kind::Lease, Kind::MpsServer],
    unit: Unit::Duration,
    help: "Time since the process started; for a workload, since its oldest process started; for a lease, since it was granted.",
    source: "proc",
    read: age,
};

fn age(target: &Target, view: &View) -> Value {
    if target.kind == Kind::Lease {
        let granted = view.held(target).and_then(|held| held.age_ms);
        return granted
            .map_or(Value::Unknown("the time of the grant is unknown"), |age| Value::Number(seconds(age)));
    }
    let ages = view.processes(target).map(|process| view.age(process).map(|age| age.as_secs_f64()));
    joined(ages, f64::max)
}

pub(crate) static STATE: Attribute = Attribute {
    name: "state",
    of: &[Kind::Process, Kind::Workload],
    unit: Unit::Words(State::NAMES),
    help: "State of the process; for a workload, of any of its processes. disk_sleep (synonym: D): uninterruptible sleep, in which signals have no effect; stopped: by a signal; frozen: the cgroup is frozen (docker pause); zombie_leader: the thread-group leader exited, other threads are running and hold memory.",
    source: "proc",
    read: state,
};

/// Returns whether none of a target's processes with memory is on hold.
pub(crate) fn runs(target: &Target, view: &View) -> Truth {
    let on_hold = |process: &wire::Process| process.state.known().is_some_and(State::on_hold);
    (!view.processes(target).any(on_hold)).into()
}

fn state(target: &Target, view: &View) -> Value {
    let (mut seen, mut complete) = (0, true);
    for process in view.processes(target) {
        // An unreadable state is unknown.
        match process.state.known() {
            None | Some(State::Unknown | State::Hidden) => complete = false,
            Some(state) => seen |= 1 << state as u32,
        }
    }
    Value::Words { seen, complete }
}

pub(super) static ORPHANED: Attribute = Attribute {
    name: "orphaned",
    of: &[Kind::Process, Kind::Workload],
    unit: Unit::Flag,
    help: "The login session, job or container of the process has ended: its cgroup contains no other process. For a workload, this must be true of all its processes with GPU memory. Unknown for a daemon that forked twice while its login session or container is running.",
    source: "proc",
    read: orphaned,
};

fn orphaned(target: &Target, view: &View) -> Value {
    let each = view.processes(target).map(|process| process.facts.as_ref().and_then(|facts| facts.orphaned));
    let mut all = true;
    for orphaned in each {
        match orphaned {
            Some(false) => return Value::Flag(false),
            Some(true) => {}
            None => all = false,
        }
    }
    if all {
        Value::Flag(true)
    } else {
        Value::Unknown("the parent or session of a process could not be read")
    }
}

pub(super) static LISTED_BUT_GONE: Attribute = Attribute {
    name: "listed_but_gone",
    of: &[Kind::Process, Kind::Workload],
    unit: Unit::Flag,
    help: "The driver lists the pid as a holder of memory, but there is no such process. The target can be flagged, but not signalled.",
    source: "nvml, proc",
    read: listed_but_gone,
};

fn listed_but_gone(target: &Target, view: &View) -> Value {
    let mut known = false;
    for process in view.processes(target) {
        match process.state.known() {
            Some(State::Gone) => return Value::Flag(true),
            Some(State::Unknown | State::Hidden) => return Value::Unknown("/proc does not show the process"),
            _ => known = true,
        }
    }
    if known { Value::Flag(false) } else { Value::Unknown("/proc does not show the process") }
}

pub(super) static GPU_COUNT: Attribute = Attribute {
    name: "gpu_count",
    of: &[Kind::Process, Kind::Workload],
    unit: Unit::Count,
    help: "Number of GPUs and MIG instances on which the target holds memory.",
    source: "nvml",
    read: gpu_count,
};

fn gpu_count(target: &Target, view: &View) -> Value {
    let count = u32::try_from(target.gpus.len()).map_or(f64::MAX, f64::from);
    view.or_more(target, Value::Number(count))
}

/// Types of contexts in the driver's lists.
const CONTEXTS: &[&str] = &["compute", "graphics", "mps"];

pub(super) static CONTEXT: Attribute = Attribute {
    name: "context",
    of: &[Kind::Process, Kind::Workload],
    unit: Unit::Words(CONTEXTS),
    help: "Type of its GPU contexts; matches if the target has such a context on any GPU.",
    source: "nvml",
    read: context,
};

fn context(target: &Target, view: &View) -> Value {
    let mut seen = 0;
    for (_, holder) in view.holdings(target) {
        for kind in holder.kinds.split('+') {
            seen |= match kind {
                "C" => 1,
                "G" => 2,
                "M" => 4,
                _ => 0,
            };
        }
    }
    Value::Words { seen, complete: !view.may_hold_more(target) }
}

pub(super) static HAS_LEASE: Attribute = Attribute {
    name: "has_lease",
    of: &[Kind::Process, Kind::Workload],
    unit: Unit::Flag,
    help: "The target holds a lease on all GPUs that it uses. Unknown while the lease server does not respond.",
    source: "leases",
    read: has_lease,
};

fn has_lease(target: &Target, view: &View) -> Value {
    match view.has_lease(target) {
        Ok(truth) => Value::Flag(truth == Truth::True),
        Err(why) => Value::Unknown(why),
    }
}

pub(super) static VRAM_QUOTA_RATIO: Attribute = Attribute {
    name: "vram_quota_ratio",
    of: &[Kind::Process, Kind::Workload],
    unit: Unit::Percent,
    help: "GPU memory that the driver reports for all processes under the same shared quota, as a share of the limit. It includes contexts, so slightly more than 100% is normal. Unknown without a shared quota file.",
    source: "quota",
    read: |target, view| view.quota_ratio(target),
};

pub(super) static QUOTA_DENIED: Attribute = Attribute {
    name: "quota_denied",
    of: &[Kind::Process, Kind::Workload],
    unit: Unit::Count,
    help: "Allocations of GPU memory that the quota denied since the previous snapshot. Unknown without a shared quota file.",
    source: "quota",
    read: |target, view| view.quota_denied(target),
};
