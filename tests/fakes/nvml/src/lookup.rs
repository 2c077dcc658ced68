//! Functions that return handles: by index, by UUID, by serial number, by bus id.

use std::ffi::c_uint;

use crate::code::Code;
use crate::device;
use crate::edge::{Handle, Out, Text, put};
use crate::gate::{self, Target};
use crate::machine::{Gpu, Machine};

/// Exports lookups: C functions with these names. Their last argument receives the handle.
macro_rules! look_ups {
    ($($name:ident($machine:ident, $arg:ident: $type:ty) $find:block)*) => {
        $(
            #[unsafe(no_mangle)]
            extern "C" fn $name($arg: $type, handle: Out<Handle>) -> Code {
                gate::look_up(stringify!($name), |$machine| $find).and_then(|found| put(handle, found)).into()
            }
        )*

        /// Functions that this module exports.
        pub(crate) const NAMES: &[&str] = &[$(stringify!($name)),*];
    };
}

look_ups! {
    nvmlDeviceGetHandleByIndex(machine, index: c_uint) { by_index(machine, index) }
    nvmlDeviceGetHandleByIndex_v2(machine, index: c_uint) { by_index(machine, index) }
    nvmlDeviceGetHandleByUUID(machine, uuid: Text) { by_uuid(machine, uuid.read()?) }
    nvmlDeviceGetHandleBySerial(machine, serial: Text) {
        let serial = serial.read()?;
        find(machine, |gpu| device::serial(gpu) == serial)
    }
    nvmlDeviceGetHandleByPciBusId(machine, bus_id: Text) { by_bus_id(machine, bus_id.read()?) }
    nvmlDeviceGetHandleByPciBusId_v2(machine, bus_id: Text) { by_bus_id(machine, bus_id.read()?) }
}

fn by_index(machine: &Machine, index: c_uint) -> Result<Target, Code> {
    let gpu = machine.gpus.get(index as usize).ok_or(Code::INVALID_ARGUMENT)?;
    Ok(Target { gpu: gpu.index, instance: None })
}

fn by_uuid(machine: &Machine, uuid: &str) -> Result<Target, Code> {
    for gpu in &machine.gpus {
        if gpu.unit.uuid == uuid {
            return Ok(Target { gpu: gpu.index, instance: None });
        }
        if let Some(found) = gpu.instances.iter().flatten().find(|instance| instance.unit.uuid == uuid) {
            return Ok(Target { gpu: gpu.index, instance: Some(found.index) });
        }
    }
    Err(Code::NOT_FOUND)
}

/// Looks up a bus id. Both forms of the domain are accepted, in upper or lower case:
/// `0000:17:00.0`, `00000000:17:00.0`.
fn by_bus_id(machine: &Machine, bus_id: &str) -> Result<Target, Code> {
    find(machine, |gpu| {
        let full = device::bus_id(gpu);
        full.eq_ignore_ascii_case(bus_id)
            || full.get(4..).is_some_and(|short| short.eq_ignore_ascii_case(bus_id))
    })
}

fn find(machine: &Machine, is_it: impl Fn(&Gpu) -> bool) -> Result<Target, Code> {
    let gpu = machine.gpus.iter().find(|gpu| is_it(gpu)).ok_or(Code::NOT_FOUND)?;
    Ok(Target { gpu: gpu.index, instance: None })
}
