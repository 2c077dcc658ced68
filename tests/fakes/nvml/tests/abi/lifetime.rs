//! Tests initialization and shutdown of a driver, and invalid scenarios.

use std::ffi::c_void;
use std::fs;
use std::sync::mpsc;
use std::thread;

use nvml_wrapper::error::NvmlError;

use crate::driver::{Driver, directory, initialize, rewrite};

#[test]
fn initialization_fails_as_the_scenario_says() {
    let cases = [
        ("driver_not_loaded", "DriverNotLoaded"),
        ("lib_rm_version_mismatch", "LibRmVersionMismatch"),
        ("no_permission", "NoPermission"),
        ("uninitialized", "Uninitialized"),
        ("gpu_not_found", "UnexpectedVariant(28)"),
        ("no_such_error", "Unknown"),
    ];
    for (name, expected) in cases {
        let error = initialize(directory(&format!("init: {name}\n")).path()).err();
        assert_eq!(error.map(|error| format!("{error:?}")).as_deref(), Some(expected), "{name}");
    }
}

#[test]
fn a_scenario_that_is_missing_or_broken_is_no_driver() {
    let empty = directory("");
    fs::remove_file(empty.path().join("scenario.yaml")).unwrap();
    assert!(matches!(initialize(empty.path()), Err(NvmlError::Unknown)));
    for broken in ["gpus: [", "gpu: []", "gpus: [{memory: {total: 8GB}}]", "missing: [nvmlDeviceGetMemory]"] {
        assert!(matches!(initialize(directory(broken).path()), Err(NvmlError::Unknown)), "{broken}");
    }
}

#[test]
fn a_scenario_that_breaks_later_leaves_the_last_good_one() {
    let driver = Driver::start("gpus: [{name: First}]\n");
    driver.rewrite("gpus: [{nmae: Second}]\n");
    assert_eq!(driver.gpu(0).name().unwrap(), "First");
    driver.rewrite("gpus: [{name: Third}, {}]\n");
    assert_eq!(driver.gpu(0).name().unwrap(), "Third");
    assert_eq!(driver.nvml.device_count().unwrap(), 2);
}

#[test]
fn an_initialization_that_hangs_ends_when_the_scenario_says_otherwise() {
    let directory = directory("init: hang\n");
    let path = directory.path().to_owned();
    let (done, outcome) = mpsc::channel();
    thread::scope(|scope| {
        scope.spawn(move || done.send(initialize(&path).map(|nvml| nvml.device_count())));
        rewrite(directory.path(), "gpus: [{}]\n");
        assert_eq!(outcome.recv().unwrap().unwrap().unwrap(), 1);
    });
}

#[test]
fn as_many_shutdowns_as_initializations_are_needed() {
    let driver = Driver::start("gpus: [{}]\n");
    let lib = driver.nvml.lib();
    // SAFETY: the functions have no arguments.
    let (start, end) = unsafe { (lib.nvmlInit_v2.as_ref().unwrap()(), lib.nvmlShutdown.as_ref().unwrap()()) };
    assert_eq!((start, end), (0, 0));
    assert_eq!(driver.nvml.device_count().unwrap(), 1, "one initialization remains");
    // SAFETY: the function has no arguments.
    assert_eq!(unsafe { lib.nvmlShutdown.as_ref().unwrap()() }, 0);
    assert!(matches!(driver.nvml.device_count(), Err(NvmlError::Uninitialized)));
    // SAFETY: the function has no arguments.
    assert_eq!(unsafe { lib.nvmlShutdown.as_ref().unwrap()() }, 1);
}

#[test]
fn a_handle_that_was_not_given_out_names_no_device() {
    let driver = Driver::start("gpus: [{}]\n");
    let name = driver.nvml.lib().nvmlDeviceGetIndex.as_ref().unwrap();
    let mut index = 0;
    // SAFETY: a handle is never dereferenced.
    let good = unsafe { driver.gpu(0).handle() };
    let beyond = good.wrapping_byte_add(16 * 8);
    for handle in
        [std::ptr::null_mut::<c_void>().cast(), good.wrapping_byte_add(1), beyond, (&raw mut index).cast()]
    {
        // SAFETY: a handle is never dereferenced, and the pointer is to a local variable.
        assert_eq!(unsafe { name(handle, &raw mut index) }, 2);
    }
    // SAFETY: a handle is never dereferenced, and the pointer is to a local variable.
    assert_eq!(unsafe { name(good, &raw mut index) }, 0);
}

#[test]
fn devices_are_found_by_all_their_names() {
    let driver = Driver::start("gpus: [{}, {uuid: GPU-second}]\n");
    let nvml = &driver.nvml;
    assert_eq!(driver.gpu(0).uuid().unwrap(), "GPU-00000000-0000-4000-8000-000000000001");
    assert_eq!(nvml.device_by_uuid("GPU-second").unwrap().index().unwrap(), 1);
    assert!(matches!(nvml.device_by_uuid("GPU-third"), Err(NvmlError::NotFound)));
    let bus_id = driver.gpu(1).pci_info().unwrap().bus_id;
    for spelling in [bus_id.clone(), bus_id.to_lowercase(), bus_id[4..].to_owned()] {
        assert_eq!(nvml.device_by_pci_bus_id(spelling).unwrap().index().unwrap(), 1);
    }
    assert_eq!(nvml.sys_driver_version().unwrap(), "580.95.05");
    assert_eq!(nvml.sys_cuda_driver_version().unwrap(), 13000);
    assert!(matches!(nvml.device_by_index(2), Err(NvmlError::InvalidArg)));
}
