//! Attributes of MPS servers.

use super::Attribute;
use crate::Kind;
use crate::value::{Unit, Value};
use crate::view::{Target, View};
use bailiff_snapshot::MpsStatus;
use std::collections::BTreeSet;

pub(super) static MPS_CLIENTS: Attribute = Attribute {
    name: "mps_clients",
    of: &[Kind::MpsServer],
    unit: Unit::Count,
    help: "The larger of two numbers: MPS clients of any user that the driver lists on the server's GPUs, and the server's clients in the control daemon's last response. Unknown if the driver returned no process list.",
    source: "nvml",
    read: mps_clients,
};

fn mps_clients(target: &Target, view: &View) -> Value {
    let mut clients = BTreeSet::new();
    for gpu in view.gpus(target) {
        if gpu.fault.is_some() || gpu.listed.is_none() {
            return Value::Unknown("the driver returned no process list");
        }
        let of_mps = gpu.holders.iter().filter(|holder| holder.kinds.contains('M'));
        clients.extend(of_mps.map(|holder| holder.pid));
    }
    // A client without a context is only in the daemon's list.
    let listed = view.mps_server(target).and_then(|server| server.clients.as_ref()).map_or(0, Vec::len);
    let clients = u32::try_from(clients.len().max(listed)).map_or(f64::MAX, f64::from);
    view.or_more(target, Value::Number(clients))
}

pub(super) static MPS_STATUS: Attribute = Attribute {
    name: "mps_status",
    of: &[Kind::MpsServer],
    unit: Unit::Words(MpsStatus::NAMES),
    help: "Status of the server in the control daemon's last response. In status fault, it accepts no new client until all clients affected by a fatal fault have exited. Unknown if the daemon does not report it (drivers up to 535).",
    source: "mps",
    read: mps_status,
};

fn mps_status(target: &Target, view: &View) -> Value {
    let Some(server) = view.mps_server(target) else {
        return Value::Unknown("the exporter does not report this MPS server");
    };
    match server.status {
        Some(status) => Value::Words { seen: 1 << status as u32, complete: true },
        None => Value::Unknown("the MPS control daemon does not report the server's status"),
    }
}
