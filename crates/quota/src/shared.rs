//! A quota that several processes share. A process reserves memory by adding to its own word and then summing
//! all words. All processes see the additions in the same order, so the last process to add sees all other
//! additions, and the limit is never exceeded. A process whose sum is too high subtracts its addition again
//! and retries under the file lock.

use std::ffi::{CStr, c_int};
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use crate::log;
use crate::process::{self, OwnProcess};
use crate::region::{self, Region, Row, Slot};
use crate::settings::Uuid;

/// Maximum wait for the file lock in nanoseconds: `AT_FIRST` for joining the quota or adding a GPU,
/// `AT_THE_LIMIT` when the quota seems to be full.
const AT_FIRST: u64 = 1_000_000_000;
const AT_THE_LIMIT: u64 = 50_000_000;
/// Number of attempts under the lock. More than one is needed because other processes may be about to
/// subtract their additions.
const ATTEMPTS: u32 = 16;

/// Membership of this process in a shared quota.
pub(crate) struct Shared {
    region: &'static Region,
    slot: usize,
    path: &'static CStr,
    file: Identity,
    /// Serializes the threads of this process before they take the file lock.
    local_lock: Mutex<()>,
}

/// Account of one GPU in a shared quota.
pub(crate) struct GpuSlot {
    shared: &'static Shared,
    row: usize,
    gpu: &'static Row,
    own_bytes: &'static AtomicU64,
    slot: &'static Slot,
}

/// Identity of a file.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Identity {
    device: u64,
    inode: u64,
}

/// Reason why the file is not used.
#[derive(Debug)]
struct Refusal(&'static str);

impl Shared {
    /// Joins the quota. If joining fails, the reason is logged and the limit applies to this process alone.
    pub(crate) fn join(path: &'static CStr) -> Option<Self> {
        match Self::try_join(path) {
            Ok(shared) => Some(shared),
            Err(Refusal(reason)) => {
                log::warn(format_args!(
                    "cannot share the quota file {}: {reason}; the limit applies only to this process",
                    path.to_string_lossy()
                ));
                None
            }
        }
    }

    fn try_join(path: &'static CStr) -> Result<Self, Refusal> {
        let own = OwnProcess::read().ok_or(Refusal("/proc cannot be read"))?;
        let (file, found) = File::open(path)?;
        let file = file.lock(AT_FIRST).ok_or(Refusal("another process holds its lock"))?;
        let region = file.map()?;
        prepare(region)?;
        let slot = claim(region, &own).ok_or(Refusal("it has no free slot for this process"))?;
        region.hooks_missing.fetch_max(missing_hooks(), Ordering::Relaxed);
        Ok(Self { region, slot, path, file: found, local_lock: Mutex::new(()) })
    }

    /// Counts an internal fault.
    pub(crate) fn count_fault(&self) {
        self.region.faults.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn region(&self) -> &'static Region {
        self.region
    }

    /// Returns the account of a GPU. If the GPU is not in the file, it is added with this limit.
    pub(crate) fn gpu_slot(&'static self, uuid: Uuid, limit: u64) -> Option<GpuSlot> {
        let rows = &self.region.gpus;
        let row = rows.iter().position(|row| row.is(uuid)).or_else(|| {
            let _local_lock = self.local_lock.lock().unwrap_or_else(PoisonError::into_inner);
            let _lock = self.lock(AT_FIRST)?;
            let known = rows.iter().position(|row| row.is(uuid));
            known.or_else(|| {
                let free = rows.iter().position(Row::is_free)?;
                rows.get(free)?.become_of(uuid, limit);
                Some(free)
            })
        });
        let Some(row) = row else {
            self.count_fault();
            log::warn(format_args!(
                "the shared quota has no free row for this GPU; the limit applies only to this process"
            ));
            return None;
        };
        Some(GpuSlot {
            shared: self,
            row,
            gpu: rows.get(row)?,
            own_bytes: self.region.of(row, self.slot)?,
            slot: self.region.slots.get(self.slot)?,
        })
    }

    /// Returns the limit on a GPU and the memory in use, if the GPU is in the file.
    pub(crate) fn usage(&self, uuid: Uuid) -> Option<(u64, u64)> {
        let row = self.region.gpus.iter().position(|row| row.is(uuid))?;
        Some((self.region.gpus.get(row)?.limit.load(Ordering::Relaxed), self.region.sum(row)))
    }

    /// Locks the file. The file is opened again each time, because the program could close a descriptor that
    /// is kept open and reuse the number for another file.
    fn lock(&self, patience: u64) -> Option<File> {
        let (file, found) = File::open(self.path).ok()?;
        // The lock is not valid if the file at this path was replaced.
        file.lock(patience).filter(|_| found == self.file)
    }
}

impl GpuSlot {
    /// Returns the limit and the memory that all processes use, in bytes.
    pub(crate) fn view(&self) -> (u64, u64) {
        (self.gpu.limit.load(Ordering::Relaxed), self.shared.region.sum(self.row))
    }

    /// Reserves memory. Returns false if the limit would be exceeded.
    pub(crate) fn reserve(&self, bytes: u64) -> bool {
        self.attempt(bytes) || self.reserve_locked(bytes)
    }

    /// Adds the size, and subtracts it again if the sum exceeds the limit.
    fn attempt(&self, bytes: u64) -> bool {
        let (limit, used) = self.view();
        // Without this check, an addition that cannot fit would make other processes subtract theirs.
        if used.checked_add(bytes).is_none_or(|sum| sum > limit) {
            return false;
        }
        self.own_bytes.fetch_add(bytes, Ordering::SeqCst);
        let sum = self.shared.region.sum(self.row);
        if sum > limit {
            subtract(self.own_bytes, bytes);
            return false;
        }
        if sum > self.gpu.peak.load(Ordering::Relaxed) {
            self.gpu.peak.fetch_max(sum, Ordering::Relaxed);
        }
        true
    }

    /// Releases the memory of exited processes and tries again, so that one of two concurrent attempts
    /// succeeds.
    #[cold]
    fn reserve_locked(&self, bytes: u64) -> bool {
        if bytes > self.gpu.limit.load(Ordering::Relaxed) {
            return false;
        }
        let _local_lock = self.shared.local_lock.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(_lock) = self.shared.lock(AT_THE_LIMIT) else {
            self.shared.count_fault();
            return self.attempt(bytes);
        };
        reclaim(self.shared.region, self.slot.namespace.load(Ordering::Relaxed));
        (0..ATTEMPTS).any(|_| {
            std::hint::spin_loop();
            self.attempt(bytes)
        })
    }

    /// Adds memory that is already in use, even if the limit is exceeded.
    pub(crate) fn charge(&self, bytes: u64) {
        self.own_bytes.fetch_add(bytes, Ordering::SeqCst);
    }

    pub(crate) fn release(&self, bytes: u64) {
        subtract(self.own_bytes, bytes);
    }

    pub(crate) fn granted(&self) {
        self.slot.allocations.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn freed(&self) {
        self.slot.frees.fetch_add(1, Ordering::Relaxed);
    }

    #[cold]
    pub(crate) fn denied(&self, bytes: u64) {
        self.slot.denied.fetch_add(1, Ordering::Relaxed);
        self.gpu.denied.fetch_add(1, Ordering::Relaxed);
        self.gpu.denied_bytes.fetch_add(bytes, Ordering::Relaxed);
        self.gpu.last_denied.fetch_max(log::now(), Ordering::Relaxed);
    }
}

/// Initializes an empty file, and clears a file from an earlier boot. The caller must hold the file lock.
fn prepare(region: &Region) -> Result<(), Refusal> {
    let size = region.size.load(Ordering::Relaxed);
    match (region.magic.load(Ordering::Acquire), region.version.load(Ordering::Relaxed)) {
        (0, 0) if size == 0 => {
            region.version.store(region::VERSION, Ordering::Relaxed);
            region.size.store(region::SIZE, Ordering::Relaxed);
            region.magic.store(region::MAGIC, Ordering::Release);
        }
        // The process that was initializing the file was killed before it finished.
        (0, region::VERSION) if size == 0 || size == region::SIZE => {
            region.size.store(region::SIZE, Ordering::Relaxed);
            region.magic.store(region::MAGIC, Ordering::Release);
        }
        (region::MAGIC, region::VERSION) if size == region::SIZE => {}
        (region::MAGIC, _) => return Err(Refusal("it has another version")),
        _ => return Err(Refusal("it is not a quota file")),
    }
    let Some(boot) = process::boot().map(region::words) else { return Ok(()) };
    if region::load(&region.boot) != boot {
        for (at, slot) in region.slots.iter().enumerate() {
            region.clear(at);
            slot.pid.store(0, Ordering::Release);
        }
        region.generation.fetch_add(1, Ordering::Relaxed);
        region::store(&region.boot, boot);
    }
    Ok(())
}

/// Claims a slot. The caller must hold the file lock. A slot that this process claimed before an `exec` is
/// used again.
fn claim(region: &Region, own: &OwnProcess) -> Option<usize> {
    reclaim(region, own.namespace);
    let is_own = |slot: &Slot| {
        slot.pid.load(Ordering::Acquire) == own.pid
            && slot.start.load(Ordering::Relaxed) == own.start
            && slot.namespace.load(Ordering::Relaxed) == own.namespace
    };
    let slots = &region.slots;
    let at = slots
        .iter()
        .position(is_own)
        .or_else(|| slots.iter().position(|slot| slot.pid.load(Ordering::Acquire) == 0))?;
    let slot = slots.get(at)?;
    region.clear(at);
    slot.start.store(own.start, Ordering::Relaxed);
    slot.namespace.store(own.namespace, Ordering::Relaxed);
    region::store(&slot.name, region::words(own.name));
    for counter in [&slot.allocations, &slot.frees, &slot.denied] {
        counter.store(0, Ordering::Relaxed);
    }
    region.raise(at);
    slot.pid.store(own.pid, Ordering::Release);
    Some(at)
}

/// Releases the memory of exited processes. The caller must hold the file lock. Processes in other PID
/// namespaces cannot be checked.
fn reclaim(region: &Region, namespace: u64) {
    for (at, slot) in region.slots.iter().enumerate() {
        let pid = slot.pid.load(Ordering::Acquire);
        if pid != 0
            && slot.namespace.load(Ordering::Relaxed) == namespace
            && process::is_gone(pid, slot.start.load(Ordering::Relaxed))
        {
            region.clear(at);
            slot.pid.store(0, Ordering::Release);
        }
    }
}

/// An open file. Dropping it unlocks and closes the file.
struct File(c_int);

/// Descriptor that might hold the lock, or -1. A forked child inherits the descriptor and with it the lock.
static LOCKING: AtomicI32 = AtomicI32::new(-1);

/// Closes the parent's descriptor in a forked child, which must not hold the lock.
pub(crate) fn forked() {
    let file = LOCKING.swap(-1, Ordering::Relaxed);
    if file >= 0 {
        // SAFETY: the descriptor is an inherited copy that no other code in the child uses.
        unsafe { libc::close(file) };
    }
}

impl File {
    /// Opens a regular file. Rejects symbolic links, and does not block on a FIFO.
    fn open(path: &CStr) -> Result<(Self, Identity), Refusal> {
        let flags = libc::O_RDWR | libc::O_CLOEXEC | libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_NOCTTY;
        // SAFETY: the path is a C string.
        let file = unsafe { libc::open(path.as_ptr(), flags) };
        if file < 0 {
            return Err(Refusal(match process::errno() {
                libc::ENOENT => "no such file",
                libc::ELOOP => "it is a symbolic link",
                libc::EACCES | libc::EPERM => "no permission to write it",
                _ => "it cannot be opened",
            }));
        }
        let file = Self(file);
        let about = file.about().ok_or(Refusal("its attributes cannot be read"))?;
        if about.st_mode & libc::S_IFMT != libc::S_IFREG {
            return Err(Refusal("it is not a regular file"));
        }
        Ok((file, Identity { device: about.st_dev, inode: about.st_ino }))
    }

    fn about(&self) -> Option<libc::stat> {
        let mut about = MaybeUninit::uninit();
        // SAFETY: the descriptor is open, and the result goes to a local variable.
        let known = unsafe { libc::fstat(self.0, about.as_mut_ptr()) } == 0;
        // SAFETY: `fstat` has succeeded and initialized the variable.
        known.then(|| unsafe { about.assume_init() })
    }

    /// Locks the file. Returns `None` if another process holds the lock for `patience` nanoseconds.
    fn lock(self, patience: u64) -> Option<Self> {
        LOCKING.store(self.0, Ordering::Relaxed);
        let end = log::clock(libc::CLOCK_MONOTONIC).saturating_add(patience);
        // SAFETY: the descriptor is open.
        while unsafe { libc::flock(self.0, libc::LOCK_EX | libc::LOCK_NB) } != 0 {
            if log::clock(libc::CLOCK_MONOTONIC) >= end {
                return None;
            }
            let moment = libc::timespec { tv_sec: 0, tv_nsec: 100_000 };
            // SAFETY: the pointer is to a local variable.
            unsafe { libc::nanosleep(&raw const moment, ptr::null_mut()) };
        }
        Some(self)
    }

    /// Maps the file permanently if it is long enough. An empty file is extended first.
    fn map(&self) -> Result<&'static Region, Refusal> {
        let size = size_of::<Region>();
        let about = self.about().ok_or(Refusal("its attributes cannot be read"))?;
        let long = i64::from(region::SIZE);
        // SAFETY: the descriptor is open.
        if about.st_size == 0 && unsafe { libc::ftruncate(self.0, long) } != 0 {
            return Err(Refusal("it cannot be extended"));
        }
        if about.st_size != 0 && about.st_size < long {
            return Err(Refusal("it is too short"));
        }
        // SAFETY: this is a new mapping of an open file that is long enough. All fields are atomic, so
        // concurrent writes are allowed and any bytes are valid values. Truncation would end this process
        // with SIGBUS, so processes that may write the file are trusted not to truncate it (docs/quota.md).
        unsafe {
            let protection = libc::PROT_READ | libc::PROT_WRITE;
            let place = libc::mmap(ptr::null_mut(), size, protection, libc::MAP_SHARED, self.0, 0);
            if place == libc::MAP_FAILED { Err(Refusal("it cannot be mapped")) } else { Ok(&*place.cast()) }
        }
    }
}

impl Drop for File {
    fn drop(&mut self) {
        LOCKING.store(-1, Ordering::Relaxed);
        // SAFETY: the descriptor belongs to this value and is closed once. It is unlocked explicitly, because
        // a forked child and the mapping may keep the file open after the close.
        unsafe {
            libc::flock(self.0, libc::LOCK_UN);
            libc::close(self.0);
        }
    }
}

/// Subtracts, but not below 0: another program might have lowered the value in the file.
pub(crate) fn subtract(used: &AtomicU64, bytes: u64) {
    let less = |used: u64| Some(used.saturating_sub(bytes));
    // The result is always `Ok`, because the closure always returns `Some`.
    let _ = used.fetch_update(Ordering::SeqCst, Ordering::Relaxed, less);
}

/// Function that counts newer, unhooked versions of hooked functions.
static MISSING_HOOKS: OnceLock<fn() -> u64> = OnceLock::new();

/// Sets the function that counts missing hooks. The hooks depend on this module, so this module cannot call
/// them directly.
pub(crate) fn count_missing_hooks_by(count: fn() -> u64) {
    MISSING_HOOKS.get_or_init(|| count);
}

fn missing_hooks() -> u64 {
    MISSING_HOOKS.get().map_or(0, |count| count())
}
