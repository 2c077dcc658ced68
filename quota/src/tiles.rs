//! Which parts of sparse arrays which memory is mapped to: it keeps the memory alive as a mapping to an address does.

use std::collections::HashMap;
use std::hash::BuildHasherDefault;

use crate::abi::{Address, ArrayMap, MemoryHandle};
use crate::book::Mix;

/// All parts that have memory.
pub(crate) struct Tiles(HashMap<Part, MemoryHandle, BuildHasherDefault<Mix>>);

/// A part of an array, as it is told from others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Part {
    array: Address,
    /// A level, or the end of all levels.
    kind: u32,
    place: [u32; 8],
}

impl Tiles {
    pub(crate) const fn new() -> Self {
        Self(HashMap::with_hasher(BuildHasherDefault::new()))
    }

    /// A part was mapped, or its mapping undone; what was mapped there before. Parts that overlap are not seen as the
    /// same: then memory stays charged longer than it lives.
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

    /// An array is gone; what was mapped to it.
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
    fn what_is_mapped_is_told_when_it_is_replaced_undone_or_lost() {
        let (map, unmap) = (1, 2);
        let mut tiles = Tiles::new();
        assert_eq!(tiles.change(&change(9, 0, map, 100)), None);
        assert_eq!(tiles.change(&change(9, 1, map, 100)), None);
        assert_eq!(tiles.change(&change(8, 0, map, 200)), None);
        assert_eq!(tiles.change(&change(9, 0, map, 300)), Some(100), "replaced");
        assert_eq!(tiles.change(&change(9, 1, unmap, 0)), Some(100), "undone");
        assert_eq!(tiles.change(&change(9, 1, unmap, 0)), None);
        assert_eq!(tiles.forget(9), [300]);
        assert_eq!(tiles.forget(9), []);
        assert_eq!(tiles.forget(8), [200]);
    }
}
