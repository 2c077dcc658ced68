//! Record of actual allocations: how much of each GPU is allocated now and was allocated at most, by all processes
//! that share a file. As with a real driver, the memory of a process is free once the process has exited.
#![expect(
    clippy::disallowed_methods,
    reason = "reads and writes the file of the truth, and checks in /proc which processes run"
)]
#![expect(clippy::panic, reason = "a test whose allocations cannot be recorded fails")]

use std::cell::UnsafeCell;
use std::ffi::OsStr;
use std::fs::{self, OpenOptions};
use std::mem::MaybeUninit;
use std::os::fd::AsRawFd;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::{io, process, ptr};

use crate::code::{Answer, Code};
use crate::settings;

/// Maximum number of GPUs on a machine.
pub(crate) const GPUS: usize = 8;
const ROWS: usize = 4096;

/// Content of the file, or of memory that is shared with child processes. It is read by `tests/src/cuda.rs`.
#[repr(C)]
struct Truth {
    used: [AtomicU64; GPUS],
    peak: [AtomicU64; GPUS],
    /// Number of rows in use.
    next: AtomicU64,
    rows: [Row; ROWS],
    /// 0 if blank, 1 if initialized.
    ready: AtomicU32,
    mutex: UnsafeCell<MaybeUninit<libc::pthread_mutex_t>>,
}

/// Memory of one process.
#[repr(C)]
struct Row {
    pid: AtomicU64,
    start: AtomicU64,
    used: [AtomicU64; GPUS],
}

// SAFETY: all fields except the mutex are atomic, and the mutex is only used through pthread_mutex_*.
unsafe impl Sync for Truth {}

const NONE: u32 = u32::MAX;
/// This process's row.
static MINE: AtomicU32 = AtomicU32::new(NONE);

/// Allocates memory, or fails if the GPU is full.
pub(crate) fn charge(gpu: usize, bytes: u64) -> Answer {
    let truth = truth();
    let _held = truth.lock();
    let capacity = settings::get().memory;
    let mut used = truth.used[gpu].load(Ordering::Relaxed).saturating_add(bytes);
    if used > truth.peak[gpu].load(Ordering::Relaxed) {
        truth.bury(gpu);
        used = truth.used[gpu].load(Ordering::Relaxed).saturating_add(bytes);
    }
    if used > capacity {
        return Err(Code::OUT_OF_MEMORY);
    }
    truth.mine().used[gpu].fetch_add(bytes, Ordering::Relaxed);
    truth.used[gpu].store(used, Ordering::Relaxed);
    truth.peak[gpu].fetch_max(used, Ordering::Relaxed);
    Ok(())
}

/// Releases memory.
pub(crate) fn release(gpu: usize, bytes: u64) {
    let truth = truth();
    let _held = truth.lock();
    truth.used[gpu].fetch_sub(bytes, Ordering::Relaxed);
    truth.mine().used[gpu].fetch_sub(bytes, Ordering::Relaxed);
}

/// Returns the memory that all processes have allocated now, and the peak.
pub(crate) fn of(gpu: usize) -> (u64, u64) {
    let truth = truth();
    (truth.used[gpu].load(Ordering::Relaxed), truth.peak[gpu].load(Ordering::Relaxed))
}

/// Resets the row of a forked child, which has no memory yet.
pub(crate) fn forked() {
    MINE.store(NONE, Ordering::Relaxed);
}

impl Truth {
    fn lock(&self) -> Held<'_> {
        let mutex = self.mutex.get().cast();
        // SAFETY: the mutex was initialized before `ready` was set, and the mapping is never removed.
        unsafe {
            if libc::pthread_mutex_lock(mutex) == libc::EOWNERDEAD {
                // The holder was killed while it held the mutex. Each row is valid, but the sum may not be.
                (0..GPUS).for_each(|gpu| self.bury(gpu));
                libc::pthread_mutex_consistent(mutex);
            }
        }
        Held(self)
    }

    fn mine(&self) -> &Row {
        let mut mine = MINE.load(Ordering::Relaxed);
        if mine == NONE {
            mine = u32::try_from(self.next.fetch_add(1, Ordering::Relaxed)).unwrap_or(NONE);
            let row = &self.rows[mine as usize];
            let pid = process::id();
            row.start.store(start(u64::from(pid)).unwrap_or(0), Ordering::Relaxed);
            row.pid.store(pid.into(), Ordering::Relaxed);
            MINE.store(mine, Ordering::Relaxed);
        }
        &self.rows[mine as usize]
    }

    /// Removes the memory of exited processes, and sums the rest.
    fn bury(&self, gpu: usize) {
        let given = usize::try_from(self.next.load(Ordering::Relaxed)).unwrap_or(ROWS).min(ROWS);
        let mut sum = 0;
        for (at, row) in self.rows[..given].iter().enumerate() {
            let used = row.used[gpu].load(Ordering::Relaxed);
            let ours = u32::try_from(at).is_ok_and(|at| at == MINE.load(Ordering::Relaxed));
            if used != 0 && !ours {
                let pid = row.pid.load(Ordering::Relaxed);
                if start(pid) != Some(row.start.load(Ordering::Relaxed)) {
                    row.used[gpu].store(0, Ordering::Relaxed);
                    continue;
                }
            }
            sum += used;
        }
        self.used[gpu].store(sum, Ordering::Relaxed);
    }
}

/// Holds the mutex until it is dropped.
struct Held<'a>(&'a Truth);

impl Drop for Held<'_> {
    fn drop(&mut self) {
        // SAFETY: this thread locked it.
        unsafe { libc::pthread_mutex_unlock(self.0.mutex.get().cast()) };
    }
}

/// Returns the start time of a process, unless the process is a zombie without other threads, because its memory is
/// then free. The kernel reports 0 threads for a process that is being reaped.
fn start(pid: u64) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let fields: Vec<&str> = text.rsplit_once(')')?.1.split_whitespace().collect();
    if fields.first().is_none_or(|state| ["Z", "X"].contains(state))
        && fields.get(17).is_some_and(|threads| ["0", "1"].contains(threads))
    {
        return None;
    }
    fields.get(19)?.parse().ok()
}

fn truth() -> &'static Truth {
    static TRUTH: OnceLock<&'static Truth> = OnceLock::new();
    TRUTH.get_or_init(|| settings::get().truth.as_ref().map_or_else(|| map(None), |path| share(path)))
}

fn share(path: &OsStr) -> &'static Truth {
    let shared = || -> io::Result<&'static Truth> {
        let file = OpenOptions::new().read(true).write(true).open(path)?;
        file.lock()?;
        file.set_len(size_of::<Truth>() as u64)?;
        let truth = map(Some(&file));
        // The mapping keeps the file open, so closing the descriptor would not unlock the file.
        file.unlock()?;
        Ok(truth)
    };
    shared().unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn map(file: Option<&fs::File>) -> &'static Truth {
    let (flags, fd) = file
        .map_or((libc::MAP_SHARED | libc::MAP_ANONYMOUS, -1), |file| (libc::MAP_SHARED, file.as_raw_fd()));
    // SAFETY: the mapping is new and as long as the structure. All zeros are a valid value, except for the mutex,
    // which is initialized here.
    unsafe {
        let place =
            libc::mmap(ptr::null_mut(), size_of::<Truth>(), libc::PROT_READ | libc::PROT_WRITE, flags, fd, 0);
        assert!(place != libc::MAP_FAILED, "the record of allocations cannot be mapped");
        let truth: &'static Truth = &*place.cast();
        if truth.ready.load(Ordering::Acquire) == 0 {
            let mut kind = MaybeUninit::<libc::pthread_mutexattr_t>::uninit();
            libc::pthread_mutexattr_init(kind.as_mut_ptr());
            libc::pthread_mutexattr_setpshared(kind.as_mut_ptr(), libc::PTHREAD_PROCESS_SHARED);
            libc::pthread_mutexattr_setrobust(kind.as_mut_ptr(), libc::PTHREAD_MUTEX_ROBUST);
            libc::pthread_mutex_init(truth.mutex.get().cast(), kind.as_ptr());
            truth.ready.store(1, Ordering::Release);
        }
        truth
    }
}
