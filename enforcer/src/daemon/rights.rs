//! Permissions and PID namespace of this process, read once at startup.

use std::collections::BTreeSet;
use std::path::Path;

use bailiff_proc::Proc;
use bailiff_snapshot::{PidNamespace, ProcessKey};

use crate::process_table::Processes;
use crate::settings::Settings;
use bailiff_engine::engine::Holds;
use bailiff_engine::verdict::Hold;

/// Returns the boot id of the kernel.
pub(super) fn boot_id(procfs: &Path) -> Option<String> {
    Proc::open(procfs).ok()?.boot_id()
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
    let link = Proc::open(&settings.executor.procfs).and_then(|proc| proc.own_pid_namespace());
    settings.trust_pid_namespace || link.is_ok_and(|link| PidNamespace::of_link(&link).attributes())
}
