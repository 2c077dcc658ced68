//! Reads GPUs with NVML. Uses the wrapper crate, except for process lists and samples, which `raw` reads.

mod accounting;
mod answers;
mod device;
mod events;
mod evidence;
mod gpm;
mod health;
mod lists;
mod plausible;
mod raw;

use std::collections::HashMap;
use std::ffi::OsStr;
use std::path::Path;
use std::time::Duration;

use bailiff_snapshot::dmem::pci_address;
use bailiff_snapshot::{
    About, Activity, ActivityUnknown, CgroupMemory, Driver, Fault, Gap, Gaps, GpuId, GpuSample,
    MemoryUnknown, Truth,
};
use nvml_wrapper::Nvml;
use nvml_wrapper::error::NvmlError;

use events::Events;
use evidence::Stamps;

use crate::cgroup_limits::{CgroupLimits, DriverAnswer, MOST_ASKED};
use crate::own_cgroup::OwnCgroup;

/// The open driver.
pub(crate) struct Gpus {
    /// Never closed, because the worker exits when it is done.
    nvml: &'static Nvml,
    /// State of each device, by UUID.
    devices: HashMap<String, Device>,
    /// Last UUID of each index, because a lost GPU does not report it.
    uuids: HashMap<String, String>,
}

/// State of a device, kept between samples.
#[derive(Default)]
struct Device {
    /// Set once the device has reported all its properties.
    about: Option<About>,
    stamps: Stamps,
    /// Capacity for its process lists, in entries, from earlier samples.
    room: usize,
    events: Option<Events>,
    memory_health: health::LastRead,
    gpm: gpm::Gpm,
    accounts: accounting::Accounts,
}

/// Inputs of a read, and the counters of its gaps.
pub(crate) struct Context<'a> {
    pub(crate) lookback: Duration,
    /// Time since boot.
    pub(crate) now: Duration,
    pub(crate) own_cgroup: &'a OwnCgroup,
    /// Whether the activity of engines is read.
    pub(crate) activity: bool,
    /// Whether the processes of a MIG instance without activity are idle.
    pub(crate) mig_idle: bool,
    /// Limits of the cgroups of processes; `None` if their paths cannot be resolved.
    pub(crate) limits: Option<&'a CgroupLimits<'a>>,
    /// Why the memory of the GPU is unknown. Applies to its MIG instances, for which the driver does not report limits.
    pub(crate) memory_unknown: Option<MemoryUnknown>,
    pub(crate) gaps: &'a mut Gaps,
}

impl Gpus {
    /// Opens the driver. An error contains the driver's message.
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
        Ok((Self { nvml, devices: HashMap::new(), uuids: HashMap::new() }, driver))
    }

    /// Returns the number of GPUs.
    pub(crate) fn count(&self) -> Result<u32, (Fault, String)> {
        self.nvml.device_count().map_err(|error| (fault(&error), words(&error)))
    }

    /// Returns the UUID of each GPU by index; `None` if a GPU does not report it.
    pub(crate) fn uuids(&self) -> Result<Vec<Option<String>>, (Fault, String)> {
        let uuid = |index| self.nvml.device_by_index(index).and_then(|device| device.uuid()).ok();
        Ok((0..self.count()?).map(uuid).collect())
    }

    /// Reads one GPU and its MIG instances. Errors are recorded in the samples.
    pub(crate) fn read(&mut self, index: u32, mut context: Context<'_>) -> Vec<GpuSample> {
        let device = match self.nvml.device_by_index(index) {
            Ok(device) => device,
            Err(error) => return vec![self.faulty(&index.to_string(), &error)],
        };
        let mut samples = vec![self.one(&device, &index.to_string(), &mut context)];
        if samples[0].telemetry.mig_enabled == Some(true) {
            let (instances, all) = self.instances(&device, (index, &samples[0].about.id), &mut context);
            samples[0].instances = all.then_some(instances.len() as u64);
            samples.extend(instances);
        }
        if context.activity {
            self.measure(&device, &mut samples, &mut context);
        }
        if samples[0].fault.is_none() {
            samples[0].cgroups = cgroups(&device, &samples, &mut context);
            self.listen(&samples[0], device, &mut context);
        }
        samples
    }

    /// Returns the MIG instances, and whether these are all. Repartitioning leaves gaps between their
    /// indexes.
    fn instances(
        &mut self,
        device: &nvml_wrapper::Device<'_>,
        (index, gpu): (u32, &Option<GpuId>),
        context: &mut Context<'_>,
    ) -> (Vec<GpuSample>, bool) {
        let Ok(most) = device.mig_device_count() else {
            context.gaps.count(Gap::ProcessList);
            return (Vec::new(), false);
        };
        let (mut samples, mut all) = (Vec::new(), true);
        for instance in 0..most {
            match device.mig_device_by_index(instance) {
                Ok(mig) => {
                    let mut sample = self.one(&mig, &format!("{index}:{instance}"), context);
                    // Without MIG ids, readers cannot attribute the instance to this GPU.
                    all &= sample.about.mig.is_some();
                    if let Some(ids) = &mut sample.about.mig {
                        ids.parent.clone_from(gpu);
                    }
                    samples.push(sample);
                }
                Err(NvmlError::NotFound | NvmlError::InvalidArg) => {}
                Err(_) => {
                    context.gaps.count(Gap::ProcessList);
                    all = false;
                }
            }
        }
        (samples, all)
    }

    /// Adds the activity of a GPU and of its MIG instances.
    fn measure(
        &mut self,
        gpu: &nvml_wrapper::Device<'_>,
        samples: &mut [GpuSample],
        context: &mut Context<'_>,
    ) {
        let uuid = |sample: &GpuSample| sample.about.id.as_ref().map(|id| id.0.clone());
        let instances: gpm::Instances = samples.iter().map(uuid).collect();
        for sample in samples.iter_mut().filter(|sample| sample.fault.is_none()) {
            let Some(past) = uuid(sample).and_then(|uuid| self.devices.get_mut(&uuid)) else { continue };
            let instance = sample.about.mig.as_ref().map(|mig| mig.gpu_instance);
            sample.telemetry.activity = match instance {
                Some(None) => Activity { unknown: Some(ActivityUnknown::Failed), ..Activity::default() },
                instance => {
                    let device = (gpu, instance.flatten());
                    past.gpm.read(device, (context.now, &instances), context.gaps)
                }
            };
            if !context.mig_idle {
                let calm = &mut sample.telemetry.activity.calm;
                *calm = calm.and(Truth::Unknown);
            }
        }
        let events = uuid(&samples[0]).and_then(|uuid| self.devices.get(&uuid)?.events.as_ref());
        if !events.is_some_and(Events::take_mig_change) {
            return;
        }
        // An instance that was replaced by one with the same UUID would otherwise look like the same.
        for sample in samples {
            let unknown = Some(ActivityUnknown::InstancesChanged);
            sample.telemetry.activity = Activity { unknown, ..Activity::default() };
            if let Some(past) = uuid(sample).and_then(|uuid| self.devices.get_mut(&uuid)) {
                past.gpm.forget();
            }
        }
    }

    /// Listens for Xid errors of a GPU that could be read, and restarts listening after a failure.
    fn listen(
        &mut self,
        sample: &GpuSample,
        device: nvml_wrapper::Device<'static>,
        context: &mut Context<'_>,
    ) {
        let Some(past) = sample.about.id.as_ref().and_then(|id| self.devices.get_mut(&id.0)) else { return };
        if past.events.as_ref().is_some_and(Events::failed) {
            context.gaps.count(Gap::Xid);
            past.events = None;
        }
        past.events.get_or_insert_with(|| Events::start(self.nvml, device));
    }

    fn one(
        &mut self,
        device: &nvml_wrapper::Device<'_>,
        index: &str,
        context: &mut Context<'_>,
    ) -> GpuSample {
        let uuid = match device.uuid() {
            Ok(uuid) => uuid,
            Err(error) => return self.faulty(index, &error),
        };
        self.uuids.insert(index.to_owned(), uuid.clone());
        let past = self.devices.entry(uuid).or_default();
        let known = past.about.take().unwrap_or_else(|| device::about(device, index));
        let about = About { index: index.to_owned(), ..known };
        // Properties that are missing after a temporary error are read again in the next sample.
        past.about = Some(about.clone()).filter(device::is_complete);
        if context.activity && about.mig.is_some() {
            past.gpm.engines = device.attributes().ok();
        }
        match device::read(device, (&about, past), context) {
            Ok(sample) => GpuSample { about, xids: past.xids(), ..sample },
            Err(error) => {
                past.memory_health = None;
                GpuSample { xids: past.xids(), ..GpuSample::faulty(about, fault(&error)) }
            }
        }
    }

    /// Returns the sample of a device that does not report its UUID, with its last known properties.
    fn faulty(&mut self, index: &str, error: &NvmlError) -> GpuSample {
        let mut past = self.uuids.get(index).and_then(|uuid| self.devices.get_mut(uuid));
        if let Some(past) = &mut past {
            past.memory_health = None;
        }
        let about = past.as_ref().and_then(|past| past.about.clone()).unwrap_or_default();
        let about = About { index: index.to_owned(), ..about };
        let xids = past.map(|past| past.xids()).unwrap_or_default();
        GpuSample { xids, ..GpuSample::faulty(about, fault(error)) }
    }
}

impl Device {
    /// Returns the Xid errors since the previous sample.
    fn xids(&self) -> Vec<u64> {
        self.events.as_ref().map(Events::take_xids).unwrap_or_default()
    }
}

/// Returns the limits and memory of the cgroups whose processes are listed on a GPU or its MIG instances.
fn cgroups(
    gpu: &nvml_wrapper::Device<'_>,
    samples: &[GpuSample],
    context: &mut Context<'_>,
) -> Vec<CgroupMemory> {
    let address = samples[0].about.pci_bus_id.as_deref().and_then(pci_address);
    let Some((limits, address)) = context.limits.zip(address) else { return Vec::new() };
    let entries = samples.iter().filter_map(|sample| sample.entries.as_ref()).flatten();
    let mut asked = 0;
    limits.of_gpu(address, entries.map(|entry| entry.pid), |cgroup| {
        asked += 1;
        let Some(path) = limits.path(cgroup).filter(|_| asked <= MOST_ASKED) else {
            context.gaps.count(Gap::Memory);
            return DriverAnswer::Unknown;
        };
        match raw::memory_limits(gpu, &path) {
            Ok(limits) => DriverAnswer::Limits(limits),
            Err(NvmlError::NotFound) => DriverAnswer::None,
            // Both are about the cgroup: the driver has no limit for it, or cannot open its path.
            Err(NvmlError::NotSupported | NvmlError::OperatingSystem) => DriverAnswer::Unknown,
            Err(error) if not_offered(&error) => DriverAnswer::NotOffered,
            Err(_) => {
                context.gaps.count(Gap::Memory);
                DriverAnswer::Unknown
            }
        }
    })
}

/// Converts the wrapper's error to a `Fault`.
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

/// Returns the error's message. The message of the library loader is in the error's source.
fn words(error: &NvmlError) -> String {
    use std::error::Error;
    error.source().map_or_else(|| error.to_string(), ToString::to_string)
}

/// Returns whether an error only means that this device or driver does not support the query, or does not
/// permit it.
fn not_offered(error: &NvmlError) -> bool {
    matches!(
        error,
        NvmlError::NotSupported
            | NvmlError::NoPermission
            | NvmlError::FailedToLoadSymbol(_)
            | NvmlError::FunctionNotFound
            // `NVML_ERROR_ARGUMENT_VERSION_MISMATCH`, which has no name in the wrapper.
            | NvmlError::UnexpectedVariant(25)
    )
}
