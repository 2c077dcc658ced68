//! Accounting: data about processes that the driver keeps after they have exited.

use std::ffi::c_uint;
use std::sync::OnceLock;

use crate::abi::{AccountingStats, AccountingStats2};
use crate::code::{Answer, Code};
use crate::edge::{InOut, Out, Room, device_calls, put};
use crate::gate::Call;
use crate::scenario::Accounted;

/// Number of processes that the driver remembers.
const REMEMBERED: c_uint = 4000;

device_calls! {
    nvmlDeviceGetAccountingMode(call, mode: Out<c_uint>) {
        put(mode, c_uint::from(call.whole.written.accounting.enabled))
    }
    nvmlDeviceSetAccountingMode(_call, _mode: c_uint) { Err(Code::NO_PERMISSION) }
    nvmlDeviceClearAccountingPids(_call) { Err(Code::NO_PERMISSION) }
    nvmlDeviceGetAccountingBufferSize(_call, size: Out<c_uint>) { put(size, REMEMBERED) }
    nvmlDeviceGetAccountingPids(call, count: InOut<c_uint>, pids: Room<c_uint>) {
        give_pids(call, count.ok_or(Code::INVALID_ARGUMENT)?, pids)
    }
    nvmlDeviceGetAccountingStats(call, pid: c_uint, stats: Out<AccountingStats>) {
        let one = remembered(call)?.iter().find(|one| one.pid == pid).ok_or(Code::NOT_FOUND)?;
        put(stats, self::stats(one, call.machine.clock.now()))
    }
    nvmlDeviceGetAccountingStats_v2(call, stats: InOut<AccountingStats2>) {
        let stats = stats.ok_or(Code::INVALID_ARGUMENT)?;
        let one = remembered(call)?.iter().find(|one| one.pid == stats.pid).ok_or(Code::NOT_FOUND)?;
        let AccountingStats { gpu, memory, max_memory, time, running, .. } =
            self::stats(one, call.machine.clock.now());
        let samples = if one.running { samples(call) } else { 1 };
        let grown = |percent: u32| u64::from(percent) * u64::from(samples - 1);
        *stats = AccountingStats2 {
            pid: one.pid,
            running,
            gpu,
            memory,
            max_memory,
            samples,
            gpu_sum: one.sums.0 + grown(one.gpu),
            memory_sum: one.sums.1 + grown(one.memory),
            time,
            // Made up, but constant for a process.
            start: 1_000_000 + u64::from(one.pid),
        };
        Ok(())
    }
}

/// Returns the number of samples of a running process: one at the first query, and one more in each sampling period.
fn samples(call: &Call<'_>) -> c_uint {
    static FIRST: OnceLock<u64> = OnceLock::new();
    let newest = call.machine.newest_stamp();
    let since = newest.saturating_sub(*FIRST.get_or_init(|| newest));
    c_uint::try_from(since / call.machine.period).unwrap_or(c_uint::MAX - 1) + 1
}

fn remembered<'machine>(call: &Call<'machine>) -> Result<&'machine [Accounted], Code> {
    let accounting = &call.whole.written.accounting;
    if accounting.enabled { Ok(&accounting.processes) } else { Err(Code::NOT_SUPPORTED) }
}

fn give_pids(call: &Call<'_>, count: &mut c_uint, pids: Room<c_uint>) -> Answer {
    let all = remembered(call)?;
    let needed = c_uint::try_from(all.len()).unwrap_or(c_uint::MAX);
    if needed > 0 && (pids.is_none() || *count < needed) {
        *count = needed.saturating_add(call.whole.written.faults.shrink);
        return Err(Code::INSUFFICIENT_SIZE);
    }
    *count = needed;
    pids.fill(needed, all.iter().map(|one| one.pid));
    Ok(())
}

fn stats(one: &Accounted, now: u64) -> AccountingStats {
    AccountingStats {
        gpu: one.gpu,
        memory: one.memory,
        max_memory: one.max_memory.0,
        time: if one.running { 0 } else { one.time.0 / 1_000 },
        start: now.saturating_sub(one.time.0),
        running: c_uint::from(one.running),
        reserved: [0; 5],
    }
}
