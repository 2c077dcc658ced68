//! Creates, changes and reads the file of a shared quota, version 1, for programs that set or monitor the
//! quota. The file is never mapped, because another process could truncate it. Its content cannot be trusted,
//! because all processes that share the quota write to it. `crates/quota/src/region.rs` is the quota
//! library's view of the file.
#![expect(clippy::disallowed_methods, reason = "creates, changes and reads the file")]

mod layout;

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::OFlags;

pub use layout::{GPUS, SIZE, SLOTS};

/// UUID of a GPU in binary form, without `GPU-` and dashes.
pub type Uuid = [u8; 16];

/// Formats a UUID as the driver does, but without its prefix (`GPU-`, `MIG-`).
pub fn format_uuid(uuid: Uuid) -> String {
    let number = u128::from_be_bytes(uuid);
    let part = |from: u32, bits: u32| number >> from & ((1 << bits) - 1);
    let (first, last) = (part(96, 32), part(0, 48));
    format!("{first:08x}-{:04x}-{:04x}-{:04x}-{last:012x}", part(80, 16), part(64, 16), part(48, 16))
}

/// Limit value that means no limit.
pub const UNLIMITED: u64 = u64::MAX;

/// Content of a quota file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ledger {
    /// Boot id at the last use of the file. It is all zeros if the file was never used.
    pub boot: Uuid,
    /// Number of times that all processes were removed because of a reboot.
    pub generation: u64,
    /// Number of faults in the quota library: it could not share the quota, or could not record an
    /// allocation.
    pub faults: u64,
    /// Number of calls whose memory was not counted in bytes: memory in graphs, and memory imported from
    /// other processes.
    pub uncounted: u64,
    /// Number of driver functions that the quota library should hook but does not.
    pub hooks_missing: u64,
    /// GPUs with a limit.
    pub gpus: Vec<LedgerGpu>,
    /// Processes with a slot, including exited processes whose slot has not been reused yet.
    pub processes: Vec<Process>,
}

/// A GPU in a quota file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LedgerGpu {
    /// UUID of the GPU.
    pub uuid: Uuid,
    /// Limit for all processes together, in bytes.
    pub limit: u64,
    /// Memory used by all processes, in bytes.
    pub used: u64,
    /// Highest total memory use so far, in bytes.
    pub peak: u64,
    /// Number of refused requests.
    pub denied: u64,
    /// Total size of all refused requests, in bytes.
    pub denied_bytes: u64,
    /// Time of the last refusal, in nanoseconds since 1970. It is 0 if no request was refused.
    pub last_denied: u64,
    /// Memory used by each process in bytes, in the order of [`Ledger::processes`].
    pub by_process: Vec<u64>,
}

/// A process in a quota file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Process {
    /// Pid of the process in its own PID namespace.
    pub pid: u32,
    /// Start time of the process, in clock ticks since boot.
    pub start_ticks: u64,
    /// Inode of the process's PID namespace.
    pub namespace: u64,
    /// Name of the process when it took its slot.
    pub name: String,
    /// Number of granted requests.
    pub allocations: u64,
    /// Number of frees.
    pub frees: u64,
    /// Number of refused requests.
    pub denied: u64,
}

impl Ledger {
    /// Removes all processes and their memory, as the library does with a file from an earlier boot.
    pub fn forget(&mut self) {
        self.processes.clear();
        for gpu in &mut self.gpus {
            gpu.used = 0;
            gpu.by_process.clear();
        }
    }
}

/// Reason why a quota file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum LedgerError {
    /// The file cannot be opened or read.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The file is a FIFO, a device or a directory.
    #[error("it is not a regular file")]
    NoFile,
    /// The file is too short.
    #[error("it has {0} bytes, but {SIZE} are required")]
    Short(u64),
    /// The file does not start with the header of a quota file.
    #[error("it is not a quota file")]
    NoQuota,
    /// The version of the file is unknown.
    #[error("it has version {0}, not 1")]
    Version(u32),
    /// The file has no row for this GPU, and no free row.
    #[error("it has no free row for another GPU")]
    Full,
}

/// Creates a quota file with these limits. The caller sets the owner and the mode afterwards.
///
/// # Errors
/// If the file exists or cannot be created, or if there are more GPUs than rows.
pub fn create(path: &Path, limits: &[(Uuid, u64)]) -> Result<(), LedgerError> {
    let bytes = layout::blank(limits).ok_or(LedgerError::Full)?;
    let file = OpenOptions::new().write(true).create_new(true).mode(0o660).open(path)?;
    Ok(file.write_all_at(&bytes, 0)?)
}

/// Changes the limit of a GPU, from the next request on.
///
/// # Errors
/// If the file is not a quota file, or if it has neither a row for the GPU nor a free row.
pub fn set_limit(path: &Path, uuid: Uuid, limit: u64) -> Result<(), LedgerError> {
    let file = open(path, OpenOptions::new().read(true).write(true))?;
    // The quota library assigns rows to GPUs under the same lock.
    file.lock()?;
    let bytes = read_whole(&file)?;
    let row = layout::row_of(&bytes, uuid).ok_or(LedgerError::Full)?;
    // The UUID is written last, because it marks the row as used, and a used row needs a limit.
    file.write_all_at(&limit.to_le_bytes(), row.limit)?;
    Ok(file.write_all_at(&uuid, row.uuid)?)
}

/// Reads a quota file.
///
/// # Errors
/// If the file cannot be read or is not a quota file.
pub fn read(path: &Path) -> Result<Ledger, LedgerError> {
    read_open(&open(path, OpenOptions::new().read(true))?)
}

/// Reads an open quota file.
///
/// # Errors
/// If the file cannot be read or is not a quota file.
pub fn read_open(file: &File) -> Result<Ledger, LedgerError> {
    Ok(layout::parse(&read_whole(file)?))
}

/// Opens a regular file. Rejects symbolic links, and does not block on a FIFO.
fn open(path: &Path, options: &mut OpenOptions) -> Result<File, LedgerError> {
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = options.custom_flags(flags.bits().cast_signed()).open(path)?;
    if file.metadata()?.is_file() { Ok(file) } else { Err(LedgerError::NoFile) }
}

/// Reads a whole quota file, and checks its length and header.
fn read_whole(file: &File) -> Result<Vec<u8>, LedgerError> {
    let mut bytes = vec![0; SIZE];
    let mut read = 0;
    // If the file is truncated between two reads, the result is merely too short.
    while let Some(rest) = bytes.get_mut(read..).filter(|rest| !rest.is_empty()) {
        match file.read_at(rest, read as u64)? {
            0 => return Err(LedgerError::Short(read as u64)),
            more => read += more,
        }
    }
    layout::check(&bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests;
