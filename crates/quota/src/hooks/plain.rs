//! Hooks for functions that allocate memory in a context: linear, pitched and managed memory, and
//! memory with 32-bit addresses.

use std::ffi::c_uint;

use super::{hooks, read_output};
use crate::abi::{Address, Code, OldAddress};
use crate::account::{Ownership, allocate, allocate_rows, free};
use crate::panic_guard::DriverCall;
use crate::{environment, state};

fn plain<F: Fn() -> Code>(call: &DriverCall<F>, bytes: u64, read_result: impl FnOnce() -> Address) -> Code {
    match state::get() {
        Some(state) => allocate(call, (state, state.current_gpu(), Ownership::Context), bytes, read_result),
        None => call.result(),
    }
}

hooks! { of CUDA:
    cuMemAlloc_v2(out: *mut Address, bytes: usize) |call| {
        // SAFETY: runs only after the driver has succeeded and written its results.
        plain(call, bytes as u64, || unsafe { read_output(out) })
    }
    cuMemAllocManaged(out: *mut Address, bytes: usize, flags: c_uint) |call| {
        if environment::settings().managed_free {
            return call.result();
        }
        // SAFETY: runs only after the driver has succeeded and written its results.
        plain(call, bytes as u64, || unsafe { read_output(out) })
    }
    cuMemAllocPitch_v2(out: *mut Address, row: *mut usize, width: usize, height: usize, element: c_uint) |call| {
        // SAFETY: runs only after the driver has succeeded and written its results.
        let read_result = || unsafe { (read_output(out), (read_output(row) as u64).saturating_mul(height as u64)) };
        allocate_rows(call, (width as u64, height as u64), read_result)
    }
    cuMemFree_v2(address: Address) |call| { free(call, address) }
    cuMemAlloc(out: *mut OldAddress, bytes: c_uint) |call| {
        // SAFETY: runs only after the driver has succeeded and written its results.
        plain(call, bytes.into(), || unsafe { read_output(out) }.into())
    }
    cuMemAllocPitch(
        out: *mut OldAddress, row: *mut c_uint, width: c_uint, height: c_uint, element: c_uint
    ) |call| {
        // SAFETY: runs only after the driver has succeeded and written its results.
        let read_result =
            || unsafe { (read_output(out).into(), u64::from(read_output(row)).saturating_mul(height.into())) };
        allocate_rows(call, (width.into(), height.into()), read_result)
    }
    cuMemFree(address: OldAddress) |call| { free(call, address.into()) }
}
