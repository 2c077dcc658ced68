//! Properties of a device: its names, its address on the bus, its modes.

use std::ffi::{c_char, c_int, c_uint};

use crate::abi::PciInfo;
use crate::code::Code;
use crate::edge::{Out, Room, device_calls, field, put};
use crate::machine::Gpu;
use crate::scenario::ComputeMode;

/// `NVML_BRAND_NVIDIA`
const BRAND: c_uint = 14;
/// `NVML_DEVICE_ARCH_HOPPER`
const ARCHITECTURE: c_uint = 9;
/// Device and vendor id of an H200 on the bus.
const PCI_DEVICE: c_uint = 0x2335_10DE;
const PCI_SUBSYSTEM: c_uint = 0x18BE_10DE;
/// Bus number of the first device. The other devices follow it.
const FIRST_BUS: u32 = 0x17;

device_calls! {
    nvmlDeviceGetUUID(call, text: Room<c_char>, length: c_uint) { text.text(length, &call.unit().uuid) }
    nvmlDeviceGetName(call, text: Room<c_char>, length: c_uint) { text.text(length, &call.unit().name) }
    nvmlDeviceGetSerial(call, text: Room<c_char>, length: c_uint) { text.text(length, &serial(call.gpu()?)) }
    nvmlDeviceGetIndex(call, index: Out<c_uint>) {
        put(index, call.instance.map_or(call.whole.index, |instance| instance.index))
    }
    nvmlDeviceGetMinorNumber(call, minor: Out<c_uint>) { put(minor, call.gpu()?.index) }
    nvmlDeviceGetBrand(call, brand: Out<c_uint>) { put(brand, call.gpu().map(|_| BRAND)?) }
    nvmlDeviceGetArchitecture(_call, architecture: Out<c_uint>) { put(architecture, ARCHITECTURE) }
    nvmlDeviceGetCudaComputeCapability(call, major: Out<c_int>, minor: Out<c_int>) {
        let capability = call.whole.written.compute_capability;
        put(major, capability.0)?;
        put(minor, capability.1)
    }
    nvmlDeviceGetPciInfo_v3(call, info: Out<PciInfo>) { put(info, pci_info(call.gpu()?)) }
    nvmlDeviceGetComputeMode(call, mode: Out<c_uint>) { put(mode, compute_mode(call.whole)) }
    nvmlDeviceSetComputeMode(_call, _mode: c_uint) { Err(Code::NO_PERMISSION) }
    nvmlDeviceGetPersistenceMode(call, mode: Out<c_uint>) { put(mode, c_uint::from(call.gpu()?.written.persistence)) }
    nvmlDeviceSetPersistenceMode(_call, _mode: c_uint) { Err(Code::NO_PERMISSION) }
    nvmlDeviceGetDisplayActive(call, active: Out<c_uint>) { put(active, call.gpu().map(|_| 0)?) }
    nvmlDeviceGetDisplayMode(call, mode: Out<c_uint>) { put(mode, call.gpu().map(|_| 0)?) }
}

/// Returns the serial number of the board.
pub(crate) fn serial(gpu: &Gpu) -> String {
    format!("1650{:09}", gpu.index)
}

/// Returns the device's bus id.
pub(crate) fn bus_id(gpu: &Gpu) -> String {
    format!("00000000:{:02X}:00.0", FIRST_BUS + gpu.index)
}

fn pci_info(gpu: &Gpu) -> PciInfo {
    let bus_id = bus_id(gpu);
    PciInfo {
        bus_id_legacy: field(bus_id.get(4..).unwrap_or_default()),
        domain: 0,
        bus: FIRST_BUS + gpu.index,
        device: 0,
        pci_device_id: PCI_DEVICE,
        pci_subsystem_id: PCI_SUBSYSTEM,
        bus_id: field(&bus_id),
    }
}

fn compute_mode(gpu: &Gpu) -> c_uint {
    match gpu.written.compute_mode {
        ComputeMode::Default => 0,
        ComputeMode::Prohibited => 2,
        ComputeMode::ExclusiveProcess => 3,
    }
}
