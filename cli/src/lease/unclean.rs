//! Which processes compute on a GPU, as the exporter sees it: GPUs that are in use without a lease are taken last, and none is
//! freed.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use bailiff_lease::audit::Gpu;
use bailiff_snapshot::wire::{self, Snapshot};

use crate::stream;

/// Nobody waits longer for advice.
const PATIENCE: Duration = Duration::from_millis(20);

/// What is known of the processes on GPUs.
pub(crate) enum Users {
    /// No exporter is installed: its stream is not there.
    None,
    /// It does not answer, and why.
    Unknown(String),
    /// Its newest snapshot.
    Seen(Box<Snapshot>),
}

impl Users {
    pub(crate) fn read(stream: &Path, patience: Duration) -> Self {
        if !stream.exists() {
            return Self::None;
        }
        match stream::newest(stream, patience) {
            Ok(snapshot) => Self::Seen(Box::new(snapshot)),
            Err(error) => {
                Self::Unknown(format!("the exporter does not say which processes are on it ({error})"))
            }
        }
    }

    /// Those on a GPU; none where no exporter is installed.
    ///
    /// # Errors
    /// Why that is not known.
    pub(crate) fn of(&self, gpu: &Gpu) -> Result<Vec<u32>, String> {
        let snapshot = match self {
            Self::None => return Ok(Vec::new()),
            Self::Unknown(why) => return Err(why.clone()),
            Self::Seen(snapshot) => snapshot,
        };
        let seen = find(snapshot, gpu).ok_or("the exporter does not see the GPU")?;
        let pids: Vec<u32> = computing(seen).collect();
        if pids.is_empty() && seen.listed.is_none_or(|listed| listed > seen.holders.len() as u64) {
            return Err("the driver does not say which processes are on it".to_owned());
        }
        Ok(pids)
    }
}

/// Those of these that are in use, with the pids of who computes there; empty where the exporter does not tell in time.
pub(crate) fn used<'a>(stream: &Path, gpus: impl Iterator<Item = &'a Gpu>) -> BTreeMap<String, Vec<u32>> {
    let Users::Seen(snapshot) = Users::read(stream, PATIENCE) else { return BTreeMap::new() };
    let pids = |gpu: &Gpu| find(&snapshot, gpu).map(|seen| computing(seen).collect()).unwrap_or_default();
    let all = gpus.map(|gpu| (gpu.id.clone(), pids(gpu)));
    all.filter(|(_, pids): &(_, Vec<u32>)| !pids.is_empty()).collect()
}

fn find<'a>(snapshot: &'a Snapshot, gpu: &Gpu) -> Option<&'a wire::Gpu> {
    snapshot.gpus.iter().find(|seen| match (&gpu.uuid, &seen.uuid) {
        (Some(ours), Some(theirs)) => ours == theirs,
        _ => seen.index == gpu.id,
    })
}

fn computing(gpu: &wire::Gpu) -> impl Iterator<Item = u32> {
    gpu.holders.iter().filter(|holder| holder.kinds.contains('C')).map(|holder| holder.pid)
}
