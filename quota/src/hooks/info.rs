//! How much memory there is: no more than the quota, so that programs which take all that there is take what they may.

use std::ffi::c_uint;

use super::hooks;
use crate::abi::{Code, Device};
use crate::life::{self, Life};
use crate::shield::Ask;

/// Makes a figure of the caller's no larger than this. Null is a figure that was not asked for.
///
/// # Safety
/// Null, or the driver has put a figure there.
unsafe fn lessen<T: Copy + PartialOrd + TryFrom<u64>>(figure: *mut T, most: u64) {
    // SAFETY: as the caller says.
    let Some(figure) = (unsafe { figure.as_mut() }) else { return };
    // What is too large for the type is no limit to it.
    if let Some(most) = T::try_from(most).ok().filter(|most| most < figure) {
        *figure = most;
    }
}

fn info<F: Fn() -> Code, T: Copy + PartialOrd + TryFrom<u64>>(
    ask: &Ask<F>,
    free: *mut T,
    total: *mut T,
) -> Code {
    let answer = ask.now();
    if answer.is_success()
        && let Some(gpu) = life::get().and_then(Life::current_gpu)
    {
        gpu.open();
        let (limit, used) = gpu.view();
        // SAFETY: the driver succeeded.
        unsafe {
            lessen(free, limit.saturating_sub(used));
            lessen(total, limit);
        }
    }
    answer
}

fn total<F: Fn() -> Code, T: Copy + PartialOrd + TryFrom<u64>>(
    ask: &Ask<F>,
    total: *mut T,
    device: Device,
) -> Code {
    let answer = ask.now();
    if answer.is_success()
        && let Some(gpu) = life::get().and_then(|life| life.gpu(device))
    {
        // SAFETY: the driver succeeded.
        unsafe { lessen(total, gpu.view().0) };
    }
    answer
}

hooks! { of CUDA:
    cuMemGetInfo_v2(free: *mut usize, total: *mut usize) |ask| { info(ask, free, total) }
    cuMemGetInfo(free: *mut c_uint, total: *mut c_uint) |ask| { info(ask, free, total) }
    cuDeviceTotalMem_v2(bytes: *mut usize, device: Device) |ask| { total(ask, bytes, device) }
    cuDeviceTotalMem(bytes: *mut c_uint, device: Device) |ask| { total(ask, bytes, device) }
}
