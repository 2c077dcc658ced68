//! Hooks for stream-ordered memory. It is charged when the allocation function is called and released
//! when the free function is called. The reserve of a pool is not charged.

use super::{hooks, read_output, uncounted_memory};
use crate::abi::{Address, Code, Handle};
use crate::account::{Ownership, allocate, free};
use crate::driver::Stream;
use crate::panic_guard::DriverCall;
use crate::pools::PoolLocation;
use crate::{environment, state};

/// Allocates from the stream's pool or from a given pool. A captured allocation becomes part of a graph.
fn ordered<F: Fn() -> Code>(
    call: &DriverCall<F>,
    (bytes, out): (usize, *mut Address),
    pool: Option<Handle>,
    stream: Stream,
) -> Code {
    let Some(state) = state::get() else { return call.result() };
    if stream.captured() {
        return uncounted_memory::uncounted(call);
    }
    let gpu = match pool.and_then(|pool| state.pool(pool)) {
        Some(PoolLocation::Gpu(device)) => state.gpu(device),
        Some(PoolLocation::Host) => return call.result(),
        Some(PoolLocation::Managed) if environment::settings().managed_free => return call.result(),
        Some(PoolLocation::Managed) | None => stream.device().and_then(|device| state.gpu(device)),
    };
    // SAFETY: runs only after the driver has succeeded and written `out`.
    allocate(call, (state, gpu, Ownership::Pool), bytes as u64, || unsafe { read_output(out) })
}

/// Frees memory. A captured free is executed later by the graph, so it is not recorded.
fn ordered_free<F: Fn() -> Code>(call: &DriverCall<F>, address: Address, stream: Stream) -> Code {
    if stream.captured() { call.result() } else { free(call, address) }
}

hooks! { of CUDA:
    cuMemAllocAsync(out: *mut Address, bytes: usize, stream: Handle) |call| {
        ordered(call, (bytes, out), None, Stream { handle: stream, threads: false })
    }
    cuMemAllocAsync_ptsz(out: *mut Address, bytes: usize, stream: Handle) |call| {
        ordered(call, (bytes, out), None, Stream { handle: stream, threads: true })
    }
    cuMemAllocFromPoolAsync(out: *mut Address, bytes: usize, pool: Handle, stream: Handle) |call| {
        ordered(call, (bytes, out), Some(pool), Stream { handle: stream, threads: false })
    }
    cuMemAllocFromPoolAsync_ptsz(out: *mut Address, bytes: usize, pool: Handle, stream: Handle) |call| {
        ordered(call, (bytes, out), Some(pool), Stream { handle: stream, threads: true })
    }
    cuMemFreeAsync(address: Address, stream: Handle) |call| {
        ordered_free(call, address, Stream { handle: stream, threads: false })
    }
    cuMemFreeAsync_ptsz(address: Address, stream: Handle) |call| {
        ordered_free(call, address, Stream { handle: stream, threads: true })
    }
}
