//! Status pages: plain HTML without scripts. Markup must be `'static`, so all other text reaches a page only
//! through functions that escape it, such as [`Html::text`].

mod bar;
mod table;
mod text;

use std::time::Duration;

pub use bar::{Bar, Part};
pub use table::{Cell, Column, Table};

use crate::human::{Span, clock, rfc3339};

const STYLE: &str = include_str!("style.css");

/// `Content-Security-Policy` of the pages: allows only their own style sheet. A test checks the hash.
pub const POLICY: &str = "default-src 'none'; style-src 'sha256-HrBMW6jzNU0xDqmDPWaUNNrHH5vzvG/4/nXsPHtxwCc='; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// Limits of the automatic refresh: a page reloads at most once a second and at least once a minute.
const REFRESH: (Duration, Duration) = (Duration::from_secs(1), Duration::from_mins(1));

/// Title, heading and refresh interval of a page.
#[derive(Debug, Clone, Copy)]
pub struct Head<'a> {
    /// Title of the browser window.
    pub title: &'a str,
    /// Text of the page's `h1` heading.
    pub heading: &'a str,
    /// Interval of the automatic refresh; `None` if the page does not refresh.
    pub refresh: Option<Duration>,
}

/// HTML text under construction.
#[derive(Debug, Default)]
pub struct Html(String);

impl Html {
    /// Starts a page and writes its `h1` heading. The `header` element stays open.
    pub fn begin(head: &Head<'_>) -> Self {
        let mut html = Self::default();
        html.raw("<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">");
        html.raw("<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">");
        html.raw("<meta name=\"color-scheme\" content=\"light dark\">");
        if let Some(every) = head.refresh {
            let seconds = every.clamp(REFRESH.0, REFRESH.1).as_secs_f64().ceil();
            html.raw("<meta http-equiv=\"refresh\"");
            html.attribute("content", &seconds.to_string());
            html.raw(">");
        }
        html.raw("<title>");
        html.plain(head.title);
        html.raw(" · GPU Bailiff</title><style>");
        html.raw(STYLE);
        html.raw("</style></head>\n<body><header>");
        html.element("h1", &[], |html| html.text(head.heading));
        html
    }

    /// Writes how old the data on the page is, then calls `more`. `age` is `None` before the first snapshot.
    pub fn age(&mut self, done: &'static str, age: Option<Duration>, more: impl FnOnce(&mut Self)) {
        self.element("p", &[], |html| {
            if age.is_some() {
                html.raw(done);
                html.raw(" ");
            }
            let text = age.map_or_else(|| "no snapshot yet".to_owned(), |age| format!("{} ago", Span(age)));
            html.element("strong", &[("id", "age")], |html| html.text(&text));
            more(html);
        });
    }

    /// Writes links (label, address), and a link that turns this page's automatic refresh on or off.
    pub fn nav(&mut self, links: &[(&str, &str)], refreshes: bool) {
        let other = if refreshes { ("Stop refreshing", "./?still") } else { ("Refresh automatically", "./") };
        self.element("nav", &[("aria-label", "Pages")], |html| {
            html.list(&[], links.iter().chain([&other]), |html, (words, address)| html.link(words, address));
        });
    }

    /// Closes the header and opens the main part of the page.
    pub fn main(&mut self) {
        self.raw("</header>\n<main>");
    }

    /// Writes the footer, and returns the whole page.
    pub fn end(mut self, words: &str) -> String {
        self.raw("</main>\n<footer><p>");
        self.prose(words);
        self.raw("</p></footer></body></html>\n");
        self.0
    }

    /// Writes a section of the page under its own heading.
    pub fn section(&mut self, id: &'static str, title: &str, write: impl FnOnce(&mut Self)) {
        let title_id = format!("{id}-title");
        self.raw("\n");
        self.element("section", &[("id", id), ("aria-labelledby", &title_id)], |html| {
            html.element("h2", &[("id", &title_id)], |html| html.text(title));
            write(html);
        });
    }

    /// Writes an element: its tag with attributes, and its content.
    pub fn element(
        &mut self,
        tag: &'static str,
        attributes: &[(&'static str, &str)],
        content: impl FnOnce(&mut Self),
    ) {
        self.raw("<");
        self.raw(tag);
        for (name, value) in attributes {
            self.attribute(name, value);
        }
        self.raw(">");
        content(self);
        self.raw("</");
        self.raw(tag);
        self.raw(">");
    }

    /// Writes an unordered list.
    pub fn list<T>(
        &mut self,
        attributes: &[(&'static str, &str)],
        items: impl IntoIterator<Item = T>,
        write: impl Fn(&mut Self, T),
    ) {
        self.element("ul", attributes, |html| {
            for item in items {
                html.element("li", &[], |html| write(html, item));
            }
        });
    }

    /// Writes a paragraph with this CSS class.
    pub fn paragraph(&mut self, class: &'static str, words: &str) {
        self.element("p", &[("class", class)], |html| html.prose(words));
    }

    /// Writes the findings that need attention as a list. Writes nothing if there are no findings.
    pub fn notes(&mut self, notes: &[String]) {
        if !notes.is_empty() {
            self.element("section", &[("class", "notes"), ("aria-label", "Findings")], |html| {
                html.list(&[], notes, |html, note| html.prose(note));
            });
        }
    }

    /// Writes `unknown` and the reason, in place of a value that was not observed.
    pub fn unknown(&mut self, why: &str) {
        self.element("span", &[("class", "unknown")], |html| {
            html.raw(if why.is_empty() { "unknown" } else { "unknown: " });
            html.prose(why);
        });
    }

    /// Writes `unknown` and the reason as a paragraph.
    pub fn unknown_paragraph(&mut self, why: &str) {
        self.element("p", &[], |html| html.unknown(why));
    }

    /// Writes text in a dimmed style, after a space.
    pub fn dim(&mut self, content: impl FnOnce(&mut Self)) {
        self.raw(" ");
        self.element("span", &[("class", "dim")], content);
    }

    /// Writes a wall-clock time, given as the time since the Unix epoch.
    pub fn time(&mut self, wall: Duration) {
        let (Some(machine), Some(human)) = (rfc3339(wall), clock(wall)) else {
            return self.unknown("the clock shows a year after 9999");
        };
        self.element("time", &[("datetime", &machine)], |html| html.text(&human));
    }

    /// Writes a link.
    pub fn link(&mut self, words: &str, address: &str) {
        self.element("a", &[("href", address)], |html| html.text(words));
    }
}

#[cfg(test)]
mod tests {
    use base64::Engine as _;
    use sha2::{Digest, Sha256};

    use super::*;

    #[test]
    fn the_policy_allows_just_this_style() {
        let hash = base64::engine::general_purpose::STANDARD.encode(Sha256::digest(STYLE));
        assert!(POLICY.contains(&format!("'sha256-{hash}'")), "style.css is now sha256-{hash}");
    }

    #[test]
    fn a_page_asks_for_itself_again_at_its_interval_within_reason() {
        let page = |refresh| Html::begin(&Head { title: "t", heading: "h", refresh }).end("");
        for (every, shown) in [(200, "1"), (5000, "5"), (2500, "3"), (600_000, "60")] {
            let html = page(Some(Duration::from_millis(every)));
            assert!(html.contains(&format!("http-equiv=\"refresh\" content=\"{shown}\"")), "{html}");
        }
        assert!(!page(None).contains("refresh"));
    }
}
