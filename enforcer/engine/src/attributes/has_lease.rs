//! `has_lease`: whether a target's GPUs are leased to it.

use bailiff_snapshot::Truth;

use super::Attribute;
use crate::Kind;
use crate::value::{Unit, Value};
use crate::view::{Target, View};

pub(super) static HAS_LEASE: Attribute = Attribute {
    name: "has_lease",
    of: &[Kind::Process, Kind::Workload],
    unit: Unit::Flag,
    help: "It holds a lease for the GPUs that it uses. Unknown while the lease server does not answer.",
    source: "leases",
    read,
};

fn read(target: &Target, view: &View) -> Value {
    match view.has_lease(target) {
        Ok(truth) => Value::Flag(truth == Truth::True),
        Err(why) => Value::Unknown(why),
    }
}
