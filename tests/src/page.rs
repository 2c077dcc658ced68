//! A strict parser for the text exposition format, written from the specification and independent of our
//! writer.

use std::collections::BTreeMap;

/// Labels of a series, sorted.
pub type Labels = BTreeMap<String, String>;

/// A parsed page.
#[derive(Debug, Default, Clone)]
pub struct Page {
    series: BTreeMap<(String, Labels), f64>,
    kinds: BTreeMap<String, String>,
}

impl Page {
    /// Parses a page.
    ///
    /// # Panics
    /// On an invalid line, a duplicate series, or a sample without its family before it.
    pub fn read(text: &str) -> Self {
        let mut page = Self::default();
        let mut family = String::new();
        for line in text.lines().filter(|line| !line.is_empty()) {
            if let Some(comment) = line.strip_prefix("# ") {
                if let Some((name, kind)) =
                    comment.strip_prefix("TYPE ").and_then(|rest| rest.split_once(' '))
                {
                    name.clone_into(&mut family);
                    let twice = page.kinds.insert(name.to_owned(), kind.to_owned());
                    assert!(twice.is_none(), "duplicate family: {name}");
                }
                continue;
            }
            let (name, labels, value) = sample(line).unwrap_or_else(|| panic!("not a sample: {line:?}"));
            assert!(name.starts_with(&family), "{line:?} is in family {family}");
            let twice = page.series.insert((name, labels), value);
            assert!(twice.is_none(), "duplicate series: {line}");
        }
        page
    }

    /// Returns the value of the only series with this name and these labels, or `None` if there is no such
    /// series.
    ///
    /// # Panics
    /// If there are several such series.
    pub fn value(&self, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
        let mut found = self.all(name, labels);
        let first = found.next().map(|(_, value)| value);
        assert!(found.next().is_none(), "several series {name}{labels:?}");
        first
    }

    /// Returns all series with this name and these labels.
    pub fn all<'a>(
        &'a self,
        name: &'a str,
        labels: &'a [(&'a str, &'a str)],
    ) -> impl Iterator<Item = (&'a Labels, f64)> {
        self.series.iter().filter_map(move |((series, has), value)| {
            let matches =
                labels.iter().all(|(key, expected)| has.get(*key).is_some_and(|value| value == expected));
            (series == name && matches).then_some((has, *value))
        })
    }

    /// Returns whether a counter with this name and these labels is above 0.
    pub fn happened(&self, name: &str, labels: &[(&str, &str)]) -> bool {
        self.all(name, labels).any(|(_, count)| count > 0.0)
    }

    /// Returns a label of the first series with this name and these labels.
    pub fn label(&self, name: &str, labels: &[(&str, &str)], expected: &str) -> Option<String> {
        self.all(name, labels).next()?.0.get(expected).cloned()
    }

    /// Returns the number of series.
    pub fn len(&self) -> usize {
        self.series.len()
    }

    /// Returns whether there are no series.
    pub fn is_empty(&self) -> bool {
        self.series.is_empty()
    }
}

fn sample(line: &str) -> Option<(String, Labels, f64)> {
    let name_end =
        line.find(|letter: char| !(letter.is_ascii_alphanumeric() || letter == '_' || letter == ':'))?;
    let (name, mut rest) = line.split_at(name_end);
    let mut labels = Labels::new();
    if let Some(inner) = rest.strip_prefix('{') {
        rest = inner;
        while !rest.starts_with('}') {
            let (key, after) = rest.split_once("=\"")?;
            let (value, after) = quoted(after)?;
            labels.insert(key.to_owned(), value).is_none().then_some(())?;
            rest = after.strip_prefix(',').unwrap_or(after);
        }
        rest = &rest[1..];
    }
    let value = rest.strip_prefix(' ')?.parse().ok()?;
    (!name.is_empty()).then_some((name.to_owned(), labels, value))
}

/// Returns the unescaped text up to the closing quote, and the rest.
fn quoted(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut letters = text.char_indices();
    while let Some((at, letter)) = letters.next() {
        match letter {
            '"' => return Some((value, &text[at + 1..])),
            '\\' => value.push(match letters.next()?.1 {
                'n' => '\n',
                other @ ('\\' | '"') => other,
                _ => return None,
            }),
            other => value.push(other),
        }
    }
    None
}
