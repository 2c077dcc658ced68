//! Hooks for memory pools, which record the GPU of each pool. The reserve of a pool is not charged.

use std::ffi::{c_int, c_void};
use std::sync::PoisonError;

use super::{hooks, read_input, read_output};
use crate::abi::{Code, Device, Handle, Location, Properties};
use crate::panic_guard::DriverCall;
use crate::pools::PoolLocation;
use crate::state;

fn record_pool(pool: Handle, place: PoolLocation) {
    if let Some(state) = state::get() {
        state.pools.lock().unwrap_or_else(PoisonError::into_inner).put(pool, place);
    }
}

/// Calls the driver to get a pool, and records the location of the pool's memory.
fn with_pool<F: Fn() -> Code>(call: &DriverCall<F>, out: *const Handle, place: Option<PoolLocation>) -> Code {
    let answer = call.result();
    if let (true, Some(place)) = (answer.is_success(), place) {
        // SAFETY: the driver has succeeded and written `out`.
        record_pool(unsafe { read_output(out) }, place);
    }
    answer
}

/// Returns the location of a pool's memory, from the arguments of a call.
///
/// # Safety
/// `location` must be null or valid for the duration of the call.
unsafe fn pool_location(location: *const Location, allocation: c_int) -> Option<PoolLocation> {
    // SAFETY: guaranteed by the caller.
    let location = unsafe { read_input(location) }?;
    Some(PoolLocation::of(*location, Properties { allocation, handles: 0, location: *location }.managed()))
}

hooks! { of CUDA:
    cuMemPoolCreate(out: *mut Handle, properties: *const Properties) |call| {
        // SAFETY: null or valid, because the driver reads the same argument.
        let properties = unsafe { read_input(properties) };
        with_pool(call, out, properties.map(|properties| PoolLocation::of(properties.location, properties.managed())))
    }
    cuMemPoolDestroy(pool: Handle) |call| {
        let before = state::get()
            .and_then(|state| state.pools.lock().unwrap_or_else(PoisonError::into_inner).take(pool));
        let answer = call.result();
        if let (false, Some(place)) = (answer.is_success(), before) {
            record_pool(pool, place);
        }
        answer
    }
    cuDeviceGetDefaultMemPool(out: *mut Handle, device: Device) |call| {
        with_pool(call, out, Some(PoolLocation::Gpu(device)))
    }
    cuDeviceGetMemPool(out: *mut Handle, device: Device) |call| {
        with_pool(call, out, Some(PoolLocation::Gpu(device)))
    }
    cuDeviceSetMemPool(device: Device, pool: Handle) |call| {
        let answer = call.result();
        if answer.is_success() {
            record_pool(pool, PoolLocation::Gpu(device));
        }
        answer
    }
    cuMemGetDefaultMemPool(out: *mut Handle, location: *const Location, allocation: c_int) |call| {
        // SAFETY: null or valid, because the driver reads the same argument.
        with_pool(call, out, unsafe { pool_location(location, allocation) })
    }
    cuMemGetMemPool(out: *mut Handle, location: *const Location, allocation: c_int) |call| {
        // SAFETY: null or valid, because the driver reads the same argument.
        with_pool(call, out, unsafe { pool_location(location, allocation) })
    }
    cuMemSetMemPool(location: *const Location, allocation: c_int, pool: Handle) |call| {
        // SAFETY: null or valid, because the driver reads the same argument.
        let place = unsafe { pool_location(location, allocation) };
        let answer = call.result();
        if let (true, Some(place)) = (answer.is_success(), place) {
            record_pool(pool, place);
        }
        answer
    }
    cuMemPoolImportPointer(out: *mut u64, pool: Handle, data: *const c_void) |call| {
        super::uncounted_memory::uncounted(call)
    }
}
