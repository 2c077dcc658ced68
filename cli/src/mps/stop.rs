//! Ends a control daemon by asking it, looks whether it and its servers have gone, and only then lets others use its GPUs.

#![expect(clippy::disallowed_methods, reason = "waits for the end of processes, with a deadline")]

use std::collections::BTreeSet;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use bailiff_mps::control::Question;
use bailiff_mps::place::Daemon;
use bailiff_mps::{Control, ControlError, words};
use bailiff_snapshot::ComputeMode;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::flags::{Common, Stop};
use super::gpus::{self, Gpu};
use super::node::{Found, Node};
use super::{alone, show};
use crate::exit::Failure;
use crate::output::print_message;

/// How long servers may take that are to be forced, unless it is said.
const FORCED: Duration = Duration::from_secs(10);
/// How much longer than the daemon was told its end may take.
const SLACK: Duration = Duration::from_secs(10);
const INTERVAL: Duration = Duration::from_millis(50);

/// Ends it.
pub(super) fn stop(flags: &Stop) -> Result<ExitCode, Failure> {
    let pipes = flags.common.pipes()?;
    let control = flags.common.control(&pipes);
    let _alone = alone::lock();
    let node = Node::look(&flags.common.machine.procfs);
    let servers = query(&control, Question::Servers, &pipes)?;
    let servers =
        words::servers(&servers).map_err(|odd| Failure::unavailable(format!("its servers: {odd}")))?;
    if !flags.force {
        without_clients(&control, &servers)?;
    }
    let timeout = flags.timeout.or(flags.force.then_some(FORCED));
    let daemon = node.listening(&pipes);
    let mut pids = servers;
    pids.extend(node.servers(&pipes, &[]));
    pids.extend(daemon.map(|daemon| daemon.pid));
    let deadline = Instant::now() + timeout.unwrap_or_default() + SLACK;
    let complaint = quit(&control, timeout, &pipes)?;
    gone(&control, &pids, deadline).map_err(|lives| still(&lives, complaint.as_ref()))?;
    restore(flags, &node, daemon)?;
    show("the daemon and its servers have ended\n")?;
    Ok(ExitCode::SUCCESS)
}

/// Asks; there must be a daemon that answers.
fn query(control: &Control, question: Question<'_>, pipes: &Path) -> Result<String, Failure> {
    control.query(question).map_err(|error| {
        let place = pipes.display();
        Failure::unavailable(match error {
            ControlError::NoDaemon => format!("no daemon answers in {place}; bailiff mps status tells which there are"),
            ControlError::NoAnswer(_) => format!(
                "the daemon in {place} hangs ({error}): it cannot be asked to end, and ending it by a signal would \
                 take its clients with it, so that is left to you"
            ),
            error => format!("the daemon in {place}: {error}"),
        })
    })
}

/// Nobody computes under it; what is not understood counts as somebody.
fn without_clients(control: &Control, servers: &BTreeSet<u32>) -> Result<(), Failure> {
    for server in servers {
        let said = control.query(Question::Clients(*server));
        let clients = match said.map(|said| words::clients(&said)) {
            Ok(Ok(clients)) => clients,
            // It has ended meanwhile.
            Ok(Err(words::ReplyError::NoServer)) => continue,
            Ok(Err(odd)) => return Err(Failure::busy(format!("clients of server {server}: {odd}"))),
            Err(error) => return Err(Failure::busy(format!("clients of server {server}: {error}"))),
        };
        if !clients.is_empty() {
            let pids: Vec<String> = clients.iter().map(u32::to_string).collect();
            return Err(Failure::busy(format!(
                "process {} computes under server {server} and would fail; --force ends the daemon all the same",
                pids.join(", ")
            )));
        }
    }
    Ok(())
}

/// Asks the daemon to quit. What its client complains of is returned and not judged: NVIDIA's client exits with 1 in about half
/// of all cases after a server failed to start, although the daemon quits.
fn quit(control: &Control, timeout: Option<Duration>, pipes: &Path) -> Result<Option<ControlError>, Failure> {
    let question = Question::Quit(timeout);
    show(&format!(
        "+ echo {question} | CUDA_MPS_PIPE_DIRECTORY={} {}\n",
        pipes.display(),
        control.program().display()
    ))?;
    match control.query(question) {
        // It may say nothing until its servers have ended, and it may end before it has answered.
        Ok(_) | Err(ControlError::NoAnswer(_) | ControlError::NoDaemon) => Ok(None),
        Err(error @ (ControlError::Refused(_) | ControlError::NoProgram { .. })) => {
            Err(Failure::unavailable(format!("the daemon does not quit: {error}")))
        }
        Err(error) => Ok(Some(error)),
    }
}

/// Waits until all of these processes have ended and nobody listens; the error says what is left.
fn gone(control: &Control, pids: &BTreeSet<u32>, deadline: Instant) -> Result<(), String> {
    for pid in pids {
        let raw = i32::try_from(*pid).ok().and_then(Pid::from_raw);
        let Some(handle) = raw.and_then(|raw| pidfd_open(raw, PidfdFlags::empty()).ok()) else { continue };
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let mut files = [PollFd::new(&handle, PollFlags::IN)];
            let ended = poll(&mut files, Timespec::try_from(left).ok().as_ref());
            if ended.is_ok_and(|ended| ended > 0) {
                break;
            }
            if left.is_zero() {
                return Err(format!("process {pid} lives on"));
            }
        }
    }
    while !matches!(control.query(Question::Servers), Err(ControlError::NoDaemon)) {
        if Instant::now() >= deadline {
            return Err("somebody still listens in its pipe directory".to_owned());
        }
        std::thread::park_timeout(INTERVAL);
    }
    Ok(())
}

fn still(lives: &str, complaint: Option<&ControlError>) -> Failure {
    let complaint = complaint.map(|complaint| format!(" (its client: {complaint})")).unwrap_or_default();
    Failure::busy(format!(
        "{lives}, so compute modes are left as they are; it was asked to quit{complaint}, and nothing more"
    ))
}

/// Lets others use its GPUs, as far as it is known which they are and nobody else's daemon has them.
fn restore(flags: &Stop, node: &Node, daemon: Option<&Found<Daemon>>) -> Result<(), Failure> {
    let Some(daemon) = daemon else {
        print_message("which GPUs it had is not known, so compute modes are left: nvidia-smi -i GPU -c DEFAULT");
        return Ok(());
    };
    let others = node.believed().filter(|other| other.pid != daemon.pid);
    let others: Vec<Option<&str>> = others.map(|other| other.is.visible.as_deref()).collect();
    for gpu in exclusive(&flags.common)? {
        let ours = has(daemon.is.visible.as_deref(), &gpu);
        let theirs = others.iter().any(|visible| has(*visible, &gpu) != Some(false));
        match (ours, theirs) {
            (Some(false), _) => {}
            (Some(true), false) => reset(flags, &gpu)?,
            _ => print_message(format_args!(
                "GPU {} stays EXCLUSIVE_PROCESS, since it may be another daemon's: nvidia-smi -i {} -c DEFAULT",
                gpu.index, gpu.index
            )),
        }
    }
    Ok(())
}

fn exclusive(common: &Common) -> Result<Vec<Gpu>, Failure> {
    Ok(gpus::all(common)?.into_iter().filter(Gpu::is_exclusive).collect())
}

/// Whether a daemon has a GPU; none where it was told by number, which may mean another one to it.
fn has(visible: Option<&str>, gpu: &Gpu) -> Option<bool> {
    let Some(visible) = visible else { return Some(true) };
    let mut names = visible.split(',').map(str::trim);
    if names.clone().all(|name| name.starts_with("GPU-") || name.starts_with("MIG-")) {
        return Some(names.any(|name| gpu.uuid.starts_with(name)));
    }
    None
}

fn reset(flags: &Stop, gpu: &Gpu) -> Result<(), Failure> {
    if !gpu.clients.is_empty() {
        let pids: Vec<String> = gpu.clients.iter().map(u32::to_string).collect();
        return Err(Failure::busy(format!(
            "GPU {} still has clients of MPS ({}), so its compute mode is left as it is",
            gpu.index,
            pids.join(", ")
        )));
    }
    gpus::set(&flags.nvidia_smi, gpu, ComputeMode::Default)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_daemon_has_the_gpus_that_it_was_told_of() {
        let gpu = Gpu {
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
