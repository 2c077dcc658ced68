//! Processes with GPU memory: what a snapshot knows of each, and of its memory on each GPU.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::{Facts, Kinds, ProcessId, State, Utilization};

/// One process on one GPU.
#[derive(Debug, Clone, PartialEq)]
pub struct Holder {
    /// Identity of the process.
    pub process: ProcessId,
    /// Whether the driver may mean an earlier process with this pid, so that nothing is known of this one's use of the GPU.
    pub reused_pid: bool,
    /// Kinds of context on the GPU.
    pub kinds: Kinds,
    /// Bytes held; `None` if the driver does not report it.
    pub memory: Option<u64>,
    /// Largest number of bytes ever held; `None` unless accounting mode is on.
    pub peak: Option<u64>,
    /// How long every sample has listed the process; 0 in the first.
    pub listed: Duration,
    /// Utilization of the GPU by the process in the last window.
    pub utilization: Utilization,
    /// Time observed idle since last observed busy. Only windows observed as idle are counted.
    pub idle: Duration,
    /// Observed utilization (largest sample of each window) over time, in seconds of a fully busy GPU.
    pub busy_seconds: f64,
    /// Memory held, integrated over time, in byte-seconds.
    pub byte_seconds: f64,
    /// Number of lines of the kernel log about Xid errors that it caused on the GPU, by Xid.
    pub xids: BTreeMap<u64, u64>,
}

/// A process that holds GPU memory.
#[derive(Debug, Clone, PartialEq)]
pub struct Process {
    /// State of the process.
    pub state: State,
    /// Number of consecutive samples in this state.
    pub samples: u32,
    /// Number of consecutive windows in which its whole workload did nothing; 0 unless it is orphaned.
    pub still: u32,
    /// Facts from `/proc`; `None` if `/proc` does not show the process.
    pub facts: Option<Facts>,
}

impl Holder {
    pub(crate) fn carry_on(&mut self, before: &Self, window: Duration) {
        let seconds = window.as_secs_f64();
        self.listed = before.listed + window;
        self.busy_seconds = before.busy_seconds;
        if let Some(percent) = self.utilization.percent() {
            self.busy_seconds += f64::from(percent) / 100.0 * seconds;
        }
        self.byte_seconds = before.byte_seconds;
        if let (Some(then), Some(now)) = (before.memory, self.memory) {
            self.byte_seconds += mean(then, now) * seconds;
        }
        self.idle = match self.utilization.idle() {
            Some(true) => before.idle + window,
            Some(false) => Duration::ZERO,
            None => before.idle,
        };
    }
}

#[expect(clippy::cast_precision_loss, reason = "bytes of VRAM are far below 2^53")]
fn mean(then: u64, now: u64) -> f64 {
    f64::midpoint(then as f64, now as f64)
}
