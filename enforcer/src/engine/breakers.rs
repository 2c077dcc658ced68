//! Breakers: what stops everything until a human has looked.

use serde::{Deserialize, Serialize};

use crate::verdict::Hold;

/// So many workloads at least before a share of them means anything.
const FEWEST: usize = 4;
/// So many failures in a row open the breaker of failures.
const FAILURES: u32 = 3;
/// For so many ticks in a row too much has to be unknown.
const UNKNOWN_TICKS: u32 = 10;

/// The three breakers.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Breakers {
    pub(crate) mass: Breaker,
    pub(crate) unknown: Breaker,
    pub(crate) failures: bool,
    failed_in_a_row: u32,
    unknown_in_a_row: u32,
}

/// One that a share opens. Once an admin has closed it, it stays closed until the share has fallen again: he has
/// seen what there is to see.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Breaker {
    #[default]
    Closed,
    Open,
    Acknowledged,
}

impl Breaker {
    fn see(&mut self, too_much: bool) {
        *self = match (*self, too_much) {
            (Self::Open, _) | (Self::Closed, true) => Self::Open,
            (Self::Acknowledged, true) => Self::Acknowledged,
            (_, false) => Self::Closed,
        };
    }

    fn close(&mut self) {
        if *self == Self::Open {
            *self = Self::Acknowledged;
        }
    }
}

/// Some of all.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Share {
    pub(crate) some: usize,
    pub(crate) all: usize,
}

impl Breakers {
    /// Half of at least four workloads match.
    pub(crate) fn see_matches(&mut self, share: Share) {
        self.mass.see(share.all >= FEWEST && share.some * 2 >= share.all);
    }

    /// Most of at least four outcomes are unknown, tick after tick.
    pub(crate) fn see_unknown(&mut self, share: Share) {
        let much = share.all >= FEWEST && share.some * 2 > share.all;
        self.unknown_in_a_row = if much { self.unknown_in_a_row.saturating_add(1) } else { 0 };
        self.unknown.see(self.unknown_in_a_row >= UNKNOWN_TICKS);
    }

    /// How a deed ended.
    pub(crate) fn see_deed(&mut self, failed: bool) {
        self.failed_in_a_row = if failed { self.failed_in_a_row + 1 } else { 0 };
        self.failures |= self.failed_in_a_row >= FAILURES;
    }

    /// An admin says that all is well.
    pub(crate) fn close(&mut self) {
        self.mass.close();
        self.unknown.close();
        self.failures = false;
        self.failed_in_a_row = 0;
    }

    pub(crate) fn open(&self) -> impl Iterator<Item = Hold> {
        [
            (self.mass == Breaker::Open, Hold::MassBreaker),
            (self.failures, Hold::FailureBreaker),
            (self.unknown == Breaker::Open, Hold::UnknownBreaker),
        ]
        .into_iter()
        .filter_map(|(open, hold)| open.then_some(hold))
    }
}
