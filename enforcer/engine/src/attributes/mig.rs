//! `mig`: whether a GPU is in MIG mode.

use super::Attribute;
use crate::Kind;
use crate::value::{Unit, Value};
use crate::view::{Target, View};

pub(super) static MIG: Attribute =
    Attribute { name: "mig", of: &[Kind::Gpu], unit: Unit::Flag, help: "MIG is on.", source: "nvml", read };

fn read(target: &Target, view: &View) -> Value {
    match view.gpu_of(target) {
        Some(gpu) if gpu.fault.is_none() => Value::Flag(gpu.mig || gpu.parent_uuid.is_some()),
        _ => Value::Unknown("the GPU does not answer"),
    }
}
