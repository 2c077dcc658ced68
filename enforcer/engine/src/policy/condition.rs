//! What can be asked of a target: a tree of comparisons and selectors, with three truth values.

use std::fmt;

use globset::GlobMatcher;
use regex::Regex;

use crate::attributes::Attribute;
use crate::value::Test;

/// A condition, a selection or an exception: all have one grammar.
#[derive(Debug, Clone)]
pub enum Condition {
    /// An attribute is as wanted.
    Leaf(Leaf),
    /// One of the texts that name the target matches.
    Select(Selector),
    /// All hold.
    All(Vec<Condition>),
    /// One holds.
    Any(Vec<Condition>),
    /// It does not hold.
    Not(Box<Condition>),
}

impl Condition {
    /// All comparisons in it.
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

    /// Every selector in it.
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

/// A comparison.
#[derive(Debug, Clone)]
pub struct Leaf {
    /// Of what.
    pub attribute: &'static Attribute,
    /// With what.
    pub test: Test,
    /// The comparison as the file writes it, for `explain` and the audit log: `max 5%`.
    pub comparison: String,
}

/// Texts that name a target, and patterns for them; one match is enough.
#[derive(Debug, Clone)]
pub struct Selector {
    /// Which texts.
    pub field: Field,
    /// What they should be.
    pub patterns: Vec<Pattern>,
}

/// What a selector matches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Field {
    /// `users`: name or number of the owner.
    Users,
    /// `groups`: groups of the owner.
    Groups,
    /// `comms`: the process's name, at most 15 bytes.
    Comms,
    /// `exe`: the path of the program.
    Exe,
    /// `cmdline`: the command line, redacted; only if the exporter publishes it.
    Cmdline,
    /// `cgroups`: the path.
    Cgroups,
    /// `namespaces`: of Kubernetes.
    Namespaces,
    /// `pods`: name or UID.
    Pods,
    /// `containers`: id, in full.
    Containers,
    /// `slurm_jobs`.
    SlurmJobs,
    /// `gpus`: index or UUID.
    Gpus,
}

impl Field {
    /// All of them.
    pub const ALL: [Self; 11] = [
        Self::Users,
        Self::Groups,
        Self::Comms,
        Self::Exe,
        Self::Cmdline,
        Self::Cgroups,
        Self::Namespaces,
        Self::Pods,
        Self::Containers,
        Self::SlurmJobs,
        Self::Gpus,
    ];

    /// Its key in a file.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Users => "users",
            Self::Groups => "groups",
            Self::Comms => "comms",
            Self::Exe => "exe",
            Self::Cmdline => "cmdline",
            Self::Cgroups => "cgroups",
            Self::Namespaces => "namespaces",
            Self::Pods => "pods",
            Self::Containers => "containers",
            Self::SlurmJobs => "slurm_jobs",
            Self::Gpus => "gpus",
        }
    }
}

impl Field {
    /// What it is compared with, for the schema and the docs.
    #[must_use]
    pub const fn help(self) -> &'static str {
        match self {
            Self::Users => "Names or numbers of owners.",
            Self::Groups => "Groups of the owner.",
            Self::Comms => "The process's name, at most 15 bytes.",
            Self::Exe => "The full path of the program, where it may be read.",
            Self::Cmdline => {
                "The command line, redacted; only if the exporter publishes it (--process.command)."
            }
            Self::Cgroups => "The path of the cgroup.",
            Self::Namespaces => "Namespaces of Kubernetes.",
            Self::Pods => "Names or UIDs of pods.",
            Self::Containers => "Ids of containers, in full.",
            Self::SlurmJobs => "Numbers of Slurm's jobs.",
            Self::Gpus => "Index or UUID.",
        }
    }
}

/// One pattern, as the file writes it.
#[derive(Debug, Clone)]
pub enum Pattern {
    /// This text and no other.
    Text(String),
    /// A glob; `*` crosses slashes.
    Glob(GlobMatcher),
    /// After `re:`; it must match the whole text.
    Regex(Regex),
}

impl Pattern {
    /// Whether the text is one that is meant.
    #[must_use]
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

/// Without what makes it match the whole text.
fn written(regex: &Regex) -> &str {
    let anchored = regex.as_str();
    anchored.strip_prefix("^(?:").and_then(|rest| rest.strip_suffix(")$")).unwrap_or(anchored)
}
