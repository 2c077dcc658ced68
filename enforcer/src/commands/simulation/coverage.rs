//! Data coverage: attributes that rules use and the data lacks, and rules that could therefore never match.

use super::report::Unknown;
use bailiff_engine::Kind;
use bailiff_engine::attributes::Attribute;
use bailiff_engine::engine::texts;
use bailiff_engine::policy::{Condition, Field, Policy, Rule};
use bailiff_engine::value::Value;
use bailiff_engine::view::View;

/// Attributes in use, and how often each was unknown.
#[derive(Debug, Default)]
pub(super) struct Coverage(Vec<AttributeCoverage>);

#[derive(Debug)]
struct AttributeCoverage {
    what: What,
    unknown_of: Unknown,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum What {
    Attribute(&'static Attribute),
    Text(Field),
}

impl What {
    fn name(self) -> &'static str {
        match self {
            Self::Attribute(attribute) => attribute.name,
            Self::Text(field) => field.name(),
        }
    }
}

impl Coverage {
    /// Creates the counters for all attributes of a policy.
    pub(super) fn of(policy: &Policy) -> Self {
        let mut coverage = Self::default();
        for (condition, kind, _) in policy.rules.iter().flat_map(conditions) {
            coverage.add(condition, kind);
        }
        coverage
    }

    fn add(&mut self, condition: &Condition, of: Kind) {
        let what = match condition {
            Condition::Leaf(leaf) => What::Attribute(leaf.attribute),
            Condition::Select(selector) => What::Text(selector.field),
            Condition::All(conditions) | Condition::Any(conditions) => {
                return conditions.iter().for_each(|condition| self.add(condition, of));
            }
            Condition::Not(condition) => return self.add(condition, of),
        };
        if !self.0.iter().any(|entry| entry.what == what && entry.unknown_of.kind == of) {
            self.0.push(AttributeCoverage {
                what,
                unknown_of: Unknown { name: what.name(), kind: of, asked: 0, unknown: 0 },
            });
        }
    }

    /// Counts the attributes that are unknown in a view.
    pub(super) fn count(&mut self, view: &View) {
        for entry in &mut self.0 {
            for target in view.targets.iter().filter(|target| target.kind == entry.unknown_of.kind) {
                let unknown = match entry.what {
                    What::Attribute(attribute) => {
                        matches!((attribute.read)(target, view), Value::Unknown(_))
                    }
                    What::Text(field) => texts::unread(field, target, view),
                };
                entry.unknown_of.asked += 1;
                entry.unknown_of.unknown += u64::from(unknown);
            }
        }
    }

    /// Returns why a rule could not have matched with the available data.
    pub(super) fn never(&self, rule: &Rule) -> Option<String> {
        let mut missing: Vec<&str> = Vec::new();
        for (condition, kind, wanted) in conditions(rule) {
            let blind = self.blind(kind);
            if possible(condition, &blind) & wanted == 0 {
                missing.extend(named(condition).into_iter().filter(|name| blind.contains(name)));
            }
        }
        missing.sort_unstable();
        missing.dedup();
        (!missing.is_empty()).then(|| format!("{} was unknown throughout", missing.join(", ")))
    }

    fn blind(&self, kind: Kind) -> Vec<&'static str> {
        let unknown =
            self.0.iter().filter(|entry| entry.unknown_of.kind == kind && entry.unknown_of.throughout());
        unknown.map(|entry| entry.unknown_of.name).collect()
    }

    /// Returns the attributes that were not always observed.
    pub(super) fn unknown_of(self) -> Vec<Unknown> {
        self.0.into_iter().map(|entry| entry.unknown_of).filter(|unknown_of| unknown_of.unknown > 0).collect()
    }
}

/// Returns the conditions of a rule, with the kind of target and the value that each must have for a match.
fn conditions(rule: &Rule) -> impl Iterator<Item = (&Condition, Kind, u8)> {
    // With `pick`, the exceptions apply to the candidates.
    let subject_kind = if rule.pick.is_some() { Kind::Workload } else { rule.target };
    let own = rule.select.iter().chain([&rule.when]).map(|condition| (condition, rule.target, TRUE));
    let excepted = rule.except.iter().map(move |exception| (&exception.condition, subject_kind, FALSE));
    own.chain(excepted).chain(rule.pick.iter().map(move |pick| (&pick.from, subject_kind, TRUE)))
}

/// Returns whether a rule of the policy uses an attribute.
pub(in crate::commands) fn uses(policy: &Policy, name: &str) -> bool {
    policy.rules.iter().flat_map(conditions).any(|(condition, ..)| named(condition).contains(&name))
}

const TRUE: u8 = 1;
const FALSE: u8 = 2;
const UNKNOWN: u8 = 4;
const ANYTHING: u8 = TRUE | FALSE | UNKNOWN;

/// Returns the possible values of a condition if these attributes are unknown and all others may have any
/// value.
fn possible(condition: &Condition, blind: &[&str]) -> u8 {
    match condition {
        Condition::Leaf(_) | Condition::Select(_) => {
            let known = named(condition).iter().all(|name| !blind.contains(name));
            if known { ANYTHING } else { UNKNOWN }
        }
        Condition::Not(condition) => not(possible(condition, blind)),
        Condition::All(conditions) => {
            conditions.iter().fold(TRUE, |all, condition| and(all, possible(condition, blind)))
        }
        Condition::Any(conditions) => {
            not(conditions.iter().fold(TRUE, |all, condition| and(all, not(possible(condition, blind)))))
        }
    }
}

const fn not(values: u8) -> u8 {
    (values & UNKNOWN) | ((values & TRUE) << 1) | ((values & FALSE) >> 1)
}

/// Combines every value of one side with every value of the other by Kleene's AND.
const fn and(one: u8, other: u8) -> u8 {
    let mut joined = one & other & TRUE;
    joined |= (one | other) & FALSE;
    // Unknown remains if the other side is not false.
    if one & UNKNOWN != 0 && other & (TRUE | UNKNOWN) != 0
        || other & UNKNOWN != 0 && one & (TRUE | UNKNOWN) != 0
    {
        joined |= UNKNOWN;
    }
    joined
}

fn named(condition: &Condition) -> Vec<&'static str> {
    match condition {
        Condition::Leaf(leaf) => vec![leaf.attribute.name],
        Condition::Select(selector) => vec![selector.field.name()],
        Condition::All(conditions) | Condition::Any(conditions) => {
            conditions.iter().flat_map(named).collect()
        }
        Condition::Not(condition) => named(condition),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bailiff_snapshot::Truth;

    #[test]
    fn sets_are_joined_as_their_values_are() {
        let bit = |truth: Truth| match truth {
            Truth::True => TRUE,
            Truth::False => FALSE,
            Truth::Unknown => UNKNOWN,
        };
        let all = [Truth::True, Truth::False, Truth::Unknown];
        let members = |set: u8| all.into_iter().filter(move |truth| set & bit(*truth) != 0);
        for one in 1..8 {
            assert_eq!(not(one), members(one).fold(0, |set, truth| set | bit(!truth)), "{one}");
            for other in 1..8 {
                let mut expected = 0;
                for left in members(one) {
                    for right in members(other) {
                        expected |= bit(left.and(right));
                    }
                }
                assert_eq!(and(one, other), expected, "{one} {other}");
            }
        }
    }

    #[test]
    fn a_rule_that_cannot_match_says_why() {
        let text = "version: 1\nrules:\n  \
            - {name: both, target: process, when: {gpu_util: {max: 1%}, cpu_util: {max: 5%}}, for: 5m, then: [{flag: info}]}\n  \
            - {name: one, target: process, when: {any: [{gpu_util: {max: 1%}}, {cpu_util: {max: 5%}}]}, for: 5m, then: [{flag: info}]}\n";
        let policy = bailiff_engine::policy::load(
            text.as_bytes(),
            "rules.yaml",
            crate::policy_file::context(std::time::Duration::ZERO),
        )
        .unwrap()
        .policy;
        let mut coverage = Coverage::of(&policy);
        for entry in &mut coverage.0 {
            entry.unknown_of.asked = 9;
            entry.unknown_of.unknown = if entry.unknown_of.name == "cpu_util" { 9 } else { 0 };
        }
        let never: Vec<Option<String>> = policy.rules.iter().map(|rule| coverage.never(rule)).collect();
        assert_eq!(never, [Some("cpu_util was unknown throughout".to_owned()), None]);
    }
}
