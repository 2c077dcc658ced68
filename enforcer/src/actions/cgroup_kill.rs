//! Kills a whole cgroup (`cgroup.kill`, Linux 5.14, cgroup v2 only): the last resort against processes that
//! fork faster than they are signalled.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use super::cgroup::{CGROUP2, Frozen, open, other_process, path, put};
use super::group::Group;
use super::inbox::Inbox;
use super::permit::Permit;

/// Kills the subject's cgroup if it contains only verified processes.
pub(super) fn kill(root: &Path, inbox: &Inbox, group: &mut Group<'_>, permit: &Permit) -> Result<(), String> {
    let request = group.request;
    let path =
        group.held.iter().find_map(|held| path(&request.subject, held.found.person.unified.as_deref()?));
    let path = path.ok_or("it is not a cgroup v2 of a container or unit")?;
    let ours = group.own_cgroup().ok_or("the enforcer's own cgroup is unknown")?;
    if *ours == *path || ours.starts_with(&format!("{path}/")) {
        return Err("it is the enforcer's own cgroup".to_owned());
    }
    let directory = open(root, path, &[CGROUP2]).map_err(|error| format!("{path}: {error}"))?;
    let frozen = Frozen::new(&directory, permit).map_err(|error| format!("it cannot be frozen: {error}"))?;
    group.renew().map_err(|refusal| refusal.why)?;
    let verified: BTreeSet<u32> = group.left().map(|held| held.found.key().pid).collect();
    let other =
        other_process(&directory, &verified).map_err(|error| format!("it cannot be read: {error}"))?;
    if let Some(other) = other {
        return Err(format!("it contains process {other}, which was not verified"));
    }
    inbox
        .unless_called_off(request.id, || put(&directory, "cgroup.kill", permit))?
        .map_err(|error| error.to_string())?;
    drop(frozen);
    Ok(())
}

/// Returns the `cgroup.freeze` file of the cgroup that [`kill`] would kill.
pub(super) fn freezer(root: &Path, group: &Group<'_>) -> Option<PathBuf> {
    let subject = &group.request.subject;
    let path = group.held.iter().find_map(|held| path(subject, held.found.person.unified.as_deref()?))?;
    Some(root.join(path.trim_start_matches('/')).join("cgroup.freeze"))
}
