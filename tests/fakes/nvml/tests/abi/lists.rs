//! Tests process lists: their content, the size of their entries, and lists that change while they are
//! queried.

use std::ffi::c_uint;

use nvml_wrapper::enums::device::UsedGpuMemory;

use crate::driver::{Driver, compute_list};

const OK: c_uint = 0;
const INSUFFICIENT_SIZE: c_uint = 7;

#[test]
fn a_process_is_in_the_lists_of_its_kinds() {
    let driver = Driver::start(
        "gpus:\n- processes:\n  - {pid: 100, count: 2, used: 512MiB}\n  - {pid: 200, used: null, kind: graphics}\n  \
         - {pid: 300, used: 1GiB, kind: mps}\n  - {pid: 400, kind: [compute, mps]}\n",
    );
    let gpu = driver.gpu(0);
    let pids = |list: Vec<nvml_wrapper::struct_wrappers::device::ProcessInfo>| -> Vec<u32> {
        list.iter().map(|one| one.pid).collect()
    };
    assert_eq!(pids(gpu.running_compute_processes().unwrap()), [100, 101, 400]);
    assert_eq!(pids(gpu.running_graphics_processes().unwrap()), [200]);
    assert_eq!(pids(gpu.mps_running_compute_processes().unwrap()), [300, 400]);
    assert_eq!(gpu.running_graphics_processes().unwrap()[0].used_gpu_memory, UsedGpuMemory::Unavailable);
    let memory = gpu.memory_info().unwrap();
    assert_eq!(memory.used, 2 << 30, "a process in two lists is counted once");
    assert_eq!(memory.free, memory.total - memory.reserved - memory.used);
}

#[test]
fn a_process_on_each_of_several_devices_has_a_pid_on_each() {
    let driver = Driver::start(
        "gpus: [{count: 16, processes: [{pid: 1000, count: 125, pid_step: 125}, {pid: 7, used: 1GiB}]}]\n",
    );
    assert_eq!(driver.nvml.device_count().unwrap(), 16);
    for index in 0..16 {
        let pids: Vec<u32> =
            driver.gpu(index).running_compute_processes().unwrap().iter().map(|one| one.pid).collect();
        let first = 1000 + index * 125;
        assert_eq!(pids, (first..first + 125).chain([7]).collect::<Vec<_>>());
    }
}

#[test]
fn insufficient_size_returns_the_needed_size() {
    let driver = Driver::start("gpus: [{processes: [{pid: 100, count: 3}]}]\n");
    let gpu = driver.gpu(0);
    for room in [0, 1, 2] {
        let (code, count, _) = compute_list(&gpu, room);
        assert_eq!((code, count), (INSUFFICIENT_SIZE, 3), "room for {room}");
    }
    for room in [3, 50] {
        let (code, count, entries) = compute_list(&gpu, room);
        assert_eq!((code, count, entries.len()), (OK, 3, 3), "room for {room}");
    }
    driver.rewrite("gpus: [{}]\n");
    assert_eq!(compute_list(&gpu, 0).1, 0, "an empty list does not need a buffer");
}

#[test]
fn growing_list_exceeds_the_reported_size() {
    let driver = Driver::start("gpus: [{processes: [{pid: 100, count: 3}], faults: {grow: 6}}]\n");
    let gpu = driver.gpu(0);
    assert!(
        gpu.running_compute_processes().is_err(),
        "room for five more entries than reported is not enough"
    );
    assert_eq!(compute_list(&gpu, 0).1, 15, "the buffer was too small twice");
    assert_eq!(compute_list(&gpu, 15).1, 21);
    assert_eq!(compute_list(&gpu, 64).0, OK, "a buffer for all entries needs no earlier query of the size");
}

#[test]
fn a_list_may_stop_growing() {
    let driver = Driver::start("gpus: [{processes: [{pid: 100}], faults: {grow: {by: 2, times: 2}}}]\n");
    let gpu = driver.gpu(0);
    let counts: Vec<c_uint> = (0..4).map(|_| compute_list(&gpu, 0).1).collect();
    assert_eq!(counts, [1, 3, 5, 5]);
}

#[test]
fn a_list_that_shrinks_has_fewer_than_were_counted() {
    let driver = Driver::start("gpus: [{processes: [{pid: 100, count: 3}], faults: {shrink: 2}}]\n");
    let gpu = driver.gpu(0);
    assert_eq!(compute_list(&gpu, 0).1, 5);
    assert_eq!(compute_list(&gpu, 5).1, 3);
}

#[test]
fn an_entry_has_the_size_that_the_scenario_says() {
    for stride in [16, 24, 32, 40] {
        let driver = Driver::start(&format!(
            "entry_bytes: {stride}\ngpus: [{{processes: [{{pid: 100, count: 5, used: 3MiB}}]}}]\n"
        ));
        let written = raw_compute_list(&driver);
        let length = written.iter().rposition(|byte| *byte != UNTOUCHED).unwrap() + 1;
        assert_eq!(length, 5 * stride);
        for (nth, entry) in written[..length].chunks(stride).enumerate() {
            assert_eq!(entry[..4], u32::try_from(100 + nth).unwrap().to_ne_bytes());
            assert_eq!(entry[8..16], (3_u64 << 20).to_ne_bytes());
            if stride > 16 {
                assert_eq!(entry[16..24], [0xFF; 8], "no instance");
            }
        }
    }
}

const UNTOUCHED: u8 = 0xAA;

/// Returns the bytes that the driver writes into a buffer whose unwritten bytes can be recognized.
fn raw_compute_list(driver: &Driver) -> Vec<u8> {
    let mut room = vec![u64::from_ne_bytes([UNTOUCHED; 8]); 256];
    let mut count: c_uint = 50;
    let list = driver.nvml.lib().nvmlDeviceGetComputeRunningProcesses_v3.as_ref().unwrap();
    // SAFETY: there is room for 50 entries of the largest size.
    let code = unsafe { list(driver.gpu(0).handle(), &raw mut count, room.as_mut_ptr().cast()) };
    assert_eq!((code, count), (OK, 5));
    room.iter().flat_map(|word| word.to_ne_bytes()).collect()
}
