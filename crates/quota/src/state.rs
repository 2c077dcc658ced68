//! The state of this process. CUDA does not survive a fork, so a child starts with an empty state.

use std::alloc::{Layout, alloc};
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use crate::abi::{Device, Handle};
use crate::allocations::AllocationTable;
use crate::gpu::GpuAccount;
use crate::pools::{PoolLocation, Pools};
use crate::shared::Shared;
use crate::sparse_map::SparseMap;
use crate::vmm::Vmm;
use crate::{driver, environment};

/// The number of GPUs that a process may use; memory on others is not counted.
const GPUS: usize = 64;

/// The state of a process.
pub(crate) struct ProcessState {
    pub(crate) allocations: AllocationTable,
    pub(crate) vmm: Mutex<Vmm>,
    pub(crate) sparse_map: Mutex<SparseMap>,
    pub(crate) pools: Mutex<Pools>,
    gpus: [OnceLock<GpuAccount>; GPUS],
    shared: OnceLock<Option<Shared>>,
}

static STATE: AtomicPtr<ProcessState> = AtomicPtr::new(ptr::null_mut());

/// The state of this process; `None` without memory for it.
pub(crate) fn get() -> Option<&'static ProcessState> {
    let state = STATE.load(Ordering::Acquire);
    if state.is_null() {
        return begin();
    }
    // SAFETY: it was fully written before it was stored, and is never freed.
    Some(unsafe { &*state })
}

#[cold]
fn begin() -> Option<&'static ProcessState> {
    #[expect(clippy::cast_ptr_alignment, reason = "the layout has the alignment")]
    // SAFETY: the layout has a size.
    let new = unsafe { alloc(Layout::new::<ProcessState>()) }.cast::<ProcessState>();
    if new.is_null() {
        return None;
    }
    // SAFETY: newly allocated with the size and alignment of the type.
    unsafe { new.write(ProcessState::new()) };
    let first = STATE.compare_exchange(ptr::null_mut(), new, Ordering::AcqRel, Ordering::Acquire);
    // If another thread was first, ours is leaked: a few kilobytes, once.
    let state = first.map_or_else(|first| first, |_| new);
    // SAFETY: both were fully written before they were stored, and are never freed.
    Some(unsafe { &*state })
}

/// Drops the state in a child of a fork. It is leaked: another thread may have been writing to it at the time of the fork.
pub(crate) fn forked() {
    STATE.store(ptr::null_mut(), Ordering::Release);
}

/// Counts an internal fault in the file of a shared quota.
#[cold]
pub(crate) fn fault() {
    if let Some(Some(shared)) = get().and_then(|state| state.shared.get()) {
        shared.count_fault();
    }
}

impl ProcessState {
    const fn new() -> Self {
        Self {
            allocations: AllocationTable::new(),
            vmm: Mutex::new(Vmm::new()),
            sparse_map: Mutex::new(SparseMap::new()),
            pools: Mutex::new(Pools::new()),
            gpus: [const { OnceLock::new() }; GPUS],
            shared: OnceLock::new(),
        }
    }

    /// The account of a GPU.
    pub(crate) fn gpu(&'static self, device: Device) -> Option<&'static GpuAccount> {
        let place = usize::try_from(device).ok().and_then(|device| self.gpus.get(device));
        let Some(place) = place else {
            self.not_counted();
            return None;
        };
        if let Some(gpu) = place.get() {
            return Some(gpu);
        }
        // The driver is called before the lock: profiling tools may call us from within the driver.
        let uuid = driver::uuid(device);
        Some(place.get_or_init(|| GpuAccount::open_account((device, uuid), self.shared())))
    }

    /// The account of the current context's GPU; `None` without a context, which the driver reports itself.
    pub(crate) fn current_gpu(&'static self) -> Option<&'static GpuAccount> {
        driver::current_device().and_then(|device| self.gpu(device))
    }

    /// The opened accounts.
    pub(crate) fn accounts(&self) -> impl Iterator<Item = &GpuAccount> {
        self.gpus.iter().filter_map(OnceLock::get)
    }

    /// The quota that is shared with other processes, if one is configured and usable.
    pub(crate) fn shared(&'static self) -> Option<&'static Shared> {
        self.shared.get_or_init(|| environment::settings().shared.as_deref().and_then(Shared::join)).as_ref()
    }

    /// Counts a call whose memory is not counted in bytes, in the file of a shared quota.
    pub(crate) fn not_counted(&self) {
        if let Some(Some(shared)) = self.shared.get() {
            shared.region().uncounted.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The location of a pool's memory.
    pub(crate) fn pool(&self, pool: Handle) -> Option<PoolLocation> {
        self.pools.lock().unwrap_or_else(PoisonError::into_inner).get(pool)
    }
}
