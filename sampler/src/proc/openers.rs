#![expect(clippy::disallowed_methods, reason = "looking has a time limit")]
//! Who has `/dev/nvidiaN` open: also those that the driver lists nowhere, such as forked workers that
//! inherited the file. It reads every descriptor of the node, so it is done seldom.

use std::path::Path;
use std::time::{Duration, Instant};

use bailiff_snapshot::{Moment, Opener, Openers, stat};

use super::files::{Folder, Missing};
use crate::clock::now;

/// Who has device files open, as far as this process may look; none where that takes longer than `patience`, or the
/// `/proc` cannot be read.
#[must_use]
pub fn openers(procfs: &Path, patience: Duration) -> Option<Openers> {
    find(&Folder::open(procfs).ok()?, now(), Instant::now() + patience).ok()
}

/// Looks at every process that `root` shows; `at` is when. None where it takes longer than `until`: a part of
/// the answer would look like the whole.
pub(crate) fn find(root: &Folder, at: Moment, until: Instant) -> Result<Openers, Missing> {
    let mut openers = Openers { at, who: Vec::new(), unreadable: 0 };
    let ours = std::process::id();
    for pid in root.numbers()?.into_iter().filter(|pid| *pid != ours) {
        if Instant::now() >= until {
            return Err(Missing::Failed);
        }
        let Ok(folder) = root.folder(&pid.to_string()) else { continue };
        match minors(&folder) {
            Ok(minors) if minors.is_empty() => {}
            Ok(minors) => openers.who.extend(opener(&folder, pid, minors)),
            Err(Missing::Gone) => {}
            Err(Missing::Denied | Missing::Failed) => openers.unreadable += 1,
        }
    }
    Ok(openers)
}

fn opener(folder: &Folder, pid: u32, minors: Vec<u32>) -> Option<Opener> {
    let stat = stat::parse(folder.read("stat", &mut Vec::new()).ok()?)?;
    Some(Opener { pid, comm: stat.comm, uid: folder.owner().ok(), minors })
}

/// The minor numbers that a process has open. A leader that has exited has no descriptors of its own; they
/// show at the threads that live on.
fn minors(folder: &Folder) -> Result<Vec<u32>, Missing> {
    let mut minors = listed(&folder.folder("fd")?)?;
    if minors.is_empty() {
        let tasks = folder.folder("task")?;
        let threads = tasks.numbers()?;
        for thread in threads.iter().skip(1) {
            let Ok(descriptors) = tasks.folder(&format!("{thread}/fd")) else { continue };
            minors.extend(listed(&descriptors).unwrap_or_default());
            if !minors.is_empty() {
                break;
            }
        }
    }
    minors.sort_unstable();
    minors.dedup();
    Ok(minors)
}

fn listed(descriptors: &Folder) -> Result<Vec<u32>, Missing> {
    let names = descriptors.names()?;
    let links = names.iter().filter_map(|name| descriptors.link(name).ok());
    Ok(links.filter_map(|link| link.strip_prefix("/dev/nvidia")?.parse().ok()).collect())
}
