//! `vram_unaccounted`: how much memory of a GPU is held by no listed process.

use super::Attribute;
use crate::policy::Kind;
use crate::value::{Unit, Value};
use crate::view::{Target, View};

pub(super) static VRAM_UNACCOUNTED: Attribute = Attribute {
    name: "vram_unaccounted",
    of: &[Kind::Gpu],
    unit: Unit::Bytes,
    help: "Memory of the GPU that is used and that no listed process holds. Reads are not at one instant, so it may be slightly negative. Unknown where one holder's memory is.",
    source: "nvml",
    read,
};

fn read(_: &Target, _: &View) -> Value {
    Value::Unknown("not read yet")
}
