//! Memory of a device or an instance, in both versions of the call.

use crate::abi::{self, Memory2};
use crate::code::Code;
use crate::edge::{InOut, Out, device_calls, put};

/// Memory of the BAR1 window, through which the CPU accesses the device's memory.
const BAR1: abi::Memory = abi::Memory { total: 256 << 30, free: (256 << 30) - (1 << 20), used: 1 << 20 };

device_calls! {
    nvmlDeviceGetMemoryInfo(call, info: Out<abi::Memory>) {
        // The first version has no field for reserved memory and counts it as used.
        let memory = call.unit().memory;
        put(info, abi::Memory { total: memory.total, free: memory.free, used: memory.used + memory.reserved })
    }
    nvmlDeviceGetMemoryInfo_v2(call, info: InOut<Memory2>) {
        let info = info.ok_or(Code::INVALID_ARGUMENT)?;
        if info.version != abi::version::<Memory2>(2) {
            return Err(Code::ARGUMENT_VERSION_MISMATCH);
        }
        let memory = call.unit().memory;
        (info.total, info.reserved) = (memory.total, memory.reserved);
        (info.free, info.used) = (memory.free, memory.used);
        Ok(())
    }
    nvmlDeviceGetBAR1MemoryInfo(_call, info: Out<abi::Memory>) { put(info, BAR1) }
}
