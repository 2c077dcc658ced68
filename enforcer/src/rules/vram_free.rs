//! `vram_free`: how much memory of a GPU is free.

use super::Attribute;
use crate::policy::Kind;
use crate::value::{Unit, Value};
use crate::view::{Target, View};

pub(super) static VRAM_FREE: Attribute = Attribute {
    name: "vram_free",
    of: &[Kind::Gpu],
    unit: Unit::Bytes,
    help: "Free memory of the GPU.",
    source: "nvml",
    read,
};

fn read(_: &Target, _: &View) -> Value {
    Value::Unknown("not read yet")
}
