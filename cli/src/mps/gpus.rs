//! GPUs and their compute modes: read from the driver, set by `nvidia-smi`, each command shown as it is run.

use std::path::Path;
use std::time::Duration;

use bailiff_snapshot::{ComputeMode, GpuSample};

use super::flags::Common;
use crate::doctor::{child, driver};
use crate::exit::Failure;
use crate::output::print_message;

/// `nvidia-smi` opens the driver, which may take a while.
const PATIENCE: Duration = Duration::from_secs(30);

/// A GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Gpu {
    pub(super) index: String,
    pub(super) uuid: String,
    pub(super) mode: Option<ComputeMode>,
    /// Who computes on it; none where the driver does not tell.
    pub(super) holders: Option<Vec<u32>>,
    /// Who computes on it through MPS.
    pub(super) clients: Vec<u32>,
}

impl Gpu {
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

/// All GPUs that the driver has.
pub(super) fn all(common: &Common) -> Result<Vec<Gpu>, Failure> {
    let told = driver::look(&common.machine, common.deadline).map_err(Failure::unavailable)?;
    if !told.opened() {
        return Err(Failure::unavailable(
            "the driver cannot be asked for its GPUs; bailiff doctor tells why",
        ));
    }
    let whole = told.sample.gpus.iter().filter(|gpu| gpu.about.mig.is_none());
    Ok(whole.filter_map(Gpu::of).collect())
}

/// Those of a list of numbers and UUIDs; all where it is empty.
pub(super) fn named(all: Vec<Gpu>, names: &[String]) -> Result<Vec<Gpu>, Failure> {
    let is = |gpu: &Gpu, name: &String| gpu.index == *name || gpu.uuid == *name;
    if let Some(unknown) = names.iter().find(|name| !all.iter().any(|gpu| is(gpu, name))) {
        let have: Vec<&str> = all.iter().map(|gpu| gpu.index.as_str()).collect();
        return Err(Failure::usage(format!("there is no GPU {unknown}; there are {}", have.join(", "))));
    }
    let chosen = all.into_iter().filter(|gpu| names.is_empty() || names.iter().any(|name| is(gpu, name)));
    let chosen: Vec<Gpu> = chosen.collect();
    if chosen.is_empty() { Err(Failure::unavailable("the driver has no GPUs")) } else { Ok(chosen) }
}

/// The command that sets a mode.
pub(super) fn command(gpu: &Gpu, mode: ComputeMode) -> [String; 4] {
    ["-i".to_owned(), gpu.index.clone(), "-c".to_owned(), mode.name().to_uppercase()]
}

/// Sets a mode.
pub(super) fn set(smi: &Path, gpu: &Gpu, mode: ComputeMode) -> Result<(), Failure> {
    let words = command(gpu, mode);
    super::show(&format!("+ {} {}\n", smi.display(), words.join(" ")))?;
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let failed = |why: String| Failure::unavailable(format!("{} {}: {why}", smi.display(), words.join(" ")));
    let output = child::said(smi, &words, PATIENCE).map_err(failed)?;
    if output.status.success() {
        return Ok(());
    }
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text).trim().replace('\n', " ");
    Err(failed(format!("{}{}{text}", output.status, if text.is_empty() { "" } else { ": " })))
}

/// GPUs whose mode was changed, with the mode that they had.
#[derive(Debug, Default)]
pub(super) struct Changed(Vec<Gpu>);

impl Changed {
    /// Lets these take one process alone, or changes none of them.
    pub(super) fn exclusive(smi: &Path, gpus: &[Gpu]) -> Result<Self, Failure> {
        let mut changed = Self::default();
        for gpu in gpus.iter().filter(|gpu| !gpu.is_exclusive()) {
            if let Err(failure) = set(smi, gpu, ComputeMode::ExclusiveProcess) {
                changed.undo(smi);
                return Err(failure);
            }
            changed.0.push(gpu.clone());
        }
        Ok(changed)
    }

    /// Sets the modes that they had.
    pub(super) fn undo(self, smi: &Path) {
        for gpu in self.0 {
            if let Err(failure) = set(smi, &gpu, gpu.mode.unwrap_or(ComputeMode::Default)) {
                print_message(failure.harmless());
            }
        }
    }

    /// Leaves them as they are, and says so.
    pub(super) fn leave(self, why: &str) {
        for gpu in self.0 {
            print_message(format_args!(
                "GPU {0} stays EXCLUSIVE_PROCESS, since {why}: nvidia-smi -i {0} -c DEFAULT",
                gpu.index
            ));
        }
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Clients of MPS on one of them, as these are now.
    pub(super) fn clients(&self, now: &[Gpu]) -> Vec<u32> {
        let ours = now.iter().filter(|gpu| self.0.iter().any(|changed| changed.uuid == gpu.uuid));
        ours.flat_map(|gpu| gpu.clients.iter().copied()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpu(index: &str) -> Gpu {
        let uuid = format!("GPU-{index}");
        Gpu { index: index.to_owned(), uuid, mode: None, holders: None, clients: Vec::new() }
    }

    #[test]
    fn clients_count_on_the_gpus_that_were_changed() {
        let now = [Gpu { clients: vec![7], ..gpu("0") }, Gpu { clients: vec![8], ..gpu("1") }];
        assert_eq!(Changed(vec![gpu("1")]).clients(&now), [8]);
        assert_eq!(Changed(vec![gpu("2")]).clients(&now), [0; 0]);
    }

    #[test]
    fn gpus_are_named_by_number_or_uuid() {
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
            let found = named(all(), &names).ok();
            let found: Option<Vec<String>> =
                found.map(|found| found.into_iter().map(|gpu| gpu.index).collect());
            let expected = expected.map(|names| names.iter().map(|name| (*name).to_owned()).collect());
            assert_eq!(found, expected, "{names:?}");
        }
        assert!(named(Vec::new(), &[]).is_err());
        assert_eq!(command(&gpu("1"), ComputeMode::ExclusiveProcess), ["-i", "1", "-c", "EXCLUSIVE_PROCESS"]);
    }
}
