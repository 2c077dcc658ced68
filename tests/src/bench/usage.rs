//! Resource use of processes, from `/proc`.

use std::fs;
use std::ops::AddAssign;
use std::time::Duration;

/// CPU time, memory and descriptors of several processes together.
#[derive(Debug, Clone, Copy, Default)]
pub struct Usage {
    /// CPU time of all threads so far.
    pub cpu: Duration,
    /// Memory, without the fake driver's own mapping.
    pub memory: Memory,
    /// Open descriptors.
    pub descriptors: usize,
}

/// Bytes in memory.
#[derive(Debug, Clone, Copy, Default)]
pub struct Memory {
    /// Resident memory. A shared page counts for each process.
    pub rss: u64,
    /// Proportional share (`Pss` in `/proc/PID/smaps`). A shared page counts once.
    pub pss: u64,
}

impl Usage {
    /// Returns the resource use of these processes.
    pub fn of(pids: &[u32]) -> Self {
        let mut usage = Self::default();
        for pid in pids {
            usage.cpu += cpu(*pid);
            usage.memory += memory(*pid);
            usage.descriptors += fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, Iterator::count);
        }
        usage
    }
}

impl AddAssign for Memory {
    fn add_assign(&mut self, other: Self) {
        self.rss += other.rss;
        self.pss += other.pss;
    }
}

/// Converts bytes to MiB.
#[expect(clippy::cast_precision_loss, reason = "one digit after the point is shown")]
pub fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

/// Returns the CPU time of all threads in nanoseconds (`/proc/PID/task/TID/schedstat`), which is more
/// precise than the ticks in `stat`.
fn cpu(pid: u32) -> Duration {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let nanoseconds = threads.filter_map(|thread| {
        let text = fs::read_to_string(thread.path().join("schedstat")).ok()?;
        text.split_whitespace().next()?.parse::<u64>().ok()
    });
    Duration::from_nanos(nanoseconds.sum())
}

/// Sums all mappings except the fake driver's, which does not exist on a real node.
fn memory(pid: u32) -> Memory {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps")).unwrap_or_default();
    let mut counts_mapping = true;
    let mut memory = Memory::default();
    for line in text.lines() {
        let Some((name, size)) = line.split_once(':').filter(|(name, _)| !name.contains('-')) else {
            counts_mapping = !line.contains("fake_nvml") && !line.contains("libnvidia-ml.so.1");
            continue;
        };
        let sum = match name {
            "Rss" if counts_mapping => &mut memory.rss,
            "Pss" if counts_mapping => &mut memory.pss,
            _ => continue,
        };
        *sum += size.trim().trim_end_matches(" kB").parse::<u64>().unwrap_or_default() * 1024;
    }
    memory
}
