//! Memory pools and the allocations from them, stream-ordered or not.

use std::ffi::{c_int, c_void};

use crate::code::{Answer, Code};
use crate::edge::{In, Out, calls, put};
use crate::memory::{self, Address, Kind, allocate};
use crate::state::{self, Handle, State};
use crate::streams::{self, Order};
use crate::{contexts, devices};

/// Location of memory: `CUmemLocation`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Location {
    pub(crate) kind: c_int,
    pub(crate) id: c_int,
}

impl Location {
    const DEVICE: c_int = 1;

    /// Returns the GPU, if the location is on a GPU.
    pub(crate) fn gpu(self) -> Answer<Option<usize>> {
        match self.kind {
            Self::DEVICE => devices::gpu(self.id).map(Some),
            // A part of a GPU. The low byte of the id is the GPU.
            6 => devices::gpu(self.id & 0xff).map(Some),
            0 | 2..=4 => Ok(None),
            _ => Err(Code::INVALID_VALUE),
        }
    }
}

/// The first fields of `CUmemPoolProps`.
#[repr(C)]
struct Properties {
    allocation: c_int,
    handles: c_int,
    location: Location,
}

/// A pool.
#[derive(Clone, Copy)]
pub(crate) struct Pool {
    /// `None` for memory on the host.
    gpu: Option<usize>,
    managed: bool,
}

fn default_pool(state: &mut State, gpu: usize) -> Handle {
    // The handle is fixed and below all handles that are assigned.
    let handle = 0x1000 + gpu * 16;
    state.pools.entry(handle).or_insert(Pool { gpu: Some(gpu), managed: false });
    handle
}

fn current_pool(gpu: usize) -> Handle {
    let mut state = state::lock();
    match state.current_pools[gpu] {
        Some(pool) => pool,
        None => default_pool(&mut state, gpu),
    }
}

fn from_pool(out: Out<Address>, bytes: usize, pool: Handle, order: Order) -> Answer {
    let out = out.ok_or(Code::INVALID_VALUE)?;
    let pool = *state::lock().pools.get(&pool).ok_or(Code::INVALID_VALUE)?;
    if order.captured() {
        // The memory belongs to the graph and is not allocated before the graph runs.
        return put(Some(out), 0x7000_0000_0000);
    }
    let gpu = match pool.gpu {
        Some(gpu) => gpu,
        None if pool.managed => contexts::current()?.1.gpu,
        None => return put(Some(out), 0x6000_0000_0000),
    };
    put(Some(out), allocate(gpu, bytes as u64, Kind::Pooled, false)?)
}

fn from_stream(out: Out<Address>, bytes: usize, order: Order) -> Answer {
    let pool = current_pool(order.gpu()?);
    from_pool(out, bytes, pool, order)
}

fn free(address: Address, order: Order) -> Answer {
    if order.captured() { Ok(()) } else { memory::free(address) }
}

fn set(gpu: usize, pool: Handle) -> Answer {
    let mut state = state::lock();
    let local = state.pools.get(&pool).is_some_and(|pool| pool.gpu == Some(gpu));
    state.current_pools[gpu] = Some(pool);
    if local { Ok(()) } else { Err(Code::INVALID_VALUE) }
}

/// Returns the GPU of a location, for calls that support no other locations here.
fn located(location: In<Location>) -> Answer<usize> {
    location.ok_or(Code::INVALID_VALUE)?.gpu()?.ok_or(Code::NOT_SUPPORTED)
}

calls! {
    cuMemPoolCreate(out: Out<Handle>, properties: In<Properties>) {
        let properties = properties.ok_or(Code::INVALID_VALUE)?;
        let pool = Pool { gpu: properties.location.gpu()?, managed: properties.allocation == 2 };
        let mut state = state::lock();
        let handle = state.name();
        state.pools.insert(handle, pool);
        put(out, handle)
    }
    cuMemPoolDestroy(pool: Handle) { state::lock().pools.remove(&pool).map(drop).ok_or(Code::INVALID_VALUE) }
    cuDeviceGetDefaultMemPool(out: Out<Handle>, device: c_int) {
        let gpu = devices::gpu(device)?;
        put(out, default_pool(&mut state::lock(), gpu))
    }
    cuDeviceGetMemPool(out: Out<Handle>, device: c_int) { put(out, current_pool(devices::gpu(device)?)) }
    cuDeviceSetMemPool(device: c_int, pool: Handle) { set(devices::gpu(device)?, pool) }
    cuMemGetDefaultMemPool(out: Out<Handle>, location: In<Location>, _allocation: c_int) {
        let gpu = located(location)?;
        put(out, default_pool(&mut state::lock(), gpu))
    }
    cuMemGetMemPool(out: Out<Handle>, location: In<Location>, _allocation: c_int) {
        put(out, current_pool(located(location)?))
    }
    cuMemSetMemPool(location: In<Location>, _allocation: c_int, pool: Handle) { set(located(location)?, pool) }
    cuMemPoolTrimTo(_pool: Handle, _keep: usize) { Ok(()) }
    cuMemPoolSetAttribute(_pool: Handle, _attribute: c_int, _value: *const c_void) { Ok(()) }
    cuMemPoolImportPointer(out: Out<Address>, _pool: Handle, _data: *const c_void) { put(out, 0x5000_0000_0000) }
    cuMemAllocAsync(out: Out<Address>, bytes: usize, stream: Handle) {
        from_stream(out, bytes, streams::order(stream, false))
    }
    cuMemAllocAsync_ptsz(out: Out<Address>, bytes: usize, stream: Handle) {
        from_stream(out, bytes, streams::order(stream, true))
    }
    cuMemAllocFromPoolAsync(out: Out<Address>, bytes: usize, pool: Handle, stream: Handle) {
        from_pool(out, bytes, pool, streams::order(stream, false))
    }
    cuMemAllocFromPoolAsync_ptsz(out: Out<Address>, bytes: usize, pool: Handle, stream: Handle) {
        from_pool(out, bytes, pool, streams::order(stream, true))
    }
    cuMemFreeAsync(address: Address, stream: Handle) { free(address, streams::order(stream, false)) }
    cuMemFreeAsync_ptsz(address: Address, stream: Handle) { free(address, streams::order(stream, true)) }
}
