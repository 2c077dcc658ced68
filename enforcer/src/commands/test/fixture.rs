//! The node that a rule test describes: GPUs, processes and leases, each value a series over the test's samples.

use std::time::Duration;

use bailiff_engine::yaml::{self, Faults, Fields};
use bailiff_snapshot::slurm::JobId;
use bailiff_snapshot::{Claim, Held, Place, Why, Word, millis, wire};

use super::parse::{string, strings};
use super::series::Timeline;

/// Uptime of the machine at the start of a test, so that processes can be as old as needed.
pub(super) const UPTIME: Duration = Duration::from_hours(24 * 365);

/// The node of a test.
#[derive(Debug)]
pub(super) struct Fixture {
    pub(super) interval: Duration,
    pub(super) start: Duration,
    pub(super) devices: Vec<Device>,
    pub(super) actors: Vec<TestProcess>,
    /// `None` if there is no pool.
    pub(super) leases: Option<Vec<Lease>>,
    pub(super) jobs: Vec<TestJob>,
    pub(super) intervals: Timeline<f64>,
    pub(super) sources: Vec<(String, Timeline<f64>)>,
}

/// A GPU.
#[derive(Debug, Default)]
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
    pub(super) recovery_action: Timeline<String>,
    pub(super) clock_event: Timeline<String>,
    pub(super) row_remap_pending: Timeline<f64>,
    pub(super) row_remap_failed: Timeline<f64>,
    pub(super) ecc_uncorrected: Timeline<f64>,
    /// Number of an Xid that has occurred.
    pub(super) xid: Timeline<f64>,
    pub(super) answers: Timeline<f64>,
}

impl Device {
    /// Returns the default: GPU 0.
    pub(super) fn usual() -> Self {
        Self {
            index: "0".to_owned(),
            uuid: "GPU-0".to_owned(),
            memory: 80 << 30,
            answers: Timeline::Always(1.0),
            ..Self::default()
        }
    }

    pub(super) fn answers(&self, sample: usize) -> bool {
        self.answers.at(sample).is_some_and(|answers| answers > 0.0)
    }
}

/// A process.
#[derive(Debug)]
pub(super) struct TestProcess {
    pub(super) pid: u32,
    /// Facts that do not change.
    pub(super) facts: wire::Facts,
    /// Indexes of its GPUs.
    pub(super) holds: Vec<usize>,
    pub(super) context: String,
    pub(super) age: Duration,
    /// First sample with the process.
    pub(super) from: usize,
    /// First sample without it.
    pub(super) until: usize,
    /// Limit of its quota.
    pub(super) quota: Option<u64>,
    /// GPU memory limit of its cgroup, [`NO_LIMIT`](bailiff_snapshot::cgroup_memory::NO_LIMIT) for none.
    pub(super) cgroup_limit: Option<u64>,
    pub(super) quota_denied: Timeline<f64>,
    pub(super) mps_status: Timeline<String>,
    pub(super) vram: Timeline<f64>,
    pub(super) gpu_util: Timeline<f64>,
    pub(super) cpu_util: Timeline<f64>,
    pub(super) io_rate: Timeline<f64>,
    /// Number of an Xid that is attributed to it.
    pub(super) xid: Timeline<f64>,
    pub(super) state: Timeline<String>,
    pub(super) orphaned: Timeline<String>,
}

/// A lease.
#[derive(Debug)]
pub(super) struct Lease {
    pub(super) held: Held,
    /// Index of the process that holds it.
    pub(super) holder: Option<usize>,
    pub(super) age: Duration,
    pub(super) from: usize,
    pub(super) until: usize,
    pub(super) alive: Timeline<String>,
    pub(super) silent: Timeline<f64>,
}

/// A Slurm job.
#[derive(Debug)]
pub(super) struct TestJob {
    pub(super) job: JobId,
    pub(super) uid: u32,
    pub(super) user: String,
    /// Indexes of its GPUs.
    pub(super) gpus: Vec<usize>,
    pub(super) age: Duration,
    pub(super) from: usize,
    pub(super) until: usize,
    /// State of its GPUs.
    pub(super) state: Timeline<String>,
}

/// Parses the facts of a process that do not change.
pub(super) fn facts(fields: &Fields<'_>, uid: Option<u32>, faults: &mut Faults) -> wire::Facts {
    let groups = fields.given("groups", strings, faults);
    let parent = fields.given("parent", yaml::count, faults);
    let restored = fields.given("restored", yaml::flag, faults).unwrap_or_default();
    let mut text = |name: &str| fields.given(name, string, faults);
    let place = Place {
        container: text("container"),
        pod_uid: text("pod"),
        pod: text("pod"),
        namespace: text("namespace"),
        slurm_job: text("slurm_job"),
        cgroup: text("cgroup").unwrap_or_else(|| "/test".to_owned()),
        ..Place::default()
    };
    let named = [("slurm", &place.slurm_job), ("container", &place.container), ("pod", &place.pod_uid)];
    let named = named.into_iter().find_map(|(kind, name)| Some(format!("{kind}:{}", name.as_ref()?)));
    wire::Facts {
        comm: text("comm").unwrap_or_else(|| "python3".to_owned()),
        ppid: parent.unwrap_or(1),
        uid,
        user: uid.map(|_| text("user").unwrap_or_else(|| "user".to_owned())),
        place: place.into(),
        command: text("cmdline"),
        workload: text("workload").or(named),
        exe: text("exe"),
        groups,
        role: text("role").as_deref().map(Word::from),
        claim: text("lease").map_or(Claim::Nothing, Claim::Lease),
        notebook: text("notebook"),
        ancestors: Some(Vec::new()),
        restored,
        ..wire::Facts::default()
    }
}

impl Fixture {
    /// Returns the length of the longest series.
    pub(super) fn samples(&self) -> usize {
        let devices = self.devices.iter().flat_map(|device| {
            [
                &device.gpu_util,
                &device.used,
                &device.unaccounted,
                &device.unreleased,
                &device.unlisted,
                &device.row_remap_pending,
                &device.row_remap_failed,
                &device.ecc_uncorrected,
                &device.xid,
                &device.answers,
            ]
            .map(Timeline::samples)
            .into_iter()
            .chain([&device.recovery_action, &device.clock_event].map(Timeline::samples))
        });
        let actors = self.actors.iter().flat_map(|actor| {
            let numbers = [&actor.vram, &actor.gpu_util, &actor.cpu_util, &actor.io_rate, &actor.xid]
                .map(Timeline::samples);
            numbers.into_iter().chain([actor.state.samples(), actor.orphaned.samples()])
        });
        let sources = self.sources.iter().map(|(_, source)| source.samples());
        let leases = self.leases.iter().flatten().map(Lease::samples);
        let jobs = self.jobs.iter().map(TestJob::samples);
        devices
            .chain(actors)
            .chain(leases)
            .chain(jobs)
            .chain(sources)
            .chain([self.intervals.samples()])
            .max()
            .unwrap_or_default()
    }

    pub(super) fn since_boot(&self, sample: usize) -> Duration {
        UPTIME + self.interval.saturating_mul(u32::try_from(sample).unwrap_or(u32::MAX))
    }

    /// Returns whether there is an MPS server.
    pub(super) fn has_mps(&self) -> bool {
        self.actors.iter().any(|actor| !matches!(actor.mps_status, Timeline::Never))
    }

    /// Returns the start time of a process, in ticks of 10 ms since boot.
    pub(super) fn start_ticks(&self, actor: &TestProcess) -> u64 {
        millis(self.since_boot(actor.from).saturating_sub(actor.age)) / 10
    }

    pub(super) fn up(&self, source: &str, sample: usize) -> bool {
        let source = self.sources.iter().find(|(name, _)| name == source);
        source.is_none_or(|(_, play)| play.at(sample).is_some_and(|up| up > 0.0))
    }
}

impl TestProcess {
    pub(super) fn is_there(&self, sample: usize) -> bool {
        (self.from..self.until).contains(&sample)
    }

    /// Returns its owner, with the owner's groups.
    pub(super) fn groups(&self) -> Option<(u32, Vec<String>)> {
        let facts = &self.facts;
        facts.uid.zip(facts.groups.clone())
    }

    pub(super) fn holder(&self, sample: usize) -> wire::Holder {
        let utilization = self.gpu_util.at(sample).map(percent);
        wire::Holder {
            pid: self.pid,
            kinds: self.context.clone(),
            memory: self.vram.at(sample).map(whole),
            utilization,
            unknown: utilization.is_none().then_some(Why::Failed),
            idle_ms: 0,
            xids: self.xid.at(sample).map(|xid| (whole(xid), 1)).into_iter().collect(),
        }
    }
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked: not below nothing")]
pub(super) fn whole(number: f64) -> u64 {
    number.round() as u64
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked: from 0 to 100")]
pub(super) fn percent(ratio: f64) -> u32 {
    (ratio * 100.0).round() as u32
}
