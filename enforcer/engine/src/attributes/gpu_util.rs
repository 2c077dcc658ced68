//! `gpu_util`: how busy a target keeps its GPUs: the busiest engine of the busiest one.

use super::Attribute;
use crate::Kind;
use crate::value::{Unit, Value};
use crate::view::{Target, View};

pub(super) static GPU_UTIL: Attribute = Attribute {
    name: "gpu_util",
    of: &[Kind::Process, Kind::Workload, Kind::Gpu, Kind::MpsServer],
    unit: Unit::Percent,
    help: "Use of the GPUs it holds, the busiest engine of the busiest GPU; of a GPU: its own figure. Unknown where one of them was not observed or is lost, unless another is busy enough to decide.",
    source: "nvml",
    read,
};

fn read(target: &Target, view: &View) -> Value {
    if target.kind == Kind::Gpu {
        return match view.gpu_of(target).and_then(|gpu| gpu.utilization) {
            Some(percent) => Value::Number(f64::from(percent) / 100.0),
            None => Value::Unknown("not reported by the driver"),
        };
    }
    view.most(target, |holder| holder.utilization.map(|percent| f64::from(percent) / 100.0))
}
