//! What the agent has to say.

use std::time::Duration;

use bailiff_exposition::human::Span;
use bailiff_lease::legacy::Judgement;
use serde::{Deserialize, Serialize};

/// Granularity of reported times.
const STEP_SECONDS: u64 = 5;

/// How the pool stands.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct AgentStatus {
    /// It answers.
    pub up: bool,
    /// Why it does not.
    pub error: Option<String>,
    /// It frees the leases of ended holders.
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
    /// When it is freed if nothing changes, in milliseconds since boot; none if it is not.
    #[serde(default)]
    pub freed_at_ms: Option<u64>,
}

impl Judged {
    /// `now` is since boot.
    pub(super) fn new(gpu: &str, judgement: Judgement, now: Duration) -> Self {
        let (why, left) = match judgement {
            Judgement::Keep(why) => (why, None),
            Judgement::Suspect(why, left) => (why, left),
            Judgement::Orphaned => {
                ("the process that took it has ended, and no process was on it for long enough", None)
            }
            Judgement::Lost => ("it was in no place, and no process was on it, for long enough", None),
        };
        // In steps, so that it does not change with every pass.
        let step = |at: Duration| at.as_secs().next_multiple_of(STEP_SECONDS) * 1000;
        Self {
            gpu: gpu.to_owned(),
            judgement: judgement.name().to_owned(),
            why: why.to_owned(),
            freed_at_ms: left.map(|left| step(now + left)),
        }
    }

    /// Why, and when it is freed; `now` is since boot.
    #[must_use]
    pub fn describe(&self, now: Duration) -> String {
        let left = self.freed_at_ms.map(|at| Duration::from_millis(at).saturating_sub(now));
        match left {
            Some(left) => format!("{}; freed in {}", self.why, Span(left)),
            None if self.judgement == "suspect" => {
                format!("{}; kept: leases has no legacy_idle_grace", self.why)
            }
            None => self.why.clone(),
        }
    }
}

impl AgentStatus {
    /// How many GPUs were evaluated so.
    #[must_use]
    pub fn judged_as(&self, judgement: &str) -> usize {
        self.judged.iter().filter(|judged| judged.judgement == judgement).count()
    }
}
