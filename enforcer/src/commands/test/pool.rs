//! The lease pool of a test.

use std::time::Duration;

use bailiff_snapshot::{GpuState, Held, Leases, PoolGpu, ProcessKey, Truth, millis};

use super::fixture::{Device, Fixture, Lease, TestProcess};
use super::parse::{plays, string, strings, table, times, words};
use super::series::Timeline;
use bailiff_engine::value::Unit;
use bailiff_engine::yaml::{Fault, Faults, Fields, Node, count};

/// Pids of holders that are not targets start here.
const OTHERS: u32 = 4_000_000;

impl Lease {
    /// Parses the lease at this index of the list.
    pub(super) fn of(
        node: &Node,
        place: u32,
        (devices, actors, interval): (&[Device], &[TestProcess], Duration),
        faults: &mut Faults,
    ) -> Option<Self> {
        let fields = Fields::open(node, table("lease"), faults)?;
        let series = fields.map("series", table("lease_series"), faults);
        let gpus = fields.given("gpus", strings, faults).unwrap_or_else(|| vec!["0".to_owned()]);
        for index in gpus.iter().filter(|index| !devices.iter().any(|device| device.index == **index)) {
            faults.push(Fault::error(&node.at, format!("there is no GPU {index:?}")));
        }
        let pid: Option<u32> = fields.given("holder", count, faults);
        let holder = pid.and_then(|pid| actors.iter().position(|actor| actor.pid == pid));
        if let (Some(pid), None) = (pid, holder) {
            faults.push(Fault::error(&node.at, format!("there is no process {pid}")));
        }
        let (from, until, age) = times(&fields, interval, faults);
        let alive = words(&series, ("holder_alive", &["true", "false"]), faults);
        Some(Self {
            held: Held {
                lease: fields.given("lease", string, faults)?,
                token: u64::from(place) + 1,
                gpus,
                user: Some(fields.given("user", string, faults).unwrap_or_else(|| "user".to_owned())),
                uid: Some(fields.given("uid", count, faults).unwrap_or(1000)),
                mode: Some("run".to_owned()),
                priority: fields.given("priority", count, faults).unwrap_or_default(),
                holder: Some(ProcessKey { pid: OTHERS + place, start_ticks: 1 }),
                left_ms: 60_000,
                ..Held::default()
            },
            holder,
            age,
            from,
            until,
            alive: alive.unwrap_or(Timeline::Always("true".to_owned())),
            silent: plays(&series, ("heartbeat_age", Unit::Duration), faults),
        })
    }

    pub(super) fn samples(&self) -> usize {
        self.alive.samples().max(self.silent.samples())
    }

    fn is_there(&self, sample: usize) -> bool {
        (self.from..self.until).contains(&sample)
    }

    fn held(&self, fixture: &Fixture, sample: usize) -> Held {
        let age = fixture.interval.saturating_mul(u32::try_from(sample - self.from).unwrap_or(u32::MAX));
        let holder = self.holder.and_then(|place| fixture.actors.get(place));
        let silent = self.silent.at(sample).and_then(|silent| Duration::try_from_secs_f64(silent).ok());
        Held {
            age_ms: Some(millis(self.age + age)),
            silent_ms: silent.map(millis),
            holder: holder.map_or(self.held.holder, |actor| {
                Some(ProcessKey { pid: actor.pid, start_ticks: fixture.start_ticks(actor) })
            }),
            alive: self.alive.at(sample).map_or(Truth::Unknown, |alive| (alive == "true").into()),
            ..self.held.clone()
        }
    }
}

impl Fixture {
    /// Returns the pool at a sample, if its server responds.
    pub(super) fn pool(&self, sample: usize) -> Option<Leases> {
        let leases = self.leases.as_ref().filter(|_| self.answered(sample))?;
        let before = sample.checked_sub(1).filter(|before| self.answered(*before));
        let of = |device: &Device, sample: usize| {
            let theirs = |lease: &&Lease| lease.is_there(sample) && lease.held.gpus.contains(&device.index);
            leases.iter().find(theirs).map(|lease| lease.held.lease.clone())
        };
        let gpu = |device: &Device| {
            let lease = of(device, sample);
            let same = before.is_some_and(|before| of(device, before) == lease);
            PoolGpu {
                id: device.index.clone(),
                uuid: Some(device.uuid.clone()),
                gpu_state: if lease.is_some() { GpuState::Leased } else { GpuState::Idle },
                since_ms: if same { millis(self.interval) } else { 0 },
                lease,
                ..PoolGpu::default()
            }
        };
        let there = leases.iter().filter(|lease| lease.is_there(sample));
        Some(Leases {
            boot_ms: millis(self.since_boot(sample)),
            before_ms: before.map(|before| millis(self.since_boot(before))),
            gpus: self.devices.iter().map(gpu).collect(),
            held: there.map(|lease| lease.held(self, sample)).collect(),
            ..Leases::default()
        })
    }

    fn answered(&self, sample: usize) -> bool {
        self.up("redis", sample) && self.intervals.at(sample).is_some_and(|interval| interval > 0.0)
    }
}
