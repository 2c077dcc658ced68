//! Converts the text after the flags of a help (exit codes, notes, examples) into man page sections.

use std::fmt::Write;

const EXAMPLES: &str = "Examples:";
const EXIT_CODES: &str = "Exit codes:";

/// Returns roff sections for the text after the flags. Paragraphs are separated by empty lines.
pub(crate) fn sections(text: &str) -> String {
    let begins = |with: &'static str| move |paragraph: &&str| paragraph.trim_start().starts_with(with);
    let paragraphs = || text.split("\n\n").map(|paragraph| paragraph.trim_matches('\n'));
    let codes: String = paragraphs().filter(begins(EXIT_CODES)).map(exit_codes).collect();
    let examples: String =
        paragraphs().filter(begins(EXAMPLES)).map(|text| preformatted(after(text, EXAMPLES))).collect();
    let others = paragraphs().filter(|text| !begins(EXIT_CODES)(text) && !begins(EXAMPLES)(text));
    let notes: String = others.filter(|text| !text.is_empty()).map(note).collect();
    let sections = [("EXIT STATUS", codes), ("NOTES", notes), ("EXAMPLES", examples)];
    sections.iter().filter(|(_, body)| !body.is_empty()).map(section).collect()
}

fn section((name, body): &(&str, String)) -> String {
    format!(".SH \"{name}\"\n{body}")
}

fn note(paragraph: &str) -> String {
    format!(".PP\n{}\n", escaped(&joined(paragraph)))
}

/// Escapes non-ASCII characters, so that the page does not depend on an encoding.
pub(crate) fn to_ascii(page: &str) -> String {
    page.chars().fold(String::with_capacity(page.len()), |mut text, letter| {
        if letter.is_ascii() {
            text.push(letter);
        } else {
            let _ = write!(text, "\\[u{:04X}]", u32::from(letter));
        }
        text
    })
}

fn after<'a>(paragraph: &'a str, head: &str) -> &'a str {
    paragraph.trim_start().strip_prefix(head).unwrap_or(paragraph).trim_start_matches([' ', '\n'])
}

/// Formats exit codes: text after the colon becomes a list, and a table keeps its layout.
fn exit_codes(paragraph: &str) -> String {
    if paragraph.starts_with(&format!("{EXIT_CODES}\n")) {
        return preformatted(after(paragraph, EXIT_CODES));
    }
    let text = joined(after(paragraph, EXIT_CODES));
    text.split("; ").map(list_item).collect()
}

fn list_item(code: &str) -> String {
    let (number, meaning) = code.split_once(": ").unwrap_or((code, ""));
    format!(".TP\n\\fB{}\\fR\n{}\n", escaped(number), escaped(meaning.trim_end_matches('.')))
}

/// Joins the lines of a paragraph; its line breaks are for terminals.
fn joined(paragraph: &str) -> String {
    paragraph.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Keeps lines and columns; removes the common indentation of two spaces.
fn preformatted(block: &str) -> String {
    let lines = block.lines().map(|line| escaped(line.strip_prefix("  ").unwrap_or(line)) + "\n");
    format!(".nf\n{}.fi\n", lines.collect::<String>())
}

fn escaped(text: &str) -> String {
    let text = text.replace('\\', "\\e").replace('-', "\\-").replace('\'', "\\*(Aq");
    if text.starts_with('.') { format!("\\&{text}") } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn examples_keep_columns_and_exit_codes_become_a_list() {
        let text = "Examples:\n  bailiff x --gpu 0   it's one\n      .5 of it\n\nNot for\nall.\n\nExit codes: 0: done; 1: failed,\n\
                    or not at all; 64: invalid flags.";
        let expected = ".SH \"EXIT STATUS\"\n.TP\n\\fB0\\fR\ndone\n.TP\n\\fB1\\fR\nfailed, or not at all\n.TP\n\\fB64\\fR\ninvalid flags\n\
                      .SH \"NOTES\"\n.PP\nNot for all.\n\
                      .SH \"EXAMPLES\"\n.nf\nbailiff x \\-\\-gpu 0   it\\*(Aqs one\n    .5 of it\n.fi\n";
        assert_eq!(sections(text), expected);
        assert_eq!(sections(""), "");
    }

    #[test]
    fn exit_code_table_keeps_its_layout() {
        let text = "Exit codes:\n  the command's own\n  124   timeout\n        reached";
        let expected =
            ".SH \"EXIT STATUS\"\n.nf\nthe command\\*(Aqs own\n124   timeout\n      reached\n.fi\n";
        assert_eq!(sections(text), expected);
        assert_eq!(to_ascii("a… b"), "a\\[u2026] b");
    }
}
