//! Status of the agent.

use std::time::Duration;

use bailiff_exposition::human::Span;
use bailiff_lease::legacy::Judgement;
use serde::{Deserialize, Serialize};

/// Granularity of reported times.
const STEP_SECONDS: u64 = 5;

/// Status of the pool and the agent.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct AgentStatus {
    /// Whether Redis responds.
    pub up: bool,
    /// Why it does not.
    pub error: Option<String>,
    /// Whether the agent releases leases.
    pub acts: bool,
    /// GPUs that were taken by clients of `GPU.py` or are lost, with the conclusion for each.
    pub judged: Vec<Judged>,
}

/// A GPU that was taken by a client of `GPU.py`, or that is lost: recorded neither as idle nor as taken.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Judged {
    /// Id in the pool.
    pub gpu: String,
    /// `keep`, `suspect`, `orphaned`, `lost`.
    pub judgement: String,
    /// Reason.
    pub why: String,
    /// Time of its release if nothing changes, in milliseconds since boot; `None` if it stays.
    pub freed_at_ms: Option<u64>,
}

impl Judged {
    /// Creates the entry; `now` is since boot.
    pub(super) fn new(gpu: &str, judgement: Judgement, now: Duration) -> Self {
        let (why, left) = match judgement {
            Judgement::Keep(why) => (why, None),
            Judgement::Suspect(why, left) => (why, left),
            Judgement::Orphaned => {
                ("the process that took it has exited, and the GPU was unused for long enough", None)
            }
            Judgement::Lost => {
                ("for too long, it was unused and was recorded neither as idle nor as taken", None)
            }
        };
        // Rounded, so that the entry does not change in every pass.
        let step = |at: Duration| at.as_secs().next_multiple_of(STEP_SECONDS) * 1000;
        Self {
            gpu: gpu.to_owned(),
            judgement: judgement.name().to_owned(),
            why: why.to_owned(),
            freed_at_ms: left.map(|left| step(now + left)),
        }
    }

    /// Describes the reason and the remaining time; `now` is since boot.
    pub fn describe(&self, now: Duration) -> String {
        let left = self.freed_at_ms.map(|at| Duration::from_millis(at).saturating_sub(now));
        match left {
            Some(left) => format!("{}; freed in {}", self.why, Span(left)),
            None if self.judgement == "suspect" => {
                format!("{}; kept, because legacy_idle_grace is not set", self.why)
            }
            None => self.why.clone(),
        }
    }
}

impl AgentStatus {
    /// Number of GPUs by conclusion.
    pub fn judged_as(&self, judgement: &str) -> usize {
        self.judged.iter().filter(|judged| judged.judgement == judgement).count()
    }
}
