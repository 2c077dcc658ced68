//! Devices with MIG instances, and the instances themselves.

use std::ffi::c_uint;

use crate::abi::Attributes;
use crate::code::Code;
use crate::edge::{Handle, Out, device_calls, put};
use crate::gate::{Call, Target};
use crate::machine::{Instance, MOST_INSTANCES};

/// Number of a device's multiprocessors in one slice.
const MULTIPROCESSORS: c_uint = 16;

device_calls! {
    nvmlDeviceGetMigMode(call, current: Out<c_uint>, pending: Out<c_uint>) {
        let mode = c_uint::from(call.gpu()?.instances.is_some());
        put(current, mode)?;
        put(pending, mode)
    }
    nvmlDeviceSetMigMode(_call, _mode: c_uint, _status: Out<Code>) { Err(Code::NO_PERMISSION) }
    nvmlDeviceIsMigDeviceHandle(call, is_one: Out<c_uint>) { put(is_one, c_uint::from(call.instance.is_some())) }
    nvmlDeviceGetMaxMigDeviceCount(call, count: Out<c_uint>) {
        put(count, if call.gpu()?.instances.is_some() { MOST_INSTANCES } else { 0 })
    }
    nvmlDeviceGetMigDeviceHandleByIndex(call, index: c_uint, handle: Out<Handle>) {
        put(handle, by_index(call, index)?)
    }
    nvmlDeviceGetDeviceHandleFromMigDeviceHandle(call, handle: Out<Handle>) {
        instance(call)?;
        put(handle, Target { gpu: call.whole.index, instance: None }.handle())
    }
    nvmlDeviceGetGpuInstanceId(call, id: Out<c_uint>) { put(id, instance(call)?.gi) }
    nvmlDeviceGetComputeInstanceId(call, id: Out<c_uint>) { put(id, instance(call)?.ci) }
    nvmlDeviceGetAttributes(call, attributes: Out<Attributes>) { put(attributes, self::attributes(call)?) }
    nvmlDeviceGetAttributes_v2(call, attributes: Out<Attributes>) { put(attributes, self::attributes(call)?) }
}

/// Returns the instance of the call. Only instances have ids and attributes.
fn instance<'machine>(call: &Call<'machine>) -> Result<&'machine Instance, Code> {
    call.instance.ok_or(Code::INVALID_ARGUMENT)
}

/// Returns the instance with this index. Where an instance was destroyed, there is a gap between
/// indexes.
fn by_index(call: &Call<'_>, index: c_uint) -> Result<Handle, Code> {
    if index >= MOST_INSTANCES {
        return Err(Code::INVALID_ARGUMENT);
    }
    let mut instances = call.gpu()?.instances.iter().flatten();
    let instance = instances.find(|instance| instance.index == index).ok_or(Code::NOT_FOUND)?;
    Ok(Target { gpu: call.whole.index, instance: Some(instance.index) }.handle())
}

fn attributes(call: &Call<'_>) -> Result<Attributes, Code> {
    let instance = instance(call).map_err(|_| Code::NOT_SUPPORTED)?;
    Ok(Attributes {
        multiprocessors: MULTIPROCESSORS * instance.compute_slices,
        copy_engines: instance.gpu_slices,
        decoders: instance.gpu_slices,
        encoders: 0,
        jpegs: instance.gpu_slices,
        ofas: 0,
        gpu_slices: instance.gpu_slices,
        compute_slices: instance.compute_slices,
        memory_mib: instance.unit.memory.total >> 20,
    })
}
