//! A fake of NVIDIA's `libnvidia-ml.so.1` that follows a scenario file; for tests only, never shipped.
//!
//! A call passes the gate (is it exported, is the library initialized, which faults apply) and then reads the
//! machine that the scenario file describes at that moment. `README.md` has the format of the file.
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

/// Whether a function of this name is among those exported; a scenario that names another has a typing error.
fn exports(name: &str) -> bool {
    [
        accounting::NAMES,
        device::NAMES,
        event_sets::NAMES,
        events::NAMES,
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
