//! `vram_unreleased`: memory of a GPU that was not released after its holders exited.

use super::Attribute;
use crate::Kind;
use crate::value::{Unit, Value};
use crate::view::{Target, View};

pub(super) static VRAM_UNRELEASED: Attribute = Attribute {
    name: "vram_unreleased",
    of: &[Kind::Gpu],
    unit: Unit::Bytes,
    help: "Memory not released after its holders exited, for whatever reason; tracked until it is released. Unknown in the first samples after an exit, and if other processes started, exited or grew meanwhile.",
    source: "nvml, proc",
    read,
};

fn read(target: &Target, view: &View) -> Value {
    #[expect(clippy::cast_precision_loss, reason = "2^53 bytes are more than any GPU has")]
    match view.gpu_of(target).and_then(|gpu| gpu.memory.as_ref()?.unreleased) {
        Some(bytes) => Value::Number(bytes as f64),
        None => Value::Unknown("not decided yet, or a part of the sum is unknown"),
    }
}
