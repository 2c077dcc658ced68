//! Physical memory with handles, mapped to addresses or arrays. It exists until its last handle and its last mapping
//! are gone.

use std::collections::{BTreeMap, HashMap};
use std::ffi::{c_int, c_uint, c_void};

use crate::code::{Answer, Code};
use crate::edge::{In, List, Out, calls, put};
use crate::memory::Address;
use crate::pools::Location;
use crate::state::{self, Handle, State};
use crate::truth;

/// The first fields of `CUmemAllocationProp`.
#[repr(C)]
struct Properties {
    kind: c_int,
    handles: c_int,
    location: Location,
}

/// `CUarrayMapInfo`
#[repr(C)]
struct Tile {
    place: [u64; 7],
    operation: c_int,
    handle_kind: c_int,
    handle: u64,
    offset: u64,
    devices: c_uint,
    rest: [c_uint; 3],
}

/// All physical memory in a process.
#[derive(Default)]
pub(crate) struct Vmm {
    memory: HashMap<u64, Memory>,
    mapped: BTreeMap<Address, (u64, u64)>,
    tiles: HashMap<[u64; 7], u64>,
    reserved: u64,
}

struct Memory {
    bytes: u64,
    gpu: Option<usize>,
    handles: u32,
    maps: u32,
}

const FIRST: Address = 0x0020_0000_0000_0000;
const GRANULARITY: u64 = 2 << 20;

impl Vmm {
    fn of(&mut self, handle: u64) -> Answer<&mut Memory> {
        self.memory.get_mut(&handle).ok_or(Code::INVALID_VALUE)
    }

    fn drop_if_unused(&mut self, handle: u64) {
        let Some(memory) = self.memory.get(&handle).filter(|memory| memory.handles + memory.maps == 0) else {
            return;
        };
        if let Some(gpu) = memory.gpu {
            truth::release(gpu, memory.bytes);
        }
        self.memory.remove(&handle);
    }

    fn release(&mut self, handle: u64) -> Answer {
        let memory = self.of(handle)?;
        memory.handles = memory.handles.checked_sub(1).ok_or(Code::INVALID_VALUE)?;
        self.drop_if_unused(handle);
        Ok(())
    }

    fn map(&mut self, at: Address, bytes: u64, handle: u64) -> Answer {
        if self.mapped.range(at..at + bytes).next().is_some() {
            return Err(Code::INVALID_VALUE);
        }
        self.of(handle)?.maps += 1;
        self.mapped.insert(at, (bytes, handle));
        Ok(())
    }

    fn unmap(&mut self, at: Address, bytes: u64) -> Answer {
        let found: Vec<Address> = self.mapped.range(at..at + bytes).map(|(at, _)| *at).collect();
        if found.is_empty() {
            return Err(Code::INVALID_VALUE);
        }
        for (_, handle) in found.iter().filter_map(|at| self.mapped.remove(at)).collect::<Vec<_>>() {
            self.unused_once(handle);
        }
        Ok(())
    }

    fn unused_once(&mut self, handle: u64) {
        if let Ok(memory) = self.of(handle) {
            memory.maps -= 1;
        }
        self.drop_if_unused(handle);
    }

    /// Removes the mappings to an array that was destroyed.
    pub(crate) fn array_is_gone(&mut self, array: Address) {
        let gone: Vec<u64> =
            self.tiles.extract_if(|place, _| place[1] == array).map(|(_, handle)| handle).collect();
        for handle in gone {
            self.unused_once(handle);
        }
    }

    fn tile(&mut self, tile: &Tile) -> Answer {
        let before = if tile.operation == 1 {
            self.of(tile.handle)?.maps += 1;
            self.tiles.insert(tile.place, tile.handle)
        } else {
            self.tiles.remove(&tile.place)
        };
        if let Some(before) = before {
            self.unused_once(before);
        }
        Ok(())
    }
}

fn create(state: &mut State, bytes: u64, gpu: Option<usize>) -> u64 {
    let handle = state.name() as u64;
    state.vmm.memory.insert(handle, Memory { bytes, gpu, handles: 1, maps: 0 });
    handle
}

fn tiles(list: &List<Tile>, count: c_uint) -> Answer {
    let mut state = state::lock();
    list.read(count).iter().try_for_each(|tile| state.vmm.tile(tile))
}

calls! {
    cuMemGetAllocationGranularity(out: Out<usize>, _properties: *const c_void, _option: c_int) {
        put(out, usize::try_from(GRANULARITY).map_err(|_| Code::NOT_SUPPORTED)?)
    }
    cuMemCreate(out: Out<u64>, bytes: usize, properties: In<Properties>, _flags: u64) {
        let out = out.ok_or(Code::INVALID_VALUE)?;
        let gpu = properties.ok_or(Code::INVALID_VALUE)?.location.gpu()?;
        if let Some(gpu) = gpu {
            truth::charge(gpu, bytes as u64)?;
        }
        put(Some(out), create(&mut state::lock(), bytes as u64, gpu))
    }
    cuMemRelease(handle: u64) { state::lock().vmm.release(handle) }
    cuMemAddressReserve(out: Out<Address>, bytes: usize, _align: usize, _at: Address, _flags: u64) {
        let mut state = state::lock();
        let at = FIRST + state.vmm.reserved;
        state.vmm.reserved += (bytes as u64).next_multiple_of(GRANULARITY);
        put(out, at)
    }
    cuMemAddressFree(_at: Address, _bytes: usize) { Ok(()) }
    cuMemMap(at: Address, bytes: usize, _offset: usize, handle: u64, _flags: u64) {
        state::lock().vmm.map(at, bytes as u64, handle)
    }
    cuMemUnmap(at: Address, bytes: usize) { state::lock().vmm.unmap(at, bytes as u64) }
    cuMemSetAccess(_at: Address, _bytes: usize, _access: *const c_void, _count: usize) { Ok(()) }
    cuMemRetainAllocationHandle(out: Out<u64>, at: Address) {
        let mut state = state::lock();
        let found = state.vmm.mapped.range(..=at).next_back();
        let found = found.filter(|(start, (bytes, _))| at - *start < *bytes).map(|(_, (_, handle))| *handle);
        let handle = found.ok_or(Code::INVALID_VALUE)?;
        state.vmm.of(handle)?.handles += 1;
        put(out, handle)
    }
    cuMemExportToShareableHandle(out: Out<c_int>, handle: u64, _kind: c_int, _flags: u64) {
        let mut state = state::lock();
        state.vmm.of(handle)?;
        put(out, c_int::try_from(handle).map_err(|_| Code::INVALID_VALUE)?)
    }
    cuMemImportFromShareableHandle(out: Out<u64>, exported: *const c_void, _kind: c_int) {
        let mut state = state::lock();
        let handle = exported.addr() as u64;
        // The process's own handle again, or memory that is charged to another process.
        let handle = if let Ok(memory) = state.vmm.of(handle) {
            memory.handles += 1;
            handle
        } else {
            create(&mut state, 0, None)
        };
        put(out, handle)
    }
    cuMemMapArrayAsync(list: List<Tile>, count: c_uint, _stream: Handle) { tiles(&list, count) }
    cuMemMapArrayAsync_ptsz(list: List<Tile>, count: c_uint, _stream: Handle) { tiles(&list, count) }
}
