//! Tests the driver's samples: an idle process has none, timestamps advance in steps, and only newer
//! samples are returned.

use std::ffi::c_uint;

use nvml_wrapper::enum_wrappers::device::Sampling;
use nvml_wrapper::enums::device::SampleValue;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper_sys::bindings::{nvmlProcessUtilizationInfo_v1_t, nvmlProcessesUtilizationInfo_v1_t};

use crate::driver::Driver;

/// A period so long that a test sees at most one timestamp, so samples differ only by their age.
const STILL: &str = "sampling_period: 1000h\n";
const BUSY: &str = "gpus: [{processes: [{pid: 100, sm: 40, memory: 10}, {pid: 101}, \
                    {pid: 102, encoder: 5, jpg: 3, sample_age: 2s}]}]\n";

#[test]
fn idleness_is_absence() {
    let driver = Driver::start("gpus: [{processes: [{pid: 100, used: 1GiB}]}]\n");
    assert!(matches!(driver.gpu(0).process_utilization_stats(0), Err(NvmlError::NotFound)));
    assert_eq!(driver.gpu(0).utilization_rates().unwrap().gpu, 0);
    driver.rewrite("gpus: [{processes: [{pid: 100, used: 1GiB, sm: 7}]}]\n");
    assert_eq!(driver.gpu(0).process_utilization_stats(0).unwrap()[0].sm_util, 7);
    assert_eq!(driver.gpu(0).utilization_rates().unwrap().gpu, 7);
}

#[test]
fn only_newer_samples_are_returned() {
    let driver = Driver::start(&format!("{STILL}{BUSY}"));
    let gpu = driver.gpu(0);
    let all = gpu.process_utilization_stats(0).unwrap();
    let (fresh, stale) = (&all[0], &all[1]);
    assert_eq!((all.len(), fresh.pid, fresh.sm_util, stale.pid, stale.enc_util), (2, 100, 40, 102, 5));
    assert_eq!(fresh.timestamp - stale.timestamp, 2_000_000);
    let pids = |last_seen: u64| -> Vec<u32> {
        gpu.process_utilization_stats(last_seen).map_or(vec![], |all| all.iter().map(|one| one.pid).collect())
    };
    assert_eq!(pids(stale.timestamp - 1), [100, 102]);
    assert_eq!(pids(stale.timestamp), [100]);
    assert!(matches!(gpu.process_utilization_stats(fresh.timestamp), Err(NvmlError::NotFound)));
}

#[test]
fn a_second_question_within_a_period_has_the_same_answer() {
    let driver = Driver::start(&format!("{STILL}{BUSY}"));
    let stamps =
        || driver.gpu(0).process_utilization_stats(0).unwrap().iter().map(|one| one.timestamp).sum::<u64>();
    assert_eq!(stamps(), stamps());
}

#[test]
fn reported_size_is_that_of_the_ring() {
    let driver = Driver::start("gpus: [{}]\n");
    let query = driver.nvml.lib().nvmlDeviceGetProcessUtilization.as_ref().unwrap();
    let mut count: c_uint = 0;
    // SAFETY: a null buffer requests the size.
    let code = unsafe { query(driver.gpu(0).handle(), std::ptr::null_mut(), &raw mut count, 0) };
    assert_eq!((code, count), (7, 100));
}

#[test]
fn the_newer_question_knows_more_engines_and_checks_its_version() {
    let driver = Driver::start(&format!("{STILL}{BUSY}"));
    let query = |version: u32| {
        // SAFETY: the structure consists of numbers and a pointer, which may be null.
        let mut samples = vec![unsafe { std::mem::zeroed::<nvmlProcessUtilizationInfo_v1_t>() }; 10];
        let mut list = nvmlProcessesUtilizationInfo_v1_t {
            version,
            processSamplesCount: 10,
            lastSeenTimeStamp: 0,
            procUtilArray: samples.as_mut_ptr(),
        };
        let query = driver.nvml.lib().nvmlDeviceGetProcessesUtilizationInfo.as_ref().unwrap();
        // SAFETY: the buffer has room for the number of samples in the structure.
        let code = unsafe { query(driver.gpu(0).handle(), &raw mut list) };
        samples.truncate(list.processSamplesCount as usize);
        (code, samples)
    };
    let (code, samples) = query(0x0100_0018);
    assert_eq!((code, samples.len(), samples[1].pid, samples[1].jpgUtil), (0, 2, 102, 3));
    assert_eq!(query(0x0200_0018).0, 25);
}

#[test]
fn the_device_has_samples_even_when_idle() {
    let driver = Driver::start("ring: 7\nsampling_period: 100ms\ngpus: [{utilization: {gpu: 3}}]\n");
    let gpu = driver.gpu(0);
    let samples = gpu.samples(Sampling::GpuUtilization, 0).unwrap();
    assert_eq!(samples.len(), 7);
    assert!(samples.iter().all(|one| one.value == SampleValue::U32(3)));
    assert!(samples.windows(2).all(|pair| pair[1].timestamp - pair[0].timestamp == 100_000));
    assert_eq!(gpu.samples(Sampling::MemoryUtilization, 0).unwrap()[0].value, SampleValue::U32(0));
    assert_eq!(gpu.samples(Sampling::Power, 0).unwrap()[0].value, SampleValue::U32(120_000));
}

#[test]
fn device_returns_only_newer_samples_too() {
    let driver = Driver::start(&format!("{STILL}gpus: [{{}}]\n"));
    let gpu = driver.gpu(0);
    let newest = gpu.samples(Sampling::GpuUtilization, 0).unwrap().last().unwrap().timestamp;
    assert_eq!(gpu.samples(Sampling::GpuUtilization, newest - 1).unwrap().len(), 1);
    assert!(matches!(gpu.samples(Sampling::GpuUtilization, newest), Err(NvmlError::NotFound)));
}

#[test]
fn stamps_count_from_what_the_scenario_says() {
    let newest = |clock: &str| {
        let driver = Driver::start(&format!("clock: {clock}\n{BUSY}"));
        driver.gpu(0).process_utilization_stats(0).unwrap()[0].timestamp
    };
    let year_2020 = 1_577_836_800_000_000;
    assert!(newest("wall") > year_2020 && newest("boot") < year_2020);
}

#[test]
fn garbage_is_added_to_what_is_true() {
    let driver = Driver::start(
        "gpus: [{processes: [{pid: 100, sm: 40}], \
         faults: {garbage: {utilization_above_100: true, pid_zero: true, unlisted_pid: true}}}]\n",
    );
    let gpu = driver.gpu(0);
    let samples: Vec<(u32, u32)> =
        gpu.process_utilization_stats(0).unwrap().iter().map(|one| (one.pid, one.sm_util)).collect();
    assert_eq!(samples, [(100, 40), (100, 250), (0, 50), (4_190_000, 50)]);
    assert_eq!(gpu.running_compute_processes().unwrap()[1].pid, 0);
    assert_eq!(gpu.utilization_rates().unwrap().gpu, 40);
}
