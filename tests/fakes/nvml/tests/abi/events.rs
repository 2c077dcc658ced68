//! Tests event sets: each set receives each error once, and a wait ends.

use std::thread;

use nvml_wrapper::EventSet;
use nvml_wrapper::bitmasks::event::EventTypes;
use nvml_wrapper::enums::event::XidError;
use nvml_wrapper::error::NvmlError;

use crate::driver::Driver;

fn watch(driver: &Driver) -> EventSet<'_> {
    let set = driver.nvml.create_event_set().unwrap();
    driver.gpu(0).register_events(EventTypes::CRITICAL_XID_ERROR, set).unwrap()
}

fn next(set: &EventSet<'_>) -> u64 {
    match set.wait(60_000).unwrap().event_data {
        Some(XidError::Value(xid)) => xid,
        other => panic!("{other:?}"),
    }
}

#[test]
fn error_is_delivered_once_to_each_set() {
    let driver = Driver::start("gpus: [{xid: [13, 31]}]\n");
    let (one, other) = (watch(&driver), watch(&driver));
    assert_eq!((next(&one), next(&one)), (13, 31));
    assert!(matches!(one.wait(0), Err(NvmlError::Timeout)));
    driver.rewrite("gpus: [{xid: [13, 31, 79]}]\n");
    assert_eq!(next(&one), 79);
    assert!(matches!(one.wait(0), Err(NvmlError::Timeout)));
    assert_eq!((next(&other), next(&other), next(&other)), (13, 31, 79));
}

#[test]
fn a_wait_ends_when_something_happens() {
    let driver = Driver::start("gpus: [{}]\n");
    let set = watch(&driver);
    thread::scope(|scope| {
        let waiting = scope.spawn(move || next(&set));
        driver.rewrite("gpus: [{xid: [94]}]\n");
        assert_eq!(waiting.join().unwrap(), 94);
    });
}

#[test]
fn a_lost_device_ends_the_wait_after_its_last_error() {
    let driver = Driver::start("gpus: [{}]\n");
    let set = watch(&driver);
    driver.rewrite("gpus: [{xid: [79], faults: {lost: true}}]\n");
    assert_eq!(next(&set), 79);
    assert!(matches!(set.wait(60_000), Err(NvmlError::GpuLost)));
}

#[test]
fn a_set_that_was_freed_is_no_set() {
    let driver = Driver::start("gpus: [{}]\n");
    let set = driver.nvml.create_event_set().unwrap();
    // SAFETY: the handle is used only while the set exists.
    let handle = unsafe { set.handle() };
    drop(set);
    let free = driver.nvml.lib().nvmlEventSetFree.as_ref().unwrap();
    // SAFETY: a handle is never dereferenced.
    assert_eq!(unsafe { free(handle) }, 2);
}
