//! The driver's samples of the last seconds, of processes and of devices, each with a timestamp.
//!
//! An idle process has no sample. If all processes on a device are idle, the query for process samples finds
//! none.

use std::ffi::{c_uint, c_ulonglong};

use crate::abi::{self, ProcessSample, ProcessSample1, ProcessSamples1, Sample};
use crate::code::{Answer, Code};
use crate::edge::{InOut, Out, Room, device_calls, put};
use crate::gate::Call;
use crate::machine::Activity;

/// Number of process samples that the driver keeps. The driver reports this size, regardless of the number of
/// processes.
const PROCESS_RING: c_uint = 100;
/// `NVML_VALUE_TYPE_UNSIGNED_INT`
const UNSIGNED_INT: c_uint = 1;

device_calls! {
    nvmlDeviceGetProcessUtilization(
        call, samples: Room<ProcessSample>, count: InOut<c_uint>, last_seen: c_ulonglong
    ) {
        let newer = Newer::than(last_seen, call)?;
        let count = count.ok_or(Code::INVALID_ARGUMENT)?;
        newer.fit(count, !samples.is_none())?;
        samples.fill(*count, newer.samples().map(|(stamp, one)| ProcessSample {
            pid: one.pid,
            stamp,
            sm: one.sm,
            memory: one.memory,
            encoder: one.encoder,
            decoder: one.decoder,
        }));
        Ok(())
    }
    nvmlDeviceGetProcessesUtilizationInfo(call, list: InOut<ProcessSamples1>) {
        let list = list.ok_or(Code::INVALID_ARGUMENT)?;
        if list.version != abi::version::<ProcessSamples1>(1) {
            return Err(Code::ARGUMENT_VERSION_MISMATCH);
        }
        let newer = Newer::than(list.last_seen, call)?;
        let samples = Room::at(list.samples);
        newer.fit(&mut list.count, !samples.is_none())?;
        samples.fill(list.count, newer.samples().map(|(stamp, one)| ProcessSample1 {
            stamp,
            pid: one.pid,
            sm: one.sm,
            memory: one.memory,
            encoder: one.encoder,
            decoder: one.decoder,
            jpg: one.jpg,
            ofa: one.ofa,
        }));
        Ok(())
    }
    nvmlDeviceGetSamples(
        call, kind: c_uint, last_seen: c_ulonglong, value_type: Out<c_uint>, count: InOut<c_uint>,
        samples: Room<Sample>
    ) {
        let value = value(call, kind)?;
        put(value_type, UNSIGNED_INT)?;
        let count = count.ok_or(Code::INVALID_ARGUMENT)?;
        if samples.is_none() {
            *count = call.machine.ring;
            return Ok(());
        }
        if *count == 0 {
            return Err(Code::INVALID_ARGUMENT);
        }
        device_samples(call, last_seen, count, |count, stamps| {
            samples.fill(count, stamps.map(|stamp| Sample { stamp, value: c_ulonglong::from(value) }));
        })
    }
}

/// Processes with a sample that is newer than the caller's last sample.
struct Newer<'machine> {
    activities: &'machine [Activity],
    newest: u64,
    last_seen: u64,
    count: u32,
}

impl<'machine> Newer<'machine> {
    fn than(last_seen: u64, call: &Call<'machine>) -> Result<Self, Code> {
        let activities = &call.unsplit()?.activities;
        let mut newer = Self { activities, newest: call.machine.newest_stamp(), last_seen, count: 0 };
        newer.count = u32::try_from(newer.samples().count()).unwrap_or(u32::MAX);
        Ok(newer)
    }

    fn samples(&self) -> impl Iterator<Item = (u64, &'machine Activity)> {
        let stamped = self.activities.iter().map(|one| (self.newest.saturating_sub(one.age), one));
        stamped.filter(|(stamp, _)| *stamp > self.last_seen)
    }

    /// Checks if the caller's buffer has room for all samples, and sets `count` to their number.
    fn fit(&self, count: &mut c_uint, room: bool) -> Answer {
        if !room || (self.count > 0 && *count < self.count) {
            *count = self.count.max(PROCESS_RING);
            return Err(Code::INSUFFICIENT_SIZE);
        }
        *count = self.count;
        if self.count == 0 { Err(Code::NOT_FOUND) } else { Ok(()) }
    }
}

/// Returns the value of a sample of this kind. It is the same for the whole period that the driver remembers.
fn value(call: &Call<'_>, kind: c_uint) -> Result<c_uint, Code> {
    let gpu = call.gpu()?;
    let clocks = &gpu.written.clocks;
    let percent = |which: fn(&Activity) -> u32| call.unsplit().map(|gpu| which(&gpu.busiest));
    match kind {
        0 => Ok(c_uint::try_from(gpu.written.power.0).unwrap_or(c_uint::MAX)),
        1 => percent(|busiest| busiest.sm),
        2 => percent(|busiest| busiest.memory),
        3 => percent(|busiest| busiest.encoder),
        4 => percent(|busiest| busiest.decoder),
        5 => Ok(clocks.sm),
        6 => Ok(clocks.memory),
        7 => Err(Code::NOT_SUPPORTED),
        8 => percent(|busiest| busiest.jpg),
        9 => percent(|busiest| busiest.ofa),
        _ => Err(Code::INVALID_ARGUMENT),
    }
}

/// Returns the newest timestamps that fit, oldest first.
fn device_samples(
    call: &Call<'_>,
    last_seen: u64,
    count: &mut c_uint,
    give: impl FnOnce(c_uint, &mut dyn Iterator<Item = u64>),
) -> Answer {
    let (newest, period) = (call.machine.newest_stamp(), call.machine.period);
    let unseen = newest.saturating_sub(last_seen).div_ceil(period);
    let unseen = unseen.min(u64::from((*count).min(call.machine.ring)));
    if unseen == 0 {
        return Err(Code::NOT_FOUND);
    }
    *count = c_uint::try_from(unseen).unwrap_or(*count);
    give(*count, &mut (0..unseen).rev().map(|back| newest.saturating_sub(back * period)));
    Ok(())
}
