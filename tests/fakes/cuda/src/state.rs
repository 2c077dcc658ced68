//! State of the driver in this process. A forked child starts with an empty state, since CUDA does not
//! survive a fork.

use std::collections::HashMap;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Mutex, MutexGuard, Once, PoisonError};

use crate::contexts::{self, Context};
use crate::memory::Blocks;
use crate::pools::Pool;
use crate::streams::Stream;
use crate::truth::{self, GPUS};
use crate::vmm::Vmm;

/// Handle that callers use for an object. Each number is used once.
pub(crate) type Handle = usize;

/// The whole state.
#[derive(Default)]
pub(crate) struct State {
    pub(crate) contexts: HashMap<Handle, Context>,
    pub(crate) primary: [contexts::Primary; GPUS],
    pub(crate) blocks: Blocks,
    pub(crate) pools: HashMap<Handle, Pool>,
    pub(crate) current_pools: [Option<Handle>; GPUS],
    pub(crate) streams: HashMap<Handle, Stream>,
    pub(crate) vmm: Vmm,
    given: Handle,
}

impl State {
    /// Returns a handle for a new object.
    pub(crate) fn name(&mut self) -> Handle {
        self.given += 16;
        0x10_0000 + self.given
    }
}

static STATE: AtomicPtr<Mutex<State>> = AtomicPtr::new(ptr::null_mut());

/// Locks the state until the guard is dropped.
pub(crate) fn lock() -> MutexGuard<'static, State> {
    static ONCE: Once = Once::new();
    // SAFETY: the handler only accesses atomics and the thread's own cell.
    ONCE.call_once(|| unsafe {
        libc::pthread_atfork(None, None, Some(forked));
    });
    let mut state = STATE.load(Ordering::Acquire);
    if state.is_null() {
        let new = Box::into_raw(Box::default());
        match STATE.compare_exchange(ptr::null_mut(), new, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => state = new,
            Err(first) => {
                // SAFETY: the pointer is from a box and was not shared.
                drop(unsafe { Box::from_raw(new) });
                state = first;
            }
        }
    }
    // SAFETY: the pointer is from a box that is never freed.
    unsafe { &*state }.lock().unwrap_or_else(PoisonError::into_inner)
}

extern "C" fn forked() {
    STATE.store(ptr::null_mut(), Ordering::Release);
    contexts::forked();
    truth::forked();
}
