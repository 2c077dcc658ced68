//! Attributes of MPS servers.

use crate::value::Value;
use crate::view::{Target, View};
use std::collections::BTreeSet;

pub(super) fn mps_clients(target: &Target, view: &View) -> Value {
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

pub(super) fn mps_status(target: &Target, view: &View) -> Value {
    let Some(server) = view.mps_server(target) else {
        return Value::Unknown("the exporter does not report this MPS server");
    };
    match server.status {
        Some(status) => Value::Words { seen: 1 << status as u32, complete: true },
        None => Value::Unknown("the MPS control daemon does not report the server's status"),
    }
}
