//! Memory mapped to parts of sparse arrays. Such a mapping keeps memory alive, like a mapping to an address.

use std::collections::HashMap;
use std::hash::BuildHasherDefault;

use crate::abi::{Address, ArrayMap, MemoryHandle};
use crate::allocations::AddressHasher;

/// All mapped parts, each with the handle of its memory.
pub(crate) struct SparseMap(HashMap<Part, MemoryHandle, BuildHasherDefault<AddressHasher>>);

/// A part of an array.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Part {
    array: Address,
    /// Kind of the part: a level or the mip tail.
    kind: u32,
    place: [u32; 8],
}

impl SparseMap {
    pub(crate) const fn new() -> Self {
        Self(HashMap::with_hasher(BuildHasherDefault::new()))
    }

    /// Records that a part was mapped or unmapped, and returns the handle of the memory that was mapped there
    /// before. Overlapping parts are not detected: their memory stays charged after it was freed.
    pub(crate) fn change(&mut self, change: &ArrayMap) -> Option<MemoryHandle> {
        let part = Part::of(change);
        if !change.maps() {
            return self.0.remove(&part);
        }
        if self.0.try_reserve(1).is_err() {
            return None;
        }
        self.0.insert(part, change.handle)
    }

    /// Removes an array, and returns the handles of the memory that was mapped to it.
    pub(crate) fn forget(&mut self, array: Address) -> Vec<MemoryHandle> {
        self.0.extract_if(|part, _| part.array == array).map(|(_, handle)| handle).collect()
    }
}

impl Part {
    fn of(change: &ArrayMap) -> Self {
        Self { array: change.array, kind: change.part_kind, place: change.place() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(array: Address, level: u32, operation: i32, handle: MemoryHandle) -> ArrayMap {
        ArrayMap::of_level(array, [level, 0, 0, 0, 0, 64, 64, 1], operation, handle)
    }

    #[test]
    fn previous_mapping_is_returned_on_change() {
        let (map, unmap) = (1, 2);
        let mut sparse_map = SparseMap::new();
        assert_eq!(sparse_map.change(&change(9, 0, map, 100)), None);
        assert_eq!(sparse_map.change(&change(9, 1, map, 100)), None);
        assert_eq!(sparse_map.change(&change(8, 0, map, 200)), None);
        assert_eq!(sparse_map.change(&change(9, 0, map, 300)), Some(100), "replaced");
        assert_eq!(sparse_map.change(&change(9, 1, unmap, 0)), Some(100), "unmapped");
        assert_eq!(sparse_map.change(&change(9, 1, unmap, 0)), None);
        assert_eq!(sparse_map.forget(9), [300]);
        assert_eq!(sparse_map.forget(9), []);
        assert_eq!(sparse_map.forget(8), [200]);
    }
}
