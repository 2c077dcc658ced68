//! Schedule and result of scans for processes with an open device file. Reading all descriptors of a node may
//! take long, so each sample reads a part of them within its time limit.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use bailiff_proc::Proc;
use bailiff_snapshot::{DeviceProcesses, Gap, GpuSample, Moment, Seen};

use crate::message::Rest;
use crate::proc::{Search, keep_living};

/// Minimum time between the starts of two scans.
const PAUSE: Duration = Duration::from_mins(1);
/// Maximum duration of a scan; it then ends with what it has found.
const LONGEST: Duration = Duration::from_mins(5);
/// Time for which a result is valid.
const GOOD: Duration = Duration::from_mins(11);
/// Minimum time for a part of a scan in one sample. It is longer than the time limit of one process.
pub(crate) const SHORTEST: Duration = Duration::from_millis(300);
/// Amount of unattributed memory on a GPU that starts a scan.
const FROM: u64 = 256 << 20;

/// State of the scan, kept between intervals.
#[derive(Default)]
pub(crate) struct DeviceFileScan {
    search: Option<Search>,
    found: Option<DeviceProcesses>,
    /// Listed pids whose processes had exited in the previous sample.
    ended: BTreeSet<u32>,
}

/// Input of one interval.
pub(crate) struct Interval<'a> {
    pub(crate) proc: &'a Proc,
    pub(crate) at: Moment,
    pub(crate) until: Instant,
    /// Whether a GPU has much memory in use that no listed process holds.
    pub(crate) is_requested: bool,
}

impl DeviceFileScan {
    /// Starts or continues a scan if requested, and adds the result to `rest`.
    pub(crate) fn run(&mut self, interval: &Interval<'_>, rest: &mut Rest) {
        let is_requested = self.has_ended(&rest.processes) || interval.is_requested;
        let age = |since: Duration| interval.at.boot.saturating_sub(since);
        self.found = self.found.take().filter(|found| age(found.at()) < GOOD);
        if let Some(found) = &mut self.found {
            keep_living(interval.proc, found);
        }
        let is_due = self.found.as_ref().is_none_or(|found| age(found.at()) >= PAUSE);
        if self.search.is_none() && is_requested && is_due {
            self.search = Search::begin(interval.proc, interval.at).ok();
        }
        if let Some(mut search) = self.search.take() {
            let is_done = search.go_on(interval.proc, interval.until);
            let is_late = age(search.began()) >= LONGEST;
            if is_done || is_late {
                self.found = Some(ended(search, is_done, rest));
            } else {
                self.search = Some(search);
            }
        }
        rest.device_processes.clone_from(&self.found);
    }

    /// Continues neither scan nor result in an interval without time for them. A requested scan is a gap.
    pub(crate) fn skip(&self, is_requested: bool, rest: &mut Rest) {
        if is_requested || self.search.is_some() || self.found.is_some() {
            rest.gaps.count(Gap::DeviceProcesses);
        }
    }

    /// Discards scan and result in an interval that must not read descriptors. A requested scan is a gap.
    pub(crate) fn leave(&mut self, is_requested: bool, rest: &mut Rest) {
        *self = Self::default();
        if is_requested {
            rest.gaps.count(Gap::DeviceProcesses);
        }
    }

    /// Returns whether a listed process has exited both in this sample and in the previous one, so that
    /// another process may hold its files, or the driver's list is late.
    fn has_ended(&mut self, processes: &BTreeMap<u32, Seen>) -> bool {
        let ended = |seen: &Seen| match seen {
            Seen::Gone => true,
            Seen::Found(facts) => facts.state.ended(),
            Seen::Hidden => false,
        };
        let now: BTreeSet<u32> =
            processes.iter().filter(|(_, seen)| ended(seen)).map(|(pid, _)| *pid).collect();
        let before = std::mem::replace(&mut self.ended, now);
        self.ended.iter().any(|pid| before.contains(pid))
    }
}

/// Ends a scan, counts its gaps and returns its result.
fn ended(search: Search, is_done: bool, rest: &mut Rest) -> DeviceProcesses {
    let found = search.end();
    match (is_done, found.unreadable) {
        (false, _) => rest.gaps.count(Gap::DeviceProcesses),
        (true, 0) => {}
        (true, _) => rest.gaps.count(Gap::NotPermitted),
    }
    found
}

/// Returns whether at least `FROM` bytes on a GPU are in use that no listed process holds. If the driver does
/// not report the reserved part, it is assumed to be twice `FROM`.
pub(crate) fn has_unattributed(gpu: &GpuSample) -> bool {
    let (Some(memory), Some(entries)) = (gpu.memory, &gpu.entries) else { return false };
    if gpu.telemetry.mig_enabled == Some(true) && gpu.about.mig.is_none() {
        return false;
    }
    let held = entries.iter().filter_map(|entry| entry.memory).fold(0_u64, u64::saturating_add);
    let reserved = if memory.reserved.is_none() { FROM * 2 } else { 0 };
    memory.used.saturating_sub(held).saturating_sub(reserved) >= FROM
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "a made-up /proc is written, and an interval has a time limit")]
mod tests {
    use super::*;
    use bailiff_snapshot::Gaps;
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::path::Path;

    const HEIRS: [u32; 3] = [40, 50, 60];

    /// Creates a fake `/proc` in which each of `HEIRS` has a device file open.
    fn procfs() -> tempfile::TempDir {
        let home = tempfile::tempdir().unwrap();
        for pid in HEIRS {
            fs::create_dir_all(home.path().join(format!("{pid}/fd"))).unwrap();
            let line = format!("{pid} (x) S 1 7 7 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 7");
            fs::write(home.path().join(format!("{pid}/stat")), line).unwrap();
            symlink("/dev/nvidia0", home.path().join(format!("{pid}/fd/3"))).unwrap();
        }
        home
    }

    /// Returns the number of processes found at this time since boot, in a sample with time for one process.
    fn count_found(
        device_file_scan: &mut DeviceFileScan,
        home: &Path,
        (seconds, seen): (u64, &[(u32, Seen)]),
    ) -> (Option<usize>, Gaps) {
        let mut rest = Rest { processes: seen.iter().cloned().collect(), ..Rest::default() };
        let at = Moment { boot: Duration::from_secs(seconds), ..Moment::default() };
        let proc = Proc::open(home).unwrap();
        let is_requested = seen.is_empty();
        device_file_scan.run(&Interval { proc: &proc, at, until: Instant::now(), is_requested }, &mut rest);
        (rest.device_processes.map(|device_processes| device_processes.processes.len()), rest.gaps)
    }

    #[test]
    fn scan_spans_several_samples_and_then_reports_running_processes() {
        let home = procfs();
        let mut device_file_scan = DeviceFileScan::default();
        let counts =
            [100, 105, 110, 115].map(|at| count_found(&mut device_file_scan, home.path(), (at, &[])).0);
        assert_eq!(counts, [None, None, Some(3), Some(3)]);
        fs::remove_dir_all(home.path().join("50")).unwrap();
        assert_eq!(
            count_found(&mut device_file_scan, home.path(), (120, &[])).0,
            Some(2),
            "one process has exited"
        );
    }

    #[test]
    fn scan_over_its_time_limit_reports_a_partial_result() {
        let home = procfs();
        let mut device_file_scan = DeviceFileScan::default();
        assert_eq!(count_found(&mut device_file_scan, home.path(), (100, &[])).0, None);
        let (count, gaps) = count_found(&mut device_file_scan, home.path(), (400, &[]));
        assert_eq!((count, gaps.of(Gap::DeviceProcesses)), (Some(2), 1));
        assert_eq!(device_file_scan.found.as_ref().map(|found| found.unreadable), Some(1));
    }

    #[test]
    fn ended_listed_process_starts_a_scan_in_the_second_sample() {
        let home = procfs();
        let mut device_file_scan = DeviceFileScan::default();
        let gone: &[(u32, Seen)] = &[(9, Seen::Gone)];
        let other: &[(u32, Seen)] = &[(9, Seen::Hidden)];
        for (at, seen, searches) in
            [(100, gone, false), (105, other, false), (110, gone, false), (115, gone, true)]
        {
            let _ = count_found(&mut device_file_scan, home.path(), (at, seen));
            assert_eq!(device_file_scan.search.is_some(), searches, "at {at}");
        }
    }

    #[test]
    fn interval_without_time_publishes_no_result() {
        let home = procfs();
        let mut device_file_scan = DeviceFileScan::default();
        for at in [100, 105, 110] {
            let _ = count_found(&mut device_file_scan, home.path(), (at, &[]));
        }
        let mut rest = Rest::default();
        device_file_scan.skip(false, &mut rest);
        assert_eq!((rest.device_processes, rest.gaps.of(Gap::DeviceProcesses)), (None, 1));
        assert_eq!(count_found(&mut device_file_scan, home.path(), (115, &[])).0, Some(3), "it is kept");
    }

    #[test]
    fn scan_without_permission_is_a_gap() {
        let (mut device_file_scan, mut rest) = (DeviceFileScan::default(), Rest::default());
        device_file_scan.leave(true, &mut rest);
        assert_eq!((rest.device_processes, rest.gaps.of(Gap::DeviceProcesses)), (None, 1));
    }
}
