//! Activity of engines (GPM): samples that the caller allocates, and metrics computed from two of them.

use std::collections::BTreeMap;
use std::ffi::{c_char, c_uint};
use std::ptr;
use std::sync::{Mutex, PoisonError};

use crate::code::{Answer, Code};
use crate::edge::{Handle, InOut, Out, Room, device_calls, put, system_calls};
use crate::gate::Place;
use crate::scenario::Metric;

/// `nvmlGpmSupport_t`
#[repr(C)]
pub(crate) struct Support {
    version: c_uint,
    is_supported: c_uint,
}

/// `nvmlGpmMetric_t`
#[repr(C)]
pub(crate) struct GpmMetric {
    id: c_uint,
    code: Code,
    value: f64,
    names: [*const c_char; 3],
}

/// `nvmlGpmMetricsGet_t` up to its metrics, whose number differs by version of the header.
#[repr(C)]
pub(crate) struct Request {
    version: c_uint,
    count: c_uint,
    samples: [Handle; 2],
}

const _: () = assert!(size_of::<GpmMetric>() == 40 && size_of::<Request>() == 24);

type Metrics = BTreeMap<u32, Metric>;

/// Maximum number of samples at a time.
const MOST_SAMPLES: usize = 1024;
static PLACES: [Place; MOST_SAMPLES] = [const { Place::NEW }; MOST_SAMPLES];
/// For each allocated sample, the metrics of its device.
static SAMPLES: Mutex<[Option<Metrics>; MOST_SAMPLES]> = Mutex::new([const { None }; MOST_SAMPLES]);

pub(crate) mod of_device {
    use super::{Code, Handle, InOut, Support, c_uint, device_calls, fill};

    device_calls! {
        nvmlGpmQueryDeviceSupport(call, support: InOut<Support>) {
            let support = support.ok_or(Code::INVALID_ARGUMENT)?;
            if support.version != 1 {
                return Err(Code::ARGUMENT_VERSION_MISMATCH);
            }
            support.is_supported = call.whole.written.gpm.is_some().into();
            Ok(())
        }
        nvmlGpmSampleGet(call, sample: Handle) {
            let metrics = call.instance.map_or(&call.whole.written.gpm, |instance| &instance.gpm);
            fill(sample, metrics.as_ref().ok_or(Code::NOT_SUPPORTED)?)
        }
        nvmlGpmMigSampleGet(call, instance: c_uint, sample: Handle) {
            let mut instances = call.gpu()?.instances.iter().flatten();
            let instance = instances.find(|other| other.gi == instance).ok_or(Code::NOT_FOUND)?;
            fill(sample, instance.gpm.as_ref().ok_or(Code::NOT_SUPPORTED)?)
        }
    }
}

system_calls! {
    nvmlGpmSampleAlloc(_machine, sample: Out<Handle>) { put(sample, allocate()?) }
    nvmlGpmSampleFree(_machine, sample: Handle) { with_slot(sample, |slot| *slot = None) }
    nvmlGpmMetricsGet(machine, request: *mut Request) {
        if request.is_null() {
            return Err(Code::INVALID_ARGUMENT);
        }
        // SAFETY: `nvml.h` requires the caller to pass an initialized structure, with as many metrics as it counts. The
        // setting `gpm_metrics` exists to find callers whose structure is smaller than the driver's.
        let (Request { version, count, samples }, metrics) =
            unsafe { (ptr::read(request), Room::<GpmMetric>::at(request.add(1).cast())) };
        if version != 1 {
            return Err(Code::ARGUMENT_VERSION_MISMATCH);
        }
        with_slot(samples[0], |_| ())?;
        let found = with_slot(samples[1], |slot| slot.clone().unwrap_or_default())?;
        if count == 0 {
            return Err(Code::INVALID_ARGUMENT);
        }
        let mut requested = 0..count;
        metrics.update(count.max(machine.gpm_metrics), |metric| {
            if requested.next().is_none() {
                *metric = GpmMetric { id: 1, code: Code::SUCCESS, value: 99.0, names: [ptr::null(); 3] };
                return;
            }
            (metric.code, metric.value) = match found.get(&metric.id) {
                Some(Metric::Percent(value)) => (Code::SUCCESS, *value),
                Some(Metric::Error(name)) if name == "nan" => (Code::SUCCESS, f64::NAN),
                Some(Metric::Error(name)) => (Code::named(name).unwrap_or(Code::UNKNOWN), 0.0),
                None => (Code::NOT_SUPPORTED, 0.0),
            };
        })
    }
}

fn allocate() -> Result<Handle, Code> {
    let mut samples = SAMPLES.lock().unwrap_or_else(PoisonError::into_inner);
    let mut free = samples.iter_mut().zip(&PLACES).filter(|(slot, _)| slot.is_none());
    let (slot, place) = free.next().ok_or(Code::INSUFFICIENT_RESOURCES)?;
    *slot = Some(Metrics::new());
    Ok(place.handle())
}

fn fill(sample: Handle, metrics: &Metrics) -> Answer {
    with_slot(sample, |slot| *slot = Some(metrics.clone()))
}

fn with_slot<T>(handle: Handle, act: impl FnOnce(&mut Option<Metrics>) -> T) -> Result<T, Code> {
    let mut samples = SAMPLES.lock().unwrap_or_else(PoisonError::into_inner);
    let slot = samples.iter_mut().zip(&PLACES).find(|(_, place)| ptr::eq(place.handle(), handle));
    let (slot, _) = slot.filter(|(slot, _)| slot.is_some()).ok_or(Code::INVALID_ARGUMENT)?;
    Ok(act(slot))
}
