//! Accounting. An allocation reserves memory before the driver call, and a free releases it after the driver
//! call.

use crate::abi::{Address, Code, Device, Handle};
use crate::allocations::{Allocation, Owner};
use crate::driver;
use crate::gpu::GpuAccount;
use crate::log::EventKind;
use crate::panic_guard::DriverCall;
use crate::state::{self, ProcessState};

/// Reserved memory; the reservation is released on drop unless it was kept.
struct Reservation {
    gpu: &'static GpuAccount,
    bytes: u64,
}

impl Reservation {
    fn reserve(call: &'static str, gpu: &'static GpuAccount, bytes: u64) -> Option<Self> {
        if gpu.reserve(bytes) {
            return Some(Self { gpu, bytes });
        }
        gpu.denied(bytes);
        gpu.log(EventKind::Denied, call, (bytes, 0));
        None
    }

    /// Adjusts the reservation to the allocated size; returns false if that exceeds the quota.
    fn resize(&mut self, bytes: u64) -> bool {
        let more = bytes.saturating_sub(self.bytes);
        if !self.gpu.reserve(more) {
            return false;
        }
        self.gpu.cancel(self.bytes.saturating_sub(bytes));
        self.bytes = bytes;
        true
    }

    /// Turns the reservation into an allocation, and returns its size in bytes.
    fn keep(mut self, call: &'static str, address: Address) -> u64 {
        let bytes = std::mem::take(&mut self.bytes);
        self.gpu.granted();
        self.gpu.log(EventKind::Granted, call, (bytes, address));
        bytes
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if self.bytes != 0 {
            self.gpu.cancel(self.bytes);
        }
    }
}

/// Allocates if the quota permits it. `keep` records the result and returns its address. If the GPU is
/// unknown, the driver is called without a reservation, so that it reports the error.
pub(crate) fn grant<F: Fn() -> Code>(
    call: &DriverCall<F>,
    (gpu, bytes): (Option<&'static GpuAccount>, u64),
    keep: impl FnOnce(Device) -> Address,
) -> Code {
    let Some(gpu) = gpu.filter(|_| bytes != 0) else { return call.result() };
    let Some(reservation) = Reservation::reserve(call.name, gpu, bytes) else { return Code::OUT_OF_MEMORY };
    let answer = call.result();
    if answer.is_success() {
        let address = keep(gpu.device());
        reservation.keep(call.name, address);
    }
    answer
}

/// Allocates memory and records it by its address, which `read_result` returns after the driver call.
pub(crate) fn allocate<F: Fn() -> Code>(
    call: &DriverCall<F>,
    (state, gpu, owner): (&'static ProcessState, Option<&'static GpuAccount>, Ownership),
    bytes: u64,
    read_result: impl FnOnce() -> Address,
) -> Code {
    grant(call, (gpu, bytes), |device| {
        let address = read_result();
        record_allocation(state, address, Allocation { bytes, device, owner: owner.owner() });
        address
    })
}

/// Allocates pitched memory. The driver chooses the row length, so `read_result` returns the address and the
/// size.
pub(crate) fn allocate_rows<F: Fn() -> Code>(
    call: &DriverCall<F>,
    (width, height): (u64, u64),
    read_result: impl FnOnce() -> (Address, u64),
) -> Code {
    let Some((state, gpu)) = state::get().and_then(|state| Some((state, state.current_gpu()?))) else {
        return call.result();
    };
    let likely =
        width.checked_next_multiple_of(ROW).and_then(|row| row.checked_mul(height)).unwrap_or(u64::MAX);
    if likely == 0 {
        return call.result();
    }
    let Some(mut reservation) = Reservation::reserve(call.name, gpu, likely) else {
        return Code::OUT_OF_MEMORY;
    };
    let answer = call.result();
    if !answer.is_success() {
        return answer;
    }
    let (address, bytes) = read_result();
    if !reservation.resize(bytes) {
        driver::free(address);
        return Code::OUT_OF_MEMORY;
    }
    let bytes = reservation.keep(call.name, address);
    record_allocation(
        state,
        address,
        Allocation { bytes, device: gpu.device(), owner: Ownership::Context.owner() },
    );
    answer
}

/// Usual alignment of rows in pitched memory, in bytes.
const ROW: u64 = 512;

/// Kind of owner of new memory: the current context, or a pool.
#[derive(Clone, Copy)]
pub(crate) enum Ownership {
    Context,
    Pool,
}

impl Ownership {
    fn owner(self) -> Owner {
        match self {
            Self::Context => Owner::Context(driver::current_context()),
            Self::Pool => Owner::Pool,
        }
    }
}

fn record_allocation(state: &'static ProcessState, address: Address, record: Allocation) {
    match state.allocations.insert(address, record) {
        Ok(None) => {}
        // The earlier allocation was freed without a hook call, because the driver reuses only free
        // addresses.
        Ok(Some(before)) => give_back(state, before),
        // The memory stays charged, because a later free could not look up its size.
        Err(_) => state::fault(),
    }
}

fn give_back(state: &'static ProcessState, record: Allocation) {
    if let Some(gpu) = state.gpu(record.device) {
        gpu.freed(record.bytes);
    }
}

/// Frees memory. The table entry is removed before the driver call, because another thread may get the same
/// address as soon as the driver has freed it. The memory is released from the account last.
pub(crate) fn free<F: Fn() -> Code>(call: &DriverCall<F>, address: Address) -> Code {
    let Some(state) = state::get() else { return call.result() };
    let record = state.allocations.remove(address);
    let answer = call.result();
    if let Some(record) = record {
        if answer.is_success() {
            give_back(state, record);
            if let Some(gpu) = state.gpu(record.device) {
                gpu.log(EventKind::Freed, call.name, (record.bytes, address));
            }
        } else if !state.allocations.reinsert(address, record) {
            give_back(state, record);
        }
    }
    answer
}

/// Memory that a driver call may free along with a context.
pub(crate) struct ContextEnd {
    /// Context whose memory is freed.
    pub(crate) context: Handle,
    /// GPU whose pools may lose their memory.
    pub(crate) pools_of: Option<Device>,
    /// Whether to ask the driver if an address is free before its memory is released.
    pub(crate) verify: bool,
}

/// Runs a driver call that might end a context. After the call, `ended` returns whether it did.
pub(crate) fn end<F: Fn() -> Code>(
    call: &DriverCall<F>,
    context_end: Option<ContextEnd>,
    ended: impl FnOnce() -> bool,
) -> Code {
    let Some((state, context_end)) = state::get().zip(context_end) else { return call.result() };
    let of_context =
        state.allocations.remove_all(|record| record.owner == Owner::Context(context_end.context));
    let of_pools = state
        .allocations
        .remove_all(|record| record.owner == Owner::Pool && Some(record.device) == context_end.pools_of);
    let answer = call.result();
    let ended = answer.is_success() && ended();
    let with_context = of_context.into_iter().map(|found| (found, context_end.verify));
    for ((address, record), verify) in with_context.chain(of_pools.into_iter().map(|found| (found, true))) {
        let gone = ended && (!verify || driver::is_gone(address));
        if gone || !state.allocations.reinsert(address, record) {
            give_back(state, record);
        }
    }
    answer
}
