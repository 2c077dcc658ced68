//! Man pages: every command has a page that names all its flags; the first line of each help fits a terminal.
#![expect(
    clippy::disallowed_methods,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test reads files and fails loudly"
)]

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use clap::Command;

/// The longest allowed first line of an about text.
const MAX_ABOUT: usize = 70;

/// Reads a page without its roff markup.
fn read(path: &Path) -> String {
    let text = fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    ["\\fB", "\\fI", "\\fR"].iter().fold(text.replace("\\-", "-"), |text, mark| text.replace(mark, ""))
}

/// The names of a command's visible flags.
fn names(command: &Command) -> Vec<String> {
    let shown = command.get_arguments().filter(|flag| !flag.is_hide_set());
    shown
        .flat_map(|flag| {
            let long = flag.get_long().map(|long| format!("--{long}"));
            let short = flag.get_short().map(|short| format!("-{short}"));
            let value = flag.is_positional().then(|| flag.get_value_names().unwrap()[0].to_string());
            [long, short, value].into_iter().flatten()
        })
        .collect()
}

/// The flags that have a paragraph on the page.
fn flags_of_page(page: &str) -> BTreeSet<&str> {
    let heads = page.split("\n.TP\n").skip(1).filter_map(|paragraph| paragraph.lines().next());
    let names = heads.flat_map(|head| head.split(|at: char| at.is_whitespace() || "[]<>,".contains(at)));
    names.map(|name| name.trim_matches('.')).collect()
}

fn check(directory: &Path, command: &Command, pages: &mut BTreeSet<String>) {
    let name = command.get_display_name().unwrap_or_else(|| command.get_name()).to_owned();
    let page = read(&directory.join(format!("{name}.1")));
    for flag in names(command) {
        assert!(flags_of_page(&page).contains(&*flag), "{name}.1 does not name {flag}:\n{page}");
    }
    assert!(page.is_ascii(), "{name}.1 is not ASCII");
    let last = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    assert!(last.contains("Examples:\n") && page.contains(".SH \"EXAMPLES\"\n.nf\n"), "{name}: no examples");
    assert!(last.contains("Exit codes:") && page.contains(".SH \"EXIT STATUS\"\n"), "{name}: no exit codes");
    let long = last.lines().find(|line| line.chars().count() > 100);
    assert_eq!(long, None, "{name}");
    pages.insert(format!("{name}.1"));
    for subcommand in command.get_subcommands().filter(|subcommand| !subcommand.is_hide_set()) {
        assert!(
            page.contains(&format!("{name}-{}(1)", subcommand.get_name())),
            "{name}.1: {}",
            subcommand.get_name()
        );
        check(directory, subcommand, pages);
    }
}

/// The programs as the page generator builds them.
fn built_programs() -> Vec<Command> {
    let build = |program: Command| {
        let mut program = program.disable_help_subcommand(true);
        program.build();
        program
    };
    man_pages::programs().into_iter().map(build).collect()
}

/// Collects `command: problem` for every missing or overlong first line of an about text, hidden commands included.
fn long_abouts(command: &Command, found: &mut Vec<String>) {
    let name = command.get_display_name().unwrap_or_else(|| command.get_name());
    let texts = [command.get_about(), command.get_long_about()];
    if texts[0].is_none() {
        found.push(format!("{name}: no about text"));
    }
    for text in texts.into_iter().flatten() {
        let text = text.to_string();
        let first = text.lines().next().unwrap_or_default();
        let length = first.chars().count();
        if length > MAX_ABOUT {
            found.push(format!("{name}: {length} characters: {first}"));
        }
    }
    for subcommand in command.get_subcommands() {
        long_abouts(subcommand, found);
    }
}

#[test]
fn about_first_lines_have_at_most_70_characters() {
    let mut found = Vec::new();
    for program in built_programs() {
        long_abouts(&program, &mut found);
    }
    assert!(found.is_empty(), "first lines of about texts:\n{}", found.join("\n"));
}

#[test]
fn command_pages_name_every_flag() {
    let directory = tempfile::tempdir().unwrap();
    man_pages::write(directory.path()).unwrap();
    let mut pages = BTreeSet::new();
    for program in built_programs() {
        check(directory.path(), &program, &mut pages);
    }
    let written = fs::read_dir(directory.path()).unwrap();
    let written = written.map(|page| page.unwrap().file_name().into_string().unwrap());
    assert_eq!(written.collect::<BTreeSet<_>>(), pages);
    for page in [
        "bailiff.1",
        "bailiff-run.1",
        "bailiff-lease-run.1",
        "bailiff-exporter.1",
        "bailiff-enforcer-check.1",
    ] {
        assert!(pages.contains(page), "{page}");
    }
}
