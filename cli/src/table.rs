//! Text tables that fit a width: columns are as wide as their content, and shrinkable columns are cut.

use bailiff_exposition::terminal::{Colors, cut, line, width};

/// The minimum width of a shrinkable column.
const MIN_WIDTH: usize = 6;

/// A column's alignment, and whether it may be cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Column {
    /// Right-aligned, never cut: numbers.
    Right,
    /// Left-aligned, never cut: fixed texts.
    Left,
    /// Left-aligned, cut if the table is too wide: names of users and programs.
    Shrink,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Cell {
    text: String,
    tone: Tone,
}

/// The colour of a cell.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Tone {
    #[default]
    Plain,
    Warn,
    Bad,
}

impl Tone {
    /// Returns the text in this colour.
    pub(crate) fn paint(self, text: &str, colors: Colors) -> String {
        match self {
            Self::Plain => text.to_owned(),
            Self::Warn => colors.odd(text),
            Self::Bad => colors.bad(text),
        }
    }
}

impl Cell {
    /// Creates a cell and removes control characters from its text.
    pub(crate) fn of(text: impl AsRef<str>, tone: Tone) -> Self {
        Self { text: line(text.as_ref()), tone }
    }
}

impl<T: AsRef<str>> From<T> for Cell {
    fn from(text: T) -> Self {
        Self::of(text, Tone::Plain)
    }
}

#[derive(Debug)]
pub(crate) struct Table {
    columns: Vec<(&'static str, Column)>,
    rows: Vec<Vec<Cell>>,
}

impl Table {
    /// Creates a table with one row per item; each column has a title, an alignment, and a function for its cells.
    pub(crate) fn of<T>(
        columns: &[(&'static str, Column, impl Fn(&T) -> Cell)],
        items: impl IntoIterator<Item = T>,
    ) -> Self {
        let row = |item: T| columns.iter().map(|(.., cell)| cell(&item)).collect();
        Self {
            columns: columns.iter().map(|(title, column, _)| (*title, *column)).collect(),
            rows: items.into_iter().map(row).collect(),
        }
    }

    /// Returns the header and the rows; nothing if there are no rows.
    pub(crate) fn lines(&self, width: usize, colors: Colors) -> Vec<String> {
        if self.rows.is_empty() {
            return Vec::new();
        }
        let widths = self.widths(width);
        let titles: Vec<Cell> = self.columns.iter().map(|(title, _)| Cell::from(title)).collect();
        let head = self.render_row(&titles, &widths, Colors::Plain);
        let rows = self.rows.iter().map(|row| self.render_row(row, &widths, colors));
        std::iter::once(colors.title(&head)).chain(rows).collect()
    }

    fn widths(&self, max: usize) -> Vec<usize> {
        let widest = |index: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(index));
            cells.map(|cell| width(&cell.text)).max().unwrap_or_default()
        };
        let mut widths: Vec<usize> = self
            .columns
            .iter()
            .enumerate()
            .map(|(index, (title, _))| widest(index).max(width(title)))
            .collect();
        // The widest shrinkable column loses one character at a time.
        while widths.iter().sum::<usize>() + widths.len().saturating_sub(1) > max {
            let shrinkable =
                widths.iter_mut().zip(&self.columns).filter(|(_, (_, column))| *column == Column::Shrink);
            let Some(width) = shrinkable.map(|(width, _)| width).filter(|width| **width > MIN_WIDTH).max()
            else {
                break;
            };
            *width -= 1;
        }
        widths
    }

    fn render_row(&self, cells: &[Cell], widths: &[usize], colors: Colors) -> String {
        let mut text = String::new();
        for ((cell, columns), (_, column)) in cells.iter().zip(widths).zip(&self.columns) {
            let shown = cut(&cell.text, *columns);
            let room = " ".repeat(columns.saturating_sub(width(&shown)));
            let styled = cell.tone.paint(&shown, colors);
            let (before, after) =
                if *column == Column::Right { (room, String::new()) } else { (String::new(), room) };
            text.extend([before, styled, after, " ".to_owned()]);
        }
        text.trim_end().to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Names<'a> = [&'a str; 3];

    const COLUMNS: [(&str, Column, fn(&Names<'_>) -> Cell); 3] = [
        ("PID", Column::Right, |names| names[0].into()),
        ("USER", Column::Shrink, |names| {
            Cell::of(names[1], if names[1] == "eve" { Tone::Bad } else { Tone::Plain })
        }),
        ("NAME", Column::Shrink, |names| names[2].into()),
    ];

    fn table(rows: &[Names<'_>]) -> Table {
        Table::of(&COLUMNS, rows.iter().copied())
    }

    #[test]
    fn columns_fit_their_content() {
        let table = table(&[["4100", "alice", "python3"], ["7", "bob", "x\ny"]]);
        assert_eq!(
            table.lines(80, Colors::Plain),
            [" PID USER  NAME", "4100 alice python3", "   7 bob   x y"]
        );
    }

    #[test]
    fn narrow_table_cuts_names_not_numbers() {
        let table = table(&[["4100", "a-very-long-name", "python3"]]);
        assert_eq!(table.lines(20, Colors::Plain), [" PID USER    NAME", "4100 a-very… python3"]);
        let widths: Vec<usize> =
            table.lines(5, Colors::Plain).iter().map(|line| line.chars().count()).collect();
        assert_eq!(widths, [16, 18], "a minimum width remains");
    }

    #[test]
    fn colours_do_not_count_as_width() {
        assert_eq!(
            table(&[["1", "eve", "x"]]).lines(80, Colors::Colour),
            ["\u{1b}[1mPID USER NAME\u{1b}[0m", "  1 \u{1b}[31meve\u{1b}[0m  x"]
        );
        assert!(table(&[]).lines(80, Colors::Plain).is_empty(), "no header without rows");
    }
}
