//! Physical memory with handles. It exists, and is charged, until its last handle is released and its last
//! mapping is removed. No lock is held during driver calls, so removals and the references that keep memory
//! alive are recorded before the call.

use std::collections::{BTreeMap, HashMap};

use crate::abi::{Address, Device, MemoryHandle};
use crate::allocations::TableFull;

/// All handles of physical memory, and all mappings.
pub(crate) struct Vmm {
    memory: BTreeMap<MemoryHandle, Memory>,
    mapped: BTreeMap<Address, Mapping>,
}

/// Physical memory of one handle.
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

/// Mappings that a driver call is about to remove; they are restored if the call fails.
#[derive(Debug, Default)]
pub(crate) struct Unmapped(Vec<(Address, Mapping)>);

impl Vmm {
    pub(crate) const fn new() -> Self {
        Self { memory: BTreeMap::new(), mapped: BTreeMap::new() }
    }

    /// Records new memory, and returns an earlier entry with the same handle, whose release was not seen.
    pub(crate) fn made(&mut self, handle: MemoryHandle, bytes: u64, device: Device) -> Option<Memory> {
        self.memory.insert(handle, Memory { bytes, device, handles: 1, maps: 0 })
    }

    /// Adds a reference; returns false if the memory is unknown.
    pub(crate) fn add_reference(&mut self, handle: MemoryHandle, reference: Reference) -> bool {
        let Some(memory) = self.memory.get_mut(&handle) else { return false };
        let count = memory.count(reference);
        *count = count.saturating_add(1);
        true
    }

    /// Removes a reference, and returns the memory if the reference was the last.
    pub(crate) fn drop_reference(&mut self, handle: MemoryHandle, reference: Reference) -> Option<Memory> {
        let memory = self.memory.get_mut(&handle)?;
        let count = memory.count(reference);
        *count = count.saturating_sub(1);
        if memory.handles == 0 && memory.maps == 0 { self.memory.remove(&handle) } else { None }
    }

    /// Restores a reference that the driver did not remove.
    pub(crate) fn restore(&mut self, handle: MemoryHandle, gone: Option<Memory>, reference: Reference) {
        if let Some(memory) = gone {
            self.memory.entry(handle).or_insert(memory);
        }
        self.add_reference(handle, reference);
    }

    /// Returns the handle of the memory that is mapped at an address.
    pub(crate) fn at(&self, address: Address) -> Option<MemoryHandle> {
        let (start, mapping) = self.mapped.range(..=address).next_back()?;
        (address.checked_sub(*start)? < mapping.bytes).then_some(mapping.handle)
    }

    /// Records a mapping, whose reference was already added.
    pub(crate) fn mapped(&mut self, address: Address, bytes: u64, handle: MemoryHandle) {
        self.mapped.insert(address, Mapping { bytes, handle });
    }

    /// Removes the recorded mappings of an address range, before the driver removes them.
    pub(crate) fn unmap(&mut self, address: Address, bytes: u64) -> Result<Unmapped, TableFull> {
        let range = address..address.saturating_add(bytes);
        let mut unmapped_range = Vec::new();
        unmapped_range.try_reserve(self.mapped.range(range.clone()).count()).map_err(|_| TableFull)?;
        unmapped_range.extend(self.mapped.extract_if(range, |_, _| true));
        Ok(Unmapped(unmapped_range))
    }

    /// Drops the references of removed mappings, and returns the memory that had no other reference.
    pub(crate) fn unmapped(&mut self, unmapped_range: &Unmapped) -> HashMap<MemoryHandle, Memory> {
        let gone = |(_, mapping): &(Address, Mapping)| {
            Some((mapping.handle, self.drop_reference(mapping.handle, Reference::Mapped)?))
        };
        unmapped_range.0.iter().filter_map(gone).collect()
    }

    /// Restores mappings that the driver did not remove.
    pub(crate) fn remap(&mut self, unmapped_range: Unmapped) {
        for (address, mapping) in unmapped_range.0 {
            self.mapped.entry(address).or_insert(mapping);
        }
    }
}

/// A reference that keeps memory alive.
#[derive(Clone, Copy)]
pub(crate) enum Reference {
    Handle,
    Mapped,
}

impl Memory {
    fn count(&mut self, reference: Reference) -> &mut u64 {
        match reference {
            Reference::Handle => &mut self.handles,
            Reference::Mapped => &mut self.maps,
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
        assert!(vmm.add_reference(7, Reference::Mapped));
        vmm.mapped(address, 10, 7);
    }

    #[test]
    fn memory_exists_until_its_last_reference_is_dropped() {
        let mut vmm = with_one();
        assert!(vmm.add_reference(7, Reference::Handle));
        map(&mut vmm, 1000);
        map(&mut vmm, 2000);
        assert_eq!(vmm.drop_reference(7, Reference::Handle), None);
        assert_eq!(vmm.drop_reference(7, Reference::Handle), None, "still mapped twice");
        let unmapped_range = vmm.unmap(1000, 10).unwrap();
        assert!(vmm.unmapped(&unmapped_range).is_empty());
        let unmapped_range = vmm.unmap(2000, 10).unwrap();
        let gone: Vec<u64> = vmm.unmapped(&unmapped_range).values().map(|memory| memory.bytes).collect();
        assert_eq!(gone, [100]);
        assert_eq!(vmm.drop_reference(7, Reference::Handle), None, "the handle is unknown now");
    }

    #[test]
    fn refused_removal_is_restored() {
        let mut vmm = with_one();
        let gone = vmm.drop_reference(7, Reference::Handle);
        assert!(gone.is_some());
        vmm.restore(7, gone, Reference::Handle);
        map(&mut vmm, 1000);
        let unmapped_range = vmm.unmap(1000, 10).unwrap();
        assert_eq!(vmm.at(1000), None);
        vmm.remap(unmapped_range);
        assert_eq!(vmm.at(1009), Some(7));
        assert_eq!(vmm.drop_reference(7, Reference::Handle), None);
        assert_eq!(vmm.drop_reference(7, Reference::Mapped).map(|memory| memory.bytes), Some(100));
    }

    #[test]
    fn lookup_finds_only_addresses_within_mappings() {
        let mut vmm = with_one();
        map(&mut vmm, 1000);
        for (address, expected) in [(999, None), (1000, Some(7)), (1009, Some(7)), (1010, None), (0, None)] {
            assert_eq!(vmm.at(address), expected, "{address}");
        }
        assert!(!vmm.add_reference(8, Reference::Handle), "memory of another process");
        assert_eq!(vmm.unmap(u64::MAX, u64::MAX).unwrap().0, []);
    }
}
