//! Memory of a device or an instance, in both versions of the call.

use std::path::Path;

use crate::abi::{self, Memory2, MemoryLimits};
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
    nvmlDeviceGetMemoryLimits_v1(call, limits: InOut<MemoryLimits>) {
        let all = call.whole.written.memory_limits.as_ref().ok_or(Code::FUNCTION_NOT_FOUND)?;
        call.gpu()?;
        let limits = limits.ok_or(Code::INVALID_ARGUMENT)?;
        let path = limits.cgroup.read()?;
        let mut ancestors = Path::new(path).ancestors();
        let found = ancestors.find_map(|cgroup| all.get(cgroup)).ok_or(Code::NOT_FOUND)?;
        (limits.soft, limits.used) = (found.soft.0, found.used.0);
        limits.hard = found.hard.map_or(abi::NO_BYTES, |bytes| bytes.0);
        Ok(())
    }
    nvmlDeviceSetMemoryLimits_v1(_call, _limits: InOut<MemoryLimits>) { Err(Code::NO_PERMISSION) }
    nvmlDeviceGetBAR1MemoryInfo(_call, info: Out<abi::Memory>) { put(info, BAR1) }
}
