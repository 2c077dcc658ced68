//! Status pages for people: tables that work without scripts, and text that never becomes markup.

use crate::{bounded, bounded_prose};

const STYLE: &str = include_str!("style.css");
/// Seconds until a browser asks again.
const REFRESH: u32 = 5;

/// A column's title and class: `n` is for numbers.
pub type Column = (&'static str, &'static str);

/// HTML in the making: text is escaped, so nothing that a process is called becomes a part of the page.
#[derive(Debug, Default)]
pub struct Html(String);

impl Html {
    /// A page that asks for itself again, up to the end of its heading.
    #[must_use]
    pub fn begin(title: &str, heading: &str) -> Self {
        let mut html = Self::default();
        html.raw("<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">");
        html.raw(&format!("<meta http-equiv=\"refresh\" content=\"{REFRESH}\">"));
        html.raw("<meta name=\"viewport\" content=\"width=device-width\"><title>");
        html.text(title);
        html.raw(" · GPU Bailiff</title><style>");
        html.raw(STYLE);
        html.raw("</style></head><body><h1>");
        html.text(heading);
        html.raw("</h1>");
        html
    }

    /// The whole page.
    #[must_use]
    pub fn end(mut self) -> String {
        self.raw("</body></html>\n");
        self.0
    }

    /// Puts markup of ours.
    pub fn raw(&mut self, html: &str) {
        self.0.push_str(html);
    }

    /// Puts a name, whatever is in it.
    pub fn text(&mut self, text: &str) {
        self.escaped(&bounded(text));
    }

    /// Puts a sentence, whatever is in it.
    pub fn prose(&mut self, text: &str) {
        self.escaped(&bounded_prose(text));
    }

    fn escaped(&mut self, text: &str) {
        for character in text.chars() {
            match character {
                '&' => self.raw("&amp;"),
                '<' => self.raw("&lt;"),
                '>' => self.raw("&gt;"),
                '"' => self.raw("&quot;"),
                '\'' => self.raw("&#39;"),
                other => self.0.push(other),
            }
        }
    }

    /// Begins a table, and says what its columns are.
    pub fn table(&mut self, title: &str, columns: &[Column]) {
        self.raw("<h2>");
        self.text(title);
        self.raw("</h2><table><thead><tr>");
        for (name, class) in columns {
            self.cell("th", class, name);
        }
        self.raw("</tr></thead><tbody>");
    }

    /// A row of the table.
    pub fn row(&mut self, columns: &[Column], cells: &[String]) {
        self.raw("<tr>");
        for ((_, class), cell) in columns.iter().zip(cells) {
            self.cell("td", class, cell);
        }
        self.raw("</tr>\n");
    }

    fn cell(&mut self, tag: &str, class: &str, text: &str) {
        let class = if text.starts_with("down") { "bad" } else { class };
        self.raw(&format!("<{tag} class=\"{class}\">"));
        self.text(text);
        self.raw(&format!("</{tag}>"));
    }

    /// Ends the table.
    pub fn end_table(&mut self) {
        self.raw("</tbody></table>");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_text_and_never_markup() {
        let mut html = Html::default();
        html.text("<script>\"x\"&'y'</script>");
        assert_eq!(html.0, "&lt;script&gt;&quot;x&quot;&amp;&#39;y&#39;&lt;/script&gt;");
    }
}
