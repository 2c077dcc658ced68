//! The file of a shared quota, version 1, as it lies in memory; readers and makers of it: `quota/ledger`. All processes
//! write it at once, so everything is atomic, and whatever stands there is a claim of somebody's.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::settings::Uuid;

pub(crate) const MAGIC: u64 = u64::from_le_bytes(*b"BAILIFFQ");
pub(crate) const VERSION: u32 = 1;
pub(crate) const GPUS: usize = 16;
pub(crate) const SLOTS: usize = 128;
/// Bytes of the file.
pub(crate) const SIZE: u32 = 128 + 64 * 16 + 64 * 128 + 8 * 16 * 128;

/// The whole file.
#[repr(C)]
pub(crate) struct Region {
    pub(crate) magic: AtomicU64,
    pub(crate) version: AtomicU32,
    pub(crate) size: AtomicU32,
    /// How often all slots were emptied.
    pub(crate) generation: AtomicU64,
    pub(crate) boot: [AtomicU64; 2],
    /// Slots beyond this many were never used.
    high_water: AtomicU32,
    _reserved: u32,
    /// Faults of the library.
    pub(crate) faults: AtomicU64,
    /// Calls that were let through and not counted in bytes.
    pub(crate) uncounted: AtomicU64,
    /// Functions that this library should know and does not.
    pub(crate) hooks_missing: AtomicU64,
    _more: [u64; 7],
    pub(crate) gpus: [Row; GPUS],
    pub(crate) slots: [Slot; SLOTS],
    used: [[AtomicU64; SLOTS]; GPUS],
}

/// A GPU.
#[repr(C)]
pub(crate) struct Row {
    /// Zero: free.
    uuid: [AtomicU64; 2],
    pub(crate) limit: AtomicU64,
    pub(crate) peak: AtomicU64,
    pub(crate) denied: AtomicU64,
    pub(crate) denied_bytes: AtomicU64,
    /// Nanoseconds since 1970.
    pub(crate) last_denied: AtomicU64,
    _reserved: u64,
}

/// A process.
#[repr(C)]
pub(crate) struct Slot {
    /// Zero: free.
    pub(crate) pid: AtomicU32,
    _reserved: u32,
    pub(crate) start: AtomicU64,
    pub(crate) namespace: AtomicU64,
    pub(crate) name: [AtomicU64; 2],
    pub(crate) allocations: AtomicU64,
    pub(crate) frees: AtomicU64,
    pub(crate) denied: AtomicU64,
}

const _: () =
    assert!(size_of::<Region>() == SIZE as usize && size_of::<Row>() == 64 && size_of::<Slot>() == 64);

/// Two words of sixteen bytes.
pub(crate) fn words(bytes: [u8; 16]) -> [u64; 2] {
    let number = u128::from_le_bytes(bytes);
    let low = number & u128::from(u64::MAX);
    [low, number >> 64].map(|half| u64::try_from(half).unwrap_or(0))
}

/// Puts both words; readers that see one of them alone see a name that is nobody's.
pub(crate) fn store(place: &[AtomicU64; 2], words: [u64; 2]) {
    for (place, word) in place.iter().zip(words) {
        place.store(word, Ordering::Release);
    }
}

pub(crate) fn load(place: &[AtomicU64; 2]) -> [u64; 2] {
    place.each_ref().map(|word| word.load(Ordering::Acquire))
}

impl Row {
    pub(crate) fn is(&self, uuid: Uuid) -> bool {
        load(&self.uuid) == words(uuid)
    }

    pub(crate) fn is_free(&self) -> bool {
        load(&self.uuid) == [0, 0]
    }

    /// Makes it that of a GPU; under the lock.
    pub(crate) fn become_of(&self, uuid: Uuid, limit: u64) {
        self.limit.store(limit, Ordering::Release);
        store(&self.uuid, words(uuid));
    }
}

impl Region {
    /// What a process has of a GPU.
    pub(crate) fn of(&self, row: usize, slot: usize) -> Option<&AtomicU64> {
        self.used.get(row)?.get(slot)
    }

    /// What all processes have of a GPU.
    pub(crate) fn sum(&self, row: usize) -> u64 {
        let high = usize::try_from(self.high_water.load(Ordering::Relaxed)).unwrap_or(SLOTS).min(SLOTS);
        let used = self.used.get(row).and_then(|used| used.get(..high)).unwrap_or_default();
        // A plain sum could be made to wrap by whoever writes the file.
        used.iter().fold(0, |sum: u64, used| sum.saturating_add(used.load(Ordering::SeqCst)))
    }

    /// From now on this slot is looked at.
    pub(crate) fn raise(&self, slot: usize) {
        let above = u32::try_from(slot).unwrap_or(u32::MAX).saturating_add(1);
        self.high_water.fetch_max(above, Ordering::SeqCst);
    }

    /// Takes all that a slot has; under the lock, and of a process that is gone or our own.
    pub(crate) fn clear(&self, slot: usize) {
        for used in self.used.iter().filter_map(|used| used.get(slot)) {
            used.store(0, Ordering::SeqCst);
        }
    }
}
