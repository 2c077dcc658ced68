//! What processes use, from `/proc`.

use std::fs;
use std::time::Duration;

/// CPU time, memory and descriptors of some processes together.
#[derive(Debug, Clone, Copy, Default)]
pub struct Usage {
    /// CPU time of all their threads so far.
    pub cpu: Duration,
    /// Resident bytes, the fake driver's own mapping left out.
    pub rss: u64,
    /// Open descriptors.
    pub descriptors: usize,
}

impl Usage {
    /// Of these processes.
    #[must_use]
    pub fn of(pids: &[u32]) -> Self {
        let mut usage = Self::default();
        for pid in pids {
            usage.cpu += cpu(*pid);
            usage.rss += rss(*pid);
            usage.descriptors += fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, Iterator::count);
        }
        usage
    }

    /// Resident memory in MiB.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "one digit after the point is shown")]
    pub fn rss_mib(&self) -> f64 {
        self.rss as f64 / f64::from(1 << 20)
    }
}

/// Nanoseconds on a CPU, of every thread (`/proc/PID/task/TID/schedstat`): finer than the ticks of `stat`.
fn cpu(pid: u32) -> Duration {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let nanoseconds = threads.filter_map(|thread| {
        let text = fs::read_to_string(thread.path().join("schedstat")).ok()?;
        text.split_whitespace().next()?.parse::<u64>().ok()
    });
    Duration::from_nanos(nanoseconds.sum())
}

/// Sums `Rss` of every mapping but the fake driver's, which no real node has.
fn rss(pid: u32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps")).unwrap_or_default();
    let mut ours = true;
    let mut kib = 0;
    for line in text.lines() {
        if let Some(size) = line.strip_prefix("Rss:") {
            let size = size.trim().trim_end_matches(" kB").parse::<u64>().unwrap_or_default();
            kib += if ours { size } else { 0 };
        } else if line.split(' ').next().is_some_and(|range| range.contains('-')) {
            ours = !line.contains("fake_nvml") && !line.contains("libnvidia-ml.so.1");
        }
    }
    kib * 1024
}
