//! Physical memory with handles. It lives until the last handle is released and the last mapping undone, so it is charged
//! until then. No lock is held while the driver is asked: what could free memory is written down before, what keeps it
//! alive too.

use std::collections::{BTreeMap, HashMap};

use crate::abi::{Address, Device, MemoryHandle};
use crate::book::Full;

/// All handles, and what is mapped where.
pub(crate) struct Vmm {
    memory: BTreeMap<MemoryHandle, Memory>,
    mapped: BTreeMap<Address, Mapping>,
}

/// Physical memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Memory {
    pub(crate) bytes: u64,
    pub(crate) device: Device,
    handles: u64,
    maps: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Mapping {
    bytes: u64,
    handle: MemoryHandle,
}

/// What a call is about to undo; written down again if the driver refuses.
#[derive(Debug, Default)]
pub(crate) struct Undone(Vec<(Address, Mapping)>);

impl Vmm {
    pub(crate) const fn new() -> Self {
        Self { memory: BTreeMap::new(), mapped: BTreeMap::new() }
    }

    /// Memory was made; what had the handle before is gone.
    pub(crate) fn made(&mut self, handle: MemoryHandle, bytes: u64, device: Device) -> Option<Memory> {
        self.memory.insert(handle, Memory { bytes, device, handles: 1, maps: 0 })
    }

    /// One more handle to the same memory, or one more mapping; false if it is not ours.
    pub(crate) fn hold(&mut self, handle: MemoryHandle, how: How) -> bool {
        let Some(memory) = self.memory.get_mut(&handle) else { return false };
        let count = memory.count(how);
        *count = count.saturating_add(1);
        true
    }

    /// One less; the memory, if that was the last.
    pub(crate) fn let_go(&mut self, handle: MemoryHandle, how: How) -> Option<Memory> {
        let memory = self.memory.get_mut(&handle)?;
        let count = memory.count(how);
        *count = count.saturating_sub(1);
        if memory.handles == 0 && memory.maps == 0 { self.memory.remove(&handle) } else { None }
    }

    /// One less, undone: the driver refused.
    pub(crate) fn restore(&mut self, handle: MemoryHandle, gone: Option<Memory>, how: How) {
        if let Some(memory) = gone {
            self.memory.entry(handle).or_insert(memory);
        }
        self.hold(handle, how);
    }

    /// The handle of what is mapped at an address.
    pub(crate) fn at(&self, address: Address) -> Option<MemoryHandle> {
        let (start, mapping) = self.mapped.range(..=address).next_back()?;
        (address.checked_sub(*start)? < mapping.bytes).then_some(mapping.handle)
    }

    /// A mapping was made of memory that is held for it.
    pub(crate) fn mapped(&mut self, address: Address, bytes: u64, handle: MemoryHandle) {
        self.mapped.insert(address, Mapping { bytes, handle });
    }

    /// Forgets the mappings of a range, before they are undone.
    pub(crate) fn unmap(&mut self, address: Address, bytes: u64) -> Result<Undone, Full> {
        let range = address..address.saturating_add(bytes);
        let mut undone = Vec::new();
        undone.try_reserve(self.mapped.range(range.clone()).count()).map_err(|_| Full)?;
        undone.extend(self.mapped.extract_if(range, |_, _| true));
        Ok(Undone(undone))
    }

    /// They are undone: what ended with them.
    pub(crate) fn unmapped(&mut self, undone: &Undone) -> HashMap<MemoryHandle, Memory> {
        let gone = |(_, mapping): &(Address, Mapping)| {
            Some((mapping.handle, self.let_go(mapping.handle, How::Mapped)?))
        };
        undone.0.iter().filter_map(gone).collect()
    }

    /// They are not.
    pub(crate) fn remap(&mut self, undone: Undone) {
        for (address, mapping) in undone.0 {
            self.mapped.entry(address).or_insert(mapping);
        }
    }
}

/// What keeps memory alive.
#[derive(Clone, Copy)]
pub(crate) enum How {
    ByHandle,
    Mapped,
}

impl Memory {
    fn count(&mut self, how: How) -> &mut u64 {
        match how {
            How::ByHandle => &mut self.handles,
            How::Mapped => &mut self.maps,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_one() -> Vmm {
        let mut vmm = Vmm::new();
        assert_eq!(vmm.made(7, 100, 1), None);
        vmm
    }

    fn map(vmm: &mut Vmm, address: Address) {
        assert!(vmm.hold(7, How::Mapped));
        vmm.mapped(address, 10, 7);
    }

    #[test]
    fn memory_lives_as_long_as_a_handle_or_a_mapping() {
        let mut vmm = with_one();
        assert!(vmm.hold(7, How::ByHandle));
        map(&mut vmm, 1000);
        map(&mut vmm, 2000);
        assert_eq!(vmm.let_go(7, How::ByHandle), None);
        assert_eq!(vmm.let_go(7, How::ByHandle), None, "mapped twice still");
        let undone = vmm.unmap(1000, 10).unwrap();
        assert!(vmm.unmapped(&undone).is_empty());
        let undone = vmm.unmap(2000, 10).unwrap();
        let gone: Vec<u64> = vmm.unmapped(&undone).values().map(|memory| memory.bytes).collect();
        assert_eq!(gone, [100]);
        assert_eq!(vmm.let_go(7, How::ByHandle), None, "it is not ours any more");
    }

    #[test]
    fn what_the_driver_refuses_is_as_before() {
        let mut vmm = with_one();
        let gone = vmm.let_go(7, How::ByHandle);
        assert!(gone.is_some());
        vmm.restore(7, gone, How::ByHandle);
        map(&mut vmm, 1000);
        let undone = vmm.unmap(1000, 10).unwrap();
        assert_eq!(vmm.at(1000), None);
        vmm.remap(undone);
        assert_eq!(vmm.at(1009), Some(7));
        assert_eq!(vmm.let_go(7, How::ByHandle), None);
        assert_eq!(vmm.let_go(7, How::Mapped).map(|memory| memory.bytes), Some(100));
    }

    #[test]
    fn addresses_are_found_within_mappings_alone() {
        let mut vmm = with_one();
        map(&mut vmm, 1000);
        for (address, expected) in [(999, None), (1000, Some(7)), (1009, Some(7)), (1010, None), (0, None)] {
            assert_eq!(vmm.at(address), expected, "{address}");
        }
        assert!(!vmm.hold(8, How::ByHandle), "memory of another process");
        assert_eq!(vmm.unmap(u64::MAX, u64::MAX).unwrap().0, []);
    }
}
