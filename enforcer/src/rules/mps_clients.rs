//! `mps_clients`: how many clients an MPS server has.

use super::Attribute;
use crate::policy::Kind;
use crate::value::{Unit, Value};
use crate::view::{Target, View};

pub(super) static MPS_CLIENTS: Attribute = Attribute {
    name: "mps_clients",
    of: &[Kind::MpsServer],
    unit: Unit::Count,
    help: "Clients that the server's processes list shows. Unknown where the control daemon cannot be asked.",
    source: "mps",
    read,
};

fn read(_: &Target, _: &View) -> Value {
    Value::Unknown("not read yet")
}
