//! Pools: which GPU each gives memory of. What a pool keeps in reserve is not charged.

use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::sync::PoisonError;

use super::{given, hooks, told};
use crate::abi::{Code, Device, Handle, Location, Properties};
use crate::life;
use crate::shield::Ask;

/// Where the memory of a pool is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    Gpu(Device),
    /// Wherever it is needed; charged to the GPU that asks.
    Managed,
    Host,
}

/// All pools that were seen.
pub(crate) struct Pools(Option<HashMap<Handle, Place>>);

impl Pools {
    pub(crate) const fn new() -> Self {
        Self(None)
    }

    /// Where this pool's memory is.
    pub(crate) fn get(&self, pool: Handle) -> Option<Place> {
        self.0.as_ref()?.get(&pool).copied()
    }

    fn put(&mut self, pool: Handle, place: Place) {
        let pools = self.0.get_or_insert_default();
        if pools.try_reserve(1).is_ok() {
            pools.insert(pool, place);
        }
    }

    fn take(&mut self, pool: Handle) -> Option<Place> {
        self.0.as_mut()?.remove(&pool)
    }
}

impl Place {
    /// Where memory of these properties is; `managed` memory is charged where it is preferred.
    fn of(location: Location, managed: bool) -> Self {
        match location.device() {
            Some(device) => Self::Gpu(device),
            None if managed => Self::Managed,
            None => Self::Host,
        }
    }
}

fn learn(pool: Handle, place: Place) {
    if let Some(life) = life::get() {
        life.pools.lock().unwrap_or_else(PoisonError::into_inner).put(pool, place);
    }
}

/// Lets the driver tell a pool, and learns where its memory is.
fn learned<F: Fn() -> Code>(ask: &Ask<F>, out: *const Handle, place: Option<Place>) -> Code {
    let answer = ask.now();
    if let (true, Some(place)) = (answer.is_success(), place) {
        // SAFETY: the driver succeeded.
        learn(unsafe { told(out) }, place);
    }
    answer
}

/// Where a location and the kind of allocation say.
///
/// # Safety
/// The location is null or valid for the call.
unsafe fn located(location: *const Location, allocation: c_int) -> Option<Place> {
    // SAFETY: as the caller says.
    let location = unsafe { given(location) }?;
    Some(Place::of(*location, Properties { allocation, handles: 0, location: *location }.managed()))
}

hooks! { of CUDA:
    cuMemPoolCreate(out: *mut Handle, properties: *const Properties) |ask| {
        // SAFETY: the driver reads it too.
        let properties = unsafe { given(properties) };
        learned(ask, out, properties.map(|properties| Place::of(properties.location, properties.managed())))
    }
    cuMemPoolDestroy(pool: Handle) |ask| {
        let before = life::get()
            .and_then(|life| life.pools.lock().unwrap_or_else(PoisonError::into_inner).take(pool));
        let answer = ask.now();
        if let (false, Some(place)) = (answer.is_success(), before) {
            learn(pool, place);
        }
        answer
    }
    cuDeviceGetDefaultMemPool(out: *mut Handle, device: Device) |ask| { learned(ask, out, Some(Place::Gpu(device))) }
    cuDeviceGetMemPool(out: *mut Handle, device: Device) |ask| { learned(ask, out, Some(Place::Gpu(device))) }
    cuDeviceSetMemPool(device: Device, pool: Handle) |ask| {
        let answer = ask.now();
        if answer.is_success() {
            learn(pool, Place::Gpu(device));
        }
        answer
    }
    cuMemGetDefaultMemPool(out: *mut Handle, location: *const Location, allocation: c_int) |ask| {
        // SAFETY: the driver reads it too.
        learned(ask, out, unsafe { located(location, allocation) })
    }
    cuMemGetMemPool(out: *mut Handle, location: *const Location, allocation: c_int) |ask| {
        // SAFETY: the driver reads it too.
        learned(ask, out, unsafe { located(location, allocation) })
    }
    cuMemSetMemPool(location: *const Location, allocation: c_int, pool: Handle) |ask| {
        // SAFETY: the driver reads it too.
        let place = unsafe { located(location, allocation) };
        let answer = ask.now();
        if let (true, Some(place)) = (answer.is_success(), place) {
            learn(pool, place);
        }
        answer
    }
    cuMemPoolImportPointer(out: *mut u64, pool: Handle, data: *const c_void) |ask| {
        super::elsewhere::uncounted(ask)
    }
}
