//! Observed values of attributes, and their comparison with a rule's requirements.

use bailiff_snapshot::Truth;

/// An observed value in base units: bytes, seconds, a ratio, a count.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Value {
    /// Not observed, with the reason.
    Unknown(&'static str),
    /// Completely observed.
    Number(f64),
    /// A sum or maximum of which a part was not observed: the value is this or more.
    AtLeast(f64),
    /// True or false.
    Flag(bool),
    /// Words for several objects, such as the states of processes; bit N is word N in the unit's list.
    Words {
        /// Words that were observed.
        seen: u64,
        /// Whether all objects were observed.
        complete: bool,
    },
}

/// Unit of an attribute, and its notation in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// A ratio, written `5%`.
    Percent,
    /// Bytes, written `8GiB`.
    Bytes,
    /// Bytes per second, written `10MiB/s`.
    BytesPerSecond,
    /// Seconds, written `30m`.
    Duration,
    /// A count, written `2`.
    Count,
    /// `true` or `false`.
    Flag,
    /// One of these words, or a list of them.
    Words(&'static [&'static str]),
}

/// Bounds of a number; all that are given must hold.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Bounds {
    /// `max`: at most.
    pub max: Option<f64>,
    /// `below`: strictly less.
    pub below: Option<f64>,
    /// `min`: at least.
    pub min: Option<f64>,
    /// `above`: strictly more.
    pub above: Option<f64>,
}

/// Required value of an attribute.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Test {
    /// A number within bounds.
    Within(Bounds),
    /// This flag.
    Is(bool),
    /// One of these words, as bits.
    AnyOf(u64),
}

impl Test {
    /// Compares a value.
    pub fn condition(&self, value: Value) -> Truth {
        match (self, value) {
            (Self::Within(bounds), Value::Number(number)) => bounds.hold(number).into(),
            (Self::Within(bounds), Value::AtLeast(number)) => bounds.hold_from(number),
            (Self::Is(wanted), Value::Flag(flag)) => (flag == *wanted).into(),
            (Self::AnyOf(wanted), Value::Words { seen, complete }) => {
                if seen & wanted != 0 {
                    Truth::True
                } else if complete {
                    Truth::False
                } else {
                    Truth::Unknown
                }
            }
            _ => Truth::Unknown,
        }
    }
}

impl Bounds {
    fn hold(&self, number: f64) -> bool {
        self.max.is_none_or(|max| number <= max)
            && self.below.is_none_or(|below| number < below)
            && self.min.is_none_or(|min| number >= min)
            && self.above.is_none_or(|above| number > above)
    }

    /// Compares a number that is `least` or more.
    fn hold_from(&self, least: f64) -> Truth {
        let lower = self.min.is_none_or(|min| least >= min) && self.above.is_none_or(|above| least > above);
        let past = self.max.is_some_and(|max| least > max) || self.below.is_some_and(|below| least >= below);
        if past {
            Truth::False
        } else if lower && self.max.is_none() && self.below.is_none() {
            Truth::True
        } else {
            Truth::Unknown
        }
    }
}
