//! Periods, given as a number of samples or as a time.

use std::time::Duration;

use super::keys;
use crate::yaml::quantity::{self, QuantityError};
use crate::yaml::{Data, Faults, Fields, Node, count};

/// A number of samples, or a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Span {
    /// Samples.
    Samples(u32),
    /// A time.
    Time(Duration),
}

impl Span {
    /// Returns the number of samples; a time is rounded up.
    pub fn samples(self, interval: Duration) -> u32 {
        match self {
            Self::Samples(samples) => samples,
            Self::Time(time) if interval.is_zero() => {
                if time.is_zero() {
                    0
                } else {
                    u32::MAX
                }
            }
            Self::Time(time) => {
                u32::try_from(time.as_nanos().div_ceil(interval.as_nanos())).unwrap_or(u32::MAX)
            }
        }
    }
}

/// Parses `30m` or `{samples: 60}`.
pub(super) fn span(node: &Node, faults: &mut Faults) -> Option<Span> {
    if let Data::Map(_) = &node.data {
        let samples = Fields::open(node, keys::table("samples"), faults)?.get("samples")?;
        return count(samples, faults).map(Span::Samples);
    }
    crate::yaml::quantity(node, "a time or samples, such as `30m` or `{samples: 60}`", faults, |text| {
        quantity::time(text).map(Span::Time).map_err(|wrong| match text.parse::<u32>() {
            Ok(samples) if samples > 0 => QuantityError {
                help: format!("write `{samples}s`, `{samples}m` or `{{samples: {samples}}}`"),
                ..wrong
            },
            _ => wrong,
        })
    })
}

/// Parses a span above zero.
pub(super) fn positive(node: &Node, faults: &mut Faults) -> Option<Span> {
    let span = span(node, faults)?;
    if span.samples(Duration::from_nanos(1)) == 0 {
        let help = "a single sample can be an outlier; a rule needs several consecutive samples";
        faults.error(&node.at, "the value must be above 0", help);
        return None;
    }
    Some(span)
}

/// Parses `3`, `30m` or `{samples: 3}`.
pub(super) fn samples(node: &Node, faults: &mut Faults) -> Option<Span> {
    match node.text().and_then(|text| text.parse().ok()) {
        Some(samples) if samples > 0 => Some(Span::Samples(samples)),
        _ => positive(node, faults),
    }
}
