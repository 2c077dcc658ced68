//! Physical memory with handles, and what it is mapped to.

use std::collections::HashMap;
use std::ffi::{c_int, c_uint, c_void};
use std::sync::{MutexGuard, PoisonError};

use super::{given, hooks, told};
use crate::abi::{Address, ArrayMap, Code, Handle, Location, MemoryHandle, Properties};
use crate::account::grant;
use crate::life::{self, Life};
use crate::shield::Ask;
use crate::vmm::{How, Memory, Vmm};

fn vmm(life: &Life) -> MutexGuard<'_, Vmm> {
    life.vmm.lock().unwrap_or_else(PoisonError::into_inner)
}

fn give_back(life: &'static Life, gone: impl IntoIterator<Item = Memory>) {
    for memory in gone {
        if let Some(gpu) = life.gpu(memory.device) {
            gpu.freed(memory.bytes);
        }
    }
}

/// Releases a handle; what could have been its memory's last is forgotten before the driver may give it to another.
fn release<F: Fn() -> Code>(ask: &Ask<F>, handle: MemoryHandle) -> Code {
    let Some(life) = life::get() else { return ask.now() };
    let gone = vmm(life).let_go(handle, How::ByHandle);
    let answer = ask.now();
    if answer.is_success() {
        give_back(life, gone);
    } else {
        vmm(life).restore(handle, gone, How::ByHandle);
    }
    answer
}

/// Maps memory of ours to an address; it is held before, since it may be released meanwhile.
fn map<F: Fn() -> Code>(ask: &Ask<F>, (address, bytes): (Address, u64), handle: MemoryHandle) -> Code {
    let Some(life) = life::get().filter(|life| vmm(life).hold(handle, How::Mapped)) else { return ask.now() };
    let answer = ask.now();
    if answer.is_success() {
        vmm(life).mapped(address, bytes, handle);
    } else {
        let gone = vmm(life).let_go(handle, How::Mapped);
        give_back(life, gone);
    }
    answer
}

fn unmap<F: Fn() -> Code>(ask: &Ask<F>, (address, bytes): (Address, u64)) -> Code {
    let Some((life, undone)) =
        life::get().and_then(|life| Some((life, vmm(life).unmap(address, bytes).ok()?)))
    else {
        return ask.now();
    };
    let answer = ask.now();
    if answer.is_success() {
        let gone: HashMap<MemoryHandle, Memory> = vmm(life).unmapped(&undone);
        give_back(life, gone.into_values());
    } else {
        vmm(life).remap(undone);
    }
    answer
}

/// One more handle to what is mapped at an address.
fn retain<F: Fn() -> Code>(ask: &Ask<F>, out: *const MemoryHandle, address: Address) -> Code {
    let Some(life) = life::get() else { return ask.now() };
    let held = {
        let mut vmm = vmm(life);
        vmm.at(address).filter(|handle| vmm.hold(*handle, How::ByHandle))
    };
    let answer = ask.now();
    // SAFETY: asked for once the driver succeeded.
    let same = answer.is_success() && held == Some(unsafe { told(out) });
    if let (false, Some(handle)) = (same, held) {
        let gone = vmm(life).let_go(handle, How::ByHandle);
        give_back(life, gone);
    }
    answer
}

/// What a list of changes maps is held before, and what it replaces or undoes is let go after.
fn map_arrays<F: Fn() -> Code>(ask: &Ask<F>, changes: &[ArrayMap]) -> Code {
    let Some(life) = life::get() else { return ask.now() };
    let maps = || changes.iter().filter(|change| change.maps());
    for change in maps() {
        vmm(life).hold(change.handle, How::Mapped);
    }
    let answer = ask.now();
    let mut tiles = life.tiles.lock().unwrap_or_else(PoisonError::into_inner);
    let ended: Vec<MemoryHandle> = if answer.is_success() {
        changes.iter().filter_map(|change| tiles.change(change)).collect()
    } else {
        maps().map(|change| change.handle).collect()
    };
    drop(tiles);
    forget(life, ended);
    answer
}

/// Mappings that are no more.
fn forget(life: &'static Life, ended: Vec<MemoryHandle>) {
    let gone: Vec<Memory> =
        ended.into_iter().filter_map(|handle| vmm(life).let_go(handle, How::Mapped)).collect();
    give_back(life, gone);
}

/// An array is gone, and what was mapped to it is not any more.
pub(super) fn array_is_gone(array: Address) {
    if let Some(life) = life::get() {
        let ended = life.tiles.lock().unwrap_or_else(PoisonError::into_inner).forget(array);
        forget(life, ended);
    }
}

/// The caller's list.
///
/// # Safety
/// Null, or as many as it says, for as long as the call lasts.
unsafe fn list<'a>(changes: *const ArrayMap, count: c_uint) -> &'a [ArrayMap] {
    if changes.is_null() || !changes.is_aligned() {
        return &[];
    }
    // SAFETY: not null, and the driver is told the same.
    unsafe { std::slice::from_raw_parts(changes, usize::try_from(count).unwrap_or(0)) }
}

hooks! { of CUDA:
    cuMemCreate(out: *mut MemoryHandle, bytes: usize, properties: *const Properties, flags: u64) |ask| {
        // SAFETY: the driver reads it too.
        let location = unsafe { given(properties) }.map(|properties| properties.location);
        let device = location.and_then(Location::device);
        let Some((life, device)) = life::get().zip(device) else { return ask.now() };
        grant(ask, (life.gpu(device), bytes as u64), |device| {
            // SAFETY: the driver succeeded.
            let handle = unsafe { told(out) };
            let before = vmm(life).made(handle, bytes as u64, device);
            give_back(life, before);
            handle
        })
    }
    cuMemRelease(handle: MemoryHandle) |ask| { release(ask, handle) }
    cuMemMap(address: Address, bytes: usize, offset: usize, handle: MemoryHandle, flags: u64) |ask| {
        map(ask, (address, bytes as u64), handle)
    }
    cuMemUnmap(address: Address, bytes: usize) |ask| { unmap(ask, (address, bytes as u64)) }
    cuMemRetainAllocationHandle(out: *mut MemoryHandle, address: Address) |ask| { retain(ask, out, address) }
    cuMemImportFromShareableHandle(out: *mut MemoryHandle, exported: *mut c_void, kind: c_int) |ask| {
        let answer = super::elsewhere::uncounted(ask);
        if let (true, Some(life)) = (answer.is_success(), life::get()) {
            // SAFETY: the driver succeeded. It may be memory of ours that comes back.
            vmm(life).hold(unsafe { told(out) }, How::ByHandle);
        }
        answer
    }
    cuMemMapArrayAsync(changes: *const ArrayMap, count: c_uint, stream: Handle) |ask| {
        // SAFETY: the driver reads it too.
        map_arrays(ask, unsafe { list(changes, count) })
    }
    cuMemMapArrayAsync_ptsz(changes: *const ArrayMap, count: c_uint, stream: Handle) |ask| {
        // SAFETY: the driver reads it too.
        map_arrays(ask, unsafe { list(changes, count) })
    }
}
