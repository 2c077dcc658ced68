//! libFuzzer targets for everything that other programs and users write. `fuzz/run` runs them. `FUZZ_TARGET` names the
//! target to run; without it, the names of all targets are printed.

#![no_main]

mod peers;
mod texts;
mod trees;

use std::process::exit;
use std::sync::OnceLock;

use libfuzzer_sys::fuzz_target;

/// Parses an input, and panics if a property does not hold.
type Target = fn(&[u8]);

const TARGETS: [(&str, Target); 15] = [
    ("cgroup", texts::cgroup),
    ("stat", texts::stat),
    ("status", texts::status),
    ("command", texts::command),
    ("locks", texts::locks),
    ("mps", texts::mps),
    ("sizes", texts::sizes),
    ("labels", texts::labels),
    ("ledger", trees::ledger),
    ("stream", trees::stream),
    ("rules", trees::rules),
    ("lease", trees::lease),
    ("web", peers::web),
    ("redis", peers::redis),
    ("prometheus", peers::prometheus),
];

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
