//! Counters since the start of the enforcer.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::agent;
use bailiff_engine::policy::Mode;
use bailiff_engine::verdict::Outcome;

/// Maximum number of users with counters of their own. Users can have many uids.
const MAX_USERS: usize = 256;

/// All counters.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Counters {
    /// Evaluated snapshots.
    pub snapshots: u64,
    /// Snapshots that were not evaluated, by reason.
    pub skipped: Counted<Skipped>,
    /// Closed connections to the stream, by reason.
    pub refused: Counted<String>,
    /// Completed steps.
    pub steps: Counted<Step>,
    /// Results of `terminate` and `cancel_job`.
    pub kills: Counted<Kill>,
    /// Bytes observed as released.
    pub released_bytes: u64,
    /// Steps about processes of a user, by name; at most `MAX_USERS` users.
    pub users: BTreeMap<String, UserCounts>,
    /// Reloads of the policy.
    pub reloads: Counted<Reloaded>,
    /// Notifications.
    pub notices: Counted<Notice>,
    /// Lines that could not be written to the audit log.
    pub audit_failures: u64,
    /// Actions of the lease agent.
    pub leases: Counted<LeaseAct>,
    /// Requests to the API server of Kubernetes.
    pub pod_requests: Counted<ApiRequest>,
}

impl Counters {
    /// Creates the counters of a step's possible results with 0, so that the first event is an increase.
    pub fn begin(&mut self, rule: &str, (step, mode): (&str, Mode)) {
        for result in Outcome::ALL.into_iter().filter(|result| may_come(*result, (step, mode))) {
            self.add(rule, (step, mode), (result, 0));
        }
    }

    /// Counts a completed step.
    pub fn step(&mut self, rule: &str, (step, mode): (&str, Mode), result: Outcome) {
        self.add(rule, (step, mode), (result, 1));
    }

    /// Returns the counters of a target's user; `None` without a user, or above `MAX_USERS`.
    pub fn user(&mut self, user: Option<&str>) -> Option<&mut UserCounts> {
        let user = user?;
        if !self.users.contains_key(user) && self.users.len() >= MAX_USERS {
            return None;
        }
        Some(self.users.entry(user.to_owned()).or_default())
    }

    /// A `terminate`, `cancel_job`, `evict_pod` or `stop_owner` of an enforcing rule also counts as a kill.
    fn add(&mut self, rule: &str, (step, mode): (&str, Mode), (result, count): (Outcome, u64)) {
        if is_kill(step, mode) {
            self.kills.add(Kill { rule: rule.to_owned(), result }, count);
        }
        self.steps.add(Step { rule: rule.to_owned(), step: step.to_owned(), mode, result }, count);
    }
}

/// Returns whether a step counts as a kill.
pub fn is_kill(step: &str, mode: Mode) -> bool {
    matches!(step, "terminate" | "cancel_job" | "evict_pod" | "stop_owner") && mode == Mode::Enforce
}

/// Returns whether a step can have this result.
fn may_come(result: Outcome, (step, mode): (&str, Mode)) -> bool {
    let reports_only = matches!(step, "flag" | "notify");
    let (cancels, evicts, stops) = (step == "cancel_job", step == "evict_pod", step == "stop_owner");
    let asks_kubernetes = evicts || stops;
    let ends = cancels || asks_kubernetes || step == "terminate";
    let frees = ends || step == "release_lease";
    let acts = mode == Mode::Enforce;
    match result {
        Outcome::Done => reports_only || acts && !frees,
        Outcome::DryRun => !reports_only && !acts,
        Outcome::Released | Outcome::Undetermined => acts && frees,
        Outcome::GoneNotReleased => acts && ends,
        Outcome::Unkillable => acts && step == "terminate",
        Outcome::SpansNodes | Outcome::NotVisible => cancels,
        Outcome::NoAnswer => cancels || asks_kubernetes,
        Outcome::NotPermitted | Outcome::Completing => acts && cancels,
        Outcome::Unknown => acts && (cancels || asks_kubernetes),
        Outcome::NotEvictable
        | Outcome::Kept
        | Outcome::Forbidden
        | Outcome::Invalid
        | Outcome::ApiError
        | Outcome::Terminating => asks_kubernetes,
        Outcome::NotTerminated => acts && asks_kubernetes,
        Outcome::BlockedByPdb => acts && evicts,
        Outcome::NotStoppable | Outcome::OtherPods | Outcome::Undone => stops,
        Outcome::IdentityChanged
        | Outcome::Refused
        | Outcome::Gone
        | Outcome::Failed
        | Outcome::Cancelled => !reports_only,
        Outcome::Reprieved => acts && !reports_only,
    }
}

/// Steps about the processes of one user.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct UserCounts {
    /// Completed `notify` steps.
    pub notices: u64,
    /// Results of `terminate` and `cancel_job`.
    pub kills: Counted<Outcome>,
    /// Bytes observed as released.
    pub released_bytes: u64,
}

/// A step of a rule with its result.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Step {
    /// Name of the rule.
    pub rule: String,
    /// Name of the action.
    pub step: String,
    /// Mode of the rule.
    pub mode: Mode,
    /// Result.
    pub result: Outcome,
}

/// A `terminate` or `cancel_job` of a rule with its result.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Kill {
    /// Name of the rule.
    pub rule: String,
    /// Result.
    pub result: Outcome,
}

/// A notification.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Notice {
    /// Name of the channel.
    pub channel: String,
    /// Result.
    pub result: String,
}

/// A request to the API server of Kubernetes.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ApiRequest {
    /// What was requested.
    pub verb: String,
    /// HTTP status; `none` without an answer that could be understood.
    pub code: String,
}

/// An action of the lease agent with its result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct LeaseAct {
    /// The action.
    pub act: agent::LeaseAction,
    /// Its result.
    pub result: agent::LeaseOutcome,
}

bailiff_snapshot::label_values! {
/// Why a snapshot was not evaluated.
pub enum Skipped {
    /// Too old.
    Stale = "stale",
    /// Seen before.
    Duplicate = "duplicate",
    /// Its time is in the future.
    Future = "future",
    /// Of another boot.
    OtherBoot = "other_boot",
    /// Not a valid snapshot.
    Malformed = "malformed",
}
}

bailiff_snapshot::label_values! {
/// Result of a reload.
pub enum Reloaded {
    /// The new policy is in force.
    Applied = "applied",
    /// The file has not changed.
    Unchanged = "unchanged",
    /// The file was not loaded, and the previous rules stay in force.
    Refused = "refused",
}
}

/// Counters by key; serialized as a list, because keys may be structured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Counted<K>(BTreeMap<K, u64>);

impl<K> Default for Counted<K> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<K: Ord> Counted<K> {
    /// Adds one.
    pub fn count(&mut self, what: K) {
        self.add(what, 1);
    }

    /// Sets a counter that is counted elsewhere.
    pub fn set(&mut self, what: K, count: u64) {
        self.0.insert(what, count);
    }

    /// Adds to a counter; adding 0 creates it.
    pub fn add(&mut self, what: K, count: u64) {
        *self.0.entry(what).or_default() += count;
    }

    /// Removes the counters that are 0.
    pub fn remove_unused(&mut self) {
        self.0.retain(|_, count| *count > 0);
    }

    /// Returns a counter.
    pub fn of(&self, what: &K) -> u64 {
        self.0.get(what).copied().unwrap_or_default()
    }

    /// Returns all counters.
    pub fn iter(&self) -> impl Iterator<Item = (&K, u64)> {
        self.0.iter().map(|(what, count)| (what, *count))
    }
}

#[derive(Serialize, Deserialize)]
struct Entry<K> {
    of: K,
    count: u64,
}

impl<K: Serialize> Serialize for Counted<K> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(self.0.iter().map(|(of, count)| Entry { of, count: *count }))
    }
}

impl<'de, K: Deserialize<'de> + Ord> Deserialize<'de> for Counted<K> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let entries = Vec::<Entry<K>>::deserialize(from)?;
        Ok(Self(entries.into_iter().map(|entry| (entry.of, entry.count)).collect()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kill_is_a_step_that_acted() {
        let mut counters = Counters::default();
        counters.step("idle", ("terminate", Mode::DryRun), Outcome::DryRun);
        counters.step("idle", ("signal", Mode::Enforce), Outcome::Done);
        assert_eq!(counters.kills, Counted::default());
        counters.step("idle", ("terminate", Mode::Enforce), Outcome::Released);
        counters.step("idle", ("terminate", Mode::Enforce), Outcome::Released);
        let kill = Kill { rule: "idle".into(), result: Outcome::Released };
        assert_eq!(counters.kills.of(&kill), 2);
        assert_eq!(counters.steps.iter().map(|(_, count)| count).collect::<Vec<_>>(), [1, 1, 2]);
        for user in 0..300 {
            let counts = counters.user(Some(&user.to_string()));
            assert_eq!(counts.is_some(), user < MAX_USERS);
            if let Some(counts) = counts {
                counts.kills.count(Outcome::Released);
            }
        }
        assert!(counters.user(Some("7")).is_some() && counters.user(None).is_none());
        let json = serde_json::to_string(&counters).expect("it is plain data");
        assert_eq!(serde_json::from_str::<Counters>(&json).expect("it was just written"), counters);
    }

    #[test]
    fn whatever_may_come_of_a_step_is_counted_from_none_on() {
        let begun = |step, mode| {
            let mut counters = Counters::default();
            counters.begin("idle", (step, mode));
            assert!(counters.steps.iter().all(|(_, count)| count == 0));
            (counters.steps.iter().map(|(step, _)| step.result).collect::<Vec<_>>(), counters)
        };
        assert_eq!(begun("flag", Mode::DryRun).0, [Outcome::Done]);
        let (results, counters) = begun("terminate", Mode::Enforce);
        assert_eq!(
            results.len(),
            Outcome::ALL.len() - 19,
            "neither done nor watched, nor of a job or a pod: {results:?}"
        );
        assert_eq!(counters.kills.iter().map(|(kill, _)| kill.result).collect::<Vec<_>>(), results);
        let (results, _) = begun("cancel_job", Mode::Enforce);
        assert_eq!(
            results.len(),
            Outcome::ALL.len() - 14,
            "neither done, nor watched, nor unkillable, nor of a pod: {results:?}"
        );
        let (results, _) = begun("evict_pod", Mode::Enforce);
        assert_eq!(
            results.len(),
            Outcome::ALL.len() - 10,
            "neither done, nor watched, nor unkillable, nor of a job: {results:?}"
        );
        let (results, mut counters) = begun("terminate", Mode::DryRun);
        assert!(results.contains(&Outcome::DryRun) && counters.kills == Counted::default(), "{results:?}");
        counters.step("idle", ("terminate", Mode::DryRun), Outcome::DryRun);
        counters.begin("idle", ("terminate", Mode::DryRun));
        assert_eq!(counters.steps.iter().map(|(_, count)| count).sum::<u64>(), 1, "what was counted stays");
        assert!(begun("exec", Mode::Enforce).0.contains(&Outcome::Done));
    }

    #[test]
    fn names_are_those_of_the_json() {
        for skipped in Skipped::ALL {
            assert_eq!(serde_json::json!(skipped), skipped.name());
        }
        for reloaded in Reloaded::ALL {
            assert_eq!(serde_json::json!(reloaded), reloaded.name());
        }
    }
}
