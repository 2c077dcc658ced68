//! A file of rule tests as it is written, field for field; what it means is for [`super::script`] to find out.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::Deserialize;
use serde_saphyr::Spanned;

/// A text and its place in the file.
pub(super) type Text = Spanned<String>;

/// The whole file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct File {
    /// The rules, relative to this file.
    pub(super) rules: Option<PathBuf>,
    /// The interval: 5s.
    pub(super) interval: Option<Text>,
    /// When tests begin: 2026-01-01T00:00:00Z.
    pub(super) start: Option<Text>,
    /// The tests.
    pub(super) tests: Vec<Test>,
}

/// One test.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Test {
    /// What it shows.
    pub(super) name: String,
    /// Other rules than the file's.
    pub(super) rules: Option<PathBuf>,
    /// Another interval than the file's.
    pub(super) interval: Option<Text>,
    /// GPUs; without a word there is GPU 0 with 80GiB.
    pub(super) gpus: Option<Vec<Gpu>>,
    /// Processes.
    #[serde(default)]
    pub(super) targets: Vec<Process>,
    /// Leases that are held; without a word there is no pool, and with an empty list all its GPUs are idle.
    pub(super) leases: Option<Vec<Lease>>,
    /// 1 if there is a snapshot; `_` where an interval is missed.
    pub(super) intervals: Option<Text>,
    /// By name (nvml, proc, redis): 1 if it answers, 0 if it does not.
    #[serde(default)]
    pub(super) sources: BTreeMap<String, Text>,
    /// What happens.
    #[serde(default)]
    pub(super) expect: Vec<Expect>,
    /// What does not.
    #[serde(default)]
    pub(super) never: Vec<Never>,
}

/// A GPU.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Gpu {
    /// `0`.
    #[serde(rename = "gpu")]
    pub(super) index: String,
    /// `GPU-0` and so on.
    pub(super) uuid: Option<String>,
    /// All its memory: 80GiB.
    pub(super) memory: Option<Text>,
    /// MIG is on.
    #[serde(default)]
    pub(super) mig: bool,
    /// What changes.
    #[serde(default)]
    pub(super) series: GpuSeries,
}

/// What of a GPU changes.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct GpuSeries {
    /// Its own figure, in percent.
    pub(super) gpu_util: Option<Text>,
    /// Memory in use; without a word it is what processes hold and what is unaccounted.
    pub(super) vram_used: Option<Text>,
    /// Unaccounted memory.
    pub(super) vram_unaccounted: Option<Text>,
    /// What did not come back.
    pub(super) vram_unreleased: Option<Text>,
    /// How many have it open and are not listed.
    pub(super) unlisted_processes: Option<Text>,
    /// 1 if it answers; `_` where it does not.
    pub(super) answers: Option<Text>,
}

/// A process.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Process {
    /// Its pid.
    #[serde(rename = "process")]
    pub(super) pid: u32,
    /// Its name: python3.
    pub(super) comm: Option<String>,
    /// Its owner: user.
    pub(super) user: Option<String>,
    /// The owner's number: 1000; `_` where it is not known.
    pub(super) uid: Option<Text>,
    /// The owner's groups.
    pub(super) groups: Option<Vec<String>>,
    /// Its program.
    pub(super) exe: Option<String>,
    /// Its command line.
    pub(super) cmdline: Option<String>,
    /// Its cgroup's path.
    pub(super) cgroup: Option<String>,
    /// Its workload, as `slurm:77`; without a word its container, job, pod or unit, else its own tree.
    pub(super) workload: Option<String>,
    /// Container.
    pub(super) container: Option<String>,
    /// Pod.
    pub(super) pod: Option<String>,
    /// Kubernetes namespace of `pod`.
    pub(super) namespace: Option<Text>,
    /// Slurm job.
    pub(super) slurm_job: Option<String>,
    /// Its parent's pid: 1.
    pub(super) parent: Option<u32>,
    /// Indexes of GPUs that it holds: [0]. One that holds none belongs to a workload that does.
    pub(super) gpus: Option<Vec<String>>,
    /// What it holds on each: 1GiB.
    pub(super) vram: Option<Text>,
    /// As nvidia-smi writes it: C, G, C+G, M+C.
    pub(super) context: Option<String>,
    /// `mps_server`.
    pub(super) role: Option<String>,
    /// The limit of a shared quota that it has for itself, on each of its GPUs: 4GiB.
    pub(super) quota: Option<Text>,
    /// The lease that its environment names.
    pub(super) lease: Option<String>,
    /// How old it is when it is first seen: 1d.
    pub(super) age: Option<Text>,
    /// The time that it is first seen.
    pub(super) from: Option<Text>,
    /// The time from which on it is gone.
    pub(super) until: Option<Text>,
    /// What changes.
    #[serde(default)]
    pub(super) series: ProcessSeries,
}

/// A lease.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Lease {
    /// Its name.
    #[serde(rename = "lease")]
    pub(super) name: String,
    /// Indexes of its GPUs: [0].
    pub(super) gpus: Option<Vec<String>>,
    /// The user who holds it.
    pub(super) user: Option<String>,
    /// The same as a number: 1000.
    pub(super) uid: Option<u32>,
    /// The pid of one of the targets; if not given, the holder has no GPU memory.
    pub(super) holder: Option<u32>,
    /// 0.
    pub(super) priority: Option<i32>,
    /// How old it is when it is first seen: 1d.
    pub(super) age: Option<Text>,
    /// The time that it is first seen.
    pub(super) from: Option<Text>,
    /// The time from which on it is gone.
    pub(super) until: Option<Text>,
    /// What changes.
    #[serde(default)]
    pub(super) series: LeaseSeries,
}

/// What of a lease changes.
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
