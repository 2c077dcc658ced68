//! `mig`: whether a GPU is in MIG mode.

use super::Attribute;
use crate::policy::Kind;
use crate::value::{Unit, Value};
use crate::view::{Target, View};

pub(super) static MIG: Attribute =
    Attribute { name: "mig", of: &[Kind::Gpu], unit: Unit::Flag, help: "MIG is on.", source: "nvml", read };

fn read(_: &Target, _: &View) -> Value {
    Value::Unknown("not read yet")
}
