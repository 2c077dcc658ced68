//! Step `stop_owner`: has the API server of Kubernetes stop the owner that would create a pod again, if all its pods are on this
//! node and match the rule.

use bailiff_engine::eviction;
use bailiff_engine::guard::Refusal;
use bailiff_engine::policy::Recreated;
use bailiff_engine::verdict::Outcome;
use bailiff_snapshot::pod_api::PodRequest;

use super::ActionResult;
use super::context::ActionContext;
use super::pods::{Ended, PodAction, check, read, refused};
use super::request::ActionRequest;

pub(super) fn stop(context: &ActionContext<'_>) -> ActionResult {
    try_stop(context).unwrap_or_else(|ended| *ended)
}

fn try_stop(context: &ActionContext<'_>) -> Result<ActionResult, Ended> {
    let first = check(context, Recreated::Allow)?;
    let answer = read(context, &PodRequest::Owner { pod: first.name.clone() })?;
    let (owner, scale) =
        eviction::stoppable(&answer, &first.name).map_err(|refusal| refused(refusal, &answer))?;
    eviction::not_undone((&first.facts, owner), context.request.cooldown, &context.request.stops)?;
    let left = context.looks.borrow_mut().compare(owner, scale);
    let is_own = |request: &ActionRequest| {
        request.subject.pod.as_ref().is_some_and(|pod| scale.own.contains(pod.uid()))
    };
    let requests: Vec<ActionRequest> = context.request.of_peers().filter(is_own).collect();
    if scale.own.len() as u64 != scale.pods || requests.len() + 1 != scale.own.len() {
        let (name, all) = (&owner.object, scale.pods.max(scale.own.len() as u64));
        let why = format!("{name} has {all} pods, of which {} match on this node", requests.len() + 1);
        return Err(Refusal { outcome: Outcome::OtherPods, why }.into());
    }
    if let Some(left) = left {
        let why = format!("{} is read again, to see whether its pods change", owner.object);
        let result = ActionResult::new(Outcome::OtherPods, why);
        return Err(Box::new(ActionResult { retry_after: Some(left), ..result }));
    }
    let contexts: Vec<ActionContext<'_>> = requests.iter().map(|request| context.about(request)).collect();
    let request =
        PodRequest::Stop { pod: first.name.clone(), owner: owner.clone(), dry_run: false, until_ms: 0 };
    let mut pods = vec![first];
    for other in &contexts {
        pods.push(check(other, Recreated::Allow).map_err(of_other)?);
    }
    Ok(PodAction::new(context, pods, request)?.carry_out())
}

/// Returns the result if another pod of the owner must not be ended.
fn of_other(ended: Ended) -> Ended {
    let outcome = if ended.outcome.may_be_tried_again() { ended.outcome } else { Outcome::OtherPods };
    let detail = format!("another pod of the owner: {}", ended.detail);
    Box::new(ActionResult { outcome, detail, ..*ended })
}
