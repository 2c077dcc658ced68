//! `heartbeat_age`: how long the holder of a lease has been silent.

use super::Attribute;
use crate::policy::Kind;
use crate::value::{Unit, Value};
use crate::view::{Target, View};

pub(super) static HEARTBEAT_AGE: Attribute = Attribute {
    name: "heartbeat_age",
    of: &[Kind::Lease],
    unit: Unit::Duration,
    help: "Time since the lease was last renewed.",
    source: "leases",
    read,
};

fn read(_: &Target, _: &View) -> Value {
    Value::Unknown("leases are not in the snapshot")
}
