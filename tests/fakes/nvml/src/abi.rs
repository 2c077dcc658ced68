//! The structures in `nvml.h`, with the memory layout of C. This file contains no logic.

use std::ffi::{c_char, c_int, c_longlong, c_uint, c_ulonglong};

use crate::code::Code;

/// "Not available" as an instance id.
pub(crate) const NO_INSTANCE: u32 = u32::MAX;
/// "Not available" as a number of bytes.
pub(crate) const NO_BYTES: u64 = u64::MAX;

/// Returns a structure's version field: its size, and the number of its revision in the upper bits.
#[expect(clippy::cast_possible_truncation, reason = "no structure here has more than 100 bytes")]
pub(crate) const fn version<T>(revision: u32) -> u32 {
    size_of::<T>() as u32 | revision << 24
}

/// `nvmlPciInfo_t`
#[repr(C)]
pub(crate) struct PciInfo {
    pub(crate) bus_id_legacy: [c_char; 16],
    pub(crate) domain: c_uint,
    pub(crate) bus: c_uint,
    pub(crate) device: c_uint,
    pub(crate) pci_device_id: c_uint,
    pub(crate) pci_subsystem_id: c_uint,
    pub(crate) bus_id: [c_char; 32],
}

/// `nvmlMemory_t`, and `nvmlBAR1Memory_t` with the same fields.
#[repr(C)]
pub(crate) struct Memory {
    pub(crate) total: c_ulonglong,
    pub(crate) free: c_ulonglong,
    pub(crate) used: c_ulonglong,
}

/// `nvmlMemory_v2_t`
#[repr(C)]
pub(crate) struct Memory2 {
    pub(crate) version: c_uint,
    pub(crate) total: c_ulonglong,
    pub(crate) reserved: c_ulonglong,
    pub(crate) free: c_ulonglong,
    pub(crate) used: c_ulonglong,
}

/// `nvmlGetMemoryLimits_v1_t`
#[repr(C)]
pub(crate) struct MemoryLimits {
    pub(crate) cgroup: crate::edge::Text,
    pub(crate) soft: c_ulonglong,
    pub(crate) hard: c_ulonglong,
    pub(crate) used: c_ulonglong,
}

/// `nvmlUtilization_t`
#[repr(C)]
pub(crate) struct Utilization {
    pub(crate) gpu: c_uint,
    pub(crate) memory: c_uint,
}

/// `nvmlTemperature_v1_t`
#[repr(C)]
pub(crate) struct Temperature {
    pub(crate) version: c_uint,
    pub(crate) sensor: c_uint,
    pub(crate) celsius: c_int,
}

/// `nvmlProcessUtilizationSample_t`
#[repr(C)]
pub(crate) struct ProcessSample {
    pub(crate) pid: c_uint,
    pub(crate) stamp: c_ulonglong,
    pub(crate) sm: c_uint,
    pub(crate) memory: c_uint,
    pub(crate) encoder: c_uint,
    pub(crate) decoder: c_uint,
}

/// `nvmlProcessUtilizationInfo_v1_t`
#[repr(C)]
pub(crate) struct ProcessSample1 {
    pub(crate) stamp: c_ulonglong,
    pub(crate) pid: c_uint,
    pub(crate) sm: c_uint,
    pub(crate) memory: c_uint,
    pub(crate) encoder: c_uint,
    pub(crate) decoder: c_uint,
    pub(crate) jpg: c_uint,
    pub(crate) ofa: c_uint,
}

/// `nvmlProcessesUtilizationInfo_v1_t`
#[repr(C)]
pub(crate) struct ProcessSamples1 {
    pub(crate) version: c_uint,
    pub(crate) count: c_uint,
    pub(crate) last_seen: c_ulonglong,
    pub(crate) samples: *mut ProcessSample1,
}

/// `nvmlProcessDetail_v1_t`
#[repr(C)]
pub(crate) struct ProcessDetail {
    pub(crate) pid: c_uint,
    pub(crate) used: c_ulonglong,
    pub(crate) gi: c_uint,
    pub(crate) ci: c_uint,
    pub(crate) protected: c_ulonglong,
}

/// `nvmlProcessDetailList_v1_t`
#[repr(C)]
pub(crate) struct ProcessDetails {
    pub(crate) version: c_uint,
    pub(crate) mode: c_uint,
    pub(crate) count: c_uint,
    pub(crate) details: *mut ProcessDetail,
}

/// `nvmlSample_t`. The value is a union of eight bytes; only its unsigned integers are used here.
#[repr(C)]
pub(crate) struct Sample {
    pub(crate) stamp: c_ulonglong,
    pub(crate) value: c_ulonglong,
}

/// `nvmlFieldValue_t`
#[repr(C)]
pub(crate) struct FieldValue {
    pub(crate) field: c_uint,
    pub(crate) scope: c_uint,
    pub(crate) stamp: c_longlong,
    pub(crate) latency: c_longlong,
    pub(crate) value_type: c_uint,
    pub(crate) code: Code,
    pub(crate) value: c_ulonglong,
}

/// `nvmlDeviceAttributes_t`
#[repr(C)]
pub(crate) struct Attributes {
    pub(crate) multiprocessors: c_uint,
    pub(crate) copy_engines: c_uint,
    pub(crate) decoders: c_uint,
    pub(crate) encoders: c_uint,
    pub(crate) jpegs: c_uint,
    pub(crate) ofas: c_uint,
    pub(crate) gpu_slices: c_uint,
    pub(crate) compute_slices: c_uint,
    pub(crate) memory_mib: c_ulonglong,
}

/// `nvmlAccountingStats_t`
#[repr(C)]
pub(crate) struct AccountingStats {
    pub(crate) gpu: c_uint,
    pub(crate) memory: c_uint,
    pub(crate) max_memory: c_ulonglong,
    pub(crate) time: c_ulonglong,
    pub(crate) start: c_ulonglong,
    pub(crate) running: c_uint,
    pub(crate) reserved: [c_uint; 5],
}

/// `nvmlAccountingStats_v2_t`
#[repr(C)]
pub(crate) struct AccountingStats2 {
    pub(crate) pid: c_uint,
    pub(crate) running: c_uint,
    pub(crate) gpu: c_uint,
    pub(crate) memory: c_uint,
    pub(crate) max_memory: c_ulonglong,
    pub(crate) samples: c_uint,
    pub(crate) gpu_sum: c_ulonglong,
    pub(crate) memory_sum: c_ulonglong,
    pub(crate) time: c_ulonglong,
    pub(crate) start: c_ulonglong,
}

/// `nvmlEventData_t`
#[repr(C)]
pub(crate) struct EventData {
    pub(crate) device: crate::edge::Handle,
    pub(crate) kind: c_ulonglong,
    pub(crate) data: c_ulonglong,
    pub(crate) gi: c_uint,
    pub(crate) ci: c_uint,
}

/// The sizes on 64-bit Linux. A wrong size would overwrite the caller's stack.
const _: () = {
    assert!(size_of::<PciInfo>() == 68 && size_of::<Memory2>() == 40 && size_of::<Temperature>() == 12);
    assert!(size_of::<MemoryLimits>() == 32);
    assert!(size_of::<ProcessSample>() == 32 && size_of::<ProcessSample1>() == 40);
    assert!(size_of::<ProcessSamples1>() == 24 && size_of::<ProcessDetail>() == 32);
    assert!(size_of::<ProcessDetails>() == 24 && size_of::<Sample>() == 16 && size_of::<FieldValue>() == 40);
    assert!(
        size_of::<Attributes>() == 40
            && size_of::<AccountingStats>() == 56
            && size_of::<AccountingStats2>() == 64
            && size_of::<EventData>() == 32
    );
};
