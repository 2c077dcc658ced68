//! All that is known between a fork and the next: CUDA does not survive one, so a child begins with nothing.

use std::alloc::{Layout, alloc};
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use crate::abi::{Device, Handle};
use crate::book::Book;
use crate::gpu::Gpu;
use crate::hooks::pools::Pools;
use crate::shared::{self, Shared};
use crate::tiles::Tiles;
use crate::vmm::Vmm;
use crate::{driver, start};

/// How many GPUs a process may use; memory on others is not counted.
const GPUS: usize = 64;

/// What a process knows.
pub(crate) struct Life {
    pub(crate) book: Book,
    pub(crate) vmm: Mutex<Vmm>,
    pub(crate) tiles: Mutex<Tiles>,
    pub(crate) pools: Mutex<Pools>,
    gpus: [OnceLock<Gpu>; GPUS],
    shared: OnceLock<Option<Shared>>,
    /// Faults of ours, and calls that are let through and not counted.
    faults: AtomicU64,
    uncounted: AtomicU64,
}

static LIFE: AtomicPtr<Life> = AtomicPtr::new(ptr::null_mut());

/// What this process knows; `None` without memory to know it in.
pub(crate) fn get() -> Option<&'static Life> {
    let life = LIFE.load(Ordering::Acquire);
    if life.is_null() {
        return begin();
    }
    // SAFETY: it was fully written before it was stored, and is never freed.
    Some(unsafe { &*life })
}

#[cold]
fn begin() -> Option<&'static Life> {
    #[expect(clippy::cast_ptr_alignment, reason = "the layout has the alignment")]
    // SAFETY: the layout has a size.
    let new = unsafe { alloc(Layout::new::<Life>()) }.cast::<Life>();
    if new.is_null() {
        return None;
    }
    // SAFETY: new, and as large as needed.
    unsafe { new.write(Life::new()) };
    let first = LIFE.compare_exchange(ptr::null_mut(), new, Ordering::AcqRel, Ordering::Acquire);
    // Another thread's may be the first; then ours is left, a few kilobytes, once.
    let life = first.map_or_else(|first| first, |_| new);
    // SAFETY: both were fully written before they were stored, and are never freed.
    Some(unsafe { &*life })
}

/// Registers the handler for children of `fork`. This is done when the library is loaded: a thread that registers it later may be
/// overtaken by a `fork` of another thread, whose child would then keep its parent's accounts and locks.
pub(crate) fn register_fork_handler() {
    // SAFETY: the handler does what a child of a process with threads may do.
    unsafe { libc::pthread_atfork(None, None, Some(forked)) };
}

/// What was known is left where it is: another thread may have been writing it when the process forked.
extern "C" fn forked() {
    LIFE.store(ptr::null_mut(), Ordering::Release);
    start::forked();
    shared::forked();
}

/// Counts a fault of ours.
#[cold]
pub(crate) fn fault() {
    if let Some(life) = get() {
        life.faults.fetch_add(1, Ordering::Relaxed);
        if let Some(Some(shared)) = life.shared.get() {
            shared.region().faults.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Life {
    const fn new() -> Self {
        Self {
            book: Book::new(),
            vmm: Mutex::new(Vmm::new()),
            tiles: Mutex::new(Tiles::new()),
            pools: Mutex::new(Pools::new()),
            gpus: [const { OnceLock::new() }; GPUS],
            shared: OnceLock::new(),
            faults: AtomicU64::new(0),
            uncounted: AtomicU64::new(0),
        }
    }

    /// The account of a GPU.
    pub(crate) fn gpu(&'static self, device: Device) -> Option<&'static Gpu> {
        let place = usize::try_from(device).ok().and_then(|device| self.gpus.get(device));
        let Some(place) = place else {
            self.not_counted();
            return None;
        };
        if let Some(gpu) = place.get() {
            return Some(gpu);
        }
        // The driver is asked before: tools that watch a program may call us from within it.
        let uuid = driver::uuid(device);
        Some(place.get_or_init(|| Gpu::meet((device, uuid), self.shared())))
    }

    /// The account of the GPU of the current context; without one the driver says so.
    pub(crate) fn current_gpu(&'static self) -> Option<&'static Gpu> {
        driver::current_device().and_then(|device| self.gpu(device))
    }

    /// The accounts that were opened.
    pub(crate) fn met(&self) -> impl Iterator<Item = &Gpu> {
        self.gpus.iter().filter_map(OnceLock::get)
    }

    /// The quota that is shared with other processes, if one is asked for and can be used.
    pub(crate) fn shared(&'static self) -> Option<&'static Shared> {
        self.shared.get_or_init(|| start::settings().shared.as_deref().and_then(Shared::join)).as_ref()
    }

    /// Counts a call that is let through without being counted in bytes.
    pub(crate) fn not_counted(&self) {
        self.uncounted.fetch_add(1, Ordering::Relaxed);
        if let Some(Some(shared)) = self.shared.get() {
            shared.region().uncounted.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Where memory of a pool is.
    pub(crate) fn pool(&self, pool: Handle) -> Option<crate::hooks::pools::Place> {
        self.pools.lock().unwrap_or_else(PoisonError::into_inner).get(pool)
    }
}
