//! `vram_used`: how much memory of a GPU is used.

use super::Attribute;
use crate::Kind;
use crate::value::{Unit, Value};
use crate::view::{Target, View};

pub(super) static VRAM_USED: Attribute = Attribute {
    name: "vram_used",
    of: &[Kind::Gpu],
    unit: Unit::Bytes,
    help: "Used memory of the GPU, by all processes.",
    source: "nvml",
    read,
};

fn read(target: &Target, view: &View) -> Value {
    #[expect(clippy::cast_precision_loss, reason = "2^53 bytes are more than any GPU has")]
    match view.gpu_of(target).and_then(|gpu| gpu.memory.as_ref()).map(|memory| memory.used) {
        Some(bytes) => Value::Number(bytes as f64),
        None => Value::Unknown("not reported by the driver"),
    }
}
