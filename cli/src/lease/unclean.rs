//! GPUs on which somebody computes who leases none of them, as the exporter sees it: rather others are taken.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use bailiff_lease::audit::Gpu;

use crate::stream;

/// Nobody waits longer for advice.
const PATIENCE: Duration = Duration::from_millis(20);

/// Those of these that are in use, with the pids of who computes there; empty where the exporter does not tell in time.
pub(crate) fn used<'a>(stream: &Path, gpus: impl Iterator<Item = &'a Gpu>) -> BTreeMap<String, Vec<u32>> {
    let Ok(snapshot) = stream::newest(stream, PATIENCE) else { return BTreeMap::new() };
    let mut unclean = BTreeMap::new();
    for gpu in gpus {
        let seen = snapshot.gpus.iter().find(|seen| match (&gpu.uuid, &seen.uuid) {
            (Some(ours), Some(theirs)) => ours == theirs,
            _ => seen.index == gpu.id,
        });
        let computing =
            seen.into_iter().flat_map(|seen| &seen.holders).filter(|holder| holder.kinds.contains('C'));
        let pids: Vec<u32> = computing.map(|holder| holder.pid).collect();
        if !pids.is_empty() {
            unclean.insert(gpu.id.clone(), pids);
        }
    }
    unclean
}
