//! Tests devices that are lost, hang, are slow or return errors, and drivers that do not export a
//! function.

use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use nvml_wrapper::enum_wrappers::device::ComputeMode;
use nvml_wrapper::error::NvmlError;

use crate::driver::Driver;

#[test]
fn a_lost_device_answers_nothing_and_the_others_go_on() {
    let driver = Driver::start("gpus: [{}, {}]\n");
    let second = driver.gpu(1);
    driver.rewrite("gpus: [{}, {faults: {lost: true}}]\n");
    assert_eq!(driver.nvml.device_count().unwrap(), 2);
    assert!(matches!(driver.nvml.device_by_index(1), Err(NvmlError::GpuLost)));
    assert!(matches!(second.memory_info(), Err(NvmlError::GpuLost)));
    assert!(driver.gpu(0).memory_info().is_ok());
    driver.rewrite("gpus: [{}, {faults: {lost: late}}]\n");
    assert!(
        matches!(driver.gpu(1).memory_info(), Err(NvmlError::GpuLost)),
        "only the handle can be obtained"
    );
    driver.rewrite("gpus: [{}, {}]\n");
    assert!(second.memory_info().is_ok());
}

#[test]
fn a_call_that_hangs_ends_when_the_scenario_says_otherwise() {
    for hang in ["true", "[nvmlDeviceGetMemoryInfo_v2]"] {
        let driver = Driver::start("gpus: [{}, {}]\n");
        let (first, second) = (driver.gpu(0), driver.gpu(1));
        driver.rewrite(&format!("gpus: [{{faults: {{hang: {hang}}}}}, {{}}]\n"));
        let (asks, asked) = mpsc::channel();
        thread::scope(|scope| {
            let total = scope.spawn(move || {
                asks.send(()).unwrap();
                first.memory_info().unwrap().total
            });
            asked.recv().unwrap();
            assert!(second.memory_info().is_ok(), "the other device responds");
            driver.rewrite("gpus: [{memory: {total: 80GiB}}, {}]\n");
            assert_eq!(total.join().unwrap(), 80 << 30, "the value is the one when the call returns");
        });
    }
}

#[test]
fn a_driver_that_hangs_ends_when_the_scenario_says_otherwise() {
    let driver = Driver::start("gpus: [{}]\n");
    driver.rewrite("gpus: [{}]\nfaults: {hang: true}\n");
    thread::scope(|scope| {
        let count = scope.spawn(|| driver.nvml.device_count().unwrap());
        driver.rewrite("gpus: [{}, {}]\n");
        assert_eq!(count.join().unwrap(), 2);
    });
}

#[test]
fn a_slow_device_takes_its_time() {
    let driver = Driver::start("gpus: [{faults: {slow: {nvmlDeviceGetTemperature: 30ms}}}]\n");
    let gpu = driver.gpu(0);
    let start = Instant::now();
    assert!(gpu.temperature(nvml_wrapper::enum_wrappers::device::TemperatureSensor::Gpu).is_ok());
    assert!(start.elapsed() >= Duration::from_millis(30));
}

#[test]
fn a_function_answers_the_error_that_the_scenario_gives_it() {
    let driver = Driver::start(
        "gpus: [{processes: [{pid: 1, sm: 4}], faults: {errors: {nvmlDeviceGetProcessUtilization: not_supported}}}]\n",
    );
    assert!(matches!(driver.gpu(0).process_utilization_stats(0), Err(NvmlError::NotSupported)));
    assert_eq!(driver.gpu(0).running_compute_processes().unwrap().len(), 1);
    driver.rewrite("gpus: [{}]\nfaults: {errors: {\"*\": lib_rm_version_mismatch}}\n");
    assert!(matches!(driver.nvml.device_count(), Err(NvmlError::LibRmVersionMismatch)));
}

#[test]
fn an_old_driver_lacks_functions() {
    let driver = Driver::start("gpus: [{}]\nmissing: [nvmlDeviceGetMemoryInfo_v2]\n");
    let Err(NvmlError::FunctionNotFound) = driver.gpu(0).memory_info() else {
        panic!("the function must be missing")
    };
    driver.rewrite("gpus: [{}]\n");
    assert!(driver.gpu(0).memory_info().is_ok());
}

#[test]
fn memory_has_two_versions() {
    let driver = Driver::start(
        "gpus: [{memory: {total: 100MiB, reserved: 10MiB, unaccounted: 5MiB}, processes: [{pid: 1, used: 20MiB}]}]\n",
    );
    let gpu = driver.gpu(0);
    let memory = gpu.memory_info().unwrap();
    let mib = |bytes: u64| bytes >> 20;
    assert_eq!((mib(memory.reserved), mib(memory.used), mib(memory.free)), (10, 25, 65));
    let first = driver.nvml.lib().nvmlDeviceGetMemoryInfo.as_ref().unwrap();
    let second = driver.nvml.lib().nvmlDeviceGetMemoryInfo_v2.as_ref().unwrap();
    // SAFETY: the structures consist of numbers, and each pointer is to one structure.
    unsafe {
        let mut old: nvml_wrapper_sys::bindings::nvmlMemory_t = std::mem::zeroed();
        assert_eq!(first(gpu.handle(), &raw mut old), 0);
        assert_eq!((mib(old.used), mib(old.free)), (35, 65), "the reserve counts as used");
        let mut new: nvml_wrapper_sys::bindings::nvmlMemory_v2_t = std::mem::zeroed();
        assert_eq!(second(gpu.handle(), &raw mut new), 25, "the structure's version is missing");
    }
}

#[test]
fn modes_are_read_only() {
    let driver = Driver::start("gpus: [{compute_mode: exclusive_process}]\n");
    let mut gpu = driver.gpu(0);
    assert_eq!(gpu.compute_mode().unwrap(), ComputeMode::ExclusiveProcess);
    assert!(matches!(gpu.set_compute_mode(ComputeMode::Default), Err(NvmlError::NoPermission)));
}

#[test]
fn ended_processes_are_remembered() {
    let driver = Driver::start(
        "gpus: [{accounting: {enabled: true, processes: [{pid: 77, max_memory: 12GiB, gpu: 55, time: 60s}]}}, {}]\n",
    );
    let gpu = driver.gpu(0);
    assert_eq!(gpu.accounting_pids().unwrap(), [77]);
    let stats = gpu.accounting_stats_for(77).unwrap();
    assert_eq!(
        (stats.gpu_utilization, stats.max_memory_usage, stats.time),
        (Some(55), Some(12 << 30), 60_000)
    );
    assert!(matches!(gpu.accounting_stats_for(78), Err(NvmlError::NotFound)));
    assert!(!driver.gpu(1).is_accounting_enabled().unwrap());
    assert!(matches!(driver.gpu(1).accounting_pids(), Err(NvmlError::NotSupported)));
}

#[test]
fn energy_stands_still_unless_it_is_to_grow() {
    let driver =
        Driver::start("gpus: [{energy: 5000J}, {energy: 5000J, energy_grows: true, power: 1000000W}]\n");
    let (still, grows) = (driver.gpu(0), driver.gpu(1));
    let start = grows.total_energy_consumption().unwrap();
    while grows.total_energy_consumption().unwrap() == start {}
    assert_eq!(still.total_energy_consumption().unwrap(), 5_000_000);
}
