//! Waits before an action that asks a service is tried again: Slurm for `cancel_job`, the API server of Kubernetes for
//! `evict_pod` and `stop_owner`.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::policy::Action;
use crate::verdict::{ActionReport, Hold, Outcome, Subject};
use crate::view::TargetId;

/// To what a wait applies.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) enum Scope {
    /// All jobs, because they have one slurmctld.
    Slurm,
    /// All pods.
    Kubernetes,
    /// One pod.
    Pod(TargetId),
}

/// A wait. Times are since boot.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
struct Wait {
    length: Duration,
    until: Duration,
    /// When the first of the attempts in a row was made.
    since: Duration,
    hold: Option<Hold>,
}

/// All waits.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(from = "Vec<(Scope, Wait)>", into = "Vec<(Scope, Wait)>")]
pub(crate) struct BackOffs(BTreeMap<Scope, Wait>);

impl From<Vec<(Scope, Wait)>> for BackOffs {
    fn from(waits: Vec<(Scope, Wait)>) -> Self {
        Self(waits.into_iter().collect())
    }
}

impl From<BackOffs> for Vec<(Scope, Wait)> {
    fn from(waits: BackOffs) -> Self {
        waits.0.into_iter().collect()
    }
}

/// Returns to what an outcome applies, the first and the longest wait, and the hold that is shown.
fn wait_after(
    action: &Action,
    report: &ActionReport,
    subject: &Subject,
) -> Option<(Scope, [Duration; 2], Hold)> {
    let [secs, mins] = [Duration::from_secs, Duration::from_mins];
    let pod = || Scope::Pod(subject.id.clone());
    Some(match (action, report.outcome) {
        (Action::CancelJob { .. }, Outcome::NoAnswer | Outcome::Unknown) => {
            (Scope::Slurm, [secs(10), mins(5)], Hold::NoAnswer)
        }
        (action, _) if !action.asks_kubernetes() => return None,
        (_, Outcome::NoAnswer | Outcome::Unknown) => {
            (Scope::Kubernetes, [secs(10), mins(5)], Hold::KubernetesApi)
        }
        // Whoever writes the pod can cause these.
        (_, Outcome::Forbidden | Outcome::Invalid | Outcome::ApiError) => {
            (pod(), [mins(10), mins(10)], Hold::KubernetesApi)
        }
        // The API server was not read in time.
        (_, Outcome::Cancelled) if report.retry_after.is_some() => {
            (pod(), [secs(10), mins(10)], Hold::KubernetesApi)
        }
        (_, Outcome::Terminating) => (pod(), [mins(1), mins(10)], Hold::Terminating),
        (_, Outcome::Kept) => (pod(), [mins(10), mins(10)], Hold::Annotation),
        (_, Outcome::BlockedByPdb) => (pod(), [mins(1), mins(10)], Hold::DisruptionBudget),
        (_, Outcome::OtherPods) => (pod(), [mins(10), mins(10)], Hold::OtherPods),
        _ => return None,
    })
}

/// Returns what an action that asks a service may have to wait for.
fn scopes(action: &Action, id: &TargetId) -> Vec<Scope> {
    match action {
        Action::CancelJob { .. } => vec![Scope::Slurm],
        action if action.asks_kubernetes() => vec![Scope::Kubernetes, Scope::Pod(id.clone())],
        _ => Vec::new(),
    }
}

impl BackOffs {
    /// Takes note of the result of an action.
    pub(crate) fn see(
        &mut self,
        (action, subject): (&Action, &Subject),
        report: &ActionReport,
        now: Duration,
    ) {
        // Ended pods.
        self.0.retain(|_, wait| now < wait.until + wait.length);
        let Some((scope, [first, longest], hold)) = wait_after(action, report, subject) else {
            // The service may not have been asked.
            let is_answer = !matches!(
                report.outcome,
                Outcome::Cancelled | Outcome::Reprieved | Outcome::Gone | Outcome::Refused
            );
            if is_answer {
                let asked = scopes(action, &subject.id);
                self.0.retain(|scope, _| !asked.contains(scope));
            }
            return;
        };
        let wait = self.0.entry(scope).or_insert_with(|| Wait { since: now, ..Wait::default() });
        let length = (wait.length * 2).clamp(first, longest);
        wait.length = report.retry_after.map_or(length, |after| after.clamp(Duration::from_secs(1), longest));
        (wait.until, wait.hold) = (now + wait.length, Some(hold));
    }

    /// Returns the hold of an action against a target that must wait.
    pub(crate) fn hold(&self, action: &Action, id: &TargetId, now: Duration) -> Option<Hold> {
        let waits = scopes(action, id).into_iter().filter_map(|scope| self.0.get(&scope));
        waits.filter(|wait| now < wait.until).find_map(|wait| wait.hold)
    }

    /// Returns for how long a disruption budget has not permitted the eviction of a pod.
    pub(crate) fn blocked_for(&self, pod: &TargetId, now: Duration) -> Duration {
        let wait = self.0.get(&Scope::Pod(pod.clone()));
        let wait = wait.filter(|wait| wait.hold == Some(Hold::DisruptionBudget));
        wait.map_or(Duration::ZERO, |wait| now.saturating_sub(wait.since))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Kind;
    use crate::policy::{JobNodes, Recreated};
    use bailiff_snapshot::pod_resources::ObjectName;

    const CANCEL: Action = Action::CancelJob { nodes: JobNodes::One, requires_notice: false };
    const EVICT: Action = Action::EvictPod { recreated: Recreated::Skip, requires_notice: false };

    fn pod(namespace: &str, uid: &str) -> Subject {
        Subject {
            id: TargetId(format!("pod:{uid}").into()),
            kind: Kind::Pod,
            uid: None,
            user: None,
            gpus: Vec::new(),
            job: None,
            pod: ObjectName::new(namespace, "web", uid),
            members: Vec::new(),
        }
    }

    fn report(outcome: Outcome, retry_after: Option<u64>) -> ActionReport {
        let retry_after = retry_after.map(Duration::from_secs);
        ActionReport { retry_after, ..ActionReport::new(1, outcome, "") }
    }

    /// Returns in which second after the outcome the hold ends for a pod.
    fn waits(back_offs: &BackOffs, (action, subject): (&Action, &Subject), from: u64) -> u64 {
        let waits =
            |second: &u64| back_offs.hold(action, &subject.id, Duration::from_secs(from + second)).is_some();
        (0..10_000).find(|second| !waits(second)).unwrap_or(u64::MAX)
    }

    #[test]
    fn wait_doubles_up_to_five_minutes_and_ends_with_an_answer() {
        for action in [CANCEL, EVICT] {
            let (mut back_offs, mut now, subject) = (BackOffs::default(), 1000, pod("a", "1"));
            let mut see = |outcome, now| {
                back_offs.see((&action, &subject), &report(outcome, None), Duration::from_secs(now));
                waits(&back_offs, (&action, &subject), now)
            };
            for expected in [10, 20, 40, 80, 160, 300, 300] {
                see(Outcome::NoAnswer, now);
                assert_eq!(see(Outcome::Reprieved, now), expected);
                now += expected;
            }
            assert_eq!(see(Outcome::IdentityChanged, now), 0);
            assert_eq!(see(Outcome::Unknown, now), 10);
        }
    }

    #[test]
    fn each_answer_of_the_api_server_applies_to_what_it_is_about() {
        let [same, sibling, other] = [pod("a", "1"), pod("a", "2"), pod("b", "3")];
        for (outcome, retry_after, expected) in [
            (Outcome::NoAnswer, None, [10, 10, 10]),
            (Outcome::NoAnswer, Some(7), [7, 7, 7]),
            (Outcome::Forbidden, None, [600, 0, 0]),
            (Outcome::Invalid, None, [600, 0, 0]),
            (Outcome::Terminating, None, [60, 0, 0]),
            (Outcome::ApiError, None, [600, 0, 0]),
            (Outcome::Kept, None, [600, 0, 0]),
            (Outcome::Kept, Some(30), [30, 0, 0]),
            (Outcome::BlockedByPdb, None, [60, 0, 0]),
            (Outcome::BlockedByPdb, Some(90), [90, 0, 0]),
            (Outcome::BlockedByPdb, Some(4000), [600, 0, 0]),
            (Outcome::Cancelled, Some(10), [10, 0, 0]),
            (Outcome::Cancelled, None, [0, 0, 0]),
            (Outcome::NotEvictable, None, [0, 0, 0]),
            (Outcome::Released, None, [0, 0, 0]),
        ] {
            let mut back_offs = BackOffs::default();
            back_offs.see((&EVICT, &same), &report(outcome, retry_after), Duration::from_secs(50));
            let found = [&same, &sibling, &other].map(|pod| waits(&back_offs, (&EVICT, pod), 50));
            assert_eq!(found, expected, "{outcome:?} {retry_after:?}");
            assert_eq!(waits(&back_offs, (&CANCEL, &same), 50), 0, "{outcome:?}: Slurm is asked");
        }
    }

    #[test]
    fn blocked_evictions_are_counted_from_the_first_one() {
        let (mut back_offs, subject) = (BackOffs::default(), pod("a", "1"));
        for (now, expected) in [(100, 0), (160, 60), (280, 180)] {
            let at = Duration::from_secs(now);
            back_offs.see((&EVICT, &subject), &report(Outcome::BlockedByPdb, None), at);
            assert_eq!(back_offs.blocked_for(&subject.id, at), Duration::from_secs(expected));
        }
    }
}
