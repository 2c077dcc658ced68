//! NVML's data, read directly and without the exporter's code.

use std::collections::BTreeMap;
use std::ffi::c_uint;
use std::path::Path;

use nvml_wrapper::enum_wrappers::device::Sampling;
use nvml_wrapper::enums::device::{SampleValue, UsedGpuMemory};
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::struct_wrappers::device::{FieldValueSample, ProcessInfo, ProcessUtilizationSample};
use nvml_wrapper::structs::device::FieldId;
use nvml_wrapper::{Device, Nvml};
use nvml_wrapper_sys::bindings::{
    nvmlDevice_t, nvmlReturn_enum_NVML_ERROR_FUNCTION_NOT_FOUND, nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED,
};

/// The driver.
pub(crate) struct Driver(Nvml);

/// A GPU.
#[derive(Debug, Clone)]
pub(crate) struct Card {
    pub(crate) uuid: String,
    pub(crate) name: String,
    pub(crate) mig: bool,
    /// Number of processes on the GPU before the run.
    pub(crate) others: usize,
}

/// A process list from the driver: memory by pid, `None` if the driver does not report it.
pub(crate) type List = BTreeMap<u32, Option<u64>>;

/// What the driver reports about a GPU since a driver timestamp.
#[derive(Debug, Clone, Default)]
pub(crate) struct Answer {
    pub(crate) compute: List,
    pub(crate) graphics: List,
    pub(crate) mps: List,
    /// Process samples: pid, and utilization of the busiest engine in percent.
    pub(crate) samples: Vec<(u32, u32)>,
    /// Why there are no process samples.
    pub(crate) refused: Option<String>,
    /// GPU samples: timestamp in microseconds, and utilization in percent.
    pub(crate) device: Vec<(u64, u32)>,
    /// Used memory of the GPU in bytes.
    pub(crate) used: u64,
}

/// Health of a GPU; `None` if the driver does not report it.
#[derive(Debug)]
pub(crate) struct Health {
    /// Fields 230, 4, and 142 to 145: recovery action, uncorrected ECC errors, remapped rows.
    pub(crate) action: Option<u64>,
    pub(crate) ecc: Option<u64>,
    pub(crate) rows: [Option<u64>; 4],
    /// The same rows, by `nvmlDeviceGetRemappedRows`.
    pub(crate) rows_by_call: [Option<u64>; 4],
    pub(crate) total: u64,
    /// Whether the library has `nvmlDeviceGetMemoryLimits_v1`.
    pub(crate) has_limits: bool,
}

impl Answer {
    /// Returns the process lists by name.
    fn lists(&self) -> [(&'static str, &List); 3] {
        [("compute", &self.compute), ("graphics", &self.graphics), ("mps", &self.mps)]
    }

    /// Returns whether a process is in one of the lists.
    pub(crate) fn lists_process(&self, pid: u32) -> bool {
        self.lists().iter().any(|(_, list)| list.contains_key(&pid))
    }

    /// Returns the pids in all lists.
    pub(crate) fn pids(&self) -> impl Iterator<Item = u32> {
        self.lists().into_iter().flat_map(|(_, list)| list.keys().copied())
    }

    /// Returns the memory of a process in bytes.
    pub(crate) fn memory(&self, pid: u32) -> Option<u64> {
        self.lists().iter().find_map(|(_, list)| list.get(&pid).copied()).flatten()
    }

    /// Returns the utilization in the busiest sample of a process, in percent.
    pub(crate) fn busiest(&self, pid: u32) -> Option<u32> {
        self.samples.iter().filter(|sample| sample.0 == pid).map(|sample| sample.1).max()
    }

    /// Returns the utilization in the GPU's busiest sample, in percent.
    pub(crate) fn maximum(&self) -> Option<u32> {
        self.device.iter().map(|sample| sample.1).max()
    }

    pub(crate) fn newest(&self) -> u64 {
        self.device.iter().map(|sample| sample.0).max().unwrap_or_default()
    }

    /// Describes what the driver reports about a process.
    pub(crate) fn of(&self, pid: u32) -> String {
        let names = self.lists().into_iter().filter(|(_, list)| list.contains_key(&pid));
        let names: Vec<&str> = names.map(|(name, _)| name).collect();
        let listed = match (names.is_empty(), self.memory(pid)) {
            (true, _) => "not listed".to_owned(),
            (false, memory) => {
                format!("listed ({}) with {}", names.join(", "), memory.map_or("?".to_owned(), mebibytes))
            }
        };
        let samples = self.samples.iter().filter(|sample| sample.0 == pid).count();
        match self.busiest(pid) {
            Some(busiest) => format!("{listed}; {samples} samples, at most {busiest} %"),
            None => format!("{listed}; no sample"),
        }
    }

    /// Describes what the driver reports about the GPU.
    pub(crate) fn of_gpu(&self) -> String {
        let maximum = self.maximum().map_or("?".to_owned(), |percent| percent.to_string());
        let refused =
            self.refused.as_deref().map_or(String::new(), |refused| format!("; processes: {refused}"));
        format!("GPU: {} samples, at most {maximum} %{refused}", self.device.len())
    }
}

impl Driver {
    /// Loads the library at this path, or the system's library.
    pub(crate) fn open(path: Option<&Path>) -> Result<Self, NvmlError> {
        let path = path.unwrap_or(Path::new("libnvidia-ml.so.1"));
        Nvml::builder().lib_path(path.as_os_str()).init().map(Self)
    }

    pub(crate) fn version(&self) -> String {
        self.0.sys_driver_version().unwrap_or_else(|error| error.to_string())
    }

    /// Returns all GPUs that can be read.
    pub(crate) fn cards(&self) -> Vec<Card> {
        let count = self.0.device_count().unwrap_or_default();
        let devices = (0..count).filter_map(|index| self.0.device_by_index(index).ok());
        devices.filter_map(|device| card(&device).ok()).collect()
    }

    /// Reads all data about a GPU that is newer than `since`.
    pub(crate) fn read(&self, uuid: &str, since: u64) -> Result<Answer, NvmlError> {
        let device = self.0.device_by_uuid(uuid)?;
        let percent =
            |sample: &ProcessUtilizationSample| sample.sm_util.max(sample.enc_util).max(sample.dec_util);
        let (samples, refused) = match device.process_utilization_stats(since) {
            Ok(samples) if samples.is_empty() => (Vec::new(), Some("an empty answer".to_owned())),
            Ok(samples) => (samples.iter().map(|sample| (sample.pid, percent(sample))).collect(), None),
            Err(NvmlError::NotFound) => (Vec::new(), Some("NOT_FOUND".to_owned())),
            Err(error) => (Vec::new(), Some(error.to_string())),
        };
        let own = device.samples(Sampling::GpuUtilization, since).unwrap_or_default();
        let own = own.into_iter().filter_map(|sample| match sample.value {
            SampleValue::U32(percent) => Some((sample.timestamp, percent)),
            _ => None,
        });
        Ok(Answer {
            compute: list(device.running_compute_processes()?),
            graphics: list(device.running_graphics_processes().unwrap_or_default()),
            mps: list(device.mps_running_compute_processes().unwrap_or_default()),
            samples,
            refused,
            device: own.filter(|sample| sample.0 > since).collect(),
            used: device.memory_info()?.used,
        })
    }
}

impl Driver {
    /// Reads the health of a GPU.
    #[allow(unsafe_code, reason = "the wrapper lacks these functions")]
    pub(crate) fn health(&self, uuid: &str) -> Result<Health, NvmlError> {
        let device = self.0.device_by_uuid(uuid)?;
        let fields = device.field_values_for(&[230, 4, 142, 143, 144, 145].map(FieldId))?;
        let number =
            |field: &Result<FieldValueSample, NvmlError>| match field.as_ref().ok()?.value.as_ref().ok()? {
                SampleValue::U32(value) => Some(u64::from(*value)),
                SampleValue::U64(value) => Some(*value),
                _ => None,
            };
        let field = |position: usize| fields.get(position).and_then(number);
        let mut rows = [0; 4];
        let [corrected, uncorrected, pending, failed] = &mut rows;
        let remapped = self.0.lib().nvmlDeviceGetRemappedRows.as_ref();
        // SAFETY: the call writes four numbers.
        let code =
            remapped.map(|call| unsafe { call(device.handle(), corrected, uncorrected, pending, failed) });
        // SAFETY: the symbol is not called.
        let limits = unsafe { self.0.lib().__library.get::<fn()>(b"nvmlDeviceGetMemoryLimits_v1\0") };
        Ok(Health {
            action: field(0),
            ecc: field(1),
            rows: [field(2), field(3), field(4), field(5)],
            rows_by_call: rows.map(|rows| matches!(code, Ok(0)).then(|| rows.into())),
            total: device.memory_info()?.total,
            has_limits: limits.is_ok(),
        })
    }
}

impl Driver {
    /// Returns the accounting's sums of a process: number of samples, utilization of the engines, and of memory.
    #[allow(unsafe_code, reason = "the wrapper lacks this function")]
    pub(crate) fn accounted(&self, uuid: &str, pid: u32) -> Result<[u64; 3], String> {
        type Call = unsafe extern "C" fn(nvmlDevice_t, *mut [u64; 8]) -> c_uint;
        // SAFETY: the function takes a device and a structure of 64 bytes (`nvmlAccountingStats_v2_t`).
        let call = unsafe { self.0.lib().__library.get::<Call>(b"nvmlDeviceGetAccountingStats_v2\0") };
        let missing = || "the driver has no sums of samples (before 610)".to_owned();
        let call = call.map_err(|_| missing())?;
        let device = self.0.device_by_uuid(uuid).map_err(|error| error.to_string())?;
        let mut stats = [u64::from(pid), 0, 0, 0, 0, 0, 0, 0];
        // SAFETY: the structure begins with the pid, and the call writes the rest.
        match unsafe { call(device.handle(), &raw mut stats) } {
            0 => Ok([stats[3] & u64::from(u32::MAX), stats[4], stats[5]]),
            code if code == nvmlReturn_enum_NVML_ERROR_FUNCTION_NOT_FOUND => Err(missing()),
            code if code == nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED => {
                Err("accounting mode is off, and no setting of the GPU is changed".to_owned())
            }
            code => Err(format!("accounting of process {pid}: error {code}")),
        }
    }
}

fn card(device: &Device<'_>) -> Result<Card, NvmlError> {
    let lists = [device.running_compute_processes(), device.running_graphics_processes()];
    let others = lists.into_iter().flatten().map(|list| list.len()).sum();
    let mig = device.mig_mode().is_ok_and(|mode| mode.current != 0);
    Ok(Card { uuid: device.uuid()?, name: device.name()?, mig, others })
}

fn list(entries: Vec<ProcessInfo>) -> List {
    let memory = |used: UsedGpuMemory| match used {
        UsedGpuMemory::Used(bytes) => Some(bytes),
        UsedGpuMemory::Unavailable => None,
    };
    entries.into_iter().map(|entry| (entry.pid, memory(entry.used_gpu_memory))).collect()
}

pub(crate) fn mebibytes(bytes: u64) -> String {
    format!("{} MiB", bytes >> 20)
}
