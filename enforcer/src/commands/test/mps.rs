//! The servers of MPS of a made-up node, as a daemon of each would tell their status.

use bailiff_snapshot::{Mps, MpsServer, MpsStatus, ProcessKey};

use super::series::Play;
use super::stage::{Actor, Stage};

/// All servers whose status is told at some time; none where that of nobody is, or nobody answers.
pub(super) fn mps(stage: &Stage, sample: usize) -> Option<Mps> {
    let told = stage.actors.iter().filter(|actor| !matches!(actor.mps_status, Play::Never));
    let there = told.filter(|actor| actor.is_there(sample) && stage.up("mps", sample));
    let servers: Vec<MpsServer> = there.map(|actor| server(stage, actor, sample)).collect();
    (!servers.is_empty()).then(|| Mps { daemons: Vec::new(), servers })
}

fn server(stage: &Stage, actor: &Actor, sample: usize) -> MpsServer {
    let all = [MpsStatus::Initializing, MpsStatus::Active, MpsStatus::Fault];
    let word = actor.mps_status.at(sample);
    MpsServer {
        process: ProcessKey { pid: actor.pid, start_ticks: stage.start_ticks(actor) },
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
