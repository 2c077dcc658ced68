//! Breakers, which stop destructive steps. A breaker opened by failures or by unknown data closes once its cause
//! has been absent for a time; a breaker opened by too many matches or by a driver that does not respond is closed only
//! by an administrator.

use std::collections::BTreeMap;
use std::time::Duration;

use bailiff_snapshot::{Fault, Word};
use serde::{Deserialize, Serialize};

use super::Tick;
use super::ledger::Stamp;
use super::subject::Author;
use crate::policy::Limits;
use crate::verdict::Hold;
use crate::view::View;

/// This many consecutive failures against one user open the failure breaker of that user.
const FAILURES: u32 = 3;
/// The node's failure breaker opens when the failure breakers of this many users are open.
const USERS: usize = 2;
/// The unknown breaker opens after this many consecutive samples with too many unknown outcomes.
const UNKNOWN_TICKS: u32 = 10;
/// The driver-hang breaker opens if the driver stops responding at most this long after an action.
const HANG: Duration = Duration::from_mins(1);
/// The driver-hang breaker opens after this many consecutive samples without a response. After one late response of all GPUs,
/// the exporter queries only one of them again in each sample, and a node has up to 16 GPUs.
const HANG_TICKS: u32 = 20;

/// State of all breakers.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Breakers {
    pub(crate) mass: Breaker,
    /// The last sample in which a process whose workload does not match was observed busy.
    #[serde(skip)]
    busy: Option<Stamp>,
    pub(crate) unknown: Breaker,
    unknown_in_a_row: u32,
    /// First of the latest consecutive samples in which the unknown breaker had no cause; a missed sample restarts
    /// the count.
    #[serde(skip)]
    known_since: Option<Stamp>,
    failures: Vec<Failures>,
    #[serde(default)]
    driver_hang: Breaker,
    #[serde(skip)]
    driver: Driver,
}

/// What the driver-hang breaker remembers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Driver {
    /// Whether an action has ended since the last sample.
    acted: bool,
    /// The last sample before which, or during which, an action was carried out.
    last_action: Option<Stamp>,
    /// GPUs that did not respond in the last sample: in how many consecutive samples, and whether that began soon after an
    /// action. The key of the driver as a whole is empty.
    hung: BTreeMap<String, (u32, bool)>,
}

/// Failures in a row of actions against one user, or the pods of one namespace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Failures {
    /// None if a target has no single owner.
    uid: Option<u32>,
    /// Namespace of pods, whose authors choose their uids.
    #[serde(default)]
    namespace: Option<String>,
    in_a_row: u32,
    /// Time of the last failure; `None` until the tick after it.
    last: Option<Stamp>,
}

impl Failures {
    const fn open(&self) -> bool {
        self.in_a_row >= FAILURES
    }
}

/// A breaker that opens when a share is too large. After an administrator has closed it, it opens again only
/// once the share has fallen below the limit in between, because the administrator has seen the present
/// situation.
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

/// A part of a whole.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Share {
    pub(crate) some: usize,
    pub(crate) all: usize,
}

/// Matches in one sample.
#[derive(Debug)]
pub(crate) struct Matches {
    /// Workloads, Slurm jobs and pods.
    pub(crate) of_kinds: [Matching; 3],
    /// A process of a workload that does not match was observed busy.
    pub(crate) other_busy: bool,
    /// The shortest `for` of the rules that matched.
    pub(crate) window: Duration,
}

/// Matching targets of one kind in one sample.
#[derive(Debug)]
pub(crate) struct Matching {
    /// Targets that match.
    pub(crate) targets: Share,
    /// Owners of the targets that match, and of all targets without built-in or configured protection.
    pub(crate) users: Share,
}

impl Share {
    /// Returns whether the part is more than half.
    pub(crate) const fn is_most(self) -> bool {
        self.some * 2 > self.all
    }

    fn reaches(self, share: f64) -> bool {
        #[expect(clippy::cast_precision_loss, reason = "small counts")]
        let own = self.some as f64 / self.all as f64;
        self.some > 0 && own >= share
    }
}

impl Matching {
    /// Returns whether too many targets match. One user's idle workloads are not enough, unless the node has
    /// only one user: otherwise, any user could stop all actions.
    fn too_many(&self, limits: &Limits) -> bool {
        self.targets.all >= limits.mass_min as usize
            && self.targets.reaches(limits.mass_share)
            && self.users.some >= self.users.all.min(2)
    }
}

impl Breakers {
    /// Opens the mass breaker if too many workloads match and no process of another workload was busy within
    /// `window`: a busy process proves that the driver does not report everything as idle.
    pub(crate) fn see_matches(&mut self, matches: &Matches, limits: &Limits, tick: &Tick<'_>) {
        if matches.other_busy {
            self.busy = Some(tick.stamp());
        }
        let ago = self.busy.as_ref().map(|busy| busy.ago(tick.now, tick.boot_id()));
        let truthful = ago.is_some_and(|ago| ago <= matches.window);
        let too_many = matches.of_kinds.iter().any(|matching| matching.too_many(limits));
        self.mass.see(too_many && !truthful);
    }

    /// Opens the unknown breaker if most outcomes are unknown for several ticks; closes it once this has not been the case
    /// for the time `reset`.
    pub(crate) fn see_unknown(&mut self, is_most: bool, tick: &Tick<'_>, reset: Duration) {
        self.unknown_in_a_row = if is_most { self.unknown_in_a_row.saturating_add(1) } else { 0 };
        let too_much = self.unknown_in_a_row >= UNKNOWN_TICKS;
        self.unknown.see(too_much);
        if tick.missed > 0 || too_much {
            self.known_since = None;
        }
        if !too_much {
            let since = self.known_since.get_or_insert_with(|| tick.stamp());
            if since.ago(tick.now, tick.boot_id()) >= reset {
                self.unknown = Breaker::Closed;
            }
        }
    }

    /// Records that an action was carried out, after which the driver may hang.
    pub(crate) fn see_action(&mut self) {
        self.driver.acted = true;
    }

    /// Opens the driver-hang breaker if the driver, or a GPU, does not respond in several consecutive samples, the first of
    /// them soon after an action.
    pub(crate) fn see_driver(&mut self, acting: bool, tick: &Tick<'_>) {
        let driver = &mut self.driver;
        if std::mem::take(&mut driver.acted) || acting {
            driver.last_action = Some(tick.stamp());
        }
        let ago = driver.last_action.as_ref().map(|action| action.ago(tick.now, tick.boot_id()));
        let is_soon = ago.is_some_and(|ago| ago <= HANG);
        let mut before = std::mem::take(&mut driver.hung);
        for name in hung(tick.view) {
            let (samples, follows) = before.remove(name).unwrap_or((0, is_soon));
            if follows && samples + 1 >= HANG_TICKS {
                self.driver_hang = Breaker::Open;
            }
            driver.hung.insert(name.to_owned(), (samples.saturating_add(1), follows));
        }
    }

    /// Records how an action against an author's target ended.
    pub(crate) fn see_request(&mut self, (uid, namespace): Author, failed: bool) {
        let is_of = |failures: &Failures| (failures.uid, &failures.namespace) == (uid, &namespace);
        let place = self.failures.iter().position(is_of);
        match (place, failed) {
            (Some(place), true) => {
                let failures = &mut self.failures[place];
                (failures.in_a_row, failures.last) = (failures.in_a_row.saturating_add(1), None);
            }
            (None, true) => self.failures.push(Failures { uid, namespace, in_a_row: 1, last: None }),
            (Some(place), false) => drop(self.failures.remove(place)),
            (None, false) => {}
        }
    }

    /// Closes the breaker of each author against whom no action failed for the time `reset`.
    pub(crate) fn forget_failures(&mut self, tick: &Tick<'_>, reset: Duration) {
        self.failures.retain_mut(|failures| {
            let open = failures.open();
            let last = failures.last.get_or_insert_with(|| tick.stamp());
            !open || last.ago(tick.now, tick.boot_id()) < reset
        });
    }

    /// Closes all breakers, on an administrator's command.
    pub(crate) fn close(&mut self) {
        self.mass.close();
        self.unknown.close();
        self.failures.clear();
        self.driver_hang = Breaker::Closed;
        self.driver.hung.values_mut().for_each(|(_, follows)| *follows = false);
    }

    /// The authors whose failure breaker is open.
    pub(crate) fn failing(&self) -> impl Iterator<Item = Author> {
        let open = self.failures.iter().filter(|failures| failures.open());
        open.map(|failures| (failures.uid, failures.namespace.clone()))
    }

    /// Breakers that are open for the node.
    pub(crate) fn open(&self) -> impl Iterator<Item = Hold> {
        [
            (self.mass == Breaker::Open, Hold::MassBreaker),
            (self.failing().count() >= USERS, Hold::FailureBreaker),
            (self.unknown == Breaker::Open, Hold::UnknownBreaker),
            (self.driver_hang == Breaker::Open, Hold::DriverHangBreaker),
        ]
        .into_iter()
        .filter_map(|(open, hold)| open.then_some(hold))
    }
}

/// Returns the UUIDs of the GPUs that did not respond in time, and an empty string if the driver did not.
fn hung(view: &View) -> impl Iterator<Item = &str> {
    let is_late = |fault: Option<&Word<Fault>>| fault.and_then(Word::known) == Some(Fault::Timeout);
    let gpus = view.snapshot.gpus.iter().filter(move |gpu| is_late(gpu.fault.as_ref()));
    let driver = view.snapshot.sources.get("nvml").filter(move |source| is_late(source.fault.as_ref()));
    gpus.filter_map(|gpu| gpu.uuid.as_deref()).chain(driver.map(|_| ""))
}

impl super::Engine {
    /// Users, or namespaces of pods, whose failure breaker is open; neither stands for targets without a single owner.
    pub fn failing_authors(&self) -> impl Iterator<Item = (Option<u32>, Option<String>)> {
        self.actions.breakers.failing()
    }
}
