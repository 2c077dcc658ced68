//! `bailiff completions`: what a shell is told of the flags.

use std::process::ExitCode;

use clap::{Args, CommandFactory, ValueEnum};
use clap_complete::aot::{self, generate};

use crate::exit::Failure;
use crate::say::print;

const EXAMPLES: &str = "\
Examples:
  source <(bailiff completions bash)         for this shell alone
  bailiff completions bash > ~/.local/share/bash-completion/completions/bailiff
  bailiff completions fish > ~/.config/fish/completions/bailiff.fish
  bailiff completions zsh > \"${fpath[1]}/_bailiff\"

The packages have them already.

Exit codes: 0 done, 1 it cannot be written, 64 flags that make no sense.";

/// Prints what a shell needs in order to complete words.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
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
