//! `age`: how long a target has existed.

use super::Attribute;
use crate::policy::Kind;
use crate::value::{Unit, Value};
use crate::view::{Target, View, joined};

pub(super) static AGE: Attribute = Attribute {
    name: "age",
    of: &[Kind::Process, Kind::Workload, Kind::Lease, Kind::MpsServer],
    unit: Unit::Duration,
    help: "Time since it started; of a workload: since its oldest process did; of a lease: since it was granted.",
    source: "proc",
    read,
};

fn read(target: &Target, view: &View) -> Value {
    let ages = view.processes(target).map(|process| view.age(process).map(|age| age.as_secs_f64()));
    joined(ages, f64::max)
}
