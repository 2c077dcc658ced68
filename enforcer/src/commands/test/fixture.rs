//! Plays a test: one made-up snapshot an interval, in the form that the exporter's stream has.

use std::sync::Arc;
use std::time::Duration;

use bailiff_snapshot::{Place, Why, wire};

use super::mps::mps;
use super::pool::{self, Lease};
use super::quota::quotas;
use super::series::Timeline;
use super::written;

/// The machine has been up for that long when a test begins, so that everybody can be as old as they like.
const UPTIME: Duration = Duration::from_hours(24 * 365);

/// Everything that a test shows.
#[derive(Debug)]
pub(super) struct Fixture {
    pub(super) interval: Duration,
    pub(super) start: Duration,
    pub(super) devices: Vec<Device>,
    pub(super) actors: Vec<TestProcess>,
    /// None if there is no pool.
    pub(super) leases: Option<Vec<Lease>>,
    pub(super) intervals: Timeline<f64>,
    pub(super) sources: Vec<(String, Timeline<f64>)>,
}

/// A GPU.
#[derive(Debug)]
pub(super) struct Device {
    pub(super) index: String,
    pub(super) uuid: String,
    pub(super) memory: u64,
    pub(super) mig: bool,
    pub(super) gpu_util: Timeline<f64>,
    pub(super) used: Timeline<f64>,
    pub(super) unaccounted: Timeline<f64>,
    pub(super) unreleased: Timeline<f64>,
    pub(super) unlisted: Timeline<f64>,
    pub(super) answers: Timeline<f64>,
}

impl Device {
    /// GPU 0, where a test names none.
    pub(super) fn usual() -> Self {
        Self {
            index: "0".to_owned(),
            uuid: "GPU-0".to_owned(),
            memory: 80 << 30,
            mig: false,
            gpu_util: Timeline::Never,
            used: Timeline::Never,
            unaccounted: Timeline::Never,
            unreleased: Timeline::Never,
            unlisted: Timeline::Never,
            answers: Timeline::Always(1.0),
        }
    }

    fn answers(&self, sample: usize) -> bool {
        self.answers.at(sample).is_some_and(|answers| answers > 0.0)
    }
}

/// A process.
#[derive(Debug)]
pub(super) struct TestProcess {
    pub(super) pid: u32,
    pub(super) facts: ProcessFacts,
    /// Places of GPUs.
    pub(super) holds: Vec<usize>,
    pub(super) context: String,
    pub(super) age: Duration,
    /// The first sample that it is there.
    pub(super) from: usize,
    /// The first sample that it is not.
    pub(super) until: usize,
    /// The limit of its quota.
    pub(super) quota: Option<u64>,
    pub(super) quota_denied: Timeline<f64>,
    pub(super) mps_status: Timeline<String>,
    pub(super) vram: Timeline<f64>,
    pub(super) gpu_util: Timeline<f64>,
    pub(super) cpu_util: Timeline<f64>,
    pub(super) io_rate: Timeline<f64>,
    pub(super) state: Timeline<String>,
    pub(super) orphaned: Timeline<String>,
}

/// The facts of a process that do not change.
#[derive(Debug)]
pub(super) struct ProcessFacts {
    facts: wire::Facts,
}

impl ProcessFacts {
    /// As written.
    pub(super) fn of(process: &written::Process, uid: Option<u32>) -> Self {
        let cgroup = process.cgroup.clone().unwrap_or_else(|| "/test".to_owned());
        let place = Place {
            container: process.container.clone(),
            runtime: None,
            pod_uid: process.pod.clone(),
            pod: process.pod.clone(),
            namespace: process.namespace.as_ref().map(|name| name.value.clone()),
            slurm_job: process.slurm_job.clone(),
            slurm_step: None,
            unit: None,
            boundary: None,
            cgroup,
        };
        let named = [("slurm", &place.slurm_job), ("container", &place.container), ("pod", &place.pod_uid)];
        let named = named.into_iter().find_map(|(kind, name)| Some(format!("{kind}:{}", name.as_ref()?)));
        let facts = wire::Facts {
            comm: process.comm.clone().unwrap_or_else(|| "python3".to_owned()),
            ppid: process.parent.unwrap_or(1),
            uid,
            user: uid.map(|_| process.user.clone().unwrap_or_else(|| "user".to_owned())),
            place: place.into(),
            command: process.cmdline.clone(),
            cpu_seconds: 0.0,
            io_bytes: None,
            orphaned: None,
            reaped_cpu_seconds: None,
            workload: process.workload.clone().or(named),
            exe: process.exe.clone(),
            groups: process.groups.clone(),
            role: process.role.clone(),
            claim: pool::claim(process.lease.as_ref()),
            ancestors: Some(Vec::new()),
        };
        Self { facts }
    }
}

/// What counters of one process have come to.
#[derive(Debug, Clone, Copy, Default)]
struct Counters {
    cpu_seconds: f64,
    io_bytes: f64,
}

/// A stage at work.
#[derive(Debug)]
pub(super) struct TimelineReader<'a> {
    fixture: &'a Fixture,
    counters: Vec<Counters>,
    next: usize,
}

impl Fixture {
    /// As many samples as the longest series has.
    pub(super) fn samples(&self) -> usize {
        let devices = self.devices.iter().flat_map(|device| {
            [
                &device.gpu_util,
                &device.used,
                &device.unaccounted,
                &device.unreleased,
                &device.unlisted,
                &device.answers,
            ]
            .map(Timeline::samples)
        });
        let actors = self.actors.iter().flat_map(|actor| {
            let numbers =
                [&actor.vram, &actor.gpu_util, &actor.cpu_util, &actor.io_rate].map(Timeline::samples);
            numbers.into_iter().chain([actor.state.samples(), actor.orphaned.samples()])
        });
        let sources = self.sources.iter().map(|(_, source)| source.samples());
        let leases = self.leases.iter().flatten().map(Lease::samples);
        devices
            .chain(actors)
            .chain(leases)
            .chain(sources)
            .chain([self.intervals.samples()])
            .max()
            .unwrap_or_default()
    }

    /// Begins.
    pub(super) fn play(&self) -> TimelineReader<'_> {
        TimelineReader { fixture: self, counters: vec![Counters::default(); self.actors.len()], next: 0 }
    }

    pub(super) fn since_boot(&self, sample: usize) -> Duration {
        UPTIME + self.interval.saturating_mul(u32::try_from(sample).unwrap_or(u32::MAX))
    }

    /// Start time of a process, in ticks of 10 ms since boot.
    /// Whether there is an MPS server.
    fn has_mps(&self) -> bool {
        self.actors.iter().any(|actor| !matches!(actor.mps_status, Timeline::Never))
    }

    pub(super) fn start_ticks(&self, actor: &TestProcess) -> u64 {
        millis(self.since_boot(actor.from).saturating_sub(actor.age)) / 10
    }

    pub(super) fn up(&self, source: &str, sample: usize) -> bool {
        let source = self.sources.iter().find(|(name, _)| name == source);
        source.is_none_or(|(_, play)| play.at(sample).is_some_and(|up| up > 0.0))
    }
}

impl TimelineReader<'_> {
    /// The next sample's snapshot; none if its interval is missed.
    pub(super) fn next(&mut self) -> Option<wire::Snapshot> {
        let sample = self.next;
        self.next += 1;
        self.count(sample);
        let interval = self.fixture.intervals.at(sample).is_some_and(|interval| interval > 0.0);
        interval.then(|| self.snapshot(sample))
    }

    /// Counters advance between samples too.
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
            (name.to_owned(), wire::Source { up, fault: (!up).then(|| "timeout".to_owned()) })
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
            pid_namespace: "host".to_owned(),
            sources: ["nvml", "proc"]
                .into_iter()
                .chain(fixture.leases.as_ref().map(|_| "redis"))
                .chain(fixture.actors.iter().any(|actor| actor.quota.is_some()).then_some("quota"))
                .chain(fixture.has_mps().then_some("mps"))
                .map(up)
                .collect(),
            quotas: quotas(fixture, (sample, &gpus)),
            mps: mps(fixture, sample),
            gpus,
            processes,
            device_processes: None,
            groups: fixture.actors.iter().filter_map(TestProcess::groups).collect(),
            relatives: fixture.up("proc", sample).then_some(relatives),
            leases: fixture.pool(sample),
            lost: Vec::new(),
        }
    }

    fn gpu(&self, place: usize, sample: usize) -> wire::Gpu {
        let device = &self.fixture.devices[place];
        let answers = device.answers(sample) && self.fixture.up("nvml", sample);
        let on_it = |actor: &&TestProcess| actor.holds.contains(&place) && actor.is_there(sample);
        let holders = self.fixture.actors.iter().filter(|_| answers).filter(on_it);
        let holders: Vec<wire::Holder> = holders.map(|actor| actor.holder(sample)).collect();
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
            name: None,
            parent_uuid: None,
            minor: None,
            fault: (!answers).then(|| "timeout".to_owned()),
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
            compute_mode: None,
            listed: answers.then_some(holders.len() as u64),
            unlisted_processes: device.unlisted.at(sample).map(whole),
            holders,
            ..wire::Gpu::default()
        }
    }

    fn process(&self, actor: &TestProcess, counters: Counters, sample: usize) -> wire::Process {
        if !self.fixture.up("proc", sample) {
            let first_seq = Some(actor.from as u64 + 1);
            let state = "unknown".to_owned();
            return wire::Process { pid: actor.pid, start_ticks: None, first_seq, state, facts: None };
        }
        let start_ticks = self.fixture.start_ticks(actor);
        let tree = || format!("tree:{}@{start_ticks}", actor.pid);
        let facts = wire::Facts {
            cpu_seconds: counters.cpu_seconds,
            reaped_cpu_seconds: actor.cpu_util.at(sample).map(|_| 0.0),
            io_bytes: actor.io_rate.at(sample).map(|_| whole(counters.io_bytes)),
            orphaned: actor.orphaned.at(sample).map(|orphaned| orphaned == "true"),
            workload: Some(actor.facts.facts.workload.clone().unwrap_or_else(tree)),
            ..actor.facts.facts.clone()
        };
        let state = actor.state.at(sample).unwrap_or_else(|| "unknown".to_owned());
        // What is gone has no `/proc` that could say anything of it.
        if state == "gone" {
            let first_seq = Some(actor.from as u64 + 1);
            return wire::Process { pid: actor.pid, start_ticks: None, first_seq, state, facts: None };
        }
        let start_ticks = Some(start_ticks);
        wire::Process { pid: actor.pid, start_ticks, first_seq: None, state, facts: Some(facts) }
    }

    fn relative(&self, actor: &TestProcess, counters: Counters, sample: usize) -> wire::Relative {
        let facts = &actor.facts.facts;
        wire::Relative {
            pid: actor.pid,
            start_ticks: self.fixture.start_ticks(actor),
            ppid: facts.ppid,
            uid: facts.uid,
            user: facts.user.clone(),
            comm: facts.comm.clone(),
            state: actor.state.at(sample).unwrap_or_else(|| "unknown".to_owned()),
            workload: facts.workload.clone().unwrap_or_default(),
            place: Arc::clone(&facts.place),
            exe: facts.exe.clone(),
            command: facts.command.clone(),
            cpu_seconds: counters.cpu_seconds,
            reaped_cpu_seconds: 0.0,
        }
    }
}

impl TestProcess {
    pub(super) fn is_there(&self, sample: usize) -> bool {
        (self.from..self.until).contains(&sample)
    }

    /// Its owner, and the owner's groups.
    fn groups(&self) -> Option<(u32, Vec<String>)> {
        let facts = &self.facts.facts;
        facts.uid.zip(facts.groups.clone())
    }

    fn holder(&self, sample: usize) -> wire::Holder {
        let utilization = self.gpu_util.at(sample).map(percent);
        wire::Holder {
            pid: self.pid,
            kinds: self.context.clone(),
            memory: self.vram.at(sample).map(whole),
            utilization,
            unknown: utilization.is_none().then_some(Why::Failed),
            idle_ms: 0,
        }
    }
}

pub(super) fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked: not below nothing")]
pub(super) fn whole(number: f64) -> u64 {
    number.round() as u64
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked: from 0 to 100")]
fn percent(ratio: f64) -> u32 {
    (ratio * 100.0).round() as u32
}
