//! Memory that is allocated and freed in the order of a stream. It is charged when it is asked for and given back when
//! its freeing is: what a pool keeps meanwhile is the pool's.

use super::pools::Place;
use super::{elsewhere, hooks, told};
use crate::abi::{Address, Code, Handle};
use crate::account::{Belongs, allocate, free};
use crate::driver::Stream;
use crate::shield::Ask;
use crate::{life, start};

/// Allocates from the stream's own pool, or from that which is named. What is captured becomes part of a graph, and is
/// the graph's.
fn ordered<F: Fn() -> Code>(
    ask: &Ask<F>,
    (bytes, out): (usize, *mut Address),
    pool: Option<Handle>,
    stream: Stream,
) -> Code {
    let Some(life) = life::get() else { return ask.now() };
    if stream.captured() {
        return elsewhere::uncounted(ask);
    }
    let gpu = match pool.and_then(|pool| life.pool(pool)) {
        Some(Place::Gpu(device)) => life.gpu(device),
        Some(Place::Host) => return ask.now(),
        Some(Place::Managed) if start::settings().managed_free => return ask.now(),
        Some(Place::Managed) | None => stream.device().and_then(|device| life.gpu(device)),
    };
    // SAFETY: asked for once the driver succeeded.
    allocate(ask, (life, gpu, Belongs::ToPool), bytes as u64, || unsafe { told(out) })
}

/// Frees, unless it is a graph that will.
fn ordered_free<F: Fn() -> Code>(ask: &Ask<F>, address: Address, stream: Stream) -> Code {
    if stream.captured() { ask.now() } else { free(ask, address) }
}

hooks! { of CUDA:
    cuMemAllocAsync(out: *mut Address, bytes: usize, stream: Handle) |ask| {
        ordered(ask, (bytes, out), None, Stream { handle: stream, threads: false })
    }
    cuMemAllocAsync_ptsz(out: *mut Address, bytes: usize, stream: Handle) |ask| {
        ordered(ask, (bytes, out), None, Stream { handle: stream, threads: true })
    }
    cuMemAllocFromPoolAsync(out: *mut Address, bytes: usize, pool: Handle, stream: Handle) |ask| {
        ordered(ask, (bytes, out), Some(pool), Stream { handle: stream, threads: false })
    }
    cuMemAllocFromPoolAsync_ptsz(out: *mut Address, bytes: usize, pool: Handle, stream: Handle) |ask| {
        ordered(ask, (bytes, out), Some(pool), Stream { handle: stream, threads: true })
    }
    cuMemFreeAsync(address: Address, stream: Handle) |ask| {
        ordered_free(ask, address, Stream { handle: stream, threads: false })
    }
    cuMemFreeAsync_ptsz(address: Address, stream: Handle) |ask| {
        ordered_free(ask, address, Stream { handle: stream, threads: true })
    }
}
