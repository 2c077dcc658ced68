//! Conditions on a target: a tree of comparisons and selectors with three truth values.

use std::fmt;

use globset::GlobMatcher;
use regex::Regex;

use crate::attributes::Attribute;
use crate::value::Test;

/// A condition, selection or exception; all have one grammar.
#[derive(Debug, Clone)]
pub enum Condition {
    /// A comparison of an attribute.
    Leaf(Leaf),
    /// A selector: one of the target's texts matches.
    Select(Selector),
    /// All conditions are true.
    All(Vec<Condition>),
    /// At least one condition is true.
    Any(Vec<Condition>),
    /// The condition is false.
    Not(Box<Condition>),
}

impl Condition {
    /// Returns all comparisons.
    pub(crate) fn leaves(&self) -> Vec<&Leaf> {
        match self {
            Self::Leaf(leaf) => vec![leaf],
            Self::Select(_) => Vec::new(),
            Self::All(conditions) | Self::Any(conditions) => {
                conditions.iter().flat_map(Self::leaves).collect()
            }
            Self::Not(condition) => condition.leaves(),
        }
    }

    /// Returns whether it compares an attribute.
    pub(super) fn compares(&self, attribute: &str) -> bool {
        self.leaves().iter().any(|leaf| leaf.attribute.name == attribute)
    }

    /// Returns all selectors.
    pub(crate) fn selectors(&self) -> Box<dyn Iterator<Item = &Selector> + '_> {
        match self {
            Self::Leaf(_) => Box::new(std::iter::empty()),
            Self::Select(selector) => Box::new(std::iter::once(selector)),
            Self::All(conditions) | Self::Any(conditions) => {
                Box::new(conditions.iter().flat_map(Self::selectors))
            }
            Self::Not(condition) => condition.selectors(),
        }
    }
}

/// Comparison of an attribute.
#[derive(Debug, Clone)]
pub struct Leaf {
    /// The attribute.
    pub attribute: &'static Attribute,
    /// The test of its value.
    pub test: Test,
    /// The comparison as written in the file, for `explain` and the audit log: `max 5%`.
    pub comparison: String,
}

/// Patterns for texts of a target; one match is enough.
#[derive(Debug, Clone)]
pub struct Selector {
    /// The texts that are compared.
    pub field: Field,
    /// The patterns.
    pub patterns: Vec<Pattern>,
}

bailiff_snapshot::label_values! {
/// Texts of a target that a selector can match. These comments are also the schema's descriptions.
pub enum Field {
    /// User names or uids of the owner.
    Users = "users",
    /// Names of the owner's groups.
    Groups = "groups",
    /// Name of the process (comm), at most 15 bytes.
    Comms = "comms",
    /// Absolute path of the executable. Unknown if it cannot be read.
    Exe = "exe",
    /// Command line, with secrets redacted. Unknown unless the exporter publishes it (--process.command).
    Cmdline = "cmdline",
    /// Path of the cgroup.
    Cgroups = "cgroups",
    /// Kubernetes namespaces.
    Namespaces = "namespaces",
    /// Names or UIDs of pods.
    Pods = "pods",
    /// Full container IDs.
    Containers = "containers",
    /// Slurm job IDs.
    SlurmJobs = "slurm_jobs",
    /// Index or UUID.
    Gpus = "gpus",
}
}

/// One pattern, as the file writes it.
#[derive(Debug, Clone)]
pub enum Pattern {
    /// An exact text.
    Text(String),
    /// A glob; `*` crosses slashes.
    Glob(GlobMatcher),
    /// A regular expression after `re:`, which must match the whole text.
    Regex(Regex),
}

impl Pattern {
    /// Returns whether a text matches.
    pub fn matches(&self, text: &str) -> bool {
        match self {
            Self::Text(wanted) => wanted == text,
            Self::Glob(glob) => glob.is_match(text),
            Self::Regex(regex) => regex.is_match(text),
        }
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => out.write_str(text),
            Self::Glob(glob) => out.write_str(glob.glob().glob()),
            Self::Regex(regex) => write!(out, "re:{}", written(regex)),
        }
    }
}

/// Returns the expression as written in the file, without the anchors.
fn written(regex: &Regex) -> &str {
    let anchored = regex.as_str();
    anchored.strip_prefix("^(?:").and_then(|rest| rest.strip_suffix(")$")).unwrap_or(anchored)
}
