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
        let work = |stats: &Self| u128::from(stats.gpu_sum) + u128::from(stats.memory_sum);
        self.start == before.start && work(self) > work(before)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HUGE: u64 = u64::MAX;

    #[test]
    fn a_process_worked_if_a_sum_of_the_same_process_grew() {
        let stats = |(start, gpu_sum, memory_sum)| {
            let mut stats = AccountingStats::default();
            (stats.start, stats.gpu_sum, stats.memory_sum) = (start, gpu_sum, memory_sum);
            stats
        };
        let cases = [
            ("nothing, ever", (7, 0, 0), (7, 0, 0), false),
            ("equal sums", (7, 40, 5), (7, 40, 5), false),
            ("engines worked", (7, 40, 5), (7, 41, 5), true),
            ("memory was used", (7, 40, 5), (7, 40, 6), true),
            ("both grew", (7, 40, 5), (7, 90, 9), true),
            ("engines worked for the first time", (7, 0, 0), (7, 1, 0), true),
            ("the sums fell", (7, 40, 5), (7, 39, 5), false),
            ("the sums were reset", (7, 40, 5), (7, 0, 0), false),
            ("the pid was reused", (7, 40, 5), (8, 90, 9), false),
            ("the pid was reused by a process with equal sums", (7, 40, 5), (8, 40, 5), false),
            ("the start was set back", (7, 40, 5), (6, 90, 9), false),
            ("the largest sum did not grow", (7, HUGE, 0), (7, HUGE, 0), false),
            ("growth to the largest sum", (7, HUGE - 1, 0), (7, HUGE, 0), true),
            ("the largest sums", (7, HUGE, HUGE), (7, HUGE, HUGE), false),
            ("growth beyond the largest number", (7, 40, 5), (7, HUGE, 1), true),
            ("growth beside a sum that is not available", (7, 40, HUGE), (7, 41, HUGE), true),
            ("no growth beside a sum that is not available", (7, 40, HUGE), (7, 40, HUGE), false),
            ("a fall from the largest number", (7, HUGE, 1), (7, 40, 5), false),
        ];
        for (name, before, now, expected) in cases {
            assert_eq!(stats(now).worked_since(&stats(before)), expected, "{name}");
        }
    }
}
