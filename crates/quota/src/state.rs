//! State of this process. A CUDA context does not survive a fork, so a forked child starts with an empty
//! state.

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

/// Number of GPUs that a process may use. Memory on further GPUs is not counted.
const GPUS: usize = 64;

/// State of this process.
pub(crate) struct ProcessState {
    pub(crate) allocations: AllocationTable,
    pub(crate) vmm: Mutex<Vmm>,
    pub(crate) sparse_map: Mutex<SparseMap>,
    pub(crate) pools: Mutex<Pools>,
    gpus: [OnceLock<GpuAccount>; GPUS],
    shared: OnceLock<Option<Shared>>,
}

static STATE: AtomicPtr<ProcessState> = AtomicPtr::new(ptr::null_mut());

/// Returns the state of this process, or `None` if there is no memory for it.
pub(crate) fn get() -> Option<&'static ProcessState> {
    let state = STATE.load(Ordering::Acquire);
    if state.is_null() {
        return begin();
    }
    // SAFETY: the state was fully written before it was stored, and is never freed.
    Some(unsafe { &*state })
}

#[cold]
fn begin() -> Option<&'static ProcessState> {
    #[expect(clippy::cast_ptr_alignment, reason = "the layout has the alignment")]
    // SAFETY: the size of the layout is not zero.
    let new = unsafe { alloc(Layout::new::<ProcessState>()) }.cast::<ProcessState>();
    if new.is_null() {
        return None;
    }
    // SAFETY: the memory is newly allocated with the size and alignment of the type.
    unsafe { new.write(ProcessState::new()) };
    let first = STATE.compare_exchange(ptr::null_mut(), new, Ordering::AcqRel, Ordering::Acquire);
    // If another thread stored its state first, this state is leaked. That can happen once and costs a
    // few kilobytes.
    let state = first.map_or_else(|first| first, |_| new);
    // SAFETY: either state was fully written before it was stored, and is never freed.
    Some(unsafe { &*state })
}

/// Resets the state in a forked child. The old state is leaked, because another thread may have been
/// writing to it.
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

    /// Returns the account of a GPU, and opens it at the first use.
    pub(crate) fn gpu(&'static self, device: Device) -> Option<&'static GpuAccount> {
        let place = usize::try_from(device).ok().and_then(|device| self.gpus.get(device));
        let Some(place) = place else {
            self.not_counted();
            return None;
        };
        if let Some(gpu) = place.get() {
            return Some(gpu);
        }
        // The driver is called without holding the lock, because a profiling tool might call a hook from
        // within the driver.
        let uuid = driver::uuid(device);
        Some(place.get_or_init(|| GpuAccount::open_account((device, uuid), self.shared())))
    }

    /// Returns the account of the current context's GPU, or `None` without a context.
    pub(crate) fn current_gpu(&'static self) -> Option<&'static GpuAccount> {
        driver::current_device().and_then(|device| self.gpu(device))
    }

    /// Returns the open accounts.
    pub(crate) fn accounts(&self) -> impl Iterator<Item = &GpuAccount> {
        self.gpus.iter().filter_map(OnceLock::get)
    }

    /// Returns the quota that is shared with other processes, if one is configured and usable.
    pub(crate) fn shared(&'static self) -> Option<&'static Shared> {
        self.shared.get_or_init(|| environment::settings().shared.as_deref().and_then(Shared::join)).as_ref()
    }

    /// Counts, in the file of a shared quota, a call whose memory is not counted in bytes.
    pub(crate) fn not_counted(&self) {
        if let Some(Some(shared)) = self.shared.get() {
            shared.region().uncounted.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Returns the location of a pool's memory, or `None` if the pool is unknown.
    pub(crate) fn pool(&self, pool: Handle) -> Option<PoolLocation> {
        self.pools.lock().unwrap_or_else(PoisonError::into_inner).get(pool)
    }
}
