//! Functions of the driver as a whole: its versions and the number of devices.

use std::ffi::{c_char, c_int, c_uint};

use crate::edge::{Out, Room, put, system_calls};
use crate::machine::Machine;

system_calls! {
    nvmlSystemGetDriverVersion(machine, text: Room<c_char>, length: c_uint) { text.text(length, &machine.driver) }
    nvmlSystemGetNVMLVersion(machine, text: Room<c_char>, length: c_uint) { text.text(length, &machine.nvml) }
    nvmlSystemGetCudaDriverVersion(machine, version: Out<c_int>) { put(version, machine.cuda) }
    nvmlSystemGetCudaDriverVersion_v2(machine, version: Out<c_int>) { put(version, machine.cuda) }
    nvmlDeviceGetCount(machine, count: Out<c_uint>) { put(count, device_count(machine)) }
    nvmlDeviceGetCount_v2(machine, count: Out<c_uint>) { put(count, device_count(machine)) }
}

fn device_count(machine: &Machine) -> c_uint {
    c_uint::try_from(machine.gpus.len()).unwrap_or(c_uint::MAX)
}
