//! `context`: what a target uses its GPUs for.

use super::Attribute;
use crate::policy::Kind;
use crate::value::{Unit, Value};
use crate::view::{Target, View};

/// What the driver's lists tell apart.
pub(super) const WORDS: &[&str] = &["compute", "graphics", "mps"];

pub(super) static CONTEXT: Attribute = Attribute {
    name: "context",
    of: &[Kind::Process, Kind::Workload],
    unit: Unit::Words(WORDS),
    help: "What it uses a GPU for; one of its GPUs is enough.",
    source: "nvml",
    read,
};

fn read(_: &Target, _: &View) -> Value {
    Value::Unknown("not read yet")
}
