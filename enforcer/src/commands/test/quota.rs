//! The shared quotas of a synthetic node: one for each process that has a limit.

use std::collections::BTreeMap;

use bailiff_snapshot::cgroup_memory::NO_LIMIT;
use bailiff_snapshot::{
    CgroupMemory, Label as _, LimitBackend, Mps, MpsServer, MpsStatus, ProcessKey, Quota, QuotaGpu,
    QuotaProcess, Truth, wire,
};

use super::fixture::{Fixture, TestProcess, whole};
use super::series::Timeline;

/// Returns all quotas at a sample; `None` if no process has one, or their directory cannot be read.
pub(super) fn quotas(fixture: &Fixture, (sample, gpus): (usize, &[wire::Gpu])) -> Option<Vec<Quota>> {
    let with = fixture.actors.iter().filter(|actor| actor.quota.is_some());
    if with.clone().next().is_none() || !fixture.up("quota", sample) {
        return None;
    }
    Some(
        with.filter(|actor| actor.is_there(sample))
            .map(|actor| quota(fixture, actor, (sample, gpus)))
            .collect(),
    )
}

fn quota(fixture: &Fixture, actor: &TestProcess, (sample, gpus): (usize, &[wire::Gpu])) -> Quota {
    let start_ticks = fixture.start_ticks(actor);
    let used = actor.vram.at(sample).map(whole);
    let row = |place: &usize| {
        let holders = gpus.get(*place).map(|gpu| gpu.holders.as_slice()).unwrap_or_default();
        let own = holders.iter().find(|holder| holder.pid == actor.pid);
        QuotaGpu {
            uuid: place.to_string(),
            limit: actor.quota,
            used: used.unwrap_or_default(),
            peak: used.unwrap_or_default(),
            denied: 0,
            denied_bytes: 0,
            held: own.and_then(|holder| holder.memory),
            held_around: None,
        }
    };
    let denied_since = actor.quota_denied.at(sample).map(whole);
    let process = QuotaProcess {
        process: Some(ProcessKey { pid: actor.pid, start_ticks }),
        alive: Truth::True,
        claim: (actor.pid, start_ticks, 0),
        used: actor.holds.iter().map(|_| used.unwrap_or(1)).collect(),
        denied: denied_since.unwrap_or_default(),
        denied_since,
    };
    Quota {
        name: actor.pid.to_string(),
        gpus: actor.holds.iter().map(row).collect(),
        processes: vec![process],
        ..Quota::default()
    }
}

/// Returns the memory limits of the cgroups of processes on a GPU.
pub(super) fn cgroups(actors: &[&TestProcess], sample: usize) -> Vec<CgroupMemory> {
    let mut rows: BTreeMap<&str, CgroupMemory> = BTreeMap::new();
    for actor in actors {
        let cgroup = actor.facts.place.cgroup.as_str();
        let new =
            || CgroupMemory { used: Some(0), ..CgroupMemory::unknown(cgroup.to_owned(), LimitBackend::Dmem) };
        let row = rows.entry(cgroup).or_insert_with(new);
        row.effective = row.effective.or(actor.cgroup_limit);
        row.hard = row.effective.filter(|limit| *limit != NO_LIMIT);
        row.used = row.used.zip(actor.vram.at(sample).map(whole)).map(|(sum, bytes)| sum + bytes);
    }
    rows.into_values().collect()
}

/// Returns all servers; `None` if the test gives no status, or no daemon responds.
pub(super) fn mps(fixture: &Fixture, sample: usize) -> Option<Mps> {
    let servers = fixture.actors.iter().filter(|actor| !matches!(actor.mps_status, Timeline::Never));
    let there = servers.filter(|actor| actor.is_there(sample) && fixture.up("mps", sample));
    let servers: Vec<MpsServer> = there.map(|actor| server(fixture, actor, sample)).collect();
    (!servers.is_empty()).then(|| Mps { daemons: Vec::new(), servers })
}

fn server(fixture: &Fixture, actor: &TestProcess, sample: usize) -> MpsServer {
    MpsServer {
        process: ProcessKey { pid: actor.pid, start_ticks: fixture.start_ticks(actor) },
        inside: Some(actor.pid),
        uid: None,
        pipe_directory: None,
        daemon: None,
        orphaned: None,
        status: actor.mps_status.at(sample).and_then(|word| MpsStatus::of_word(&word)),
        clients: None,
        thread_percentage: None,
    }
}
