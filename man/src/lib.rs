//! The programs whose man pages are written, and how.

use std::io;
use std::path::Path;

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

/// Writes a page for each program, and for each of their commands, into a folder.
///
/// # Errors
/// Where it cannot be written.
pub fn write(folder: &Path) -> io::Result<()> {
    programs().into_iter().try_for_each(|program| {
        let mut program = program.disable_help_subcommand(true);
        program.build();
        pages(&program, folder)
    })
}

fn pages(command: &Command, folder: &Path) -> io::Result<()> {
    let mut shown = command.get_subcommands().filter(|below| !below.is_hide_set());
    shown.try_for_each(|below| pages(below, folder))?;
    let source = concat!("GPU Bailiff ", env!("CARGO_PKG_VERSION"));
    Man::new(command.clone()).source(source).generate_to(folder).map(drop)
}
