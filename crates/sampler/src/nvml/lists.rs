//! Reads the three process lists of a GPU, and merges them by pid.

use std::collections::BTreeMap;

use bailiff_snapshot::{Entry, Gap, Gaps, Kinds};
use nvml_wrapper::Device;
use nvml_wrapper::error::NvmlError;

use super::not_offered;
use super::raw::{Asked, List, Listed, list};

/// Maximum number of attempts to read a list that keeps outgrowing the buffer.
const TRIES: usize = 5;
/// Maximum pid, 2^22 (`PID_MAX_LIMIT`, `include/linux/threads.h`).
const PID_MAX: u32 = 4 << 20;

/// Returns the processes with memory on the device, or `None` if a list could not be read. `room` is the
/// capacity of the buffer in entries, and is increased as needed.
pub(super) fn entries(
    device: &Device<'_>,
    room: &mut usize,
    gaps: &mut Gaps,
) -> Result<Option<Vec<Entry>>, NvmlError> {
    let mut merged: BTreeMap<u32, Entry> = BTreeMap::new();
    for kind in [List::Compute, List::Graphics, List::Mps] {
        let listed = match whole(device, kind, room) {
            Ok(Some(listed)) => listed,
            // Only the compute list is required. A device may have no graphics or MPS list.
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

/// Reads one list completely; `None` if its entries are of unknown size, or it keeps growing.
fn whole(device: &Device<'_>, kind: List, room: &mut usize) -> Result<Option<Vec<Listed>>, NvmlError> {
    for _ in 0..TRIES {
        match list(device, kind, (*room).max(16))? {
            Asked::Entries(entries) => return Ok(Some(entries)),
            Asked::Strange => return Ok(None),
            // Some drivers do not report the number, and a reported number may be too small at the next call.
            Asked::More(count) => *room = count.saturating_add(count / 4 + 16).min(1 << 20).max(*room * 2),
        }
    }
    Ok(None)
}

/// Adds a list entry. A process in several lists, or twice in one, becomes one entry with the largest memory.
/// Pid 0 stands for several processes, so their memory is added.
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
