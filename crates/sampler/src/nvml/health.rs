//! Reads the health of a GPU. Fields that change rarely are read once a minute.

use std::time::Duration;

use bailiff_snapshot::{About, ClockEvent, ErrorCounts, Health, MemoryHealth, RecoveryAction};
use nvml_wrapper::Device;
use nvml_wrapper::error::NvmlError;

use super::answers::Answers;
use super::plausible::Most;
use super::raw;

/// Time for which the state of defective memory is not read again.
const RARELY: Duration = Duration::from_mins(1);
/// First CUDA compute capability of GPUs that remap rows and do not retire pages: Ampere.
const REMAPS_ROWS: i32 = 8;

// `NVML_FI_DEV_GET_GPU_RECOVERY_ACTION`, `_ECC_SBE_VOL_TOTAL`, `_ECC_DBE_VOL_TOTAL`.
const OFTEN: [u32; 3] = [230, 3, 4];
// `NVML_FI_DEV_REMAPPED_COR`, `_UNC`, `_PENDING`, `_FAILURE`.
const ROWS: [u32; 4] = [142, 143, 144, 145];
// `NVML_FI_DEV_RETIRED_SBE`, `_DBE`.
const PAGES: [u32; 2] = [29, 30];

/// The state of defective memory, and the time since boot at which it was read.
pub(super) type LastRead = Option<(Duration, MemoryHealth)>;

pub(super) fn read(
    device: &Device<'_>,
    (about, last, now): (&About, &mut LastRead, Duration),
    answers: &mut Answers<'_>,
) -> Result<Health, NvmlError> {
    let [action, corrected, uncorrected] = fields(device, OFTEN, answers)?;
    *last = last.take().filter(|(at, _)| now.saturating_sub(*at) < RARELY);
    let memory = if let Some((_, memory)) = last {
        memory.clone()
    } else {
        let gaps = answers.gaps.clone();
        let memory = memory(device, about, answers)?;
        // What failed is read again in the next sample.
        *last = (*answers.gaps == gaps).then(|| (now, memory.clone()));
        memory
    };
    Ok(Health {
        recovery_action: action.map(RecoveryAction::of),
        ecc: ErrorCounts { corrected, uncorrected },
        clock_events: answers.figure(raw::clock_events(device), Most::Count)?.map(ClockEvent::of),
        memory,
    })
}

fn memory(device: &Device<'_>, about: &About, answers: &mut Answers<'_>) -> Result<MemoryHealth, NvmlError> {
    if about.compute_capability.is_some_and(|(major, _)| major < REMAPS_ROWS) {
        let [corrected, uncorrected] = fields(device, PAGES, answers)?;
        let retired_pages = ErrorCounts { corrected, uncorrected };
        return Ok(MemoryHealth { retired_pages, ..MemoryHealth::default() });
    }
    let [corrected, uncorrected, pending, failed] = fields(device, ROWS, answers)?;
    let mut flag = |number| Some(answers.figure(Ok(number?), Most::Flag).ok()?? == 1);
    Ok(MemoryHealth {
        remapped_rows: ErrorCounts { corrected, uncorrected },
        remap_pending: flag(pending),
        remap_failed: flag(failed),
        retired_pages: ErrorCounts::default(),
    })
}

/// Reads fields with one call. Each that is not offered or implausible is `None`.
fn fields<const N: usize>(
    device: &Device<'_>,
    ids: [u32; N],
    answers: &mut Answers<'_>,
) -> Result<[Option<u64>; N], NvmlError> {
    let mut values = [None; N];
    let Some(read) = answers.of(raw::fields(device, ids))? else { return Ok(values) };
    for (value, field) in values.iter_mut().zip(read) {
        *value = answers.figure(field, Most::Count)?;
    }
    Ok(values)
}
