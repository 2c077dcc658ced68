//! GPUs on which somebody computes who leases none of them, as the exporter sees it: rather others are taken.

#![expect(clippy::disallowed_methods, reason = "asks the exporter, with a deadline")]

use std::collections::BTreeMap;
use std::io::Read;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use bailiff_lease::audit::{Audit, Gpu};
use bailiff_snapshot::wire::{self, Snapshot};

/// Nobody waits longer for advice.
const PATIENCE: Duration = Duration::from_millis(20);

/// The pool's idle GPUs that are in use all the same, with the pids; empty where the exporter does not tell in time.
pub(super) fn unclean(stream: &Path, audit: &Audit) -> BTreeMap<String, Vec<u32>> {
    used(stream, audit.gpus.iter().filter(|gpu| gpu.idle > 0))
}

/// Those that are in use, with the pids of who computes there; empty where the exporter does not tell in time.
pub(crate) fn used<'a>(stream: &Path, gpus: impl Iterator<Item = &'a Gpu>) -> BTreeMap<String, Vec<u32>> {
    let Some(snapshot) = newest(stream) else { return BTreeMap::new() };
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

/// The newest snapshot; the exporter sends it at once to whoever connects.
fn newest(stream: &Path) -> Option<Snapshot> {
    let until = Instant::now() + PATIENCE;
    let mut stream = UnixStream::connect(stream).ok()?;
    let (mut line, mut part) = (Vec::new(), vec![0; 1 << 16]);
    while line.last() != Some(&b'\n') {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return None;
        }
        stream.set_read_timeout(Some(left)).ok()?;
        let read = stream.read(&mut part).ok().filter(|read| *read > 0)?;
        line.extend_from_slice(part.get(..read)?);
        // What comes after is newer, and is not waited for.
        if let Some(end) = line.iter().position(|byte| *byte == b'\n') {
            line.truncate(end + 1);
        }
    }
    wire::parse(&line).ok()
}
