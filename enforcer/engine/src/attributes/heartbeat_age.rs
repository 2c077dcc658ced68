//! `heartbeat_age`: how long the holder of a lease has been silent.

use super::{Attribute, seconds};
use crate::Kind;
use crate::value::{Unit, Value};
use crate::view::{Target, View};

pub(super) static HEARTBEAT_AGE: Attribute = Attribute {
    name: "heartbeat_age",
    of: &[Kind::Lease],
    unit: Unit::Duration,
    help: "Time since its holder last renewed the lease himself.",
    source: "leases",
    read,
};

fn read(target: &Target, view: &View) -> Value {
    view.held(target)
        .and_then(|held| held.silent_ms)
        .map_or(Value::Unknown("its holder was not heard of"), |silent| Value::Number(seconds(silent)))
}
