//! Reads the driver's accounting of processes: their largest memory, and whether it counted work.

use std::collections::{BTreeMap, BTreeSet};

use bailiff_snapshot::Entry;
use nvml_wrapper::Device;

use super::not_offered;
use super::raw::{self, AccountingStats};

/// Counters of each listed pid at the previous sample.
#[derive(Default)]
pub(super) struct Accounts(BTreeMap<u32, AccountingStats>);

impl Accounts {
    /// Adds the peak memory of each process. Returns the pids whose counted work increased since the previous sample.
    pub(super) fn read(&mut self, device: &Device<'_>, entries: &mut [Entry]) -> BTreeSet<u32> {
        let (mut accounts, mut worked) = (BTreeMap::new(), BTreeSet::new());
        let mut is_offered = true;
        for entry in entries {
            let stats = is_offered.then(|| raw::accounting_stats(device, entry.pid));
            match stats {
                Some(Ok(stats)) => {
                    entry.peak = (stats.max_memory != u64::MAX).then_some(stats.max_memory);
                    if self.0.get(&entry.pid).is_some_and(|before| stats.worked_since(before)) {
                        worked.insert(entry.pid);
                    }
                    accounts.insert(entry.pid, stats);
                    continue;
                }
                // Drivers before 610 have only the first version, without sums.
                Some(Err(error)) => is_offered = !not_offered(&error),
                None => {}
            }
            let stats = device.accounting_stats_for(entry.pid).ok();
            entry.peak = stats.and_then(|stats| stats.max_memory_usage);
        }
        self.0 = accounts;
        worked
    }
}

impl AccountingStats {
    fn worked_since(&self, before: &Self) -> bool {
        let work = |stats: &Self| stats.gpu_sum.checked_add(stats.memory_sum);
        self.start == before.start && work(self) > work(before)
    }
}
