//! The stand-in's control program.

use std::process::ExitCode;

fn main() -> ExitCode {
    fake_mps::control().unwrap_or_else(|error| {
        eprintln!("the stand-in failed: {error}");
        ExitCode::from(2)
    })
}
