//! Compute modes of the GPUs: read from the driver, set with `nvidia-smi`. Each executed command is printed.

use std::path::Path;
use std::time::Duration;

use bailiff_snapshot::{ComputeMode, GpuSample};

use super::flags::Common;
use crate::doctor::{child, driver};
use crate::exit::Failure;
use crate::output::{joined, print_message};

/// Timeout of `nvidia-smi`, which may have to initialize the driver.
const SMI_TIMEOUT: Duration = Duration::from_secs(30);

/// A GPU with its compute mode and processes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct MpsGpu {
    pub(super) index: String,
    pub(super) uuid: String,
    pub(super) mode: Option<ComputeMode>,
    /// Pids of compute processes; `None` if the driver does not report them.
    pub(super) holders: Option<Vec<u32>>,
    /// Pids of MPS clients on this GPU.
    pub(super) clients: Vec<u32>,
}

impl MpsGpu {
    fn of(sample: &GpuSample) -> Option<Self> {
        let entries = sample.entries.as_ref();
        let pids = |which: fn(&bailiff_snapshot::Kinds) -> bool| {
            let all = entries.into_iter().flatten().filter(|entry| which(&entry.kinds));
            all.map(|entry| entry.pid).collect::<Vec<u32>>()
        };
        Some(Self {
            index: sample.about.index.clone(),
            uuid: sample.about.id.as_ref()?.0.clone(),
            mode: sample.telemetry.compute_mode,
            holders: entries.is_some().then(|| pids(|kinds| kinds.compute || kinds.mps)),
            clients: pids(|kinds| kinds.mps),
        })
    }

    pub(super) fn is_exclusive(&self) -> bool {
        self.mode == Some(ComputeMode::ExclusiveProcess)
    }
}

/// Returns all GPUs that the driver reports.
pub(super) fn all(common: &Common) -> Result<Vec<MpsGpu>, Failure> {
    let report = driver::query(&common.machine, common.deadline).map_err(Failure::unavailable)?;
    if !report.opened() {
        return Err(Failure::unavailable("the driver cannot list its GPUs; see bailiff doctor"));
    }
    let gpus = report.sample.gpus.iter().filter(|gpu| gpu.about.mig.is_none());
    Ok(gpus.filter_map(MpsGpu::of).collect())
}

/// Returns the GPUs with these indexes or UUIDs, or all GPUs if the list is empty.
pub(super) fn select(all: Vec<MpsGpu>, names: &[String]) -> Result<Vec<MpsGpu>, Failure> {
    let matches = |gpu: &MpsGpu, name: &String| gpu.index == *name || gpu.uuid == *name;
    if let Some(unknown) = names.iter().find(|name| !all.iter().any(|gpu| matches(gpu, name))) {
        let known = joined(all.iter().map(|gpu| &gpu.index), ", ");
        return Err(Failure::usage(format!("there is no GPU {unknown}; the driver lists {known}")));
    }
    let selected =
        all.into_iter().filter(|gpu| names.is_empty() || names.iter().any(|name| matches(gpu, name)));
    let selected: Vec<MpsGpu> = selected.collect();
    if selected.is_empty() { Err(Failure::unavailable("the driver lists no GPUs")) } else { Ok(selected) }
}

/// Returns the arguments of `nvidia-smi` that set a compute mode.
pub(super) fn smi_args(gpu: &MpsGpu, mode: ComputeMode) -> [String; 4] {
    ["-i".to_owned(), gpu.index.clone(), "-c".to_owned(), mode.name().to_uppercase()]
}

/// Sets the compute mode of a GPU.
pub(super) fn set(smi: &Path, gpu: &MpsGpu, mode: ComputeMode) -> Result<(), Failure> {
    let args = smi_args(gpu, mode);
    super::show(&format!("+ {} {}\n", smi.display(), args.join(" ")))?;
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let failed = |why: String| Failure::unavailable(format!("{} {}: {why}", smi.display(), args.join(" ")));
    let output = child::output(smi, &args, SMI_TIMEOUT).map_err(failed)?;
    if output.status.success() {
        return Ok(());
    }
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text).trim().replace('\n', " ");
    Err(failed(format!("{}{}{text}", output.status, if text.is_empty() { "" } else { ": " })))
}

/// GPUs whose compute mode was changed, each with its previous mode.
#[derive(Debug, Default)]
pub(super) struct ChangedModes(Vec<MpsGpu>);

impl ChangedModes {
    /// Sets all GPUs to `EXCLUSIVE_PROCESS`. If one fails, restores the GPUs that were already changed.
    pub(super) fn set_exclusive(smi: &Path, gpus: &[MpsGpu]) -> Result<Self, Failure> {
        let mut changed = Self::default();
        for gpu in gpus.iter().filter(|gpu| !gpu.is_exclusive()) {
            if let Err(failure) = set(smi, gpu, ComputeMode::ExclusiveProcess) {
                changed.restore(smi);
                return Err(failure);
            }
            changed.0.push(gpu.clone());
        }
        Ok(changed)
    }

    /// Restores the previous compute modes. Prints errors.
    pub(super) fn restore(self, smi: &Path) {
        for gpu in self.0 {
            if let Err(failure) = set(smi, &gpu, gpu.mode.unwrap_or(ComputeMode::Default)) {
                print_message(failure.sanitized());
            }
        }
    }

    /// Leaves the GPUs in `EXCLUSIVE_PROCESS` and prints the reason.
    pub(super) fn keep(self, why: &str) {
        for gpu in self.0 {
            print_message(format_args!(
                "GPU {0} stays EXCLUSIVE_PROCESS because {why}; to reset it, run nvidia-smi -i {0} -c DEFAULT",
                gpu.index
            ));
        }
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the pids of MPS clients that now use one of the changed GPUs.
    pub(super) fn clients(&self, now: &[MpsGpu]) -> Vec<u32> {
        let changed = now.iter().filter(|gpu| self.0.iter().any(|changed| changed.uuid == gpu.uuid));
        changed.flat_map(|gpu| gpu.clients.iter().copied()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpu(index: &str) -> MpsGpu {
        let uuid = format!("GPU-{index}");
        MpsGpu { index: index.to_owned(), uuid, mode: None, holders: None, clients: Vec::new() }
    }

    #[test]
    fn clients_of_changed_gpus_are_returned() {
        let now = [MpsGpu { clients: vec![7], ..gpu("0") }, MpsGpu { clients: vec![8], ..gpu("1") }];
        assert_eq!(ChangedModes(vec![gpu("1")]).clients(&now), [8]);
        assert_eq!(ChangedModes(vec![gpu("2")]).clients(&now), [0; 0]);
    }

    #[test]
    fn gpus_are_selected_by_index_or_uuid() {
        let all = || vec![gpu("0"), gpu("1")];
        let cases: [(&[&str], Option<&[&str]>); 5] = [
            (&[], Some(&["0", "1"])),
            (&["1"], Some(&["1"])),
            (&["GPU-1", "0"], Some(&["0", "1"])),
            (&["2"], None),
            (&["GPU"], None),
        ];
        for (names, expected) in cases {
            let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
            let found = select(all(), &names).ok();
            let found: Option<Vec<String>> =
                found.map(|found| found.into_iter().map(|gpu| gpu.index).collect());
            let expected = expected.map(|names| names.iter().map(|name| (*name).to_owned()).collect());
            assert_eq!(found, expected, "{names:?}");
        }
        assert!(select(Vec::new(), &[]).is_err());
        assert_eq!(
            smi_args(&gpu("1"), ComputeMode::ExclusiveProcess),
            ["-i", "1", "-c", "EXCLUSIVE_PROCESS"]
        );
    }
}
