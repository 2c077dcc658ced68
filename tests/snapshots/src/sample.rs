//! Samples as the sampler returns them, and snapshots that are made from them.

use std::collections::BTreeMap;
use std::time::Duration;

use bailiff_snapshot::{
    About, Answer, BootId, Claim, DeviceSampler, Driver, Engines, Entry, Facts, Fault, Gaps, GpuId,
    GpuSample, Kinds, Moment, PidNamespace, Place, ProcessKey, Reading, Sample, Seen, Snapshot, State,
    UtilSample,
};

/// Returns sample `seq` of a node with these GPUs and processes, one interval after the previous sample.
pub fn sample(
    (seq, interval): (u64, Duration),
    gpus: Vec<GpuSample>,
    processes: impl IntoIterator<Item = (u32, Seen)>,
) -> Sample {
    let boot = interval * u32::try_from(seq).unwrap_or(u32::MAX);
    Sample {
        seq,
        at: Moment { wall: Duration::from_secs(1_700_000_000) + boot, boot },
        took: Duration::ZERO,
        interval,
        boot_id: Some(BootId("boot".into())),
        namespace: PidNamespace::Host,
        sources: BTreeMap::new(),
        driver: Driver::default(),
        gpus: gpus.into_iter().map(|gpu| GpuSample { entries_at: boot, ..gpu }).collect(),
        processes: processes.into_iter().collect(),
        relatives: None,
        groups: BTreeMap::new(),
        device_processes: None,
        leases: None,
        quotas: None,
        slurm: None,
        pod_resources: None,
        kernel_log: None,
        mps: None,
        gaps: Gaps::default(),
        workers_hung: 0,
    }
}

/// Returns a GPU that lists these entries.
pub fn gpu((index, uuid): (u32, &str), entries: Vec<Entry>) -> GpuSample {
    let about = About { id: Some(GpuId(uuid.to_owned())), ..About::unnamed(index) };
    GpuSample { fault: None, entries: Some(entries), ..GpuSample::faulty(about, Fault::Error) }
}

/// Returns an entry of the driver's list: a process that computes.
pub fn entry(pid: u32, memory: Option<u64>) -> Entry {
    Entry { pid, memory, kinds: Kinds { compute: true, ..Kinds::default() }, peak: None }
}

/// Returns a reading with these process samples and, since the previous reading, this maximum utilization of the
/// device in percent.
pub fn reading(stamp: u64, maximum: u32, samples: Vec<UtilSample>) -> Reading {
    Reading {
        since: 1,
        answer: if samples.is_empty() { Answer::Nothing } else { Answer::Samples(samples) },
        sampler: DeviceSampler::Stamped { newest: stamp, maximum, filled: false },
        ..Reading::default()
    }
}

/// Returns the driver's sample of a process that used the streaming multiprocessors.
pub fn used(pid: u32, stamp: u64, sm: u32) -> UtilSample {
    UtilSample { pid, stamp, engines: Engines { sm, ..Engines::default() } }
}

/// Returns a sleeping process of user 1000, in a session.
pub fn facts(key: ProcessKey) -> Facts {
    Facts {
        key,
        state: State::Sleeping,
        ppid: 1,
        comm: "python3".into(),
        uid: Some(1000),
        user: None,
        place: Place { cgroup: "/user.slice/user-1000.slice/session-1.scope".into(), ..Place::default() },
        command: None,
        started: None,
        cpu_seconds: 0.0,
        io: None,
        orphaned: None,
        reaped_cpu_seconds: None,
        workload: None,
        exe: None,
        exe_uid: None,
        role: None,
        claim: Claim::Unread,
        ancestors: None,
        restored: false,
        reused_pid: false,
        notebook: None,
        unread_relatives: false,
    }
}

/// Returns what `/proc` shows of this process, by pid.
pub fn found(facts: Facts) -> (u32, Seen) {
    (facts.key.pid, Seen::Found(Box::new(facts)))
}

/// Returns the snapshot after these samples.
///
/// # Panics
/// If there is no sample.
pub fn walk(samples: impl IntoIterator<Item = Sample>) -> Snapshot {
    let joined = samples.into_iter().fold(None, |last, next| Some(Snapshot::between(last.as_ref(), next)));
    #[expect(clippy::expect_used, reason = "a test may fail loudly")]
    joined.expect("at least one sample")
}
