//! Step `shutdown_mps`: ends an MPS server through its control daemon, because a signal may wedge all
//! clients. The daemon's exit status means nothing, so its reply is read and the server's exit is verified.

use std::collections::BTreeSet;

use bailiff_mps::control::Question;
use bailiff_mps::place::{DEFAULT_PIPES, PIPES};
use bailiff_mps::{Control, ControlError, reply};
use bailiff_proc::{Pidfd, ReadError};

use super::ActionResult;
use super::context::ActionContext;
use crate::clock::Deadline;
use bailiff_engine::Kind;
use bailiff_engine::guard::Refusal;
use bailiff_engine::verdict::{Member, Outcome};

/// Name (comm) of control daemon and server, truncated by the kernel.
pub(super) const COMM: &str = "nvidia-cuda-mps";

pub(super) fn shut_down(context: &ActionContext<'_>) -> Result<ActionResult, Refusal> {
    let subject = &context.request.subject;
    if subject.kind != Kind::MpsServer {
        return Err(Refusal::refused("the target is not an MPS server"));
    }
    let [server] = subject.members.as_slice() else {
        return Err(Refusal::refused("the target must be a single process"));
    };
    let handle = hold(context, server)?;
    if context.proc_table.nested(server.pid) != Some(false) {
        return Err(Refusal::refused(
            "the server is in another PID namespace, in which its pid belongs to another process",
        ));
    }
    let pipes = pipes(context, server.pid);
    let pipes = pipes.map_err(|error| Refusal::refused(format!("the environment of the server {error}")))?;
    let control = control(context, pipes);
    match listed_clients(context) {
        Some(0) => {}
        Some(_) => return Err(Refusal::refused("the server has clients")),
        None => return Err(Refusal::refused("the server's clients are not in any snapshot")),
    }
    match clients(&control, server.pid) {
        Ok(clients) if clients.is_empty() => {}
        Ok(clients) => return Err(Refusal::refused(format!("the server has {} clients", clients.len()))),
        Err(why) => return Err(Refusal::refused(format!("the server's clients are unknown: {why}"))),
    }
    Ok(context.carry_out(|_| {
        let asked = control.query(Question::ShutDown(server.pid));
        verify(context, &handle, asked)
    }))
}

/// Opens a pidfd of the server and compares the process with the evaluated one.
fn hold(context: &ActionContext<'_>, server: &Member) -> Result<Pidfd, Refusal> {
    let key = server
        .key
        .ok_or_else(|| Refusal::refused("the driver lists the server, but there is no such process"))?;
    context.proc_table.everybody()?;
    let gone = || Refusal { outcome: Outcome::Gone, why: "the server had exited".to_owned() };
    let handle = Pidfd::open(key.pid)
        .map_err(|error| Refusal::refused(format!("cannot open a pidfd of process {}: {error}", key.pid)))?
        .ok_or_else(gone)?;
    let person = context.proc_table.person(key.pid)?.ok_or_else(gone)?;
    if !handle.lives() {
        return Err(gone());
    }
    let same = person.stat.key == key
        && Some(person.uid) == server.uid
        && !server.confinement.is_empty()
        && person.place.confinement() == server.confinement
        && person.stat.comm.starts_with(COMM);
    if same {
        Ok(handle)
    } else {
        Err(Refusal { outcome: Outcome::IdentityChanged, why: format!("pid {} is not the target", key.pid) })
    }
}

/// Returns the pipe directory that an MPS process names in its environment. If the process sees another directory
/// at that path than the enforcer does, the result is the path below the process's root (`/proc/PID/root`), because
/// the directory that the enforcer sees could belong to any user.
///
/// # Errors
/// If the environment or the directory was not read in time.
pub(super) fn pipes(context: &ActionContext<'_>, pid: u32) -> Result<Option<String>, ReadError> {
    let named = context.proc_table.variable(pid, PIPES)?;
    let named = named.filter(|path| path.starts_with('/') && path.len() < 4096);
    let path = named.as_deref().unwrap_or(DEFAULT_PIPES);
    Ok(match context.proc_table.sees_same(pid, path)? {
        Some(false) => Some(format!("/proc/{pid}/root{path}")),
        _ => named,
    })
}

/// Returns the number of clients that the newest snapshot lists on the server's GPUs.
fn listed_clients(context: &ActionContext<'_>) -> Option<usize> {
    let view = context.inbox.view()?;
    let theirs = view
        .snapshot
        .gpus
        .iter()
        .filter(|gpu| gpu.uuid.as_ref().is_some_and(|uuid| context.request.subject.gpus.contains(uuid)));
    Some(theirs.flat_map(|gpu| &gpu.holders).filter(|holder| holder.kinds.contains('M')).count())
}

/// Returns the control daemon of a pipe directory.
pub(super) fn control(context: &ActionContext<'_>, pipes: Option<String>) -> Control {
    let control = Control::new(&context.settings.mps_control);
    match pipes {
        Some(pipes) => control.at(pipes),
        None => control,
    }
}

/// Returns the clients of a server, or why they are unknown.
pub(super) fn clients(control: &Control, server: u32) -> Result<BTreeSet<u32>, String> {
    let reply_text = control.query(Question::Clients(server)).map_err(|error| error.to_string())?;
    reply::clients(&reply_text).map_err(|odd| odd.to_string())
}

fn verify(context: &ActionContext<'_>, handle: &Pidfd, asked: Result<String, ControlError>) -> ActionResult {
    let deadline = Deadline::after(context.settings.verify);
    while !handle.ended() && !deadline.passed() {
        context.inbox.wait(&[handle], deadline);
    }
    if handle.ended() {
        return ActionResult::new(Outcome::Done, "the server has exited");
    }
    let reply_text = match asked {
        Ok(reply_text) => reply_text.trim().to_owned(),
        Err(error) => error.to_string(),
    };
    ActionResult::new(
        Outcome::Failed,
        format!("the server is still running; the control daemon replied: {reply_text}"),
    )
}
