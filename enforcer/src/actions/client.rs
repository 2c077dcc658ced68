//! A client of MPS, before it is signalled: its server is asked to let it go first, since whoever is ended with work under way may
//! wedge the server for all its clients. Where nobody answers, no signal is sent.

use std::collections::BTreeSet;
use std::time::Duration;

use bailiff_mps::control::Question;
use bailiff_mps::{Control, words};

use super::mps;
use super::worker::Work;
use crate::guard::Refusal;

/// How long a server may take to let a client go.
const PATIENCE: Duration = Duration::from_secs(10);

/// What a daemon told of its servers, or why it did not.
type Told = Result<Vec<(u32, BTreeSet<u32>)>, String>;

/// Where a client is.
#[derive(Debug, PartialEq, Eq)]
enum Standing {
    /// No part of MPS is there: its server has gone.
    Alone,
    /// With this server of this daemon, by their places.
    With { daemon: usize, server: u32 },
    /// Nobody tells.
    Unknown(String),
}

/// Has those of these processes let go that are clients of MPS; tells what was done.
pub(super) fn let_go(work: &Work<'_>, pids: &[u32]) -> Result<Vec<String>, Refusal> {
    let listed = listed(work);
    let clients: Vec<u32> = pids.iter().copied().filter(|pid| listed.contains(pid)).collect();
    if clients.is_empty() {
        return Ok(Vec::new());
    }
    let parts = parts(work)?;
    let daemons: BTreeSet<Option<String>> = parts.iter().map(|pid| mps::pipes(work, *pid)).collect();
    let daemons: Vec<Control> = daemons.into_iter().map(|pipes| mps::control(work, pipes)).collect();
    let told: Vec<Told> = daemons.iter().map(|control| servers(control, &parts)).collect();
    let each = clients.iter().filter_map(|pid| match stands(*pid, &told) {
        Standing::Alone => None,
        Standing::Unknown(why) => {
            Some(Err(Refusal::refused(format!("{pid} is a client of MPS, and is not signalled: {why}"))))
        }
        Standing::With { daemon, server } => Some(terminate(daemons.get(daemon)?, server, *pid)),
    });
    each.collect()
}

/// Pids that the newest snapshot lists as clients of MPS.
fn listed(work: &Work<'_>) -> BTreeSet<u32> {
    let view = work.inbox.view();
    let gpus = view.iter().flat_map(|view| &view.snapshot.gpus);
    let holders = gpus.flat_map(|gpu| &gpu.holders).filter(|holder| holder.kinds.contains('M'));
    holders.map(|holder| holder.pid).collect()
}

/// Daemons and servers of our PID namespace: those of another one tell pids that are others' here.
fn parts(work: &Work<'_>) -> Result<BTreeSet<u32>, Refusal> {
    let table = work.census.everybody()?;
    let all = table
        .people
        .values()
        .filter(|person| person.stat.comm == mps::COMM)
        .map(|person| person.stat.key.pid);
    Ok(all.filter(|pid| work.census.nested(*pid) == Some(false)).collect())
}

/// A daemon's servers that are among these parts, with their clients.
fn servers(control: &Control, parts: &BTreeSet<u32>) -> Told {
    let said = control.ask(Question::Servers).map_err(|trouble| trouble.to_string())?;
    let servers = words::servers(&said).map_err(|odd| odd.to_string())?;
    let ours = servers.intersection(parts);
    ours.map(|server| Ok((*server, mps::clients(control, *server)?))).collect()
}

fn stands(client: u32, told: &[Told]) -> Standing {
    let mut why = None;
    for (daemon, told) in told.iter().enumerate() {
        match told {
            Ok(servers) => {
                let found = servers.iter().find(|(_, clients)| clients.contains(&client));
                if let Some((server, _)) = found {
                    return Standing::With { daemon, server: *server };
                }
            }
            Err(trouble) => why = Some(format!("its control daemon: {trouble}")),
        }
    }
    if told.is_empty() {
        return Standing::Alone;
    }
    Standing::Unknown(why.unwrap_or_else(|| "no server lists it as its client".to_owned()))
}

/// In FAULT nothing of a client's is under way any more, and its end is what the server waits for.
fn terminate(control: &Control, server: u32, client: u32) -> Result<String, Refusal> {
    let status = control.ask(Question::Status(server)).map(|said| words::status(&said));
    if matches!(status, Ok(words::Status::Fault)) {
        return Ok(format!("server {server} of MPS waits in FAULT for the end of {client}"));
    }
    let said = control.clone().within(PATIENCE).ask(Question::TerminateClient(server, client));
    let done = said
        .map_err(|trouble| trouble.to_string())
        .and_then(|said| words::terminated(&said).map_err(|odd| odd.to_string()));
    match done {
        Ok(()) => Ok(format!("server {server} of MPS let {client} go")),
        Err(why) => Err(Refusal::refused(format!(
            "server {server} of MPS did not let {client} go, so it is not signalled: {why}"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn servers(servers: &[(u32, &[u32])]) -> Vec<(u32, BTreeSet<u32>)> {
        servers.iter().map(|(server, clients)| (*server, clients.iter().copied().collect())).collect()
    }

    #[test]
    fn a_client_is_let_go_by_its_very_server_alone() {
        let hung = || Err("hung".to_owned());
        let cases = [
            (vec![], Standing::Alone),
            (vec![Ok(servers(&[(900, &[7]), (901, &[4100])]))], Standing::With { daemon: 0, server: 901 }),
            (vec![hung(), Ok(servers(&[(900, &[4100])]))], Standing::With { daemon: 1, server: 900 }),
            (vec![Ok(servers(&[(900, &[7])]))], Standing::Unknown("no server lists it as its client".into())),
            (vec![Ok(servers(&[])), hung()], Standing::Unknown("its control daemon: hung".into())),
        ];
        for (told, expected) in cases {
            assert_eq!(stands(4100, &told), expected, "{told:?}");
        }
    }
}
