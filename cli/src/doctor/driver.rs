//! The driver, its releases, and its GPUs. It is asked by a process of its own, so that one that hangs hangs nobody.

use std::time::Duration;

use bailiff_sampler::{Launcher, Settings, Supervisor};
use bailiff_snapshot::{Driver, Fault, Sample, Source};

use super::check::Check;
use super::files;
use super::flags::Doctor;
use crate::flags::Machine;

/// One step of a look takes no longer, unless the driver hangs.
const STEP: Duration = Duration::from_secs(2);

/// What the driver said, and what is wrong with it in its own words.
pub(crate) struct Told {
    pub(crate) sample: Sample,
    words: Option<String>,
}

impl Told {
    fn fault(&self) -> Option<Fault> {
        self.sample.sources.get(&Source::Nvml).and_then(|state| state.fault)
    }

    /// The driver was opened.
    pub(crate) fn opened(&self) -> bool {
        self.sample.driver != Driver::default()
    }
}

/// Looks once; a driver that is being opened is waited for.
pub(crate) fn look(machine: &Machine, deadline: Duration) -> Result<Told, String> {
    let settings = Settings {
        nvml_library: machine.nvml_library.clone(),
        procfs: machine.procfs.clone(),
        deadline: deadline.min(STEP),
        open_deadline: deadline,
        ..Settings::default()
    };
    let launcher = Launcher::start(&settings).map_err(|error| error.to_string())?;
    let mut supervisor = Supervisor::new(launcher, settings);
    loop {
        let sample = supervisor.sample(1).ok_or("the process that asks it has ended")?;
        let told = Told { sample, words: supervisor.words().map(str::to_owned) };
        if told.fault() != Some(Fault::Starting) {
            return Ok(told);
        }
    }
}

/// Whether it answers, whether it is of one piece, and whether all of its GPUs do.
pub(super) fn checks(flags: &Doctor, told: Result<&Told, &String>) -> Vec<Check> {
    let told = match told {
        Ok(told) => told,
        Err(why) => {
            return vec![Check::fail("driver", why.clone(), "is the system out of processes or memory?")];
        }
    };
    let mut checks = vec![driver(told)];
    checks.push(release(told, files::text(&flags.machine.procfs.join("driver/nvidia/version")).as_deref()));
    checks.extend(gpus(told));
    checks
}

fn driver(told: &Told) -> Check {
    let driver = &told.sample.driver;
    if told.opened() {
        let word = |word: &Option<String>| word.clone().unwrap_or_else(|| "unknown".to_owned());
        let cuda = driver.cuda.map(|(major, minor)| format!(", CUDA {major}.{minor}")).unwrap_or_default();
        return Check::ok("driver", format!("{}, NVML {}{cuda}", word(&driver.version), word(&driver.nvml)));
    }
    let fault = told.fault().unwrap_or(Fault::Error);
    let words = told.words.as_ref().map(|words| format!(": {words}")).unwrap_or_default();
    Check::fail("driver", format!("{}{words}", fault.name().replace('_', " ")), way_out(fault))
}

/// What to do about a driver that cannot be asked.
fn way_out(fault: Fault) -> &'static str {
    match fault {
        Fault::LibraryNotFound => {
            "install NVIDIA's driver; in a container, start it with the NVIDIA runtime (docker run --gpus all)"
        }
        Fault::DriverNotLoaded => "modprobe nvidia, and dmesg | grep NVRM says why not",
        Fault::VersionMismatch => {
            "the driver was updated under the old kernel module: reboot, or unload and load it"
        }
        Fault::NotPermitted => "are /dev/nvidiactl and /dev/nvidia0 yours to open?",
        Fault::Timeout | Fault::Starting => {
            "it hangs: dmesg | grep -i -e xid -e nvrm, and look for processes in state D; nvidia-persistenced makes \
             opening quick"
        }
        Fault::WorkerFailed => "its library crashes: reinstall the driver; journalctl -k tells more",
        _ => "nvidia-smi, and dmesg | grep NVRM",
    }
}

/// NVML is `MAJOR.RELEASE`, and the kernel module has a release of its own.
fn release(told: &Told, module: Option<&str>) -> Check {
    const NAME: &str = "kernel module";
    let library = told.sample.driver.nvml.as_deref().and_then(|nvml| Some(nvml.split_once('.')?.1));
    match (library, module.and_then(module_release)) {
        (Some(library), Some(module)) if library == module => Check::ok(NAME, format!("{module}, as NVML")),
        (Some(library), Some(module)) => {
            Check::fail(NAME, format!("{module}, and NVML is of {library}"), way_out(Fault::VersionMismatch))
        }
        (None, Some(module)) => Check::skip(NAME, format!("{module}; NVML's release is not known"), None),
        (_, None) => Check::skip(NAME, "no driver/nvidia/version in /proc tells its release", None),
    }
}

/// `NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.261.03  Mon …`, or of the open one.
fn module_release(text: &str) -> Option<&str> {
    let line = text.lines().find(|line| line.starts_with("NVRM version:"))?;
    let is_release =
        |word: &&str| word.contains('.') && word.split('.').all(|part| part.parse::<u32>().is_ok());
    line.split_whitespace().find(is_release)
}

fn gpus(told: &Told) -> Vec<Check> {
    const NAME: &str = "gpus";
    if !told.opened() {
        return vec![Check::skip(NAME, "the driver cannot be asked", None)];
    }
    let gpus = || told.sample.gpus.iter().filter(|gpu| gpu.about.mig.is_none());
    let mut checks = Vec::new();
    for gpu in gpus() {
        let Some(fault) = gpu.fault else { continue };
        let uuid = gpu.about.id.as_ref().map(|id| format!(" ({})", id.0)).unwrap_or_default();
        let text = format!("GPU {}{uuid}: {}", gpu.about.index, fault.name().replace('_', " "));
        let hint = "dmesg | grep -i xid; take it out of use, and reset it (nvidia-smi -r) or the machine";
        checks.push(Check::fail(NAME, text, hint));
    }
    let (all, well) = (gpus().count(), gpus().filter(|gpu| gpu.fault.is_none()).count());
    if all == 0 {
        let hint = "lspci | grep -i nvidia; in a container, is a GPU given to it (docker run --gpus all)?";
        checks.push(Check::fail(NAME, "the driver has none", hint));
    } else if well > 0 {
        let names: std::collections::BTreeSet<&str> =
            gpus().filter_map(|gpu| gpu.about.name.as_deref()).collect();
        let names: Vec<&str> = names.into_iter().collect();
        checks.push(Check::ok(NAME, format!("{well} of {all} answer: {}", names.join(", "))));
    }
    checks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_modules_release_is_read() {
        let closed = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.261.03  Thu Jun 12 10:36:59 UTC 2025\nGCC version:  gcc version 12.2.0\n";
        let open = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build  (root@host)\n";
        assert_eq!(module_release(closed), Some("535.261.03"));
        assert_eq!(module_release(open), Some("580.95.05"));
        assert_eq!(module_release("GCC version:  gcc version 12.2.0\n"), None);
        assert_eq!(module_release("NVRM version: none\n"), None);
    }
}
