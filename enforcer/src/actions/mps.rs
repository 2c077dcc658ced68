//! A server of MPS, ended by its control daemon, which is asked: signalling what serves others may wedge them all.
//! The daemon's exit status says nothing, so what it said and whether the server has gone is looked at.

use super::child::{self, Failed, Heard, Program};
use super::clock::Deadline;
use super::ending::Ending;
use super::pidfd::Handle;
use super::worker::Work;
use crate::guard::Refusal;
use crate::policy::Kind;
use crate::verdict::{Member, Outcome};

/// How long the control daemon may take to answer: one that is stopped never does.
const PATIENCE: std::time::Duration = std::time::Duration::from_secs(2);
/// Names the folder of the daemon's sockets.
const PIPES: &str = "CUDA_MPS_PIPE_DIRECTORY";
/// What control and server are called, cut by the kernel.
const COMM: &str = "nvidia-cuda-mps";

pub(super) fn shut_down(work: &Work<'_>) -> Result<Ending, Refusal> {
    let subject = &work.deed.subject;
    if subject.kind != Kind::MpsServer {
        return Err(Refusal::refused("it is no server of MPS"));
    }
    let [server] = subject.members.as_slice() else {
        return Err(Refusal::refused("a server is one process"));
    };
    let handle = hold(work, server)?;
    let control = Control { work, pipes: pipes(work, server.pid) };
    if listed_clients(work) > 0 {
        return Err(Refusal::refused("it has clients"));
    }
    let said = control.ask(&format!("get_client_list {}\n", server.pid));
    match said.map(|said| clients(&said)) {
        Ok(Some(0)) => {}
        Ok(Some(clients)) => return Err(Refusal::refused(format!("it has {clients} clients"))),
        Ok(None) => return Err(Refusal::refused("its clients are not known: the answer is not understood")),
        Err(error) => return Err(Refusal::refused(format!("its clients are not known: {error}"))),
    }
    Ok(work.carry_out(|_| {
        let asked = control.ask(&format!("shutdown_server {}\n", server.pid));
        verify(work, &handle, asked)
    }))
}

/// Takes hold of the server and compares it with what was judged.
fn hold(work: &Work<'_>, server: &Member) -> Result<Handle, Refusal> {
    let key = server.key.ok_or_else(|| Refusal::refused("it is known to the driver alone"))?;
    work.census.everybody()?;
    let gone = || Refusal { outcome: Outcome::Gone, why: "it had ended".to_owned() };
    let handle = Handle::open(key.pid)
        .map_err(|error| Refusal::refused(format!("{} cannot be held: {error}", key.pid)))?
        .ok_or_else(gone)?;
    let person = work.census.person(key.pid)?.ok_or_else(gone)?;
    if !handle.lives() {
        return Err(gone());
    }
    let same = person.stat.key == key
        && Some(person.uid) == server.uid
        && !server.cgroup.is_empty()
        && person.place.cgroup == server.cgroup
        && person.stat.comm.starts_with(COMM);
    if same {
        Ok(handle)
    } else {
        Err(Refusal { outcome: Outcome::IdentityChanged, why: format!("pid {} is not that server", key.pid) })
    }
}

/// The daemon's own folder, where its server's environment may be read and names one.
fn pipes(work: &Work<'_>, pid: u32) -> Option<String> {
    work.census.variable(pid, PIPES).filter(|path| path.starts_with('/') && path.len() < 4096)
}

/// Clients that the newest snapshot shows on the server's GPUs.
fn listed_clients(work: &Work<'_>) -> usize {
    let Some(view) = work.inbox.view() else { return 0 };
    let theirs = view
        .snapshot
        .gpus
        .iter()
        .filter(|gpu| gpu.uuid.as_ref().is_some_and(|uuid| work.deed.subject.gpus.contains(uuid)));
    theirs.flat_map(|gpu| &gpu.holders).filter(|holder| holder.kinds.contains('M')).count()
}

/// How many pids an answer to `get_client_list` has; none where it is something else.
fn clients(said: &[u8]) -> Option<usize> {
    let said = std::str::from_utf8(said).ok()?;
    let lines = said.lines().map(str::trim).filter(|line| !line.is_empty());
    let pids: Option<Vec<u32>> = lines.map(|line| line.parse().ok()).collect();
    pids.map(|pids| pids.len())
}

/// The control daemon of one server.
struct Control<'a> {
    work: &'a Work<'a>,
    pipes: Option<String>,
}

impl Control<'_> {
    fn ask(&self, command: &str) -> Result<Vec<u8>, Failed> {
        let argv = [self.work.settings.mps_control.to_string_lossy().into_owned()];
        let variables: Vec<(&str, &str)> = self.pipes.iter().map(|pipes| (PIPES, pipes.as_str())).collect();
        let program =
            Program { argv: &argv, variables: &variables, input: command.as_bytes(), deadline: PATIENCE };
        child::run(&program, Heard::Yes)
    }
}

fn verify(work: &Work<'_>, handle: &Handle, asked: Result<Vec<u8>, Failed>) -> Ending {
    let deadline = Deadline::after(work.settings.verify);
    while !handle.ended() && !deadline.passed() {
        work.inbox.wait(&[handle], deadline);
    }
    if handle.ended() {
        return Ending::new(Outcome::Done, "the server has ended");
    }
    let said = match asked {
        Ok(said) => String::from_utf8_lossy(&said).trim().to_owned(),
        Err(error) => error.to_string(),
    };
    Ending::new(Outcome::Failed, format!("the server lives on; the control daemon said: {said}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_list_of_pids_tells_how_many_clients_there_are() {
        let cases: [(&[u8], Option<usize>); 6] = [
            (b"", Some(0)),
            (b"\n", Some(0)),
            (b"4100\n4200\n", Some(2)),
            (b"Server 1 not found\n", None),
            (b"4100\nInsufficient privileges\n", None),
            (b"\xff\n", None),
        ];
        for (said, expected) in cases {
            assert_eq!(clients(said), expected, "{}", String::from_utf8_lossy(said));
        }
    }
}
