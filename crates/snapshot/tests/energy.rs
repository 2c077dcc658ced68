//! Tests how the energy between two samples is split: the parts add up to the increase of the driver's counter, and
//! energy that was not observed belongs to no user.

#![expect(clippy::unnecessary_wraps, reason = "expected parts are compared with parts that may be absent")]

use std::collections::BTreeMap;
use std::time::Duration;

use bailiff_snapshot::energy::MOST_USERS;
use bailiff_snapshot::{
    About, BootId, DeviceSampler, EnergyParts, Engines, Facts, Fault, GpuId, GpuSample, Kinds, MigIds,
    PidNamespace, ProcessKey, Reading, Role, Sample, Seen, Snapshot, Telemetry, UtilSample,
};
use proptest::prelude::*;
use snapshot_fixtures::sample::{self as fixtures, entry, reading, used, walk};

const GPU: &str = "GPU-1";
const INTERVAL: Duration = Duration::from_secs(10);

/// A process on the GPU: pid, user, SM utilization.
type Listed = (u32, &'static str, u32);

fn found((pid, user, _): Listed) -> (u32, Seen) {
    let facts = fixtures::facts(ProcessKey { pid, start_ticks: 7 });
    fixtures::found(Facts { user: Some(user.to_owned()), ..facts })
}

/// Returns sample `n` of a GPU with this counter in millijoules and these processes, which all have driver samples.
fn sample(n: u64, energy: u64, listed: &[Listed]) -> Sample {
    let samples = listed.iter().map(|(pid, _, sm)| used(*pid, n, *sm)).collect();
    let maximum = listed.iter().map(|(.., sm)| *sm).max().unwrap_or_default();
    let entries = listed.iter().map(|(pid, ..)| entry(*pid, Some(1 << 30))).collect();
    let gpu = GpuSample {
        telemetry: Telemetry { energy: Some(energy), ..Telemetry::default() },
        reading: reading(n, maximum, samples),
        ..fixtures::gpu((0, GPU), entries)
    };
    fixtures::sample((n, INTERVAL), vec![gpu], listed.iter().copied().map(found))
}

/// Returns the parts after these samples.
fn parts(samples: impl IntoIterator<Item = Sample>) -> Option<EnergyParts> {
    let snapshot = walk(samples);
    snapshot.energy_parts(&snapshot.gpus[0]).cloned()
}

fn of(users: &[(&str, u64)], idle: u64, unattributed: u64) -> Option<EnergyParts> {
    let users: BTreeMap<String, u64> =
        users.iter().map(|(user, energy)| ((*user).to_owned(), *energy)).collect();
    Some(EnergyParts { users, idle, unattributed })
}

const ALICE: Listed = (41, "alice", 50);
const BOB: Listed = (42, "bob", 25);
const IDLE: Listed = (43, "carol", 0);

#[test]
fn first_sample_has_no_energy() {
    assert_eq!(parts([sample(1, 900, &[ALICE])]), None);
    assert_eq!(parts([sample(1, 900, &[ALICE]), sample(2, 900, &[ALICE])]), of(&[("alice", 0)], 0, 0));
}

#[test]
fn energy_is_split_by_sm_utilization_and_an_idle_user_has_none() {
    let all = [ALICE, BOB, IDLE];
    assert_eq!(
        parts([sample(1, 0, &all), sample(2, 3000, &all)]),
        of(&[("alice", 2000), ("bob", 1000)], 0, 0)
    );
    let again = [(44, "bob", 25), ALICE, BOB];
    assert_eq!(
        parts([sample(1, 0, &again), sample(2, 3000, &again)]),
        of(&[("alice", 1500), ("bob", 1500)], 0, 0)
    );
}

#[test]
fn largest_remainder_is_rounded_up() {
    let all = [(41, "alice", 33), (42, "bob", 33), (43, "carol", 34)];
    let expected = of(&[("alice", 3), ("bob", 3), ("carol", 4)], 0, 0);
    assert_eq!(parts([sample(1, 0, &all), sample(2, 10, &all)]), expected);
    let equal = [(41, "alice", 50), (42, "bob", 50)];
    assert_eq!(parts([sample(1, 0, &equal), sample(2, 1, &equal)]), of(&[("alice", 1), ("bob", 0)], 0, 0));
}

#[test]
fn calm_gpu_is_idle_and_its_power_is_subtracted_from_busy_windows() {
    let (calm, busy) = ([(41, "alice", 1)], [ALICE]);
    let idle = [sample(1, 0, &calm), sample(2, 800_000, &calm), sample(3, 1_500_000, &calm)];
    assert_eq!(parts(idle.clone()), of(&[], 1_500_000, 0));
    let then =
        |increase: u64| parts(idle.clone().into_iter().chain([sample(4, 1_500_000 + increase, &busy)]));
    // The smaller power counts: 700 J in ten seconds.
    assert_eq!(then(5_000_000), of(&[("alice", 4_300_000)], 2_200_000, 0));
    assert_eq!(then(600_000), of(&[("alice", 0)], 2_100_000, 0), "less than the idle power");
    assert_eq!(parts([sample(1, 0, &[]), sample(2, 700, &[])]), of(&[], 700, 0), "without processes");
}

#[test]
fn gpu_is_idle_only_if_its_own_samples_are_calm() {
    type Change = fn(&mut GpuSample);
    let calm = [(41, "alice", 1)];
    let with = |change: Change| {
        let mut now = sample(2, 3000, &calm);
        change(&mut now.gpus[0]);
        parts([sample(1, 0, &calm), now])
    };
    assert_eq!(with(|_| ()), of(&[], 3000, 0));
    let cases: [(&str, Change); 6] = [
        ("the window is too long", |gpu| {
            gpu.reading.sampler = DeviceSampler::Stamped { newest: 2, maximum: 1, filled: true };
        }),
        ("the sampler is silent", |gpu| gpu.reading.sampler = DeviceSampler::Silent),
        ("the sampler has no timestamps", |gpu| {
            gpu.reading.sampler = DeviceSampler::CurrentOnly { utilization: 0 };
        }),
        ("the GPU was busy", |gpu| gpu.reading = reading(2, 2, vec![used(41, 2, 1)])),
        ("the GPU is busy", |gpu| gpu.telemetry.utilization = Some(2)),
        ("an unlisted process was sampled", |gpu| {
            gpu.reading = reading(2, 1, vec![used(41, 2, 1), used(99, 2, 100)]);
        }),
    ];
    for (name, change) in cases {
        assert_eq!(with(change), of(&[], 0, 3000), "{name}");
    }
}

#[test]
fn energy_of_users_beyond_the_limit_is_unattributed() {
    let users: Vec<String> = (0..=MOST_USERS).map(|uid| format!("{uid:03}")).collect();
    let pids = 1000_u32..;
    let of_users = |n, energy| {
        let listed: Vec<Listed> = pids.clone().zip(&users).map(|(pid, _)| (pid, "", 50)).collect();
        let mut sample = sample(n, energy, &listed);
        for (pid, user) in pids.clone().zip(&users) {
            let facts = fixtures::facts(ProcessKey { pid, start_ticks: 7 });
            sample.processes.extend([fixtures::found(Facts { user: Some(user.clone()), ..facts })]);
        }
        sample
    };
    let all = u64::try_from(users.len()).unwrap_or_default();
    let samples = [of_users(1, 0), of_users(2, 10 * all), of_users(3, 20 * all)];
    let parts = parts(samples).unwrap_or_default();
    assert_eq!(parts.users.len(), MOST_USERS);
    assert!(parts.users.values().all(|energy| *energy == 20), "known users keep their part: {parts:?}");
    assert_eq!((parts.idle, parts.unattributed), (0, 20));
}

#[test]
fn unknown_utilization_leaves_all_unattributed() {
    type Change = fn(&mut GpuSample);
    let unknown = |change: Change| {
        let mut now = sample(2, 3000, &[ALICE, BOB]);
        change(&mut now.gpus[0]);
        parts([sample(1, 0, &[ALICE, BOB]), now])
    };
    let cases: [(&str, Change); 6] = [
        ("no samples", |gpu| gpu.reading = reading(2, 90, vec![])),
        ("the call failed", |gpu| gpu.reading = Reading::default()),
        ("an unlisted process was sampled", |gpu| {
            gpu.reading = reading(2, 90, vec![used(41, 2, 50), used(42, 2, 25), used(99, 2, 50)]);
        }),
        ("no list", |gpu| gpu.entries = None),
        ("a process in another namespace", |gpu| gpu.entries.get_or_insert_default().push(entry(0, None))),
        ("the driver's clock stepped", |gpu| {
            gpu.reading.sampler = DeviceSampler::Stamped { newest: 0, maximum: 50, filled: false };
        }),
    ];
    for (name, change) in cases {
        assert_eq!(unknown(change), of(&[], 0, 3000), "{name}");
    }
}

#[test]
fn video_or_copies_without_sm_utilization_are_unattributed() {
    let other = |engines: Engines| {
        let mut now = sample(2, 3000, &[ALICE, IDLE]);
        let video = UtilSample { pid: 43, stamp: 2, engines };
        now.gpus[0].reading = reading(2, 50, vec![used(41, 2, 50), video]);
        parts([sample(1, 0, &[ALICE, IDLE]), now])
    };
    let none = Engines::default();
    for busy in [Engines { decoder: 2, ..none }, Engines { memory: 2, ..none }, Engines { ofa: 90, ..none }] {
        assert_eq!(other(busy), of(&[], 0, 3000), "{busy:?}");
    }
    assert_eq!(other(Engines { decoder: 1, ..none }), of(&[("alice", 3000)], 0, 0));
    assert_eq!(other(Engines { sm: 50, decoder: 80, ..none }), of(&[("alice", 1500), ("carol", 1500)], 0, 0));
}

#[test]
fn processes_without_a_known_user_and_mps_servers_are_unattributed() {
    let with = |seen: Option<Seen>| {
        let mut samples = [sample(1, 0, &[ALICE, BOB]), sample(2, 3000, &[ALICE, BOB])];
        for sample in &mut samples {
            sample.processes.remove(&42);
            sample.processes.extend(seen.clone().map(|seen| (42, seen)));
        }
        parts(samples)
    };
    let (_, bob) = found(BOB);
    assert_eq!(with(Some(bob.clone())), of(&[("alice", 2000), ("bob", 1000)], 0, 0));
    let Seen::Found(facts) = bob else { panic!("it was found") };
    let server = Seen::Found(Box::new(Facts { role: Some(Role::MpsServer), ..*facts }));
    for seen in [Some(server), Some(Seen::Hidden), Some(Seen::Gone), None] {
        assert_eq!(with(seen.clone()), of(&[("alice", 2000)], 0, 1000), "{seen:?}");
    }
}

#[test]
fn clients_of_mps_are_unattributed_while_the_gpu_is_busy() {
    let of_mps = |n, energy, maximum| {
        let mut sample = sample(n, energy, &[ALICE]);
        let gpu = &mut sample.gpus[0];
        gpu.entries
            .iter_mut()
            .flatten()
            .for_each(|entry| entry.kinds = Kinds { mps: true, ..Kinds::default() });
        gpu.reading = reading(n, maximum, vec![]);
        sample
    };
    assert_eq!(parts([of_mps(1, 0, 0), of_mps(2, 500, 90)]), of(&[], 0, 500));
    assert_eq!(parts([of_mps(1, 0, 0), of_mps(2, 500, 0)]), of(&[], 500, 0));
}

#[test]
fn window_with_changed_processes_belongs_to_its_only_user() {
    let (first, second) = ([ALICE], [(51, "alice", 90)]);
    assert_eq!(parts([sample(1, 0, &first), sample(2, 70, &second)]), of(&[("alice", 70)], 0, 0));
    assert_eq!(parts([sample(1, 0, &[]), sample(2, 70, &first)]), of(&[("alice", 70)], 0, 0), "it started");
    for (name, before, now) in [
        ("bob started", vec![ALICE], vec![ALICE, BOB]),
        ("bob exited", vec![ALICE, BOB], vec![ALICE]),
        ("bob replaced alice", vec![ALICE], vec![BOB]),
        ("alice exited", vec![ALICE], vec![]),
        ("alice exited, and carol is idle", vec![ALICE, IDLE], vec![IDLE]),
    ] {
        assert_eq!(parts([sample(1, 0, &before), sample(2, 70, &now)]), of(&[], 0, 70), "{name}");
    }
}

/// A pid that another process has got since is not that of its earlier user.
#[test]
fn energy_of_a_reused_pid_is_not_that_of_its_earlier_user() {
    let reused = |n, energy, user, start_ticks| {
        let mut sample = sample(n, energy, &[(41, user, 50)]);
        let facts = fixtures::facts(ProcessKey { pid: 41, start_ticks });
        sample.processes.extend([fixtures::found(Facts { user: Some(user.to_owned()), ..facts })]);
        sample
    };
    let before = [reused(1, 0, "alice", 7), reused(2, 500, "alice", 7)];
    let then = |later: &[Sample]| parts(before.iter().chain(later).cloned());
    let alice = ("alice", 500);
    let bob = reused(3, 800, "bob", 8);
    assert_eq!(then(std::slice::from_ref(&bob)), of(&[alice], 0, 300), "either of them used it");
    let later = reused(4, 900, "bob", 8);
    assert_eq!(then(&[bob.clone(), later.clone()]), of(&[alice, ("bob", 100)], 0, 300));
    // Alice's process exited in one window, and only Bob's was there in the next one.
    let absent = sample(3, 700, &[]);
    assert_eq!(then(&[absent, later.clone()]), of(&[alice, ("bob", 200)], 0, 200));
    assert_eq!(then(&[later]), of(&[alice], 0, 400), "a sample was lost");
    let same_user = reused(3, 800, "alice", 8);
    assert_eq!(then(&[same_user]), of(&[alice], 0, 300), "the samples may be of either process");
}

#[test]
fn idle_power_is_that_of_windows_of_at_least_a_second() {
    let calm = [(41, "alice", 1)];
    let at = |sample: Sample, milliseconds| {
        let mut sample = sample;
        sample.at.boot = Duration::from_millis(milliseconds);
        sample
    };
    let after_idle_window = |milliseconds: u64| {
        let idle = [at(sample(1, 0, &calm), 10_000), at(sample(2, 100, &calm), 10_000 + milliseconds)];
        let busy = [at(sample(3, 1_000_100, &[ALICE]), 20_000 + milliseconds)];
        parts(idle.into_iter().chain(busy))
    };
    for (milliseconds, idle) in [(1, 0), (999, 0), (1000, 1000), (1001, 990), (2000, 500)] {
        let expected = of(&[("alice", 1_000_000 - idle)], 100 + idle, 0);
        assert_eq!(after_idle_window(milliseconds), expected, "{milliseconds} ms");
    }
}

#[test]
fn energy_over_a_gap_is_unattributed_and_not_lost() {
    let mut unread = sample(2, 0, &[ALICE]);
    unread.gpus[0].telemetry.energy = None;
    let faulty = Sample {
        gpus: vec![GpuSample::faulty(unread.gpus[0].about.clone(), Fault::Timeout)],
        ..unread.clone()
    };
    let empty = Sample { gpus: vec![], ..unread.clone() };
    for gap in [unread, faulty, empty] {
        let then = [sample(1, 100, &[ALICE]), gap, sample(3, 500, &[ALICE])];
        assert_eq!(parts(then.clone()), of(&[], 0, 400));
        let later = then.into_iter().chain([sample(4, 600, &[ALICE])]);
        assert_eq!(parts(later), of(&[("alice", 100)], 0, 400));
    }
}

#[test]
fn counter_that_fell_adds_nothing() {
    let before = [sample(1, 1000, &[ALICE]), sample(2, 1500, &[ALICE])];
    let after = |energy| {
        parts(before.clone().into_iter().chain([sample(3, 1400, &[ALICE]), sample(4, energy, &[ALICE])]))
    };
    assert_eq!(after(1400), of(&[("alice", 500)], 0, 0));
    assert_eq!(after(1450), of(&[("alice", 550)], 0, 0), "counted from its new value");
}

#[test]
fn restart_and_reboot_begin_again_without_a_value() {
    let rebooted =
        |n, energy| Sample { boot_id: Some(BootId("other".into())), ..sample(n, energy, &[ALICE]) };
    let samples = [sample(1, 0, &[ALICE]), sample(2, 500, &[ALICE]), rebooted(3, 900)];
    assert_eq!(parts(samples.clone()), None);
    assert_eq!(parts(samples.into_iter().chain([rebooted(4, 950)])), of(&[("alice", 50)], 0, 0));
}

#[test]
fn driver_without_the_counter_and_gpu_without_uuid_have_no_energy() {
    let without = |n| {
        let mut sample = sample(n, 0, &[ALICE]);
        sample.gpus[0].telemetry.energy = None;
        sample
    };
    assert_eq!(parts([without(1), without(2)]), None);
    let nameless = |n| {
        let mut sample = sample(n, n * 100, &[ALICE]);
        sample.gpus[0].about.id = None;
        sample
    };
    assert_eq!(parts([nameless(1), nameless(2)]), None);
}

#[test]
fn other_pid_namespace_attributes_nothing() {
    let other = |n, energy| Sample { namespace: PidNamespace::Other, ..sample(n, energy, &[ALICE]) };
    assert_eq!(parts([other(1, 0), other(2, 40)]), of(&[], 0, 40));
}

#[test]
fn mig_is_unattributed() {
    let mig = |n, energy| {
        let mut sample = sample(n, energy, &[ALICE]);
        let parent = &mut sample.gpus[0];
        parent.telemetry.mig_enabled = Some(true);
        (parent.entries, parent.instances) = (None, Some(1));
        let mig =
            MigIds { parent: Some(GpuId(GPU.into())), gpu_instance: Some(1), compute_instance: Some(0) };
        let instance = fixtures::gpu((1, "MIG-1"), vec![entry(41, None)]);
        let about = About { mig: Some(mig), ..instance.about };
        let telemetry = Telemetry { energy: Some(7 * n), ..Telemetry::default() };
        sample.gpus.push(GpuSample { about, telemetry, ..instance });
        sample
    };
    let snapshot = walk([mig(1, 0), mig(2, 90)]);
    assert_eq!(snapshot.energy_parts(&snapshot.gpus[0]), of(&[], 0, 90).as_ref(), "one user has all");
    assert_eq!(snapshot.energy_parts(&snapshot.gpus[1]), None, "an instance has no energy of its own");
    for (name, samples) in [
        ("it was enabled", [sample(1, 0, &[ALICE]), mig(2, 90)]),
        ("it was disabled", [mig(1, 0), sample(2, 90, &[ALICE])]),
    ] {
        assert_eq!(parts(samples), of(&[], 0, 90), "{name}");
    }
}

#[derive(Debug, Clone)]
struct Step {
    energy: Option<u64>,
    listed: Vec<Listed>,
    unread: bool,
    restart: bool,
    milliseconds: u64,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let user = prop::sample::select(vec!["alice", "bob", "carol"]);
    let listed = prop::collection::btree_map(41_u32..46, (user, 0_u32..=100), 0..4);
    let energy = prop_oneof![1 => Just(None), 6 => (0_u64..10_000_000_000).prop_map(Some)];
    let step = (energy, listed, prop::bool::weighted(0.2), prop::bool::weighted(0.1), 1_u64..60_000);
    let step = step.prop_map(|(energy, listed, unread, restart, milliseconds)| {
        let listed = listed.into_iter().map(|(pid, (user, sm))| (pid, user, sm)).collect();
        Step { energy, listed, unread, restart, milliseconds }
    });
    prop::collection::vec(step, 1..30)
}

proptest! {
    #[test]
    fn parts_add_up_to_the_observed_increases(steps in steps()) {
        let (mut last, mut counter, mut increases, mut at) = (None::<Snapshot>, None::<u64>, None::<u64>, Duration::ZERO);
        for (n, step) in (1..).zip(steps) {
            at += Duration::from_millis(step.milliseconds);
            let mut sample = sample(n, 0, &step.listed);
            sample.at.boot = at;
            sample.gpus[0].telemetry.energy = step.energy;
            if step.unread {
                sample.gpus[0].reading = Reading::default();
            }
            if step.restart {
                (last, counter, increases) = (None, None, None);
            }
            if let Some(energy) = step.energy {
                if let Some(increase) = counter.and_then(|before| energy.checked_sub(before)) {
                    increases = Some(increases.unwrap_or_default() + increase);
                }
                counter = Some(energy);
            }
            let snapshot = Snapshot::between(last.as_ref(), sample);
            let parts = snapshot.energy_parts(&snapshot.gpus[0]);
            prop_assert_eq!(parts.map(EnergyParts::sum), increases);
            let before = last.as_ref().and_then(|last| last.energy_parts(&last.gpus[0])).cloned().unwrap_or_default();
            for (user, energy) in parts.iter().flat_map(|parts| &parts.users) {
                let is_new = *energy > before.users.get(user).copied().unwrap_or_default();
                let is_listed = step.listed.iter().any(|(_, name, sm)| name == user && *sm > 0);
                prop_assert!(!is_new || is_listed && !step.unread, "{} got energy", user);
            }
            last = Some(snapshot);
        }
    }
}
