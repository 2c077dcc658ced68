//! The lease pool of a test.

use std::time::Duration;

use bailiff_snapshot::{GpuState, Held, Leases, PoolGpu, ProcessKey, Truth};

use super::fixture::{Device, Fixture, Lease, TestProcess, millis};
use super::parse::{self, Faults};
use super::series::Timeline;
use super::written;
use bailiff_engine::value::Unit;

/// Pids of holders that are not targets start here.
const OTHERS: u32 = 4_000_000;

impl Lease {
    /// Creates the lease at this index of the list.
    pub(super) fn of(
        written: &written::Lease,
        place: u32,
        (devices, actors, interval): (&[Device], &[TestProcess], Duration),
        faults: &mut Faults,
    ) -> Self {
        let gpus = written.gpus.clone().unwrap_or_else(|| vec!["0".to_owned()]);
        for index in gpus.iter().filter(|index| !devices.iter().any(|device| device.index == **index)) {
            faults.0.push(format!("lease {}: there is no GPU {index:?}", written.name));
        }
        let holder = written.holder.and_then(|pid| {
            let place = actors.iter().position(|actor| actor.pid == pid);
            if place.is_none() {
                faults.0.push(format!("lease {}: there is no process {pid}", written.name));
            }
            place
        });
        let (from, until, age) =
            parse::times((&written.from, &written.until, &written.age), interval, faults);
        let held = Held {
            lease: written.name.clone(),
            token: u64::from(place) + 1,
            gpus,
            user: Some(written.user.clone().unwrap_or_else(|| "user".to_owned())),
            uid: Some(written.uid.unwrap_or(1000)),
            mode: Some("run".to_owned()),
            priority: written.priority.unwrap_or_default(),
            holder: Some(ProcessKey { pid: OTHERS + place, start_ticks: 1 }),
            left_ms: 60_000,
            ..Held::default()
        };
        let series = &written.series;
        let alive = series.holder_alive.as_ref();
        Self {
            held,
            holder,
            age,
            from,
            until,
            alive: alive.map_or(Timeline::Always("true".to_owned()), |text| {
                parse::words(text, &["true", "false"], faults)
            }),
            silent: parse::plays(series.heartbeat_age.as_ref(), Unit::Duration, faults),
        }
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
    /// Returns the pool at a sample, if it answers.
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
