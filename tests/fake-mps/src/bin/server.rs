//! The stand-in's server: it is there, until it is told to end. Without a GPU it ends at once.
#![expect(clippy::disallowed_methods, reason = "the daemon tells it by its environment")]

use std::process::ExitCode;

fn main() -> ExitCode {
    if std::env::var_os("FAKE_MPS_NO_GPU").is_some() {
        return ExitCode::FAILURE;
    }
    loop {
        std::thread::park();
    }
}
