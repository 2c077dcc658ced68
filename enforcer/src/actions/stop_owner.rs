//! Step `stop_owner`: has the API server of Kubernetes stop the owner that would create a pod again, if all its pods are on this
//! node and match the rule.

use bailiff_engine::eviction;
use bailiff_engine::guard::Refusal;
use bailiff_engine::policy::Recreated;
use bailiff_engine::verdict::Outcome;
use bailiff_snapshot::pod_api::{Owner, PodAnswer, PodRequest};
use bailiff_snapshot::pod_resources::ObjectName;

use super::ActionResult;
use super::context::ActionContext;
use super::pods::{Ended, PodAction, check, query, refused, settings};
use super::request::ActionRequest;

pub(super) fn stop(context: &ActionContext<'_>) -> ActionResult {
    try_stop(context).unwrap_or_else(|ended| *ended)
}

fn try_stop(context: &ActionContext<'_>) -> Result<ActionResult, Ended> {
    let first = check(context, Recreated::Allow)?;
    let answer = read_owner(context, &first.name)?;
    let (owner, scale) =
        eviction::stoppable(&answer, &first.name).map_err(|refusal| refused(refusal, &answer))?;
    eviction::not_undone((&first.facts, owner), context.request.cooldown, &context.request.stops)?;
    let requests = others(context, owner)?;
    if requests.len() as u64 + 1 != scale.pods {
        let why = format!(
            "{} has {} pods, of which {} match on this node",
            owner.object,
            scale.pods,
            requests.len() + 1
        );
        return Err(Refusal { outcome: Outcome::OtherPods, why }.into());
    }
    let contexts: Vec<ActionContext<'_>> = requests.iter().map(|request| context.about(request)).collect();
    let request = PodRequest::Stop { pod: first.name.clone(), owner: owner.clone(), dry_run: false };
    let mut pods = vec![first];
    for other in &contexts {
        pods.push(check(other, Recreated::Allow).map_err(of_other)?);
    }
    Ok(PodAction::new(context, pods, request)?.carry_out())
}

fn read_owner(context: &ActionContext<'_>, pod: &ObjectName) -> Result<PodAnswer, Refusal> {
    let answer = query(&settings(context)?.socket, &PodRequest::Owner { pod: pod.clone() });
    answer.map_err(|why| eviction::no_answer(&why))
}

/// Returns the requests about those other pods that have this owner.
fn others(context: &ActionContext<'_>, owner: &Owner) -> Result<Vec<ActionRequest>, Ended> {
    let mut found = Vec::new();
    for request in context.request.of_peers() {
        let Some(pod) = &request.subject.pod else { continue };
        let answer = read_owner(context, pod)?;
        match eviction::stoppable(&answer, pod) {
            Ok((other, _)) if other.object == owner.object && other.kind == owner.kind => found.push(request),
            Err(refusal) if refusal.outcome == Outcome::NoAnswer => return Err(refused(refusal, &answer)),
            // It has another owner, or none.
            Ok(_) | Err(_) => {}
        }
    }
    Ok(found)
}

/// Returns the result if another pod of the owner must not be ended.
fn of_other(ended: Ended) -> Ended {
    let outcome = if ended.outcome.may_be_tried_again() { ended.outcome } else { Outcome::OtherPods };
    let detail = format!("another pod of the owner: {}", ended.detail);
    Box::new(ActionResult { outcome, detail, ..*ended })
}
