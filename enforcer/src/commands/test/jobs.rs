//! The Slurm jobs of a test.

use std::time::Duration;

use bailiff_snapshot::slurm::{AllocatedGpu, JobRecord, SlurmNode};
use bailiff_snapshot::{Allocation, AllocationState, millis};

use super::fixture::{Device, Fixture, TestJob};
use super::parse::{string, strings, table, times, words};
use bailiff_engine::yaml::{Fault, Faults, Fields, Node, count};

impl TestJob {
    /// Parses a job.
    pub(super) fn of(
        node: &Node,
        (devices, interval): (&[Device], Duration),
        faults: &mut Faults,
    ) -> Option<Self> {
        let fields = Fields::open(node, table("job"), faults)?;
        let series = fields.map("series", table("job_series"), faults);
        let mut gpus = Vec::new();
        for index in fields.given("gpus", strings, faults).unwrap_or_else(|| vec!["0".to_owned()]) {
            match devices.iter().position(|device| device.index == index) {
                Some(place) => gpus.push(place),
                None => faults.push(Fault::error(&node.at, format!("there is no GPU {index:?}"))),
            }
        }
        let (from, until, age) = times(&fields, interval, faults);
        let states = AllocationState::ALL.map(AllocationState::name);
        let job = match fields.given("job", string, faults)?.parse() {
            Ok(job) => job,
            Err(error) => {
                faults.push(Fault::error(&node.at, format!("{error}")));
                return None;
            }
        };
        Some(Self {
            job,
            uid: fields.given("uid", count, faults).unwrap_or(1000),
            user: fields.given("user", string, faults).unwrap_or_else(|| "user".to_owned()),
            gpus,
            age,
            from,
            until,
            state: words(&series, ("state", &states), faults).unwrap_or_default(),
        })
    }

    pub(super) fn samples(&self) -> usize {
        self.state.samples()
    }

    fn record(&self, fixture: &Fixture) -> JobRecord {
        let gpus = self.gpus.iter().filter_map(|place| fixture.devices.get(*place));
        let allocated = |gpu: &Device| AllocatedGpu { position: 0, minor: 0, uuid: Some(gpu.uuid.clone()) };
        JobRecord {
            boot_id: "test".to_owned(),
            job: self.job.clone(),
            sluid: None,
            uid: self.uid,
            user: Some(self.user.clone()),
            account: None,
            node: "test".to_owned(),
            gpus: Some(gpus.map(allocated).collect()),
            boot_ms: millis(fixture.since_boot(self.from).saturating_sub(self.age)),
        }
    }

    fn allocations<'a>(
        &'a self,
        fixture: &'a Fixture,
        sample: usize,
    ) -> impl Iterator<Item = Allocation> + 'a {
        let state = self.state.at(sample);
        let state = AllocationState::ALL.into_iter().find(|known| state.as_deref() == Some(known.name()));
        let state = state.unwrap_or(AllocationState::Unknown);
        let gpus = self.gpus.iter().filter_map(|place| fixture.devices.get(*place));
        gpus.map(move |gpu| Allocation {
            job: self.job.clone(),
            uid: self.uid,
            user: Some(self.user.clone()),
            account: None,
            gpu: gpu.index.clone(),
            gpu_uuid: Some(gpu.uuid.clone()),
            state,
            unused_ms: None,
            used: matches!(state, AllocationState::InUse | AllocationState::Idle),
            complete: state == AllocationState::NeverUsed,
        })
    }
}

impl Fixture {
    /// Returns Slurm's part of a sample, if there are jobs and the source responds.
    pub(super) fn slurm(&self, sample: usize) -> Option<SlurmNode> {
        if self.jobs.is_empty() || !self.up("slurm", sample) {
            return None;
        }
        let there = || self.jobs.iter().filter(|job| (job.from..job.until).contains(&sample));
        Some(SlurmNode {
            jobs: there().map(|job| job.record(self)).collect(),
            allocations: there().flat_map(|job| job.allocations(self, sample)).collect(),
            ..SlurmNode::default()
        })
    }
}
