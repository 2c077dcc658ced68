//! `vram_unreleased`: how much memory of a GPU did not come back from holders who ended.

use super::Attribute;
use crate::policy::Kind;
use crate::value::{Unit, Value};
use crate::view::{Target, View};

pub(super) static VRAM_UNRELEASED: Attribute = Attribute {
    name: "vram_unreleased",
    of: &[Kind::Gpu],
    unit: Unit::Bytes,
    help: "Memory that holders held who ended, by whatever ended them, and that is of nobody since: the exporter looks for it until it is back. Unknown for the first looks after somebody ended, and where others came, went or grew meanwhile.",
    source: "nvml, proc",
    read,
};

fn read(target: &Target, view: &View) -> Value {
    #[expect(clippy::cast_precision_loss, reason = "2^53 bytes are more than any GPU has")]
    match view.gpu_of(target).and_then(|gpu| gpu.memory.as_ref()?.unreleased) {
        Some(bytes) => Value::Number(bytes as f64),
        None => Value::Unknown("nobody can tell yet, or a part of the sum is not known"),
    }
}
