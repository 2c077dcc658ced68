//! Generates the man pages of all programs.
#![expect(clippy::disallowed_methods, reason = "writes files")]

mod after_help;

use std::path::Path;
use std::{fs, io};

use clap::builder::Resettable;
use clap::{Command, CommandFactory};
use clap_mangen::Man;

/// Returns the clap definitions of all programs.
pub fn programs() -> [Command; 3] {
    [
        bailiff_cli::flags(),
        bailiff_exporter::flags::Flags::command(),
        bailiff_enforcer::flags::Flags::command(),
    ]
}

/// Writes a page for each program and each of its commands into a directory.
///
/// # Errors
/// If a page cannot be written.
pub fn write(directory: &Path) -> io::Result<()> {
    programs().into_iter().try_for_each(|program| {
        let mut program = program.disable_help_subcommand(true);
        program.build();
        pages(&program, directory)
    })
}

fn pages(command: &Command, directory: &Path) -> io::Result<()> {
    let mut visible = command.get_subcommands().filter(|subcommand| !subcommand.is_hide_set());
    visible.try_for_each(|subcommand| pages(subcommand, directory))?;
    let source = concat!("GPU Bailiff ", env!("CARGO_PKG_VERSION"));
    let after_help =
        command.get_after_long_help().or_else(|| command.get_after_help()).map(ToString::to_string);
    // The text after the flags has columns, which a roff paragraph would join.
    let flags = command.clone().after_help(Resettable::Reset).after_long_help(Resettable::Reset);
    let man = Man::new(flags).source(source);
    let mut page = Vec::new();
    man.render(&mut page)?;
    let page = String::from_utf8(page).map_err(io::Error::other)?;
    let page = page + &after_help::sections(&after_help.unwrap_or_default());
    fs::write(directory.join(man.get_filename()), after_help::to_ascii(&page))
}
