//! Runs the targets of `tests/fuzz-targets` with libFuzzer. `fuzz/run` starts it. `FUZZ_TARGET` names the target to run;
//! without it, the names of all targets are printed.

#![no_main]

use std::process::exit;
use std::sync::OnceLock;

use fuzz_targets::{TARGETS, Target};
use libfuzzer_sys::fuzz_target;

static TARGET: OnceLock<Target> = OnceLock::new();

fn named() -> Option<Target> {
    let name = std::env::var("FUZZ_TARGET").ok()?;
    TARGETS.iter().find(|(known, _)| *known == name).map(|(_, target)| *target)
}

fn list() -> Target {
    TARGETS.iter().for_each(|(name, _)| println!("{name}"));
    exit(0)
}

fuzz_target!(
    init: {
        TARGET.get_or_init(|| named().unwrap_or_else(list));
    },
    |data: &[u8]| TARGET.wait()(data)
);
