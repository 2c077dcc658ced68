//! `process_count`: how many processes hold a part of a GPU.

use super::Attribute;
use crate::policy::Kind;
use crate::value::{Unit, Value};
use crate::view::{Target, View};

pub(super) static PROCESS_COUNT: Attribute = Attribute {
    name: "process_count",
    of: &[Kind::Gpu],
    unit: Unit::Count,
    help: "Processes that the driver lists on the GPU.",
    source: "nvml",
    read,
};

fn read(_: &Target, _: &View) -> Value {
    Value::Unknown("not read yet")
}
