//! What a rule may compare: one attribute a file, one line each in [`ALL`]. An attribute reads one value of
//! one target, and knows neither time, names, limits nor actions.

use crate::policy::Kind;
use crate::value::{Unit, Value};
use crate::view::{Target, View};

mod gpu_util;

/// Something that can be observed of a target.
#[derive(Debug)]
pub struct Attribute {
    /// Its key in a file.
    pub name: &'static str,
    /// The kinds of target that have it.
    pub of: &'static [Kind],
    /// What it is counted in.
    pub unit: Unit,
    /// What it means, for the schema and the docs.
    pub help: &'static str,
    /// Where it comes from, for `explain`.
    pub source: &'static str,
    /// Reads it; unknown whenever what it rests on was not observed.
    pub read: fn(&Target, &View) -> Value,
}

impl PartialEq for Attribute {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

/// Every attribute, in the order of the docs.
pub static ALL: &[&Attribute] = &[&gpu_util::GPU_UTIL];
