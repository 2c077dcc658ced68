//! `bailiff completions`: what a shell is told of the flags.

use std::process::ExitCode;

use clap::{Args, CommandFactory, ValueEnum};
use clap_complete::aot::{self, generate};

use crate::exit::Failure;
use crate::say::print;

/// Prints what a shell needs in order to complete words.
#[derive(Debug, Args)]
pub(crate) struct Completions {
    /// For which shell.
    #[arg(value_enum, value_name = "SHELL")]
    shell: Shell,
}

/// Shells that are tested.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum Shell {
    Bash,
    Zsh,
    Fish,
}

/// Prints them.
pub(crate) fn completions(flags: &Completions) -> Result<ExitCode, Failure> {
    let shell = match flags.shell {
        Shell::Bash => aot::Shell::Bash,
        Shell::Zsh => aot::Shell::Zsh,
        Shell::Fish => aot::Shell::Fish,
    };
    // It panics where it cannot write, as into a pipe whose reader has ended.
    let mut text = Vec::new();
    generate(shell, &mut crate::flags::Flags::command(), "bailiff", &mut text);
    print(&String::from_utf8_lossy(&text))?;
    Ok(ExitCode::SUCCESS)
}
