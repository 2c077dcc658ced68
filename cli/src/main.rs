//! The `bailiff` binary. The code is in `lib.rs`, so that the man page generator can use the flags.

use std::process::ExitCode;

fn main() -> ExitCode {
    bailiff_cli::main()
}
