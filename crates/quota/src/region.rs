//! Memory layout of a shared quota file, version 1 (`crates/quota/ledger` creates and reads the file).
//! All processes that share the quota write to it concurrently, so all fields are atomic and the
//! content cannot be trusted.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::settings::Uuid;

pub(crate) const MAGIC: u64 = u64::from_le_bytes(*b"BAILIFFQ");
pub(crate) const VERSION: u32 = 1;
pub(crate) const GPUS: usize = 16;
pub(crate) const SLOTS: usize = 128;
/// Size of the file in bytes.
pub(crate) const SIZE: u32 = 128 + 64 * 16 + 64 * 128 + 8 * 16 * 128;

/// The whole file of a shared quota.
#[repr(C)]
pub(crate) struct Region {
    pub(crate) magic: AtomicU64,
    pub(crate) version: AtomicU32,
    pub(crate) size: AtomicU32,
    /// Number of times that all slots were cleared because of a reboot.
    pub(crate) generation: AtomicU64,
    pub(crate) boot: [AtomicU64; 2],
    /// Number of slots that sums must include: one more than the highest slot ever used.
    high_water: AtomicU32,
    _reserved: u32,
    /// Number of internal faults of the library.
    pub(crate) faults: AtomicU64,
    /// Number of calls whose memory was not counted in bytes.
    pub(crate) uncounted: AtomicU64,
    /// Number of newer versions of hooked functions that this library does not hook.
    pub(crate) hooks_missing: AtomicU64,
    _more: [u64; 7],
    pub(crate) gpus: [Row; GPUS],
    pub(crate) slots: [Slot; SLOTS],
    used: [[AtomicU64; SLOTS]; GPUS],
}

/// Row of a GPU.
#[repr(C)]
pub(crate) struct Row {
    /// UUID of the GPU; zero if the row is free.
    uuid: [AtomicU64; 2],
    pub(crate) limit: AtomicU64,
    pub(crate) peak: AtomicU64,
    pub(crate) denied: AtomicU64,
    pub(crate) denied_bytes: AtomicU64,
    /// Time of the last refusal, in nanoseconds since 1970.
    pub(crate) last_denied: AtomicU64,
    _reserved: u64,
}

/// Slot of a process.
#[repr(C)]
pub(crate) struct Slot {
    /// Pid; zero if the slot is free.
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

/// Returns sixteen bytes as two words.
pub(crate) fn words(bytes: [u8; 16]) -> [u64; 2] {
    let number = u128::from_le_bytes(bytes);
    let low = number & u128::from(u64::MAX);
    [low, number >> 64].map(|half| u64::try_from(half).unwrap_or(0))
}

/// Stores both words. A reader that sees only one new word gets a value that matches nothing.
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

    /// Assigns a free row to a GPU. The caller must hold the file lock.
    pub(crate) fn become_of(&self, uuid: Uuid, limit: u64) {
        self.limit.store(limit, Ordering::Release);
        store(&self.uuid, words(uuid));
    }
}

impl Region {
    /// Returns the memory that a process uses on a GPU.
    pub(crate) fn of(&self, row: usize, slot: usize) -> Option<&AtomicU64> {
        self.used.get(row)?.get(slot)
    }

    /// Returns the memory that all processes use on a GPU.
    pub(crate) fn sum(&self, row: usize) -> u64 {
        let high = usize::try_from(self.high_water.load(Ordering::Relaxed)).unwrap_or(SLOTS).min(SLOTS);
        let used = self.used.get(row).and_then(|used| used.get(..high)).unwrap_or_default();
        // The sum saturates, because a process could write values that make a wrapping sum small.
        used.iter().fold(0, |sum: u64, used| sum.saturating_add(used.load(Ordering::SeqCst)))
    }

    /// Makes later sums include this slot.
    pub(crate) fn raise(&self, slot: usize) {
        let above = u32::try_from(slot).unwrap_or(u32::MAX).saturating_add(1);
        self.high_water.fetch_max(above, Ordering::SeqCst);
    }

    /// Clears the memory in the slot of this process or of an exited process. The caller must hold the
    /// file lock.
    pub(crate) fn clear(&self, slot: usize) {
        for used in self.used.iter().filter_map(|used| used.get(slot)) {
            used.store(0, Ordering::SeqCst);
        }
    }
}
