//! Escaping of arbitrary text for HTML: bounded in length, with unprintable characters shown as code points.
//! Letters of different scripts may still look alike.

use super::Html;
use crate::is_unprintable;

/// Maximum length of a name, in bytes.
const NAME: usize = 128;
/// Maximum length of a sentence, in bytes.
const PROSE: usize = 2048;

impl Html {
    /// Appends trusted markup without escaping it.
    pub fn raw(&mut self, html: &'static str) {
        self.0.push_str(html);
    }

    /// Appends a name from any source, escaped.
    pub fn text(&mut self, text: &str) {
        self.isolated(text, NAME);
    }

    /// Appends a sentence from any source, escaped.
    pub fn prose(&mut self, text: &str) {
        self.isolated(text, PROSE);
    }

    /// Appends a name, escaped and without tags, for elements that allow only text, such as `title`.
    pub fn plain(&mut self, text: &str) {
        self.bounded(text, NAME, Odd::Named);
    }

    /// Appends an attribute, with its value escaped, to the tag that is open.
    pub fn attribute(&mut self, name: &'static str, value: &str) {
        self.raw(" ");
        self.raw(name);
        self.raw("=\"");
        self.bounded(value, PROSE, Odd::Named);
        self.raw("\"");
    }

    /// Wraps non-ASCII text in `bdi`, so that right-to-left letters do not reorder the text around it.
    fn isolated(&mut self, text: &str, most: usize) {
        if text.is_ascii() {
            return self.bounded(text, most, Odd::Marked);
        }
        self.raw("<bdi>");
        self.bounded(text, most, Odd::Marked);
        self.raw("</bdi>");
    }

    fn bounded(&mut self, text: &str, most: usize, odd: Odd) {
        let mut put = 0;
        for character in text.chars() {
            put += character.len_utf8();
            if put > most {
                self.raw("…");
                return;
            }
            match character {
                '&' => self.raw("&amp;"),
                '<' => self.raw("&lt;"),
                '>' => self.raw("&gt;"),
                '"' => self.raw("&quot;"),
                '\'' => self.raw("&#39;"),
                character if is_unprintable(character) => self.odd(character, odd),
                other => self.0.push(other),
            }
        }
    }

    fn odd(&mut self, character: char, odd: Odd) {
        let number = format!("U+{:04X}", u32::from(character));
        match odd {
            Odd::Named => self.0.push_str(&number),
            Odd::Marked => {
                self.raw("<span class=\"odd\">");
                self.0.push_str(&number);
                self.raw("</span>");
            }
        }
    }
}

/// How an unprintable character is shown.
#[derive(Debug, Clone, Copy)]
enum Odd {
    /// Shown as its code point, in plain text.
    Named,
    /// Shown as its code point in a styled `span`, which a name cannot imitate.
    Marked,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> String {
        let mut html = Html::default();
        html.text(text);
        html.0
    }

    #[test]
    fn names_are_text_and_never_markup() {
        let cases = [
            ("<script>\"x\"&'y'</script>", "&lt;script&gt;&quot;x&quot;&amp;&#39;y&#39;&lt;/script&gt;"),
            ("a\nb\u{1b}", "a<span class=\"odd\">U+000A</span>b<span class=\"odd\">U+001B</span>"),
            ("\u{202e}x", "<bdi><span class=\"odd\">U+202E</span>x</bdi>"),
            ("\u{fffd}", "<bdi><span class=\"odd\">U+FFFD</span></bdi>"),
            ("שלום", "<bdi>שלום</bdi>"),
        ];
        for (name, shown) in cases {
            assert_eq!(text(name), shown, "{name:?}");
        }
    }

    #[test]
    fn names_are_bounded() {
        assert_eq!(text(&"x".repeat(1 << 16)), format!("{}…", "x".repeat(NAME)));
        assert_eq!(text(&"<".repeat(1 << 16)), format!("{}…", "&lt;".repeat(NAME)));
        assert_eq!(text(&"\u{7}".repeat(1 << 16)).matches("U+0007").count(), NAME);
    }

    #[test]
    fn an_attribute_stays_one() {
        let mut html = Html::default();
        html.attribute("href", "\" onclick=\"alert(1)\u{202e}");
        assert_eq!(html.0, " href=\"&quot; onclick=&quot;alert(1)U+202E\"");
    }
}
