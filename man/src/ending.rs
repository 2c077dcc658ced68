//! What a help says after its flags, as sections of a man page: exit codes, notes, and examples whose columns stay.

use std::fmt::Write;

const EXAMPLES: &str = "Examples:";
const EXIT_CODES: &str = "Exit codes:";

/// Sections of roff for the text after a help's flags. Its paragraphs are parted by empty lines.
pub(crate) fn sections(text: &str) -> String {
    let begins = |with: &'static str| move |paragraph: &&str| paragraph.trim_start().starts_with(with);
    let paragraphs = || text.split("\n\n").map(|paragraph| paragraph.trim_matches('\n'));
    let codes: String = paragraphs().filter(begins(EXIT_CODES)).map(exit_codes).collect();
    let examples: String =
        paragraphs().filter(begins(EXAMPLES)).map(|text| as_it_is(after(text, EXAMPLES))).collect();
    let others = paragraphs().filter(|text| !begins(EXIT_CODES)(text) && !begins(EXAMPLES)(text));
    let notes: String = others.filter(|text| !text.is_empty()).map(note).collect();
    let named = [("EXIT STATUS", codes), ("NOTES", notes), ("EXAMPLES", examples)];
    named.iter().filter(|(_, body)| !body.is_empty()).map(section).collect()
}

fn section((name, body): &(&str, String)) -> String {
    format!(".SH \"{name}\"\n{body}")
}

fn note(paragraph: &str) -> String {
    format!(".PP\n{}\n", escaped(&filled(paragraph)))
}

/// Characters by their numbers, so that no reader of pages has to be told of an encoding.
pub(crate) fn in_ascii(page: &str) -> String {
    page.chars().fold(String::with_capacity(page.len()), |mut text, one| {
        if one.is_ascii() {
            text.push(one);
        } else {
            let _ = write!(text, "\\[u{:04X}]", u32::from(one));
        }
        text
    })
}

fn after<'a>(paragraph: &'a str, head: &str) -> &'a str {
    paragraph.trim_start().strip_prefix(head).unwrap_or(paragraph).trim_start_matches([' ', '\n'])
}

/// Codes that stand behind the colon are a list; a table stays one.
fn exit_codes(paragraph: &str) -> String {
    if paragraph.starts_with(&format!("{EXIT_CODES}\n")) {
        return as_it_is(after(paragraph, EXIT_CODES));
    }
    let text = filled(after(paragraph, EXIT_CODES));
    let mut codes: Vec<String> = Vec::new();
    for part in text.split(", ") {
        match codes.last_mut() {
            Some(code) if !part.starts_with(|first: char| first.is_ascii_digit()) => {
                code.push_str(", ");
                code.push_str(part);
            }
            _ => codes.push(part.to_owned()),
        }
    }
    codes.iter().map(|code| listed(code)).collect()
}

fn listed(code: &str) -> String {
    let (number, meaning) = code.split_once(' ').unwrap_or((code, ""));
    format!(".TP\n\\fB{}\\fR\n{}\n", escaped(number), escaped(meaning.trim_end_matches('.')))
}

/// A paragraph without its line breaks, which are the terminal's.
fn filled(paragraph: &str) -> String {
    paragraph.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Lines and columns as they stand; the indentation that all lines share is the section's.
fn as_it_is(block: &str) -> String {
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
    fn examples_keep_their_columns_and_exit_codes_are_a_list() {
        let text = "Examples:\n  bailiff x --gpu 0   it's one\n      .5 of it\n\nNot for\nall.\n\nExit codes: 0 done, 1 failed,\n\
                    or not at all, 64 no sense.";
        let wanted = ".SH \"EXIT STATUS\"\n.TP\n\\fB0\\fR\ndone\n.TP\n\\fB1\\fR\nfailed, or not at all\n.TP\n\\fB64\\fR\nno sense\n\
                      .SH \"NOTES\"\n.PP\nNot for all.\n\
                      .SH \"EXAMPLES\"\n.nf\nbailiff x \\-\\-gpu 0   it\\*(Aqs one\n    .5 of it\n.fi\n";
        assert_eq!(sections(text), wanted);
        assert_eq!(sections(""), "");
    }

    #[test]
    fn a_table_of_exit_codes_stays_one() {
        let text = "Exit codes:\n  the command's own\n  124   time was up\n        at all";
        let wanted =
            ".SH \"EXIT STATUS\"\n.nf\nthe command\\*(Aqs own\n124   time was up\n      at all\n.fi\n";
        assert_eq!(sections(text), wanted);
        assert_eq!(in_ascii("a… b"), "a\\[u2026] b");
    }
}
