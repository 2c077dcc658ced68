//! `orphaned`: whether a target was left behind.

use super::Attribute;
use crate::policy::Kind;
use crate::value::{Unit, Value};
use crate::view::{Target, View};

pub(super) static ORPHANED: Attribute = Attribute {
    name: "orphaned",
    of: &[Kind::Process, Kind::Workload],
    unit: Unit::Flag,
    help: "Its parent is gone, and the session, job or container that it was started in has ended.",
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
