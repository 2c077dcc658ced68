//! NVML's answers, read directly and not by the exporter's code.

use std::collections::BTreeMap;
use std::path::Path;

use nvml_wrapper::enum_wrappers::device::Sampling;
use nvml_wrapper::enums::device::{SampleValue, UsedGpuMemory};
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::struct_wrappers::device::ProcessInfo;
use nvml_wrapper::{Device, Nvml};

/// The driver.
pub(crate) struct Driver(Nvml);

/// A GPU.
#[derive(Debug, Clone)]
pub(crate) struct Card {
    pub(crate) uuid: String,
    pub(crate) name: String,
    pub(crate) mig: bool,
    /// Processes that were there before ours.
    pub(crate) others: usize,
}

/// What the driver says of a GPU since a stamp of its own.
#[derive(Debug, Clone, Default)]
pub(crate) struct Answer {
    /// The compute list: memory by pid, none where the driver does not tell.
    pub(crate) compute: BTreeMap<u32, Option<u64>>,
    pub(crate) graphics: BTreeMap<u32, Option<u64>>,
    /// Samples of processes: pid and percent of the busiest engine; none where it answered `NOT_FOUND`.
    pub(crate) samples: Vec<(u32, u32)>,
    /// Why there are none.
    pub(crate) refused: Option<String>,
    /// Samples of the GPU: stamp and percent.
    pub(crate) device: Vec<(u64, u32)>,
    /// Bytes of the GPU that are in use.
    pub(crate) used: u64,
}

impl Answer {
    /// Percent of the busiest sample of a process.
    pub(crate) fn busiest(&self, pid: u32) -> Option<u32> {
        self.samples.iter().filter(|sample| sample.0 == pid).map(|sample| sample.1).max()
    }

    /// Percent of the GPU's busiest sample.
    pub(crate) fn maximum(&self) -> Option<u32> {
        self.device.iter().map(|sample| sample.1).max()
    }

    pub(crate) fn newest(&self) -> u64 {
        self.device.iter().map(|sample| sample.0).max().unwrap_or_default()
    }

    /// What it says of a process, in words.
    pub(crate) fn of(&self, pid: u32) -> String {
        let listed = match (self.compute.get(&pid), self.graphics.contains_key(&pid)) {
            (None, false) => "not listed".to_owned(),
            (None, true) => "listed as graphics".to_owned(),
            (Some(None), _) => "listed, memory unknown".to_owned(),
            (Some(Some(bytes)), _) => format!("listed with {}", mebibytes(*bytes)),
        };
        let samples = self.samples.iter().filter(|sample| sample.0 == pid).count();
        match self.busiest(pid) {
            Some(busiest) => format!("{listed}; {samples} samples, at most {busiest} %"),
            None => format!("{listed}; no sample ({})", self.refused.as_deref().unwrap_or("of others only")),
        }
    }

    /// What it says of the GPU, in words.
    pub(crate) fn of_gpu(&self) -> String {
        let maximum = self.maximum().map_or("unknown".to_owned(), |percent| format!("{percent} %"));
        format!("GPU: {} samples, at most {maximum}", self.device.len())
    }
}

impl Driver {
    /// Loads the library: this one, or the system's.
    pub(crate) fn open(path: Option<&Path>) -> Result<Self, NvmlError> {
        match path {
            Some(path) => Nvml::builder().lib_path(path.as_os_str()).init(),
            None => Nvml::builder().lib_path("libnvidia-ml.so.1".as_ref()).init(),
        }
        .map(Self)
    }

    pub(crate) fn version(&self) -> String {
        self.0.sys_driver_version().unwrap_or_else(|error| error.to_string())
    }

    /// All GPUs that answer.
    pub(crate) fn cards(&self) -> Vec<Card> {
        let count = self.0.device_count().unwrap_or_default();
        let devices = (0..count).filter_map(|index| self.0.device_by_index(index).ok());
        devices.filter_map(|device| card(&device).ok()).collect()
    }

    /// Reads everything of a GPU that is newer than `since`.
    pub(crate) fn read(&self, uuid: &str, since: u64) -> Result<Answer, NvmlError> {
        let device = self.0.device_by_uuid(uuid)?;
        let (samples, refused) = match device.process_utilization_stats(since) {
            Ok(samples) if samples.is_empty() => (Vec::new(), Some("an empty answer".to_owned())),
            Ok(samples) => {
                let percent = |of: &nvml_wrapper::struct_wrappers::device::ProcessUtilizationSample| {
                    of.sm_util.max(of.enc_util).max(of.dec_util)
                };
                (samples.iter().map(|sample| (sample.pid, percent(sample))).collect(), None)
            }
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
            samples,
            refused,
            device: own.filter(|sample| sample.0 > since).collect(),
            used: device.memory_info()?.used,
        })
    }
}

fn card(device: &Device<'_>) -> Result<Card, NvmlError> {
    let others = device.running_compute_processes().unwrap_or_default().len()
        + device.running_graphics_processes().unwrap_or_default().len();
    let mig = device.mig_mode().is_ok_and(|mode| mode.current != 0);
    Ok(Card { uuid: device.uuid()?, name: device.name()?, mig, others })
}

fn list(entries: Vec<ProcessInfo>) -> BTreeMap<u32, Option<u64>> {
    let memory = |used: UsedGpuMemory| match used {
        UsedGpuMemory::Used(bytes) => Some(bytes),
        UsedGpuMemory::Unavailable => None,
    };
    entries.into_iter().map(|entry| (entry.pid, memory(entry.used_gpu_memory))).collect()
}

pub(crate) fn mebibytes(bytes: u64) -> String {
    format!("{} MiB", bytes >> 20)
}
