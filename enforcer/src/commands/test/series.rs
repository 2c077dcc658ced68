//! Series in promtool's notation: `0x240` is 0 followed by 240 more zeros, `1+2x3` is 1 3 5 7, `_` was not
//! observed, `_x5` five times. A space before the count is allowed: `sleeping x3`.

use std::str::FromStr;

use bailiff_engine::value::Unit;
use bailiff_engine::yaml::quantity;

/// Maximum number of samples: more than a year of 5 s intervals is a mistake.
const MOST: usize = 10_000_000;

/// Values over the samples of a test.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) enum Timeline<T> {
    /// Not given: unknown.
    #[default]
    Never,
    /// Constant.
    Always(T),
    /// One value per sample; unknown where `None`, and after the end.
    Series(Vec<Option<T>>),
}

impl<T: Clone> Timeline<T> {
    /// Returns the value at a sample.
    pub(super) fn at(&self, sample: usize) -> Option<T> {
        match self {
            Self::Never => None,
            Self::Always(value) => Some(value.clone()),
            Self::Series(values) => values.get(sample).cloned().flatten(),
        }
    }

    /// Number of samples.
    pub(super) const fn samples(&self) -> usize {
        match self {
            Self::Never | Self::Always(_) => 0,
            Self::Series(values) => values.len(),
        }
    }
}

/// Parses a series of numbers in base units.
pub(super) fn numbers(text: &str, unit: Unit) -> Result<Vec<Option<f64>>, String> {
    let mut values = Vec::new();
    for item in items(text)? {
        if item.body == "_" {
            extend(&mut values, item.times.unwrap_or(1), |_| None)?;
            continue;
        }
        let sign = item.body.char_indices().skip(1).find(|(_, letter)| matches!(letter, '+' | '-'));
        let (start, step) = match sign {
            Some((at, sign)) => {
                let step = amount(&item.body[at + 1..], unit)?;
                (&item.body[..at], if sign == '-' { -step } else { step })
            }
            None => (item.body, 0.0),
        };
        if sign.is_some() && item.times.is_none() {
            return Err(format!("{:?} has a step but no count; write `{}x3`", item.body, item.body));
        }
        let start = amount(start, unit)?;
        #[expect(clippy::cast_precision_loss, reason = "numbers of samples are far below 2^53")]
        extend(&mut values, item.times.unwrap_or(0) + 1, |place| Some(start + step * place as f64))?;
    }
    if let Some(value) = values.iter().flatten().find(|value| **value < 0.0) {
        return Err(format!("the series goes below 0, to {value}"));
    }
    Ok(values)
}

/// Parses a series of words.
pub(super) fn words(text: &str, known: &[&str]) -> Result<Vec<Option<String>>, String> {
    let mut values = Vec::new();
    for item in items(text)? {
        if item.body == "_" {
            extend(&mut values, item.times.unwrap_or(1), |_| None)?;
        } else if known.contains(&item.body) {
            extend(&mut values, item.times.unwrap_or(0) + 1, |_| Some(item.body.to_owned()))?;
        } else {
            return Err(format!("{:?} is not one of {}", item.body, known.join(", ")));
        }
    }
    Ok(values)
}

fn extend<T>(
    values: &mut Vec<Option<T>>,
    times: usize,
    value: impl Fn(usize) -> Option<T>,
) -> Result<(), String> {
    if values.len().saturating_add(times) > MOST {
        return Err(format!("the series has more than {MOST} samples"));
    }
    values.extend((0..times).map(value));
    Ok(())
}

/// An item and its number of repetitions.
#[derive(Debug)]
struct Item<'a> {
    body: &'a str,
    times: Option<usize>,
}

fn items(text: &str) -> Result<Vec<Item<'_>>, String> {
    let mut items: Vec<Item<'_>> = Vec::new();
    for token in text.split_whitespace() {
        let (body, times) = match token.rsplit_once('x') {
            Some((body, times)) if is_number(times) => {
                let times = usize::from_str(times).map_err(|_| format!("the count {times} is too large"))?;
                (body, Some(times))
            }
            _ => (token, None),
        };
        match items.last_mut() {
            Some(last) if body.is_empty() && last.times.is_none() => last.times = times,
            _ if body.is_empty() => return Err(format!("{token:?} has a count but no value")),
            _ => items.push(Item { body, times }),
        }
    }
    if items.is_empty() { Err("a series must have at least one sample".to_owned()) } else { Ok(items) }
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// Parses a number; the percent sign is optional.
pub(super) fn amount(text: &str, unit: Unit) -> Result<f64, String> {
    // Zero needs no unit.
    if text == "0" {
        return Ok(0.0);
    }
    let bare = unit == Unit::Percent && !text.ends_with('%');
    let number = if bare { format!("{text}%") } else { text.to_owned() };
    quantity::number(&number, unit).map_err(|wrong| wrong.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: f64 = 1024.0 * 1024.0;

    #[test]
    fn numbers_as_promtool_reads_them() {
        let percent = |values: &[f64]| values.iter().map(|value| Some(value / 100.0)).collect::<Vec<_>>();
        let cases: [(&str, Vec<Option<f64>>); 8] = [
            ("0", percent(&[0.0])),
            ("0x3", percent(&[0.0; 4])),
            ("1+2x3", percent(&[1.0, 3.0, 5.0, 7.0])),
            ("10-5x2", percent(&[10.0, 5.0, 0.0])),
            ("50%x1 0", percent(&[50.0, 50.0, 0.0])),
            ("_ 1 _x2", vec![None, Some(0.01), None, None]),
            ("7 x2", percent(&[7.0; 3])),
            ("1x0", percent(&[1.0])),
        ];
        for (text, expected) in cases {
            let got = numbers(text, Unit::Percent).unwrap();
            let same = |(one, other): (&Option<f64>, &Option<f64>)| match (one, other) {
                (Some(one), Some(other)) => (one - other).abs() < 1e-9,
                (one, other) => one == other,
            };
            assert!(got.len() == expected.len() && got.iter().zip(&expected).all(same), "{text}: {got:?}");
        }
        assert_eq!(numbers("512MiB+512MiBx1", Unit::Bytes).unwrap(), [Some(512.0 * MIB), Some(1024.0 * MIB)]);
        assert_eq!(numbers("1MiB/sx1", Unit::BytesPerSecond).unwrap(), [Some(MIB), Some(MIB)]);
    }

    #[test]
    fn words_and_their_times() {
        let known = ["sleeping", "running"];
        let got = words("sleeping x2 _ runningx1", &known).unwrap();
        let expected = [Some("sleeping"); 3].into_iter().chain([None]).chain([Some("running"); 2]);
        assert_eq!(got, expected.map(|word| word.map(str::to_owned)).collect::<Vec<_>>());
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        let cases =
            ["", "x3", "1+2", "abc", "1x99999999999999999999999", "1x99999999", "5-3x9", "1 x2 x2", "4GiB"];
        for text in cases {
            assert!(numbers(text, Unit::Percent).is_err(), "{text:?}");
        }
        assert!(words("asleep", &["sleeping"]).is_err());
        assert!(numbers("8GB", Unit::Bytes).unwrap_err().contains("GiB"));
    }
}
