//! Tests MIG: gaps between indexes, ids, the processes on instances, and calls that instances do
//! not support.

use std::ffi::c_uint;

use nvml_wrapper::Device;
use nvml_wrapper::enum_wrappers::device::Sampling;
use nvml_wrapper::error::NvmlError;

use crate::driver::{Driver, compute_list};

const SPLIT: &str = "gpus:
- memory: {total: 100GiB, reserved: 0MiB}
  mig:
  - {gi: 1, profile: 3g.71gb, memory: {total: 40GiB}, processes: [{pid: 100, used: 1GiB, sm: 50}]}
  - index: 2
    gi: 5
    ci: 1
    profile: 1c.2g.35gb
    memory: {total: 20GiB, reserved: 1GiB}
    processes: [{pid: 101, used: 2GiB}]
- {}
";

#[test]
fn instances_are_devices_of_their_own() {
    let driver = Driver::start(SPLIT);
    let whole = driver.gpu(0);
    assert_eq!(whole.mig_device_count().unwrap(), 7, "the maximum number of instances");
    assert!(matches!(whole.mig_device_by_index(1), Err(NvmlError::NotFound)), "a gap");
    let second = whole.mig_device_by_index(2).unwrap();
    assert!(second.mig_is_mig_device_handle().unwrap() && !whole.mig_is_mig_device_handle().unwrap());
    assert_eq!(second.uuid().unwrap(), "MIG-00000000-0000-4000-8000-000001005001");
    assert_eq!(second.name().unwrap(), "NVIDIA H200 MIG 1c.2g.35gb");
    assert_eq!(second.mig_parent_device().unwrap().uuid().unwrap(), whole.uuid().unwrap());
    assert_eq!(driver.nvml.device_by_uuid(second.uuid().unwrap()).unwrap().index().unwrap(), 2);
    assert_eq!(ids(&second), [(0, 5), (0, 1)]);
    assert_eq!(ids(&whole).map(|(code, _)| code), [2, 2], "only instances have ids");
    let attributes = second.attributes().unwrap();
    assert_eq!((attributes.gpu_instance_slice_count, attributes.compute_instance_slice_count), (2, 1));
    assert_eq!(attributes.memory_size_mb, 20 << 10);
}

fn ids(device: &Device<'_>) -> [(c_uint, c_uint); 2] {
    let lib = device.nvml().lib();
    [&lib.nvmlDeviceGetGpuInstanceId, &lib.nvmlDeviceGetComputeInstanceId].map(|query| {
        let mut id = 0;
        // SAFETY: the pointer is to a local variable.
        let code = unsafe { query.as_ref().unwrap()(device.handle(), &raw mut id) };
        (code, id)
    })
}

#[test]
fn the_device_lists_the_processes_of_all_its_instances() {
    let driver = Driver::start(SPLIT);
    let whole = driver.gpu(0);
    let rows = |device: &Device<'_>| -> Vec<(u32, u32, u32)> {
        let (_, _, entries) = compute_list(device, 8);
        entries.iter().map(|one| (one.pid, one.gpuInstanceId, one.computeInstanceId)).collect()
    };
    assert_eq!(rows(&whole), [(100, 1, 0), (101, 5, 1)]);
    assert_eq!(rows(&whole.mig_device_by_index(2).unwrap()), [(101, 5, 1)]);
    assert_eq!(whole.memory_info().unwrap().used, 3 << 30);
    assert_eq!(whole.mig_device_by_index(2).unwrap().memory_info().unwrap().free, 17 << 30);
}

#[test]
fn utilization_of_a_mig_device_is_not_supported() {
    let driver = Driver::start(SPLIT);
    let whole = driver.gpu(0);
    for device in [whole.mig_device_by_index(0).unwrap(), whole] {
        assert!(matches!(device.process_utilization_stats(0), Err(NvmlError::NotSupported)));
        assert!(matches!(device.utilization_rates(), Err(NvmlError::NotSupported)));
        assert!(matches!(device.samples(Sampling::GpuUtilization, 0), Err(NvmlError::NotSupported)));
    }
}

#[test]
fn a_device_may_be_split_into_nothing_or_be_whole() {
    let driver = Driver::start("gpus: [{mig: []}, {}]\n");
    let (split, whole) = (driver.gpu(0), driver.gpu(1));
    assert_eq!((split.mig_mode().unwrap().current, whole.mig_mode().unwrap().current), (1, 0));
    assert_eq!((split.mig_device_count().unwrap(), whole.mig_device_count().unwrap()), (7, 0));
    assert!(matches!(whole.mig_device_by_index(0), Err(NvmlError::NotFound)));
    assert!(matches!(split.process_utilization_stats(0), Err(NvmlError::NotSupported)));
}

#[test]
fn a_handle_ends_with_its_instance() {
    let driver = Driver::start(SPLIT);
    let whole = driver.gpu(0);
    let instance = whole.mig_device_by_index(2).unwrap();
    driver.rewrite("gpus: [{mig: []}]\n");
    assert!(matches!(instance.uuid(), Err(NvmlError::InvalidArg)));
}
