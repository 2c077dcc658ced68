//! Hooks for functions that create physical memory with handles and map it.

use std::collections::HashMap;
use std::ffi::{c_int, c_uint, c_void};
use std::sync::{MutexGuard, PoisonError};

use super::{hooks, read_input, read_output};
use crate::abi::{Address, ArrayMap, Code, Handle, Location, MemoryHandle, Properties};
use crate::account::grant;
use crate::panic_guard::DriverCall;
use crate::state::{self, ProcessState};
use crate::vmm::{Memory, Reference, Vmm};

fn vmm(state: &ProcessState) -> MutexGuard<'_, Vmm> {
    state.vmm.lock().unwrap_or_else(PoisonError::into_inner)
}

fn give_back(state: &'static ProcessState, gone: impl IntoIterator<Item = Memory>) {
    for memory in gone {
        if let Some(gpu) = state.gpu(memory.device) {
            gpu.freed(memory.bytes);
        }
    }
}

/// Releases a handle. Its entry is removed before the driver call, because the driver may reassign it at once.
fn release<F: Fn() -> Code>(call: &DriverCall<F>, handle: MemoryHandle) -> Code {
    let Some(state) = state::get() else { return call.result() };
    let gone = vmm(state).drop_reference(handle, Reference::Handle);
    let answer = call.result();
    if answer.is_success() {
        give_back(state, gone);
    } else {
        vmm(state).restore(handle, gone, Reference::Handle);
    }
    answer
}

/// Maps memory to an address. The reference is added first, because the handle may be released meanwhile.
fn map<F: Fn() -> Code>(
    call: &DriverCall<F>,
    (address, bytes): (Address, u64),
    handle: MemoryHandle,
) -> Code {
    let Some(state) = state::get().filter(|state| vmm(state).add_reference(handle, Reference::Mapped)) else {
        return call.result();
    };
    let answer = call.result();
    if answer.is_success() {
        vmm(state).mapped(address, bytes, handle);
    } else {
        let gone = vmm(state).drop_reference(handle, Reference::Mapped);
        give_back(state, gone);
    }
    answer
}

fn unmap<F: Fn() -> Code>(call: &DriverCall<F>, (address, bytes): (Address, u64)) -> Code {
    let Some((state, unmapped_range)) =
        state::get().and_then(|state| Some((state, vmm(state).unmap(address, bytes).ok()?)))
    else {
        return call.result();
    };
    let answer = call.result();
    if answer.is_success() {
        let gone: HashMap<MemoryHandle, Memory> = vmm(state).unmapped(&unmapped_range);
        give_back(state, gone.into_values());
    } else {
        vmm(state).remap(unmapped_range);
    }
    answer
}

/// Retains the memory that is mapped at an address, which adds a handle.
fn retain<F: Fn() -> Code>(call: &DriverCall<F>, out: *const MemoryHandle, address: Address) -> Code {
    let Some(state) = state::get() else { return call.result() };
    let held = {
        let mut vmm = vmm(state);
        vmm.at(address).filter(|handle| vmm.add_reference(*handle, Reference::Handle))
    };
    let answer = call.result();
    // SAFETY: read only after the driver has succeeded and written `out`.
    let same = answer.is_success() && held == Some(unsafe { read_output(out) });
    if let (false, Some(handle)) = (same, held) {
        let gone = vmm(state).drop_reference(handle, Reference::Handle);
        give_back(state, gone);
    }
    answer
}

/// Changes mappings of sparse arrays. References for new mappings are added before the driver call.
/// References for replaced or removed mappings are dropped after it.
fn map_arrays<F: Fn() -> Code>(call: &DriverCall<F>, changes: &[ArrayMap]) -> Code {
    let Some(state) = state::get() else { return call.result() };
    let maps = || changes.iter().filter(|change| change.maps());
    for change in maps() {
        vmm(state).add_reference(change.handle, Reference::Mapped);
    }
    let answer = call.result();
    let mut sparse_map = state.sparse_map.lock().unwrap_or_else(PoisonError::into_inner);
    let ended: Vec<MemoryHandle> = if answer.is_success() {
        changes.iter().filter_map(|change| sparse_map.change(change)).collect()
    } else {
        maps().map(|change| change.handle).collect()
    };
    drop(sparse_map);
    forget(state, ended);
    answer
}

/// Drops the references of removed mappings, and releases memory that has no other reference.
fn forget(state: &'static ProcessState, ended: Vec<MemoryHandle>) {
    let gone: Vec<Memory> =
        ended.into_iter().filter_map(|handle| vmm(state).drop_reference(handle, Reference::Mapped)).collect();
    give_back(state, gone);
}

/// Removes all mappings to an array that was destroyed.
pub(super) fn array_is_gone(array: Address) {
    if let Some(state) = state::get() {
        let ended = state.sparse_map.lock().unwrap_or_else(PoisonError::into_inner).forget(array);
        forget(state, ended);
    }
}

/// Returns the caller's list of changes.
///
/// # Safety
/// `changes` must be null or a list of this length that is valid for the duration of the call.
unsafe fn list<'a>(changes: *const ArrayMap, count: c_uint) -> &'a [ArrayMap] {
    if changes.is_null() || !changes.is_aligned() {
        return &[];
    }
    // SAFETY: the list is not null, and is valid because the driver reads it too.
    unsafe { std::slice::from_raw_parts(changes, usize::try_from(count).unwrap_or(0)) }
}

hooks! { of CUDA:
    cuMemCreate(out: *mut MemoryHandle, bytes: usize, properties: *const Properties, flags: u64) |call| {
        // SAFETY: null or valid, because the driver reads the same argument.
        let location = unsafe { read_input(properties) }.map(|properties| properties.location);
        let device = location.and_then(Location::device);
        let Some((state, device)) = state::get().zip(device) else { return call.result() };
        grant(call, (state.gpu(device), bytes as u64), |device| {
            // SAFETY: the driver has succeeded and written `out`.
            let handle = unsafe { read_output(out) };
            let before = vmm(state).made(handle, bytes as u64, device);
            give_back(state, before);
            handle
        })
    }
    cuMemRelease(handle: MemoryHandle) |call| { release(call, handle) }
    cuMemMap(address: Address, bytes: usize, offset: usize, handle: MemoryHandle, flags: u64) |call| {
        map(call, (address, bytes as u64), handle)
    }
    cuMemUnmap(address: Address, bytes: usize) |call| { unmap(call, (address, bytes as u64)) }
    cuMemRetainAllocationHandle(out: *mut MemoryHandle, address: Address) |call| { retain(call, out, address) }
    cuMemImportFromShareableHandle(out: *mut MemoryHandle, exported: *mut c_void, kind: c_int) |call| {
        let answer = super::uncounted_memory::uncounted(call);
        if let (true, Some(state)) = (answer.is_success(), state::get()) {
            // SAFETY: the driver has succeeded. It might return memory that this process itself exported.
            vmm(state).add_reference(unsafe { read_output(out) }, Reference::Handle);
        }
        answer
    }
    cuMemMapArrayAsync(changes: *const ArrayMap, count: c_uint, stream: Handle) |call| {
        // SAFETY: null or valid, because the driver reads the same argument.
        map_arrays(call, unsafe { list(changes, count) })
    }
    cuMemMapArrayAsync_ptsz(changes: *const ArrayMap, count: c_uint, stream: Handle) |call| {
        // SAFETY: null or valid, because the driver reads the same argument.
        map_arrays(call, unsafe { list(changes, count) })
    }
}
