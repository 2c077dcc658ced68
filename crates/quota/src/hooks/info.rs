//! Hooks for queries of memory sizes. They return at most the quota, because some programs allocate all
//! memory that is reported.

use std::ffi::c_uint;

use super::hooks;
use crate::abi::{Code, Device};
use crate::panic_guard::DriverCall;
use crate::state::{self, ProcessState};

/// Reduces a value in the caller's memory to `most`. Null means that the caller did not request the value.
///
/// # Safety
/// `figure` must be null or point to a value that the driver has written.
unsafe fn limit_to<T: Copy + PartialOrd + TryFrom<u64>>(figure: *mut T, most: u64) {
    // SAFETY: the caller guarantees null or a written value.
    let Some(figure) = (unsafe { figure.as_mut() }) else { return };
    // A limit that does not fit into the type does not reduce the value.
    if let Some(most) = T::try_from(most).ok().filter(|most| most < figure) {
        *figure = most;
    }
}

fn info<F: Fn() -> Code, T: Copy + PartialOrd + TryFrom<u64>>(
    call: &DriverCall<F>,
    free: *mut T,
    total: *mut T,
) -> Code {
    let answer = call.result();
    if answer.is_success()
        && let Some(gpu) = state::get().and_then(ProcessState::current_gpu)
    {
        gpu.open();
        let (limit, used) = gpu.view();
        // SAFETY: the driver has succeeded, so each pointer is null or points to a written value.
        unsafe {
            limit_to(free, limit.saturating_sub(used));
            limit_to(total, limit);
        }
    }
    answer
}

fn total<F: Fn() -> Code, T: Copy + PartialOrd + TryFrom<u64>>(
    call: &DriverCall<F>,
    total: *mut T,
    device: Device,
) -> Code {
    let answer = call.result();
    if answer.is_success()
        && let Some(gpu) = state::get().and_then(|state| state.gpu(device))
    {
        // SAFETY: the driver has succeeded, so each pointer is null or points to a written value.
        unsafe { limit_to(total, gpu.view().0) };
    }
    answer
}

hooks! { of CUDA:
    cuMemGetInfo_v2(free: *mut usize, total: *mut usize) |call| { info(call, free, total) }
    cuMemGetInfo(free: *mut c_uint, total: *mut c_uint) |call| { info(call, free, total) }
    cuDeviceTotalMem_v2(bytes: *mut usize, device: Device) |call| { total(call, bytes, device) }
    cuDeviceTotalMem(bytes: *mut c_uint, device: Device) |call| { total(call, bytes, device) }
}
