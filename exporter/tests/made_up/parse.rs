//! A strict parser for pages, in either format. It follows the grammar and does not use our table of
//! metrics.

use std::collections::{BTreeMap, BTreeSet};

pub(crate) type Labels = BTreeMap<String, String>;

/// A sample with its value as written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Sample {
    pub(crate) name: String,
    pub(crate) labels: Labels,
    pub(crate) value: String,
}

/// A page that was found to be valid.
#[derive(Debug, Default)]
pub(crate) struct Page {
    /// Metric types by family.
    pub(crate) families: BTreeMap<String, String>,
    pub(crate) samples: Vec<Sample>,
}

impl Page {
    pub(crate) fn values(&self, name: &str) -> Vec<(&Labels, f64)> {
        let of_name = self.samples.iter().filter(|sample| sample.name == name);
        of_name.map(|sample| (&sample.labels, sample.value.parse().expect("the value was checked"))).collect()
    }

    /// Returns the only value with these labels.
    pub(crate) fn value(&self, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
        let holds =
            |all: &Labels| labels.iter().all(|(name, value)| all.get(*name).is_some_and(|v| v == value));
        let found: Vec<f64> =
            self.values(name).into_iter().filter(|(all, _)| holds(all)).map(|(_, value)| value).collect();
        assert!(found.len() < 2, "{name} {labels:?} has {} values", found.len());
        found.first().copied()
    }
}

/// Parses a page and checks it: HELP and TYPE come before samples, each family is one block, samples belong
/// to the family above them, no series is repeated, and `OpenMetrics` pages end with their end marker.
pub(crate) fn parse(text: &str) -> Page {
    let body = text.strip_suffix("# EOF\n").unwrap_or(text);
    assert!(
        body.ends_with('\n') && !body.contains("# EOF"),
        "the last line must be complete and must be the end"
    );
    let mut page = Page::default();
    let mut series = BTreeSet::new();
    let mut family = String::new();
    for line in body.split_terminator('\n') {
        if let Some(comment) = line.strip_prefix("# ") {
            family = head(&mut page, comment, &family);
            continue;
        }
        let sample = sample(line);
        let kind = page.families.get(&family).unwrap_or_else(|| panic!("no TYPE before {line}"));
        let ending = match (kind.as_str(), body.len() < text.len()) {
            ("counter", true) => "_total",
            ("info", true) => "_info",
            ("histogram", _) => part(&sample),
            _ => "",
        };
        assert_eq!(sample.name, format!("{family}{ending}"), "the sample is in another family's block");
        assert!(series.insert((sample.name.clone(), sample.labels.clone())), "twice: {line}");
        page.samples.push(sample);
    }
    page
}

/// Returns which part of a histogram a sample is. Only buckets have a bound.
fn part(sample: &Sample) -> &'static str {
    let part = ["_bucket", "_sum", "_count"].into_iter().find(|part| sample.name.ends_with(part));
    let part = part.unwrap_or_else(|| panic!("not a part of a histogram: {sample:?}"));
    assert_eq!(sample.labels.contains_key("le"), part == "_bucket", "{sample:?}");
    part
}

fn head(page: &mut Page, comment: &str, last: &str) -> String {
    let mut words = comment.splitn(3, ' ');
    let (keyword, name, rest) = (words.next(), words.next(), words.next());
    let name = name.expect("a head must contain a family").to_owned();
    let rest = rest.expect("a head must contain a text");
    match keyword {
        Some("HELP") => assert!(!page.families.contains_key(&name), "{name} has two blocks"),
        Some("TYPE") => {
            assert!(["gauge", "counter", "info", "histogram"].contains(&rest), "{comment}");
            assert_eq!(page.families.insert(name.clone(), rest.to_owned()), None, "{name} has two types");
        }
        Some("UNIT") => assert!(name == last && name.ends_with(rest), "{comment}"),
        _ => panic!("no head: {comment}"),
    }
    name
}

fn sample(line: &str) -> Sample {
    let end =
        line.find(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_').expect("a name must end");
    let (name, rest) = line.split_at(end);
    assert!(!name.is_empty() && !name.starts_with(|first: char| first.is_ascii_digit()), "{line}");
    let (labels, rest) = match rest.strip_prefix('{') {
        Some(rest) => labels(rest),
        None => (Labels::new(), rest),
    };
    let value = rest.strip_prefix(' ').expect("a space must be before the value");
    let number: f64 = value.parse().unwrap_or_else(|_| panic!("no number: {line}"));
    assert!(number.is_finite() && value.trim() == value, "{line}");
    Sample { name: name.to_owned(), labels, value: value.to_owned() }
}

/// Parses the labels after `{`. Returns them and the text after `}`.
fn labels(mut rest: &str) -> (Labels, &str) {
    let mut labels = Labels::new();
    loop {
        let (name, after) = rest.split_once("=\"").expect("a label must have a value");
        let letter = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
        assert!(
            name.bytes().all(letter) && !name.starts_with(|first: char| first.is_ascii_digit()),
            "{name}"
        );
        let (value, after) = quoted(after);
        assert_eq!(labels.insert(name.to_owned(), value), None, "{name} stands twice");
        match after.strip_prefix(',') {
            Some(more) => rest = more,
            None => return (labels, after.strip_prefix('}').expect("the labels must end with `}`")),
        }
    }
}

fn quoted(text: &str) -> (String, &str) {
    let mut value = String::new();
    let mut letters = text.char_indices();
    while let Some((at, letter)) = letters.next() {
        match letter {
            '"' => return (value, &text[at + 1..]),
            '\\' => value.push(match letters.next() {
                Some((_, 'n')) => '\n',
                Some((_, escaped @ ('\\' | '"'))) => escaped,
                other => panic!("no escape: {other:?}"),
            }),
            other => value.push(other),
        }
    }
    panic!("the value is not closed: {text}")
}
