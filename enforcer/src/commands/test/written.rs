//! The fields of a rule test file as written; [`super::script`] validates them.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::Deserialize;
use serde_saphyr::Spanned;

/// A text with its place in the file.
pub(super) type Text = Spanned<String>;

/// The file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct File {
    /// Path of the rules, relative to this file.
    pub(super) rules: Option<PathBuf>,
    /// Sampling interval: 5s.
    pub(super) interval: Option<Text>,
    /// Start of the tests: 2026-01-01T00:00:00Z.
    pub(super) start: Option<Text>,
    /// The tests.
    pub(super) tests: Vec<Test>,
}

/// One test.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Test {
    /// Name of the test.
    pub(super) name: String,
    /// Other rules than those of the file.
    pub(super) rules: Option<PathBuf>,
    /// Another interval than that of the file.
    pub(super) interval: Option<Text>,
    /// GPUs; by default GPU 0 with 80GiB.
    pub(super) gpus: Option<Vec<Gpu>>,
    /// Processes.
    #[serde(default)]
    pub(super) targets: Vec<Process>,
    /// Held leases; by default there is no pool; with an empty list all its GPUs are idle.
    pub(super) leases: Option<Vec<Lease>>,
    /// 1 if there is a snapshot; `_` if an interval is missed.
    pub(super) intervals: Option<Text>,
    /// By name (nvml, proc, redis): 1 if the source answers, 0 if it does not.
    #[serde(default)]
    pub(super) sources: BTreeMap<String, Text>,
    /// Expected steps.
    #[serde(default)]
    pub(super) expect: Vec<Expect>,
    /// Steps that must not happen.
    #[serde(default)]
    pub(super) never: Vec<Never>,
}

/// A GPU.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Gpu {
    /// Index, such as `0`.
    #[serde(rename = "gpu")]
    pub(super) index: String,
    /// UUID; by default `GPU-0` and so on.
    pub(super) uuid: Option<String>,
    /// Total memory: 80GiB.
    pub(super) memory: Option<Text>,
    /// Whether MIG is on.
    #[serde(default)]
    pub(super) mig: bool,
    /// Values that change.
    #[serde(default)]
    pub(super) series: GpuSeries,
}

/// Values of a GPU that change.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct GpuSeries {
    /// Utilization of the device, in percent.
    pub(super) gpu_util: Option<Text>,
    /// Memory in use; by default what processes hold and what is unaccounted.
    pub(super) vram_used: Option<Text>,
    /// Unaccounted memory.
    pub(super) vram_unaccounted: Option<Text>,
    /// Unreleased memory.
    pub(super) vram_unreleased: Option<Text>,
    /// Number of processes with the device open that are not listed.
    pub(super) unlisted_processes: Option<Text>,
    /// 1 if the GPU answers; `_` if it does not.
    pub(super) answers: Option<Text>,
}

/// A process.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Process {
    /// Pid.
    #[serde(rename = "process")]
    pub(super) pid: u32,
    /// Name; by default python3.
    pub(super) comm: Option<String>,
    /// Owner; by default user.
    pub(super) user: Option<String>,
    /// Uid of the owner; by default 1000; `_` if unknown.
    pub(super) uid: Option<Text>,
    /// Groups of the owner.
    pub(super) groups: Option<Vec<String>>,
    /// Path of its program.
    pub(super) exe: Option<String>,
    /// Command line.
    pub(super) cmdline: Option<String>,
    /// Path of its cgroup.
    pub(super) cgroup: Option<String>,
    /// Workload, such as `slurm:77`; by default its container, job, pod or unit, else its own process tree.
    pub(super) workload: Option<String>,
    /// Container.
    pub(super) container: Option<String>,
    /// Pod.
    pub(super) pod: Option<String>,
    /// Kubernetes namespace of `pod`.
    pub(super) namespace: Option<Text>,
    /// Slurm job.
    pub(super) slurm_job: Option<String>,
    /// Pid of its parent; by default 1.
    pub(super) parent: Option<u32>,
    /// Indexes of its GPUs; by default GPU 0. A process without GPUs belongs to a workload with some.
    pub(super) gpus: Option<Vec<String>>,
    /// Memory on each GPU: 1GiB.
    pub(super) vram: Option<Text>,
    /// Type of context as in nvidia-smi: C, G, C+G, M+C.
    pub(super) context: Option<String>,
    /// `mps_server`.
    pub(super) role: Option<String>,
    /// Limit of a shared quota of its own, on each of its GPUs: 4GiB.
    pub(super) quota: Option<Text>,
    /// Lease in its environment.
    pub(super) lease: Option<String>,
    /// Age when it is first seen; by default 1d.
    pub(super) age: Option<Text>,
    /// Time when it is first seen.
    pub(super) from: Option<Text>,
    /// Time from which it no longer exists.
    pub(super) until: Option<Text>,
    /// Values that change.
    #[serde(default)]
    pub(super) series: ProcessSeries,
}

/// A lease.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Lease {
    /// Name.
    #[serde(rename = "lease")]
    pub(super) name: String,
    /// Indexes of its GPUs; by default GPU 0.
    pub(super) gpus: Option<Vec<String>>,
    /// User who holds it.
    pub(super) user: Option<String>,
    /// Uid of that user; by default 1000.
    pub(super) uid: Option<u32>,
    /// Pid of the holder, if it is one of the targets; by default the holder has no GPU memory.
    pub(super) holder: Option<u32>,
    /// Priority; by default 0.
    pub(super) priority: Option<i32>,
    /// Age when it is first seen; by default 1d.
    pub(super) age: Option<Text>,
    /// Time when it is first seen.
    pub(super) from: Option<Text>,
    /// Time from which it no longer exists.
    pub(super) until: Option<Text>,
    /// Values that change.
    #[serde(default)]
    pub(super) series: LeaseSeries,
}

/// Values of a lease that change.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct LeaseSeries {
    /// Whether its holder lives, `true` or `false`: true.
    pub(super) holder_alive: Option<Text>,
    /// Time since its holder last renewed it.
    pub(super) heartbeat_age: Option<Text>,
}

/// What changes in a process. What is not given is unknown.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct ProcessSeries {
    /// The busiest engine, in whole percents.
    pub(super) gpu_util: Option<Text>,
    /// CPU, in percent of a core. A sample in which it is unreadable leaves two windows unknown, because a window has
    /// two ends.
    pub(super) cpu_util: Option<Text>,
    /// Requests that its quota refuses.
    pub(super) quota_denied: Option<Text>,
    /// What the control daemon says of a server of MPS.
    pub(super) mps_status: Option<Text>,
    /// Bytes a second.
    pub(super) io_rate: Option<Text>,
    /// Memory on each of its GPUs, in place of `vram`.
    pub(super) vram: Option<Text>,
    /// What it is doing: sleeping.
    pub(super) state: Option<Text>,
    /// `true` or `false`.
    pub(super) orphaned: Option<Text>,
}

/// Something that happens.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Expect {
    /// When: a time since sample 0, or `{sample: 240}`.
    pub(super) at: Spanned<When>,
    /// By which rule.
    pub(super) rule: Text,
    /// What.
    pub(super) step: Text,
    /// The target: a pid, or the name of a target as in `explain`, or a part of it such as `slurm:77`, `gpu:0`.
    pub(super) target: Option<Text>,
    /// With `step: withheld`: by what.
    pub(super) hold: Option<Text>,
}

/// A moment.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(untagged)]
pub(super) enum When {
    /// Since sample 0.
    Time(String),
    /// A sample, counted from 0.
    Sample(Sample),
}

/// A sample, counted from 0.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Sample {
    /// Its number.
    pub(super) sample: usize,
}

/// Something that does not happen.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Never {
    /// By which rule; without a word by none.
    pub(super) rule: Option<Text>,
    /// What; without a word nothing.
    pub(super) step: Option<Text>,
    /// The target; if not given, any.
    pub(super) target: Option<Text>,
}
