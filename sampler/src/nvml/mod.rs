//! NVML: opened once in a worker's life, and read GPU by GPU. The wrapper crate serves for all but the
//! process lists and the samples, which `raw` reads.

mod device;
mod events;
mod evidence;
mod lists;
mod raw;

use std::collections::HashMap;
use std::ffi::OsStr;
use std::path::Path;
use std::time::Duration;

use bailiff_snapshot::{About, Driver, Fault, Gaps, GpuSample};
use nvml_wrapper::Nvml;
use nvml_wrapper::error::NvmlError;

use events::Events;
use evidence::Stamps;

/// The open driver.
pub(crate) struct Gpus {
    /// Never closed: a worker that is done with it ends.
    nvml: &'static Nvml,
    events: Option<Events>,
    /// What is remembered of each device, by UUID.
    devices: HashMap<String, Device>,
}

/// What is remembered of one device.
#[derive(Default)]
struct Device {
    about: Option<About>,
    stamps: Stamps,
    /// Room for its process lists, as they were before.
    room: usize,
}

/// What a read needs to know and to count.
pub(crate) struct Context<'a> {
    pub(crate) interval: Duration,
    pub(crate) gaps: &'a mut Gaps,
}

impl Gpus {
    /// Opens the driver; the error has the driver's own words.
    pub(crate) fn open(library: Option<&Path>) -> Result<(Self, Driver), (Fault, String)> {
        let mut builder = Nvml::builder();
        if let Some(library) = library {
            builder.lib_path(library.as_os_str());
        } else {
            builder.lib_path(OsStr::new("libnvidia-ml.so.1"));
        }
        let nvml = builder.init().map_err(|error| (fault(&error), words(&error)))?;
        let nvml: &'static Nvml = Box::leak(Box::new(nvml));
        let cuda = nvml.sys_cuda_driver_version().ok();
        let driver = Driver {
            version: nvml.sys_driver_version().ok(),
            nvml: nvml.sys_nvml_version().ok(),
            cuda: cuda.map(|version| (version / 1000, version % 1000 / 10)),
        };
        Ok((Self { nvml, events: None, devices: HashMap::new() }, driver))
    }

    /// How many GPUs the driver has.
    pub(crate) fn count(&self) -> Result<u32, (Fault, String)> {
        self.nvml.device_count().map_err(|error| (fault(&error), words(&error)))
    }

    /// Begins to listen for Xid errors of all GPUs but these.
    pub(crate) fn listen(&mut self, count: u32, skip: &[u32]) {
        if self.events.is_none() {
            let indexes = (0..count).filter(|index| !skip.contains(index)).collect();
            self.events = Some(Events::start(self.nvml, indexes));
        }
    }

    /// Reads one GPU and its MIG instances; never fails, for what failed is in the samples.
    pub(crate) fn read(&mut self, index: u32, mut context: Context<'_>) -> Vec<GpuSample> {
        let device = match self.nvml.device_by_index(index) {
            Ok(device) => device,
            Err(error) => return vec![GpuSample::faulty(About::unnamed(index), fault(&error))],
        };
        let mut samples = vec![self.one(&device, &index.to_string(), &mut context)];
        if samples[0].telemetry.mig_enabled == Some(true) {
            // Instances come and go with a re-partition, and the ids have holes.
            for instance in 0..device.mig_device_count().unwrap_or_default() {
                if let Ok(mig) = device.mig_device_by_index(instance) {
                    samples.push(self.one(&mig, &format!("{index}:{instance}"), &mut context));
                }
            }
        }
        samples
    }

    fn one(
        &mut self,
        device: &nvml_wrapper::Device<'_>,
        index: &str,
        context: &mut Context<'_>,
    ) -> GpuSample {
        let uuid = match device.uuid() {
            Ok(uuid) => uuid,
            Err(error) => {
                let about = About { index: index.to_owned(), ..About::default() };
                return GpuSample::faulty(about, fault(&error));
            }
        };
        let xids = self.events.as_ref().map(|events| events.take(&uuid)).unwrap_or_default();
        let past = self.devices.entry(uuid).or_default();
        let known = past.about.get_or_insert_with(|| device::about(device, index));
        let about = About { index: index.to_owned(), ..known.clone() };
        match device::read(device, past, context) {
            Ok(sample) => GpuSample { about, xids, ..sample },
            Err(error) => GpuSample { xids, ..GpuSample::faulty(about, fault(&error)) },
        }
    }
}

/// The wrapper's error as one of the closed set.
fn fault(error: &NvmlError) -> Fault {
    match error {
        NvmlError::LibloadingError(_) | NvmlError::LibraryNotFound => Fault::LibraryNotFound,
        NvmlError::DriverNotLoaded | NvmlError::Uninitialized => Fault::DriverNotLoaded,
        NvmlError::LibRmVersionMismatch => Fault::VersionMismatch,
        NvmlError::NoPermission => Fault::NotPermitted,
        NvmlError::GpuLost => Fault::Lost,
        NvmlError::Timeout => Fault::Timeout,
        _ => Fault::Error,
    }
}

/// The wrapper's error in words; the loader's own are in its source.
fn words(error: &NvmlError) -> String {
    use std::error::Error;
    error.source().map_or_else(|| error.to_string(), ToString::to_string)
}

/// Whether it only says that this device, or this driver, does not offer it.
fn not_offered(error: &NvmlError) -> bool {
    matches!(
        error,
        NvmlError::NotSupported
            | NvmlError::NoPermission
            | NvmlError::FailedToLoadSymbol(_)
            | NvmlError::FunctionNotFound
            // NVML_ERROR_ARGUMENT_VERSION_MISMATCH, which the wrapper has no name for
            | NvmlError::UnexpectedVariant(25)
    )
}
