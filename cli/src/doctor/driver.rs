//! The driver, its version, and its GPUs. A helper process queries it, so that a hung driver does not hang
//! this program.

use std::collections::BTreeSet;
use std::time::Duration;

use bailiff_proc::Proc;
use bailiff_sampler::{Launcher, SamplerSettings, Supervisor};
use bailiff_snapshot::{Driver, Fault, MemoryUnknown, Sample, Source};

use super::Doctor;
use super::check::Check;
use crate::args::Machine;
use crate::output::joined;

/// Deadline of one driver call. A driver that takes longer counts as hung.
const CALL_DEADLINE: Duration = Duration::from_secs(2);

/// A sample of the driver, and its error message.
pub(crate) struct DriverReport {
    pub(crate) sample: Sample,
    message: Option<String>,
}

impl DriverReport {
    /// Returns whether the driver was opened.
    pub(crate) fn opened(&self) -> bool {
        self.sample.driver != Driver::default()
    }
}

/// Takes one sample; waits while the driver is being opened.
pub(crate) fn query(machine: &Machine, deadline: Duration) -> Result<DriverReport, String> {
    let settings = SamplerSettings {
        nvml_library: machine.nvml_library.clone(),
        procfs: machine.procfs.clone(),
        deadline: deadline.min(CALL_DEADLINE),
        open_deadline: deadline,
        ..SamplerSettings::default()
    };
    let launcher = Launcher::start(&settings).map_err(|error| error.to_string())?;
    let mut supervisor = Supervisor::new(launcher, settings);
    loop {
        let sample = supervisor.sample(1).ok_or("the helper process that queries the driver has exited")?;
        let report = DriverReport { sample, message: supervisor.words().map(str::to_owned) };
        if Source::Nvml.fault(&report.sample.sources) != Some(Fault::Starting) {
            return Ok(report);
        }
    }
}

/// Checks that the driver and all its GPUs respond, and that its library and kernel module match.
pub(super) fn checks(flags: &Doctor, report: Result<&DriverReport, &String>) -> Vec<Check> {
    let report = match report {
        Ok(report) => report,
        Err(why) => {
            return vec![Check::fail(
                "driver",
                why.clone(),
                "check whether the system is out of memory or has reached its process limit",
            )];
        }
    };
    let mut checks = vec![driver(report)];
    let version = Proc::open(&flags.machine.procfs).and_then(|proc| proc.text("driver/nvidia/version"));
    checks.push(release(report, version.ok().as_deref()));
    checks.extend(gpus(report));
    checks
}

fn driver(report: &DriverReport) -> Check {
    let driver = &report.sample.driver;
    if report.opened() {
        let known = |value: &Option<String>| value.clone().unwrap_or_else(|| "unknown".to_owned());
        let cuda = driver.cuda.map(|(major, minor)| format!(", CUDA {major}.{minor}")).unwrap_or_default();
        return Check::ok(
            "driver",
            format!("{}, NVML {}{cuda}", known(&driver.version), known(&driver.nvml)),
        );
    }
    let fault = Source::Nvml.fault(&report.sample.sources).unwrap_or(Fault::Error);
    let message = report.message.as_ref().map(|message| format!(": {message}")).unwrap_or_default();
    Check::fail("driver", format!("{}{message}", fault.name().replace('_', " ")), hint(fault))
}

/// Returns how to fix a driver that cannot be queried.
fn hint(fault: Fault) -> &'static str {
    match fault {
        Fault::LibraryNotFound => {
            "install the NVIDIA driver; for a container, use the NVIDIA runtime (docker run --gpus all)"
        }
        Fault::DriverNotLoaded => "run modprobe nvidia; if that fails, check dmesg | grep NVRM",
        Fault::VersionMismatch => {
            "the driver was updated, but the old kernel module is still loaded: reboot, or reload the module"
        }
        Fault::NotPermitted => "check the permissions: ls -l /dev/nvidiactl /dev/nvidia0",
        Fault::Timeout | Fault::Starting => {
            "the driver hangs: check dmesg | grep -i -e xid -e nvrm, and processes in state D. nvidia-persistenced \
            shortens the initialization"
        }
        Fault::WorkerFailed => "the NVML library crashes: check journalctl -k, and reinstall the driver",
        _ => "check nvidia-smi, and dmesg | grep NVRM",
    }
}

/// Compares the driver release in the NVML version (`MAJOR.RELEASE`) with that of the kernel module.
fn release(report: &DriverReport, module: Option<&str>) -> Check {
    const NAME: &str = "kernel module";
    let library = report.sample.driver.nvml.as_deref().and_then(|nvml| Some(nvml.split_once('.')?.1));
    match (library, module.and_then(module_release)) {
        (Some(library), Some(module)) if library == module => {
            Check::ok(NAME, format!("{module}, same as NVML"))
        }
        (Some(library), Some(module)) => {
            Check::fail(NAME, format!("{module}, but NVML is {library}"), hint(Fault::VersionMismatch))
        }
        (None, Some(module)) => Check::skip(NAME, format!("{module}; the NVML version is unknown"), None),
        (_, None) => {
            Check::skip(NAME, "version unknown, because /proc/driver/nvidia/version does not exist", None)
        }
    }
}

/// Returns the release in `NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.261.03  Mon …`, or in the text
/// of the open kernel module.
fn module_release(text: &str) -> Option<&str> {
    let line = text.lines().find(|line| line.starts_with("NVRM version:"))?;
    let is_release =
        |field: &&str| field.contains('.') && field.split('.').all(|part| part.parse::<u32>().is_ok());
    line.split_whitespace().find(is_release)
}

fn gpus(report: &DriverReport) -> Vec<Check> {
    const NAME: &str = "gpus";
    if !report.opened() {
        return vec![Check::skip(NAME, "the driver cannot be queried", None)];
    }
    let gpus = || report.sample.gpus.iter().filter(|gpu| gpu.about.mig.is_none());
    let mut checks = Vec::new();
    for gpu in gpus() {
        let Some(fault) = gpu.fault else { continue };
        let uuid = gpu.about.id.as_ref().map(|id| format!(" ({})", id.0)).unwrap_or_default();
        let text = format!("GPU {}{uuid}: {}", gpu.about.index, fault.name().replace('_', " "));
        let hint = "check dmesg | grep -i xid; drain the GPU, then reset it (nvidia-smi -r) or reboot";
        checks.push(Check::fail(NAME, text, hint));
    }
    for gpu in gpus() {
        let Some(why) = gpu.memory_unknown else { continue };
        checks.push(own_cgroup(&gpu.about.index, why, "this command"));
    }
    let (all, answering) = (gpus().count(), gpus().filter(|gpu| gpu.fault.is_none()).count());
    if all == 0 {
        let hint = "check lspci | grep -i nvidia; for a container, use docker run --gpus all";
        checks.push(Check::fail(NAME, "the driver reports no GPUs", hint));
    } else if answering > 0 {
        let names: BTreeSet<&str> = gpus().filter_map(|gpu| gpu.about.name.as_deref()).collect();
        checks.push(Check::ok(NAME, format!("{answering} of {all} respond: {}", joined(names, ", "))));
    }
    checks
}

/// Returns the check of a GPU whose memory is unknown because of a program's cgroup.
pub(super) fn own_cgroup(gpu: &str, why: MemoryUnknown, program: &str) -> Check {
    Check::warn("gpu memory", format!("GPU {gpu}: unknown to {program}: {}", why.words()), why.fix())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_module_release_is_parsed() {
        let closed = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.261.03  Thu Jun 12 10:36:59 UTC 2025\nGCC version:  gcc version 12.2.0\n";
        let open = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build  (root@host)\n";
        assert_eq!(module_release(closed), Some("535.261.03"));
        assert_eq!(module_release(open), Some("580.95.05"));
        assert_eq!(module_release("GCC version:  gcc version 12.2.0\n"), None);
        assert_eq!(module_release("NVRM version: none\n"), None);
    }
}
