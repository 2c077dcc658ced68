//! The three process lists of a GPU, merged by pid.

use std::collections::BTreeMap;

use bailiff_snapshot::{Entry, Gap, Gaps, Kinds};
use nvml_wrapper::Device;
use nvml_wrapper::error::NvmlError;

use super::not_offered;
use super::raw::{Asked, List, Listed, list};

/// A list that keeps outgrowing its room is asked for this often.
const TRIES: usize = 5;
/// Pids are at most 2^22 (`PID_MAX_LIMIT`, `include/linux/threads.h`).
const PID_MAX: u32 = 4 << 20;

/// The holders of the device; `None` if the driver gave no list although it should. `room` is the previous number
/// of entries, and is updated.
pub(super) fn entries(
    device: &Device<'_>,
    room: &mut usize,
    gaps: &mut Gaps,
) -> Result<Option<Vec<Entry>>, NvmlError> {
    let mut merged: BTreeMap<u32, Entry> = BTreeMap::new();
    for kind in [List::Compute, List::Graphics, List::Mps] {
        let listed = match whole(device, kind, room) {
            Ok(Some(listed)) => listed,
            // Compute is what we are for; a device without graphics or MPS has none of those.
            Err(error) if not_offered(&error) && kind != List::Compute => continue,
            Err(NvmlError::GpuLost) => return Err(NvmlError::GpuLost),
            Ok(None) | Err(_) => {
                gaps.count(Gap::ProcessList);
                return Ok(None);
            }
        };
        for one in listed {
            if one.pid > PID_MAX {
                gaps.count(Gap::ImpossiblePid);
                return Ok(None);
            }
            merge(&mut merged, one, kind);
        }
    }
    Ok(Some(merged.into_values().collect()))
}

/// One list in full; `None` where it cannot be had.
fn whole(device: &Device<'_>, kind: List, room: &mut usize) -> Result<Option<Vec<Listed>>, NvmlError> {
    for _ in 0..TRIES {
        match list(device, kind, (*room).max(16))? {
            Asked::Entries(entries) => return Ok(Some(entries)),
            Asked::Strange => return Ok(None),
            // Some drivers do not say how many; what they say may be too few by the next call.
            Asked::More(count) => *room = count.saturating_add(count / 4 + 16).min(1 << 20).max(*room * 2),
        }
    }
    Ok(None)
}

/// A process in several lists, or twice in one, counts once, with the largest figure.
/// Pid 0 is many processes, whose memory adds up.
fn merge(merged: &mut BTreeMap<u32, Entry>, one: Listed, kind: List) {
    let kinds =
        Kinds { compute: kind == List::Compute, graphics: kind == List::Graphics, mps: kind == List::Mps };
    let entry = merged.entry(one.pid);
    entry
        .and_modify(|entry| {
            entry.memory = match (entry.memory, one.memory) {
                (Some(then), Some(now)) if one.pid == 0 => then.checked_add(now),
                (Some(then), Some(now)) => Some(then.max(now)),
                _ => None,
            };
            entry.kinds = entry.kinds.union(kinds);
        })
        .or_insert(Entry { pid: one.pid, memory: one.memory, kinds, peak: None });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pid_in_two_lists_is_one_holder() {
        let mut merged = BTreeMap::new();
        merge(&mut merged, Listed { pid: 7, memory: Some(100) }, List::Compute);
        merge(&mut merged, Listed { pid: 7, memory: Some(120) }, List::Graphics);
        merge(&mut merged, Listed { pid: 8, memory: Some(5) }, List::Mps);
        merge(&mut merged, Listed { pid: 8, memory: None }, List::Compute);
        assert_eq!((merged[&7].memory, merged[&7].kinds.letters()), (Some(120), "C+G"));
        assert_eq!((merged[&8].memory, merged[&8].kinds.letters()), (None, "M+C"));
    }

    #[test]
    fn pid_0_is_many() {
        let mut merged = BTreeMap::new();
        merge(&mut merged, Listed { pid: 0, memory: Some(100) }, List::Compute);
        merge(&mut merged, Listed { pid: 0, memory: Some(20) }, List::Compute);
        assert_eq!(merged[&0].memory, Some(120));
    }
}
