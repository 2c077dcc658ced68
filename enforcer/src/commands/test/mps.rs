//! The MPS servers of a synthetic node, as their daemons would report them.

use bailiff_snapshot::{Mps, MpsServer, MpsStatus, ProcessKey};

use super::fixture::{Fixture, TestProcess};
use super::series::Timeline;

/// Returns all servers; `None` if the test gives no status, or no daemon answers.
pub(super) fn mps(fixture: &Fixture, sample: usize) -> Option<Mps> {
    let servers = fixture.actors.iter().filter(|actor| !matches!(actor.mps_status, Timeline::Never));
    let there = servers.filter(|actor| actor.is_there(sample) && fixture.up("mps", sample));
    let servers: Vec<MpsServer> = there.map(|actor| server(fixture, actor, sample)).collect();
    (!servers.is_empty()).then(|| Mps { daemons: Vec::new(), servers })
}

fn server(fixture: &Fixture, actor: &TestProcess, sample: usize) -> MpsServer {
    let all = [MpsStatus::Initializing, MpsStatus::Active, MpsStatus::Fault];
    let word = actor.mps_status.at(sample);
    MpsServer {
        process: ProcessKey { pid: actor.pid, start_ticks: fixture.start_ticks(actor) },
        inside: Some(actor.pid),
        uid: None,
        pipe_directory: None,
        daemon: None,
        orphaned: None,
        status: all.into_iter().find(|status| word.as_ref().is_some_and(|word| word == status.name())),
        clients: None,
        thread_percentage: None,
    }
}
