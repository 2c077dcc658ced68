//! Metrics of this process itself (`process_*`), as Prometheus client libraries export them.

#![expect(clippy::disallowed_methods, reason = "reads /proc/self, whatever --procfs says")]

use std::fs;

use bailiff_snapshot::stat;
use rustix::param::{clock_ticks_per_second, page_size};
use rustix::process::{Resource, getrlimit};

use crate::{Column, Labels, Number, Writer, families};

families! {
FAMILIES {
CPU Counter Seconds "process_cpu_seconds_total" [""]
    "Total user and system CPU time spent in seconds.";
RESIDENT Gauge Bytes "process_resident_memory_bytes" [""]
    "Resident memory size in bytes."
    "Only this process is included: the exporter's sampling worker and its launcher are separate processes.";
VIRTUAL Gauge Bytes "process_virtual_memory_bytes" [""]
    "Virtual memory size in bytes.";
OPEN_FDS Gauge One "process_open_fds" [""]
    "Number of open file descriptors.";
MAX_FDS Gauge One "process_max_fds" [""]
    "Maximum number of open file descriptors.";
START_TIME Gauge Seconds "process_start_time_seconds" [""]
    "Start time of the process since unix epoch in seconds.";
}
}

/// Figures of this process; a field is `None` if it could not be read.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Own {
    /// CPU time used, in seconds.
    pub cpu_seconds: Option<f64>,
    /// Resident memory, in bytes.
    pub resident_bytes: Option<u64>,
    /// Virtual memory, in bytes.
    pub virtual_bytes: Option<u64>,
    /// Number of open file descriptors.
    pub open_fds: Option<u64>,
    /// Maximum number of open file descriptors; `None` also if unlimited.
    pub max_fds: Option<u64>,
    /// Start time, in seconds since the Unix epoch.
    pub started: Option<f64>,
}

impl Own {
    /// Reads the figures from `/proc`.
    pub fn read() -> Self {
        let line = fs::read("/proc/self/stat").unwrap_or_default();
        let stat = stat::parse(&line);
        let sizes = fs::read_to_string("/proc/self/statm").unwrap_or_default();
        let boot = fs::read_to_string("/proc/stat").ok().and_then(|text| boot_time(&text));
        let started = stat.as_ref().map(|stat| seconds(stat.key.start_ticks));
        Self {
            cpu_seconds: stat.as_ref().map(|stat| seconds(stat.cpu_ticks)),
            virtual_bytes: pages(&sizes, 0),
            resident_bytes: pages(&sizes, 1),
            // Listing the directory opens a descriptor, which is in the list.
            open_fds: fs::read_dir("/proc/self/fd").ok().map(|list| (list.count() as u64).saturating_sub(1)),
            max_fds: getrlimit(Resource::Nofile).current,
            started: boot.zip(started).map(|(boot, since)| boot + since),
        }
    }
}

/// Writes the metrics for the figures that are known.
pub fn write(own: &Own, page: &mut Writer<'_>) {
    let columns: [Column<Own>; 6] = [
        (&CPU, |own| own.cpu_seconds.map(Number::from)),
        (&RESIDENT, |own| own.resident_bytes.map(Number::from)),
        (&VIRTUAL, |own| own.virtual_bytes.map(Number::from)),
        (&OPEN_FDS, |own| own.open_fds.map(Number::from)),
        (&MAX_FDS, |own| own.max_fds.map(Number::from)),
        (&START_TIME, |own| own.started.map(Number::from)),
    ];
    page.columns(&columns, &[(Labels::default(), own)]);
}

#[expect(clippy::cast_precision_loss, reason = "ticks since boot are far below 2^53")]
fn seconds(ticks: u64) -> f64 {
    ticks as f64 / clock_ticks_per_second() as f64
}

/// Returns a field of `/proc/PID/statm`, converted from pages to bytes.
fn pages(statm: &str, field: usize) -> Option<u64> {
    let pages: u64 = statm.split_ascii_whitespace().nth(field)?.parse().ok()?;
    pages.checked_mul(page_size() as u64)
}

/// Returns the boot time in seconds since the Unix epoch (`btime` of `/proc/stat`).
fn boot_time(text: &str) -> Option<f64> {
    text.lines().find_map(|line| line.strip_prefix("btime ")?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_files_are_understood() {
        assert_eq!(pages("100 20 5 1 0 30 0\n", 1), Some(20 * page_size() as u64));
        assert_eq!(pages("", 1), None);
        assert_eq!(boot_time("cpu 1 2\nbtime 1700000000\n"), Some(1_700_000_000.0));
    }

    #[test]
    fn this_process_is_known() {
        let own = Own::read();
        assert!(
            own.resident_bytes > Some(0)
                && own.open_fds > Some(0)
                && own.max_fds >= own.open_fds
                && own.started > Some(0.0)
        );
    }
}
