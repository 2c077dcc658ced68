//! `gpu_count`: how many GPUs a target holds a part of.

use super::Attribute;
use crate::Kind;
use crate::value::{Unit, Value};
use crate::view::{Target, View};

pub(super) static GPU_COUNT: Attribute = Attribute {
    name: "gpu_count",
    of: &[Kind::Process, Kind::Workload],
    unit: Unit::Count,
    help: "GPUs and MIG instances on which it holds memory.",
    source: "nvml",
    read,
};

fn read(target: &Target, view: &View) -> Value {
    let count = u32::try_from(target.gpus.len()).map_or(f64::MAX, f64::from);
    view.or_more(target, Value::Number(count))
}
