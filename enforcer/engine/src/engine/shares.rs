//! Input of the breakers: how many targets match or are unknown, over all rules with a destructive step.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use bailiff_snapshot::{SubordinateUids, Truth};

use super::Tick;
use super::breakers::{Matches, Matching, Share};
use super::in_flight::ActionTracker;
use super::matches::Counts;
use super::subject;
use crate::Kind;
use crate::policy::Limits;
use crate::view::{Target, TargetId, View};

/// With fewer outcomes than this, the share of unknown outcomes is not evaluated.
const FEWEST: usize = 4;

/// Counts of one snapshot.
#[derive(Debug, Default)]
pub(crate) struct Shares {
    all: usize,
    unknown: usize,
    /// Places of the targets in the view, for each rule, and whether the outcome of each is unknown.
    evaluated: Vec<(usize, bool)>,
    /// Names of the workloads that match.
    matching: HashSet<String>,
    /// Slurm jobs and pods that match.
    jobs: HashSet<TargetId>,
    /// The shortest `for` of the rules that matched.
    window: Option<Duration>,
}

impl Shares {
    /// Adds the counts of a rule; `window` is its `for`.
    pub(crate) fn add(&mut self, counts: &Counts, window: Duration, view: &View) {
        self.all += counts.all;
        self.unknown += counts.unknown;
        self.evaluated.extend(&counts.evaluated);
        if !counts.matching.is_empty() {
            self.window = Some(self.window.map_or(window, |shortest| shortest.min(window)));
        }
        for target in counts.matching.iter().filter_map(|place| view.targets.get(*place)) {
            if matches!(target.kind, Kind::SlurmJob | Kind::Pod) {
                self.jobs.insert(target.id.clone());
            }
            for workload in workload_of(target, view) {
                if !self.matching.contains(workload) {
                    self.matching.insert(workload.to_owned());
                }
            }
        }
    }
}

impl Shares {
    /// Returns how many workloads, jobs or pods match, and how many owners they have. The owner of protected workloads, such
    /// as a display server, does not count.
    fn matches(
        &self,
        kind: Kind,
        (view, unprotected): (&View, &[Truth]),
        uids: &SubordinateUids,
    ) -> Matching {
        let (mut owners, mut matching) = (HashSet::new(), HashSet::new());
        let (mut all, mut some) = (0, 0);
        let targets = view.targets.iter().zip(unprotected);
        for (target, unprotected) in targets.filter(|(target, _)| target.kind == kind) {
            let owner = subject::author(target, view, uids);
            let workload = || workload_of(target, view).any(|workload| self.matching.contains(workload));
            if if kind == Kind::Workload { workload() } else { self.jobs.contains(&target.id) } {
                matching.insert(owner.clone());
                some += 1;
            }
            if *unprotected == Truth::True {
                owners.insert(owner);
            }
            all += 1;
        }
        if kind == Kind::Workload {
            some = self.matching.len();
        }
        Matching { targets: Share { some, all }, users: Share { some: matching.len(), all: owners.len() } }
    }

    /// Returns whether most of at least four outcomes are unknown, and most outcomes of most users. A user's unknown
    /// outcomes are not enough, unless there is only one user: otherwise, any user could stop all actions.
    fn is_mostly_unknown(&self, users: impl FnOnce() -> Share) -> bool {
        let all = Share { some: self.unknown, all: self.all };
        all.all >= FEWEST
            && all.is_most()
            && Some(users()).filter(|users| users.all > 0).is_none_or(Share::is_most)
    }

    /// Returns for how many owners most outcomes are unknown. Owners of protected targets do not count.
    fn unknown_users(&self, (view, unprotected): (&View, &[Truth]), uids: &SubordinateUids) -> Share {
        let mut users: HashMap<subject::Author, Share> = HashMap::new();
        for (place, unknown) in &self.evaluated {
            let counts = *unknown || unprotected.get(*place) == Some(&Truth::True);
            let target = view.targets.get(*place).filter(|_| counts);
            let owner = target.map(|target| subject::author(target, view, uids));
            let Some(owner) = owner.filter(|owner| *owner != (None, None)) else { continue };
            let share = users.entry(owner).or_default();
            share.some += usize::from(*unknown);
            share.all += 1;
        }
        Share { some: users.values().filter(|share| share.is_most()).count(), all: users.len() }
    }

    /// Returns whether a process of a workload that does not match was observed busy.
    fn other_busy(&self, view: &View) -> bool {
        let processes = &view.snapshot.processes;
        let holders = view.snapshot.gpus.iter().flat_map(|gpu| &gpu.holders);
        let busy = holders.filter(|holder| holder.utilization > Some(0));
        let facts = busy
            .filter_map(|holder| processes.iter().find(|process| process.pid == holder.pid)?.facts.as_ref());
        facts.filter_map(|facts| facts.workload.as_deref()).any(|workload| !self.matching.contains(workload))
    }
}

impl ActionTracker {
    /// Opens breakers if too many targets match, too many are unknown, or the driver hangs, and closes those without a cause for
    /// `breaker_reset`.
    pub(crate) fn see_shares(
        &mut self,
        (shares, unprotected): (&Shares, &[Truth]),
        tick: &Tick<'_>,
        limits: &Limits,
    ) {
        let of = |kind| shares.matches(kind, (tick.view, unprotected), &self.subordinate);
        let matches = Matches {
            of_kinds: [Kind::Workload, Kind::SlurmJob, Kind::Pod].map(of),
            other_busy: shares.other_busy(tick.view),
            window: shares.window.unwrap_or_default(),
        };
        self.breakers.see_matches(&matches, limits, tick);
        let reset = limits.breaker_reset;
        let users = || shares.unknown_users((tick.view, unprotected), &self.subordinate);
        let is_most = shares.is_mostly_unknown(users);
        self.breakers.see_unknown(is_most, tick, reset);
        self.breakers.forget_failures(tick, reset);
        self.breakers.see_driver(self.is_acting(), tick);
    }
}

/// The workloads that a target belongs to.
fn workload_of<'a>(target: &'a Target, view: &'a View) -> impl Iterator<Item = &'a str> {
    view.processes(target).filter_map(|process| process.facts.as_ref()?.workload.as_deref())
}
