#![expect(unsafe_code, reason = "calls of NVML that the wrapper does not offer, or offers unsafely")]
//! Calls NVML's C functions for process lists, utilization samples, memory version 1 and MIG ids.
//!
//! Process lists are not read through the wrapper. Drivers 535.43 to 535.86 write entries of 32 bytes where
//! the header says 24, without a new version. The wrapper then reads wrong pids, or the driver overruns its
//! buffer. Here the buffer fits the largest known entry and is filled with a pattern, so that the size of an
//! entry can be measured by how far the driver wrote.

use std::ffi::{CStr, c_char, c_int, c_uint, c_ulonglong, c_void};
use std::mem::offset_of;

use nvml_wrapper::Device;
use nvml_wrapper::error::{NvmlError, nvml_sym, nvml_try};
use nvml_wrapper_sys::bindings::{
    nvmlDevice_t, nvmlFieldValue_t, nvmlProcessInfo_t, nvmlProcessUtilizationInfo_v1_t,
    nvmlProcessUtilizationSample_t, nvmlProcessesUtilizationInfo_v1_t,
    nvmlReturn_enum_NVML_ERROR_INSUFFICIENT_SIZE, nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED, nvmlReturn_t,
    nvmlSample_t, nvmlSamplingType_enum_NVML_GPU_UTILIZATION_SAMPLES, nvmlValue_st,
};

use bailiff_snapshot::{Engines, UtilSample};

use crate::cgroup_limits::DriverLimits;

/// One entry of a process list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Listed {
    pub(super) pid: u32,
    /// Memory of the process, or `None` if it is not available.
    pub(super) memory: Option<u64>,
}

/// The three process lists of a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum List {
    Compute,
    Graphics,
    Mps,
}

/// Result of querying a process list.
pub(super) enum Asked {
    Entries(Vec<Listed>),
    /// The list has more entries than the buffer. Contains the number that the driver reported.
    More(usize),
    /// The driver wrote entries of unknown size.
    Strange,
}

type ListCall = unsafe extern "C" fn(nvmlDevice_t, *mut c_uint, *mut nvmlProcessInfo_t) -> nvmlReturn_t;

/// Bytes reserved per entry. The largest known entry is smaller, so that larger ones can be detected.
const ROOM: usize = 64;
const PATTERN: u64 = 0xAAAA_AAAA_AAAA_AAAA;

/// Queries a list once, with a buffer for `room` entries.
pub(super) fn list(device: &Device<'_>, list: List, room: usize) -> Result<Asked, NvmlError> {
    let call = list_call(device, list)?;
    let mut buffer = vec![PATTERN; room * ROOM / size_of::<u64>()];
    let mut count = c_uint::try_from(room).map_err(|_| NvmlError::InvalidArg)?;
    // SAFETY: the buffer holds `room` entries of any size up to ROOM, and is aligned for them.
    let code = unsafe { call(device.handle(), &raw mut count, buffer.as_mut_ptr().cast()) };
    let count = count as usize;
    if code == nvmlReturn_enum_NVML_ERROR_INSUFFICIENT_SIZE || count > room {
        return Ok(Asked::More(count));
    }
    nvml_try(code)?;
    Ok(entries(&buffer, count).map_or(Asked::Strange, Asked::Entries))
}

fn list_call(device: &Device<'_>, list: List) -> Result<ListCall, NvmlError> {
    let library = device.nvml().lib();
    let newest = match list {
        List::Compute => library.nvmlDeviceGetComputeRunningProcesses_v3.as_ref(),
        List::Graphics => library.nvmlDeviceGetGraphicsRunningProcesses_v3.as_ref(),
        List::Mps => library.nvmlDeviceGetMPSComputeRunningProcesses_v3.as_ref(),
    };
    match (nvml_sym(newest), list) {
        (Ok(call), _) => Ok(*call),
        (Err(error), List::Mps) => Err(error),
        // Version 2 (drivers from 450) has the entries of version 3, but does not guarantee their size.
        (Err(_), List::Compute | List::Graphics) => {
            let older = match list {
                List::Graphics => library.nvmlDeviceGetGraphicsRunningProcesses_v2.as_ref(),
                List::Compute | List::Mps => library.nvmlDeviceGetComputeRunningProcesses_v2.as_ref(),
            };
            Ok(*nvml_sym(older)?)
        }
    }
}

/// Parses what the driver wrote; `None` if the entries are of unknown size.
fn entries(buffer: &[u64], count: usize) -> Option<Vec<Listed>> {
    let bytes: Vec<u8> = buffer.iter().flat_map(|word| word.to_ne_bytes()).collect();
    if count == 0 {
        return Some(Vec::new());
    }
    let pattern = PATTERN.to_ne_bytes()[0];
    let written = bytes.iter().rposition(|byte| *byte != pattern).map_or(0, |last| last + 1);
    // The last entry may end in up to seven bytes of padding that the driver did not write.
    let stride = [16, 24, 32, 40].into_iter().find(|stride| {
        let whole = stride * count;
        written <= whole && whole < written + size_of::<u64>()
    })?;
    bytes.chunks_exact(stride).take(count).map(listed).collect()
}

fn listed(entry: &[u8]) -> Option<Listed> {
    let pid = u32::from_ne_bytes(entry.get(..4)?.try_into().ok()?);
    let memory = u64::from_ne_bytes(entry.get(8..16)?.try_into().ok()?);
    Some(Listed { pid, memory: (memory != u64::MAX).then_some(memory) })
}

/// Capacity for process samples, more than any driver was seen to return.
const SAMPLES: usize = 4096;

/// Returns the utilization samples newer than `since`, with the newer call (two more engines) or the older
/// call.
pub(super) fn utilization(device: &Device<'_>, since: u64) -> Result<Vec<UtilSample>, NvmlError> {
    match newer_utilization(device, since) {
        Err(error) if super::not_offered(&error) => older_utilization(device, since),
        answer => answer,
    }
}

fn newer_utilization(device: &Device<'_>, since: u64) -> Result<Vec<UtilSample>, NvmlError> {
    let call = nvml_sym(device.nvml().lib().nvmlDeviceGetProcessesUtilizationInfo.as_ref())?;
    // SAFETY: all zeros is a valid value of this plain struct.
    let mut buffer: Vec<nvmlProcessUtilizationInfo_v1_t> = vec![unsafe { std::mem::zeroed() }; SAMPLES];
    let mut request = nvmlProcessesUtilizationInfo_v1_t {
        version: version_of::<nvmlProcessesUtilizationInfo_v1_t>(1),
        processSamplesCount: room(&buffer),
        lastSeenTimeStamp: since,
        procUtilArray: buffer.as_mut_ptr(),
    };
    // SAFETY: the request points to a buffer of `processSamplesCount` samples.
    nvml_try(unsafe { call(device.handle(), &raw mut request) })?;
    let samples = buffer.iter().take(request.processSamplesCount as usize);
    Ok(samples
        .map(|sample| UtilSample {
            pid: sample.pid,
            stamp: sample.timeStamp,
            engines: Engines {
                sm: sample.smUtil,
                memory: sample.memUtil,
                encoder: sample.encUtil,
                decoder: sample.decUtil,
                jpeg: sample.jpgUtil,
                ofa: sample.ofaUtil,
            },
        })
        .collect())
}

fn older_utilization(device: &Device<'_>, since: u64) -> Result<Vec<UtilSample>, NvmlError> {
    let call = nvml_sym(device.nvml().lib().nvmlDeviceGetProcessUtilization.as_ref())?;
    // SAFETY: all zeros is a valid value of this plain struct.
    let mut buffer: Vec<nvmlProcessUtilizationSample_t> = vec![unsafe { std::mem::zeroed() }; SAMPLES];
    let mut count = room(&buffer);
    // SAFETY: the buffer has room for `count` samples.
    nvml_try(unsafe { call(device.handle(), buffer.as_mut_ptr(), &raw mut count, since) })?;
    Ok(buffer
        .iter()
        .take(count as usize)
        .map(|sample| UtilSample {
            pid: sample.pid,
            stamp: sample.timeStamp,
            engines: Engines {
                sm: sample.smUtil,
                memory: sample.memUtil,
                encoder: sample.encUtil,
                decoder: sample.decUtil,
                jpeg: 0,
                ofa: 0,
            },
        })
        .collect())
}

/// Returns the time and the GPU utilization in percent of each sample newer than `since`, and whether the samples
/// fill the driver's buffer.
pub(super) fn device_samples(device: &Device<'_>, since: u64) -> Result<(Vec<(u64, u32)>, bool), NvmlError> {
    let call = nvml_sym(device.nvml().lib().nvmlDeviceGetSamples.as_ref())?;
    let kind = nvmlSamplingType_enum_NVML_GPU_UTILIZATION_SAMPLES;
    let (mut value_type, mut ring) = (0, 0);
    // SAFETY: without a buffer, the call only writes the size of the driver's own.
    let code =
        unsafe { call(device.handle(), kind, 0, &raw mut value_type, &raw mut ring, std::ptr::null_mut()) };
    if code != nvmlReturn_enum_NVML_ERROR_INSUFFICIENT_SIZE {
        nvml_try(code)?;
    }
    let room = ring.min(65_536);
    // SAFETY: all zeros is a valid value of this plain struct and of every member of its union.
    let mut buffer: Vec<nvmlSample_t> = vec![unsafe { std::mem::zeroed() }; room as usize];
    let mut count = room;
    // SAFETY: the buffer has room for `count` samples.
    nvml_try(unsafe {
        call(device.handle(), kind, since, &raw mut value_type, &raw mut count, buffer.as_mut_ptr())
    })?;
    let samples = buffer.iter().take(count as usize);
    // SAFETY: utilization is an unsigned int (nvml.h), the union's first four bytes.
    let samples = samples.map(|sample| (sample.timeStamp, unsafe { sample.sampleValue.uiVal }));
    Ok((samples.collect(), count >= room))
}

/// Reads memory with version 1 of the call, for old drivers: total, free, and used including the reserved part.
pub(super) fn memory_version_1(device: &Device<'_>) -> Result<(u64, u64, u64), NvmlError> {
    let call = nvml_sym(device.nvml().lib().nvmlDeviceGetMemoryInfo.as_ref())?;
    // SAFETY: all zeros is a valid value of this plain struct.
    let mut memory = unsafe { std::mem::zeroed::<nvml_wrapper_sys::bindings::nvmlMemory_t>() };
    // SAFETY: the call writes one `nvmlMemory_t`.
    nvml_try(unsafe { call(device.handle(), &raw mut memory) })?;
    Ok((memory.total, memory.free, memory.used))
}

/// Reads fields (`NVML_FI_*`), each with its own result.
pub(super) fn fields<const N: usize>(
    device: &Device<'_>,
    ids: [c_uint; N],
) -> Result<[Result<u64, NvmlError>; N], NvmlError> {
    let call = nvml_sym(device.nvml().lib().nvmlDeviceGetFieldValues.as_ref())?;
    let mut values = ids.map(|id| nvmlFieldValue_t {
        fieldId: id,
        scopeId: 0,
        timestamp: 0,
        latencyUsec: 0,
        valueType: 0,
        // A driver that does not know a field may leave its value unchanged.
        nvmlReturn: nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED,
        value: nvmlValue_st { ullVal: 0 },
    });
    let count = c_int::try_from(N).map_err(|_| NvmlError::InvalidArg)?;
    // SAFETY: the call updates `count` values.
    nvml_try(unsafe { call(device.handle(), count, values.as_mut_ptr()) })?;
    Ok(values.map(|value| nvml_try(value.nvmlReturn).and_then(|()| number(&value))))
}

/// Returns the number in a field; an error for a type that is not an integer, and for a negative number.
fn number(field: &nvmlFieldValue_t) -> Result<u64, NvmlError> {
    // SAFETY: the tag names the member of the union that the driver wrote; the others are as large or smaller.
    let value = unsafe {
        match field.valueType {
            1 => Some(field.value.uiVal.into()),
            2 | 3 => Some(field.value.ullVal),
            4 => u64::try_from(field.value.sllVal).ok(),
            5 => u64::try_from(field.value.siVal).ok(),
            6 => Some(field.value.usVal.into()),
            _ => None,
        }
    };
    value.ok_or(NvmlError::Unknown)
}

/// Returns the driver's mask of reasons for reduced clocks.
pub(super) fn clock_events(device: &Device<'_>) -> Result<u64, NvmlError> {
    let library = device.nvml().lib();
    let read = |call: Result<&unsafe extern "C" fn(nvmlDevice_t, *mut c_ulonglong) -> nvmlReturn_t, _>| {
        let mut mask = 0;
        // SAFETY: the call writes one number.
        nvml_try(unsafe { nvml_sym(call)?(device.handle(), &raw mut mask) }).map(|()| mask)
    };
    match read(library.nvmlDeviceGetCurrentClocksEventReasons.as_ref()) {
        // Drivers before 535 have only the older name.
        Err(error) if super::not_offered(&error) => {
            read(library.nvmlDeviceGetCurrentClocksThrottleReasons.as_ref())
        }
        answer => answer,
    }
}

/// `nvmlGetMemoryLimits_v1_t` of drivers from 615.
#[repr(C)]
struct MemoryLimits {
    cgroup: *const c_char,
    soft: u64,
    hard: u64,
    used: u64,
}

const _: () = {
    assert!(size_of::<nvmlFieldValue_t>() == 40 && offset_of!(nvmlFieldValue_t, valueType) == 24);
    assert!(offset_of!(nvmlFieldValue_t, nvmlReturn) == 28 && offset_of!(nvmlFieldValue_t, value) == 32);
    assert!(size_of::<MemoryLimits>() == 32 && offset_of!(MemoryLimits, soft) == 8);
    assert!(offset_of!(MemoryLimits, hard) == 16 && offset_of!(MemoryLimits, used) == 24);
};

/// Returns the limits and the memory of a cgroup on a GPU; a hard limit of `u64::MAX` is none.
pub(super) fn memory_limits(device: &Device<'_>, cgroup: &CStr) -> Result<DriverLimits, NvmlError> {
    type Call = unsafe extern "C" fn(nvmlDevice_t, *mut MemoryLimits) -> nvmlReturn_t;
    // SAFETY: this is the signature in nvml.h.
    let call = unsafe { function::<Call>(device, b"nvmlDeviceGetMemoryLimits_v1\0") }?;
    // What the driver does not write is no limit.
    let mut limits = MemoryLimits { cgroup: cgroup.as_ptr(), soft: 0, hard: u64::MAX, used: 0 };
    // SAFETY: the call reads the path and writes the other fields.
    nvml_try(unsafe { call(device.handle(), &raw mut limits) })?;
    Ok(DriverLimits { soft: limits.soft, hard: limits.hard, used: limits.used })
}

/// `nvmlAccountingStats_v2_t` of drivers from 610.
#[repr(C)]
#[derive(Debug, Clone, Default)]
pub(super) struct AccountingStats {
    pid: c_uint,
    is_running: c_uint,
    gpu_utilization: c_uint,
    memory_utilization: c_uint,
    /// In bytes; `u64::MAX` if unknown.
    pub(super) max_memory: u64,
    samples: c_uint,
    /// Sum of the utilization of compute and graphics engines over all samples.
    pub(super) gpu_sum: u64,
    /// Sum of the utilization of memory bandwidth over all samples.
    pub(super) memory_sum: u64,
    time: u64,
    /// Start of the process, by the driver's clock.
    pub(super) start: u64,
}

const _: () = {
    assert!(size_of::<AccountingStats>() == 64 && offset_of!(AccountingStats, max_memory) == 16);
    assert!(offset_of!(AccountingStats, gpu_sum) == 32 && offset_of!(AccountingStats, memory_sum) == 40);
    assert!(offset_of!(AccountingStats, start) == 56);
};

/// Returns what accounting has counted for a process, while accounting mode is on.
pub(super) fn accounting_stats(device: &Device<'_>, pid: u32) -> Result<AccountingStats, NvmlError> {
    type Call = unsafe extern "C" fn(nvmlDevice_t, *mut AccountingStats) -> nvmlReturn_t;
    // SAFETY: this is the signature in nvml.h.
    let call = unsafe { function::<Call>(device, b"nvmlDeviceGetAccountingStats_v2\0") }?;
    let mut stats = AccountingStats { pid, ..AccountingStats::default() };
    // SAFETY: the call reads the pid and writes the other fields.
    nvml_try(unsafe { call(device.handle(), &raw mut stats) })?;
    Ok(stats)
}

/// A sample of a GPU's counters (`nvmlGpmSample_t`).
pub(super) struct GpmSample {
    handle: *mut c_void,
    free: unsafe extern "C" fn(*mut c_void) -> nvmlReturn_t,
}

impl Drop for GpmSample {
    fn drop(&mut self) {
        // SAFETY: the driver allocated the handle, and it is freed once.
        unsafe { (self.free)(self.handle) };
    }
}

/// `nvmlGpmSupport_t`
#[repr(C)]
struct GpmSupport {
    version: c_uint,
    is_supported: c_uint,
}

/// `nvmlGpmMetric_t`
#[repr(C)]
#[derive(Clone, Copy)]
struct GpmMetric {
    id: c_uint,
    code: nvmlReturn_t,
    value: f64,
    names: [*const c_char; 3],
}

/// `nvmlGpmMetricsGet_t`, with as many metrics as in the newest header. Newer drivers may write all of them.
#[repr(C)]
struct GpmRequest {
    version: c_uint,
    count: c_uint,
    samples: [*mut c_void; 2],
    metrics: [GpmMetric; 477],
}

const _: () = {
    assert!(size_of::<GpmMetric>() == 40 && offset_of!(GpmMetric, value) == 8);
    assert!(size_of::<GpmRequest>() == 19_104 && offset_of!(GpmRequest, metrics) == 24);
};

/// Returns a function of NVML that the wrapper does not know.
///
/// # Safety
/// `F` must be the function's type in `nvml.h`.
unsafe fn function<F: Copy>(device: &Device<'_>, name: &[u8]) -> Result<F, NvmlError> {
    // SAFETY: the caller guarantees the type. The library is never unloaded.
    let found = unsafe { device.nvml().lib().__library.get::<F>(name) };
    found.map(|found| *found).map_err(|_| NvmlError::FunctionNotFound)
}

/// Returns whether a GPU measures the activity of its engines.
pub(super) fn gpm_is_supported(gpu: &Device<'_>) -> Result<bool, NvmlError> {
    type Call = unsafe extern "C" fn(nvmlDevice_t, *mut GpmSupport) -> nvmlReturn_t;
    // SAFETY: this is the signature in nvml.h.
    let call = unsafe { function::<Call>(gpu, b"nvmlGpmQueryDeviceSupport\0") }?;
    let mut support = GpmSupport { version: 1, is_supported: 0 };
    // SAFETY: the call updates the structure.
    nvml_try(unsafe { call(gpu.handle(), &raw mut support) })?;
    Ok(support.is_supported == 1)
}

/// Reads the counters of a GPU, or of a MIG instance of it with this id.
pub(super) fn gpm_sample(gpu: &Device<'_>, instance: Option<u32>) -> Result<GpmSample, NvmlError> {
    type Alloc = unsafe extern "C" fn(*mut *mut c_void) -> nvmlReturn_t;
    type Free = unsafe extern "C" fn(*mut c_void) -> nvmlReturn_t;
    type Get = unsafe extern "C" fn(nvmlDevice_t, *mut c_void) -> nvmlReturn_t;
    type MigGet = unsafe extern "C" fn(nvmlDevice_t, c_uint, *mut c_void) -> nvmlReturn_t;
    // SAFETY: these are the signatures in nvml.h.
    let (alloc, free) = unsafe {
        (function::<Alloc>(gpu, b"nvmlGpmSampleAlloc\0")?, function::<Free>(gpu, b"nvmlGpmSampleFree\0")?)
    };
    let mut handle = std::ptr::null_mut();
    // SAFETY: the call writes one handle.
    nvml_try(unsafe { alloc(&raw mut handle) })?;
    let sample = GpmSample { handle, free };
    let code = match instance {
        // SAFETY: the signature is that in nvml.h, and the sample is allocated.
        Some(id) => unsafe { function::<MigGet>(gpu, b"nvmlGpmMigSampleGet\0")?(gpu.handle(), id, handle) },
        // SAFETY: likewise.
        None => unsafe { function::<Get>(gpu, b"nvmlGpmSampleGet\0")?(gpu.handle(), handle) },
    };
    nvml_try(code).map(|()| sample)
}

impl GpmRequest {
    /// Returns a request of metrics between two samples.
    fn new(samples: [*mut c_void; 2], ids: &[u32]) -> Result<Box<Self>, NvmlError> {
        // SAFETY: all zeros is a valid value of this plain struct.
        let mut request: Box<Self> = unsafe { Box::new_zeroed().assume_init() };
        request.version = 1;
        request.count = c_uint::try_from(ids.len()).map_err(|_| NvmlError::InvalidArg)?;
        request.samples = samples;
        for (metric, id) in request.metrics.iter_mut().zip(ids) {
            // What the driver does not write has no value.
            let (code, names) = (nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED, [std::ptr::null(); 3]);
            *metric = GpmMetric { id: *id, code, value: f64::NAN, names };
        }
        Ok(request)
    }
}

/// Returns metrics, as averages between two samples, each with its own result.
pub(super) fn gpm_metrics<const N: usize>(
    gpu: &Device<'_>,
    samples: (&GpmSample, &GpmSample),
    ids: [u32; N],
) -> Result<[Result<f64, NvmlError>; N], NvmlError> {
    type Call = unsafe extern "C" fn(*mut GpmRequest) -> nvmlReturn_t;
    // SAFETY: this is the signature in nvml.h.
    let call = unsafe { function::<Call>(gpu, b"nvmlGpmMetricsGet\0") }?;
    let mut request = GpmRequest::new([samples.0.handle, samples.1.handle], &ids)?;
    // SAFETY: the samples are allocated, and the request has room for more metrics than it asks for.
    nvml_try(unsafe { call(&raw mut *request) })?;
    let mut metrics = request.metrics.iter().map(|metric| nvml_try(metric.code).map(|()| metric.value));
    Ok(std::array::from_fn(|_| metrics.next().unwrap_or(Err(NvmlError::NotSupported))))
}

/// Returns the GPU instance id and the compute instance id of a MIG device.
pub(super) fn instance_ids(device: &Device<'_>) -> (Option<u32>, Option<u32>) {
    let library = device.nvml().lib();
    let id = |call: Result<&unsafe extern "C" fn(nvmlDevice_t, *mut c_uint) -> nvmlReturn_t, _>| {
        let mut id = 0;
        // SAFETY: the call writes one unsigned int.
        nvml_try(unsafe { nvml_sym(call).ok()?(device.handle(), &raw mut id) }).ok()?;
        Some(id)
    };
    (id(library.nvmlDeviceGetGpuInstanceId.as_ref()), id(library.nvmlDeviceGetComputeInstanceId.as_ref()))
}

/// Returns NVML's `NVML_STRUCT_VERSION`: the struct's size, with the version in the top byte.
fn version_of<T>(version: c_uint) -> c_uint {
    c_uint::try_from(size_of::<T>()).unwrap_or_default() | version << 24
}

fn room<T>(buffer: &[T]) -> c_uint {
    c_uint::try_from(buffer.len()).unwrap_or(c_uint::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns our buffer as written by a driver with entries of `stride` bytes.
    fn written(stride: usize, entries: &[(u32, u64)]) -> Vec<u64> {
        let mut bytes = vec![0xAA; entries.len().max(1) * ROOM];
        for (at, (pid, memory)) in entries.iter().enumerate() {
            let entry = &mut bytes[at * stride..(at + 1) * stride];
            entry.fill(0);
            entry[..4].copy_from_slice(&pid.to_ne_bytes());
            // The four bytes between pid and memory are padding, which drivers do not write.
            entry[4..8].fill(0xAA);
            entry[8..16].copy_from_slice(&memory.to_ne_bytes());
        }
        bytes.chunks_exact(8).map(|word| u64::from_ne_bytes(word.try_into().unwrap())).collect()
    }

    #[test]
    fn each_size_of_entry_is_measured() {
        let wanted: Vec<(u32, u64)> = (1..=40).map(|n| (n, u64::from(n) << 30)).collect();
        for stride in [16, 24, 32, 40] {
            for count in [1, 2, 3, 40] {
                let read = entries(&written(stride, &wanted[..count]), count).unwrap();
                let read: Vec<(u32, u64)> =
                    read.iter().map(|entry| (entry.pid, entry.memory.unwrap())).collect();
                assert_eq!(read, wanted[..count], "{count} entries of {stride} bytes");
            }
        }
    }

    #[test]
    fn a_size_that_is_not_known_gives_nothing_rather_than_garbage() {
        for (stride, count) in [(20, 4), (28, 3), (48, 2), (56, 5)] {
            let wanted: Vec<(u32, u64)> = (1..=count).map(|n| (n, 1 << 30)).collect();
            let buffer = written(stride, &wanted);
            assert_eq!(entries(&buffer, wanted.len()), None, "{count} entries of {stride} bytes");
        }
    }

    #[test]
    fn memory_that_is_not_available_is_none() {
        let read = entries(&written(24, &[(7, u64::MAX)]), 1).unwrap();
        assert_eq!(read, [Listed { pid: 7, memory: None }]);
        assert_eq!(entries(&written(24, &[]), 0), Some(Vec::new()));
    }

    /// Returns whether a driver that fills a structure of this size in place of ours writes nothing behind it.
    fn has_room<T>(ours: T, size: usize) -> bool {
        const GUARD: [u8; 64] = [0xA5; 64];
        #[repr(C)]
        struct Guarded<T> {
            ours: T,
            guard: [u8; 64],
        }
        let mut guarded = Box::new(Guarded { ours, guard: GUARD });
        let size = size.min(size_of::<Guarded<T>>());
        // SAFETY: the structure and the guard are at least as long.
        unsafe { std::ptr::from_mut(&mut *guarded).cast::<u8>().write_bytes(0xEE, size) };
        guarded.guard == GUARD
    }

    /// The sizes are those of `nvml.h`. The request of metrics grew in 12.9, 13.2 and 13.4 without a new version.
    #[test]
    fn structure_of_each_header_fits_in_ours() {
        let request = || *GpmRequest::new([std::ptr::null_mut(); 2], &[1, 2]).unwrap();
        for size in [3_944, 8_424, 13_344, 19_104] {
            assert!(has_room(request(), size), "{size} bytes of nvmlGpmMetricsGet_t");
        }
        assert!(!has_room(request(), 19_105), "the guard is behind the structure");
        assert!(has_room(GpmSupport { version: 1, is_supported: 0 }, 8), "nvmlGpmSupport_t");
        assert!(has_room(AccountingStats::default(), 64), "nvmlAccountingStats_v2_t");
        let limits = MemoryLimits { cgroup: std::ptr::null(), soft: 0, hard: 0, used: 0 };
        assert!(has_room(limits, 32), "nvmlGetMemoryLimits_v1_t");
    }

    #[test]
    fn metric_that_the_driver_does_not_write_has_no_value() {
        let request = GpmRequest::new([std::ptr::null_mut(); 2], &[10, 30]).unwrap();
        assert_eq!((request.version, request.count), (1, 2));
        for (metric, id) in request.metrics.iter().zip([10, 30]) {
            assert_eq!((metric.id, metric.code), (id, nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED));
            assert!(metric.value.is_nan());
        }
    }
}
