//! `unlisted_processes`: how many processes have a GPU's device file open and are listed nowhere.

use super::Attribute;
use crate::Kind;
use crate::value::{Unit, Value};
use crate::view::{Target, View};

pub(super) static UNLISTED_DEVICE_PROCESSES: Attribute = Attribute {
    name: "unlisted_processes",
    of: &[Kind::Gpu],
    unit: Unit::Count,
    help: "Processes that have the GPU's device file open and that the driver does not list: forked workers that inherited it. Services of the driver and of monitoring (nvidia-persistenced, DCGM and similar, with a uid below 1000) do not count. Scanned once a minute, and only while 256MiB or more are unaccounted or all listed processes exited; otherwise unknown, as in MIG mode with an instance that gave no list.",
    source: "proc",
    read,
};

fn read(target: &Target, view: &View) -> Value {
    let unreadable =
        view.snapshot.device_processes.as_ref().map(|device_processes| device_processes.unreadable);
    #[expect(clippy::cast_precision_loss, reason = "a small count")]
    match (view.gpu_of(target).and_then(|gpu| gpu.unlisted_processes), unreadable) {
        (Some(count), Some(0)) => Value::Number(count as f64),
        (Some(count), _) => Value::AtLeast(count as f64),
        (None, _) => Value::Unknown("there was no scan of open device files"),
    }
}
