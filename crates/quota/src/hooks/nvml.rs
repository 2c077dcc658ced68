//! Hooks for NVML, if enabled: monitoring programs in a container see the quota as the GPU's memory.

use super::hooks;
use crate::abi::{Code, Handle, NvmlMemory, NvmlMemory2};
use crate::gpu::GpuAccount;
use crate::panic_guard::DriverCall;
use crate::settings::{self, Uuid};
use crate::symbol::{NVML, Symbol};
use crate::{environment, state};

static UUID: Symbol = Symbol::of(&NVML, c"nvmlDeviceGetUUID");

/// Returns the UUID of an NVML device.
fn uuid(device: Handle) -> Option<Uuid> {
    // SAFETY: the function type matches `nvml.h`.
    let call = unsafe { UUID.function::<unsafe extern "C" fn(Handle, *mut u8, u32) -> Code>() }?;
    let mut text = [0; 96];
    // SAFETY: the buffer has the given length, and NVML checks the handle.
    let answer = unsafe { call(device, text.as_mut_ptr(), 96) };
    let text = std::ffi::CStr::from_bytes_until_nul(&text).ok()?.to_str().ok()?;
    settings::uuid(text).filter(|_| answer.is_success())
}

/// Returns the limit on a device and the memory in use. The limit also applies before the first allocation.
fn view(device: Handle) -> Option<(u64, u64)> {
    let (state, uuid) = (state::get()?, uuid(device)?);
    let opened = state.accounts().find(|gpu| gpu.uuid() == Some(uuid)).map(GpuAccount::view);
    let shared = || state.shared().and_then(|shared| shared.usage(uuid));
    opened.or_else(shared).or_else(|| Some((environment::limits().limit(None, Some(uuid)).bytes, 0)))
}

/// Calls NVML and reduces total and free memory to the quota.
fn with_quota<F: Fn() -> Code>(
    call: &DriverCall<F>,
    device: Handle,
    change: impl FnOnce(&dyn Fn(u64, u64) -> (u64, u64)),
) -> Code {
    let answer = call.result();
    if answer.is_success()
        && environment::settings().lie_nvml
        && let Some((limit, used)) = view(device)
    {
        change(&|total, free| (total.min(limit), free.min(limit.saturating_sub(used))));
    }
    answer
}

hooks! { of NVML:
    nvmlDeviceGetMemoryInfo(device: Handle, memory: *mut NvmlMemory) |call| {
        with_quota(call, device, |reduce| {
            // SAFETY: NVML has succeeded, so it has filled in the structure.
            let memory = unsafe { &mut *memory };
            (memory.total, memory.free) = reduce(memory.total, memory.free);
            memory.used = memory.total.saturating_sub(memory.free);
        })
    }
    nvmlDeviceGetMemoryInfo_v2(device: Handle, memory: *mut NvmlMemory2) |call| {
        with_quota(call, device, |reduce| {
            // SAFETY: NVML has succeeded, so it has filled in the structure.
            let memory = unsafe { &mut *memory };
            (memory.total, memory.free) = reduce(memory.total, memory.free);
            // Memory that the driver itself uses is not part of this process's quota.
            memory.reserved = 0;
            memory.used = memory.total.saturating_sub(memory.free);
        })
    }
}
