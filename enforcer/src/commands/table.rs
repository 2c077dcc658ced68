//! Text tables. On a terminal they fit its width, and names of targets are cut last; elsewhere nothing is cut.

use std::fmt::Write;
use std::io::{self, IsTerminal};

use bailiff_exposition::terminal::{self, Colors, cut, line, padded};
use rustix::termios::tcgetwinsize;

/// Width of text, and of a terminal of unknown width.
pub(super) const WIDTH: usize = 80;
/// Minimum width of a name.
const SHORTEST_NAME: usize = 8;

/// How a column is narrowed if a table is too wide.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shrinks {
    /// Before names, down to this width.
    To(usize),
    /// Last, because it identifies something.
    Last,
    /// Never, because a part of it would be wrong.
    Never,
}

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
    pub(super) fn new(columns: &'a [Column]) -> Self {
        let titles = columns.iter().map(|(title, _)| (*title).to_owned()).collect();
        Self { columns, rows: vec![titles] }
    }

    /// Adds a row; cells may contain foreign text.
    pub(super) fn row(&mut self, cells: impl Iterator<Item = String>) {
        self.rows.push(cells.map(|cell| line(&cell)).collect());
    }

    /// Formats the table for a width; without a limit every cell is complete.
    pub(super) fn end(&self, limit: Option<usize>, colors: Colors) -> String {
        let widths = self.widths(limit.unwrap_or(usize::MAX));
        let mut text = String::new();
        for (number, row) in self.rows.iter().enumerate() {
            let mut out = String::new();
            for (cell, width) in row.iter().zip(&widths) {
                // Writing to memory does not fail.
                let _ = write!(out, "{} ", padded(&cut(cell, *width), *width));
            }
            let out = out.trim_end();
            let _ =
                if number == 0 { writeln!(text, "\n{}", colors.title(out)) } else { writeln!(text, "{out}") };
        }
        text
    }

    fn widths(&self, limit: usize) -> Vec<usize> {
        let widest = |column: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(column));
            cells.map(|cell| terminal::width(cell)).max().unwrap_or_default()
        };
        let mut widths: Vec<usize> = (0..self.columns.len()).map(widest).collect();
        let floors: [fn(Shrinks) -> Option<usize>; 2] = [
            |how| if let Shrinks::To(least) = how { Some(least) } else { None },
            |how| (how == Shrinks::Last).then_some(SHORTEST_NAME),
        ];
        for floor in floors {
            while widths.iter().sum::<usize>() + widths.len() - 1 > limit {
                let each = widths.iter_mut().zip(self.columns);
                let can = each.filter(|(width, (_, how))| floor(*how).is_some_and(|least| **width > least));
                let Some((widest, _)) = can.max_by_key(|(width, _)| **width) else { break };
                *widest -= 1;
            }
        }
        widths
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
        let coloured = TextTable::new(&COLUMNS).end(None, Colors::Colour);
        assert_eq!(coloured, "\n\u{1b}[1mTARGET STEPS N\u{1b}[0m\n");
    }
}
