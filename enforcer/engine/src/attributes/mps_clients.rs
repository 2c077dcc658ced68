//! `mps_clients`: how many clients an MPS server has.

use std::collections::BTreeSet;

use super::Attribute;
use crate::Kind;
use crate::value::{Unit, Value};
use crate::view::{Target, View};

pub(super) static MPS_CLIENTS: Attribute = Attribute {
    name: "mps_clients",
    of: &[Kind::MpsServer],
    unit: Unit::Count,
    help: "Clients of MPS on the GPUs that the server holds, of any user, by the driver's list; or the clients of the server in its control daemon's last answer, if those are more. Unknown where the driver gave no list.",
    source: "nvml",
    read,
};

fn read(target: &Target, view: &View) -> Value {
    let mut clients = BTreeSet::new();
    for gpu in view.gpus(target) {
        if gpu.fault.is_some() || gpu.listed.is_none() {
            return Value::Unknown("the driver gave no list");
        }
        let of_mps = gpu.holders.iter().filter(|holder| holder.kinds.contains('M'));
        clients.extend(of_mps.map(|holder| holder.pid));
    }
    // A client without a context yet is in the daemon's list alone.
    let listed = view.mps_server(target).and_then(|server| server.clients.as_ref()).map_or(0, Vec::len);
    let clients = u32::try_from(clients.len().max(listed)).map_or(f64::MAX, f64::from);
    view.or_more(target, Value::Number(clients))
}
