//! The same of the library that tells of GPUs, where it is asked for: monitors in a container see what it may have.

use super::hooks;
use crate::abi::{Code, Handle, NvmlMemory, NvmlMemory2};
use crate::gpu::Gpu;
use crate::settings::{self, Uuid};
use crate::shield::Ask;
use crate::symbol::{NVML, Symbol};
use crate::{life, start};

static UUID: Symbol = Symbol::of(&NVML, c"nvmlDeviceGetUUID");

/// A device's name, as the library writes it.
fn uuid(device: Handle) -> Option<Uuid> {
    // SAFETY: the type is that of `nvml.h`.
    let call = unsafe { UUID.function::<unsafe extern "C" fn(Handle, *mut u8, u32) -> Code>() }?;
    let mut text = [0; 96];
    // SAFETY: room for as many letters as is said; the library checks the handle.
    let answer = unsafe { call(device, text.as_mut_ptr(), 96) };
    let text = std::ffi::CStr::from_bytes_until_nul(&text).ok()?.to_str().ok()?;
    settings::uuid(text).filter(|_| answer.is_success())
}

/// The limit of a device, and how much is used. One on which nothing was allocated yet has its limit all the same.
fn view(device: Handle) -> Option<(u64, u64)> {
    let (life, uuid) = (life::get()?, uuid(device)?);
    let met = life.met().find(|gpu| gpu.uuid() == Some(uuid)).map(Gpu::view);
    let shared = || life.shared().and_then(|shared| shared.look(uuid));
    met.or_else(shared).or_else(|| Some((start::limits().limit(None, Some(uuid)).bytes, 0)))
}

/// Total and free, made no larger than the quota.
fn lessened<F: Fn() -> Code>(
    ask: &Ask<F>,
    device: Handle,
    change: impl FnOnce(&dyn Fn(u64, u64) -> (u64, u64)),
) -> Code {
    let answer = ask.now();
    if answer.is_success()
        && start::settings().lie_nvml
        && let Some((limit, used)) = view(device)
    {
        change(&|total, free| (total.min(limit), free.min(limit.saturating_sub(used))));
    }
    answer
}

hooks! { of NVML:
    nvmlDeviceGetMemoryInfo(device: Handle, memory: *mut NvmlMemory) |ask| {
        lessened(ask, device, |lessen| {
            // SAFETY: the library succeeded, so it has filled it in.
            let memory = unsafe { &mut *memory };
            (memory.total, memory.free) = lessen(memory.total, memory.free);
            memory.used = memory.total.saturating_sub(memory.free);
        })
    }
    nvmlDeviceGetMemoryInfo_v2(device: Handle, memory: *mut NvmlMemory2) |ask| {
        lessened(ask, device, |lessen| {
            // SAFETY: the library succeeded, so it has filled it in.
            let memory = unsafe { &mut *memory };
            (memory.total, memory.free) = lessen(memory.total, memory.free);
            // What the driver keeps for itself is not this process's.
            memory.reserved = 0;
            memory.used = memory.total.saturating_sub(memory.free);
        })
    }
}
