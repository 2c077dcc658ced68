//! `orphaned`: whether a target was left behind.

use super::Attribute;
use crate::policy::Kind;
use crate::value::{Unit, Value};
use crate::view::{Target, View};

pub(super) static ORPHANED: Attribute = Attribute {
    name: "orphaned",
    of: &[Kind::Process, Kind::Workload],
    unit: Unit::Flag,
    help: "The login session, job or container whose cgroup it is in has ended: nobody else is in it; of a workload: so of all of its processes that hold memory. Unknown of a daemon that forked twice while its login or container lives.",
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
