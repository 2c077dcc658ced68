//! Whether a pod may be evicted or its owner stopped, and what the API server's answers mean. Pure: the requests are made elsewhere.

use std::collections::BTreeMap;
use std::time::{Duration, UNIX_EPOCH};

use bailiff_snapshot::pod_api::{Deletion, Owner, OwnerKind, PodAnswer, PodFacts, Scale};
use bailiff_snapshot::pod_resources::ObjectName;

use crate::guard::Refusal;
use crate::policy::{Keep, Recreated};
use crate::verdict::Outcome;

/// Namespaces of the system.
const SYSTEM: [&str; 3] = ["kube-system", "kube-public", "kube-node-lease"];
/// Priority classes of the system begin with this.
const SYSTEM_CLASS: &str = "system-";
/// Time that processes and memory may take longer than the pod's own grace period, of which at most an hour counts.
pub const MARGIN: Duration = Duration::from_secs(30);
const LONGEST_GRACE: Duration = Duration::from_hours(1);

/// Returns the pod of an answer to a `get`.
///
/// # Errors
/// If the API server did not return this pod.
pub fn found<'a>(answer: &'a PodAnswer, pod: &ObjectName) -> Result<&'a PodFacts, Refusal> {
    match (answer.status, &answer.pod) {
        (Some(200), Some(facts)) if facts.uid == pod.uid() => Ok(facts),
        (Some(200), Some(facts)) => {
            let why = format!("changed: pod {pod} now has the UID {}", facts.uid.escape_default());
            Err(Refusal { outcome: Outcome::IdentityChanged, why })
        }
        (Some(200), None) => Err(Refusal::refused(format!("pod {pod} cannot be read: {}", answer.message))),
        _ => Err(refused(answer).unwrap_or_else(|| no_answer(&answer.message))),
    }
}

/// Decides whether a pod may be evicted. The time is since the Unix epoch.
///
/// # Errors
/// With the reason why not.
pub fn decide(
    facts: &PodFacts,
    pod: &ObjectName,
    (recreated, now): (Recreated, Duration),
) -> Result<(), Refusal> {
    let refusal = |outcome, why: String| Err(Refusal { outcome, why: format!("pod {pod}: {why}") });
    if !facts.on_this_node {
        return refusal(Outcome::IdentityChanged, "changed: it runs on another node".to_owned());
    }
    if let Some(deletion) = &facts.deletion {
        let (outcome, why) = if must_have_ended(deletion).is_some_and(|end| end < now) {
            (Outcome::NotTerminated, "it was deleted, but its processes still run")
        } else {
            (Outcome::Terminating, "it is being deleted")
        };
        return refusal(outcome, why.to_owned());
    }
    if facts.phase != "Running" {
        let why = format!("its phase is {}, not Running", facts.phase.escape_default());
        return refusal(Outcome::Refused, why);
    }
    let class = facts.priority_class.as_deref().filter(|class| class.starts_with(SYSTEM_CLASS));
    if let Some(class) = class {
        return refusal(Outcome::NotEvictable, format!("its priority class is {}", class.escape_default()));
    }
    if SYSTEM.contains(&pod.namespace()) || facts.in_own_namespace {
        let why = "its namespace belongs to the system or to GPU Bailiff";
        return refusal(Outcome::NotEvictable, why.to_owned());
    }
    let Some(owner) = &facts.owner else { return Ok(()) };
    let why = match owner.known() {
        Some(OwnerKind::DaemonSet) => "it belongs to a DaemonSet, which creates it again on this node",
        Some(OwnerKind::Node) => "it is a static pod, which the API server cannot evict",
        _ if recreated == Recreated::Allow => return Ok(()),
        Some(_) => "its owner creates it again, and the step has `recreated: skip`",
        None => "its owner may create it again, and the step has `recreated: skip`",
    };
    refusal(Outcome::NotEvictable, format!("{why} ({})", owner.escape_default()))
}

/// Returns the owner of an answer to a request for it, if it can be stopped.
///
/// # Errors
/// With the reason why not.
pub fn stoppable<'a>(answer: &'a PodAnswer, pod: &ObjectName) -> Result<(&'a Owner, &'a Scale), Refusal> {
    if answer.status != Some(200) {
        return Err(refused(answer).unwrap_or_else(|| no_answer(&answer.message)));
    }
    let refusal = |outcome, why: &str| Err(Refusal { outcome, why: format!("pod {pod}: {why}") });
    let Some(owner) = &answer.owner else {
        return if answer.message.is_empty() {
            refusal(Outcome::NotStoppable, "it has no owner")
        } else {
            // The list of pods, whose authors choose its size, or an object that its author makes too long.
            refusal(Outcome::OtherPods, &answer.message)
        };
    };
    let kind = owner.kind.escape_default();
    match &owner.scale {
        None => refusal(Outcome::NotStoppable, &format!("its owner cannot be stopped ({kind})")),
        Some(scale) if !scale.is_its_own => {
            refusal(Outcome::NotStoppable, &format!("it names an owner that does not select it ({kind})"))
        }
        Some(scale) if scale.is_stopped => {
            refusal(Outcome::Terminating, &format!("its owner is stopped already ({kind})"))
        }
        Some(scale) => Ok((owner, scale)),
    }
}

/// Checks that the owner was not stopped shortly before it created the pod. Times are since the Unix epoch.
///
/// # Errors
/// If it was: something has started it again, and would do so once more.
pub fn not_undone(
    (facts, owner): (&PodFacts, &Owner),
    cooldown: Duration,
    stops: &BTreeMap<String, Duration>,
) -> Result<(), Refusal> {
    let Some(stopped) = stops.get(owner.object.uid()) else { return Ok(()) };
    // The API server has times in whole seconds.
    let stopped = Duration::from_secs(stopped.as_secs());
    let created = humantime::parse_rfc3339_weak(&facts.created).ok();
    let created = created.and_then(|at| at.duration_since(UNIX_EPOCH).ok());
    let is_undone = created.is_none_or(|at| (stopped..stopped.saturating_add(cooldown)).contains(&at));
    let why = || {
        format!(
            "{} was stopped, and has created the pod within {} after that",
            owner.object,
            humantime::format_duration(cooldown)
        )
    };
    if is_undone { Err(Refusal { outcome: Outcome::Undone, why: why() }) } else { Ok(()) }
}

/// Returns until when the processes of a deleted pod must have ended, since the Unix epoch.
fn must_have_ended(deletion: &Deletion) -> Option<Duration> {
    let until = humantime::parse_rfc3339_weak(&deletion.until).ok()?.duration_since(UNIX_EPOCH).ok()?;
    let grace = Duration::from_secs(deletion.grace_seconds);
    Some(until.saturating_sub(grace) + grace.min(LONGEST_GRACE) + MARGIN)
}

/// Returns for how long the pod's annotation delays its eviction. Anyone who may change the pod can write it, so it delays no
/// longer than the administrator permits after the match, and an invalid value counts as that time. Times are since the Unix
/// epoch.
pub fn kept_for(facts: &PodFacts, keep: &Keep, (matched, now): (Duration, Duration)) -> Option<Duration> {
    let value = facts.annotation.as_deref()?;
    let longest = matched.saturating_add(keep.max);
    let time = humantime::parse_rfc3339_weak(value).ok().and_then(|at| at.duration_since(UNIX_EPOCH).ok());
    time.map_or(longest, |at| at.min(longest)).checked_sub(now).filter(|left| !left.is_zero())
}

/// Returns why the API server did not accept a request; `Ok` if it did.
///
/// # Errors
/// With the reason. [`Outcome::Unknown`] means that it is unknown whether the request was accepted.
pub fn accepted(answer: &PodAnswer) -> Result<(), Refusal> {
    match answer.status {
        Some(200 | 201) => Ok(()),
        _ => Err(refused(answer).unwrap_or_else(|| Refusal {
            outcome: Outcome::Unknown,
            why: format!("no answer from the API server: {}", answer.message),
        })),
    }
}

/// Returns what a status other than success means; `None` if the request may have had an effect nevertheless.
fn refused(answer: &PodAnswer) -> Option<Refusal> {
    let outcome = match answer.status? {
        404 => Outcome::Gone,
        409 => Outcome::IdentityChanged,
        429 if answer.by_budget => Outcome::BlockedByPdb,
        // The token is read again for each request.
        429 | 401 => Outcome::NoAnswer,
        403 => Outcome::Forbidden,
        400 | 405 | 415 | 422 => Outcome::Invalid,
        500 => Outcome::ApiError,
        _ => return None,
    };
    let status = answer.status.unwrap_or_default();
    Some(Refusal { outcome, why: format!("the API server answered {status}: {}", answer.message) })
}

/// Returns the refusal for a `get` without an answer.
pub fn no_answer(why: &str) -> Refusal {
    Refusal { outcome: Outcome::NoAnswer, why: format!("no answer from the API server: {why}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Duration = Duration::from_secs(1_700_000_000);
    const UID: &str = "0b1c2d3e-0000-4000-8000-000000000001";

    fn pod(namespace: &str) -> ObjectName {
        ObjectName::new(namespace, "web", UID).unwrap()
    }

    fn facts() -> PodFacts {
        PodFacts {
            uid: UID.to_owned(),
            on_this_node: true,
            phase: "Running".to_owned(),
            grace_seconds: 30,
            ..PodFacts::default()
        }
    }

    fn outcome<T>(result: Result<T, Refusal>) -> Option<Outcome> {
        result.err().map(|refusal| refusal.outcome)
    }

    #[test]
    fn every_row_of_the_table_of_owners() {
        let (skip, never) = ([Some(Outcome::NotEvictable), None], [Some(Outcome::NotEvictable); 2]);
        for (owner, expected) in [
            (None, [None, None]),
            (Some("Job"), skip),
            (Some("ReplicaSet"), skip),
            (Some("StatefulSet"), skip),
            (Some("RayCluster"), skip),
            (Some("DaemonSet"), never),
            (Some("Node"), never),
        ] {
            let facts = PodFacts { owner: owner.map(Into::into), ..facts() };
            let found =
                Recreated::ALL.map(|recreated| outcome(decide(&facts, &pod("team-a"), (recreated, NOW))));
            assert_eq!(found, expected, "{owner:?}");
        }
    }

    #[test]
    fn pod_is_evicted_only_as_it_was_evaluated() {
        let with = |change: fn(&mut PodFacts)| {
            let mut changed = facts();
            change(&mut changed);
            outcome(decide(&changed, &pod("team-a"), (Recreated::Skip, NOW)))
        };
        assert_eq!(with(|_| {}), None);
        assert_eq!(with(|facts| facts.on_this_node = false), Some(Outcome::IdentityChanged));
        for phase in ["Pending", "Succeeded", "Failed", "Unknown", ""] {
            let facts = PodFacts { phase: phase.to_owned(), ..facts() };
            let found = outcome(decide(&facts, &pod("team-a"), (Recreated::Skip, NOW)));
            assert_eq!(found, Some(Outcome::Refused), "{phase}");
        }
        for class in ["system-node-critical", "system-cluster-critical"] {
            let facts = PodFacts { priority_class: Some(class.to_owned()), ..facts() };
            let found = outcome(decide(&facts, &pod("team-a"), (Recreated::Allow, NOW)));
            assert_eq!(found, Some(Outcome::NotEvictable), "{class}");
        }
        assert_eq!(with(|facts| facts.in_own_namespace = true), Some(Outcome::NotEvictable));
        for namespace in SYSTEM {
            let found = outcome(decide(&facts(), &pod(namespace), (Recreated::Allow, NOW)));
            assert_eq!(found, Some(Outcome::NotEvictable), "{namespace}");
        }
    }

    #[test]
    fn deleted_pod_must_end_after_its_grace_period() {
        for (grace_seconds, deleted_ago, expected) in [
            (30, 10, Outcome::Terminating),
            (30, 59, Outcome::Terminating),
            (30, 61, Outcome::NotTerminated),
            (0, 31, Outcome::NotTerminated),
            (3600, 3000, Outcome::Terminating),
            // Of a longer one, only an hour counts.
            (1_000_000_000, 3629, Outcome::Terminating),
            (1_000_000_000, 3631, Outcome::NotTerminated),
        ] {
            let until =
                UNIX_EPOCH + NOW + Duration::from_secs(grace_seconds) - Duration::from_secs(deleted_ago);
            let until = humantime::format_rfc3339(until).to_string();
            let facts = PodFacts { deletion: Some(Deletion { until, grace_seconds }), ..facts() };
            let found = outcome(decide(&facts, &pod("team-a"), (Recreated::Skip, NOW)));
            assert_eq!(found, Some(expected), "{grace_seconds} {deleted_ago}");
        }
        let deletion = Some(Deletion { until: "soon".to_owned(), grace_seconds: u64::MAX });
        let found = decide(&PodFacts { deletion, ..facts() }, &pod("team-a"), (Recreated::Skip, NOW));
        assert_eq!(outcome(found), Some(Outcome::Terminating));
    }

    #[test]
    fn annotation_delays_but_not_for_ever() {
        let keep = Keep { annotation: "example.org/keep".to_owned(), max: Duration::from_hours(24) };
        let hours = |hours: u64| Duration::from_hours(480_000 + hours);
        let at = |hours: u64| humantime::format_rfc3339(UNIX_EPOCH + Duration::from_hours(480_000 + hours));
        for (value, now, expected) in [
            (None, 1, None),
            (Some(at(3).to_string()), 1, Some(2)),
            (Some(at(3).to_string()), 3, None),
            (Some(at(1000).to_string()), 1, Some(23)),
            (Some(at(1000).to_string()), 24, None),
            (Some("for ever".to_owned()), 1, Some(23)),
            (Some(String::new()), 30, None),
            (Some("1960-01-01T00:00:00Z".to_owned()), 1, Some(23)),
        ] {
            let facts = PodFacts { annotation: value.clone(), ..facts() };
            let left = kept_for(&facts, &keep, (hours(0), hours(now)));
            assert_eq!(left, expected.map(Duration::from_hours), "{value:?} {now}");
        }
    }

    #[test]
    fn every_row_of_the_table_of_answers() {
        let answer = |status| PodAnswer { status, message: "text".to_owned(), ..PodAnswer::default() };
        for (status, to_get, to_evict) in [
            (Some(200), Some(Outcome::Refused), None),
            (Some(201), Some(Outcome::NoAnswer), None),
            (Some(404), Some(Outcome::Gone), Some(Outcome::Gone)),
            (Some(409), Some(Outcome::IdentityChanged), Some(Outcome::IdentityChanged)),
            (Some(429), Some(Outcome::NoAnswer), Some(Outcome::NoAnswer)),
            (Some(401), Some(Outcome::NoAnswer), Some(Outcome::NoAnswer)),
            (Some(403), Some(Outcome::Forbidden), Some(Outcome::Forbidden)),
            (Some(400), Some(Outcome::Invalid), Some(Outcome::Invalid)),
            (Some(422), Some(Outcome::Invalid), Some(Outcome::Invalid)),
            (Some(500), Some(Outcome::ApiError), Some(Outcome::ApiError)),
            (Some(502), Some(Outcome::NoAnswer), Some(Outcome::Unknown)),
            (Some(503), Some(Outcome::NoAnswer), Some(Outcome::Unknown)),
            (Some(504), Some(Outcome::NoAnswer), Some(Outcome::Unknown)),
            (Some(302), Some(Outcome::NoAnswer), Some(Outcome::Unknown)),
            (None, Some(Outcome::NoAnswer), Some(Outcome::Unknown)),
        ] {
            let answer = answer(status);
            assert_eq!(outcome(found(&answer, &pod("team-a"))), to_get, "get {status:?}");
            assert_eq!(outcome(accepted(&answer)), to_evict, "evict {status:?}");
            let to_read_owner = if status == Some(200) { Some(Outcome::OtherPods) } else { to_get };
            assert_eq!(outcome(stoppable(&answer, &pod("team-a"))), to_read_owner, "owner {status:?}");
        }
        let budget = PodAnswer { by_budget: true, ..answer(Some(429)) };
        assert_eq!(outcome(accepted(&budget)), Some(Outcome::BlockedByPdb));
    }

    #[test]
    fn pod_that_a_stopped_owner_has_created_soon_is_an_undone_stop() {
        let object = pod("team-a");
        let owner = Owner { kind: OwnerKind::Deployment.into(), object: object.clone(), scale: None };
        let stopped = Duration::from_millis(1_700_000_000_900);
        let stops = BTreeMap::from([(UID.to_owned(), stopped)]);
        for (created, expected) in [
            ("2023-11-14T22:13:19Z", None),
            ("2023-11-14T22:13:20Z", Some(Outcome::Undone)),
            ("2023-11-14T22:43:19Z", Some(Outcome::Undone)),
            ("2023-11-14T22:43:20Z", None),
            ("", Some(Outcome::Undone)),
        ] {
            let facts = PodFacts { created: created.to_owned(), ..facts() };
            let found = not_undone((&facts, &owner), Duration::from_mins(30), &stops);
            assert_eq!(outcome(found), expected, "{created}");
            assert_eq!(
                outcome(not_undone((&facts, &owner), Duration::from_mins(30), &BTreeMap::new())),
                None
            );
        }
    }

    #[test]
    fn pod_with_another_uid_is_another_pod() {
        let answer = |facts| PodAnswer { status: Some(200), pod: Some(facts), ..PodAnswer::default() };
        assert_eq!(outcome(found(&answer(facts()), &pod("team-a"))), None);
        let other = PodFacts { uid: UID.replace('1', "2"), ..facts() };
        assert_eq!(outcome(found(&answer(other), &pod("team-a"))), Some(Outcome::IdentityChanged));
    }
}
