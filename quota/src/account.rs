//! The order of things: room is reserved before the driver is asked, and given back after it has freed.

use crate::abi::{Address, Code, Device, Handle};
use crate::book::{Owner, Record};
use crate::driver;
use crate::gpu::Gpu;
use crate::life::{self, Life};
use crate::log::{self, What};
use crate::shield::Ask;

/// Room that was reserved; given back where it is dropped without being kept.
struct Room {
    gpu: &'static Gpu,
    bytes: u64,
}

impl Room {
    fn reserve(call: &'static str, gpu: &'static Gpu, bytes: u64) -> Option<Self> {
        if gpu.reserve(bytes) {
            return Some(Self { gpu, bytes });
        }
        gpu.denied(bytes);
        log::event(What::Denied, call, gpu, (bytes, 0));
        None
    }

    /// Makes it as large as what the driver took; false where that much is not there.
    fn settle(&mut self, bytes: u64) -> bool {
        let more = bytes.saturating_sub(self.bytes);
        if !self.gpu.reserve(more) {
            return false;
        }
        self.gpu.cancel(self.bytes.saturating_sub(bytes));
        self.bytes = bytes;
        true
    }

    /// The driver has given what it was reserved for; how much that is.
    fn keep(mut self, call: &'static str, address: Address) -> u64 {
        let bytes = std::mem::take(&mut self.bytes);
        self.gpu.granted();
        log::event(What::Granted, call, self.gpu, (bytes, address));
        bytes
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        if self.bytes != 0 {
            self.gpu.cancel(self.bytes);
        }
    }
}

/// Asks for memory, if there is room; `keep` writes down what was given. Where the GPU is not known the driver is asked
/// all the same: it knows what is wrong.
pub(crate) fn grant<F: Fn() -> Code>(
    ask: &Ask<F>,
    (gpu, bytes): (Option<&'static Gpu>, u64),
    keep: impl FnOnce(Device) -> Address,
) -> Code {
    let Some(gpu) = gpu.filter(|_| bytes != 0) else { return ask.now() };
    let Some(room) = Room::reserve(ask.name, gpu, bytes) else { return Code::OUT_OF_MEMORY };
    let answer = ask.now();
    if answer.is_success() {
        let address = keep(gpu.device());
        room.keep(ask.name, address);
    }
    answer
}

/// Asks for memory that is found in the book by its address; `given` tells it afterwards.
pub(crate) fn allocate<F: Fn() -> Code>(
    ask: &Ask<F>,
    (life, gpu, owner): (&'static Life, Option<&'static Gpu>, Belongs),
    bytes: u64,
    given: impl FnOnce() -> Address,
) -> Code {
    grant(ask, (gpu, bytes), |device| {
        let address = given();
        write_down(life, address, Record { bytes, device, owner: owner.now() });
        address
    })
}

/// Asks for rows of memory whose length the driver chooses; `given` tells address and bytes afterwards.
pub(crate) fn allocate_rows<F: Fn() -> Code>(
    ask: &Ask<F>,
    (width, height): (u64, u64),
    given: impl FnOnce() -> (Address, u64),
) -> Code {
    let Some((life, gpu)) = life::get().and_then(|life| Some((life, life.current_gpu()?))) else {
        return ask.now();
    };
    let likely =
        width.checked_next_multiple_of(ROW).and_then(|row| row.checked_mul(height)).unwrap_or(u64::MAX);
    if likely == 0 {
        return ask.now();
    }
    let Some(mut room) = Room::reserve(ask.name, gpu, likely) else { return Code::OUT_OF_MEMORY };
    let answer = ask.now();
    if !answer.is_success() {
        return answer;
    }
    let (address, bytes) = given();
    if !room.settle(bytes) {
        driver::free(address);
        return Code::OUT_OF_MEMORY;
    }
    let bytes = room.keep(ask.name, address);
    write_down(life, address, Record { bytes, device: gpu.device(), owner: Belongs::ToContext.now() });
    answer
}

/// Rows of pitched memory begin at multiples of this, as far as is known.
const ROW: u64 = 512;

/// What memory belongs to, by how it is asked for.
#[derive(Clone, Copy)]
pub(crate) enum Belongs {
    ToContext,
    ToPool,
}

impl Belongs {
    fn now(self) -> Owner {
        match self {
            Self::ToContext => Owner::Context(driver::current_context()),
            Self::ToPool => Owner::Pool,
        }
    }
}

fn write_down(life: &'static Life, address: Address, record: Record) {
    match life.book.put(address, record) {
        Ok(None) => {}
        // It was freed by a way that is not seen, or the driver could not have given the address again.
        Ok(Some(before)) => give_back(life, before),
        // It stays charged, since nobody will find it when it is freed.
        Err(_) => life::fault(),
    }
}

fn give_back(life: &'static Life, record: Record) {
    if let Some(gpu) = life.gpu(record.device) {
        gpu.freed(record.bytes);
    }
}

/// Frees: the book is the first to forget, since another thread may have the address the moment that the driver frees
/// it; the ledger is the last.
pub(crate) fn free<F: Fn() -> Code>(ask: &Ask<F>, address: Address) -> Code {
    let Some(life) = life::get() else { return ask.now() };
    let record = life.book.take(address);
    let answer = ask.now();
    if let Some(record) = record {
        if answer.is_success() {
            give_back(life, record);
            if let Some(gpu) = life.gpu(record.device) {
                log::event(What::Freed, ask.name, gpu, (record.bytes, address));
            }
        } else if !life.book.put_back(address, record) {
            give_back(life, record);
        }
    }
    answer
}

/// What a call that ends something frees.
pub(crate) struct Ending {
    /// Whose memory is gone.
    pub(crate) context: Handle,
    /// The GPU whose pools may have lost theirs.
    pub(crate) pools_of: Option<Device>,
    /// Whether the driver is asked of each address if it is gone.
    pub(crate) doubtful: bool,
}

/// Lets a call end something; `ending` looks before the call, `ended` says after it whether that came true.
pub(crate) fn end<F: Fn() -> Code>(
    ask: &Ask<F>,
    ending: Option<Ending>,
    ended: impl FnOnce() -> bool,
) -> Code {
    let Some((life, ending)) = life::get().zip(ending) else { return ask.now() };
    let of_context = life.book.take_all(|record| record.owner == Owner::Context(ending.context));
    let of_pools =
        life.book.take_all(|record| record.owner == Owner::Pool && Some(record.device) == ending.pools_of);
    let answer = ask.now();
    let ended = answer.is_success() && ended();
    let with_context = of_context.into_iter().map(|found| (found, ending.doubtful));
    for ((address, record), doubtful) in with_context.chain(of_pools.into_iter().map(|found| (found, true))) {
        let gone = ended && (!doubtful || driver::is_gone(address));
        if gone || !life.book.put_back(address, record) {
            give_back(life, record);
        }
    }
    answer
}
