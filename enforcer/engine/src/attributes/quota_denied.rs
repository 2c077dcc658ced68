//! `quota_denied`: how often a target was refused memory.

use super::Attribute;
use crate::Kind;
use crate::value::{Unit, Value};
use crate::view::{Target, View};

pub(super) static QUOTA_DENIED: Attribute = Attribute {
    name: "quota_denied",
    of: &[Kind::Process, Kind::Workload],
    unit: Unit::Count,
    help: "Requests for GPU memory that its quota refused since the snapshot before. Unknown without the file of a shared quota.",
    source: "quota",
    read,
};

fn read(target: &Target, view: &View) -> Value {
    view.quota_denied(target)
}
