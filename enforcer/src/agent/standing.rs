//! What the agent has to say.

use bailiff_lease::legacy::Judgement;
use serde::{Deserialize, Serialize};

use super::acts::{Act, Result};

/// Something that the agent says.
#[derive(Debug, Clone, PartialEq)]
pub enum News {
    /// How it stands, where that has changed.
    Standing(Option<Standing>),
    /// What it did.
    Act(Act, Result),
}

/// How the pool stands.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Standing {
    /// It answers.
    pub up: bool,
    /// Why it does not.
    pub trouble: Option<String>,
    /// It frees what the dead held.
    pub acts: bool,
    /// GPUs that clients of GPU.py have, or that are nowhere, by what was concluded.
    pub judged: Vec<Judged>,
}

/// A GPU that a client of GPU.py has, or that is nowhere.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Judged {
    /// Its id in the pool.
    pub gpu: String,
    /// `keep`, `suspect`, `orphaned`, `lost`.
    pub judgement: String,
    /// Why.
    pub why: String,
}

impl Judged {
    pub(super) fn new(gpu: &str, judgement: Judgement) -> Self {
        let why = match judgement {
            Judgement::Keep(why) | Judgement::Suspect(why) => why,
            Judgement::Orphaned => "all who may have taken it are dead, and nobody was on it for long enough",
            Judgement::Lost => "it was in no place, and nobody was on it, for long enough",
        };
        Self { gpu: gpu.to_owned(), judgement: judgement.name().to_owned(), why: why.to_owned() }
    }
}

impl Standing {
    /// How many GPUs were judged so.
    #[must_use]
    pub fn judged_as(&self, judgement: &str) -> usize {
        self.judged.iter().filter(|judged| judged.judgement == judgement).count()
    }
}
