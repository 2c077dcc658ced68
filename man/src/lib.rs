//! The programs whose man pages are written, and how.
#![expect(clippy::disallowed_methods, reason = "writes the pages")]

mod ending;

use std::path::Path;
use std::{fs, io};

use clap::builder::Resettable;
use clap::{Command, CommandFactory};
use clap_mangen::Man;

/// The programs, with all their flags.
#[must_use]
pub fn programs() -> [Command; 3] {
    [
        bailiff_cli::flags(),
        bailiff_exporter::flags::Flags::command(),
        bailiff_enforcer::flags::Flags::command(),
    ]
}

/// Writes a page for each program, and for each of their commands, into a directory.
///
/// # Errors
/// Where it cannot be written.
pub fn write(directory: &Path) -> io::Result<()> {
    programs().into_iter().try_for_each(|program| {
        let mut program = program.disable_help_subcommand(true);
        program.build();
        pages(&program, directory)
    })
}

fn pages(command: &Command, directory: &Path) -> io::Result<()> {
    let mut shown = command.get_subcommands().filter(|below| !below.is_hide_set());
    shown.try_for_each(|below| pages(below, directory))?;
    let source = concat!("GPU Bailiff ", env!("CARGO_PKG_VERSION"));
    let said_last =
        command.get_after_long_help().or_else(|| command.get_after_help()).map(ToString::to_string);
    // What is said last has columns, which a paragraph of roff would fill.
    let flags = command.clone().after_help(Resettable::Reset).after_long_help(Resettable::Reset);
    let man = Man::new(flags).source(source);
    let mut page = Vec::new();
    man.render(&mut page)?;
    let page = String::from_utf8(page).map_err(io::Error::other)?;
    let page = page + &ending::sections(&said_last.unwrap_or_default());
    fs::write(directory.join(man.get_filename()), ending::in_ascii(&page))
}
