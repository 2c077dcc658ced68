//! `process_count`: how many processes hold a part of a GPU.

use super::Attribute;
use crate::Kind;
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

fn read(target: &Target, view: &View) -> Value {
    #[expect(clippy::cast_precision_loss, reason = "2^53 bytes are more than any GPU has")]
    match view.gpu_of(target).and_then(|gpu| gpu.listed) {
        Some(bytes) => Value::Number(bytes as f64),
        None => Value::Unknown("the driver gave no list"),
    }
}
