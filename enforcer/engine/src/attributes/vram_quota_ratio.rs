//! `vram_quota_ratio`: how much of its quota of GPU memory is held.

use super::Attribute;
use crate::Kind;
use crate::value::{Unit, Value};
use crate::view::{Target, View};

pub(super) static VRAM_QUOTA_RATIO: Attribute = Attribute {
    name: "vram_quota_ratio",
    of: &[Kind::Process, Kind::Workload],
    unit: Unit::Percent,
    help: "GPU memory of all processes that share its quota, by the driver, as a part of the limit. It includes contexts, so slightly more than 100% is normal. Unknown without a shared quota file.",
    source: "quota",
    read,
};

fn read(target: &Target, view: &View) -> Value {
    view.quota_ratio(target)
}
