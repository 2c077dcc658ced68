//! Step `stop_owner`: has the API server of Kubernetes stop the owner that would create a pod again, if all its pods are on this
//! node and match the rule.

use std::collections::BTreeMap;
use std::time::Duration;

use bailiff_engine::eviction;
use bailiff_engine::guard::Refusal;
use bailiff_engine::policy::Recreated;
use bailiff_engine::verdict::Outcome;
use bailiff_snapshot::pod_api::{Owner, PodRequest, Scale};

use super::ActionResult;
use super::context::ActionContext;
use super::pods::{Ended, PodAction, check, read, refused};
use super::request::ActionRequest;
use crate::clock;

/// For how long an owner and its pods must not change before it is stopped.
const UNCHANGED: Duration = Duration::from_secs(10);
/// What was read longer ago is not compared.
const OLDEST_LOOK: Duration = Duration::from_hours(1);
/// Maximum number of owners that are compared.
const MOST_LOOKS: usize = 1024;

pub(super) fn stop(context: &ActionContext<'_>) -> ActionResult {
    try_stop(context).unwrap_or_else(|ended| *ended)
}

fn try_stop(context: &ActionContext<'_>) -> Result<ActionResult, Ended> {
    let first = check(context, Recreated::Allow)?;
    let others = context.request.peers.iter().filter_map(|peer| peer.subject.pod.clone()).collect();
    let answer = read(context, &PodRequest::Owner { pod: first.name.clone(), others })?;
    let (owner, scale) =
        eviction::stoppable(&answer, &first.name).map_err(|refusal| refused(refusal, &answer))?;
    eviction::not_undone((&first.facts, owner), context.request.cooldown, &context.request.stops)?;
    let is_own = |request: &ActionRequest| {
        request.subject.pod.as_ref().is_some_and(|pod| scale.own.contains(pod.uid()))
    };
    let requests: Vec<ActionRequest> = context.request.of_peers().filter(is_own).collect();
    if scale.own.len() as u64 != scale.pods || requests.len() + 1 != scale.own.len() {
        let (name, own) = (&owner.object, scale.own.len());
        let why = format!("{name} has {} pods, of which {own} match on this node", scale.pods);
        return Err(Refusal { outcome: Outcome::OtherPods, why }.into());
    }
    context.looks.borrow_mut().compare(owner, scale)?;
    let contexts: Vec<ActionContext<'_>> = requests.iter().map(|request| context.about(request)).collect();
    let request = PodRequest::Stop { pod: first.name.clone(), owner: owner.clone(), dry_run: false };
    let mut pods = vec![first];
    for other in &contexts {
        pods.push(check(other, Recreated::Allow).map_err(of_other)?);
    }
    Ok(PodAction::new(context, pods, request)?.carry_out())
}

/// Owners that were read, by UID. Someone may have named the owner in a pod just now, and the owner's controller writes the number of
/// its pods a moment later. So what was read must not change for some time.
#[derive(Debug, Default)]
pub(super) struct OwnerLooks(BTreeMap<String, Look>);

/// What was read of an owner at first.
#[derive(Debug)]
struct Look {
    at: Duration,
    scale: Scale,
}

impl OwnerLooks {
    /// Compares an owner with what was read of it before.
    ///
    /// # Errors
    /// If it has changed, or was first read too short a time ago.
    fn compare(&mut self, owner: &Owner, scale: &Scale) -> Result<(), Ended> {
        let now = clock::since_boot();
        self.0.retain(|_, look| now.saturating_sub(look.at) < OLDEST_LOOK);
        if self.0.len() >= MOST_LOOKS {
            self.0.clear();
        }
        let look = self.0.entry(owner.object.uid().to_owned());
        let look = look.or_insert_with(|| Look { at: now, scale: scale.clone() });
        if look.scale != *scale {
            *look = Look { at: now, scale: scale.clone() };
        }
        let left = UNCHANGED.saturating_sub(now.saturating_sub(look.at));
        if left.is_zero() {
            return Ok(());
        }
        let why = format!("{} is read again, to see whether its pods change", owner.object);
        let result = ActionResult::new(Outcome::OtherPods, why);
        Err(Box::new(ActionResult { retry_after: Some(left), ..result }))
    }
}

/// Returns the result if another pod of the owner must not be ended.
fn of_other(ended: Ended) -> Ended {
    let outcome = if ended.outcome.may_be_tried_again() { ended.outcome } else { Outcome::OtherPods };
    let detail = format!("another pod of the owner: {}", ended.detail);
    Box::new(ActionResult { outcome, detail, ..*ended })
}
