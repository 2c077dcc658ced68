//! Text tables. On a terminal they fit its width, and names of targets are cut last; elsewhere nothing is cut.

use std::io::{self, IsTerminal};

pub(super) use bailiff_exposition::terminal::Column as Shrinks;
use bailiff_exposition::terminal::{Cell, Colors, Table, line};
use rustix::termios::tcgetwinsize;

/// Width of text, and of a terminal of unknown width.
pub(super) const WIDTH: usize = 80;
/// Title of a column, and how it is narrowed.
pub(super) type Column = (&'static str, Shrinks);

/// Returns the width of the terminal; `None` if standard output is not one.
#[must_use]
pub fn columns() -> Option<usize> {
    let out = io::stdout();
    out.is_terminal().then(|| match tcgetwinsize(&out) {
        Ok(size) if size.ws_col > 0 => usize::from(size.ws_col),
        _ => WIDTH,
    })
}

/// A table.
pub(super) struct TextTable<'a> {
    columns: &'a [Column],
    rows: Vec<Vec<String>>,
}

impl<'a> TextTable<'a> {
    pub(super) const fn new(columns: &'a [Column]) -> Self {
        Self { columns, rows: Vec::new() }
    }

    /// Adds a row; cells may contain foreign text.
    pub(super) fn row(&mut self, cells: impl Iterator<Item = String>) {
        self.rows.push(cells.map(|cell| line(&cell)).collect());
    }

    /// Formats the table for a width; without a limit every cell is complete.
    pub(super) fn end(&self, limit: Option<usize>, colors: Colors) -> String {
        let rows = self.rows.iter().map(|row| row.iter().map(Cell::from).collect()).collect();
        let lines = Table::new(self.columns.to_vec(), rows).lines(limit.unwrap_or(usize::MAX), colors);
        format!("\n{}\n", lines.join("\n"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COLUMNS: [Column; 3] =
        [("TARGET", Shrinks::Last), ("STEPS", Shrinks::To(5)), ("N", Shrinks::Never)];

    fn table(limit: Option<usize>) -> String {
        let mut table = TextTable::new(&COLUMNS);
        table.row(["workload:tree:41@98", "flag, terminate", "12345"].map(str::to_owned).into_iter());
        table.row(["x\ny", "", ""].map(str::to_owned).into_iter());
        table.end(limit, Colors::Plain)
    }

    #[test]
    fn names_shrink_last_and_numbers_never() {
        let whole = "workload:tree:41@98 flag, terminate 12345";
        for (limit, row) in [
            (None, whole),
            (Some(80), whole),
            (Some(36), "workload:tree:41@98 flag, ter… 12345"),
            (Some(31), "workload:tree:41@98 flag… 12345"),
            (Some(25), "workload:tre… flag… 12345"),
            (Some(3), "workloa… flag… 12345"),
        ] {
            let text = table(limit);
            assert_eq!(text.lines().nth(2), Some(row), "{limit:?}:{text}");
            assert_eq!(text.lines().nth(3), Some("x y"));
        }
    }

    #[test]
    fn titles_are_in_colour() {
        let mut table = TextTable::new(&COLUMNS);
        table.row(["a", "b", "c"].map(str::to_owned).into_iter());
        let coloured = table.end(None, Colors::Colour);
        assert_eq!(coloured, "\n\u{1b}[1mTARGET STEPS N\u{1b}[0m\na      b     c\n");
    }
}
