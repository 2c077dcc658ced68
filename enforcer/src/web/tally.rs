//! What is counted from the enforcer's start on.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::agent;
use bailiff_engine::policy::Mode;
use bailiff_engine::verdict::Outcome;

/// Everything that only goes up.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Counters {
    /// Snapshots that were evaluated.
    pub snapshots: u64,
    /// Snapshots that were not.
    pub skipped: Counted<Skipped>,
    /// Connections to the stream that were given up, by reason.
    pub refused: Counted<String>,
    /// Steps that came to an end.
    pub steps: Counted<Step>,
    /// Results of `terminate`.
    pub kills: Counted<Kill>,
    /// Bytes that were seen to come back.
    pub released_bytes: u64,
    /// Reloads of the policy.
    pub reloads: Counted<Reloaded>,
    /// Notices.
    pub notices: Counted<Notice>,
    /// Entries that could not be written to the audit log.
    pub audit_failures: u64,
    /// What the agent of leases did.
    pub leases: Counted<LeaseAct>,
}

impl Counters {
    /// Begins with 0 what can come of a step, so that the first that does is seen as one more than before.
    pub fn begin(&mut self, rule: &str, (step, mode): (&str, Mode)) {
        for result in Outcome::ALL.into_iter().filter(|result| may_come(*result, (step, mode))) {
            self.add(rule, (step, mode), (result, 0));
        }
    }

    /// Counts a step that came to an end.
    pub fn step(&mut self, rule: &str, (step, mode): (&str, Mode), result: Outcome) {
        self.add(rule, (step, mode), (result, 1));
    }

    /// A `terminate` that was not only watched counts as a kill too.
    fn add(&mut self, rule: &str, (step, mode): (&str, Mode), (result, count): (Outcome, u64)) {
        if step == "terminate" && mode == Mode::Enforce {
            self.kills.add(Kill { rule: rule.to_owned(), result }, count);
        }
        self.steps.add(Step { rule: rule.to_owned(), step: step.to_owned(), mode, result }, count);
    }
}

/// What may come of a step.
fn may_come(result: Outcome, (step, mode): (&str, Mode)) -> bool {
    let reports_only = matches!(step, "flag" | "notify");
    let frees = matches!(step, "terminate" | "release_lease");
    let acts = mode == Mode::Enforce;
    match result {
        Outcome::Done => reports_only || acts && !frees,
        Outcome::DryRun => !reports_only && !acts,
        Outcome::Released | Outcome::Undetermined => acts && frees,
        Outcome::GoneNotReleased | Outcome::Unkillable => acts && step == "terminate",
        Outcome::IdentityChanged
        | Outcome::Refused
        | Outcome::Gone
        | Outcome::Failed
        | Outcome::Cancelled => !reports_only,
        Outcome::Reprieved => acts && !reports_only,
    }
}

/// A step of a rule and how it ended.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Step {
    /// The rule.
    pub rule: String,
    /// The action's name.
    pub step: String,
    /// Whether it was to act.
    pub mode: Mode,
    /// How it ended.
    pub result: Outcome,
}

/// A rule's `terminate` and how it ended.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Kill {
    /// The rule.
    pub rule: String,
    /// How it ended.
    pub result: Outcome,
}

/// A notice.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Notice {
    /// The channel, as the policy names it.
    pub channel: String,
    /// What became of it.
    pub result: String,
}

/// Something that the agent of leases did, and what came of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct LeaseAct {
    /// What it did.
    pub act: agent::LeaseAction,
    /// What came of it.
    pub result: agent::Result,
}

/// Why a snapshot is not evaluated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Skipped {
    /// It is too old.
    Stale,
    /// Its number was seen before.
    Duplicate,
    /// It is from a time to come.
    Future,
    /// It is of another boot.
    OtherBoot,
    /// It is no snapshot.
    Malformed,
}

impl Skipped {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Stale, Self::Duplicate, Self::Future, Self::OtherBoot, Self::Malformed];

    /// Its label value.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Stale => "stale",
            Self::Duplicate => "duplicate",
            Self::Future => "future",
            Self::OtherBoot => "other_boot",
            Self::Malformed => "malformed",
        }
    }
}

/// How a reload ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reloaded {
    /// The new policy is in force.
    Applied,
    /// The file says what is in force.
    Unchanged,
    /// The file was not loaded, and the previous rules stay in force.
    Refused,
}

impl Reloaded {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Applied, Self::Unchanged, Self::Refused];

    /// Its label value.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Applied => "applied",
            Self::Unchanged => "unchanged",
            Self::Refused => "refused",
        }
    }
}

/// How often each of several things happened; in JSON a list, since a key may be more than a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Counted<K>(BTreeMap<K, u64>);

impl<K> Default for Counted<K> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<K: Ord> Counted<K> {
    /// Counts one more.
    pub fn count(&mut self, what: K) {
        self.add(what, 1);
    }

    /// Adds to a counter; counters that start at 0 exist before their first event.
    pub fn add(&mut self, what: K, count: u64) {
        *self.0.entry(what).or_default() += count;
    }

    /// How often this happened.
    #[must_use]
    pub fn of(&self, what: &K) -> u64 {
        self.0.get(what).copied().unwrap_or_default()
    }

    /// All that happened.
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
        assert_eq!(results.len(), Outcome::ALL.len() - 2, "neither done nor watched: {results:?}");
        assert_eq!(counters.kills.iter().map(|(kill, _)| kill.result).collect::<Vec<_>>(), results);
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
