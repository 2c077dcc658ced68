//! Health of a device: power, temperature, clocks, memory errors.

use std::collections::BTreeMap;
use std::ffi::{c_uint, c_ulonglong};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use crate::abi::{self, FieldValue, Temperature};
use crate::clock;
use crate::code::{Answer, Code};
use crate::edge::{InOut, Out, Room, device_calls, put};
use crate::gate::Call;
use crate::machine::Gpu;
use crate::scenario::{Clocks, Ecc, Field, RemappedRows};

/// `NVML_VALUE_TYPE_UNSIGNED_INT`
const UNSIGNED_INT: c_uint = 1;
/// `NVML_VALUE_TYPE_UNSIGNED_LONG_LONG`
const UNSIGNED_LONG_LONG: c_uint = 3;
/// Lowest power limit of a device, in milliwatts.
const LEAST_LIMIT: c_uint = 200_000;

device_calls! {
    nvmlDeviceGetPowerUsage(call, power: Out<c_uint>) { put(power, milliwatts(call.gpu()?.written.power.0)) }
    nvmlDeviceGetEnforcedPowerLimit(call, limit: Out<c_uint>) { put(limit, power_limit(call)?) }
    nvmlDeviceGetPowerManagementLimit(call, limit: Out<c_uint>) { put(limit, power_limit(call)?) }
    nvmlDeviceGetPowerManagementDefaultLimit(call, limit: Out<c_uint>) { put(limit, power_limit(call)?) }
    nvmlDeviceGetPowerManagementLimitConstraints(call, least: Out<c_uint>, most: Out<c_uint>) {
        put(least, LEAST_LIMIT)?;
        put(most, power_limit(call)?)
    }
    nvmlDeviceGetTotalEnergyConsumption(call, energy: Out<c_ulonglong>) { put(energy, self::energy(call.gpu()?)) }
    nvmlDeviceGetTemperature(call, _sensor: c_uint, celsius: Out<c_uint>) {
        put(celsius, call.gpu()?.written.temperature)
    }
    nvmlDeviceGetTemperatureV(call, asked: InOut<Temperature>) {
        let asked = asked.ok_or(Code::INVALID_ARGUMENT)?;
        if asked.version != abi::version::<Temperature>(1) {
            return Err(Code::ARGUMENT_VERSION_MISMATCH);
        }
        asked.celsius = call.gpu()?.written.temperature.cast_signed();
        Ok(())
    }
    nvmlDeviceGetFanSpeed(call, percent: Out<c_uint>) {
        put(percent, call.gpu()?.written.fan.ok_or(Code::NOT_SUPPORTED)?)
    }
    nvmlDeviceGetPerformanceState(call, state: Out<c_uint>) { put(state, call.gpu()?.written.performance_state) }
    nvmlDeviceGetPowerState(call, state: Out<c_uint>) { put(state, call.gpu()?.written.performance_state) }
    nvmlDeviceGetClockInfo(call, domain: c_uint, mhz: Out<c_uint>) {
        let Clocks { sm, memory, .. } = call.gpu()?.written.clocks;
        put(mhz, of_domain(domain, sm, memory)?)
    }
    nvmlDeviceGetMaxClockInfo(call, domain: c_uint, mhz: Out<c_uint>) {
        let Clocks { sm_max, memory_max, .. } = call.gpu()?.written.clocks;
        put(mhz, of_domain(domain, sm_max, memory_max)?)
    }
    nvmlDeviceGetCurrentClocksEventReasons(call, reasons: Out<c_ulonglong>) {
        put(reasons, call.gpu()?.written.throttle_reasons)
    }
    nvmlDeviceGetCurrentClocksThrottleReasons(call, reasons: Out<c_ulonglong>) {
        put(reasons, call.gpu()?.written.throttle_reasons)
    }
    nvmlDeviceGetEccMode(call, current: Out<c_uint>, pending: Out<c_uint>) {
        put(current, call.gpu().map(|_| 1)?)?;
        put(pending, 1)
    }
    nvmlDeviceGetTotalEccErrors(call, kind: c_uint, _counter: c_uint, errors: Out<c_ulonglong>) {
        put(errors, ecc_errors(call, kind)?)
    }
    nvmlDeviceGetMemoryErrorCounter(
        call, kind: c_uint, _counter: c_uint, _location: c_uint, errors: Out<c_ulonglong>
    ) {
        put(errors, ecc_errors(call, kind)?)
    }
    nvmlDeviceGetRemappedRows(
        call, corrected: Out<c_uint>, uncorrected: Out<c_uint>, pending: Out<c_uint>, failed: Out<c_uint>
    ) {
        let rows = rows(call.gpu()?)?;
        put(corrected, rows.corrected)?;
        put(uncorrected, rows.uncorrected)?;
        put(pending, rows.pending.into())?;
        put(failed, rows.failed.into())
    }
    nvmlDeviceGetRetiredPages(call, _cause: c_uint, count: InOut<c_uint>, _pages: Room<c_ulonglong>) {
        no_page(call, count)
    }
    nvmlDeviceGetRetiredPages_v2(
        call, _cause: c_uint, count: InOut<c_uint>, _pages: Room<c_ulonglong>, _stamps: Room<c_ulonglong>
    ) {
        no_page(call, count)
    }
    nvmlDeviceGetRetiredPagesPendingStatus(call, pending: Out<c_uint>) { put(pending, call.gpu().map(|_| 0)?) }
    nvmlDeviceGetPcieThroughput(call, _counter: c_uint, kib: Out<c_uint>) { put(kib, call.gpu().map(|_| 0)?) }
    nvmlDeviceGetCurrPcieLinkGeneration(call, generation: Out<c_uint>) { put(generation, call.gpu().map(|_| 5)?) }
    nvmlDeviceGetMaxPcieLinkGeneration(call, generation: Out<c_uint>) { put(generation, call.gpu().map(|_| 5)?) }
    nvmlDeviceGetCurrPcieLinkWidth(call, width: Out<c_uint>) { put(width, call.gpu().map(|_| 16)?) }
    nvmlDeviceGetMaxPcieLinkWidth(call, width: Out<c_uint>) { put(width, call.gpu().map(|_| 16)?) }
    nvmlDeviceGetFieldValues(call, count: c_uint, values: Room<FieldValue>) {
        let gpu = call.gpu()?;
        let now = call.machine.clock.now().cast_signed();
        values.update(count, |value| answer_field(gpu, value, now))
    }
}

fn milliwatts(power: u64) -> c_uint {
    c_uint::try_from(power).unwrap_or(c_uint::MAX)
}

fn power_limit(call: &Call<'_>) -> Result<c_uint, Code> {
    Ok(milliwatts(call.gpu()?.written.power_limit.0))
}

/// Returns the clock of a domain. The domains are graphics, SM, memory and video, in this order.
fn of_domain(domain: c_uint, sm: u32, memory: u32) -> Result<c_uint, Code> {
    match domain {
        0 | 1 | 3 => Ok(sm),
        2 => Ok(memory),
        _ => Err(Code::INVALID_ARGUMENT),
    }
}

fn ecc_errors(call: &Call<'_>, kind: c_uint) -> Result<c_ulonglong, Code> {
    let ecc = &call.gpu()?.written.ecc;
    match kind {
        0 => Ok(ecc.corrected),
        1 => Ok(ecc.uncorrected),
        _ => Err(Code::INVALID_ARGUMENT),
    }
}

fn no_page(call: &Call<'_>, count: InOut<c_uint>) -> Answer {
    call.gpu()?;
    *count.ok_or(Code::INVALID_ARGUMENT)? = 0;
    Ok(())
}

/// For each device: the energy in millijoules that it has used since the first query, and the time of the
/// last query.
static GROWN: Mutex<BTreeMap<u32, (f64, Instant)>> = Mutex::new(BTreeMap::new());

/// Returns the counter. For the time since the last query it grows by the current power, so it never
/// decreases.
#[expect(clippy::cast_precision_loss, reason = "no device draws so much power that it would matter")]
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a sum of products of positive numbers"
)]
fn energy(gpu: &Gpu) -> c_ulonglong {
    let start = gpu.written.energy.0;
    if !gpu.written.energy_grows {
        return start;
    }
    let now = clock::moment();
    let mut all = GROWN.lock().unwrap_or_else(PoisonError::into_inner);
    let (grown, last) = all.entry(gpu.index).or_insert((0.0, now));
    *grown += gpu.written.power.0 as f64 * now.duration_since(*last).as_secs_f64();
    *last = now;
    start.saturating_add(*grown as u64)
}

type FieldAnswer = Result<(c_uint, c_ulonglong), Code>;

/// Returns the rows, which the driver does not report for a GPU with MIG instances.
fn rows(gpu: &Gpu) -> Result<&RemappedRows, Code> {
    let rows = gpu.written.remapped_rows.as_ref().filter(|_| gpu.written.mig.is_none());
    rows.ok_or(Code::NOT_SUPPORTED)
}

fn remapped(gpu: &Gpu, part: fn(&RemappedRows) -> c_uint) -> FieldAnswer {
    Ok((UNSIGNED_INT, part(rows(gpu)?).into()))
}

fn retired(gpu: &Gpu, part: fn(&Ecc) -> c_ulonglong) -> FieldAnswer {
    gpu.written
        .retired_pages
        .as_ref()
        .map(|pages| (UNSIGNED_LONG_LONG, part(pages)))
        .ok_or(Code::NOT_SUPPORTED)
}

fn recovery_action(gpu: &Gpu) -> FieldAnswer {
    gpu.written.recovery_action.map(|action| (UNSIGNED_INT, action.into())).ok_or(Code::NOT_SUPPORTED)
}

/// Each field has its own result code; the call as a whole succeeds.
fn answer_field(gpu: &Gpu, value: &mut FieldValue, now: i64) {
    let answer = match value.field {
        3 => Ok((UNSIGNED_LONG_LONG, gpu.written.ecc.corrected)),
        4 => Ok((UNSIGNED_LONG_LONG, gpu.written.ecc.uncorrected)),
        29 => retired(gpu, |pages| pages.corrected),
        30 => retired(gpu, |pages| pages.uncorrected),
        83 => Ok((UNSIGNED_LONG_LONG, energy(gpu))),
        142 => remapped(gpu, |rows| rows.corrected),
        143 => remapped(gpu, |rows| rows.uncorrected),
        144 => remapped(gpu, |rows| rows.pending.into()),
        145 => remapped(gpu, |rows| rows.failed.into()),
        185 | 186 => Ok((UNSIGNED_INT, gpu.written.power.0)),
        230 => recovery_action(gpu),
        _ => Err(Code::NOT_SUPPORTED),
    };
    let answer = match gpu.written.fields.get(&value.field) {
        // As an old driver that does not know the field.
        Some(Field::Unknown(())) => return,
        Some(Field::Error(name)) => Err(Code::named(name).unwrap_or(Code::UNKNOWN)),
        Some(Field::Value(kind, number)) => Ok((*kind, *number)),
        None => answer,
    };
    (value.stamp, value.latency) = (now, 0);
    value.code = answer.err().unwrap_or(Code::SUCCESS);
    (value.value_type, value.value) = answer.unwrap_or_default();
}
