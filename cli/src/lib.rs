//! The `bailiff` command-line program.

mod args;
mod command;
mod completions;
mod doctor;
mod exit;
mod flags;
mod free;
mod gpuget;
mod idle_timeout;
mod info;
mod lease;
mod mps;
mod output;
mod owner;
mod process_tree;
mod prometheus;
mod python;
mod report;
mod run;
mod screen;
mod slurm;
mod stream;
mod visible;

use std::ffi::OsStr;
use std::process::ExitCode;

use bailiff_lifecycle::exit::{parse, report_outcome};
use bailiff_sampler::{cuda, launcher, worker};
use clap::CommandFactory;

use flags::{Command, Flags};

/// Returns the clap definition of all commands.
pub fn flags() -> clap::Command {
    Flags::command()
}

/// Runs the command given by the program's name and arguments.
pub fn main() -> ExitCode {
    let mut args = std::env::args_os();
    match args.next() {
        Some(name) if gpuget::is_called(&name) => return gpuget::main(args),
        Some(name) if idle_timeout::is_called(&name) => {
            return idle_timeout::main(idle_timeout::Name::Script, args);
        }
        Some(name) if info::is_called(&name) => return info::main(),
        _ => {}
    }
    match args.next().as_deref().and_then(OsStr::to_str) {
        Some(launcher::LAUNCHER_ROLE) => return launcher::serve(),
        Some(launcher::WORKER_ROLE) => return worker::serve(None),
        Some(cuda::ROLE) => return cuda::serve(),
        // Its flags are parsed as by Python's argparse, not by clap.
        Some("idle-timeout") => return idle_timeout::main(idle_timeout::Name::Command, args),
        _ => {}
    }
    let flags = match parse::<Flags>(std::env::args_os()) {
        Ok(flags) => flags,
        Err(stop) => return report_outcome("bailiff", Err(stop)).into(),
    };
    let outcome = match flags.command {
        Command::Gpuget(flags) => return gpuget::main(flags.args),
        Command::IdleTimeout(flags) => return idle_timeout::run(idle_timeout::Name::Command, *flags),
        Command::Doctor(flags) => doctor::doctor(&flags),
        Command::Info(flags) => info::info(&flags),
        Command::Free(flags) => free::free(&flags),
        Command::Hold(flags) => owner::hold::hold(&flags),
        Command::Why(flags) => owner::why::why(&flags),
        Command::Report(flags) => report::report(&flags),
        Command::Mps(command) => mps::mps(&command),
        Command::Lease(command) => lease::commands::lease(&command),
        Command::Run(flags) => run::run(&flags),
        Command::Slurm(command) => slurm::slurm(&command),
        Command::Completions(flags) => completions::completions(&flags, &Flags::command()),
    };
    outcome.unwrap_or_else(exit::Failure::report)
}
