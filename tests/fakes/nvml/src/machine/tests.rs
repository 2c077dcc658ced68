//! Tests for scenarios: the machines that they describe, and the errors in invalid scenarios.

use super::*;
use crate::abi::{NO_BYTES, NO_INSTANCE};

const MIB: u64 = 1 << 20;

fn machine(text: &str) -> Machine {
    Machine::read(text, crate::exports).unwrap_or_else(|nonsense| panic!("{nonsense}"))
}

#[test]
fn what_is_not_written_goes_without_saying() {
    let machine = machine("gpus: [{}]");
    assert_eq!(
        (machine.driver.as_str(), machine.cuda, machine.init),
        ("580.95.05", 13000, Init::Answers(Ok(())))
    );
    assert_eq!((machine.period, machine.ring, machine.entry_bytes), (167_000, 120, 24));
    let gpu = &machine.gpus[0];
    assert_eq!((gpu.unit.name.as_str(), gpu.written.power.0), ("NVIDIA H200", 120_000));
    assert_eq!(gpu.unit.memory.total, 143_771 * MIB);
    assert!(gpu.instances.is_none() && gpu.activities.is_empty());
}

#[test]
fn an_entry_stands_for_as_many_devices_as_it_says() {
    let machine = machine("gpus: [{}, {count: 3, processes: [{pid: 10, count: 2, pid_step: 100}]}]");
    let pids = |gpu: &Gpu| gpu.unit.lists.compute.entries.iter().map(|entry| entry.pid).collect::<Vec<_>>();
    assert_eq!(
        machine.gpus.iter().map(pids).collect::<Vec<_>>(),
        [vec![], vec![10, 11], vec![110, 111], vec![210, 211]]
    );
    let uuids: Vec<&str> = machine.gpus.iter().map(|gpu| gpu.unit.uuid.as_str()).collect();
    assert_eq!(uuids[3], "GPU-00000000-0000-4000-8000-000000000004");
}

#[test]
fn memory_adds_up() {
    let machine = machine(
        "gpus: [{memory: {total: 100MiB, reserved: 10MiB, unaccounted: 1MiB}, processes: \
         [{pid: 1, used: 20MiB, kind: [compute, graphics]}, {pid: 2, used: null}], \
         mig: [{gi: 1, profile: 1g.18gb, memory: {total: 30MiB}, processes: [{pid: 3, used: 4MiB}]}]}]",
    );
    let gpu = &machine.gpus[0];
    let memory = gpu.unit.memory;
    assert_eq!((memory.used / MIB, memory.free / MIB), (25, 65));
    assert_eq!(
        gpu.unit.lists.compute.entries.iter().map(|entry| entry.used).collect::<Vec<_>>(),
        [20 * MIB, NO_BYTES, 4 * MIB]
    );
    assert_eq!(
        gpu.unit.lists.compute.entries.iter().map(|entry| entry.gi).collect::<Vec<_>>(),
        [NO_INSTANCE, NO_INSTANCE, 1]
    );
    let instance = &gpu.instances.as_ref().unwrap()[0];
    assert_eq!((instance.unit.memory.used / MIB, instance.unit.memory.free / MIB), (4, 26));
}

#[test]
fn a_device_does_what_its_busiest_process_does() {
    let cases = [
        ("processes: [{pid: 1, sm: 30, memory: 9}, {pid: 2, sm: 50}]", 50, 9),
        ("processes: [{pid: 1, sm: 250}]", 100, 0),
        ("processes: [{pid: 1, sm: 30}], utilization: {gpu: 90}", 90, 0),
        ("processes: [{pid: 1}]", 0, 0),
        ("faults: {garbage: {utilization_above_100: true}}", 0, 0),
    ];
    for (gpu, sm, memory) in cases {
        let busiest = machine(&format!("gpus: [{{{gpu}}}]")).gpus[0].busiest;
        assert_eq!((busiest.sm, busiest.memory), (sm, memory), "{gpu}");
    }
}

#[test]
fn a_profile_names_its_slices() {
    for (profile, slices) in
        [("1g.18gb", (1, 1)), ("7g.141gb", (7, 7)), ("1c.2g.35gb", (1, 2)), ("1g.18gb+me", (1, 1))]
    {
        let text = format!("gpus: [{{mig: [{{gi: 0, profile: {profile}, memory: {{total: 1MiB}}}}]}}]");
        let machine = machine(&text);
        let instance = &machine.gpus[0].instances.as_ref().unwrap()[0];
        assert_eq!((instance.compute_slices, instance.gpu_slices), slices, "{profile}");
    }
}

#[test]
fn faults_are_of_functions_or_of_all() {
    let machine = machine(
        "faults: {slow: 5ms}\ngpus: [{faults: {hang: [nvmlDeviceGetName], slow: {nvmlDeviceGetUUID: 1s}, \
         errors: {nvmlDeviceGetIndex: no_data, \"*\": timeout}}}, {faults: {hang: true}}]",
    );
    let [some, all] = [&machine.gpus[0].wrong, &machine.gpus[1].wrong];
    assert!(
        some.hangs("nvmlDeviceGetName") && !some.hangs("nvmlDeviceGetUUID") && all.hangs("nvmlDeviceGetUUID")
    );
    assert_eq!(some.delay("nvmlDeviceGetUUID"), Some(Duration::from_secs(1)));
    assert_eq!(machine.wrong.delay("nvmlDeviceGetUUID"), Some(Duration::from_millis(5)));
    assert_eq!(some.error("nvmlDeviceGetName"), Some(Code::TIMEOUT));
    assert_eq!(machine.wrong.error("nvmlDeviceGetName"), None);
}

#[test]
fn the_error_of_a_function_goes_before_that_of_all() {
    let machine = machine("gpus: [{faults: {errors: {\"*\": timeout, nvmlDeviceGetIndex: no_data}}}]");
    assert_eq!(machine.gpus[0].wrong.error("nvmlDeviceGetIndex"), Some(Code::NO_DATA));
}

#[test]
fn nonsense_is_refused_and_named() {
    let cases = [
        ("entry_bytes: 20", "entry_bytes"),
        ("ring: 0", "ring"),
        ("sampling_period: 0ms", "sampling_period"),
        ("sampling_period: 167", "unit"),
        ("init: bad", "bad"),
        ("missing: [nvmlDeviceGetMemry]", "nvmlDeviceGetMemry"),
        ("gpus: [{faults: {hang: [nvmlDeviceGetMemry]}}]", "nvmlDeviceGetMemry"),
        ("gpus: [{faults: {errors: {nvmlDeviceGetName: bad}}}]", "bad"),
        ("gpus: [{count: 65}]", "64"),
        ("gpus: [{count: 2, uuid: GPU-1}]", "uuid"),
        ("gpus: [{memory: {total: 1MiB, reserved: 0MiB}, processes: [{pid: 1, used: 2MiB}]}]", "memory"),
        ("gpus: [{processes: [{pid: 1, kind: cuda}]}]", "kind"),
        ("gpus: [{processes: [{used: 1MiB}]}]", "pid"),
        ("gpus: [{mig: [{gi: 1, profile: big, memory: {total: 1MiB}}]}]", "profile"),
        ("gpus: [{mig: [{index: 7, gi: 1, profile: 1g, memory: {total: 1MiB}}]}]", "index"),
        ("driver: one\ndriver: two", "driver"),
    ];
    for (text, expected) in cases {
        let Err(Nonsense(why)) = Machine::read(text, crate::exports) else {
            panic!("{text} must be rejected")
        };
        assert!(why.contains(expected), "{text}: {why}");
    }
}
