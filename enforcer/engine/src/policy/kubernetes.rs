//! Parses `kubernetes`: how the API server is asked, for the step `evict_pod`.

use std::path::PathBuf;
use std::time::Duration;

use super::{keys, path};
use crate::yaml::{Faults, Fields, Node, expected, text, time};

/// How the API server is asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kubernetes {
    /// Socket of `bailiff-kubernetes`.
    pub socket: PathBuf,
    /// How long an eviction is tried again while a disruption budget does not permit it.
    pub pdb_max_wait: Duration,
    /// The annotation that delays an eviction, if there is one.
    pub keep: Option<Keep>,
}

/// An annotation that delays evictions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Keep {
    /// Key.
    pub annotation: String,
    /// Longest delay after the match.
    pub max: Duration,
}

/// Parses the section; `None` if it is invalid.
pub(super) fn read(node: &Node, faults: &mut Faults) -> Option<Kubernetes> {
    let fields = Fields::open(node, keys::table("kubernetes"), faults)?;
    let socket = PathBuf::from("/run/bailiff-kubernetes/api.sock");
    let socket = fields.or(("socket", socket), path::absolute, faults);
    let pdb_max_wait = fields.or(("pdb_max_wait", Duration::from_hours(1)), time, faults);
    let keep = keep(&fields, faults);
    Some(Kubernetes { socket: socket?, pdb_max_wait: pdb_max_wait?, keep: keep.ok()? })
}

/// The annotation is invalid, and an error was added.
struct Invalid;

/// Parses the annotation, if there is one.
fn keep(fields: &Fields<'_>, faults: &mut Faults) -> Result<Option<Keep>, Invalid> {
    let max = fields.given("keep_max", time, faults);
    let Some(entry) = fields.entry("keep_annotation") else {
        let Some(entry) = fields.entry("keep_max") else { return Ok(None) };
        let help = "add `keep_annotation`, or remove this key";
        faults.error(&entry.at, "`keep_max` has no effect without `keep_annotation`", help);
        return Err(Invalid);
    };
    let key = annotation(&entry.value, faults).ok_or(Invalid)?;
    if fields.entry("keep_max").is_none() {
        let help = "add `keep_max: 24h`: anyone who may change a pod can write its annotations";
        faults.error(&entry.at, "`keep_annotation` needs `keep_max`", help);
    }
    Ok(Some(Keep { annotation: key, max: max.ok_or(Invalid)? }))
}

fn annotation(node: &Node, faults: &mut Faults) -> Option<String> {
    let key = text(node, "the key of an annotation", faults)?;
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '-' | '_' | '.');
    let parts = key.split_once('/').filter(|(prefix, name)| {
        !prefix.is_empty() && (1..=63).contains(&name.len()) && key.len() <= 253 + 64
    });
    let Some((prefix, _)) = parts.filter(|(prefix, name)| prefix.chars().chain(name.chars()).all(is_plain))
    else {
        expected(node, "a key with a prefix of your own, such as `example.org/gpu-keep-until`", faults);
        return None;
    };
    let belongs_to = |domain: &str| prefix == domain || prefix.ends_with(&format!(".{domain}"));
    if belongs_to("kubernetes.io") || belongs_to("k8s.io") {
        let help = "use a domain of your own, such as `example.org/gpu-keep-until`";
        faults.error(&node.at, "this prefix is reserved for Kubernetes", help);
        return None;
    }
    Some(key.to_owned())
}
