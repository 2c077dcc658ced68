//! MPS: daemons that do not respond, servers without a daemon, conflicting compute modes, and clients that
//! name GPUs by index.

use std::path::Path;

use bailiff_proc::Proc;
use bailiff_snapshot::{ComputeMode, Sample};

use super::check::Check;
use crate::args::Machine;
use crate::mps::discover;
use crate::mps::report::{Daemon, State};
use crate::output::joined;

const NAME: &str = "mps";
const VARIABLE: &str = "CUDA_VISIBLE_DEVICES";

/// Checks the MPS daemons, servers and clients.
pub(super) fn checks(machine: &Machine, sample: Option<&Sample>) -> Vec<Check> {
    let (daemons, servers) = discover::running(machine);
    let mut checks = Vec::new();
    let exclusive = exclusive(sample);
    if !exclusive.is_empty() && daemons.is_empty() {
        checks.push(Check::warn(
            NAME,
            format!(
                "GPU {} allows only one process at a time (EXCLUSIVE_PROCESS), but no MPS daemon is running",
                exclusive.join(", ")
            ),
            "start a daemon: nvidia-cuda-mps-control -d; or allow several processes: nvidia-smi -i GPU -c DEFAULT",
        ));
    }
    if !servers.is_empty() && daemons.is_empty() {
        let text = format!(
            "server {} is running without its daemon, so new processes do not use MPS",
            joined(&servers, ", ")
        );
        checks.push(Check::warn(NAME, text, "run nvidia-cuda-mps-control -d after the clients have exited"));
    }
    let clients = clients(sample);
    let answering = daemons.iter().filter(|daemon| daemon.state == State::Answers);
    let answering: Vec<u32> = answering.filter_map(|daemon| daemon.pid).collect();
    if !answering.is_empty() {
        let (servers, clients) = (servers.len(), clients.len());
        checks.push(Check::ok(
            NAME,
            format!("daemon {}, {servers} servers, {clients} clients", joined(&answering, ", ")),
        ));
    }
    checks.extend(daemons.iter().filter_map(of_daemon));
    checks.extend(clients.into_iter().filter_map(|pid| of_client(pid, &visible(&machine.procfs, pid)?)));
    if checks.is_empty() {
        checks.push(Check::skip(NAME, "no MPS daemon is running", None));
    }
    checks
}

/// Checks one daemon; `None` if it responds.
fn of_daemon(daemon: &Daemon) -> Option<Check> {
    match daemon.state {
        State::Answers => None,
        State::Hung => {
            let hint = daemon.pid.map(|pid| {
                format!("if ps -o stat= -p {pid} shows T, the daemon was stopped: kill -CONT {pid}")
            });
            Some(Check::fail(
                NAME,
                daemon.warning()?,
                hint.unwrap_or_else(|| "run bailiff mps status".to_owned()),
            ))
        }
        // The daemon's process is running. Its files may just be unreachable, for example in a container.
        State::Stale | State::Unknown => {
            let why = daemon.why.as_deref().unwrap_or("the state of the daemon is unknown");
            Some(Check::skip(NAME, format!("{}: {why}", daemon.label()), Some("run sudo bailiff mps status")))
        }
    }
}

/// Returns the GPUs in compute mode `EXCLUSIVE_PROCESS`.
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

/// Returns `CUDA_VISIBLE_DEVICES` of a process; `None` if it is not set or the environment cannot be read.
fn visible(procfs: &Path, pid: u32) -> Option<String> {
    let process = Proc::open(procfs).and_then(|proc| proc.process(pid)).ok()?;
    process.patiently(|process| Ok(process.variable(VARIABLE))).ok().flatten()
}

/// Checks that a client does not name GPUs by index: the daemon renumbers its GPUs for its clients.
fn of_client(pid: u32, visible: &str) -> Option<Check> {
    let is_number = |name: &str| name.trim().parse::<i64>().is_ok();
    visible.split(',').any(is_number).then(|| {
        Check::warn(
            NAME,
            format!("client {pid} was started with {VARIABLE}={visible}, but the daemon renumbers its GPUs"),
            "set the variable for the daemon instead of its clients, or use GPU UUIDs, as bailiff lease does",
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn client_that_names_gpus_by_index_is_reported() {
        for (visible, reported) in
            [("0", true), ("1,GPU-5", true), ("GPU-5,GPU-6", false), ("MIG-1", false), ("", false)]
        {
            assert_eq!(of_client(7, visible).is_some(), reported, "{visible}");
        }
    }
}
