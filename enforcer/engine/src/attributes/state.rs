//! `state`: the kernel's state of a target's processes.

use bailiff_snapshot::{State, Truth, wire};

use super::Attribute;
use crate::Kind;
use crate::value::{Unit, Value};
use crate::view::{Target, View};

/// As `bailiff_snapshot::State::name` writes them.
pub(crate) const WORDS: &[&str] = &[
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
    unit: Unit::Words(WORDS),
    help: "State of the process; of a workload: of any of its processes. D is a synonym of disk_sleep, in which no signal has an effect; stopped: by a signal; frozen: its cgroup is frozen (docker pause); zombie_leader: the thread-group leader exited, other threads run and hold memory.",
    source: "proc",
    read,
};

/// Whether none of a target's processes that hold memory is on hold.
pub(crate) fn runs(target: &Target, view: &View) -> Truth {
    let on_hold = |process: &wire::Process| State::of_name(&process.state).is_some_and(State::on_hold);
    (!view.processes(target).any(on_hold)).into()
}

fn read(target: &Target, view: &View) -> Value {
    let (mut seen, mut complete) = (0, true);
    for process in view.processes(target) {
        // What could not be read is no state.
        let known = !matches!(process.state.as_str(), "unknown" | "hidden");
        match WORDS.iter().position(|word| known && *word == process.state) {
            Some(place) => seen |= 1 << place,
            None => complete = false,
        }
    }
    Value::Words { seen, complete }
}
