//! What Slurm's node daemon tells its hooks: ids of jobs, and GPUs as positions in `gres.conf`; and what the hooks save.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use serde_with_macros::skip_serializing_none;

use crate::{Place, Truth};

/// Maximum number of positions in a list. Longer lists are mistakes.
const MOST_POSITIONS: usize = 1024;

/// Id of a Slurm job: a decimal number, or a SLUID (Slurm 26.05 and newer).
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String")]
pub struct JobId(String);

/// A text that is not the id of a Slurm job.
#[derive(Debug, thiserror::Error)]
#[error("{0:?} is not the id of a Slurm job")]
pub struct JobIdError(String);

impl FromStr for JobId {
    type Err = JobIdError;

    fn from_str(text: &str) -> Result<Self, JobIdError> {
        let is_number = text.len() <= 10 && text.parse::<u32>().is_ok_and(|id| id > 0);
        let is_plain = text.bytes().next().is_some_and(|first| first.is_ascii_digit() && first != b'0');
        if (is_number && is_plain) || crate::place::is_sluid(text) {
            Ok(Self(text.to_owned()))
        } else {
            Err(JobIdError(text.chars().take(64).collect()))
        }
    }
}

impl TryFrom<String> for JobId {
    type Error = JobIdError;

    fn try_from(text: String) -> Result<Self, JobIdError> {
        text.parse()
    }
}

impl fmt::Display for JobId {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

impl AsRef<str> for JobId {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

/// GPUs allocated to a job, as the prolog saved them: `/run/bailiff/slurm/jobs/ID.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobRecord {
    /// Boot in which the prolog ran.
    pub boot_id: String,
    /// Job id.
    pub job: JobId,
    /// The job's SLUID, if Slurm has one.
    pub sluid: Option<JobId>,
    /// Uid of the job's owner.
    pub uid: u32,
    /// Name of the job's owner.
    pub user: Option<String>,
    /// The job's account.
    #[serde(default)]
    pub account: Option<String>,
    /// Slurm's name of the node.
    pub node: String,
    /// Allocated GPUs; `None` if they are unknown.
    pub gpus: Option<Vec<AllocatedGpu>>,
    /// When the prolog ran, in milliseconds since boot.
    pub boot_ms: u64,
}

impl JobRecord {
    /// Returns whether an id in a cgroup path names this job.
    pub fn is_named(&self, id: &str) -> bool {
        self.job.as_ref() == id || self.sluid.as_ref().is_some_and(|sluid| sluid.as_ref() == id)
    }

    /// Returns whether a place is in the job's cgroup.
    pub fn contains(&self, place: &Place) -> bool {
        place.slurm_job.as_deref().is_some_and(|id| self.is_named(id)) && is_of_node(place, &self.node)
    }

    /// Returns whether a process at this place belongs to the job. Outside cgroups of jobs, a process of the job's owner may
    /// belong to it, and so may one in a container, which a daemon may have started for the job as another user.
    pub fn owns(&self, place: &Place, uid: Option<u32>) -> Truth {
        // Below it, users choose names.
        let in_session = || place.confinement().ends_with(&format!("/user-{}.slice", self.uid));
        match &place.slurm_job {
            // Without its SLUID, a cgroup that is named by one may be that of the job.
            Some(id) if self.sluid.is_none() && !id.bytes().all(|byte| byte.is_ascii_digit()) => {
                Truth::Unknown
            }
            Some(_) => self.contains(place).into(),
            None if uid.is_none_or(|uid| uid == self.uid) || place.is_contained() || in_session() => {
                Truth::Unknown
            }
            None => Truth::False,
        }
    }
}

/// Returns whether the job's cgroup at this place is of this node. If several slurmd run on a host, the cgroups of each
/// have its name of the node, and ids of jobs of different clusters may be the same.
pub fn is_of_node(place: &Place, node: &str) -> bool {
    let of_node = |part: &str| {
        let named = part.strip_prefix("slurm_").or_else(|| part.strip_suffix("_slurmstepd.scope"));
        named.is_none_or(|named| named == node)
    };
    place.boundary.iter().all(|path| path.split('/').all(of_node))
}

/// A GPU in a [`JobRecord`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AllocatedGpu {
    /// Position in `gres.conf`, as in `SLURM_JOB_GPUS`.
    pub position: usize,
    /// Minor number: N of `/dev/nvidiaN`.
    pub minor: u32,
    /// UUID; `None` if the driver did not report it.
    pub uuid: Option<String>,
}

/// GPUs that Slurm manages on the node, as a hook saved them: `/run/bailiff/slurm/gres.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ManagedGpus {
    /// Boot in which the hook ran.
    pub boot_id: String,
    /// Minor number of each GPU, in the order of `gres.conf`.
    pub minors: Vec<u32>,
}

/// What the hooks left in their directory.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlurmSample {
    /// Records of jobs, also of earlier boots.
    pub jobs: Vec<JobRecord>,
    /// Number of runs of the hooks.
    pub runs: Vec<HookRuns>,
    /// GPUs in `gres.conf`, also of an earlier boot; `None` if they are unknown.
    pub managed: Option<ManagedGpus>,
    /// Whether there was a record that could not be read.
    pub unread: bool,
}

/// Number of runs of a hook with one result.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct HookRuns {
    /// `prolog`, `epilog` or `health`.
    pub hook: String,
    /// Result, such as `clean`.
    pub result: String,
    /// Number of runs since boot.
    pub count: u64,
}

/// Slurm's part of a snapshot.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct SlurmNode {
    /// Records of the jobs of this boot.
    #[serde(default)]
    pub jobs: Vec<JobRecord>,
    /// Each allocated GPU of each job.
    pub allocations: Vec<Allocation>,
    /// Memory that jobs hold on GPUs that they were not given, and processes outside Slurm on its GPUs.
    pub unallocated: Vec<Unallocated>,
    /// Number of runs of the hooks.
    pub runs: Vec<HookRuns>,
    /// Whether there was a record that could not be read.
    #[serde(skip)]
    pub unread: bool,
}

crate::label_values! {
/// Whether a job uses an allocated GPU.
pub enum AllocationState {
    /// A process of the job was observed busy in the last window.
    InUse = "in_use",
    /// The job has used the GPU. Now it has no process there, or all of them were observed idle.
    Idle = "idle",
    /// No process of the job was on the GPU in any sample since the prolog.
    NeverUsed = "never_used",
    /// Neither was observed.
    Unknown = "unknown",
}
}

/// A GPU that is allocated to a job.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Allocation {
    /// Job id.
    pub job: JobId,
    /// Uid of the job's owner.
    pub uid: u32,
    /// Name of the job's owner.
    pub user: Option<String>,
    /// The job's account.
    pub account: Option<String>,
    /// The driver's index of the GPU.
    pub gpu: String,
    /// UUID of the GPU.
    pub gpu_uuid: Option<String>,
    /// Whether the job uses the GPU.
    pub state: AllocationState,
    /// Time for which it has been idle or unused without interruption, in milliseconds; `None` in other states.
    pub unused_ms: Option<u64>,
    /// Whether a process of the job was ever observed on the GPU.
    pub used: bool,
    /// Whether every sample since the prolog showed the GPU's processes.
    pub complete: bool,
}

/// Memory that a job holds on a GPU that it was not given, or that processes outside Slurm hold on a GPU of Slurm.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unallocated {
    /// Job id; `None` for processes outside Slurm.
    pub job: Option<JobId>,
    /// The driver's index of the GPU.
    pub gpu: String,
    /// UUID of the GPU.
    pub gpu_uuid: Option<String>,
    /// Bytes.
    pub bytes: u64,
}

/// Parses the output of `slurmd -G`: the minor number of each GPU, in Slurm's order. Returns `None` if a GPU has no
/// device file `nvidiaN`, as with MIG, or without `File=` in `gres.conf`.
pub fn minors_of_gres(output: &str) -> Option<Vec<u32>> {
    let mut minors = Vec::new();
    for line in output.lines().filter(|line| line.contains("Gres Name=gpu ")) {
        let file = line.split_whitespace().find_map(|word| word.strip_prefix("File="))?;
        minors.extend(minors_of_files(file)?);
    }
    Some(minors).filter(|minors| !minors.is_empty())
}

/// Returns whether a program with this name, of root, is the one that supervises a step. Debian adds `-wlm`.
pub fn is_slurmstepd(name: &str) -> bool {
    matches!(name, "slurmstepd" | "slurmstepd-wlm")
}

/// Parses device files in Slurm's notation: `/dev/nvidia[0-3,6]`, `/dev/nvidia0,/dev/nvidia1`.
pub fn minors_of_files(files: &str) -> Option<Vec<u32>> {
    if let Some((before, list)) = files.strip_suffix(']').and_then(|files| files.split_once('[')) {
        let list = before.ends_with("/nvidia").then(|| positions(list))??;
        return list.into_iter().map(|number| u32::try_from(number).ok()).collect();
    }
    files.split(',').map(|file| file.rsplit_once("/nvidia")?.1.parse().ok()).collect()
}

/// Parses a list of numbers such as `0,2-3`.
pub fn positions(list: &str) -> Option<Vec<usize>> {
    let mut all = Vec::new();
    for part in list.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        if last < first || last - first >= MOST_POSITIONS || all.len() >= MOST_POSITIONS {
            return None;
        }
        all.extend(first..=last);
    }
    Some(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn job_ids() {
        for good in ["1", "4294967295", "s5K1KKYAYG5D00"] {
            assert_eq!(good.parse::<JobId>().unwrap().to_string(), good);
        }
        for bad in
            ["", "0", "07", "7_", "7_1", "-1", "+1", " 1", "1\n", "4294967296", "../1", "s5K1KKYAYG5D0"]
        {
            assert!(bad.parse::<JobId>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn job_of_another_slurmd_is_another_job() {
        let record = JobRecord {
            boot_id: String::new(),
            job: "7".parse().unwrap(),
            sluid: None,
            uid: 1000,
            user: None,
            account: None,
            node: "n1".to_owned(),
            gpus: None,
            boot_ms: 0,
        };
        for (path, expected) in [
            ("/slurm/uid_1000/job_7/step_0", true),
            ("/slurm_n1/uid_1000/job_7/step_0", true),
            ("/slurm_n11/uid_1000/job_7/step_0", false),
            ("/slurm_n1/uid_1000/job_77/step_0", false),
            ("/system.slice/slurmstepd.scope/job_7/step_0/user/task_0", true),
            ("/system.slice/n1_slurmstepd.scope/job_7/step_0/user/task_0", true),
            ("/system.slice/n2_slurmstepd.scope/job_7/step_0/user/task_0", false),
        ] {
            let place = Place::parse(&format!("0::{path}"));
            assert_eq!(record.contains(&place), expected, "{path}");
            assert_eq!(record.owns(&place, Some(1000)), expected.into(), "{path}");
        }
    }

    #[test]
    fn gpus_have_the_order_of_gres_conf() {
        let output = "\
slurmd: Gres Name=gpu Type=a100 Count=1 Index=3 ID=7696487 File=/dev/nvidia3 (null)
slurmd: Gres Name=gpu Type=a100 Count=1 Index=1 ID=7696487 File=/dev/nvidia1 Links=(null)
slurmd: Gres Name=gpu Type=h100 Count=2 Index=0 ID=7696487 File=/dev/nvidia[0,2] (null)
slurmd: Gres Name=nic Count=1 Index=0 ID=1 File=/dev/nic0 (null)
";
        assert_eq!(minors_of_gres(output), Some(vec![3, 1, 0, 2]));
        for unknown in [
            "",
            "slurmd: Gres Name=gpu Count=4 ID=7696487",
            "slurmd: Gres Name=gpu File=/dev/nvidia-caps/nvidia-cap12",
        ] {
            assert_eq!(minors_of_gres(unknown), None, "{unknown}");
        }
    }

    #[test]
    fn lists_of_positions() {
        let cases: [(&str, Option<&[usize]>); 7] = [
            ("0", Some(&[0])),
            ("0,2-4", Some(&[0, 2, 3, 4])),
            ("", None),
            ("3-1", None),
            ("0-99999", None),
            ("a", None),
            ("-1", None),
        ];
        for (text, expected) in cases {
            assert_eq!(positions(text).as_deref(), expected, "{text}");
        }
    }
}
