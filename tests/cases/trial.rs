//! Runs the random trial for as long as is acceptable in a test; `make soak` runs it for longer.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "a test runs programs and fails loudly")]

use std::process::Command;

use end_to_end::programs;

#[test]
fn random_trial_of_20_s_finds_no_violation() {
    let output = Command::new(programs::built("trial")).arg("20").output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&text));
}
