//! The fake server. It runs until it is told to exit. Without a GPU it exits at once.
#![expect(clippy::disallowed_methods, reason = "its settings are in its environment")]

use std::process::ExitCode;

fn main() -> ExitCode {
    if std::env::var_os("FAKE_MPS_NO_GPU").is_some() {
        return ExitCode::FAILURE;
    }
    loop {
        std::thread::park();
    }
}
