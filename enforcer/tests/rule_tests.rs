//! The tests of the rules that are shipped pass, and tests that should fail do.
#![allow(
    clippy::disallowed_methods,
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test"
)]

use std::fs;
use std::path::{Path, PathBuf};

use bailiff_enforcer::commands::{Failure, Form, test};
use bailiff_lifecycle::exit::Exit;

fn config() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join("config")
}

fn told(file: &Path) -> (Exit, String) {
    let mut out = Vec::new();
    let settings = test::Settings { file: file.to_owned(), form: Form::Text };
    let exit = test::run(&settings, &mut out).unwrap_or_else(|failure| panic!("{failure}"));
    (exit, String::from_utf8(out).unwrap())
}

#[test]
fn the_shipped_rules_do_what_their_tests_say() {
    let (exit, text) = told(&config().join("tests/rules.test.yaml"));
    assert_eq!(exit, Exit::Done, "{text}");
}

#[test]
fn every_shipped_file_of_rules_is_tested() {
    let tests = fs::read_to_string(config().join("tests/rules.test.yaml")).unwrap();
    for entry in fs::read_dir(config().join("rules")).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        assert!(tests.contains(&format!("rules: ../rules/{name}\n")), "{name} has no test");
    }
}
