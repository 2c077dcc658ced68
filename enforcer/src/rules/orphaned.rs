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

fn read(_: &Target, _: &View) -> Value {
    Value::Unknown("not read yet")
}
