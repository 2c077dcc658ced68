//! Step `evict_pod`: has the API server of Kubernetes evict a pod.

use bailiff_engine::policy::Recreated;
use bailiff_snapshot::pod_api::PodRequest;

use super::ActionResult;
use super::context::ActionContext;
use super::pods::{Ended, PodAction, check};

pub(super) fn evict(context: &ActionContext<'_>, recreated: Recreated) -> ActionResult {
    try_evict(context, recreated).unwrap_or_else(|ended| *ended)
}

fn try_evict(context: &ActionContext<'_>, recreated: Recreated) -> Result<ActionResult, Ended> {
    let pod = check(context, recreated)?;
    let request = PodRequest::Evict { pod: pod.name.clone(), dry_run: false, until_ms: 0 };
    Ok(PodAction::new(context, vec![pod], request)?.carry_out())
}
