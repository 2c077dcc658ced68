//! Text tables that fit a width: columns are as wide as their content, and some are cut if that is too much.

use super::{Colors, cut, line, width};

/// Minimum width of a column that is cut last.
const SHORTEST_NAME: usize = 8;

/// Alignment of a column, and how it is cut if the table is too wide.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Column {
    /// Right-aligned, never cut: numbers.
    Right,
    /// Left-aligned, never cut, because a shortened value would be wrong.
    Never,
    /// Left-aligned, cut first, down to this width.
    To(usize),
    /// Left-aligned, cut last, because it identifies something.
    Last,
}

/// A cell: one line of text and its colour.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Cell {
    text: String,
    tone: Tone,
}

/// The colour of a cell.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Tone {
    /// No colour.
    #[default]
    Plain,
    /// The colour of what needs attention.
    Warn,
    /// The colour of a fault.
    Bad,
}

impl Tone {
    /// Returns the text in this colour.
    pub fn paint(self, text: &str, colors: Colors) -> String {
        match self {
            Self::Plain => text.to_owned(),
            Self::Warn => colors.odd(text),
            Self::Bad => colors.bad(text),
        }
    }
}

impl Cell {
    /// Creates a cell and removes control characters from its text.
    pub fn of(text: impl AsRef<str>, tone: Tone) -> Self {
        Self { text: line(text.as_ref()), tone }
    }
}

impl<T: AsRef<str>> From<T> for Cell {
    fn from(text: T) -> Self {
        Self::of(text, Tone::Plain)
    }
}

/// A text table.
#[derive(Debug)]
pub struct Table {
    columns: Vec<(&'static str, Column)>,
    rows: Vec<Vec<Cell>>,
}

impl Table {
    /// Creates a table with one row per item; each column has a title, an alignment, and a function for its cells.
    pub fn of<T>(
        columns: &[(&'static str, Column, impl Fn(&T) -> Cell)],
        items: impl IntoIterator<Item = T>,
    ) -> Self {
        let row = |item: T| columns.iter().map(|(.., cell)| cell(&item)).collect();
        let titles = columns.iter().map(|(title, column, _)| (*title, *column)).collect();
        Self::new(titles, items.into_iter().map(row).collect())
    }

    /// Creates a table of these rows, with one cell per column.
    pub const fn new(columns: Vec<(&'static str, Column)>, rows: Vec<Vec<Cell>>) -> Self {
        Self { columns, rows }
    }

    /// Returns the header and the rows; nothing if there are no rows.
    pub fn lines(&self, width: usize, colors: Colors) -> Vec<String> {
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
        let floors: [fn(Column) -> Option<usize>; 2] = [
            |column| if let Column::To(least) = column { Some(least) } else { None },
            |column| (column == Column::Last).then_some(SHORTEST_NAME),
        ];
        // The widest column that may be cut loses one character at a time.
        for floor in floors {
            while widths.iter().sum::<usize>() + widths.len().saturating_sub(1) > max {
                let each = widths.iter_mut().zip(&self.columns);
                let can =
                    each.filter(|(width, (_, column))| floor(*column).is_some_and(|least| **width > least));
                let Some((widest, _)) = can.max_by_key(|(width, _)| **width) else { break };
                *widest -= 1;
            }
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

    type NameColumn = (&'static str, Column, fn(&Names<'_>) -> Cell);
    const COLUMNS: [NameColumn; 3] = [
        ("PID", Column::Right, |names| names[0].into()),
        ("USER", Column::To(6), |names| {
            Cell::of(names[1], if names[1] == "eve" { Tone::Bad } else { Tone::Plain })
        }),
        ("NAME", Column::To(6), |names| names[2].into()),
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
    fn names_shrink_last_and_what_identifies_never() {
        let columns = vec![("TARGET", Column::Last), ("STEPS", Column::To(5)), ("N", Column::Never)];
        let row = |cells: [&str; 3]| cells.map(Cell::from).to_vec();
        let table = Table::new(
            columns,
            vec![row(["workload:tree:41@98", "flag, terminate", "12345"]), row(["x\ny", "", ""])],
        );
        let whole = "workload:tree:41@98 flag, terminate 12345";
        for (limit, expected) in [
            (usize::MAX, whole),
            (80, whole),
            (36, "workload:tree:41@98 flag, ter… 12345"),
            (31, "workload:tree:41@98 flag… 12345"),
            (25, "workload:tre… flag… 12345"),
            (3, "workloa… flag… 12345"),
        ] {
            let lines = table.lines(limit, Colors::Plain);
            assert_eq!((lines[1].as_str(), lines[2].as_str()), (expected, "x y"), "{limit}");
        }
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
