//! `state`: what a target's processes are doing, as the kernel tells.

use super::Attribute;
use crate::policy::Kind;
use crate::value::{Unit, Value};
use crate::view::{Target, View};

/// As `bailiff_snapshot::State::name` writes them.
pub(super) const WORDS: &[&str] = &[
    "running",
    "sleeping",
    "disk_sleep",
    "stopped",
    "traced",
    "idle",
    "zombie",
    "zombie_leader",
    "dead",
    "gone",
    "hidden",
    "unknown",
];

pub(super) static STATE: Attribute = Attribute {
    name: "state",
    of: &[Kind::Process, Kind::Workload],
    unit: Unit::Words(WORDS),
    help: "What it is doing; of a workload: one of its processes is. D is another word for disk_sleep, where no signal reaches it; zombie_leader: its first thread has ended, others live on and hold memory.",
    source: "proc",
    read,
};

fn read(_: &Target, _: &View) -> Value {
    Value::Unknown("not read yet")
}
