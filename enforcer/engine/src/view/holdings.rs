//! Which process holds memory on which GPU, by index in the snapshot.

use bailiff_snapshot::wire;
use hashbrown::HashMap;

/// For each process: the index of each GPU, and its index among the GPU's holders.
#[derive(Debug, Clone)]
pub(super) struct Holdings {
    /// Start of each process' part of `all`, and the end of the last.
    begins: Vec<u32>,
    all: Vec<(u32, u32)>,
}

impl Holdings {
    pub(super) fn of_all(snapshot: &wire::Snapshot) -> Self {
        let places: HashMap<u32, u32> =
            snapshot.processes.iter().map(|process| process.pid).zip(0..).collect();
        let mut held: Vec<(u32, (u32, u32))> = Vec::new();
        for (gpu, number) in snapshot.gpus.iter().zip(0..) {
            let of_gpu = gpu.holders.iter().zip(0..);
            held.extend(
                of_gpu.filter_map(|(holder, place)| Some((*places.get(&holder.pid)?, (number, place)))),
            );
        }
        held.sort_unstable();
        let mut begins = Vec::with_capacity(snapshot.processes.len() + 1);
        let mut all = Vec::with_capacity(held.len());
        let mut held = held.into_iter().peekable();
        for process in (0..).take(snapshot.processes.len()) {
            begins.push(u32::try_from(all.len()).unwrap_or(u32::MAX));
            while let Some((_, holding)) = held.next_if(|(of, _)| *of == process) {
                all.push(holding);
            }
        }
        begins.push(u32::try_from(all.len()).unwrap_or(u32::MAX));
        Self { begins, all }
    }

    pub(super) fn of(&self, process: usize) -> &[(u32, u32)] {
        let at = |place| self.begins.get(place).map(|begin| *begin as usize);
        let Some((begin, end)) = at(process).zip(at(process + 1)) else { return &[] };
        self.all.get(begin..end).unwrap_or_default()
    }
}
