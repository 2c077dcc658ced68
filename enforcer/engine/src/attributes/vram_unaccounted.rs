//! `vram_unaccounted`: how much memory of a GPU is held by no listed process.

use super::Attribute;
use crate::Kind;
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

fn read(target: &Target, view: &View) -> Value {
    #[expect(clippy::cast_precision_loss, reason = "2^53 bytes are more than any GPU has")]
    match view.gpu_of(target).and_then(|gpu| gpu.memory.as_ref()?.unaccounted) {
        Some(bytes) => Value::Number(bytes as f64),
        None => Value::Unknown("a part of the sum is not known"),
    }
}
