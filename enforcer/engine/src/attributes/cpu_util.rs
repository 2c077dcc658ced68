//! `cpu_util`: how much CPU time a target uses, its descendants included.

use super::Attribute;
use crate::Kind;
use crate::value::{Unit, Value};
use crate::view::{Target, View};

pub(super) static CPU_UTIL: Attribute = Attribute {
    name: "cpu_util",
    of: &[Kind::Process, Kind::Workload],
    unit: Unit::Percent,
    help: "CPU time of it and of its descendants without GPU memory; of a workload: of all its processes. 100% is one core. Unknown in the first sample of a process.",
    source: "proc",
    read,
};

fn read(target: &Target, _: &View) -> Value {
    target.cpu
}
