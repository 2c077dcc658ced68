//! Memory of a context: plain, in rows, managed; and the first version, whose addresses have 32 bits.

use std::ffi::c_uint;

use super::{hooks, told};
use crate::abi::{Address, Code, OldAddress};
use crate::account::{Belongs, allocate, allocate_rows, free};
use crate::shield::Ask;
use crate::{life, start};

fn plain<F: Fn() -> Code>(ask: &Ask<F>, bytes: u64, given: impl FnOnce() -> Address) -> Code {
    match life::get() {
        Some(life) => allocate(ask, (life, life.current_gpu(), Belongs::ToContext), bytes, given),
        None => ask.now(),
    }
}

hooks! { of CUDA:
    cuMemAlloc_v2(out: *mut Address, bytes: usize) |ask| {
        // SAFETY: asked for once the driver succeeded.
        plain(ask, bytes as u64, || unsafe { told(out) })
    }
    cuMemAllocManaged(out: *mut Address, bytes: usize, flags: c_uint) |ask| {
        if start::settings().managed_free {
            return ask.now();
        }
        // SAFETY: asked for once the driver succeeded.
        plain(ask, bytes as u64, || unsafe { told(out) })
    }
    cuMemAllocPitch_v2(out: *mut Address, row: *mut usize, width: usize, height: usize, element: c_uint) |ask| {
        // SAFETY: asked for once the driver succeeded.
        let given = || unsafe { (told(out), (told(row) as u64).saturating_mul(height as u64)) };
        allocate_rows(ask, (width as u64, height as u64), given)
    }
    cuMemFree_v2(address: Address) |ask| { free(ask, address) }
    cuMemAlloc(out: *mut OldAddress, bytes: c_uint) |ask| {
        // SAFETY: asked for once the driver succeeded.
        plain(ask, bytes.into(), || unsafe { told(out) }.into())
    }
    cuMemAllocPitch(
        out: *mut OldAddress, row: *mut c_uint, width: c_uint, height: c_uint, element: c_uint
    ) |ask| {
        // SAFETY: asked for once the driver succeeded.
        let given = || unsafe { (told(out).into(), u64::from(told(row)).saturating_mul(height.into())) };
        allocate_rows(ask, (width.into(), height.into()), given)
    }
    cuMemFree(address: OldAddress) |ask| { free(ask, address.into()) }
}
