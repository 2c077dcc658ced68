//! Blocks of memory, each with an address, a size and a GPU. An address is reused as soon as it is
//! free.

use std::collections::HashMap;
use std::ffi::{c_int, c_uint, c_void};
use std::hash::{BuildHasherDefault, Hasher};

use crate::code::{Answer, Code};
use crate::contexts::current;
use crate::edge::{Out, calls, put};
use crate::modules::RUNS;
use crate::state::{self, Handle};
use crate::{settings, truth};

/// An address on a GPU, or the handle of an array.
pub(crate) type Address = u64;

/// First address, and (as a power of two) the distance between addresses, so that addresses are never
/// inside another block.
const FIRST: Address = 0x0010_0000_0000_0000;
const APART: u32 = 38;
/// First address in the first version of the API, with 32-bit addresses.
const OLD: Address = 0x1000_0000;
const OLD_APART: u32 = 16;

/// Size from which a copy takes time.
const LARGE: usize = 1 << 20;

/// A block of memory.
#[derive(Clone, Copy)]
pub(crate) struct Block {
    bytes: u64,
    gpu: usize,
    kind: Kind,
}

/// What ends a block's lifetime.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The block is freed with its context.
    OfContext(Handle),
    /// The block outlives contexts.
    Pooled,
    Array(Handle),
}

/// All blocks in a process.
#[derive(Default)]
pub(crate) struct Blocks {
    live: HashMap<Address, Block, BuildHasherDefault<Multiply>>,
    free: Vec<Address>,
    old_free: Vec<Address>,
    given: u64,
}

/// A hash of one number, because a driver's lookup is faster than `SipHash`.
#[derive(Default)]
pub(crate) struct Multiply(u64);

#[expect(clippy::cast_possible_truncation, reason = "half of a product is what a hash is")]
impl Hasher for Multiply {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, _: &[u8]) {}
    fn write_u64(&mut self, number: u64) {
        // Addresses end in many zero bits, but the upper half of the product does not.
        let product = u128::from(number) * 0x9E37_79B9_7F4A_7C15;
        self.0 = (product ^ (product >> 64)) as u64;
    }
}

impl Blocks {
    fn give(&mut self, block: Block, old: bool) -> Address {
        let (list, first, apart) =
            if old { (&mut self.old_free, OLD, OLD_APART) } else { (&mut self.free, FIRST, APART) };
        let address = list.pop().unwrap_or_else(|| {
            self.given += 1;
            first + (self.given << apart)
        });
        self.live.insert(address, block);
        address
    }

    fn take(&mut self, address: Address, which: impl Fn(Kind) -> bool) -> Answer {
        let block = self.live.get(&address).copied().filter(|block| which(block.kind));
        let block = block.ok_or(Code::INVALID_VALUE)?;
        self.live.remove(&address);
        if address < FIRST { &mut self.old_free } else { &mut self.free }.push(address);
        truth::release(block.gpu, block.bytes);
        Ok(())
    }

    fn take_all(&mut self, which: impl Fn(&Block) -> bool) {
        let found: Vec<Address> =
            self.live.iter().filter(|(_, block)| which(block)).map(|(address, _)| *address).collect();
        for address in found {
            let _ = self.take(address, |_| true);
        }
    }

    /// Frees the blocks that end with this context.
    pub(crate) fn free_of(&mut self, context: Handle) {
        self.take_all(|block| block.kind == Kind::OfContext(context) || block.kind == Kind::Array(context));
    }

    /// Frees the blocks that were allocated from pools on this GPU.
    pub(crate) fn free_pooled(&mut self, gpu: usize) {
        self.take_all(|block| block.kind == Kind::Pooled && block.gpu == gpu);
    }

    fn holds(&self, address: Address) -> Option<(Address, &Block)> {
        let start = address >> APART << APART;
        let block = self.live.get(&start)?;
        (address - start < block.bytes).then_some((start, block))
    }
}

/// Allocates on a GPU.
pub(crate) fn allocate(gpu: usize, bytes: u64, kind: Kind, old: bool) -> Answer<Address> {
    if bytes == 0 {
        return Err(Code::INVALID_VALUE);
    }
    truth::charge(gpu, bytes)?;
    Ok(state::lock().blocks.give(Block { bytes, gpu, kind }, old))
}

/// Allocates in the current context, which must belong to this version of the API.
pub(crate) fn in_context(bytes: u64, old: bool) -> Answer<Address> {
    let (handle, context) = current()?;
    if context.old != old {
        return Err(Code::INVALID_CONTEXT);
    }
    allocate(context.gpu, bytes, Kind::OfContext(handle), old)
}

/// Frees a block that is not an array.
pub(crate) fn free(address: Address) -> Answer {
    if address == 0 {
        return Ok(());
    }
    state::lock().blocks.take(address, |kind| !matches!(kind, Kind::Array(_)))
}

/// Frees an array.
pub(crate) fn free_array(address: Address) -> Answer {
    state::lock()
        .blocks
        .take(address, |kind| matches!(kind, Kind::Array(_)))
        .map_err(|_| Code::INVALID_HANDLE)
}

/// Returns the row length that this driver uses.
pub(crate) fn pitch(width: usize) -> Answer<usize> {
    if width == 0 { Err(Code::INVALID_VALUE) } else { Ok(width.next_multiple_of(settings::get().pitch)) }
}

/// Returns the number of bytes in this many rows.
pub(crate) fn rows(pitch: usize, height: usize) -> Answer<u64> {
    pitch.checked_mul(height).map(|bytes| bytes as u64).ok_or(Code::OUT_OF_MEMORY)
}

/// Takes time for a copy that is large, if it begins in these blocks.
fn copy(addresses: &[Address], bytes: usize) -> Answer {
    let is_block = |address: &Address| state::lock().blocks.holds(*address).is_some();
    if !addresses.iter().all(is_block) {
        return Err(Code::INVALID_VALUE);
    }
    if bytes >= LARGE {
        std::thread::park_timeout(RUNS);
    }
    Ok(())
}

calls! {
    cuMemAlloc_v2(out: Out<Address>, bytes: usize) {
        let out = out.ok_or(Code::INVALID_VALUE)?;
        put(Some(out), in_context(bytes as u64, false)?)
    }
    cuMemAllocPitch_v2(out: Out<Address>, row: Out<usize>, width: usize, height: usize, _element: c_uint) {
        let out = out.ok_or(Code::INVALID_VALUE)?;
        let pitch = pitch(width)?;
        put(row, pitch)?;
        put(Some(out), in_context(rows(pitch, height)?, false)?)
    }
    cuMemAllocManaged(out: Out<Address>, bytes: usize, _flags: c_uint) {
        let out = out.ok_or(Code::INVALID_VALUE)?;
        put(Some(out), in_context(bytes as u64, false)?)
    }
    cuMemFree_v2(address: Address) { free(address) }
    cuMemGetAddressRange_v2(base: Out<Address>, size: Out<usize>, address: Address) {
        let state = state::lock();
        let (start, block) = state.blocks.holds(address).ok_or(Code::INVALID_VALUE)?;
        base.map(|base| base.write(start));
        size.map(|size| size.write(usize::try_from(block.bytes).unwrap_or(usize::MAX)));
        Ok(())
    }
    cuPointerGetAttribute(out: Out<c_uint>, _attribute: c_int, address: Address) {
        state::lock().blocks.holds(address).ok_or(Code::INVALID_VALUE)?;
        // CU_MEMORYTYPE_DEVICE
        put(out, 2)
    }
    cuMemcpyHtoD_v2(address: Address, _from: *const c_void, bytes: usize) { copy(&[address], bytes) }
    cuMemcpyDtoDAsync_v2(to: Address, from: Address, bytes: usize, _stream: Handle) { copy(&[to, from], bytes) }
    cuMemsetD8_v2(address: Address, _value: u8, _bytes: usize) {
        state::lock().blocks.holds(address).map(drop).ok_or(Code::INVALID_VALUE)
    }
}
