//! `vram_share`: how much of its GPUs' memory a target holds.

use super::Attribute;
use crate::Kind;
use crate::value::{Unit, Value};
use crate::view::{Target, View, joined};

pub(super) static VRAM_SHARE: Attribute = Attribute {
    name: "vram_share",
    of: &[Kind::Process, Kind::Workload],
    unit: Unit::Percent,
    help: "The part of a GPU's memory that it holds, on the GPU where that part is largest.",
    source: "nvml",
    read,
};

fn read(target: &Target, view: &View) -> Value {
    let shares = view.holdings(target).map(|(gpu, holder)| {
        let total = gpu.memory.as_ref()?.total;
        #[expect(clippy::cast_precision_loss, reason = "2^53 bytes are more than any GPU has")]
        (total > 0).then_some(holder.memory? as f64 / total as f64)
    });
    view.or_more(target, joined(shares, f64::max))
}
