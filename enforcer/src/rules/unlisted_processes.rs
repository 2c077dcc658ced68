//! `unlisted_processes`: how many processes have a GPU's device file open and are listed nowhere.

use super::Attribute;
use crate::policy::Kind;
use crate::value::{Unit, Value};
use crate::view::{Target, View};

pub(super) static UNLISTED_DEVICE_PROCESSES: Attribute = Attribute {
    name: "unlisted_processes",
    of: &[Kind::Gpu],
    unit: Unit::Count,
    help: "Processes that have the GPU's device file open and that the driver does not list: forked workers that inherited it. Services of the driver and of monitoring (nvidia-persistenced, DCGM and the like, under a uid below 1000) do not count. Looked for once a minute, and only where 256MiB or more are of nobody or whoever is listed has ended; unknown elsewhere, and where MIG is on with an instance that gave no list.",
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
        (None, _) => Value::Unknown("nobody looked who has the device open"),
    }
}
