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
    help: "Use of the GPUs it holds, the busiest engine of the busiest GPU; of a GPU: its own figure. Unknown where one of them was not observed or is lost, unless another is busy enough to decide.",
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
    help: "GPU memory it holds, on all its GPUs together. Unknown if the driver does not report it for one of them, unless the others suffice to decide.",
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
    help: "The part of a GPU's memory that it holds, on the GPU where that part is largest.",
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
    help: "CPU time of it and of its descendants without GPU memory; of a workload: of all its processes. 100% is one core. Unknown in the first sample of a process.",
    source: "proc",
    read: |target, _| target.cpu,
};

pub(super) static IO_RATE: Attribute = Attribute {
    name: "io_rate",
    of: &[Kind::Process, Kind::Workload],
    unit: Unit::BytesPerSecond,
    help: "Bytes a second to and from storage. Unknown without the right to read it (CAP_SYS_PTRACE).",
    source: "proc",
    read: |target, _| target.io,
};

pub(super) static AGE: Attribute = Attribute {
    name: "age",
    of: &[Kind::Process, Kind::Workload, Kind::Lease, Kind::MpsServer],
    unit: Unit::Duration,
    help: "Time since it started; of a workload: since its oldest process did; of a lease: since it was granted.",
    source: "proc",
    read: age,
};

fn age(target: &Target, view: &View) -> Value {
    if target.kind == Kind::Lease {
        let granted = view.held(target).and_then(|held| held.age_ms);
        return granted
            .map_or(Value::Unknown("when it was granted was forgotten"), |age| Value::Number(seconds(age)));
    }
    let ages = view.processes(target).map(|process| view.age(process).map(|age| age.as_secs_f64()));
    joined(ages, f64::max)
}

/// Names as in `bailiff_snapshot::State::name`.
pub(crate) const STATES: &[&str] = &[
    "running",
    "sleeping",
    "disk_sleep",
    "stopped",
    "traced",
    "frozen",
    "idle",
    "zombie",
    "zombie_leader",
    "dead",
    "gone",
    "hidden",
    "unknown",
];

pub(crate) static STATE: Attribute = Attribute {
    name: "state",
    of: &[Kind::Process, Kind::Workload],
    unit: Unit::Words(STATES),
    help: "State of the process; of a workload: of any of its processes. D is a synonym of disk_sleep, in which no signal has an effect; stopped: by a signal; frozen: its cgroup is frozen (docker pause); zombie_leader: the thread-group leader exited, other threads run and hold memory.",
    source: "proc",
    read: state,
};

/// Returns whether none of a target's processes with memory is on hold.
pub(crate) fn runs(target: &Target, view: &View) -> Truth {
    let on_hold = |process: &wire::Process| State::of_name(&process.state).is_some_and(State::on_hold);
    (!view.processes(target).any(on_hold)).into()
}

fn state(target: &Target, view: &View) -> Value {
    let (mut seen, mut complete) = (0, true);
    for process in view.processes(target) {
        // An unreadable state is unknown.
        let known = !matches!(process.state.as_str(), "unknown" | "hidden");
        match STATES.iter().position(|word| known && *word == process.state) {
            Some(place) => seen |= 1 << place,
            None => complete = false,
        }
    }
    Value::Words { seen, complete }
}

pub(super) static ORPHANED: Attribute = Attribute {
    name: "orphaned",
    of: &[Kind::Process, Kind::Workload],
    unit: Unit::Flag,
    help: "The login session, job or container of its cgroup has ended: no other process is left in it; of a workload: this holds for all of its processes with memory. Unknown for a daemon that forked twice while its login session or container runs.",
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
    if all { Value::Flag(true) } else { Value::Unknown("its parent or session could not be read") }
}

pub(super) static LISTED_BUT_GONE: Attribute = Attribute {
    name: "listed_but_gone",
    of: &[Kind::Process, Kind::Workload],
    unit: Unit::Flag,
    help: "The driver lists it as a holder of memory and there is no such process. It can be flagged, never signalled.",
    source: "nvml, proc",
    read: listed_but_gone,
};

fn listed_but_gone(target: &Target, view: &View) -> Value {
    let mut known = false;
    for process in view.processes(target) {
        match process.state.as_str() {
            "gone" => return Value::Flag(true),
            "unknown" | "hidden" => return Value::Unknown("/proc does not show it"),
            _ => known = true,
        }
    }
    if known { Value::Flag(false) } else { Value::Unknown("/proc does not show it") }
}

pub(super) static GPU_COUNT: Attribute = Attribute {
    name: "gpu_count",
    of: &[Kind::Process, Kind::Workload],
    unit: Unit::Count,
    help: "GPUs and MIG instances on which it holds memory.",
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
    help: "What it uses a GPU for; one of its GPUs is enough.",
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
    help: "It holds a lease for the GPUs that it uses. Unknown while the lease server does not answer.",
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
    help: "GPU memory of all processes that share its quota, by the driver, as a part of the limit. It includes contexts, so slightly more than 100% is normal. Unknown without a shared quota file.",
    source: "quota",
    read: |target, view| view.quota_ratio(target),
};

pub(super) static QUOTA_DENIED: Attribute = Attribute {
    name: "quota_denied",
    of: &[Kind::Process, Kind::Workload],
    unit: Unit::Count,
    help: "Requests for GPU memory that its quota refused since the snapshot before. Unknown without the file of a shared quota.",
    source: "quota",
    read: |target, view| view.quota_denied(target),
};
