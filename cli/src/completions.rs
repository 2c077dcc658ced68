//! `bailiff completions`: completion scripts for shells.

use std::process::ExitCode;

use clap::builder::{PossibleValue, StyledStr};
use clap::{Arg, ArgGroup, Args, Command, Id, ValueEnum};
use clap_complete::aot::{self, generate};

use crate::exit::{Failure, succeed};

const EXAMPLES: &str = "\
Examples:
  source <(bailiff completions bash)         enable completion in the current shell
  bailiff completions bash > ~/.local/share/bash-completion/completions/bailiff
  bailiff completions fish > ~/.config/fish/completions/bailiff.fish
  bailiff completions zsh > \"${fpath[1]}/_bailiff\"

The deb and rpm packages install these scripts.

Exit codes: 0: success; 1: the script cannot be written; 64: invalid flags.";

/// The flags of `completions`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Completions {
    /// Shell to print the script for.
    #[arg(value_enum, value_name = "SHELL")]
    shell: Shell,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Shell {
    Bash,
    Zsh,
    Fish,
}

/// Prints the completion script.
pub(crate) fn completions(flags: &Completions, command: &Command) -> Result<ExitCode, Failure> {
    let shell = match flags.shell {
        Shell::Bash => aot::Shell::Bash,
        Shell::Zsh => aot::Shell::Zsh,
        Shell::Fish => aot::Shell::Fish,
    };
    // `generate` panics on a write error such as a closed pipe, so it writes to memory.
    let mut text = Vec::new();
    generate(shell, &mut visible(command), "bailiff", &mut text);
    succeed(&String::from_utf8_lossy(&text))
}

/// Copies a command without hidden commands and flags, which `clap_complete` would offer.
fn visible(command: &Command) -> Command {
    let flags: Vec<&Arg> = command.get_arguments().filter(|flag| !flag.is_hide_set()).collect();
    let is_visible = |id: &&Id| flags.iter().any(|flag| flag.get_id() == *id);
    let groups = command.get_groups().map(|group| {
        ArgGroup::new(group.get_id().clone()).args(group.get_args().filter(is_visible)).multiple(true)
    });
    let commands = command.get_subcommands().filter(|below| !below.is_hide_set());
    let copy = Command::new(command.get_name().to_owned())
        .about(command.get_about().cloned().unwrap_or_default())
        .disable_help_flag(command.is_disable_help_flag_set())
        .groups(groups)
        .args(flags.iter().map(|flag| without_unsafe_help((*flag).clone())))
        .subcommands(commands.map(visible));
    match command.get_version() {
        Some(version) => copy.version(version.to_owned()),
        None => copy,
    }
}

/// Removes the help of values that contain shell metacharacters: `clap_complete` writes it between double
/// quotes without escaping.
fn without_unsafe_help(flag: Arg) -> Arg {
    let special = |help: &StyledStr| help.to_string().contains(['"', '$', '`', '\\', '\'']);
    let mut values = flag.get_possible_values();
    if !values.iter().any(|value| value.get_help().is_some_and(special)) {
        return flag;
    }
    for value in &mut values {
        if value.get_help().is_some_and(special) {
            *value = PossibleValue::new(value.get_name().to_owned());
        }
    }
    flag.value_parser(values)
}
