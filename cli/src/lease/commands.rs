//! Runs the commands of `bailiff lease`.

use std::process::ExitCode;

use super::flags::Lease;
use super::{acquire, hold, init, list, log, release};
use crate::exit::Failure;
use crate::run::job::Job;

/// Runs a `lease` command.
pub(crate) fn lease(command: &Lease) -> Result<ExitCode, Failure> {
    match command {
        Lease::Init(flags) => init::init(flags),
        Lease::Run(flags) => Job { lease: Some(flags), ..Job::new(&flags.command, &flags.time_limit) }.run(),
        Lease::Acquire(flags) => acquire::acquire(flags),
        Lease::Adopt(flags) => acquire::adopt(flags),
        Lease::Release(flags) => release::release(flags),
        Lease::Extend(flags) => release::extend(flags),
        Lease::List(flags) => list::list(flags),
        Lease::Status(flags) => list::status(flags),
        Lease::Queue(flags) => list::queue(flags),
        Lease::Log(flags) => log::log(flags),
        Lease::Reap(flags) => release::reap(flags),
        Lease::Hold(flags) => hold::hold(flags),
    }
}
