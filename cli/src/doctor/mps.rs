//! MPS: its daemon and servers, found in `/proc`; modes that do not go together; clients that were told of GPUs by number.

use std::path::Path;

use bailiff_snapshot::{ComputeMode, Role, Sample, stat};

use super::check::Check;
use super::files;

const NAME: &str = "mps";
const VARIABLE: &str = "CUDA_VISIBLE_DEVICES";

/// The parts of MPS that a `/proc` shows.
#[derive(Debug, Default)]
struct Parts {
    daemons: Vec<u32>,
    servers: Vec<u32>,
    /// Of which it cannot be told what they are.
    unknown: Vec<u32>,
}

/// Whether MPS runs as its GPUs want it.
pub(super) fn checks(procfs: &Path, sample: Option<&Sample>) -> Vec<Check> {
    let parts = parts(procfs);
    let mut checks = Vec::new();
    let exclusive = exclusive(sample);
    let none = parts.daemons.is_empty() && parts.unknown.is_empty();
    if !exclusive.is_empty() && none {
        checks.push(Check::warn(
            NAME,
            format!(
                "GPU {} takes one process at a time (EXCLUSIVE_PROCESS), and no MPS daemon runs",
                exclusive.join(", ")
            ),
            "nvidia-cuda-mps-control -d starts one; nvidia-smi -i GPU -c DEFAULT lets others in without it",
        ));
    }
    if !parts.servers.is_empty() && none {
        let servers: Vec<String> = parts.servers.iter().map(u32::to_string).collect();
        let text =
            format!("server {} runs without its daemon: who starts now runs beside MPS", servers.join(", "));
        checks.push(Check::warn(NAME, text, "nvidia-cuda-mps-control -d, once the clients have ended"));
    }
    let clients = clients(sample);
    if !parts.daemons.is_empty() {
        let daemons: Vec<String> = parts.daemons.iter().map(u32::to_string).collect();
        let (servers, clients) = (parts.servers.len(), clients.len());
        checks.push(Check::ok(
            NAME,
            format!("daemon {}, {servers} servers, {clients} clients", daemons.join(", ")),
        ));
    }
    checks.extend(clients.into_iter().filter_map(|pid| of_client(pid, &visible(procfs, pid)?)));
    if checks.is_empty() {
        checks.push(Check::skip(NAME, "no MPS daemon runs", None));
    }
    checks
}

/// GPUs that take one process alone.
fn exclusive(sample: Option<&Sample>) -> Vec<String> {
    let gpus = sample.into_iter().flat_map(|sample| &sample.gpus);
    let exclusive = gpus.filter(|gpu| gpu.telemetry.compute_mode == Some(ComputeMode::ExclusiveProcess));
    exclusive.map(|gpu| gpu.about.index.clone()).collect()
}

fn clients(sample: Option<&Sample>) -> Vec<u32> {
    let gpus = sample.into_iter().flat_map(|sample| &sample.gpus);
    let entries = gpus.flat_map(|gpu| gpu.entries.iter().flatten());
    let mut pids: Vec<u32> = entries.filter(|entry| entry.kinds.mps).map(|entry| entry.pid).collect();
    pids.sort_unstable();
    pids.dedup();
    pids
}

fn parts(procfs: &Path) -> Parts {
    let mut parts = Parts::default();
    for pid in files::pids(procfs) {
        let folder = procfs.join(pid.to_string());
        let stat = files::bytes(&folder.join("stat")).and_then(|text| stat::parse(&text));
        if stat.is_none_or(|stat| stat.comm != Role::COMM) {
            continue;
        }
        let exe = files::link(&folder.join("exe")).and_then(|exe| Role::of_program(&exe.to_string_lossy()));
        let words = || files::bytes(&folder.join("cmdline")).unwrap_or_default();
        let first = |words: Vec<u8>| {
            let word = words.split(|byte| *byte == 0).next().unwrap_or_default();
            Role::of_program(&String::from_utf8_lossy(word))
        };
        match exe.or_else(|| first(words())) {
            Some(Role::MpsControl) => parts.daemons.push(pid),
            Some(Role::MpsServer) => parts.servers.push(pid),
            None => parts.unknown.push(pid),
        }
    }
    parts
}

/// What a process was told of its GPUs; none where its environment is not ours to read, or says nothing.
fn visible(procfs: &Path, pid: u32) -> Option<String> {
    let environ = files::bytes(&procfs.join(pid.to_string()).join("environ"))?;
    let mut pairs = environ.split(|byte| *byte == 0).map(String::from_utf8_lossy);
    pairs.find_map(|pair| Some(pair.strip_prefix(VARIABLE)?.strip_prefix('=')?.to_owned()))
}

/// The daemon numbers its GPUs anew for its clients; UUIDs mean the same everywhere.
fn of_client(pid: u32, visible: &str) -> Option<Check> {
    let is_number = |word: &str| word.trim().parse::<i64>().is_ok();
    visible.split(',').any(is_number).then(|| {
        Check::warn(
            NAME,
            format!(
                "client {pid} was started with {VARIABLE}={visible}, and the daemon numbers its GPUs anew"
            ),
            "set it for the daemon and not for its clients, or name GPUs by UUID, as bailiff lease does",
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_are_told_of_gpus_by_uuid_or_not_at_all() {
        for (visible, odd) in
            [("0", true), ("1,GPU-5", true), ("GPU-5,GPU-6", false), ("MIG-1", false), ("", false)]
        {
            assert_eq!(of_client(7, visible).is_some(), odd, "{visible}");
        }
    }
}
