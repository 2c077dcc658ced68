//! Memory pools in this process, and the GPU of each pool.

use std::collections::HashMap;

use crate::abi::{Device, Handle, Location};

/// Location of a pool's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PoolLocation {
    Gpu(Device),
    /// Managed memory, which is charged to the GPU where the allocation is made.
    Managed,
    Host,
}

/// Memory pools with a known location.
pub(crate) struct Pools(Option<HashMap<Handle, PoolLocation>>);

impl Pools {
    pub(crate) const fn new() -> Self {
        Self(None)
    }

    /// Returns the location of this pool's memory, or `None` if the pool is unknown.
    pub(crate) fn get(&self, pool: Handle) -> Option<PoolLocation> {
        self.0.as_ref()?.get(&pool).copied()
    }

    pub(crate) fn put(&mut self, pool: Handle, place: PoolLocation) {
        let pools = self.0.get_or_insert_default();
        if pools.try_reserve(1).is_ok() {
            pools.insert(pool, place);
        }
    }

    pub(crate) fn take(&mut self, pool: Handle) -> Option<PoolLocation> {
        self.0.as_mut()?.remove(&pool)
    }
}

impl PoolLocation {
    /// Returns the location of memory with these properties; `managed` memory belongs to its preferred GPU.
    pub(crate) fn of(location: Location, managed: bool) -> Self {
        match location.device() {
            Some(device) => Self::Gpu(device),
            None if managed => Self::Managed,
            None => Self::Host,
        }
    }
}
