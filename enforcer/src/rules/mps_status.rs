//! `mps_status`: how an MPS server is, as its control daemon says.

use bailiff_snapshot::MpsStatus;

use super::Attribute;
use crate::policy::Kind;
use crate::value::{Unit, Value};
use crate::view::{Target, View};

/// As `bailiff_snapshot::MpsStatus::name` writes them.
pub(super) const WORDS: &[&str] =
    &[MpsStatus::Initializing.name(), MpsStatus::Active.name(), MpsStatus::Fault.name()];

pub(super) static MPS_STATUS: Attribute = Attribute {
    name: "mps_status",
    of: &[Kind::MpsServer],
    unit: Unit::Words(WORDS),
    help: "How it is, as its control daemon last said: in fault it takes no new client until all that a fatal fault hit have ended. Unknown where the daemon does not tell, as up to driver 535.",
    source: "mps",
    read,
};

fn read(target: &Target, view: &View) -> Value {
    let Some(server) = view.mps_server(target) else {
        return Value::Unknown("the exporter tells nothing of this server of MPS");
    };
    let place = server.status.and_then(|status| WORDS.iter().position(|word| *word == status.name()));
    match place {
        Some(place) => Value::Words { seen: 1 << place, complete: true },
        None => Value::Unknown("its control daemon does not tell its status"),
    }
}
