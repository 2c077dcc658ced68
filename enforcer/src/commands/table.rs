//! Tables of text that fit a terminal.

use std::fmt::Write;

use bailiff_exposition::terminal::{Ink, cut, line};

/// The widest line.
pub(super) const WIDTH: usize = 80;

/// A column's title and width; the last one takes what is left.
pub(super) type Column = (&'static str, usize);

/// A table in the making; nothing is written before its first row.
pub(super) struct Table<'a> {
    columns: &'a [Column],
    text: String,
}

impl<'a> Table<'a> {
    pub(super) fn new(columns: &'a [Column], ink: Ink) -> Self {
        let mut table = Self { columns, text: String::new() };
        let titles: Vec<String> = columns.iter().map(|(title, _)| (*title).to_owned()).collect();
        let head = table.laid_out(&titles);
        // Into memory, so it does not fail.
        let _ = writeln!(table.text, "\n{}", ink.title(&head));
        table
    }

    /// Foreign text is allowed in cells.
    pub(super) fn row(&mut self, cells: &[String]) {
        let row = self.laid_out(cells);
        let _ = writeln!(self.text, "{row}");
    }

    pub(super) fn end(self) -> String {
        self.text
    }

    fn laid_out(&self, cells: &[String]) -> String {
        let mut row = String::new();
        for (cell, (_, width)) in cells.iter().zip(self.columns) {
            let cell = cut(&line(cell), *width);
            let _ = write!(row, "{cell:<width$} ");
        }
        row.trim_end().to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_are_cut_and_lines_end_with_their_text() {
        let columns = [("A", 4), ("B", 3)];
        let mut table = Table::new(&columns, Ink::Plain);
        table.row(&["abcdef".into(), "x\ny".into()]);
        table.row(&["a".into(), String::new()]);
        assert_eq!(table.end(), "\nA    B\nabc… x y\na\n");
        let coloured = Table::new(&columns, Ink::Colour).end();
        assert_eq!(coloured, "\n\u{1b}[1mA    B\u{1b}[0m\n");
    }
}
