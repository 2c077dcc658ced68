//! `io_rate`: how much a target reads from storage and writes to it.

use super::Attribute;
use crate::Kind;
use crate::value::{Unit, Value};
use crate::view::{Target, View};

pub(super) static IO_RATE: Attribute = Attribute {
    name: "io_rate",
    of: &[Kind::Process, Kind::Workload],
    unit: Unit::BytesPerSecond,
    help: "Bytes a second to and from storage. Unknown without the right to read it (CAP_SYS_PTRACE).",
    source: "proc",
    read,
};

fn read(target: &Target, _: &View) -> Value {
    target.io
}
