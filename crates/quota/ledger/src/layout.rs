//! Layout of a quota file, version 1. All numbers are little-endian.

use crate::{Ledger, LedgerError, LedgerGpu, Process, Uuid};

/// Number of GPU rows in a quota file.
pub const GPUS: usize = 16;
/// Number of process slots in a quota file.
pub const SLOTS: usize = 128;
/// Size of a quota file in bytes.
pub const SIZE: usize = USED + 8 * GPUS * SLOTS;

const MAGIC: &[u8; 8] = b"BAILIFFQ";
const VERSION: u32 = 1;

// Byte offsets in the header: magic 0, version 8, size 12, generation 16, boot id 24, high-water mark 40,
// faults 48, uncounted calls 56, missing hooks 64.
const HEAD: usize = 128;
/// Size of a GPU row. Offsets: UUID 0, limit 16, peak 24, denied 32, denied bytes 40, last denied 48.
const ROW: usize = 64;
/// Size of a slot. Offsets: pid 0, start 8, namespace 16, name 24, allocations 40, frees 48, denied 56.
const SLOT: usize = 64;
const SLOTS_AT: usize = HEAD + ROW * GPUS;
/// Offset of the memory in use: a 64-bit word for each process on each GPU, grouped by GPU.
const USED: usize = SLOTS_AT + SLOT * SLOTS;

/// Byte offsets of a row's fields in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Row {
    pub(crate) uuid: u64,
    pub(crate) limit: u64,
}

fn array<const LENGTH: usize>(bytes: &[u8], at: usize) -> [u8; LENGTH] {
    let found = bytes.get(at..).and_then(<[u8]>::first_chunk);
    found.copied().unwrap_or([0; LENGTH])
}

fn read_u64(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(array(bytes, at))
}

fn read_u32(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(array(bytes, at))
}

fn row(at: usize) -> usize {
    HEAD + ROW * at
}

fn put(bytes: &mut [u8], at: usize, value: &[u8]) {
    if let Some(place) = bytes.get_mut(at..at + value.len()) {
        place.copy_from_slice(value);
    }
}

/// Returns the content of a new quota file, or `None` if there are more GPUs than rows.
pub(crate) fn blank(limits: &[(Uuid, u64)]) -> Option<Vec<u8>> {
    let mut bytes = vec![0; SIZE];
    put(&mut bytes, 0, MAGIC);
    put(&mut bytes, 8, &VERSION.to_le_bytes());
    put(&mut bytes, 12, &u32::try_from(SIZE).ok()?.to_le_bytes());
    for (at, (uuid, limit)) in limits.iter().enumerate() {
        put(&mut bytes, row(at), uuid);
        put(&mut bytes, row(at) + 16, &limit.to_le_bytes());
    }
    (limits.len() <= GPUS).then_some(bytes)
}

/// Checks the header of a file that has the right length.
pub(crate) fn check(bytes: &[u8]) -> Result<(), LedgerError> {
    if array::<8>(bytes, 0) != *MAGIC {
        return Err(LedgerError::NoQuota);
    }
    match read_u32(bytes, 8) {
        VERSION if read_u32(bytes, 12) as usize == SIZE => Ok(()),
        VERSION => Err(LedgerError::NoQuota),
        other => Err(LedgerError::Version(other)),
    }
}

/// Returns the row of a GPU, or a free row if the GPU has none.
pub(crate) fn row_of(bytes: &[u8], uuid: Uuid) -> Option<Row> {
    let find = |uuid: Uuid| (0..GPUS).find(|at| array(bytes, row(*at)) == uuid);
    let at = row(find(uuid).or_else(|| find([0; 16]))?);
    Some(Row { uuid: at as u64, limit: at as u64 + 16 })
}

/// Parses a quota file whose header was checked.
pub(crate) fn parse(bytes: &[u8]) -> Ledger {
    // The high-water mark in the file is not used, because it cannot be trusted and would save little.
    let taken: Vec<usize> = (0..SLOTS).filter(|slot| read_u32(bytes, SLOTS_AT + SLOT * slot) != 0).collect();
    let named = |at: &usize| array::<16>(bytes, row(*at)) != [0; 16];
    Ledger {
        boot: array(bytes, 24),
        generation: read_u64(bytes, 16),
        faults: read_u64(bytes, 48),
        uncounted: read_u64(bytes, 56),
        hooks_missing: read_u64(bytes, 64),
        gpus: (0..GPUS).filter(named).map(|at| gpu(bytes, at, &taken)).collect(),
        processes: taken.iter().map(|slot| process(bytes, SLOTS_AT + SLOT * slot)).collect(),
    }
}

fn gpu(bytes: &[u8], at: usize, taken: &[usize]) -> LedgerGpu {
    let of = |slot: &usize| read_u64(bytes, USED + 8 * (SLOTS * at + slot));
    let by_process: Vec<u64> = taken.iter().map(of).collect();
    let at = row(at);
    LedgerGpu {
        uuid: array(bytes, at),
        limit: read_u64(bytes, at + 16),
        used: by_process.iter().fold(0, |sum: u64, used| sum.saturating_add(*used)),
        peak: read_u64(bytes, at + 24),
        denied: read_u64(bytes, at + 32),
        denied_bytes: read_u64(bytes, at + 40),
        last_denied: read_u64(bytes, at + 48),
        by_process,
    }
}

fn process(bytes: &[u8], at: usize) -> Process {
    let name = array::<16>(bytes, at + 24);
    let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
    Process {
        pid: read_u32(bytes, at),
        start_ticks: read_u64(bytes, at + 8),
        namespace: read_u64(bytes, at + 16),
        name: String::from_utf8_lossy(name).into_owned(),
        allocations: read_u64(bytes, at + 40),
        frees: read_u64(bytes, at + 48),
        denied: read_u64(bytes, at + 56),
    }
}
