//! The processes that compute on a GPU, from the exporter. GPUs used without a lease are granted last, and never freed.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use bailiff_lease::audit::Gpu;
use bailiff_snapshot::wire::{self, Snapshot};

use crate::stream;

/// The timeout of the exporter: the data is only a hint for a request.
const HINT_TIMEOUT: Duration = Duration::from_millis(20);

/// The known processes on GPUs.
pub(crate) enum Users {
    /// No exporter runs: its socket does not exist.
    None,
    /// The exporter does not respond, and why.
    Unknown(String),
    /// The newest snapshot of the exporter.
    Known(Box<Snapshot>),
}

impl Users {
    /// Reads the newest snapshot.
    pub(crate) fn read(stream: &Path, timeout: Duration) -> Self {
        if !stream.exists() {
            return Self::None;
        }
        match stream::newest(stream, timeout) {
            Ok(snapshot) => Self::Known(Box::new(snapshot)),
            Err(error) => {
                Self::Unknown(format!("the exporter does not report which processes are on it ({error})"))
            }
        }
    }

    /// Returns the processes on a GPU; empty if no exporter is running.
    ///
    /// # Errors
    /// Why the processes are unknown. The messages are part of GPU.py's output.
    pub(crate) fn of(&self, gpu: &Gpu) -> Result<Vec<u32>, String> {
        let snapshot = match self {
            Self::None => return Ok(Vec::new()),
            Self::Unknown(why) => return Err(why.clone()),
            Self::Known(snapshot) => snapshot,
        };
        let found = find(snapshot, gpu).ok_or("the exporter does not list the GPU")?;
        let pids: Vec<u32> = computing(found).collect();
        if pids.is_empty() && found.listed.is_none_or(|listed| listed > found.holders.len() as u64) {
            return Err("the driver does not report which processes are on it".to_owned());
        }
        Ok(pids)
    }
}

/// Returns the used GPUs with the pids of their compute processes; empty if the exporter does not respond in time.
pub(crate) fn used<'a>(stream: &Path, gpus: impl Iterator<Item = &'a Gpu>) -> BTreeMap<String, Vec<u32>> {
    let Users::Known(snapshot) = Users::read(stream, HINT_TIMEOUT) else { return BTreeMap::new() };
    let pids = |gpu: &Gpu| find(&snapshot, gpu).map(|found| computing(found).collect()).unwrap_or_default();
    let all = gpus.map(|gpu| (gpu.id.clone(), pids(gpu)));
    all.filter(|(_, pids): &(_, Vec<u32>)| !pids.is_empty()).collect()
}

fn find<'a>(snapshot: &'a Snapshot, gpu: &Gpu) -> Option<&'a wire::Gpu> {
    snapshot.gpus.iter().find(|reported| match (&gpu.uuid, &reported.uuid) {
        (Some(pool_uuid), Some(uuid)) => pool_uuid == uuid,
        _ => reported.index == gpu.id,
    })
}

fn computing(gpu: &wire::Gpu) -> impl Iterator<Item = u32> {
    gpu.holders.iter().filter(|holder| holder.kinds.contains('C')).map(|holder| holder.pid)
}
