//! Parses the values of a rule test: times, sizes, series.

use std::time::Duration;

use bailiff_engine::attributes;
use bailiff_engine::policy::quantity;
use bailiff_engine::value::Unit;
use serde_saphyr::Spanned;

use super::series::{self, Timeline};
use super::written::{Text, When};

/// Errors of a test file, each with its line.
#[derive(Debug, Default)]
pub(super) struct Faults(pub(super) Vec<String>);

impl Faults {
    pub(super) fn at<T>(&mut self, place: &Spanned<T>, message: &str) {
        let line = place.referenced.line();
        self.0.push(format!("line {line}: {}", message.replace(char::is_control, "\u{fffd}")));
    }

    /// Returns the value, or reports the error.
    pub(super) fn take<T>(&mut self, place: &Text, value: Result<T, String>) -> Option<T> {
        value.map_err(|message| self.at(place, &message)).ok()
    }
}

/// Returns the first sample of a target, the first sample without it, and its age at first: by default a day if
/// it exists from the start.
pub(super) fn times(
    (from, until, age): (&Option<Text>, &Option<Text>, &Option<Text>),
    interval: Duration,
    faults: &mut Faults,
) -> (usize, usize, Duration) {
    let mut time =
        |text: &Option<Text>| text.as_ref().and_then(|text| faults.take(text, self::time(&text.value)));
    let (from, until, age) = (time(from), time(until), time(age));
    let usual_age = if from.is_some() { Duration::ZERO } else { Duration::from_hours(24) };
    let intervals = |time: Duration| time.as_nanos().div_ceil(interval.as_nanos());
    let number = |time: Duration| usize::try_from(intervals(time)).unwrap_or(usize::MAX);
    (from.map_or(0, number), until.map_or(usize::MAX, number), age.unwrap_or(usual_age))
}

pub(super) fn words(text: &Text, known: &[&str], faults: &mut Faults) -> Timeline<String> {
    faults.take(text, series::words(&text.value, known)).map_or(Timeline::Never, Timeline::Series)
}

pub(super) fn plays(text: Option<&Text>, unit: Unit, faults: &mut Faults) -> Timeline<f64> {
    let Some(text) = text else { return Timeline::Never };
    faults.take(text, series::numbers(&text.value, unit)).map_or(Timeline::Never, Timeline::Series)
}

/// Parses percentages; the driver reports whole percents.
pub(super) fn percents(text: Option<&Text>, faults: &mut Faults) -> Timeline<f64> {
    let play = plays(text, Unit::Percent, faults);
    if let (Some(text), Timeline::Series(values)) = (text, &play) {
        let odd = |value: &&f64| (**value * 100.0 - (**value * 100.0).round()).abs() > 1e-9 || **value > 1.0;
        if let Some(value) = values.iter().flatten().find(odd) {
            let message = format!("{}% is not a whole percentage, as drivers report", value * 100.0);
            faults.at(text, &message);
        }
    }
    play
}

pub(super) fn sample(when: &When, interval: Duration) -> Result<usize, String> {
    match when {
        When::Sample(sample) => Ok(sample.sample),
        When::Time(text) => {
            let time = time(text)?;
            if time.as_nanos() % interval.as_nanos() != 0 {
                let interval = humantime::format_duration(interval);
                return Err(format!("{text} is between two samples; there is one sample every {interval}"));
            }
            usize::try_from(time.as_nanos() / interval.as_nanos()).map_err(|_| format!("{text} is too long"))
        }
    }
}

pub(super) fn time(text: &str) -> Result<Duration, String> {
    // The first sample may be written as 0 or as 0s.
    let text = if text == "0" { "0s" } else { text };
    quantity::time(text).map_err(|wrong| format!("{}: {}", wrong.message, wrong.help))
}

pub(super) fn interval(text: &str) -> Result<Duration, String> {
    let interval = time(text)?;
    if interval < Duration::from_millis(1) {
        return Err("the interval must be at least 1ms".to_owned());
    }
    Ok(interval)
}

pub(super) fn moment(text: &str) -> Result<Duration, String> {
    let wrong = || format!("{text:?} is not a time; write it as 2026-01-01T00:00:00Z");
    let moment = humantime::parse_rfc3339(text).map_err(|_| wrong())?;
    moment.duration_since(std::time::UNIX_EPOCH).map_err(|_| wrong())
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "bytes, and not below nothing")]
pub(super) fn bytes(text: &str) -> Result<u64, String> {
    series::amount(text, Unit::Bytes).map(|bytes| bytes as u64)
}

/// Returns the permitted values of an attribute.
pub(super) fn words_of(name: &str) -> Vec<&'static str> {
    let attribute = attributes::ALL.iter().find(|attribute| attribute.name == name);
    match attribute.map(|attribute| attribute.unit) {
        Some(Unit::Words(words)) => words.to_vec(),
        _ => Vec::new(),
    }
}
