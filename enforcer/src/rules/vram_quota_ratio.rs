//! `vram_quota_ratio`: how much of its quota of GPU memory is held.

use super::Attribute;
use crate::policy::Kind;
use crate::value::{Unit, Value};
use crate::view::{Target, View};

pub(super) static VRAM_QUOTA_RATIO: Attribute = Attribute {
    name: "vram_quota_ratio",
    of: &[Kind::Process, Kind::Workload],
    unit: Unit::Percent,
    help: "GPU memory that it holds with all who share its quota, by the driver's account, as a part of the limit. What contexts take is in it, so a little more than 100% is usual. Unknown without the file of a shared quota.",
    source: "quota",
    read,
};

fn read(target: &Target, view: &View) -> Value {
    view.quota_ratio(target)
}
