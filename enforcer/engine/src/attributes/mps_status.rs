//! `mps_status`: how an MPS server is, as its control daemon says.

use bailiff_snapshot::MpsStatus;

use super::Attribute;
use crate::Kind;
use crate::value::{Unit, Value};
use crate::view::{Target, View};

/// As `bailiff_snapshot::MpsStatus::name` writes them.
pub(super) const WORDS: &[&str] =
    &[MpsStatus::Initializing.name(), MpsStatus::Active.name(), MpsStatus::Fault.name()];

pub(super) static MPS_STATUS: Attribute = Attribute {
    name: "mps_status",
    of: &[Kind::MpsServer],
    unit: Unit::Words(WORDS),
    help: "Status in its control daemon's last answer: in fault it accepts no new client until all clients affected by a fatal fault have exited. Unknown if the daemon does not report it, as up to driver 535.",
    source: "mps",
    read,
};

fn read(target: &Target, view: &View) -> Value {
    let Some(server) = view.mps_server(target) else {
        return Value::Unknown("the exporter does not report this MPS server");
    };
    let place = server.status.and_then(|status| WORDS.iter().position(|word| *word == status.name()));
    match place {
        Some(place) => Value::Words { seen: 1 << place, complete: true },
        None => Value::Unknown("its control daemon does not report its status"),
    }
}
