//! `listed_but_gone`: whether the driver lists a process that does not exist.

use super::Attribute;
use crate::Kind;
use crate::value::{Unit, Value};
use crate::view::{Target, View};

pub(super) static LISTED_BUT_GONE: Attribute = Attribute {
    name: "listed_but_gone",
    of: &[Kind::Process, Kind::Workload],
    unit: Unit::Flag,
    help: "The driver lists it as a holder of memory and there is no such process. It can be flagged, never signalled.",
    source: "nvml, proc",
    read,
};

fn read(target: &Target, view: &View) -> Value {
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
