//! `vram`: how much GPU memory a target holds, on all its GPUs.

use super::Attribute;
use crate::Kind;
use crate::value::{Unit, Value};
use crate::view::{Target, View};

pub(super) static VRAM: Attribute = Attribute {
    name: "vram",
    of: &[Kind::Process, Kind::Workload],
    unit: Unit::Bytes,
    help: "GPU memory it holds, on all its GPUs together. Unknown if the driver does not report it for one of them, unless the others suffice to decide.",
    source: "nvml",
    read,
};

fn read(target: &Target, view: &View) -> Value {
    #[expect(clippy::cast_precision_loss, reason = "2^53 bytes are more than any GPU has")]
    view.sum(target, |holder| holder.memory.map(|bytes| bytes as f64))
}
