//! `vram_free`: how much memory of a GPU is free.

use super::Attribute;
use crate::Kind;
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

fn read(target: &Target, view: &View) -> Value {
    #[expect(clippy::cast_precision_loss, reason = "2^53 bytes are more than any GPU has")]
    match view.gpu_of(target).and_then(|gpu| gpu.memory.as_ref()).map(|memory| memory.free) {
        Some(bytes) => Value::Number(bytes as f64),
        None => Value::Unknown("not reported by the driver"),
    }
}
