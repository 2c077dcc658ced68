//! Gaps: data that a source should have reported and did not. Gaps are counted and never filled in.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

crate::label_values! {
/// Kind of gap.
pub enum Gap {
    /// A GPU's process list failed, kept growing while it was read, or has entries of an unknown size.
    ProcessList = "process_list",
    /// The driver listed a pid that cannot exist (above `pid_max`).
    ImpossiblePid = "impossible_pid",
    /// The memory of a GPU could not be read (errors other than "not supported").
    Memory = "memory",
    /// Utilization samples of a GPU could not be read (errors other than "not supported").
    Utilization = "utilization",
    /// A utilization sample above 100 %.
    UtilizationAbove100 = "utilization_above_100",
    /// A utilization sample of a pid that is not in the process list.
    UtilizationUnlisted = "utilization_unlisted",
    /// A driver value that cannot be true, such as a temperature above 200 °C or more memory than the GPU has.
    Implausible = "implausible",
    /// Power, temperature, clocks or energy could not be read (errors other than "not supported").
    Telemetry = "telemetry",
    /// A process exited between two reads of its files.
    Vanished = "vanished",
    /// A file in `/proc` could not be parsed.
    Malformed = "malformed",
    /// A file in `/proc` could not be read for another reason.
    Unreadable = "unreadable",
    /// A process was not read in time, which its owner can cause. Values about it and its workload are unknown.
    Unread = "unread",
    /// The driver has listed a pid since before the start of the process that has it now, and may mean one that has exited.
    /// Values about the process on that GPU are unknown.
    ReusedPid = "reused_pid",
    /// A permission was missing: `CAP_SYS_PTRACE` or `CAP_DAC_READ_SEARCH`, which are needed for I/O bytes, open
    /// device files and users' quota directories.
    NotPermitted = "not_permitted",
    /// The driver's Xid events of a GPU could not be received.
    Xid = "xid",
    /// The kernel log could not be read, or records of it were lost (`--kernel-log`).
    KernelLog = "kernel_log",
    /// The scan of open device files took too long.
    DeviceProcesses = "device_processes",
    /// The scan of all processes was incomplete: there were more than 32,768, or it took too long. Values about
    /// workloads that depend on all processes are unknown.
    Processes = "processes",
    /// A holder exited, and it cannot be determined whether its memory was released.
    Unreleased = "unreleased",
    /// Some quota files or their processes were not read, because there were too many or their names are invalid.
    Quotas = "quotas",
    /// Some MPS data was not read: a daemon's response or log was late or too long, or there are too many daemons.
    Mps = "mps",
    /// A record of a Slurm job was not read, because it is invalid, is not root's, or there are too many.
    Slurm = "slurm",
    /// The kubelet's list of allocatable devices, or the names of containers, could not be read (`--pod-resources`).
    PodResources = "pod_resources",
}
}

/// Number of gaps of each kind.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gaps(BTreeMap<Gap, u64>);

impl Gaps {
    /// Counts one gap.
    pub fn count(&mut self, gap: Gap) {
        *self.0.entry(gap).or_default() += 1;
    }

    /// Adds the counts of another instance.
    pub fn add(&mut self, other: &Self) {
        for (gap, count) in &other.0 {
            *self.0.entry(*gap).or_default() += count;
        }
    }

    /// Returns the number of gaps of this kind.
    pub fn of(&self, gap: Gap) -> u64 {
        self.0.get(&gap).copied().unwrap_or_default()
    }
}
