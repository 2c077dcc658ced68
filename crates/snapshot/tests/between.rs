//! Tests joining two samples: which values carry over, which restart, and which remain unknown.

#![expect(
    clippy::float_cmp,
    clippy::cast_precision_loss,
    clippy::cast_possible_wrap,
    clippy::expect_used,
    reason = "the figures are whole numbers, and a test may fail loudly"
)]

use std::collections::BTreeMap;
use std::time::Duration;

use bailiff_snapshot::{
    About, BootId, DeviceSampler, Entry, Facts, Fault, Gap, GpuId, GpuSample, KernelLog, Kinds, LoggedXid,
    Memory, MigIds, PidNamespace, Place, ProcessId, ProcessKey, Reading, Relative, Role, Sample, Seen,
    Snapshot, Source, SourceState, State, Stuck, UnknownReason, UserTotals, wire,
};
use snapshot_fixtures::sample::{self as fixtures, entry, reading, used, walk};

const GIB: u64 = 1 << 30;
const PID: u32 = 41;

fn facts(pid: u32, start_ticks: u64) -> Facts {
    Facts {
        user: Some("alice".into()),
        cpu_seconds: 1.5,
        orphaned: Some(false),
        reaped_cpu_seconds: Some(0.5),
        workload: Some(format!("tree:{pid}@7")),
        exe: Some("/usr/bin/python3.13".into()),
        exe_uid: Some(0),
        ..fixtures::facts(ProcessKey { pid, start_ticks })
    }
}

fn found(pid: u32, start_ticks: u64) -> (u32, Seen) {
    fixtures::found(facts(pid, start_ticks))
}

/// An idle GPU of 100 GiB at interval `n`, with these entries. Timestamps in these tests are interval numbers.
fn gpu(n: u64, entries: Vec<Entry>) -> GpuSample {
    GpuSample {
        memory: Some(Memory { total: 100 * GIB, free: 60 * GIB, used: 39 * GIB, reserved: Some(GIB) }),
        reading: reading(n, 0, vec![]),
        ..fixtures::gpu((0, "GPU-1"), entries)
    }
}

fn busy(n: u64, sm: u32) -> GpuSample {
    GpuSample { reading: reading(n, 0, vec![used(PID, n, sm)]), ..gpu(n, vec![entry(PID, Some(GIB))]) }
}

/// Interval `n`, ten seconds after the one before.
fn sample(n: u64, gpus: Vec<GpuSample>, processes: impl IntoIterator<Item = (u32, Seen)>) -> Sample {
    fixtures::sample((n, Duration::from_secs(10)), gpus, processes)
}

fn idle_interval(n: u64) -> Sample {
    sample(n, vec![gpu(n, vec![entry(PID, Some(GIB))])], [found(PID, 7)])
}

#[test]
fn idle_time_grows_by_what_was_seen_idle() {
    let snapshot = walk((1..=4).map(idle_interval));
    let holder = &snapshot.gpus[0].holders[0];
    assert_eq!(holder.utilization.percent(), Some(0));
    assert_eq!(holder.idle, Duration::from_secs(30), "three windows between four samples");
    assert_eq!(holder.byte_seconds, 30.0 * GIB as f64);
    let alice = snapshot.users["alice"];
    assert_eq!((alice.held_seconds, alice.idle_seconds, alice.unknown_seconds), (30.0, 30.0, 0.0));
}

#[test]
fn further_users_have_no_totals_of_gpu_time() {
    let bob = |n| {
        let (pid, seen) = found(50, 8);
        let Seen::Found(mut facts) = seen else { return sample(n, vec![], []) };
        facts.user = Some("bob".into());
        let gpu = gpu(n, vec![entry(PID, Some(GIB)), entry(50, Some(GIB))]);
        sample(n, vec![gpu], [found(PID, 7), (pid, Seen::Found(facts))])
    };
    for (others, expected) in [(4094, Some(10.0)), (4095, None)] {
        let mut snapshot = walk([idle_interval(1), idle_interval(2)]);
        let alice = snapshot.users["alice"];
        snapshot.users.extend((0..others).map(|n| (format!("u{n}"), alice)));
        for n in [3, 4] {
            snapshot = Snapshot::between(Some(&snapshot), bob(n));
        }
        let held = |user| snapshot.users.get(user).map(|times: &UserTotals| times.held_seconds);
        assert_eq!((held("bob"), held("alice")), (expected, Some(30.0)), "beside {others} others");
    }
}

#[test]
fn first_sample_has_no_utilization() {
    let snapshot = walk([idle_interval(1)]);
    assert_eq!(snapshot.gpus[0].holders[0].utilization.percent(), None);
    assert!(snapshot.users.is_empty());
}

#[test]
fn being_busy_ends_idleness_and_is_counted_once() {
    let intervals = vec![
        idle_interval(1),
        idle_interval(2),
        sample(3, vec![busy(3, 50)], [found(PID, 7)]),
        // The same stamp again: the driver has nothing newer.
        sample(
            4,
            vec![GpuSample {
                reading: Reading {
                    sampler: DeviceSampler::Stamped { newest: 4, maximum: 0, filled: false },
                    ..busy(3, 50).reading
                },
                ..busy(3, 50)
            }],
            [found(PID, 7)],
        ),
        idle_interval(5),
    ];
    let snapshot = walk(intervals);
    let holder = &snapshot.gpus[0].holders[0];
    assert_eq!(holder.busy_seconds, 5.0, "half of one ten-second window");
    assert_eq!(holder.idle, Duration::from_secs(10), "the window of the repeated stamp is neither");
    let alice = snapshot.users["alice"];
    let times = (alice.held_seconds, alice.idle_seconds, alice.unknown_seconds);
    assert_eq!(times, (40.0, 20.0, 10.0), "one window was busy, and one is unknown");
}

#[test]
fn a_reused_pid_is_another_process_without_a_past() {
    let snapshot = walk([idle_interval(1), idle_interval(2), sample(3, vec![busy(3, 50)], [found(PID, 8)])]);
    let holder = &snapshot.gpus[0].holders[0];
    assert_eq!(holder.process, ProcessId::Live(ProcessKey { pid: PID, start_ticks: 8 }));
    assert_eq!((holder.idle, holder.busy_seconds), (Duration::ZERO, 0.0));
    assert_eq!(holder.utilization.percent(), None, "the sample may be the old process's");
}

#[test]
fn a_pid_that_is_gone_keeps_its_name_while_it_is_listed() {
    let gone = |n| sample(n, vec![gpu(n, vec![entry(PID, Some(GIB))])], [(PID, Seen::Gone)]);
    let snapshot = walk([idle_interval(1), gone(2), gone(3)]);
    let holder = &snapshot.gpus[0].holders[0];
    assert_eq!(holder.process, ProcessId::Unconfirmed { pid: PID, first_seq: 2 });
    assert_eq!(snapshot.processes[&holder.process].state, State::Gone);
    let parts = snapshot.gpus[0].parts.expect("all parts are known");
    assert_eq!((parts.holders, parts.dead_pids, parts.unaccounted), (0, GIB, 38 * GIB as i64));
}

/// Returns the pids of the holders of each GPU, and the memory of each if it is known.
fn held(snapshot: &Snapshot) -> Vec<Vec<(u32, Option<u64>)>> {
    let of = |gpu: &bailiff_snapshot::Gpu| {
        gpu.holders.iter().map(|holder| (holder.process.pid(), holder.memory)).collect()
    };
    snapshot.gpus.iter().map(of).collect()
}

fn is_reused(snapshot: &Snapshot) -> bool {
    snapshot.processes.values().filter_map(|process| process.facts.as_ref()).any(|facts| facts.reused_pid)
}

/// The process with the pid, of this user and with this start time.
fn of(uid: u32, start_ticks: u64) -> (u32, Seen) {
    fixtures::found(Facts { uid: Some(uid), ..facts(PID, start_ticks) })
}

/// A sample in which the driver lists the pid.
fn listed(n: u64, seen: (u32, Seen)) -> Sample {
    sample(n, vec![gpu(n, vec![entry(PID, Some(GIB))])], [seen])
}

#[test]
fn process_may_be_the_listed_one_only_if_owner_and_confinement_are_the_same() {
    let within = |start_ticks, cgroup: &str| {
        let place = Place::parse(&format!("0::{cgroup}"));
        fixtures::found(Facts { uid: Some(4001), place, ..facts(PID, start_ticks) })
    };
    let docker = format!("/docker/{}", "a".repeat(64));
    let gone = || (PID, Seen::Gone);
    let unknown = |start_ticks| within(start_ticks, "");
    for (first, last, expected) in [
        (of(4001, 7), of(4001, 3500), Some(GIB)),
        (of(4001, 7), within(3500, &docker), None),
        (within(7, "/lxc.payload.one/a"), within(3500, "/lxc.payload.two/a"), None),
        (within(7, "/lxc.payload.one/a"), within(3500, "/lxc.payload.one/b"), Some(GIB)),
        (within(7, "/system.slice/one.service"), within(3500, "/system.slice/two.service"), None),
        (unknown(7), unknown(3500), None),
        // The earlier process was never seen.
        (gone(), of(4001, 3500), None),
    ] {
        let snapshot = walk([listed(1, first), listed(2, gone()), listed(3, gone()), listed(4, last)]);
        assert_eq!(held(&snapshot), [[(PID, expected)]]);
    }
}

/// The driver goes on listing a process that has exited while its child has the device files open.
#[test]
fn memory_of_an_exited_process_is_not_that_of_another_user_who_gets_its_pid() {
    let second = |n| GpuSample { ..fixtures::gpu((1, "GPU-2"), vec![entry(PID, Some(2 * n * GIB))]) };
    let reused = |n, uid| sample(n, vec![gpu(n, vec![entry(PID, Some(GIB))]), second(n)], [of(uid, 3500)]);
    let walked = |uid| {
        let gone = (PID, Seen::Gone);
        walk([
            listed(1, of(4001, 7)),
            listed(2, gone.clone()),
            listed(3, gone),
            reused(4, uid),
            reused(5, uid),
        ])
    };
    // It may use the GPU nevertheless, so it remains a holder, of which nothing is known there.
    let unknown = vec![(PID, None)];
    let snapshot = walked(4002);
    assert_eq!(held(&snapshot), [unknown.clone(), vec![(PID, Some(10 * GIB))]]);
    assert!(is_reused(&snapshot) && snapshot.gpus[0].holders[0].utilization.percent().is_none());
    assert_eq!(snapshot.gpus[0].parts, None, "either process may hold the memory");
    assert_eq!(snapshot.gpus[0].unreleased.bytes(), Err(UnknownReason::MemoryUnknown));
    // A user could otherwise hide a process behind an earlier one.
    let snapshot = walked(4001);
    assert_eq!(held(&snapshot), [vec![(PID, Some(GIB))], vec![(PID, Some(10 * GIB))]]);
    assert!(!is_reused(&snapshot));
    // The driver does not list the pid in between.
    let unlisted = sample(3, vec![gpu(3, vec![])], []);
    let snapshot = walk([listed(1, of(4001, 7)), unlisted, reused(4, 4002), reused(5, 4002)]);
    assert_eq!(held(&snapshot), [vec![(PID, Some(GIB))], vec![(PID, Some(10 * GIB))]]);
    // The GPU was not read in between.
    let fault = GpuSample::faulty(gpu(3, vec![]).about, Fault::Error);
    let faulty = sample(3, vec![fault], []);
    let snapshot = walk([listed(1, of(4001, 7)), faulty, reused(4, 4002)]);
    assert_eq!(held(&snapshot), [unknown, vec![(PID, Some(8 * GIB))]]);
}

/// The process started between the driver's list and the end of the sample.
#[test]
fn process_that_started_after_the_list_is_not_the_listed_one() {
    let slow = |seen| {
        let sample = listed(1, seen);
        Sample { took: Duration::from_secs(3), ..sample }
    };
    // The first list was read 10 s after the boot.
    for (first, last, expected) in [
        ((PID, Seen::Gone), of(4002, 1100), None),
        (of(4001, 7), of(4002, 1100), None),
        (of(4002, 900), of(4002, 900), Some(GIB)),
    ] {
        let snapshot = walk([slow(first), listed(2, last)]);
        assert_eq!(held(&snapshot), [[(PID, expected)]]);
    }
}

#[test]
fn reused_pid_is_remembered_while_its_gpu_or_instance_is_missing() {
    let whole = || gpu(0, vec![]).about;
    let part = |uuid: &str, mig| About { id: Some(GpuId(uuid.into())), index: "0:0".into(), mig, ..whole() };
    let mig = MigIds { parent: whole().id, gpu_instance: Some(1), compute_instance: Some(0) };
    let instance = || part("MIG-1", Some(mig.clone()));
    let of_gpu =
        |n, about, seen| sample(n, vec![GpuSample { about, ..gpu(n, vec![entry(PID, Some(GIB))]) }], [seen]);
    let parent = |n, fault, instances| {
        let healthy = GpuSample { entries: None, instances, ..gpu(n, vec![]) };
        let parent = if fault { GpuSample::faulty(whole(), Fault::Lost) } else { healthy };
        sample(n, vec![parent], [])
    };
    // Without the missing one, the next GPU has its index.
    let next = || {
        let about = About { id: Some(GpuId("GPU-2".into())), ..whole() };
        sample(3, vec![GpuSample { about, entries: None, instances: Some(0), ..gpu(3, vec![]) }], [])
    };
    let unknown = || [vec![(PID, None)]];
    for (about, missing) in [(whole as fn() -> About, sample(3, vec![], [])), (whole, parent(3, true, None))]
    {
        let samples = [of_gpu(1, about(), of(4001, 7)), of_gpu(2, about(), of(4002, 1500)), missing];
        let snapshot = walk(samples.into_iter().chain([of_gpu(4, about(), of(4002, 1500))]));
        assert_eq!(held(&snapshot), unknown());
    }
    for (missing, expected) in [
        (sample(3, vec![], []), None),
        (parent(3, true, None), None),
        (parent(3, false, None), None),
        (next(), None),
        // It was removed, which is possible only without processes.
        (parent(3, false, Some(0)), Some(GIB)),
    ] {
        let samples = [of_gpu(1, instance(), of(4001, 7)), of_gpu(2, instance(), of(4002, 1500)), missing];
        let snapshot = walk(samples.into_iter().chain([of_gpu(4, instance(), of(4002, 1500))]));
        assert_eq!(held(&snapshot), [[(PID, expected)]]);
    }
}

#[test]
fn one_pid_has_one_name_on_all_gpus() {
    let second = GpuSample {
        about: About { id: Some(GpuId("GPU-2".into())), ..About::unnamed(1) },
        ..gpu(1, vec![entry(PID, Some(GIB))])
    };
    let snapshot = walk([sample(1, vec![gpu(1, vec![entry(PID, Some(GIB))]), second], [found(PID, 7)])]);
    assert_eq!(snapshot.processes.len(), 1);
    assert_eq!(snapshot.gpus[0].holders[0].process, snapshot.gpus[1].holders[0].process);
}

#[test]
fn in_another_pid_namespace_nothing_is_attributed() {
    let mut interval = idle_interval(1);
    interval.namespace = PidNamespace::Other;
    let snapshot = walk([interval]);
    assert!(snapshot.gpus[0].holders.is_empty() && snapshot.processes.is_empty());
    assert_eq!(snapshot.gpus[0].listed, Some(1));
    assert_eq!(snapshot.gpus[0].parts.map(|parts| parts.other_namespaces), Some(GIB));
}

#[test]
fn memory_that_is_not_available_leaves_no_sum() {
    let interval =
        sample(1, vec![gpu(1, vec![entry(PID, None), entry(42, Some(GIB))])], [found(PID, 7), found(42, 7)]);
    let snapshot = walk([interval]);
    assert_eq!(snapshot.gpus[0].parts, None);
    assert_eq!(snapshot.gpus[0].memory.map(|memory| memory.total), Some(100 * GIB));
}

#[test]
fn a_gpu_that_was_lost_for_an_interval_starts_a_new_window() {
    let lost = || GpuSample::faulty(gpu(2, vec![]).about, Fault::Lost);
    let snapshot = walk([idle_interval(1), idle_interval(2), sample(3, vec![lost()], []), idle_interval(4)]);
    let holder = &snapshot.gpus[0].holders[0];
    assert_eq!(holder.utilization.percent(), None);
    assert_eq!(holder.idle, Duration::ZERO);
    assert_eq!(snapshot.users["alice"].held_seconds, 10.0, "it was not seen held meanwhile");
}

#[test]
fn another_boot_has_no_past() {
    let mut interval = idle_interval(2);
    interval.boot_id = Some(BootId("another".into()));
    let snapshot = walk([idle_interval(1), interval]);
    assert_eq!(snapshot.gpus[0].holders[0].utilization.percent(), None);
    assert!(snapshot.users.is_empty());
}

#[test]
fn xid_errors_are_counted_by_number_and_outlive_a_lost_gpu() {
    let with = |n, xids| sample(n, vec![GpuSample { xids, ..gpu(n, vec![]) }], []);
    let lost = sample(3, vec![GpuSample::faulty(gpu(3, vec![]).about, Fault::Lost)], []);
    let snapshot = walk([with(1, vec![79]), with(2, vec![79, 13]), lost, with(4, vec![])]);
    assert_eq!(snapshot.gpus[0].xids, BTreeMap::from([(13, 1), (79, 2)]));
}

/// Returns the kernel log of interval `n`, in which these lines about Xid 31 were written by this process.
fn logged(n: u64, lines: &[(u64, &str, u32)]) -> KernelLog {
    let at = |n| Duration::from_secs(10 * n);
    let parse = |(sequence, place, pid): &(u64, &str, u32)| {
        let line = format!("NVRM: Xid (PCI:{place}): 31, pid={pid}, name=python3, Ch 00000008");
        LoggedXid::parse(&format!("4,{sequence},1,-;{line}")).expect("a line about an Xid error")
    };
    KernelLog { from: at(n - 1), until: at(n), xids: lines.iter().map(parse).collect() }
}

const SLOT: &str = "0000:17:00";

/// Interval `n` with a GPU that a process with this start time holds, and these lines.
fn with_log(n: u64, start_ticks: u64, lines: &[(u64, &str, u32)]) -> Sample {
    let gpu = gpu(n, vec![entry(PID, Some(GIB))]);
    let about = About { pci_bus_id: Some("00000000:17:00.0".into()), ..gpu.about.clone() };
    let gpu = GpuSample { about, xids: vec![31; lines.len()], ..gpu };
    let sample = sample(n, vec![gpu], [found(PID, start_ticks)]);
    Sample { kernel_log: Some(logged(n, lines)), ..sample }
}

/// Returns the number of lines about Xid 31 of the process, and of gaps of the kernel log.
fn xids(samples: impl IntoIterator<Item = Sample>) -> (Option<u64>, u64) {
    let snapshot = walk(samples);
    let found = &snapshot.gpus[0].holders[0].xids;
    assert!(found.keys().all(|xid| *xid == 31));
    let sent = wire::Snapshot::from(&snapshot);
    assert_eq!(sent.gpus[0].holders[0].xids, *found);
    (found.get(&31).copied(), snapshot.gaps.of(Gap::KernelLog))
}

#[test]
fn xid_errors_of_a_process_are_counted_once_and_carried_on() {
    let lines = [(5, SLOT, PID), (5, SLOT, PID), (7, SLOT, PID)];
    let before = [with_log(1, 7, &[]), with_log(2, 7, &lines)];
    assert_eq!(xids(before.clone()), (Some(2), 0));
    // Records that were read again, in a sample after one without the log.
    let unread = Sample { kernel_log: None, ..with_log(3, 7, &[]) };
    let after = Sample {
        kernel_log: Some(logged(3, &[(4, SLOT, PID), (7, SLOT, PID), (8, SLOT, PID)])),
        ..with_log(4, 7, &[])
    };
    assert_eq!(xids(before.into_iter().chain([unread, after])), (Some(3), 0));
}

#[test]
fn xid_errors_of_a_process_outlive_a_driver_that_does_not_respond() {
    let failed = |n| {
        let about = with_log(n, 7, &[]).gpus.remove(0).about;
        Sample { kernel_log: None, ..sample(n, vec![GpuSample::faulty(about, Fault::Timeout)], []) }
    };
    let first = with_log(2, 7, &[(5, SLOT, PID)]);
    assert_eq!(xids([first.clone(), failed(3), with_log(4, 7, &[])]), (Some(1), 1));
    let another = xids([first.clone(), failed(3), with_log(4, 9, &[])]);
    assert_eq!(another, (None, 1), "of another process");
    let exited = sample(3, vec![gpu(3, vec![])], []);
    let kept = |samples: &[Sample]| walk(samples.to_vec()).kernel_log.map(|log| log.counts.len());
    assert_eq!(
        (kept(std::slice::from_ref(&first)), kept(&[first, exited])),
        (Some(1), Some(0)),
        "the process has exited"
    );
}

#[test]
fn records_that_were_missed_are_a_gap() {
    let all = [with_log(1, 7, &[]), with_log(2, 7, &[]), with_log(4, 7, &[(5, SLOT, PID)])];
    assert_eq!(xids(all), (Some(1), 1));
    // Before the first record that is read, nothing was missed.
    assert_eq!(xids([with_log(4, 7, &[(5, SLOT, PID)])]), (Some(1), 0));
}

#[test]
fn error_of_an_earlier_process_is_not_that_of_a_reused_pid() {
    let line = [(5, SLOT, PID)];
    assert_eq!(
        xids([with_log(1, 7, &[]), with_log(2, 1500, &line)]),
        (None, 0),
        "started after the earlier read"
    );
    assert_eq!(xids([with_log(1, 7, &line), with_log(2, 1500, &[])]), (None, 0), "is another process");
    assert_eq!(xids([with_log(2, 7, &line), with_log(3, 1500, &[(6, SLOT, PID)])]), (Some(1), 0));
}

#[test]
fn error_that_is_not_certainly_that_of_the_process_is_not_counted() {
    let at = |place| xids([with_log(2, 7, &[(5, place, PID)])]).0;
    assert_eq!((at(SLOT), at("0000:18:00"), at("0000:17:00 GPU-I:01")), (Some(1), None, None));
    assert_eq!(xids([with_log(2, 7, &[(5, SLOT, PID + 1)])]).0, None, "another process");

    let changed = |change: fn(&mut Sample)| {
        let mut sample = with_log(2, 7, &[(5, SLOT, PID)]);
        change(&mut sample);
        let snapshot = walk([sample]);
        snapshot.gpus.iter().flat_map(|gpu| &gpu.holders).map(|holder| holder.xids.len()).sum::<usize>()
    };
    let as_mps_client = |sample: &mut Sample| {
        sample.gpus[0].entries =
            Some(vec![Entry { kinds: Kinds { mps: true, ..Kinds::default() }, ..entry(PID, None) }]);
    };
    assert_eq!(changed(|_| {}), 1);
    assert_eq!(changed(|sample| sample.gpus[0].xids = vec![13]), 0, "the driver reported no such error");
    assert_eq!(changed(as_mps_client), 0, "client of MPS");
    assert_eq!(changed(|sample| of_process(sample).role = Some(Role::MpsServer)), 0, "server of MPS");
    assert_eq!(changed(|sample| of_process(sample).comm = Role::COMM.into()), 0, "may be a server of MPS");
    assert_eq!(changed(|sample| of_process(sample).comm = "python".into()), 0, "another name");
    assert_eq!(changed(|sample| sample.namespace = PidNamespace::Other), 0, "pids of another namespace");
    assert_eq!(changed(|sample| sample.namespace = PidNamespace::Unknown), 0, "pids of an unknown namespace");
    assert_eq!(
        changed(|sample| drop(sample.processes.insert(PID, Seen::Gone))),
        0,
        "there is no such process"
    );
    assert_eq!(changed(|sample| drop(sample.processes.insert(PID, Seen::Hidden))), 0, "its name is unknown");
    assert_eq!(changed(|sample| sample.gpus[0].entries = Some(vec![])), 0, "not on the GPU");
    assert_eq!(changed(|sample| sample.gpus[0].about.pci_bus_id = None), 0, "the address is unknown");
}

fn of_process(sample: &mut Sample) -> &mut Facts {
    sample.processes.get_mut(&PID).and_then(Seen::found_mut).expect("the process")
}

#[test]
fn error_on_an_instance_is_counted_there() {
    let with = |place: &str| {
        let mut sample = with_log(2, 7, &[(5, place, PID)]);
        let whole = sample.gpus[0].clone();
        let instance = |gpu_instance| {
            let mig = MigIds {
                parent: whole.about.id.clone(),
                gpu_instance: Some(gpu_instance),
                compute_instance: Some(0),
            };
            let id = Some(GpuId(format!("MIG-{gpu_instance}")));
            GpuSample { about: About { mig: Some(mig), id, ..whole.about.clone() }, ..whole.clone() }
        };
        sample.gpus = vec![instance(1), instance(2)];
        walk([sample]).gpus.iter().map(|gpu| gpu.holders[0].xids.len()).collect::<Vec<_>>()
    };
    assert_eq!(with("0000:17:00 GPU-I:02 GPU-CI:00"), [0, 1]);
    assert_eq!(with("0000:17:00 GPU-I:01"), [1, 0]);
    assert_eq!(with(SLOT), [0, 0], "on either of them");
}

/// Members of a workload are reported only for the sample that contains them, and not if the pids belong to another
/// PID namespace.
#[test]
fn relatives_and_groups_come_to_the_wire_and_are_not_carried_over() {
    let relative = Relative {
        key: ProcessKey { pid: 42, start_ticks: 8 },
        state: State::ZombieLeader,
        ppid: PID,
        comm: "sh".into(),
        uid: Some(1000),
        user: Some("alice".into()),
        place: Place { cgroup: "/here".into(), ..Place::default() }.into(),
        exe: Some("/usr/bin/sh".into()),
        exe_uid: Some(0),
        command: None,
        workload: "tree:41@7".into(),
        cpu_seconds: 2.5,
        reaped_cpu_seconds: 0.25,
    };
    let with = |n| Sample {
        relatives: Some(vec![relative.clone()]),
        groups: [(1000, vec!["staff".into(), "gpu".into()])].into(),
        ..idle_interval(n)
    };
    let report = wire::Snapshot::from(&walk([with(1)]));
    let seen = &report.relatives.expect("they were searched")[0];
    assert_eq!(
        (seen.pid, seen.start_ticks, seen.ppid, seen.state.known()),
        (42, 8, PID, Some(State::ZombieLeader))
    );
    assert_eq!((seen.workload.as_str(), seen.place.cgroup.as_str()), ("tree:41@7", "/here"));
    assert_eq!((seen.cpu_seconds, seen.reaped_cpu_seconds, seen.uid), (2.5, 0.25, Some(1000)));
    let texts = (seen.user.as_deref(), seen.exe.as_deref(), seen.command.as_deref());
    assert_eq!(texts, (Some("alice"), Some("/usr/bin/sh"), None));
    assert_eq!(report.groups, [(1000, vec!["staff".to_owned(), "gpu".to_owned()])].into());
    let facts = report.processes[0].facts.as_ref().expect("it is there");
    assert_eq!(facts.groups.as_deref(), Some(["staff".to_owned(), "gpu".to_owned()].as_slice()));
    assert_eq!((facts.workload.as_deref(), facts.reaped_cpu_seconds), (Some("tree:41@7"), Some(0.5)));
    assert_eq!((facts.exe.as_deref(), facts.role.as_deref()), (Some("/usr/bin/python3.13"), None));
    let later = wire::Snapshot::from(&walk([with(1), idle_interval(2)]));
    assert_eq!(later.relatives, None);
    assert_eq!(later.processes[0].facts.as_ref().and_then(|facts| facts.groups.clone()), None);
    let elsewhere = Sample { namespace: PidNamespace::Other, ..with(1) };
    assert_eq!(wire::Snapshot::from(&walk([elsewhere])).relatives, None);
}

#[test]
fn the_wire_reads_what_it_wrote() {
    let snapshot = walk([idle_interval(1), sample(2, vec![busy(2, 50)], [found(PID, 7)])]);
    let line = wire::write(&snapshot).expect("a snapshot has a JSON form");
    assert_eq!(line.iter().position(|byte| *byte == b'\n'), Some(line.len() - 1), "one line");
    let read = wire::parse(&line).expect("it is of our version");
    assert_eq!(read, wire::Snapshot::from(&snapshot));
    assert_eq!((read.gpus[0].holders[0].utilization, read.processes[0].start_ticks), (Some(50), Some(7)));
    let newer =
        String::from_utf8(line).expect("JSON is text").replace("\"version\":1", "\"version\":2,\"more\":[]");
    assert!(matches!(wire::parse(newer.as_bytes()), Err(wire::WireError::Version { found: 2 })));
    assert!(matches!(wire::parse(b"{}"), Err(wire::WireError::Shape(_))));
}

#[test]
fn memory_of_an_exited_holder_is_tracked_until_released() {
    // Free memory stays the same, so memory of a holder that leaves the list is unattributed.
    let other = (42, 9);
    let both = |n| {
        let entries = vec![entry(PID, Some(GIB)), entry(other.0, Some(GIB))];
        sample(n, vec![gpu(n, entries)], [found(PID, 7), found(other.0, other.1)])
    };
    let alone = |n, back: u64| {
        let mut gpu = gpu(n, vec![entry(other.0, Some(GIB))]);
        gpu.memory = gpu.memory.map(|memory| Memory { free: memory.free + back, ..memory });
        sample(n, vec![gpu], [found(other.0, other.1)])
    };
    let report = |samples: Vec<Sample>| walk(samples).gpus[0].unreleased.bytes();
    assert_eq!(report(vec![both(1)]), Err(UnknownReason::FirstSample));
    assert_eq!(report(vec![both(1), both(2)]), Ok(0));
    let kept = || vec![both(1), both(2), alone(3, 0), alone(4, 0)];
    assert_eq!(report(kept()), Err(UnknownReason::Settling));
    let five = || kept().into_iter().chain([alone(5, 0)]).collect::<Vec<_>>();
    assert_eq!(report(five()), Ok(GIB));
    let line = wire::write(&walk(five())).expect("a line");
    let written = wire::parse(&line).expect("it is read");
    assert_eq!(written.gpus[0].memory.as_ref().and_then(|memory| memory.unreleased), Some(GIB));
    assert_eq!(report(five().into_iter().chain([alone(6, GIB)]).collect()), Ok(0));
    // A zombie or vanished process can no longer release memory, even if the driver still lists it.
    for seen in [Seen::Gone, Seen::Found(Box::new(Facts { state: State::Zombie, ..facts(PID, 7) }))] {
        let dead = |n| Sample { processes: [(PID, seen.clone()), found(other.0, other.1)].into(), ..both(n) };
        assert_eq!(report(vec![both(1), both(2), dead(3), dead(4), dead(5)]), Ok(GIB), "{seen:?}");
    }
    let mut elsewhere = both(3);
    elsewhere.namespace = PidNamespace::Other;
    assert_eq!(report(vec![both(1), both(2), elsewhere]), Err(UnknownReason::PidNamespace));
    let gaps = walk([both(1), alone(2, 0)]).gaps;
    assert_eq!(gaps.of(Gap::Unreleased), 1, "nothing to compare with");
}

#[test]
fn consecutive_samples_of_a_state_are_counted() {
    let in_state = |n, state| {
        let seen = Seen::Found(Box::new(Facts { state, ..facts(PID, 7) }));
        sample(n, vec![gpu(n, vec![entry(PID, Some(GIB))])], [(PID, seen)])
    };
    let waits = |n| in_state(n, State::DiskSleep);
    let stuck = |samples: Vec<Sample>| {
        let snapshot = walk(samples);
        snapshot.stuck(&snapshot.gpus[0].holders[0])
    };
    assert_eq!(stuck(vec![waits(1), waits(2)]), None);
    assert_eq!(stuck(vec![waits(1), waits(2), waits(3)]), Some(Stuck::DiskSleep));
    assert_eq!(stuck(vec![waits(1), waits(2), in_state(3, State::Running), waits(4), waits(5)]), None);
    let leader = |n| in_state(n, State::ZombieLeader);
    assert_eq!(stuck(vec![leader(1), leader(2)]), None);
    let seen = vec![leader(1), leader(2), leader(3)];
    assert_eq!(stuck(seen.clone()), Some(Stuck::ZombieLeader));
    let line = wire::write(&walk(seen)).expect("a line");
    let written = wire::parse(&line).expect("it is read");
    assert_eq!(written.gpus[0].stuck[&PID], Stuck::ZombieLeader, "the stream has the kind");
}

#[test]
fn orphaned_process_is_stuck_after_three_idle_windows_of_its_workload() {
    let workload = || Some("tree:100@7".to_owned());
    let left = |cpu: f64| Facts {
        orphaned: Some(true),
        workload: workload(),
        cpu_seconds: cpu,
        reaped_cpu_seconds: Some(0.0),
        ..facts(PID, 7)
    };
    let child = |cpu: f64| Relative {
        key: ProcessKey { pid: PID + 1, start_ticks: 8 },
        state: State::Sleeping,
        ppid: PID,
        comm: "rank".to_owned(),
        uid: Some(1000),
        user: None,
        place: Place::default().into(),
        exe: None,
        exe_uid: Some(0),
        command: None,
        workload: "tree:100@7".to_owned(),
        cpu_seconds: cpu,
        reaped_cpu_seconds: 0.0,
    };
    let stuck = |own: f64, of_child: f64, relatives: bool| {
        let samples = (1..=4).map(|n| {
            let seen = Seen::Found(Box::new(left(own * n as f64)));
            let mut sample = sample(n, vec![gpu(n, vec![entry(PID, Some(GIB))])], [(PID, seen)]);
            sample.relatives = relatives.then(|| vec![child(of_child * n as f64)]);
            sample
        });
        let samples: Vec<Sample> = samples.collect();
        let kinds = |count| {
            let snapshot = walk(samples[..count].to_vec());
            snapshot.stuck(&snapshot.gpus[0].holders[0])
        };
        [kinds(3), kinds(4)]
    };
    assert_eq!(stuck(0.0, 0.0, true), [None, Some(Stuck::LeftBehind)]);
    assert_eq!(stuck(1.0, 0.0, true), [None, None], "it works on the CPU");
    assert_eq!(stuck(0.0, 1.0, true), [None, None], "its child does");
    assert_eq!(stuck(0.0, 0.0, false), [None, None], "members were not searched");
}

/// Returns, for each of these processes, whether it may hold the GPU that is lost in the last sample.
fn may_hold(samples: Vec<Sample>, processes: &[(u32, Option<u64>)]) -> Vec<bool> {
    let snapshot = walk(samples);
    let may =
        |(pid, ticks): &(u32, Option<u64>)| snapshot.lost.iter().any(|gpu| gpu.may_be_held_by(*pid, *ticks));
    processes.iter().map(may).collect()
}

fn lost(n: u64) -> GpuSample {
    GpuSample::faulty(gpu(n, vec![]).about, Fault::Lost)
}

/// The tick in which a sample begins.
fn ticks(n: u64) -> u64 {
    u64::try_from(sample(n, vec![], []).at.boot.as_millis()).expect("it fits") / 10
}

#[test]
fn lost_gpu_remembers_its_last_holders() {
    let held = |n| sample(n, vec![gpu(n, vec![entry(PID, Some(GIB))])], [found(PID, 7)]);
    let asked = [
        (PID, Some(7)),
        (PID, None),
        (PID, Some(8)),
        (42, Some(7)),
        (43, Some(ticks(2))),
        (44, Some(ticks(3) + 1000)),
    ];
    let expected = [true, true, false, false, true, false];
    let first = vec![held(1), held(2), sample(3, vec![lost(3)], [])];
    assert_eq!(
        may_hold(first.clone(), &asked),
        expected,
        "one that began since the list may hold it as well"
    );
    let later = first.into_iter().chain([sample(4, vec![lost(4)], []), sample(5, vec![lost(5)], [])]);
    assert_eq!(may_hold(later.clone().collect(), &asked), expected, "as long as it is lost");
    let listed = later.chain([held(6)]);
    assert_eq!(may_hold(listed.collect(), &asked), [false; 6], "a list ends it");
}

#[test]
fn lost_gpu_of_unknown_past_may_be_held_by_any_older_process() {
    let asked = [(42, Some(7)), (42, Some(ticks(2))), (43, Some(ticks(3) + 1000))];
    let first = vec![sample(3, vec![lost(3)], [])];
    assert_eq!(may_hold(first, &asked), [true, true, false], "the exporter started later");
    let hung = GpuSample::faulty(gpu(2, vec![]).about, Fault::Timeout);
    let held = sample(1, vec![gpu(1, vec![entry(PID, Some(GIB))])], [found(PID, 7)]);
    let after = vec![held, sample(2, vec![hung], []), sample(3, vec![lost(3)], [])];
    assert_eq!(may_hold(after, &asked), [true, true, false], "it gave no list in the sample before");
}

#[test]
fn gpu_that_is_no_longer_listed_is_remembered_as_a_lost_one() {
    let second = |n, entries: Vec<Entry>| {
        let mut second = gpu(n, entries);
        (second.about.index, second.about.id) = ("1".into(), Some(GpuId("GPU-second".into())));
        second
    };
    let both = |n| {
        let gpus = vec![gpu(n, vec![entry(PID, Some(GIB))]), second(n, vec![entry(42, Some(GIB))])];
        with_nvml(sample(n, gpus, [found(PID, 7), found(42, 7)]))
    };
    let one = |n| with_nvml(sample(n, vec![gpu(n, vec![entry(PID, Some(GIB))])], [found(PID, 7)]));
    let asked = [(PID, Some(7)), (42, Some(7)), (43, Some(ticks(3) + 1000))];
    assert_eq!(may_hold(vec![both(1), both(2), one(3), one(4)], &asked), [false, true, false]);
    assert_eq!(may_hold(vec![both(1), one(2), both(3)], &asked), [false; 3], "it is back");
    let down = Sample { sources: BTreeMap::new(), ..sample(2, vec![], []) };
    assert_eq!(may_hold(vec![both(1), down.clone()], &asked), [true; 3], "it is not certain that it is lost");
    assert_eq!(may_hold(vec![both(1), down, one(3)], &asked), [true, true, false], "nor what was meanwhile");
}

#[test]
fn instance_that_is_removed_is_not_lost() {
    let parent = |n, instances| GpuSample { entries: None, instances: Some(instances), ..gpu(n, vec![]) };
    let instance = |n| {
        let mut instance = gpu(n, vec![entry(PID, Some(GIB))]);
        instance.about.index = "0:0".into();
        instance.about.id = Some(GpuId("MIG-1".into()));
        let of = gpu(n, vec![]).about.id;
        instance.about.mig = Some(MigIds { parent: of, gpu_instance: Some(1), compute_instance: Some(0) });
        instance
    };
    let with = |n| with_nvml(sample(n, vec![parent(n, 1), instance(n)], [found(PID, 7)]));
    let asked = [(PID, Some(7)), (42, Some(7))];
    let removed = with_nvml(sample(3, vec![parent(3, 0)], []));
    assert_eq!(may_hold(vec![with(1), with(2), removed], &asked), [false, false]);
    let gone = with_nvml(sample(3, vec![lost(3)], []));
    assert_eq!(may_hold(vec![with(1), with(2), gone], &asked), [true, false], "it is lost with its GPU");
}

fn with_nvml(sample: Sample) -> Sample {
    let up = SourceState { fault: None, took: Some(Duration::ZERO) };
    Sample { sources: BTreeMap::from([(Source::Nvml, up)]), ..sample }
}

#[test]
fn held_time_of_a_new_process_counts_from_its_start() {
    let started = |n: u64, pid, before_ms: u64| {
        let at = u64::try_from(sample(n, vec![], []).at.boot.as_millis()).expect("it fits");
        found(pid, (at - before_ms) / 10)
    };
    let with = |n, processes: Vec<(u32, Seen)>| {
        let entries = processes.iter().map(|(pid, _)| entry(*pid, Some(GIB))).collect();
        sample(n, vec![gpu(n, entries)], processes)
    };
    let held = |samples: Vec<Sample>| {
        walk(samples).users.get("alice").map_or((0.0, 0.0), |of| (of.held_seconds, of.idle_seconds))
    };
    let empty = || with(1, vec![]);
    let brief = || with(2, vec![started(2, PID, 4_000), started(2, 42, 2_500)]);
    assert_eq!(held(vec![empty(), brief()]), (4.0, 0.0), "together, and nothing is known of its use");
    assert_eq!(
        held(vec![empty(), brief(), with(3, vec![])]),
        (4.0, 0.0),
        "it was last listed at the sample before"
    );
    assert_eq!(
        held(vec![empty(), with(2, vec![started(2, PID, 15_000)])]),
        (0.0, 0.0),
        "it came at no known time"
    );
    assert_eq!(held(vec![brief()]), (0.0, 0.0), "there is no sample before");
    let hung = sample(1, vec![GpuSample::faulty(gpu(1, vec![]).about, Fault::Timeout)], []);
    assert_eq!(held(vec![hung, brief()]), (0.0, 0.0), "the GPU gave no list before");
    let joined = |n| with(n, vec![found(PID, 7), started(n, 42, 2_000)]);
    assert_eq!(
        held(vec![idle_interval(1), joined(2)]),
        (10.0, 0.0),
        "not all of the user's were observed idle"
    );
}
