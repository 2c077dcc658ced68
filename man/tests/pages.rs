//! Every command has a page, and every page names every flag that the command has.
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

/// A page as it is read: hyphens and words without the marks of roff.
fn read(path: &Path) -> String {
    let text = fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    ["\\fB", "\\fI", "\\fR"].iter().fold(text.replace("\\-", "-"), |text, mark| text.replace(mark, ""))
}

/// The names by which somebody may look for its flags.
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

/// What its paragraphs are about.
fn heads(page: &str) -> BTreeSet<&str> {
    let heads = page.split("\n.TP\n").skip(1).filter_map(|paragraph| paragraph.lines().next());
    let words = heads.flat_map(|head| head.split(|at: char| at.is_whitespace() || "[]<>,".contains(at)));
    words.map(|word| word.trim_matches('.')).collect()
}

fn check(directory: &Path, command: &Command, pages: &mut BTreeSet<String>) {
    let name = command.get_display_name().unwrap_or_else(|| command.get_name()).to_owned();
    let page = read(&directory.join(format!("{name}.1")));
    for flag in names(command) {
        assert!(heads(&page).contains(&*flag), "{name}.1 does not name {flag}:\n{page}");
    }
    assert!(page.is_ascii(), "{name}.1 is in an encoding");
    let last = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    assert!(last.contains("Examples:\n") && page.contains(".SH \"EXAMPLES\"\n.nf\n"), "{name}: no examples");
    assert!(last.contains("Exit codes:") && page.contains(".SH \"EXIT STATUS\"\n"), "{name}: no exit codes");
    let long = last.lines().find(|line| line.chars().count() > 100);
    assert_eq!(long, None, "{name}");
    pages.insert(format!("{name}.1"));
    for below in command.get_subcommands().filter(|below| !below.is_hide_set()) {
        assert!(page.contains(&format!("{name}-{}(1)", below.get_name())), "{name}.1: {}", below.get_name());
        check(directory, below, pages);
    }
}

#[test]
fn every_command_has_a_page_that_names_every_flag() {
    let directory = tempfile::tempdir().unwrap();
    man_pages::write(directory.path()).unwrap();
    let mut pages = BTreeSet::new();
    for program in man_pages::programs() {
        let mut program = program.disable_help_subcommand(true);
        program.build();
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
