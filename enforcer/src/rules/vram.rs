//! `vram`: how much GPU memory a target holds, on all its GPUs.

use super::Attribute;
use crate::policy::Kind;
use crate::value::{Unit, Value};
use crate::view::{Target, View};

pub(super) static VRAM: Attribute = Attribute {
    name: "vram",
    of: &[Kind::Process, Kind::Workload],
    unit: Unit::Bytes,
    help: "GPU memory it holds, on all its GPUs together. Unknown where the driver does not tell the figure of one of them, unless the others are enough to tell.",
    source: "nvml",
    read,
};

fn read(_: &Target, _: &View) -> Value {
    Value::Unknown("not read yet")
}
