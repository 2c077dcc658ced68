//! Parses the values of a rule test: times, sizes, series.

use std::sync::LazyLock;
use std::time::Duration;

use bailiff_engine::attributes;
use bailiff_engine::value::Unit;
use bailiff_engine::yaml::{self, Data, Fault, Faults, Fields, Grammar, Node, Table, quantity};

use super::series::{self, Timeline};

static GRAMMAR: LazyLock<Grammar> = LazyLock::new(|| Grammar::parse(include_str!("grammar.json")));

/// Returns the keys of a file of rule tests.
pub(super) fn file() -> Table<'static> {
    GRAMMAR.file()
}

/// Returns the keys of a map within the file.
pub(super) fn table(name: &str) -> Table<'static> {
    GRAMMAR.table(name)
}

/// Parses a text, which may be empty.
pub(super) fn string(node: &Node, faults: &mut Faults) -> Option<String> {
    let text = node.text().filter(|_| !node.is_null());
    if text.is_none() {
        yaml::expected(node, "text", faults);
    }
    text.map(str::to_owned)
}

/// Returns the items of a list, which may be empty.
pub(super) fn list<'a>(node: &'a Node, faults: &mut Faults) -> Option<&'a [Node]> {
    if !matches!(node.data, Data::List(_)) {
        yaml::expected(node, "a list", faults);
        return None;
    }
    Some(node.items())
}

/// Parses a list of texts.
pub(super) fn strings(node: &Node, faults: &mut Faults) -> Option<Vec<String>> {
    list(node, faults)?.iter().map(|item| string(item, faults)).collect()
}

/// Parses a text with a given parser, and reports its error.
fn parsed<T>(node: &Node, faults: &mut Faults, read: impl FnOnce(&str) -> Result<T, String>) -> Option<T> {
    let value = read(&string(node, faults)?);
    value.map_err(|message| faults.push(Fault::error(&node.at, message))).ok()
}

/// Returns the first sample with a target, the first sample without it, and its initial age, by default one day if
/// it exists from the start.
pub(super) fn times(
    fields: &Fields<'_>,
    interval: Duration,
    faults: &mut Faults,
) -> (usize, usize, Duration) {
    let mut time = |name: &str| fields.given(name, time, faults);
    let (from, until, age) = (time("from"), time("until"), time("age"));
    let usual_age = if from.is_some() { Duration::ZERO } else { Duration::from_hours(24) };
    let intervals = |time: Duration| time.as_nanos().div_ceil(interval.as_nanos());
    let number = |time: Duration| usize::try_from(intervals(time)).unwrap_or(usize::MAX);
    (from.map_or(0, number), until.map_or(usize::MAX, number), age.unwrap_or(usual_age))
}

/// Parses a series of words, if it is given.
pub(super) fn words(
    fields: &Fields<'_>,
    (name, known): (&str, &[&str]),
    faults: &mut Faults,
) -> Option<Timeline<String>> {
    let read = |node: &Node, faults: &mut Faults| parsed(node, faults, |text| series::words(text, known));
    fields.given(name, read, faults).map(Timeline::Series)
}

/// Parses a series of numbers, if it is given.
pub(super) fn numbers(
    fields: &Fields<'_>,
    (name, unit): (&str, Unit),
    faults: &mut Faults,
) -> Option<Timeline<f64>> {
    fields.given(name, |node, faults| play(node, unit, faults), faults)
}

/// Parses a series of numbers; without the series, all values are unknown.
pub(super) fn plays(fields: &Fields<'_>, series: (&str, Unit), faults: &mut Faults) -> Timeline<f64> {
    numbers(fields, series, faults).unwrap_or_default()
}

pub(super) fn play(node: &Node, unit: Unit, faults: &mut Faults) -> Option<Timeline<f64>> {
    parsed(node, faults, |text| series::numbers(text, unit)).map(Timeline::Series)
}

/// Parses percentages; the driver reports whole percents.
pub(super) fn percents(fields: &Fields<'_>, name: &str, faults: &mut Faults) -> Timeline<f64> {
    let play = plays(fields, (name, Unit::Percent), faults);
    if let (Some(node), Timeline::Series(values)) = (fields.get(name), &play) {
        let odd = |value: &&f64| (**value * 100.0 - (**value * 100.0).round()).abs() > 1e-9 || **value > 1.0;
        if let Some(value) = values.iter().flatten().find(odd) {
            let message = format!("{}% is not a whole percentage, as drivers report", value * 100.0);
            faults.push(Fault::error(&node.at, message));
        }
    }
    play
}

/// Parses a sample: its time, or `{sample: 60}`.
pub(super) fn sample(node: &Node, interval: Duration, faults: &mut Faults) -> Option<usize> {
    if let Data::Map(_) = &node.data {
        return Fields::open(node, table("sample"), faults)?.given("sample", yaml::count, faults);
    }
    let time = time(node, faults)?;
    let text = node.text().unwrap_or_default();
    let why = match usize::try_from(time.as_nanos() / interval.as_nanos()) {
        Ok(sample) if time.as_nanos() % interval.as_nanos() == 0 => return Some(sample),
        Ok(_) => {
            let interval = humantime::format_duration(interval);
            format!("{text} is between two samples: there is one each {interval}")
        }
        Err(_) => format!("{text} is too long"),
    };
    faults.push(Fault::error(&node.at, why));
    None
}

/// Parses a time; the first sample may be written as 0 or as 0s.
pub(super) fn time(node: &Node, faults: &mut Faults) -> Option<Duration> {
    if node.text() == Some("0") { Some(Duration::ZERO) } else { yaml::time(node, faults) }
}

pub(super) fn interval(node: &Node, faults: &mut Faults) -> Option<Duration> {
    let interval = time(node, faults)?;
    if interval < Duration::from_millis(1) {
        faults.push(Fault::error(&node.at, "the interval must be at least 1ms"));
        return None;
    }
    Some(interval)
}

pub(super) fn moment(node: &Node, faults: &mut Faults) -> Option<Duration> {
    let wrong = |text: &str| format!("{text:?} is not a time; write it as 2026-01-01T00:00:00Z");
    parsed(node, faults, |text| quantity::moment(text).ok_or_else(|| wrong(text)))
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "bytes, and not below nothing")]
pub(super) fn bytes(node: &Node, faults: &mut Faults) -> Option<u64> {
    parsed(node, faults, |text| series::amount(text, Unit::Bytes)).map(|bytes| bytes as u64)
}

/// Returns the permitted values of an attribute.
pub(super) fn words_of(name: &str) -> &'static [&'static str] {
    let attribute = attributes::ALL.iter().find(|attribute| attribute.name == name);
    match attribute.map(|attribute| attribute.unit) {
        Some(Unit::Words(words)) => words,
        _ => &[],
    }
}
