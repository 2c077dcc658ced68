//! `age`: how long a target has existed.

use super::Attribute;
use crate::policy::Kind;
use crate::value::{Unit, Value};
use crate::view::{Target, View};

pub(super) static AGE: Attribute = Attribute {
    name: "age",
    of: &[Kind::Process, Kind::Workload, Kind::Lease, Kind::MpsServer],
    unit: Unit::Duration,
    help: "Time since it started; of a workload: since its oldest process did; of a lease: since it was granted.",
    source: "proc",
    read,
};

fn read(_: &Target, _: &View) -> Value {
    Value::Unknown("not read yet")
}
