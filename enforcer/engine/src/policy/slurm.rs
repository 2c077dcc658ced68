//! Parses `slurm`: where Slurm is, for the step `cancel_job`.

use std::path::PathBuf;

use super::{keys, path};
use crate::yaml::{Faults, Fields, Node, expected, text, word};

/// Where Slurm is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Slurm {
    /// Slurm's name of this node; `None` for the host name up to the first dot.
    pub node: Option<String>,
    /// Path of slurm.conf.
    pub conf: PathBuf,
    /// Whether the job gets a comment before it is cancelled.
    pub comment: JobComment,
}

bailiff_snapshot::label_values! {
/// Which comment a job gets before it is cancelled.
pub enum JobComment {
    /// Text is appended to its `AdminComment`.
    Admin = "admin",
    /// None.
    None = "none",
}
}

impl Default for Slurm {
    fn default() -> Self {
        Self { node: None, conf: "/etc/slurm/slurm.conf".into(), comment: JobComment::Admin }
    }
}

/// Parses the section; `None` if it is invalid.
pub(super) fn read(node: &Node, faults: &mut Faults) -> Option<Slurm> {
    let usual = Slurm::default();
    let fields = Fields::open(node, keys::table("slurm"), faults)?;
    let name = fields.or(("node", "auto".to_owned()), node_name, faults);
    let conf = fields.or(("conf", usual.conf), path::absolute, faults);
    let comment = fields.or(
        ("comment", usual.comment),
        |node, faults| word(node, (&JobComment::ALL, JobComment::name), faults),
        faults,
    );
    Some(Slurm { node: Some(name?).filter(|name| name != "auto"), conf: conf?, comment: comment? })
}

fn node_name(node: &Node, faults: &mut Faults) -> Option<String> {
    let name = text(node, "Slurm's name of this node, or `auto`", faults)?;
    let is_name = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '-' | '_' | '.');
    if name.is_empty() || !name.chars().all(is_name) {
        expected(node, "Slurm's name of this node, such as `gpu01`, or `auto`", faults);
        return None;
    }
    Some(name.to_owned())
}
