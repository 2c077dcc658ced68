//! The job of a hook, and the GPUs of this node in Slurm's order.

#![expect(clippy::disallowed_methods, reason = "reads the variables that slurmd sets, and a saved map")]

use std::env;
use std::fs;
use std::path::Path;
use std::time::{Duration, SystemTime};

use bailiff_proc::Proc;
use bailiff_snapshot::ProcessKey;
use bailiff_snapshot::slurm::{self, JobId};
use rustix::system::uname;
use serde::{Deserialize, Serialize};

use super::programs;
use super::state::write;
use crate::exit::Failure;

/// Maximum length of a node's name.
const MAX_NODE_NAME: usize = 255;

/// The job that slurmd names in the environment of a hook.
#[derive(Debug, Clone)]
pub(super) struct Job {
    pub(super) id: JobId,
    pub(super) sluid: Option<JobId>,
    pub(super) uid: u32,
    pub(super) user: Option<String>,
    pub(super) account: Option<String>,
    /// Positions of the allocated GPUs in gres.conf; `None` if the list cannot be parsed.
    pub(super) gpus: Option<Vec<usize>>,
}

impl Job {
    /// Reads the variables that slurmd sets.
    pub(super) fn from_environment() -> Result<Self, Failure> {
        let required = |name| variable(name).ok_or_else(|| not_a_hook(name));
        let parse =
            |text: String| text.parse().map_err(|error| Failure::usage(format!("SLURM_JOB_ID: {error}")));
        let uid = required("SLURM_JOB_UID")?;
        let uid = uid.parse().map_err(|_| Failure::usage(format!("SLURM_JOB_UID: {uid:?} is not a uid")))?;
        Ok(Self {
            id: required("SLURM_JOB_ID").and_then(parse)?,
            sluid: variable("SLURM_JOB_SLUID").and_then(|text| text.parse().ok()),
            uid,
            user: variable("SLURM_JOB_USER"),
            account: variable("SLURM_JOB_ACCOUNT"),
            gpus: variable("SLURM_JOB_GPUS").map_or(Some(Vec::new()), |list| slurm::positions(&list)),
        })
    }

    /// Returns whether an id in a cgroup path or an environment names this job.
    pub(super) fn is_named(&self, id: &str) -> bool {
        self.id.as_ref() == id || self.sluid.as_ref().is_some_and(|sluid| sluid.as_ref() == id)
    }
}

/// Returns a variable of the environment, unless it is empty.
fn variable(name: &str) -> Option<String> {
    env::var(name).ok().filter(|value| !value.is_empty())
}

fn not_a_hook(name: &str) -> Failure {
    Failure::usage(format!(
        "{name} is not set: slurmd runs this command as a hook (see --help to try it by hand)"
    ))
}

/// Returns whether slurmd runs this command.
pub(super) fn by_slurmd() -> bool {
    variable("SLURMD_NODENAME").is_some()
}

/// Returns Slurm's name of this node.
pub(super) fn node_name() -> Result<String, Failure> {
    let name = variable("SLURMD_NODENAME").unwrap_or_else(host_name);
    let is_allowed = |letter: u8| letter.is_ascii_alphanumeric() || matches!(letter, b'.' | b'_' | b'-');
    let is_valid = !name.is_empty() && name.len() <= MAX_NODE_NAME && !name.starts_with('-');
    if is_valid && name.bytes().all(is_allowed) {
        Ok(name)
    } else {
        Err(Failure::usage(format!("SLURMD_NODENAME: {name:?} is not the name of a node")))
    }
}

/// Returns the first label of the host's name, which is Slurm's name of the node by default.
fn host_name() -> String {
    let name = uname().nodename().to_string_lossy().into_owned();
    name.split('.').next().unwrap_or_default().to_owned()
}

/// Returns when gres.conf was last changed; `None` if it is not beside slurm.conf.
fn gres_changed() -> Option<SystemTime> {
    let conf = programs::conf().unwrap_or_else(|| "/etc/slurm/slurm.conf".to_owned());
    fs::metadata(Path::new(&conf).with_file_name("gres.conf")).ok()?.modified().ok()
}

/// The GPUs of the node in Slurm's order, saved for as long as the same slurmd runs. With `AutoDetect=nvml`, asking
/// again could hang with the driver.
#[derive(Debug, Serialize, Deserialize)]
struct SavedMap {
    slurmd: ProcessKey,
    /// When gres.conf was last changed, because `scontrol reconfigure` reads it again.
    gres: Option<SystemTime>,
    minors: Vec<u32>,
}

/// Returns the minor numbers of this node's GPUs in Slurm's order, from `slurmd -G`.
pub(super) fn gpu_map(state_dir: &Path, node: &str, deadline: Duration) -> Result<Vec<u32>, String> {
    let path = state_dir.join("gpus.json");
    let parent = Proc::own().and_then(|proc| proc.stat(std::os::unix::process::parent_id()));
    let slurmd = parent.ok().filter(|parent| parent.comm == "slurmd").map(|parent| parent.key);
    let saved = fs::read(&path).ok().and_then(|text| serde_json::from_slice::<SavedMap>(&text).ok());
    let gres = gres_changed();
    if let Some(saved) = saved.filter(|saved| Some(saved.slurmd) == slurmd && saved.gres == gres) {
        return Ok(saved.minors);
    }
    let mut arguments = vec!["-G"];
    if node != host_name() {
        arguments.extend(["-N", node]);
    }
    let text = programs::output("slurmd", &arguments, deadline)?;
    let minors = slurm::minors_of_gres(&text)
        .ok_or("slurmd -G names no device files /dev/nvidiaN (MIG, or gres.conf without File=)")?;
    if let Some(slurmd) = slurmd {
        // Only a cache: the next hook asks again.
        let _ = write(&path, &SavedMap { slurmd, gres, minors: minors.clone() });
    }
    Ok(minors)
}
