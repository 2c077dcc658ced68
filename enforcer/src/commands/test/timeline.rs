//! Produces the snapshots of a rule test, one per sampling interval, in the form of the exporter's stream.

use std::sync::Arc;

use bailiff_snapshot::{Fault, PidNamespace, State, Word, millis, wire};

use super::fixture::{Fixture, TestProcess, UPTIME, percent, whole};
use super::quota::{cgroups, mps, quotas};
use super::series::Timeline;

/// Counters of one process.
#[derive(Debug, Clone, Copy, Default)]
struct Counters {
    cpu_seconds: f64,
    io_bytes: f64,
}

/// Produces snapshots, sample by sample.
#[derive(Debug)]
pub(super) struct TimelineReader<'a> {
    fixture: &'a Fixture,
    counters: Vec<Counters>,
    next: usize,
}

impl<'a> TimelineReader<'a> {
    /// Starts at the first sample.
    pub(super) fn new(fixture: &'a Fixture) -> Self {
        Self { fixture, counters: vec![Counters::default(); fixture.actors.len()], next: 0 }
    }

    /// Returns the next snapshot; `None` if its interval is missed.
    pub(super) fn next(&mut self) -> Option<wire::Snapshot> {
        let sample = self.next;
        self.next += 1;
        self.count(sample);
        let interval = self.fixture.intervals.at(sample).is_some_and(|interval| interval > 0.0);
        interval.then(|| self.snapshot(sample))
    }

    /// Advances the counters by one interval.
    fn count(&mut self, sample: usize) {
        let interval = self.fixture.interval.as_secs_f64();
        for (actor, counters) in self.fixture.actors.iter().zip(&mut self.counters) {
            if actor.is_there(sample) {
                counters.cpu_seconds += actor.cpu_util.at(sample).unwrap_or_default() * interval;
                counters.io_bytes += actor.io_rate.at(sample).unwrap_or_default() * interval;
            }
        }
    }

    fn snapshot(&self, sample: usize) -> wire::Snapshot {
        let fixture = self.fixture;
        let up = |name: &str| {
            let up = fixture.up(name, sample);
            (name.to_owned(), wire::Source { up, fault: (!up).then_some(Fault::Timeout.into()) })
        };
        let gpus: Vec<wire::Gpu> = (0..fixture.devices.len()).map(|place| self.gpu(place, sample)).collect();
        let held = |pid: u32| gpus.iter().any(|gpu| gpu.holders.iter().any(|holder| holder.pid == pid));
        let (mut processes, mut relatives) = (Vec::new(), Vec::new());
        for (actor, counters) in fixture.actors.iter().zip(&self.counters) {
            if held(actor.pid) {
                processes.push(self.process(actor, *counters, sample));
            } else if actor.holds.is_empty() && actor.is_there(sample) {
                relatives.push(self.relative(actor, *counters, sample));
            }
        }
        wire::Snapshot {
            version: wire::VERSION,
            seq: sample as u64 + 1,
            boot_id: Some("test".to_owned()),
            wall_ms: millis(fixture.start + fixture.since_boot(sample).saturating_sub(UPTIME)),
            boot_ms: millis(fixture.since_boot(sample)),
            interval_ms: millis(fixture.interval),
            pid_namespace: PidNamespace::Host.into(),
            sources: ["nvml", "proc"]
                .into_iter()
                .chain(fixture.leases.as_ref().map(|_| "redis"))
                .chain(fixture.actors.iter().any(|actor| actor.quota.is_some()).then_some("quota"))
                .chain(fixture.has_mps().then_some("mps"))
                .chain((!fixture.jobs.is_empty()).then_some("slurm"))
                .map(up)
                .collect(),
            quotas: quotas(fixture, (sample, &gpus)),
            mps: mps(fixture, sample),
            slurm: fixture.slurm(sample),
            gpus,
            processes,
            groups: fixture.actors.iter().filter_map(TestProcess::groups).collect(),
            relatives: fixture.up("proc", sample).then_some(relatives),
            leases: fixture.pool(sample),
            ..wire::Snapshot::default()
        }
    }

    fn gpu(&self, place: usize, sample: usize) -> wire::Gpu {
        let device = &self.fixture.devices[place];
        let answers = device.answers(sample) && self.fixture.up("nvml", sample);
        let on_it = |actor: &&TestProcess| actor.holds.contains(&place) && actor.is_there(sample);
        let actors = self.fixture.actors.iter().filter(|_| answers).filter(on_it);
        let actors: Vec<&TestProcess> = actors.collect();
        let holders: Vec<wire::Holder> = actors.iter().map(|actor| actor.holder(sample)).collect();
        let known: Option<u64> = holders.iter().map(|holder| holder.memory).sum();
        let unaccounted = match device.unaccounted {
            Timeline::Never => Some(0),
            _ => device.unaccounted.at(sample).map(whole),
        };
        let of_holders = holders.iter().filter_map(|holder| holder.memory).sum::<u64>();
        let used = device.used.at(sample).map_or(of_holders + unaccounted.unwrap_or_default(), whole);
        wire::Gpu {
            index: device.index.clone(),
            uuid: Some(device.uuid.clone()),
            fault: (!answers).then_some(Fault::Timeout.into()),
            mig: device.mig,
            memory: answers.then(|| wire::Memory {
                total: device.memory,
                free: device.memory.saturating_sub(used),
                used,
                unaccounted: known.and(unaccounted).and_then(|bytes| i64::try_from(bytes).ok()),
                unreleased: device.unreleased.at(sample).map(whole),
                ..wire::Memory::default()
            }),
            utilization: device.gpu_util.at(sample).filter(|_| answers).map(percent),
            listed: answers.then_some(holders.len() as u64),
            unlisted_processes: device.unlisted.at(sample).map(whole),
            recovery_action: device.recovery_action.at(sample).as_deref().map(Word::from),
            clock_events: device.clock_event.at(sample).map(|event| vec![event.as_str().into()]),
            row_remap_pending: device.row_remap_pending.at(sample).map(|flag| flag > 0.0),
            row_remap_failed: device.row_remap_failed.at(sample).map(|flag| flag > 0.0),
            ecc_uncorrected: device.ecc_uncorrected.at(sample).map(whole),
            xids: device.xid.at(sample).map(|xid| (whole(xid), 1)).into_iter().collect(),
            cgroups: cgroups(&actors, sample),
            holders,
            ..wire::Gpu::default()
        }
    }

    fn process(&self, actor: &TestProcess, counters: Counters, sample: usize) -> wire::Process {
        if !self.fixture.up("proc", sample) {
            return unconfirmed(actor, State::Unknown);
        }
        let start_ticks = self.fixture.start_ticks(actor);
        let tree = || format!("tree:{}@{start_ticks}", actor.pid);
        let facts = wire::Facts {
            cpu_seconds: counters.cpu_seconds,
            reaped_cpu_seconds: actor.cpu_util.at(sample).map(|_| 0.0),
            io_bytes: actor.io_rate.at(sample).map(|_| whole(counters.io_bytes)),
            orphaned: actor.orphaned.at(sample).map(|orphaned| orphaned == "true"),
            workload: Some(actor.facts.workload.clone().unwrap_or_else(tree)),
            ..actor.facts.clone()
        };
        let state = state(actor, sample);
        // A process that no longer exists has no data in `/proc`.
        if state == State::Gone {
            return unconfirmed(actor, State::Gone);
        }
        let start_ticks = Some(start_ticks);
        wire::Process { pid: actor.pid, start_ticks, first_seq: None, state, facts: Some(facts) }
    }

    fn relative(&self, actor: &TestProcess, counters: Counters, sample: usize) -> wire::Relative {
        let facts = &actor.facts;
        wire::Relative {
            pid: actor.pid,
            start_ticks: self.fixture.start_ticks(actor),
            ppid: facts.ppid,
            uid: facts.uid,
            user: facts.user.clone(),
            comm: facts.comm.clone(),
            state: state(actor, sample),
            workload: facts.workload.clone().unwrap_or_default(),
            place: Arc::clone(&facts.place),
            exe: facts.exe.clone(),
            exe_uid: facts.exe_uid,
            command: facts.command.clone(),
            cpu_seconds: counters.cpu_seconds,
            reaped_cpu_seconds: 0.0,
        }
    }
}

/// Returns the state of a process at a sample.
fn state(actor: &TestProcess, sample: usize) -> Word<State> {
    actor.state.at(sample).as_deref().map(Word::from).unwrap_or_default()
}

/// Returns a process that only the driver lists.
fn unconfirmed(actor: &TestProcess, state: State) -> wire::Process {
    let first_seq = Some(actor.from as u64 + 1);
    wire::Process { pid: actor.pid, first_seq, state: state.into(), ..wire::Process::default() }
}
