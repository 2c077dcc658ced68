//! The program; all of it is in `lib.rs`, where the writer of its man pages finds the flags.

use std::process::ExitCode;

fn main() -> ExitCode {
    bailiff_cli::main()
}
