//! Tests the shipped scenarios: each can be read and describes what its name says.

use std::fs;
use std::path::Path;

use nvml_wrapper::error::NvmlError;

use crate::driver::{Driver, directory, initialize};

#[test]
fn every_scenario_is_a_machine() {
    let cases = [
        ("8x100", 8),
        ("8x4", 8),
        ("busy", 2),
        ("dead-pid", 1),
        ("graphics", 1),
        ("hung", 2),
        ("idle", 2),
        ("lost", 3),
        ("mig", 2),
        ("mps", 2),
        ("none", 0),
        ("r535", 2),
        ("r580", 2),
        ("r615", 2),
    ];
    for (name, gpus) in cases {
        let driver = Driver::start(&scenario(name));
        assert_eq!(driver.nvml.device_count().unwrap(), gpus, "{name}");
    }
    assert!(matches!(initialize(directory(&scenario("no-driver")).path()), Err(NvmlError::DriverNotLoaded)));
    assert_eq!(
        fs::read_dir(scenarios()).unwrap().count(),
        cases.len() + 1,
        "every scenario must be in this table"
    );
}

fn scenario(name: &str) -> String {
    fs::read_to_string(scenarios().join(format!("{name}.yaml"))).expect(name)
}

fn scenarios() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/scenarios"))
}
