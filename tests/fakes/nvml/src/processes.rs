//! The lists of processes that hold a device's memory, in every entry size that has existed.

use std::ffi::c_uint;

use crate::abi::{self, NO_INSTANCE, ProcessDetail, ProcessDetails};
use crate::code::{Answer, Code};
use crate::edge::{InOut, Room, device_calls};
use crate::gate::Call;
use crate::machine::{Entry, List, MADE_UP_PID, pack};
use crate::scenario::Kind::{self, Compute, Graphics, Mps};

/// Size of an entry in the first version, without instance ids.
const FIRST: usize = 16;
/// Size of an entry in the second version.
const SECOND: usize = 24;

device_calls! {
    nvmlDeviceGetComputeRunningProcesses(call, count: InOut<c_uint>, list: Room<u8>) {
        give(call, (Compute, FIRST), count, list)
    }
    nvmlDeviceGetComputeRunningProcesses_v2(call, count: InOut<c_uint>, list: Room<u8>) {
        give(call, (Compute, SECOND), count, list)
    }
    nvmlDeviceGetComputeRunningProcesses_v3(call, count: InOut<c_uint>, list: Room<u8>) {
        give(call, (Compute, call.machine.entry_bytes), count, list)
    }
    nvmlDeviceGetGraphicsRunningProcesses(call, count: InOut<c_uint>, list: Room<u8>) {
        give(call, (Graphics, FIRST), count, list)
    }
    nvmlDeviceGetGraphicsRunningProcesses_v2(call, count: InOut<c_uint>, list: Room<u8>) {
        give(call, (Graphics, SECOND), count, list)
    }
    nvmlDeviceGetGraphicsRunningProcesses_v3(call, count: InOut<c_uint>, list: Room<u8>) {
        give(call, (Graphics, call.machine.entry_bytes), count, list)
    }
    nvmlDeviceGetMPSComputeRunningProcesses(call, count: InOut<c_uint>, list: Room<u8>) {
        give(call, (Mps, FIRST), count, list)
    }
    nvmlDeviceGetMPSComputeRunningProcesses_v2(call, count: InOut<c_uint>, list: Room<u8>) {
        give(call, (Mps, SECOND), count, list)
    }
    nvmlDeviceGetMPSComputeRunningProcesses_v3(call, count: InOut<c_uint>, list: Room<u8>) {
        give(call, (Mps, call.machine.entry_bytes), count, list)
    }
    nvmlDeviceGetRunningProcessDetailList(call, list: InOut<ProcessDetails>) {
        detail(call, list.ok_or(Code::INVALID_ARGUMENT)?)
    }
}

/// A list of one kind, extended by this number of made-up entries.
struct Grown<'machine> {
    list: &'machine List,
    by: u32,
}

impl<'machine> Grown<'machine> {
    fn of(call: &Call<'machine>, kind: Kind) -> Self {
        let lists = &call.unit().lists;
        match kind {
            Compute => Self { list: &lists.compute, by: call.whole.growth() },
            Graphics => Self { list: &lists.graphics, by: 0 },
            Mps => Self { list: &lists.mps, by: 0 },
        }
    }

    fn entries(&self) -> impl Iterator<Item = Entry> {
        let grown = (0..self.by).map(|nth| Entry {
            pid: MADE_UP_PID.saturating_add(nth),
            used: 1 << 20,
            gi: NO_INSTANCE,
            ci: NO_INSTANCE,
        });
        self.list.entries.iter().copied().chain(grown)
    }

    /// Checks if the caller's buffer has room for all entries, and sets `count` to their number.
    fn fit(&self, call: &Call<'_>, count: &mut c_uint, room: bool) -> Answer {
        let entries = u32::try_from(self.list.entries.len()).unwrap_or(u32::MAX);
        let needed = entries.saturating_add(self.by);
        if needed == 0 || (room && *count >= needed) {
            *count = needed;
            return Ok(());
        }
        *count = needed.saturating_add(call.whole.written.faults.shrink);
        call.whole.refuse();
        Err(Code::INSUFFICIENT_SIZE)
    }
}

fn give(call: &Call<'_>, (kind, size): (Kind, usize), count: InOut<c_uint>, room: Room<u8>) -> Answer {
    let grown = Grown::of(call, kind);
    grown.fit(call, count.ok_or(Code::INVALID_ARGUMENT)?, !room.is_none())?;
    if grown.by == 0 && size == call.machine.entry_bytes {
        room.bytes(&grown.list.packed);
    } else {
        room.bytes(&pack(grown.entries(), size));
    }
    Ok(())
}

fn detail(call: &Call<'_>, asked: &mut ProcessDetails) -> Answer {
    if asked.version != abi::version::<ProcessDetails>(1) {
        return Err(Code::ARGUMENT_VERSION_MISMATCH);
    }
    let kind = match asked.mode {
        0 => Compute,
        1 => Graphics,
        2 => Mps,
        _ => return Err(Code::INVALID_ARGUMENT),
    };
    let grown = Grown::of(call, kind);
    let room = Room::at(asked.details);
    grown.fit(call, &mut asked.count, !room.is_none())?;
    room.fill(
        asked.count,
        grown.entries().map(|Entry { pid, used, gi, ci }| ProcessDetail { pid, used, gi, ci, protected: 0 }),
    );
    Ok(())
}
