//! Energy of a GPU by user, from the driver's counter. All values are integers, so the parts add up exactly to the
//! observed increases of the counter.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Shortest window whose average power is used as the idle power. The driver's counter has a new value about every
/// 50 ms, so shorter windows are inexact.
const IDLE_POWER_WINDOW: Duration = Duration::from_secs(1);

/// Maximum number of users with a part of a GPU's energy. Parts are never removed, and a user can have many uids.
pub const MOST_USERS: usize = 256;

/// Energy of one GPU by part, in millijoules.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EnergyParts {
    /// Energy of each user, by name, or by uid if there is no name; at most [`MOST_USERS`].
    pub users: BTreeMap<String, u64>,
    /// Energy used while the GPU was observed idle, and the idle power of other windows.
    pub idle: u64,
    /// Energy that cannot be attributed.
    pub unattributed: u64,
}

/// Energy of one GPU since the exporter started.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Energy {
    /// Sums of all windows; `None` until an increase of the counter was observed.
    pub parts: Option<EnergyParts>,
    counter: Option<Counter>,
    /// Smallest average power of a window in which the GPU was observed idle, in milliwatts.
    idle_power: Option<u64>,
}

/// Value of the driver's counter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Counter {
    /// Time of the sample, since boot.
    pub(crate) at: Duration,
    pub(crate) millijoules: u64,
}

/// Highest samples of SM utilization in the window, summed over the processes of each user; `None` is the key of
/// processes without a known user.
pub(crate) type Weights = BTreeMap<Option<String>, u64>;

/// What used the GPU in one window.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Usage {
    /// Nothing, as observed.
    Idle,
    /// Users with these weights, of which at least one is not 0.
    Shared(Weights),
    Unknown,
}

impl Energy {
    /// Adds the increase of the counter since its last value. A counter that fell was reset, so that the energy since
    /// its last value is unknown and counts nowhere. `window_start` is the time of the previous sample.
    pub(crate) fn add(&mut self, now: Counter, window_start: Option<Duration>, usage: Usage) {
        let Some(before) = self.counter.replace(now) else { return };
        let Some(increase) = now.millijoules.checked_sub(before.millijoules) else { return };
        let window = now.at.saturating_sub(before.at);
        let is_window_observed = window_start == Some(before.at);
        if is_window_observed && usage == Usage::Idle && window >= IDLE_POWER_WINDOW {
            let power = power(increase, window);
            self.idle_power = Some(self.idle_power.map_or(power, |least| least.min(power)));
        }
        let parts = self.parts.get_or_insert_default();
        match usage {
            Usage::Idle if is_window_observed => parts.idle = parts.idle.saturating_add(increase),
            Usage::Shared(weights) if is_window_observed => {
                let idle = self.idle_power.map_or(0, |power| energy(power, window)).min(increase);
                parts.idle = parts.idle.saturating_add(idle);
                parts.share(increase - idle, &weights);
            }
            Usage::Idle | Usage::Shared(_) | Usage::Unknown => {
                parts.unattributed = parts.unattributed.saturating_add(increase);
            }
        }
    }
}

impl EnergyParts {
    /// Splits energy by weight. The largest remainders are rounded up, so that the sum is exact.
    fn share(&mut self, millijoules: u64, weights: &Weights) {
        let all: u128 = weights.values().copied().map(u128::from).sum();
        let mut shares: Vec<(u128, Option<&String>, u64)> = weights
            .iter()
            .filter(|(_, weight)| **weight > 0)
            .map(|(user, weight)| {
                let product = u128::from(millijoules) * u128::from(*weight);
                let share = u64::try_from(product / all).unwrap_or(u64::MAX);
                (product % all, user.as_ref(), share)
            })
            .collect();
        let shared: u64 = shares.iter().map(|(.., share)| share).sum();
        shares.sort_by(|one, other| other.0.cmp(&one.0).then(one.1.cmp(&other.1)));
        let mut left = millijoules - shared;
        for (_, user, share) in shares {
            let rounded = share + u64::from(left > 0);
            left = left.saturating_sub(1);
            match user {
                Some(user) if self.users.len() < MOST_USERS || self.users.contains_key(user) => {
                    *self.users.entry(user.clone()).or_default() += rounded;
                }
                _ => self.unattributed += rounded,
            }
        }
        self.unattributed += left;
    }

    /// Returns the sum of all parts.
    pub fn sum(&self) -> u64 {
        self.users.values().sum::<u64>() + self.idle + self.unattributed
    }
}

/// Returns the average power in milliwatts, rounded down.
fn power(millijoules: u64, window: Duration) -> u64 {
    let milliwatts = u128::from(millijoules) * 1000 / window.as_millis().max(1);
    u64::try_from(milliwatts).unwrap_or(u64::MAX)
}

/// Returns the energy in millijoules, rounded down.
fn energy(milliwatts: u64, window: Duration) -> u64 {
    u64::try_from(u128::from(milliwatts) * window.as_millis() / 1000).unwrap_or(u64::MAX)
}
