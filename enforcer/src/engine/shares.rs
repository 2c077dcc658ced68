//! What the breakers look at: how much matches, and how much is unknown, of all rules that may end somebody.

use std::collections::HashSet;

use super::breakers::Share;
use super::deeds::Deeds;
use super::judge::Census;
use crate::policy::Kind;
use crate::view::{Target, View};

/// What was counted at one snapshot.
#[derive(Debug, Default)]
pub(crate) struct Shares {
    all: usize,
    unknown: usize,
    /// Workloads that match, by their keys.
    matching: HashSet<String>,
}

impl Shares {
    pub(crate) fn add(&mut self, census: &Census, view: &View) {
        self.all += census.all;
        self.unknown += census.unknown;
        for target in census.matching.iter().filter_map(|place| view.targets.get(*place)) {
            for workload in workload_of(target, view) {
                if !self.matching.contains(workload) {
                    self.matching.insert(workload.to_owned());
                }
            }
        }
    }
}

impl Deeds {
    /// Looks whether too many match, or too much is unknown.
    pub(crate) fn see_shares(&mut self, shares: &Shares, view: &View) {
        let workloads = view.targets.iter().filter(|target| target.kind == Kind::Workload).count();
        self.breakers.see_matches(Share { some: shares.matching.len(), all: workloads });
        self.breakers.see_unknown(Share { some: shares.unknown, all: shares.all });
    }
}

/// The workloads that a target belongs to.
fn workload_of<'a>(target: &'a Target, view: &'a View) -> impl Iterator<Item = &'a str> {
    view.processes(target).filter_map(|process| process.facts.as_ref()?.workload.as_deref())
}
