//! `age`: how long a target has existed.

use super::{Attribute, seconds};
use crate::Kind;
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
    if target.kind == Kind::Lease {
        let granted = view.held(target).and_then(|held| held.age_ms);
        return granted
            .map_or(Value::Unknown("when it was granted was forgotten"), |age| Value::Number(seconds(age)));
    }
    let ages = view.processes(target).map(|process| view.age(process).map(|age| age.as_secs_f64()));
    joined(ages, f64::max)
}
