//! Conditions prepared for thousands of targets: each comparison is evaluated once per target and tick, for any
//! number of rules.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::time::Duration;

use crate::Kind;
use crate::attributes::{self, Attribute};
use crate::engine::{protection, texts};
use crate::policy::{Condition, Policy, Selector};
use crate::value::{Test, Value};
use crate::view::{Target, View};
use bailiff_snapshot::{ProcessKey, State, Truth};

/// Outcome for every target of a view, by place. Rules combine whole columns, which the compiler vectorizes.
pub(crate) type Column<'a> = Cow<'a, [Truth]>;

/// All comparisons of a policy, and their outcomes for every target of a view.
#[derive(Debug, Default)]
pub(crate) struct ConditionTable {
    /// Each attribute once, with its comparisons.
    attributes: Vec<(&'static Attribute, Vec<(Test, usize)>)>,
    selectors: Vec<(Selector, usize)>,
    graces: Vec<(Duration, usize)>,
    /// Entries of `except`, by their text.
    exemptions: Vec<(String, Condition, usize)>,
    /// Processes of this program and of the exporter.
    pub(crate) ours: BTreeSet<ProcessKey>,
    answers: Vec<Vec<Truth>>,
    unprotected: Vec<Truth>,
    /// Targets that are not stopped, traced or frozen.
    running: Vec<Truth>,
    /// Values of one attribute for all targets, while it is evaluated.
    values: Vec<Value>,
}

/// Age of a target, for `startup_grace`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Age {
    /// It has no start time, or no process that could be exempted.
    None,
    /// The start time of one of its processes is unknown.
    Unknown,
    /// Age of its youngest process.
    Youngest(Duration),
}

impl ConditionTable {
    /// Returns the column of a comparison.
    fn question(&mut self, attribute: &'static Attribute, test: Test) -> usize {
        let place = self.attributes.iter().position(|(other, _)| *other == attribute).unwrap_or_else(|| {
            self.attributes.push((attribute, Vec::new()));
            self.attributes.len() - 1
        });
        let tests = &mut self.attributes[place].1;
        if let Some((_, answers)) = tests.iter().find(|(other, _)| *other == test) {
            return *answers;
        }
        tests.push((test, self.answers.len()));
        self.new_column()
    }

    fn selector(&mut self, selector: &Selector) -> usize {
        let same = |(other, _): &&(Selector, usize)| {
            other.field == selector.field && written(other).eq(written(selector))
        };
        if let Some((_, answers)) = self.selectors.iter().find(same) {
            return *answers;
        }
        self.selectors.push((selector.clone(), self.answers.len()));
        self.new_column()
    }

    /// Returns the condition that a target is older than `startup_grace`.
    pub(crate) fn grace(&mut self, grace: Duration) -> Node {
        let known = self.graces.iter().find(|(other, _)| *other == grace).map(|(_, answers)| *answers);
        Node::One(known.unwrap_or_else(|| {
            self.graces.push((grace, self.answers.len()));
            self.new_column()
        }))
    }

    /// Returns the condition of an entry of `except`, which is evaluated for each member.
    pub(crate) fn exemption(&mut self, entry: &Condition) -> Node {
        let written = format!("{entry:?}");
        let known =
            self.exemptions.iter().find(|(other, ..)| *other == written).map(|(.., answers)| *answers);
        Node::One(known.unwrap_or_else(|| {
            self.exemptions.push((written, entry.clone(), self.answers.len()));
            self.new_column()
        }))
    }

    fn new_column(&mut self) -> usize {
        self.answers.push(Vec::new());
        self.answers.len() - 1
    }

    /// Evaluates all comparisons for a view.
    pub(crate) fn fill(&mut self, policy: &Policy, view: &View) {
        for (attribute, tests) in &self.attributes {
            self.values.clear();
            self.values.extend(view.targets.iter().map(|target| attribute.of_target(target, view)));
            for (test, place) in tests {
                let answers = &mut self.answers[*place];
                answers.clear();
                answers.extend(self.values.iter().map(|value| test.condition(*value)));
            }
        }
        for (selector, place) in &self.selectors {
            let answers = &mut self.answers[*place];
            answers.clear();
            answers.extend(view.targets.iter().map(|target| texts::select(selector, target, view)));
        }
        for (_, entry, place) in &self.exemptions {
            let answers = &mut self.answers[*place];
            answers.clear();
            answers.extend(view.targets.iter().map(|target| protection::exempts(entry, target, view)));
        }
        self.unprotected.clear();
        let seen = (view, &self.ours);
        self.unprotected.extend(view.targets.iter().map(|target| !protection::of(policy, target, seen)));
        self.running.clear();
        self.running.extend(view.targets.iter().map(|target| attributes::runs(target, view)));
        let ages: Vec<Age> = view.targets.iter().map(|target| Age::of(target, view)).collect();
        for (grace, place) in &self.graces {
            let answers = &mut self.answers[*place];
            answers.clear();
            answers.extend(ages.iter().map(|age| age.at_least(*grace)));
        }
    }

    /// Returns whether the table was filled for this view.
    pub(crate) fn covers(&self, view: &View) -> bool {
        self.unprotected.len() == view.targets.len()
    }

    /// Targets that are not on hold.
    pub(crate) fn running(&self) -> Column<'_> {
        Cow::Borrowed(&self.running)
    }

    /// Targets that are not protected from every rule.
    pub(crate) fn unprotected(&self) -> Column<'_> {
        Cow::Borrowed(&self.unprotected)
    }
}

fn written(selector: &Selector) -> impl Iterator<Item = String> {
    selector.patterns.iter().map(ToString::to_string)
}

impl Age {
    fn of(target: &Target, view: &View) -> Self {
        if target.kind == Kind::Gpu {
            return Self::None;
        }
        if target.kind == Kind::Lease {
            let age = view.held(target).and_then(|held| held.age_ms);
            return age.map_or(Self::Unknown, |age| Self::Youngest(Duration::from_millis(age)));
        }
        let job = view.job(target).map(|job| view.age_of_job(job));
        let mut youngest = job.map_or(Self::None, Self::Youngest);
        for process in view.processes(target).filter(|process| process.state != State::Gone) {
            let Some(age) = view.age(process) else { return Self::Unknown };
            youngest = match youngest {
                Self::Youngest(other) => Self::Youngest(age.min(other)),
                _ => Self::Youngest(age),
            };
        }
        youngest
    }

    /// Returns whether the age is at least `grace`.
    fn at_least(self, grace: Duration) -> Truth {
        match self {
            Self::None => Truth::True,
            _ if grace.is_zero() => Truth::True,
            Self::Unknown => Truth::Unknown,
            Self::Youngest(age) => (age >= grace).into(),
        }
    }
}

/// A [`Condition`] whose leaves are columns of a table.
#[derive(Debug)]
pub(crate) enum Node {
    One(usize),
    All(Vec<Node>),
    Any(Vec<Node>),
    Not(Box<Node>),
}

impl Node {
    pub(crate) fn of(condition: &Condition, table: &mut ConditionTable) -> Self {
        match condition {
            Condition::Leaf(leaf) => Self::One(table.question(leaf.attribute, leaf.test)),
            Condition::Select(selector) => Self::One(table.selector(selector)),
            Condition::All(conditions) => {
                Self::All(conditions.iter().map(|condition| Self::of(condition, table)).collect())
            }
            Condition::Any(conditions) => {
                Self::Any(conditions.iter().map(|condition| Self::of(condition, table)).collect())
            }
            Condition::Not(condition) => Self::Not(Box::new(Self::of(condition, table))),
        }
    }

    /// Returns the outcome for all targets.
    pub(crate) fn condition<'a>(&self, table: &'a ConditionTable) -> Column<'a> {
        match self {
            Self::One(question) => Cow::Borrowed(table.answers.get(*question).map_or(&[], Vec::as_slice)),
            Self::All(nodes) => joined(nodes, table, (Truth::True, Truth::and)),
            Self::Any(nodes) => joined(nodes, table, (Truth::False, Truth::or)),
            Self::Not(node) => not(&node.condition(table)),
        }
    }
}

fn joined<'a>(
    nodes: &[Node],
    table: &'a ConditionTable,
    (start, join): (Truth, impl Fn(Truth, Truth) -> Truth),
) -> Column<'a> {
    let mut whole = vec![start; table.unprotected.len()];
    for node in nodes {
        let answers = node.condition(table);
        whole.iter_mut().zip(answers.iter()).for_each(|(so_far, answer)| *so_far = join(*so_far, *answer));
    }
    Cow::Owned(whole)
}

/// A gate of a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Gate {
    Protection,
    Select,
    Except(usize),
    Grace,
    OnHold,
    When,
    /// With `pick`: the condition of the candidates.
    From,
}

impl Gate {
    /// Returns whether a target that does not pass this gate counts as exempt.
    pub(crate) const fn exempts(self) -> bool {
        matches!(self, Self::Protection | Self::Select | Self::Except(_))
    }
}

/// Negates every outcome.
pub(crate) fn not<'a>(column: &[Truth]) -> Column<'a> {
    column.iter().map(|truth| !*truth).collect()
}

/// Returns the outcome of consecutive gates for each target: that of the first gate it does not pass.
pub(crate) fn passed<'a>(gates: impl IntoIterator<Item = Column<'a>>) -> Vec<Truth> {
    let mut gates = gates.into_iter();
    let mut outcomes = gates.next().map_or_else(Vec::new, Cow::into_owned);
    for gate in gates {
        for (outcome, truth) in outcomes.iter_mut().zip(gate.iter()) {
            *outcome = if *outcome == Truth::True { *truth } else { *outcome };
        }
    }
    outcomes
}
