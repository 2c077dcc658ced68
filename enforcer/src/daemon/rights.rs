//! Permissions and PID namespace of this process, read once at startup.

#![expect(clippy::disallowed_methods, reason = "reads what /proc says of this process")]

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use bailiff_snapshot::{PidNamespace, ProcessKey, Status};

use crate::process_table::Processes;
use crate::settings::Settings;
use bailiff_engine::engine::Holds;
use bailiff_engine::verdict::Hold;

/// Bit number of `CAP_KILL` (`linux/capability.h`).
const CAP_KILL: u32 = 5;

/// Returns the boot id of the kernel.
pub(super) fn boot_id(procfs: &Path) -> Option<String> {
    let text = fs::read_to_string(procfs.join("sys/kernel/random/boot_id")).ok()?;
    Some(text.trim().to_owned()).filter(|id| !id.is_empty())
}

/// Returns this program and its ancestors, as far as they can be read.
pub(super) fn ourselves(procfs: &Path) -> BTreeSet<ProcessKey> {
    let us = std::process::id();
    let Ok(table) = Processes::open(procfs, "").and_then(|proc_table| proc_table.everybody()) else {
        return BTreeSet::new();
    };
    let own = table.ancestors(us).into_iter().chain([us]);
    own.filter_map(|pid| Some(table.people.get(&pid)?.stat.key)).collect()
}

/// Returns the holds that are known at startup, with reasons.
pub(super) fn missing(settings: &Settings) -> Vec<(Hold, Holds, String)> {
    let mut missing = Vec::new();
    if !in_host_namespace(settings) {
        let why = "not in the host's PID namespace: pids could refer to other processes";
        missing.push((Hold::Untrusted, Holds::Yes, why.to_owned()));
    }
    if boot_id(&settings.executor.procfs).is_none() {
        missing.push((Hold::Untrusted, Holds::Yes, "cannot read the boot ID".to_owned()));
    }
    missing
}

/// Returns whether this program runs in the host's PID namespace, or trusts its own.
pub(super) fn in_host_namespace(settings: &Settings) -> bool {
    let target = fs::read_link(settings.executor.procfs.join("self/ns/pid")).ok();
    let host_namespace =
        target.is_some_and(|target| PidNamespace::of_link(&target.to_string_lossy()).attributes());
    host_namespace || settings.trust_pid_namespace
}

/// Returns whether this program may signal processes of other users.
pub(super) fn may_kill() -> bool {
    let Ok(status) = fs::read("/proc/self/status") else { return false };
    Status::new(&status).mask("CapEff:").is_some_and(|bits| bits & (1 << CAP_KILL) != 0)
}
