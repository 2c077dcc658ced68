//! HTML tables with a caption, header scopes, a maximum number of rows, and the number of omitted rows.

use std::borrow::Cow;

use std::time::Duration;

use super::Html;
use crate::human::NOTHING;

/// CSS class of columns with sentences. Cells of other columns contain names, which are truncated.
const SENTENCES: &str = "wide";

/// Title and CSS class of a column. Class `n` is for numbers, `wide` for sentences.
pub type Column = (&'static str, &'static str);

/// Layout of a table.
#[derive(Debug)]
pub struct Table<const N: usize> {
    /// HTML id of the table, unique within its page.
    pub id: &'static str,
    /// Caption: what the table shows, and in which order.
    pub caption: &'static str,
    /// Columns. The first column identifies the row.
    pub columns: [Column; N],
    /// Maximum number of rows shown.
    pub most: usize,
    /// Text that says where the omitted rows are available.
    pub rest: &'static str,
}

/// Content of a table cell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Cell {
    /// A name or word; a sentence in a column of class `wide`.
    Text(String),
    /// A name, followed by further text in a dimmed style.
    Named(String, String),
    /// A relative time such as `5 s ago`, and the same moment as time since the Unix epoch.
    At(String, Duration),
    /// Text that needs attention.
    Bad(String),
    /// A value that was not observed, with the reason.
    Unknown(Cow<'static, str>),
    /// No value exists in this row; shown as a dash.
    Nothing,
}

impl Cell {
    /// Returns a cell with the value, or with the reason why it is unknown.
    pub fn of(value: Option<impl ToString>, why: &'static str) -> Self {
        value.map_or(Self::Unknown(why.into()), |value| Self::Text(value.to_string()))
    }

    /// Returns a cell with the value, or with a dash if no value exists.
    pub fn maybe(value: Option<impl ToString>) -> Self {
        value.map_or(Self::Nothing, |value| Self::Text(value.to_string()))
    }
}

impl From<&str> for Cell {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<String> for Cell {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl<const N: usize> Table<N> {
    /// Writes the table with one row for each item.
    pub fn write<T>(&self, html: &mut Html, items: &[T], cells: impl Fn(&T) -> [Cell; N]) {
        let caption = format!("{}-caption", self.id);
        let region = [
            ("class", "scroll"),
            ("role", "region"),
            ("tabindex", "0"),
            ("aria-labelledby", caption.as_str()),
        ];
        // A wide table scrolls in its own region, which the keyboard can reach.
        html.element("div", &region, |html| {
            html.element("table", &[], |html| {
                html.element("caption", &[("id", &caption)], |html| html.prose(self.caption));
                self.head(html);
                html.raw("<tbody>\n");
                for item in items.iter().take(self.most) {
                    html.element("tr", &[], |html| {
                        for (at, ((_, class), cell)) in self.columns.iter().zip(cells(item)).enumerate() {
                            html.cell(at == 0, class, &cell);
                        }
                    });
                    html.raw("\n");
                }
                html.raw("</tbody>");
            });
        });
        if let Some(more @ 1..) = items.len().checked_sub(self.most) {
            html.paragraph("dim", &format!("{more} more are not shown: {}", self.rest));
        }
    }

    fn head(&self, html: &mut Html) {
        html.element("thead", &[], |html| {
            html.element("tr", &[], |html| {
                for (name, class) in self.columns {
                    html.element("th", &[("scope", "col"), ("class", class)], |html| html.text(name));
                }
            });
        });
    }
}

impl Html {
    fn cell(&mut self, is_first: bool, class: &'static str, cell: &Cell) {
        let class_name = if matches!(cell, Cell::Bad(_)) { "bad" } else { class };
        let (tag, attributes): (_, &[_]) = if is_first {
            ("th", &[("scope", "row"), ("class", class_name)])
        } else {
            ("td", &[("class", class_name)])
        };
        self.element(tag, attributes, |html| match cell {
            Cell::Text(text) if class != SENTENCES => html.text(text),
            Cell::Text(text) | Cell::Bad(text) => html.prose(text),
            Cell::Named(name, more) => {
                html.text(name);
                html.dim(|html| html.text(more));
            }
            Cell::At(ago, wall) => {
                html.text(ago);
                html.dim(|html| html.time(*wall));
            }
            Cell::Unknown(why) => html.unknown(why),
            Cell::Nothing => html.raw(NOTHING),
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_beyond_the_most_are_counted_and_not_written() {
        let table = Table { id: "t", caption: "All", columns: [("number", "n")], most: 2, rest: "elsewhere" };
        let mut html = Html::default();
        table.write(&mut html, &[1, 2, 3, 4, 5], |number: &u32| [number.to_string().into()]);
        assert!(html.0.contains(">2</th>") && !html.0.contains(">3</th>"), "{}", html.0);
        assert!(html.0.contains("3 more are not shown: elsewhere"), "{}", html.0);
        let mut html = Html::default();
        table.write(&mut html, &[1, 2], |number: &u32| [number.to_string().into()]);
        assert!(!html.0.contains("more"), "{}", html.0);
    }

    #[test]
    fn names_are_cut_and_sentences_are_not() {
        let columns = [("user", ""), ("why", "wide")];
        let table = Table { id: "t", caption: "All", columns, most: 2, rest: "elsewhere" };
        let mut html = Html::default();
        table.write(&mut html, &["x".repeat(1500)], |text: &String| {
            [text.as_str().into(), text.as_str().into()]
        });
        let cells = format!("{}…</th><td class=\"wide\">{}</td>", "x".repeat(128), "x".repeat(1500));
        assert!(html.0.contains(&cells), "{}", html.0);
    }

    #[test]
    fn time_is_shown_readable_and_as_datetime() {
        let table = Table { id: "t", caption: "All", columns: [("when", "")], most: 2, rest: "elsewhere" };
        let mut html = Html::default();
        let at = Duration::from_secs(1_700_000_000);
        table.write(&mut html, &[()], |()| [Cell::At("5 s ago".to_owned(), at)]);
        let time = "<time datetime=\"2023-11-14T22:13:20Z\">2023-11-14 22:13:20 UTC</time>";
        assert!(html.0.contains(&format!("5 s ago <span class=\"dim\">{time}</span>")), "{}", html.0);
    }
}
