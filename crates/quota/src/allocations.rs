//! Allocation table: the size and owner of each allocation, so that frees can be accounted. The table is
//! split into many shards, each with its own lock, to reduce contention.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::{BuildHasherDefault, Hasher};

use crate::abi::{Address, Device, Handle};
use crate::region::words;
use crate::spin_lock::{Guard, SpinLock};

/// An allocation, found by its address or array handle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Allocation {
    pub(crate) bytes: u64,
    pub(crate) device: Device,
    pub(crate) owner: Owner,
}

/// Owner of an allocation. When the owner is destroyed, the memory is freed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Owner {
    Context(Handle),
    /// A memory pool. Its memory outlives contexts.
    Pool,
}

/// Error: there is no memory for another entry.
#[derive(Debug)]
pub(crate) struct TableFull;

type Shard = HashMap<Address, Allocation, BuildHasherDefault<AddressHasher>>;

const SHARDS: usize = 64;

/// Table of all allocations of this process.
pub(crate) struct AllocationTable {
    shards: [SpinLock<Shard>; SHARDS],
}

/// Hash function for addresses. Addresses from the driver end in nine or more zero bits. Programs cannot
/// choose them, so protection against crafted keys is not needed.
#[derive(Default)]
pub(crate) struct AddressHasher(u64);

impl Hasher for AddressHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = hash(self.0 ^ number);
    }
}

fn hash(number: u64) -> u64 {
    // Combines both halves of the product, because the lower half ends in as many zero bits as the address.
    let product = u128::from(number).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let [low, high] = words(product.to_le_bytes());
    low ^ high
}

impl AllocationTable {
    pub(crate) const fn new() -> Self {
        Self { shards: [const { SpinLock::new(HashMap::with_hasher(BuildHasherDefault::new())) }; SHARDS] }
    }

    fn shard(&self, address: Address) -> Option<Guard<'_, Shard>> {
        let shard = usize::try_from(hash(address) >> 58).ok()?;
        Some(self.shards.get(shard)?.lock())
    }

    /// Inserts an allocation. Returns the previous entry at the address, whose free was not seen.
    pub(crate) fn insert(
        &self,
        address: Address,
        record: Allocation,
    ) -> Result<Option<Allocation>, TableFull> {
        let mut shard = self.shard(address).ok_or(TableFull)?;
        shard.try_reserve(1).map_err(|_| TableFull)?;
        Ok(shard.insert(address, record))
    }

    /// Inserts a removed entry again. Returns false if there is another entry at the address now.
    pub(crate) fn reinsert(&self, address: Address, record: Allocation) -> bool {
        let Some(mut shard) = self.shard(address) else { return true };
        if shard.try_reserve(1).is_err() {
            return true;
        }
        match shard.entry(address) {
            Entry::Vacant(place) => {
                place.insert(record);
                true
            }
            Entry::Occupied(_) => false,
        }
    }

    /// Removes and returns the entry at an address.
    pub(crate) fn remove(&self, address: Address) -> Option<Allocation> {
        self.shard(address)?.remove(&address)
    }

    /// Removes and returns all entries that match.
    pub(crate) fn remove_all(&self, which: impl Fn(&Allocation) -> bool) -> Vec<(Address, Allocation)> {
        let mut found = Vec::new();
        for shard in &self.shards {
            let mut shard = shard.lock();
            // If there is no memory for the result, the entries stay in the table and their memory stays
            // charged.
            if found.try_reserve(shard.len()).is_ok() {
                found.extend(shard.extract_if(|_, record| which(record)));
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: Allocation = Allocation { bytes: 1, device: 0, owner: Owner::Context(7) };
    const SECOND: Allocation = Allocation { bytes: 2, device: 1, owner: Owner::Pool };

    #[test]
    fn removed_entry_is_the_inserted_one() {
        let allocations = AllocationTable::new();
        assert_eq!(allocations.remove(512), None);
        assert_eq!(allocations.insert(512, FIRST).unwrap(), None);
        assert_eq!(allocations.insert(512, SECOND).unwrap(), Some(FIRST), "the address was allocated again");
        assert!(!allocations.reinsert(512, FIRST));
        assert_eq!(allocations.remove(512), Some(SECOND));
        assert!(allocations.reinsert(512, FIRST));
        assert_eq!(allocations.remove(512), Some(FIRST));
        assert_eq!(allocations.remove(512), None);
    }

    #[test]
    fn entries_of_a_context_are_removed_together() {
        let allocations = AllocationTable::new();
        for address in (1..=1000).map(|block| block << 21) {
            allocations.insert(address, if address % 3 == 0 { FIRST } else { SECOND }).unwrap();
        }
        let taken = allocations.remove_all(|record| record.owner == Owner::Context(7));
        assert_eq!(taken.len(), 333);
        assert!(taken.iter().all(|(address, record)| address % 3 == 0 && *record == FIRST));
        assert_eq!(allocations.remove_all(|_| true).len(), 667);
    }

    #[test]
    fn aligned_addresses_are_spread_over_shards() {
        for shift in [0, 9, 12, 16, 21, 25, 35] {
            let mut shards = [0; SHARDS];
            let mut ends = [0; 128];
            for block in 0..12_800u64 {
                let hash = hash(0x7f00_0000_0000 + (block << shift));
                shards[usize::try_from(hash >> 58).unwrap()] += 1;
                ends[usize::try_from(hash % 128).unwrap()] += 1;
            }
            assert!(shards.iter().all(|count| *count < 400), "{shift}: {shards:?}");
            assert!(ends.iter().all(|count| *count < 200), "{shift}: {ends:?}");
        }
    }
}
