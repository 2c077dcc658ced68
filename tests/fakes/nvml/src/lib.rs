//! A fake of NVIDIA's `libnvidia-ml.so.1` that follows a scenario file. For tests only, never shipped.
//!
//! A call passes the gate (is the function exported, is the library initialized, which faults apply) and then
//! reads the machine that the scenario file describes at that moment. `README.md` describes the format of the
//! file.
#![allow(
    unsafe_code,
    reason = "a C library: symbols are exported by name and write through the caller's pointers"
)]
#![allow(non_snake_case, reason = "exported functions bear the names of nvml.h")]

mod abi;
mod accounting;
mod clock;
mod code;
mod device;
mod edge;
mod event_sets;
mod events;
mod gate;
mod gpm;
mod health;
mod lifetime;
mod lookup;
mod machine;
mod memory;
mod mig;
mod processes;
mod sampler;
mod scenario;
mod state;
mod system;
mod units;
mod unsupported;
mod utilization;

/// Returns whether a function with this name is exported. Other names in a scenario are typing errors.
fn exports(name: &str) -> bool {
    [
        accounting::NAMES,
        device::NAMES,
        event_sets::NAMES,
        events::NAMES,
        gpm::NAMES,
        gpm::of_device::NAMES,
        health::NAMES,
        lifetime::NAMES,
        lookup::NAMES,
        memory::NAMES,
        mig::NAMES,
        processes::NAMES,
        sampler::NAMES,
        system::NAMES,
        unsupported::NAMES,
        utilization::NAMES,
    ]
    .iter()
    .any(|names| names.contains(&name))
}
