//! Reasons why a value is unknown, as shown on the status page. Pure.

use bailiff_snapshot::{Fault, Gpu, InvalidQuota, MemoryUnknown, Process, Snapshot, State, Why};

/// Returns why a source or a GPU did not respond.
pub(super) fn fault(fault: Fault) -> &'static str {
    match fault {
        Fault::LibraryNotFound => "libnvidia-ml.so.1 was not found",
        Fault::ProgramNotFound => "NVIDIA's MPS control program is not installed",
        Fault::DriverNotLoaded => "the kernel module is not loaded",
        Fault::VersionMismatch => "the library and the kernel module have different versions",
        Fault::NoDevices => "the driver lists no GPUs",
        Fault::Timeout => "no response within the deadline",
        Fault::Outdated => "no sample for more than two intervals plus the deadline",
        Fault::Starting => "the source is still being opened",
        Fault::Lost => "the GPU has fallen off the bus",
        Fault::NotPermitted => "permission denied, or a password is missing",
        Fault::Unreachable => "no process listens at its address",
        Fault::WorkerFailed => "the sampling worker exited; see the log",
        Fault::Error => "an error occurred; see the log",
    }
}

/// Returns why a utilization is unknown.
pub(super) fn why(why: Why) -> &'static str {
    match why {
        Why::Mig => "MIG",
        Why::SharedInstance => "several processes share the MIG instance",
        Why::NotSupported => "not reported by the driver for this device",
        Why::Failed => "the driver call failed",
        Why::Garbage => "the driver reported impossible values",
        Why::FirstSample => "first sample",
        Why::NotListedBefore => "new process",
        Why::SharedByMps => "shared by MPS",
        Why::Unattributed => "the GPU is busy, but the process is unknown",
        Why::SamplerSilent => "no new samples",
        Why::Accounted => "no samples, but the driver's accounting counted work",
        Why::SampledEarlier => "busy a moment ago",
        Why::ClockStepped => "the driver's clock stepped back",
        Why::WindowTooLong => "too long since the previous sample",
    }
}

/// Returns why a quota file is invalid.
pub(super) const fn invalid(why: InvalidQuota) -> &'static str {
    match why {
        InvalidQuota::Unreadable => "it cannot be read",
        InvalidQuota::NoFile => "it is not a regular file",
        InvalidQuota::Short => "it is too short",
        InvalidQuota::NoQuota => "it is not a quota file",
        InvalidQuota::Version => "it has an unsupported version",
    }
}

/// Returns why nothing but the pid of a process is known.
pub(super) fn nameless(process: Option<&Process>) -> &'static str {
    match process.map(|process| process.state) {
        Some(State::Gone) => "it does not exist",
        Some(State::Hidden) => "/proc hides it",
        _ => "not readable in /proc",
    }
}

/// Returns why the memory of a GPU is unknown.
pub(super) fn memory(gpu: &Gpu) -> &'static str {
    gpu.memory_unknown.map_or_else(|| figure(gpu), MemoryUnknown::words)
}

/// Returns why the parts of a GPU's memory are unknown.
pub(super) fn parts(gpu: &Gpu, snapshot: &Snapshot) -> &'static str {
    let reserved = gpu.memory.is_some_and(|memory| memory.reserved.is_some());
    match () {
        () if gpu.mig() && gpu.about.mig.is_none() => "MIG is enabled, so the holders are on MIG instances",
        () if gpu.listed.is_none() => "the driver returned no process list",
        () if !reserved => "the driver does not report the reserved memory",
        () if gpu.holders.iter().any(|holder| holder.memory.is_none()) => {
            "the driver does not report the memory of each holder"
        }
        () if !snapshot.namespace.attributes() => "the driver's pids belong to another PID namespace",
        () => "the values are inconsistent",
    }
}

/// Returns why the processes on a GPU are unknown; `None` if they are known. In MIG mode, the driver
/// lists the processes on each instance.
pub(super) fn unlisted(gpu: &Gpu) -> Option<&'static str> {
    match gpu.fault {
        Some(fault) => Some(self::fault(fault)),
        None if gpu.lists_processes() => None,
        None if gpu.mig() && gpu.about.mig.is_none() => {
            Some("MIG is enabled, but the driver did not list the instances")
        }
        None => Some("the driver returned no process list"),
    }
}

/// Returns why a value of a whole GPU is missing.
pub(super) fn figure(gpu: &Gpu) -> &'static str {
    match gpu.fault {
        Some(fault) => self::fault(fault),
        None if gpu.mig() => "not reported in MIG mode",
        None => "not reported by the driver",
    }
}
