//! Reads one device, a GPU or a MIG instance.

use std::collections::BTreeMap;
use std::time::Duration;

use bailiff_proc::clock::since_boot;
use bailiff_snapshot::dmem::pci_address;
use bailiff_snapshot::{
    About, Activity, ComputeMode, Gap, Gaps, GpuId, GpuSample, Health, Memory, MemoryUnknown, MigIds,
    Reading, Telemetry,
};
use nvml_wrapper::Device;
use nvml_wrapper::enum_wrappers::device::{Clock, ComputeMode as Mode, TemperatureSensor};
use nvml_wrapper::error::NvmlError;

use super::answers::{Answers, gap};
use super::plausible::{self, Most};
use super::{Context, evidence, health, lists, not_offered, raw};
use crate::own_cgroup::OwnCgroup;

/// Reads the properties that do not change.
pub(super) fn about(device: &Device<'_>, index: &str) -> About {
    let is_mig = device.mig_is_mig_device_handle().unwrap_or_default();
    let capability = device.cuda_compute_capability().ok();
    About {
        index: index.to_owned(),
        id: device.uuid().ok().map(GpuId),
        name: device.name().ok(),
        pci_bus_id: device.pci_info().ok().map(|pci| pci.bus_id),
        minor: device.minor_number().ok(),
        compute_capability: capability.map(|capability| (capability.major, capability.minor)),
        mig: is_mig.then(|| mig_ids(device)),
    }
}

/// Returns whether a device reported all properties of its kind.
pub(super) fn is_complete(about: &About) -> bool {
    about.name.is_some() && (about.minor.is_some() || about.mig.is_some())
}

fn mig_ids(device: &Device<'_>) -> MigIds {
    let (gpu_instance, compute_instance) = raw::instance_ids(device);
    MigIds { parent: None, gpu_instance, compute_instance }
}

/// Reads all values that change; fails only if the whole device is lost.
pub(super) fn read(
    device: &Device<'_>,
    (about, past): (&About, &mut super::Device),
    context: &mut Context<'_>,
) -> Result<GpuSample, NvmlError> {
    let mut telemetry = telemetry(device, context.gaps)?;
    let whole = about.mig.is_none();
    if whole {
        let last = (about, &mut past.memory_health, context.now);
        telemetry.health = health::read(device, last, &mut Answers { gaps: context.gaps })?;
    }
    let answers = memory(device, context.gaps)?;
    if whole {
        context.memory_unknown = memory_unknown(device, (about, answers), context.own_cgroup)?;
    }
    let answers = answers.filter(|_| context.memory_unknown.is_none());
    let memory = plausible::memory(answers, context.gaps);
    let mut entries_at = Duration::ZERO;
    let (mut entries, mut reading) = match device.mig_mode() {
        // With MIG on, instances list the processes. The GPU's list repeats them and may need privileges.
        Ok(mode) if whole && mode.current != 0 => (None, Reading::default()),
        // If the mode is unknown, the processes might belong to the instances.
        Err(error) if whole && !not_offered(&error) => (None, Reading::default()),
        _ => {
            let entries = lists::entries(device, &mut past.room, context.gaps)?;
            entries_at = since_boot();
            let reading =
                if whole { evidence::read(device, &mut past.stamps, context) } else { Reading::default() };
            (entries, reading)
        }
    };
    if let Some(entries) = &mut entries {
        if telemetry.accounting == Some(true) {
            reading.accounted = past.accounts.read(device, entries);
        }
        plausible::entries(entries, answers, context.gaps);
    }
    Ok(GpuSample {
        about: About::default(),
        fault: None,
        memory,
        memory_unknown: context.memory_unknown,
        telemetry,
        entries,
        entries_at,
        instances: None,
        reading,
        xids: Vec::new(),
        cgroups: Vec::new(),
    })
}

fn memory(device: &Device<'_>, gaps: &mut Gaps) -> Result<Option<Memory>, NvmlError> {
    let newer = device.memory_info().map(|memory| Memory {
        total: memory.total,
        free: memory.free,
        used: memory.used,
        reserved: Some(memory.reserved),
    });
    let memory = match newer {
        Err(error) if not_offered(&error) => raw::memory_version_1(device)
            .map(|(total, free, used)| Memory { total, free, used, reserved: None }),
        memory => memory,
    };
    gap(memory, Gap::Memory, gaps)
}

/// Returns why the driver's memory figures of a GPU may be those of a limit.
fn memory_unknown(
    device: &Device<'_>,
    (about, memory): (&About, Option<Memory>),
    own: &OwnCgroup,
) -> Result<Option<MemoryUnknown>, NvmlError> {
    let address = about.pci_bus_id.as_deref().and_then(pci_address);
    match address.and_then(|gpu| own.is_limited(gpu, memory.map(|memory| memory.total))) {
        Some(is_limited) => return Ok(is_limited.then_some(MemoryUnknown::OwnCgroupLimited)),
        None if own.is_version_1 => return Ok(None),
        None => {}
    }
    // Without a path, the call only shows whether this driver has limits.
    let limits = raw::memory_limits(device, own.path.as_deref().unwrap_or(c"/"));
    match (limits.map(|limits| limits.hard), own.path.is_some()) {
        (Err(NvmlError::GpuLost), _) => Err(NvmlError::GpuLost),
        (Err(error), _) if not_offered(&error) => Ok(None),
        // Without a limit, drivers return NOT_FOUND.
        (Ok(u64::MAX) | Err(NvmlError::NotFound), true) => Ok(None),
        (Ok(_), true) => Ok(Some(MemoryUnknown::OwnCgroupLimited)),
        _ => Ok(Some(MemoryUnknown::OwnCgroupUnknown)),
    }
}

fn telemetry(device: &Device<'_>, gaps: &mut Gaps) -> Result<Telemetry, NvmlError> {
    let mut answers = Answers { gaps };
    let rates = answers.of(device.utilization_rates())?;
    let clocks = [
        ("sm", Clock::SM),
        ("memory", Clock::Memory),
        ("graphics", Clock::Graphics),
        ("video", Clock::Video),
    ];
    let mut megahertz = BTreeMap::new();
    for (name, clock) in clocks {
        if let Some(value) = answers.figure(device.clock_info(clock), Most::Megahertz)? {
            megahertz.insert(name.to_owned(), value);
        }
    }
    Ok(Telemetry {
        utilization: plausible::figure(rates.as_ref().map(|rates| rates.gpu), Most::Percent, answers.gaps),
        memory_utilization: plausible::figure(rates.map(|rates| rates.memory), Most::Percent, answers.gaps),
        power: answers.figure(device.power_usage(), Most::Milliwatts)?,
        energy: answers.figure(device.total_energy_consumption(), Most::Millijoules)?,
        temperature: answers.figure(device.temperature(TemperatureSensor::Gpu), Most::Celsius)?,
        clocks: megahertz,
        compute_mode: answers.of(device.compute_mode())?.map(|mode| match mode {
            Mode::Default => ComputeMode::Default,
            Mode::ExclusiveThread => ComputeMode::ExclusiveThread,
            Mode::Prohibited => ComputeMode::Prohibited,
            Mode::ExclusiveProcess => ComputeMode::ExclusiveProcess,
        }),
        mig_enabled: answers.of(device.mig_mode())?.map(|mode| mode.current != 0),
        accounting: answers.of(device.is_accounting_enabled())?,
        health: Health::default(),
        activity: Activity::default(),
    })
}
