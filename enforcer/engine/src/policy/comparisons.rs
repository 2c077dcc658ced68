//! Parses the comparison of an attribute: bounds with units, a flag, or a list of values.

use std::ops::Range;

use crate::attributes::Attribute;
use crate::value::{Bounds, Test, Unit};
use crate::yaml::quantity as units;
use crate::yaml::{self, Data, Fault, Faults, Node, expected, many, nothing_given, quantity, unknown, word};

/// Keys of bounds, with their meaning.
pub(super) const BOUNDS: [(&str, &str); 4] =
    [("max", "At most."), ("below", "Strictly less."), ("min", "At least."), ("above", "Strictly more.")];

/// Values that also have a well-known letter.
pub(super) const LETTERS: [(&str, &str); 1] = [("D", "disk_sleep")];

/// Returns the test, and the comparison as written in the file.
pub(super) fn read(attribute: &Attribute, node: &Node, faults: &mut Faults) -> Option<(Test, String)> {
    match attribute.unit {
        Unit::Flag => {
            let flag = yaml::flag(node, faults)?;
            Some((Test::Is(flag), flag.to_string()))
        }
        Unit::Words(words) => self::words(words, node, faults),
        _ => bounds(attribute, node, faults),
    }
}

fn words(words: &'static [&'static str], node: &Node, faults: &mut Faults) -> Option<(Test, String)> {
    let mut bits = 0;
    let mut comparison = Vec::new();
    for item in many(node, "words", faults)? {
        let letter =
            LETTERS.iter().find(|(letter, meant)| item.text() == Some(letter) && words.contains(meant));
        let word = match letter {
            Some((_, meant)) => *meant,
            None => word(item, (words, |word| word), faults)?,
        };
        bits |= words.iter().position(|known| *known == word).map_or(0, |place| 1 << place);
        comparison.push(word);
    }
    Some((Test::AnyOf(bits), comparison.join(" or ")))
}

fn bounds(attribute: &Attribute, node: &Node, faults: &mut Faults) -> Option<(Test, String)> {
    let (name, unit) = (attribute.name, attribute.unit);
    let example = units::example(unit);
    let Data::Map(entries) = &node.data else {
        let wanted = format!("bounds for `{name}`, such as `{{max: {example}}}`");
        expected(node, &wanted, faults);
        return None;
    };
    let mut bounds = Bounds::default();
    let mut comparison = Vec::new();
    let before = faults.errors();
    for entry in entries {
        let number = match entry.name.as_str() {
            "max" => &mut bounds.max,
            "below" => &mut bounds.below,
            "min" => &mut bounds.min,
            "above" => &mut bounds.above,
            _ => {
                let known = BOUNDS.map(|(name, _)| name);
                faults.push(unknown(entry, &format!("the bounds of `{name}`"), &known));
                continue;
            }
        };
        if entry.value.is_null() {
            faults.push(nothing_given(entry));
            continue;
        }
        let wanted = format!("a number with its unit, such as `{example}`");
        *number = quantity(&entry.value, &wanted, faults, |text| units::number(text, unit));
        comparison.push(format!("{} {}", entry.name, entry.value.text().unwrap_or_default()));
    }
    if faults.errors() == before
        && let Some(fault) = possible(&bounds, &node.at)
    {
        faults.push(fault);
    }
    (faults.errors() == before).then_some((Test::Within(bounds), comparison.join(", ")))
}

/// Returns an error if no value can be within the bounds.
fn possible(bounds: &Bounds, at: &Range<usize>) -> Option<Fault> {
    let over = |low: Option<f64>, high: Option<f64>| low.zip(high).is_some_and(|(low, high)| low > high);
    let meet = |low: Option<f64>, high: Option<f64>| low.zip(high).is_some_and(|(low, high)| low >= high);
    let Bounds { max, below, min, above } = *bounds;
    let fault = |message: &str, help: &str| Some(Fault::error(at, message).help(help));
    if *bounds == Bounds::default() {
        fault("no bound is given", "write at least one of max, below, min, above")
    } else if max.is_some() && below.is_some() {
        fault(
            "`max` and `below` are both upper bounds",
            "keep one: `max` means at most, `below` means strictly less",
        )
    } else if min.is_some() && above.is_some() {
        fault(
            "`min` and `above` are both lower bounds",
            "keep one: `min` means at least, `above` means strictly more",
        )
    } else if over(min, max) || meet(min, below) || meet(above, max) || meet(above, below) {
        fault("no value can be within these bounds", "the lower bound must be less than the upper bound")
    } else if below == Some(0.0) {
        fault("no value is below 0", "write `max: 0`, which means at most 0")
    } else {
        None
    }
}
