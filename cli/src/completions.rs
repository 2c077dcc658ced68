//! `bailiff completions`: what a shell is told of the flags.

use std::process::ExitCode;

use clap::builder::{PossibleValue, StyledStr};
use clap::{Arg, ArgGroup, Args, Command, CommandFactory, Id, ValueEnum};
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

Exit codes: 0 done, 1 it cannot be written, 64 invalid flags.";

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
    generate(shell, &mut shown(&crate::flags::Flags::command()), "bailiff", &mut text);
    print(&String::from_utf8_lossy(&text))?;
    Ok(ExitCode::SUCCESS)
}

/// A command as its help shows it: `clap_complete` offers hidden commands and flags too.
fn shown(command: &Command) -> Command {
    let flags: Vec<&Arg> = command.get_arguments().filter(|flag| !flag.is_hide_set()).collect();
    let is_shown = |id: &&Id| flags.iter().any(|flag| flag.get_id() == *id);
    let groups = command.get_groups().map(|group| {
        ArgGroup::new(group.get_id().clone()).args(group.get_args().filter(is_shown)).multiple(true)
    });
    let commands = command.get_subcommands().filter(|below| !below.is_hide_set());
    let copy = Command::new(command.get_name().to_owned())
        .about(command.get_about().cloned().unwrap_or_default())
        .disable_help_flag(command.is_disable_help_flag_set())
        .groups(groups)
        .args(flags.iter().map(|flag| harmless((*flag).clone())))
        .subcommands(commands.map(shown));
    match command.get_version() {
        Some(version) => copy.version(version.to_owned()),
        None => copy,
    }
}

/// A flag whose values have no help that a shell could evaluate: `clap_complete` puts it between double quotes and does
/// not escape what is special there.
fn harmless(flag: Arg) -> Arg {
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
