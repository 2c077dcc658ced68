//! Parses tables by their column titles. Cells of the column `COMMAND` may contain spaces.

/// A row of a table, as pairs of title and cell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Row<'a>(Vec<(&'a str, String)>);

impl Row<'_> {
    /// Returns the cell in the column with this title.
    pub(crate) fn cell(&self, title: &str) -> Option<&str> {
        self.0.iter().find(|(name, _)| name.eq_ignore_ascii_case(title)).map(|(_, cell)| cell.as_str())
    }
}

/// Returns the rows of a table, or `None` if the text has no titles or if a row does not match
/// them.
pub(crate) fn rows(text: &str) -> Option<Vec<Row<'_>>> {
    let mut lines = text.lines().filter(|line| !line.trim().is_empty());
    let titles: Vec<&str> = lines.next()?.split_whitespace().collect();
    titles.iter().find(|title| title.eq_ignore_ascii_case("PID"))?;
    lines.map(|line| row(&titles, line)).collect()
}

fn row<'a>(titles: &[&'a str], line: &str) -> Option<Row<'a>> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let command = titles.iter().position(|title| title.eq_ignore_ascii_case("COMMAND"));
    // A process that is starting or exiting may have no command, so its row contains one word less.
    let Some(command) = command.filter(|_| words.len() + 1 >= titles.len()) else {
        return (words.len() == titles.len())
            .then(|| Row(titles.iter().copied().zip(words.iter().map(|word| (*word).to_owned())).collect()));
    };
    let after = titles.len() - command - 1;
    let end = words.len() - after;
    let mut cells: Vec<String> = words.get(..command)?.iter().map(|word| (*word).to_owned()).collect();
    cells.push(words.get(command..end)?.join(" "));
    cells.extend(words.get(end..)?.iter().map(|word| (*word).to_owned()));
    Some(Row(titles.iter().copied().zip(cells).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_found_by_title_and_commands_may_have_blanks() {
        let text = "PID  COMMAND  PRIORITY\n 7  a b  c 1\n8 x 0\n9 0\n";
        let rows = rows(text).unwrap();
        let cells: Vec<_> =
            rows.iter().map(|row| (row.cell("pid"), row.cell("COMMAND"), row.cell("PRIORITY"))).collect();
        let expected = [
            (Some("7"), Some("a b c"), Some("1")),
            (Some("8"), Some("x"), Some("0")),
            (Some("9"), Some(""), Some("0")),
        ];
        assert_eq!(cells, expected);
        assert_eq!(rows[0].cell("SERVER"), None);
    }

    #[test]
    fn what_is_no_table_has_no_rows() {
        for text in
            ["", "Server not found\n", "PID SERVER\n1\n", "PID SERVER\n1 2 3\n", "PID ID COMMAND\n1\n"]
        {
            assert_eq!(rows(text), None, "{text:?}");
        }
    }
}
