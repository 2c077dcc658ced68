//! Step `exec`: runs a program, which receives the finding on standard input.

use serde_json::json;

use super::child;
use super::context::{ActionContext, done};
use super::result::ActionResult;
use bailiff_engine::Kind;
use bailiff_engine::guard::Refusal;
use bailiff_engine::verdict::Outcome;

/// Runs the program after the guard has checked the target. No data of processes is passed as an argument.
pub(super) fn run(context: &ActionContext<'_>, argv: &[String]) -> Result<ActionResult, Refusal> {
    let request = context.request;
    let group = match request.subject.kind {
        Kind::Process | Kind::Workload => Some(context.gather()?),
        Kind::Gpu | Kind::Lease | Kind::MpsServer => None,
    };
    let payload = json!({
        "id": request.id,
        "node": context.settings.node,
        "rule": &*request.rule,
        "step": request.action.name(),
        "policy": &*request.policy,
        "target": &*request.subject,
        "evidence": &request.evidence,
    });
    let input = crate::audit::ascii(&payload).map_err(|error| Refusal::refused(error.to_string()))?;
    Ok(context.carry_out(|_| {
        let (outcome, detail) = match child::run(argv, &input, context.settings.program) {
            Ok(()) => (Outcome::Done, String::new()),
            Err(error) => (Outcome::Failed, error.to_string()),
        };
        match group {
            Some(group) => done(outcome, detail, group),
            None => ActionResult::new(outcome, detail),
        }
    }))
}
