//! Attributes that rules may compare, listed in [`ALL`]: one table entry and one function each. The function
//! reads one value of one target; it does not depend on time, names, limits or actions.

use crate::Kind;
use crate::value::{Unit, Value};
use crate::view::{Target, View};

mod gpu;
mod lease;
mod mps;
pub(crate) mod process;

/// A value that can be observed of a target.
#[derive(Debug)]
pub struct Attribute {
    /// Key in a rules file.
    pub name: &'static str,
    /// Kinds of target that have it.
    pub of: &'static [Kind],
    /// Unit of its values.
    pub unit: Unit,
    /// Description for the schema and the docs.
    pub help: &'static str,
    /// Source of the value, for `explain`.
    pub source: &'static str,
    /// Reads the value; unknown if the data was not observed.
    pub read: fn(&Target, &View) -> Value,
}

impl Attribute {
    /// Returns the value of one target; unknown for a kind of target that does not have it.
    pub(crate) fn of_target(&self, target: &Target, view: &View) -> Value {
        if self.of.contains(&target.kind) {
            (self.read)(target, view)
        } else {
            Value::Unknown("not available for this kind of target")
        }
    }
}

impl PartialEq for Attribute {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

/// Every attribute, in the order of the docs.
pub static ALL: &[&Attribute] = &[
    &process::GPU_UTIL,
    &process::VRAM,
    &process::VRAM_SHARE,
    &process::CPU_UTIL,
    &process::IO_RATE,
    &process::AGE,
    &process::STATE,
    &process::ORPHANED,
    &process::LISTED_BUT_GONE,
    &process::GPU_COUNT,
    &process::CONTEXT,
    &process::HAS_LEASE,
    &process::VRAM_QUOTA_RATIO,
    &process::QUOTA_DENIED,
    &gpu::VRAM_FREE,
    &gpu::VRAM_USED,
    &gpu::VRAM_UNACCOUNTED,
    &gpu::VRAM_UNRELEASED,
    &gpu::UNLISTED_DEVICE_PROCESSES,
    &gpu::PROCESS_COUNT,
    &gpu::MIG,
    &lease::HOLDER_ALIVE,
    &lease::HEARTBEAT_AGE,
    &lease::ATTACHED_PROCESSES,
    &mps::MPS_CLIENTS,
    &mps::MPS_STATUS,
];

pub(crate) use process::runs;

/// Returns an observed number, or why it was not observed.
#[expect(clippy::cast_precision_loss, reason = "2^53 bytes are more than any GPU has")]
fn number(observed: Option<impl Into<i128>>, why: &'static str) -> Value {
    observed.map_or(Value::Unknown(why), |number| Value::Number(number.into() as f64))
}

#[expect(clippy::cast_precision_loss, reason = "milliseconds are far below 2^53")]
fn seconds(millis: u64) -> f64 {
    millis as f64 / 1000.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::Field;

    #[test]
    fn names_are_unique_and_every_attribute_says_what_it_is() {
        let mut names: Vec<&str> = ALL.iter().map(|attribute| attribute.name).collect();
        names.extend(Field::ALL.map(Field::name));
        names.extend(["use", "all", "any", "not", "until", "reason"]);
        let all = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), all);
        for attribute in ALL {
            assert!(!attribute.of.is_empty(), "{}", attribute.name);
            assert!(attribute.help.ends_with('.') && !attribute.source.is_empty(), "{}", attribute.name);
            if let Unit::Words(words) = attribute.unit {
                assert!((1..=32).contains(&words.len()), "{}: words are bits of a u32", attribute.name);
            }
        }
    }
}
