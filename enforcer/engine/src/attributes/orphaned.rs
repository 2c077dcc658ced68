//! `orphaned`: whether a target was left behind.

use super::Attribute;
use crate::Kind;
use crate::value::{Unit, Value};
use crate::view::{Target, View};

pub(super) static ORPHANED: Attribute = Attribute {
    name: "orphaned",
    of: &[Kind::Process, Kind::Workload],
    unit: Unit::Flag,
    help: "The login session, job or container of its cgroup has ended: no other process is left in it; of a workload: this holds for all of its processes with memory. Unknown for a daemon that forked twice while its login session or container runs.",
    source: "proc",
    read,
};

fn read(target: &Target, view: &View) -> Value {
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
