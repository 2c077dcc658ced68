//! A program as a step of a rule: it is told on its standard input what was found.

use serde_json::json;

use super::child;
use super::ending::Ending;
use super::worker::{Work, done};
use crate::guard::Refusal;
use crate::policy::Kind;
use crate::verdict::Outcome;

/// A target that has processes is looked at by the guard first; nothing of theirs is in the program's arguments.
pub(super) fn run(work: &Work<'_>, argv: &[String]) -> Result<Ending, Refusal> {
    let deed = work.deed;
    let group = match deed.subject.kind {
        Kind::Process | Kind::Workload => Some(work.gather()?),
        Kind::Gpu | Kind::Lease | Kind::MpsServer => None,
    };
    let told = json!({
        "id": deed.id,
        "node": work.settings.node,
        "rule": &*deed.rule,
        "step": deed.action.name(),
        "policy": &*deed.policy,
        "target": &*deed.subject,
        "evidence": &deed.evidence,
    });
    let input = crate::audit::ascii(&told).map_err(|error| Refusal::refused(error.to_string()))?;
    Ok(work.carry_out(|_| {
        let (outcome, detail) = match child::run(argv, &input, work.settings.program) {
            Ok(()) => (Outcome::Done, String::new()),
            Err(error) => (Outcome::Failed, error.to_string()),
        };
        match group {
            Some(group) => done(outcome, detail, group),
            None => Ending::new(outcome, detail),
        }
    }))
}
