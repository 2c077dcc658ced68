//! A quota that processes share: each adds to a word of its own and then looks at the sum. As all see all words change
//! in one order, whoever adds last sees what all others have, so the limit is never passed; whoever sees too much takes
//! his back, and asks again one at a time.

use std::ffi::{CStr, c_int};
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::gpu::subtract;
use crate::process::{self, Own};
use crate::region::{self, Region, Row, Slot};
use crate::settings::Uuid;
use crate::{hooks, life, log};

/// How long a process waits for the lock when it begins, and when there seems to be no room.
const AT_FIRST: u64 = 1_000_000_000;
const AT_THE_LIMIT: u64 = 50_000_000;
/// How often it is tried again while others may have added what they are about to take back.
const ATTEMPTS: u32 = 16;

/// A place in a shared quota.
pub(crate) struct Shared {
    region: &'static Region,
    slot: usize,
    path: &'static CStr,
    file: Identity,
    /// Threads of this process take turns before they try for the lock.
    turn: Mutex<()>,
}

/// The account of one GPU in a shared quota.
pub(crate) struct Seat {
    shared: &'static Shared,
    row: usize,
    gpu: &'static Row,
    mine: &'static AtomicU64,
    slot: &'static Slot,
}

/// What tells a file from others.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Identity {
    device: u64,
    inode: u64,
}

/// Why a file is not used.
#[derive(Debug)]
struct Refusal(&'static str);

impl Shared {
    /// Takes a place. Where that cannot be, it is said, and the limit holds for this process alone.
    pub(crate) fn join(path: &'static CStr) -> Option<Self> {
        match Self::try_join(path) {
            Ok(shared) => Some(shared),
            Err(Refusal(reason)) => {
                life::fault();
                log::say(format_args!("{}: {reason}: the quota is not shared", path.to_string_lossy()));
                None
            }
        }
    }

    fn try_join(path: &'static CStr) -> Result<Self, Refusal> {
        let own = Own::look().ok_or(Refusal("/proc cannot be read"))?;
        let (file, found) = File::open(path)?;
        let file = file.lock(AT_FIRST).ok_or(Refusal("others hold its lock"))?;
        let region = file.map()?;
        prepare(region)?;
        let slot = claim(region, &own).ok_or(Refusal("it has no room for another process"))?;
        region.hooks_missing.fetch_max(hooks::unknown(), Ordering::Relaxed);
        Ok(Self { region, slot, path, file: found, turn: Mutex::new(()) })
    }

    /// The file.
    pub(crate) fn region(&self) -> &'static Region {
        self.region
    }

    /// The account of a GPU. One that the file does not know yet gets this limit.
    pub(crate) fn seat(&'static self, uuid: Uuid, limit: u64) -> Option<Seat> {
        let rows = &self.region.gpus;
        let row = rows.iter().position(|row| row.is(uuid)).or_else(|| {
            let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
            let _lock = self.lock(AT_FIRST)?;
            let known = rows.iter().position(|row| row.is(uuid));
            known.or_else(|| {
                let free = rows.iter().position(Row::is_free)?;
                rows.get(free)?.become_of(uuid, limit);
                Some(free)
            })
        });
        let Some(row) = row else {
            life::fault();
            log::say(format_args!(
                "the shared quota has no room for another GPU: the limit of this process holds"
            ));
            return None;
        };
        Some(Seat {
            shared: self,
            row,
            gpu: rows.get(row)?,
            mine: self.region.of(row, self.slot)?,
            slot: self.region.slots.get(self.slot)?,
        })
    }

    /// The limit of a GPU and what is used of it, if the file knows it.
    pub(crate) fn look(&self, uuid: Uuid) -> Option<(u64, u64)> {
        let row = self.region.gpus.iter().position(|row| row.is(uuid))?;
        Some((self.region.gpus.get(row)?.limit.load(Ordering::Relaxed), self.region.sum(row)))
    }

    /// The lock of the file. It is opened again each time: a descriptor kept open could be closed by the program and be
    /// a file of its own by now.
    fn lock(&self, patience: u64) -> Option<File> {
        let (file, found) = File::open(self.path).ok()?;
        // Whoever replaced the file has another lock.
        file.lock(patience).filter(|_| found == self.file)
    }
}

impl Seat {
    /// The limit, and what all have.
    pub(crate) fn view(&self) -> (u64, u64) {
        (self.gpu.limit.load(Ordering::Relaxed), self.shared.region.sum(self.row))
    }

    /// Takes room, if there is.
    pub(crate) fn reserve(&self, bytes: u64) -> bool {
        self.attempt(bytes) || self.insist(bytes)
    }

    /// Adds, and takes it back if that was too much.
    fn attempt(&self, bytes: u64) -> bool {
        let (limit, used) = self.view();
        // To add what cannot fit would only make others take back theirs.
        if used.checked_add(bytes).is_none_or(|sum| sum > limit) {
            return false;
        }
        self.mine.fetch_add(bytes, Ordering::SeqCst);
        let sum = self.shared.region.sum(self.row);
        if sum > limit {
            subtract(self.mine, bytes);
            return false;
        }
        if sum > self.gpu.peak.load(Ordering::Relaxed) {
            self.gpu.peak.fetch_max(sum, Ordering::Relaxed);
        }
        true
    }

    /// One at a time: takes from the dead, and tries again, so that of two who were in each other's way one has it.
    #[cold]
    fn insist(&self, bytes: u64) -> bool {
        if bytes > self.gpu.limit.load(Ordering::Relaxed) {
            return false;
        }
        let _turn = self.shared.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(_lock) = self.shared.lock(AT_THE_LIMIT) else {
            life::fault();
            return self.attempt(bytes);
        };
        reclaim(self.shared.region, self.slot.namespace.load(Ordering::Relaxed));
        (0..ATTEMPTS).any(|_| {
            std::hint::spin_loop();
            self.attempt(bytes)
        })
    }

    /// Adds what is in use already.
    pub(crate) fn charge(&self, bytes: u64) {
        self.mine.fetch_add(bytes, Ordering::SeqCst);
    }

    pub(crate) fn release(&self, bytes: u64) {
        subtract(self.mine, bytes);
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

/// Makes an empty file a quota, and empties one of an earlier boot; under the lock.
fn prepare(region: &Region) -> Result<(), Refusal> {
    let size = region.size.load(Ordering::Relaxed);
    match (region.magic.load(Ordering::Acquire), region.version.load(Ordering::Relaxed)) {
        (0, 0) if size == 0 => {
            region.version.store(region::VERSION, Ordering::Relaxed);
            region.size.store(region::SIZE, Ordering::Relaxed);
            region.magic.store(region::MAGIC, Ordering::Release);
        }
        // Whoever began it was killed before he was done.
        (0, region::VERSION) if size == 0 || size == region::SIZE => {
            region.size.store(region::SIZE, Ordering::Relaxed);
            region.magic.store(region::MAGIC, Ordering::Release);
        }
        (region::MAGIC, region::VERSION) if size == region::SIZE => {}
        (region::MAGIC, _) => return Err(Refusal("it is of another version")),
        _ => return Err(Refusal("it is no quota")),
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

/// Takes a slot; under the lock. One that this very process has already is what it had before it became another program.
fn claim(region: &Region, own: &Own) -> Option<usize> {
    reclaim(region, own.namespace);
    let ours = |slot: &Slot| {
        slot.pid.load(Ordering::Acquire) == own.pid
            && slot.start.load(Ordering::Relaxed) == own.start
            && slot.namespace.load(Ordering::Relaxed) == own.namespace
    };
    let slots = &region.slots;
    let at = slots
        .iter()
        .position(ours)
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

/// Takes from the dead of a namespace of pids; under the lock. Of others' nothing is known from here.
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

/// The open file; closed, and by that unlocked, when it is dropped.
struct File(c_int);

/// The descriptor that may hold the lock. A child of a fork has it too, and with it the lock, even if we are killed.
static LOCKING: AtomicI32 = AtomicI32::new(-1);

/// A child holds no lock of its parent's.
pub(crate) fn forked() {
    let file = LOCKING.swap(-1, Ordering::Relaxed);
    if file >= 0 {
        // SAFETY: the parent's, of which the child has a copy that nobody else knows.
        unsafe { libc::close(file) };
    }
}

impl File {
    /// Opens a regular file, and nothing that is found through a link or that could be waited for.
    fn open(path: &CStr) -> Result<(Self, Identity), Refusal> {
        let flags = libc::O_RDWR | libc::O_CLOEXEC | libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_NOCTTY;
        // SAFETY: a C string.
        let file = unsafe { libc::open(path.as_ptr(), flags) };
        if file < 0 {
            return Err(Refusal(match process::errno() {
                libc::ENOENT => "there is no such file",
                libc::ELOOP => "it is a link",
                libc::EACCES | libc::EPERM => "it may not be written",
                _ => "it cannot be opened",
            }));
        }
        let file = Self(file);
        let about = file.about().ok_or(Refusal("it cannot be looked at"))?;
        if about.st_mode & libc::S_IFMT != libc::S_IFREG {
            return Err(Refusal("it is no file"));
        }
        Ok((file, Identity { device: about.st_dev, inode: about.st_ino }))
    }

    fn about(&self) -> Option<libc::stat> {
        let mut about = MaybeUninit::uninit();
        // SAFETY: an open descriptor, and room for the answer.
        let known = unsafe { libc::fstat(self.0, about.as_mut_ptr()) } == 0;
        // SAFETY: it was filled in.
        known.then(|| unsafe { about.assume_init() })
    }

    /// Locks it, unless others hold it for so long, in nanoseconds.
    fn lock(self, patience: u64) -> Option<Self> {
        LOCKING.store(self.0, Ordering::Relaxed);
        let end = log::clock(libc::CLOCK_MONOTONIC).saturating_add(patience);
        // SAFETY: an open descriptor.
        while unsafe { libc::flock(self.0, libc::LOCK_EX | libc::LOCK_NB) } != 0 {
            if log::clock(libc::CLOCK_MONOTONIC) >= end {
                return None;
            }
            let moment = libc::timespec { tv_sec: 0, tv_nsec: 100_000 };
            // SAFETY: a time of our own.
            unsafe { libc::nanosleep(&raw const moment, ptr::null_mut()) };
        }
        Some(self)
    }

    /// Maps it, if it is as long as it must be; an empty one is made so. For ever: a page of it is never unmapped.
    fn map(&self) -> Result<&'static Region, Refusal> {
        let size = size_of::<Region>();
        let about = self.about().ok_or(Refusal("it cannot be looked at"))?;
        let long = i64::from(region::SIZE);
        // SAFETY: an open descriptor.
        if about.st_size == 0 && unsafe { libc::ftruncate(self.0, long) } != 0 {
            return Err(Refusal("it cannot be made long enough"));
        }
        if about.st_size != 0 && about.st_size < long {
            return Err(Refusal("it is too short"));
        }
        // SAFETY: a new mapping of an open file that is long enough. Everything in it is atomic, so that others may
        // write it at the same time, and any bytes are values of it. Cutting it short would end us; who may write
        // it is not our enemy (docs/quota.md).
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
        // SAFETY: ours, and closed once. It is unlocked first: a child of a fork may have it too, and so does a mapping of it.
        unsafe {
            libc::flock(self.0, libc::LOCK_UN);
            libc::close(self.0);
        }
    }
}
