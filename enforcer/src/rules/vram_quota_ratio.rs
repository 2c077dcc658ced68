//! `vram_quota_ratio`: how much of its quota of GPU memory a target holds.

use super::Attribute;
use crate::policy::Kind;
use crate::value::{Unit, Value};
use crate::view::{Target, View};

pub(super) static VRAM_QUOTA_RATIO: Attribute = Attribute {
    name: "vram_quota_ratio",
    of: &[Kind::Process, Kind::Workload],
    unit: Unit::Percent,
    help: "GPU memory it holds, as a part of its quota; 100% is all of it. Unknown without a quota file.",
    source: "quota",
    read,
};

fn read(_: &Target, _: &View) -> Value {
    Value::Unknown("quotas are not in the snapshot")
}
