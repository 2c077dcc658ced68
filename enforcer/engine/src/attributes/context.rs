//! `context`: what a target uses its GPUs for.

use super::Attribute;
use crate::Kind;
use crate::value::{Unit, Value};
use crate::view::{Target, View};

/// The types of contexts in the driver's lists.
pub(super) const WORDS: &[&str] = &["compute", "graphics", "mps"];

pub(super) static CONTEXT: Attribute = Attribute {
    name: "context",
    of: &[Kind::Process, Kind::Workload],
    unit: Unit::Words(WORDS),
    help: "What it uses a GPU for; one of its GPUs is enough.",
    source: "nvml",
    read,
};

fn read(target: &Target, view: &View) -> Value {
    let mut seen = 0;
    for (_, holder) in view.holdings(target) {
        for kind in holder.kinds.split('+') {
            seen |= match kind {
                "C" => 1,
                "G" => 2,
                "M" => 4,
                _ => 0,
            };
        }
    }
    Value::Words { seen, complete: !view.may_hold_more(target) }
}
