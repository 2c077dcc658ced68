//! `vram_share`: how much of its GPUs' memory a target holds.

use super::Attribute;
use crate::policy::Kind;
use crate::value::{Unit, Value};
use crate::view::{Target, View};

pub(super) static VRAM_SHARE: Attribute = Attribute {
    name: "vram_share",
    of: &[Kind::Process, Kind::Workload],
    unit: Unit::Percent,
    help: "The part of a GPU's memory that it holds, on the GPU where that part is largest.",
    source: "nvml",
    read,
};

fn read(_: &Target, _: &View) -> Value {
    Value::Unknown("not read yet")
}
