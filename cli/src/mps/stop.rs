//! `bailiff mps stop`: asks the daemon to quit, waits for the exit, then resets the compute modes.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use bailiff_mps::control::Question;
use bailiff_mps::place::Daemon;
use bailiff_mps::{Control, ControlError, reply};
use bailiff_proc::Pidfd;
use bailiff_proc::clock::Deadline;
use bailiff_snapshot::ComputeMode;

use super::compute_mode::{self, MpsGpu};
use super::discover::MAX_SERVERS;
use super::flags::{Common, Stop};
use super::node::{MpsProcess, MpsProcesses};
use super::{lock, show};
use crate::exit::Failure;
use crate::output::{joined, print_message};

/// Default of `--timeout` with `--force`.
const FORCE_TIMEOUT: Duration = Duration::from_secs(10);
/// Time to wait for the exit beyond `--timeout`.
const SLACK: Duration = Duration::from_secs(10);
const INTERVAL: Duration = Duration::from_millis(50);

/// Runs `bailiff mps stop`.
pub(super) fn stop(flags: &Stop) -> Result<ExitCode, Failure> {
    let pipes = flags.common.pipes()?;
    let control = flags.common.control(&pipes);
    let _lock = lock::acquire();
    let node = MpsProcesses::read(&flags.common.machine.procfs);
    let servers = query(&control, Question::Servers, &pipes)?;
    let servers = reply::servers(&servers)
        .map_err(|error| Failure::unavailable(format!("cannot list the daemon's servers: {error}")))?;
    if !flags.force {
        check_no_clients(&control, &servers)?;
    }
    let timeout = flags.timeout.or(flags.force.then_some(FORCE_TIMEOUT));
    let daemon = node.listening(&pipes);
    let mut pids = servers;
    pids.extend(node.servers(&pipes, &[]));
    pids.extend(daemon.map(|daemon| daemon.pid));
    let deadline = Deadline::after(timeout.unwrap_or_default() + SLACK);
    let client_error = quit(&control, timeout, &pipes)?;
    wait_for_exit(&control, &pids, deadline)
        .map_err(|running| still_running(&running, client_error.as_ref()))?;
    reset_modes(flags, &node, daemon)?;
    show("the daemon and its servers have exited\n")?;
    Ok(ExitCode::SUCCESS)
}

/// Queries the daemon, and fails if it does not respond.
fn query(control: &Control, question: Question<'_>, pipes: &Path) -> Result<String, Failure> {
    control.query(question).map_err(|error| {
        let pipes = pipes.display();
        Failure::unavailable(match error {
            ControlError::NoDaemon => format!("no daemon responds in {pipes}; see bailiff mps status"),
            ControlError::NoAnswer(_) => format!(
                "the daemon in {pipes} hangs ({error}) and cannot be asked to quit; stop it manually, which also terminates \
                its clients"
            ),
            error => format!("the daemon in {pipes}: {error}"),
        })
    })
}

/// Fails if a server has clients, or if its clients cannot be listed.
fn check_no_clients(control: &Control, servers: &BTreeSet<u32>) -> Result<(), Failure> {
    // No control daemon runs that many, and each is asked.
    if servers.len() > MAX_SERVERS {
        let count = servers.len();
        return Err(Failure::busy(format!(
            "the daemon lists {count} servers, too many to check their clients; use --force to stop it anyway"
        )));
    }
    for server in servers {
        let answer = control.query(Question::Clients(*server));
        let clients = match answer.map(|answer| reply::clients(&answer)) {
            Ok(Ok(clients)) => clients,
            // The server has exited since the servers were listed.
            Ok(Err(reply::ReplyError::NoServer)) => continue,
            Ok(Err(error)) => return Err(Failure::busy(format!("clients of server {server}: {error}"))),
            Err(error) => return Err(Failure::busy(format!("clients of server {server}: {error}"))),
        };
        if !clients.is_empty() {
            return Err(Failure::busy(format!(
                "process {} uses server {server} and would fail; use --force to stop the daemon anyway",
                joined(&clients, ", ")
            )));
        }
    }
    Ok(())
}

/// Asks the daemon to quit. An error of NVIDIA's client is returned, not treated as a failure: after a server
/// failed to start, the client exits with 1 in about half of all cases although the daemon quits.
fn quit(control: &Control, timeout: Option<Duration>, pipes: &Path) -> Result<Option<ControlError>, Failure> {
    let question = Question::Quit(timeout);
    show(&format!(
        "+ echo {question} | CUDA_MPS_PIPE_DIRECTORY={} {}\n",
        pipes.display(),
        control.program().display()
    ))?;
    match control.query(question) {
        // The daemon might not reply until its servers have exited, and it might exit before it replies.
        Ok(_) | Err(ControlError::NoAnswer(_) | ControlError::NoDaemon) => Ok(None),
        Err(error @ (ControlError::Refused(_) | ControlError::NoProgram { .. })) => {
            Err(Failure::unavailable(format!("the daemon did not quit: {error}")))
        }
        Err(error) => Ok(Some(error)),
    }
}

/// Waits until the processes have exited and the socket is closed. The error names what remains.
fn wait_for_exit(control: &Control, pids: &BTreeSet<u32>, deadline: Deadline) -> Result<(), String> {
    for pid in pids {
        let Ok(Some(process)) = Pidfd::open(*pid) else { continue };
        if process.exited_by(Some(deadline)) != Ok(true) {
            return Err(format!("process {pid} is still running"));
        }
    }
    while !matches!(control.query(Question::Servers), Err(ControlError::NoDaemon)) {
        if deadline.passed() {
            return Err("a process still listens in the pipe directory".to_owned());
        }
        std::thread::park_timeout(INTERVAL);
    }
    Ok(())
}

fn still_running(what: &str, client_error: Option<&ControlError>) -> Failure {
    let client_error = client_error.map(|error| format!(" (client: {error})")).unwrap_or_default();
    Failure::busy(format!(
        "{what} after the daemon was asked to quit{client_error}; compute modes are unchanged"
    ))
}

/// Resets the compute modes of the daemon's GPUs. Skips GPUs that another daemon uses or may use.
fn reset_modes(
    flags: &Stop,
    node: &MpsProcesses,
    daemon: Option<&MpsProcess<Daemon>>,
) -> Result<(), Failure> {
    let Some(daemon) = daemon else {
        print_message(
            "the daemon's GPUs are unknown, so compute modes are unchanged; to reset them, run nvidia-smi -i GPU -c DEFAULT",
        );
        return Ok(());
    };
    let others = node.trusted_daemons().filter(|other| other.pid != daemon.pid);
    let others: Vec<Option<&str>> = others.map(|other| other.details.visible.as_deref()).collect();
    for gpu in exclusive(&flags.common)? {
        let own = has(daemon.details.visible.as_deref(), &gpu);
        let shared = others.iter().any(|visible| has(*visible, &gpu) != Some(false));
        match (own, shared) {
            (Some(false), _) => {}
            (Some(true), false) => reset(flags, &gpu)?,
            _ => print_message(format_args!(
                "GPU {} stays EXCLUSIVE_PROCESS because another daemon may use it; to reset it, run nvidia-smi -i {} -c DEFAULT",
                gpu.index, gpu.index
            )),
        }
    }
    Ok(())
}

fn exclusive(common: &Common) -> Result<Vec<MpsGpu>, Failure> {
    Ok(compute_mode::all(common)?.into_iter().filter(MpsGpu::is_exclusive).collect())
}

/// Returns whether a daemon manages a GPU, by its `CUDA_VISIBLE_DEVICES`. Returns `None` if the variable
/// contains indexes, which may differ from those of the driver.
fn has(visible: Option<&str>, gpu: &MpsGpu) -> Option<bool> {
    let Some(visible) = visible else { return Some(true) };
    let mut names = visible.split(',').map(str::trim);
    if names.clone().all(|name| name.starts_with("GPU-") || name.starts_with("MIG-")) {
        return Some(names.any(|name| gpu.uuid.starts_with(name)));
    }
    None
}

fn reset(flags: &Stop, gpu: &MpsGpu) -> Result<(), Failure> {
    if !gpu.clients.is_empty() {
        return Err(Failure::busy(format!(
            "GPU {} still has MPS clients ({}), so its compute mode is unchanged",
            gpu.index,
            joined(&gpu.clients, ", ")
        )));
    }
    compute_mode::set(&flags.nvidia_smi, gpu, ComputeMode::Default)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn daemon_has_the_gpus_named_by_uuid() {
        let gpu = MpsGpu {
            index: "0".into(),
            uuid: "GPU-12-34".into(),
            mode: None,
            holders: None,
            clients: Vec::new(),
        };
        let cases = [
            (None, Some(true)),
            (Some("GPU-12-34"), Some(true)),
            (Some("GPU-99, GPU-12"), Some(true)),
            (Some("GPU-99"), Some(false)),
            (Some("0"), None),
            (Some("GPU-12,1"), None),
        ];
        for (visible, expected) in cases {
            assert_eq!(has(visible, &gpu), expected, "{visible:?}");
        }
    }
}
