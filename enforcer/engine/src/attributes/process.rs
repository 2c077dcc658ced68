//! Attributes of processes and workloads; `age` also of leases and MPS servers.

use super::{pod, seconds, slurm_job};
use crate::Kind;
use crate::value::Value;
use crate::view::{Target, View, joined};
use bailiff_snapshot::cgroup_memory::{self, CgroupMemory, NO_LIMIT};
use bailiff_snapshot::{State, Truth, wire};

pub(super) fn gpu_util(target: &Target, view: &View) -> Value {
    if target.kind == Kind::Gpu {
        return match view.gpu_of(target).and_then(|gpu| gpu.utilization) {
            Some(percent) => Value::Number(f64::from(percent) / 100.0),
            None => Value::Unknown("not reported by the driver"),
        };
    }
    if target.kind == Kind::SlurmJob {
        return slurm_job::gpu_util(target, view);
    }
    view.most(target, |holder| holder.utilization.map(|percent| f64::from(percent) / 100.0))
}

pub(super) fn vram(target: &Target, view: &View) -> Value {
    #[expect(clippy::cast_precision_loss, reason = "2^53 bytes are more than any GPU has")]
    view.sum(target, |holder| holder.memory.map(|bytes| bytes as f64))
}

pub(super) fn vram_share(target: &Target, view: &View) -> Value {
    let shares = view.holdings(target).map(|(gpu, holder)| {
        let total = gpu.memory.as_ref()?.total;
        #[expect(clippy::cast_precision_loss, reason = "2^53 bytes are more than any GPU has")]
        (total > 0).then_some(holder.memory? as f64 / total as f64)
    });
    view.or_more(target, joined(shares, f64::max))
}

pub(super) fn age(target: &Target, view: &View) -> Value {
    if target.kind == Kind::Lease {
        let granted = view.held(target).and_then(|held| held.age_ms);
        return granted
            .map_or(Value::Unknown("the time of the grant is unknown"), |age| Value::Number(seconds(age)));
    }
    if let Some(job) = view.job(target) {
        return Value::Number(view.age_of_job(job).as_secs_f64());
    }
    if target.kind == Kind::Pod && target.processes.is_empty() {
        return match pod::allocation_unused_for(target, view) {
            Value::Number(unused) => Value::AtLeast(unused),
            unknown => unknown,
        };
    }
    let ages = view.processes(target).map(|process| view.age(process).map(|age| age.as_secs_f64()));
    joined(ages, f64::max)
}

/// Returns whether none of a target's processes with memory is on hold.
pub(crate) fn runs(target: &Target, view: &View) -> Truth {
    let on_hold = |process: &wire::Process| process.state.known().is_some_and(State::on_hold);
    (!view.processes(target).any(on_hold)).into()
}

pub(super) fn state(target: &Target, view: &View) -> Value {
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

pub(super) fn orphaned(target: &Target, view: &View) -> Value {
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

pub(super) fn restored(target: &Target, view: &View) -> Value {
    let restored = |process: &wire::Process| process.facts.as_ref().is_some_and(|facts| facts.restored);
    if view.processes(target).any(restored) {
        Value::Flag(true)
    } else {
        Value::Unknown("no process shows whether it was restored")
    }
}

pub(super) fn listed_but_gone(target: &Target, view: &View) -> Value {
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

pub(super) fn gpu_count(target: &Target, view: &View) -> Value {
    let count = u32::try_from(target.gpus.len()).map_or(f64::MAX, f64::from);
    view.or_more(target, Value::Number(count))
}

/// Types of contexts in the driver's lists.
pub(super) const CONTEXTS: &[&str] = &["compute", "graphics", "mps"];

pub(super) fn context(target: &Target, view: &View) -> Value {
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

/// Returns a value of the cgroup memory limits of each of a target's processes on each of its GPUs.
fn of_cgroups<'a, T>(
    target: &'a Target,
    view: &'a View,
    value: impl Fn(&[CgroupMemory], &str) -> Option<T> + Copy + 'a,
) -> impl Iterator<Item = Option<T>> + 'a {
    let of_process = move |process: &'a usize| {
        let facts = view.snapshot.processes.get(*process).and_then(|process| process.facts.as_ref());
        let of_gpu = move |gpu: &wire::Gpu| value(&view.whole_gpu(gpu)?.cgroups, &facts?.place.cgroup);
        view.holdings_of(*process).map(move |(gpu, _)| of_gpu(gpu))
    };
    target.processes.iter().flat_map(of_process)
}

/// Returns the limits that apply to a target, and whether these are all.
fn limits(target: &Target, view: &View) -> (Vec<u64>, bool) {
    let mut complete = !target.processes.is_empty() && !view.may_hold_more(target);
    let limits = of_cgroups(target, view, cgroup_memory::limit);
    let known = limits.inspect(|limit| complete &= limit.is_some()).flatten().collect();
    (known, complete)
}

const NO_CGROUP_LIMIT: &str = "no limit of a cgroup was observed";

pub(super) fn gpu_memory_limited(target: &Target, view: &View) -> Value {
    match limits(target, view) {
        (limits, _) if limits.iter().any(|limit| *limit != NO_LIMIT) => Value::Flag(true),
        (limits, true) if !limits.is_empty() => Value::Flag(false),
        _ => Value::Unknown(NO_CGROUP_LIMIT),
    }
}

pub(super) fn gpu_memory_limit(target: &Target, view: &View) -> Value {
    let (limits, complete) = limits(target, view);
    match limits.into_iter().min().filter(|limit| complete && *limit != NO_LIMIT) {
        #[expect(clippy::cast_precision_loss, reason = "2^53 bytes are more than any GPU has")]
        Some(limit) => Value::Number(limit as f64),
        None => Value::Unknown(NO_CGROUP_LIMIT),
    }
}

pub(super) fn gpu_memory_limit_ratio(target: &Target, view: &View) -> Value {
    view.or_more(target, joined(of_cgroups(target, view, cgroup_memory::limit_ratio), f64::max))
}

/// Xids that the kernel log can attribute to a process.
#[rustfmt::skip]
pub(super) const XIDS: &[&str] = &[
    "8", "11", "13", "25", "31", "39", "40", "41", "45", "60", "68", "69", "70", "71", "72", "75", "76", "77", "80", "82",
    "83", "84", "85", "86", "88", "89", "94", "96", "97", "98", "99", "100", "101", "102", "103", "104", "105", "126",
    "127", "128", "129", "130", "131", "132", "133", "134", "135", "139",
];

pub(super) fn xid(target: &Target, view: &View) -> Value {
    let bit =
        |xid: &u64| XIDS.iter().position(|known| known.parse() == Ok(*xid)).map(|position| 1 << position);
    let xids = view.holdings(target).flat_map(|(_, holder)| holder.xids.keys());
    // Records can be lost, and a line need not name the process.
    Value::Words { seen: xids.filter_map(bit).fold(0, |all, bit: u64| all | bit), complete: false }
}

pub(super) fn has_lease(target: &Target, view: &View) -> Value {
    match view.has_lease(target) {
        Ok(truth) => Value::Flag(truth == Truth::True),
        Err(why) => Value::Unknown(why),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use bailiff_snapshot::XidClass;
    use snapshot_fixtures::stream as fixtures;

    use super::*;

    /// Returns the values of the attribute for all processes and workloads of a node with these processes.
    fn values_of_restored(processes: Vec<wire::Process>) -> BTreeSet<String> {
        let holders = processes.iter().map(|process| fixtures::holder(process.pid, Some(1), None)).collect();
        let view = View::between(None, fixtures::snapshot(1, vec![fixtures::gpu("0", holders)], processes));
        let kinds = [Kind::Process, Kind::Workload];
        let targets = view.targets.iter().filter(|target| kinds.contains(&target.kind));
        let value = |target| match restored(target, &view) {
            Value::Unknown(_) => "unknown".to_owned(),
            value => format!("{value:?}"),
        };
        targets.map(|target| format!("{:?} {}", target.kind, value(target))).collect()
    }

    #[test]
    fn process_is_known_to_be_restored_or_unknown() {
        let facts = |restored| wire::Facts {
            restored,
            workload: Some("slurm:1".to_owned()),
            ..fixtures::facts("python3")
        };
        let of = |pid, restored| fixtures::process(pid, 100, facts(restored));
        let [known, unknown] = ["Process Flag(true)", "Process unknown"];
        for (name, processes, expected) in [
            ("restored", vec![of(41, true)], vec![known, "Workload Flag(true)"]),
            ("not known to be", vec![of(41, false)], vec![unknown, "Workload unknown"]),
            ("one of them", vec![of(41, true), of(42, false)], vec![known, unknown, "Workload Flag(true)"]),
            ("the other", vec![of(41, false), of(42, true)], vec![known, unknown, "Workload Flag(true)"]),
            ("not read", vec![wire::Process { facts: None, ..of(41, false) }], vec![unknown]),
        ] {
            let expected: BTreeSet<String> = expected.into_iter().map(str::to_owned).collect();
            assert_eq!(values_of_restored(processes), expected, "{name}");
        }
    }

    #[test]
    fn xids_are_those_that_processes_can_cause() {
        let caused = |xid: &u64| matches!(XidClass::of(*xid), XidClass::Application | XidClass::Cleanup);
        let all: Vec<String> = (0..10_000).filter(caused).map(|xid| xid.to_string()).collect();
        assert_eq!(XIDS, all);
    }
}
