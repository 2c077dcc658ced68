//! The file of a shared quota, version 1, from the side of whoever does not allocate: it is made and limited by whoever
//! sets the quota, and read by whoever watches it. It is never mapped, since somebody could cut it short, and what it
//! says is a claim of the processes that write it. `quota/src/region.rs` is the other side.
#![expect(clippy::disallowed_methods, reason = "makes, changes and reads the file")]

mod layout;

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::OFlags;

pub use layout::{GPUS, SIZE, SLOTS};

/// A GPU's UUID, as the driver has it, without `GPU-` and minus signs.
pub type Uuid = [u8; 16];

/// A UUID as people and the driver write it, without what the driver puts before it (`GPU-`, `MIG-`).
#[must_use]
pub fn written(uuid: Uuid) -> String {
    let number = u128::from_be_bytes(uuid);
    let part = |from: u32, bits: u32| number >> from & ((1 << bits) - 1);
    let (first, last) = (part(96, 32), part(0, 48));
    format!("{first:08x}-{:04x}-{:04x}-{:04x}-{last:012x}", part(80, 16), part(64, 16), part(48, 16))
}

/// No limit.
pub const UNLIMITED: u64 = u64::MAX;

/// What a file says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ledger {
    /// The boot that it is of; zeros where nobody has used it yet.
    pub boot: Uuid,
    /// How often all processes were forgotten, since the machine was restarted.
    pub generation: u64,
    /// Faults of the library: it could not share the quota, or not write something down.
    pub faults: u64,
    /// Calls that were let through without being counted in bytes: memory of graphs and of other processes.
    pub uncounted: u64,
    /// Functions of the driver that the library should know and does not.
    pub hooks_missing: u64,
    /// The GPUs that have a limit.
    pub gpus: Vec<Gpu>,
    /// The processes that have a place, dead ones too until another needs theirs.
    pub processes: Vec<Process>,
}

/// A GPU, as a file has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gpu {
    /// Which.
    pub uuid: Uuid,
    /// How much all processes together may have.
    pub limit: u64,
    /// How much they have.
    pub used: u64,
    /// How much they ever had.
    pub peak: u64,
    /// Refused requests.
    pub denied: u64,
    /// What those asked for.
    pub denied_bytes: u64,
    /// When the last was, in nanoseconds since 1970; 0 if none was.
    pub last_denied: u64,
    /// What each process has, by its place among [`Ledger::processes`].
    pub by_process: Vec<u64>,
}

/// A process, as a file has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Process {
    /// Its pid in its own namespace.
    pub pid: u32,
    /// When it started, in ticks since boot.
    pub start_ticks: u64,
    /// The inode of its namespace of pids.
    pub namespace: u64,
    /// Its name, as it was when it took its place.
    pub name: String,
    /// Granted requests.
    pub allocations: u64,
    /// What it gave back.
    pub frees: u64,
    /// Refused requests.
    pub denied: u64,
}

impl Ledger {
    /// Forgets who had what, as whoever uses a file of an earlier boot does.
    pub fn forget(&mut self) {
        self.processes.clear();
        for gpu in &mut self.gpus {
            gpu.used = 0;
            gpu.by_process.clear();
        }
    }
}

/// Why a file says nothing.
#[derive(Debug, thiserror::Error)]
pub enum Fault {
    /// It cannot be opened or read.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// A FIFO, a device or a directory.
    #[error("it is no regular file")]
    NoFile,
    /// It ends before it should.
    #[error("it has {0} bytes where {SIZE} are needed")]
    Short(u64),
    /// It begins with something else.
    #[error("it is no quota")]
    NoQuota,
    /// Of a version that is not known here.
    #[error("it is of version {0}, not 1")]
    Version(u32),
    /// It has no row for this GPU, and none left.
    #[error("it has no room for another GPU")]
    Full,
}

/// Makes a file with these limits, for processes to share. It must not be there yet; whoever calls chooses its owner
/// and mode afterwards.
///
/// # Errors
/// Where it cannot be made, or there are more GPUs than it has rows for.
pub fn create(path: &Path, limits: &[(Uuid, u64)]) -> Result<(), Fault> {
    let bytes = layout::blank(limits).ok_or(Fault::Full)?;
    let file = OpenOptions::new().write(true).create_new(true).mode(0o660).open(path)?;
    Ok(file.write_all_at(&bytes, 0)?)
}

/// Changes a GPU's limit; it holds from the next request on.
///
/// # Errors
/// Where the file is no quota, or does not know the GPU and has no row left.
pub fn set_limit(path: &Path, uuid: Uuid, limit: u64) -> Result<(), Fault> {
    let file = open(path, OpenOptions::new().read(true).write(true))?;
    // Processes take rows for GPUs under the same lock.
    file.lock()?;
    let bytes = whole(&file)?;
    let row = layout::row_of(&bytes, uuid).ok_or(Fault::Full)?;
    // The name last: a row without one is free, so a row that has one has a limit.
    file.write_all_at(&limit.to_le_bytes(), row.limit)?;
    Ok(file.write_all_at(&uuid, row.uuid)?)
}

/// Reads a file, whatever stands in it.
///
/// # Errors
/// Where it is no quota.
pub fn read(path: &Path) -> Result<Ledger, Fault> {
    read_open(&open(path, OpenOptions::new().read(true))?)
}

/// Reads an open file, whatever stands in it.
///
/// # Errors
/// Where it is no quota.
pub fn read_open(file: &File) -> Result<Ledger, Fault> {
    Ok(layout::understand(&whole(file)?))
}

/// Opens a regular file, not through a link, and without waiting for whoever is at a FIFO's other end.
fn open(path: &Path, how: &mut OpenOptions) -> Result<File, Fault> {
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = how.custom_flags(flags.bits().cast_signed()).open(path)?;
    if file.metadata()?.is_file() { Ok(file) } else { Err(Fault::NoFile) }
}

/// The bytes of a file that is long enough and begins as a quota does.
fn whole(file: &File) -> Result<Vec<u8>, Fault> {
    let mut bytes = vec![0; SIZE];
    let mut read = 0;
    // It may be cut short between any two reads; then it is too short, and no more.
    while let Some(rest) = bytes.get_mut(read..).filter(|rest| !rest.is_empty()) {
        match file.read_at(rest, read as u64)? {
            0 => return Err(Fault::Short(read as u64)),
            more => read += more,
        }
    }
    layout::check(&bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests;
