//! `vram_used`: how much memory of a GPU is used.

use super::Attribute;
use crate::policy::Kind;
use crate::value::{Unit, Value};
use crate::view::{Target, View};

pub(super) static VRAM_USED: Attribute = Attribute {
    name: "vram_used",
    of: &[Kind::Gpu],
    unit: Unit::Bytes,
    help: "Used memory of the GPU, whoever uses it.",
    source: "nvml",
    read,
};

fn read(_: &Target, _: &View) -> Value {
    Value::Unknown("not read yet")
}
