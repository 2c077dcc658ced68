//! Tables of text that fit a width: columns are as wide as what is in them, and those that may give way do so.

use bailiff_exposition::terminal::{Colors, cut, line};

/// Columns that give way keep so many characters.
const LEAST: usize = 6;

/// How a column stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Column {
    /// To the right, whole: numbers.
    Right,
    /// To the left, whole: words of ours.
    Left,
    /// To the left, and it gives way: others' names.
    Gives,
}

/// A cell: its text, and whether something is wrong with it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Cell {
    text: String,
    tone: Tone,
}

/// What a cell is to look like.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Tone {
    /// As it is.
    #[default]
    Plain,
    /// It deserves a look.
    ReplyError,
    /// It is wrong.
    Bad,
}

impl Cell {
    /// One that is to be seen.
    pub(crate) fn of(text: impl AsRef<str>, tone: Tone) -> Self {
        Self { text: line(text.as_ref()), tone }
    }
}

impl<T: AsRef<str>> From<T> for Cell {
    fn from(text: T) -> Self {
        Self::of(text, Tone::Plain)
    }
}

/// A table in the making.
#[derive(Debug)]
pub(crate) struct Table {
    columns: Vec<(&'static str, Column)>,
    rows: Vec<Vec<Cell>>,
}

impl Table {
    /// One without rows.
    pub(crate) fn new(columns: &[(&'static str, Column)]) -> Self {
        Self { columns: columns.to_vec(), rows: Vec::new() }
    }

    /// Adds a row, a cell a column.
    pub(crate) fn row(&mut self, cells: Vec<Cell>) {
        self.rows.push(cells);
    }

    /// Its lines, the titles first; none where it has no row.
    pub(crate) fn lines(&self, width: usize, colors: Colors) -> Vec<String> {
        if self.rows.is_empty() {
            return Vec::new();
        }
        let widths = self.widths(width);
        let titles: Vec<Cell> = self.columns.iter().map(|(title, _)| Cell::from(title)).collect();
        let head = self.laid_out(&titles, &widths, Colors::Plain);
        let rows = self.rows.iter().map(|row| self.laid_out(row, &widths, colors));
        std::iter::once(colors.title(&head)).chain(rows).collect()
    }

    fn widths(&self, most: usize) -> Vec<usize> {
        let widest = |place: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(place));
            cells.map(|cell| cell.text.chars().count()).max().unwrap_or_default()
        };
        let mut widths: Vec<usize> = self
            .columns
            .iter()
            .enumerate()
            .map(|(place, (title, _))| widest(place).max(title.chars().count()))
            .collect();
        // The widest that gives way does so first, a character at a time.
        while widths.iter().sum::<usize>() + widths.len().saturating_sub(1) > most {
            let giving =
                widths.iter_mut().zip(&self.columns).filter(|(_, (_, column))| *column == Column::Gives);
            let Some(width) = giving.map(|(width, _)| width).filter(|width| **width > LEAST).max() else {
                break;
            };
            *width -= 1;
        }
        widths
    }

    fn laid_out(&self, cells: &[Cell], widths: &[usize], colors: Colors) -> String {
        let mut text = String::new();
        for ((cell, width), (_, column)) in cells.iter().zip(widths).zip(&self.columns) {
            let shown = cut(&cell.text, *width);
            let room = " ".repeat(width.saturating_sub(shown.chars().count()));
            let dressed = match cell.tone {
                Tone::Plain => shown,
                Tone::ReplyError => colors.odd(&shown),
                Tone::Bad => colors.bad(&shown),
            };
            let (before, after) =
                if *column == Column::Right { (room, String::new()) } else { (String::new(), room) };
            text.extend([before, dressed, after, " ".to_owned()]);
        }
        text.trim_end().to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COLUMNS: [(&str, Column); 3] =
        [("PID", Column::Right), ("USER", Column::Gives), ("NAME", Column::Gives)];

    fn table(rows: &[[&str; 3]]) -> Table {
        let mut table = Table::new(&COLUMNS);
        for row in rows {
            table.row(row.iter().map(Cell::from).collect());
        }
        table
    }

    #[test]
    fn columns_are_as_wide_as_they_need_to_be() {
        let table = table(&[["4100", "alice", "python3"], ["7", "bob", "x\ny"]]);
        assert_eq!(
            table.lines(80, Colors::Plain),
            [" PID USER  NAME", "4100 alice python3", "   7 bob   x y"]
        );
    }

    #[test]
    fn names_give_way_and_numbers_do_not() {
        let table = table(&[["4100", "a-very-long-name", "python3"]]);
        assert_eq!(table.lines(20, Colors::Plain), [" PID USER    NAME", "4100 a-very… python3"]);
        let widths: Vec<usize> =
            table.lines(5, Colors::Plain).iter().map(|line| line.chars().count()).collect();
        assert_eq!(widths, [16, 18], "but not to nothing");
    }

    #[test]
    fn colours_take_no_room() {
        let mut table = Table::new(&COLUMNS);
        table.row(vec!["1".into(), Cell::of("bob", Tone::Bad), "x".into()]);
        assert_eq!(
            table.lines(80, Colors::Colour),
            ["\u{1b}[1mPID USER NAME\u{1b}[0m", "  1 \u{1b}[31mbob\u{1b}[0m  x"]
        );
        assert!(Table::new(&COLUMNS).lines(80, Colors::Plain).is_empty(), "no titles of nothing");
    }
}
