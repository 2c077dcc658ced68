//! The rows `energy`, `energy-idle` and `energy-users`: the published parts add up to the increase of the driver's
//! counter.

use std::collections::BTreeMap;

use bailiff_snapshot::EnergyParts;
use bailiff_snapshot::wire::Gpu;

use crate::programs::{self, until};
use crate::report::{Tried, outcome};
use crate::run::{FOREIGN_PIDS, Run};
use crate::worker::{OTHER_USER, Work};

/// Increases in a period, in millijoules.
struct Increase {
    counter: i128,
    /// Sum of the parts.
    sum: i128,
    users: BTreeMap<String, i128>,
    idle: i128,
    unattributed: i128,
    snapshots: usize,
}

impl Increase {
    fn of_users(&self) -> i128 {
        self.users.values().sum()
    }

    /// Returns what the driver answered, and what was published.
    fn cells(&self) -> [String; 2] {
        let Self { counter, snapshots, idle, unattributed, .. } = self;
        [
            format!("the counter grew by {counter} mJ in {snapshots} snapshots"),
            format!("users {} mJ, idle {idle} mJ, unattributed {unattributed} mJ", self.of_users()),
        ]
    }

    /// Builds an outcome from the claims about all parts and these claims.
    fn outcome(&self, done: &str, claims: &[(bool, &'static str)]) -> Tried {
        let [answer, published] = self.cells();
        let common = [
            (self.counter > 0, "the counter does not grow"),
            (self.sum == self.counter, "the parts do not add up to it"),
        ];
        outcome([done, &answer, &published], &[&common, claims].concat())
    }
}

impl Run {
    pub(crate) fn energy(&mut self) -> Tried {
        let increase = self.increase(&["idle", "busy"])?;
        let known = increase.of_users() > 0 || self.card.others > 0 || !self.setting.shares_pid_namespace;
        increase.outcome("a process launched one kernel after the other", &[(known, "no user got energy")])
    }

    pub(crate) fn energy_idle(&mut self) -> Tried {
        self.alone()?;
        let increase = self.increase(&["idle"])?;
        let claims = [
            (increase.of_users() == 0, "a user got energy while no process computed"),
            (increase.idle > 0, "no energy is idle"),
        ];
        increase.outcome("a process had a context", &claims)
    }

    pub(crate) fn energy_users(&mut self) -> Tried {
        self.alone()?;
        let increase = self.increase(&["idle", "busy", OTHER_USER])?;
        let users = increase.users.values().filter(|energy| **energy > 0).count();
        increase.outcome("two processes of two users computed", &[(users == 2, "not both users got energy")])
    }

    /// Checks that no process of others uses the GPU, and that the processes on it are known.
    fn alone(&self) -> Result<(), String> {
        match self.card.others {
            0 if self.setting.shares_pid_namespace => Ok(()),
            0 => Err(FOREIGN_PIDS.to_owned()),
            others => Err(format!("{others} processes of others are on the GPU")),
        }
    }

    /// Returns what was added to the counter and to its parts while these workers ran.
    fn increase(&mut self, works: &[Work]) -> Result<Increase, String> {
        self.without_mig()?;
        self.let_run(works)?;
        let (setting, uuid) = (&self.setting, self.card.uuid.clone());
        let of_gpu = |gpus: Vec<Gpu>| gpus.into_iter().find(|gpu| gpu.uuid.as_deref() == Some(uuid.as_str()));
        until("two snapshots", || programs::snapshots(setting, 0).len() > 1)?;
        let snapshots = self.observe()?.snapshots;
        let gpus: Vec<Gpu> = snapshots.into_iter().filter_map(|snapshot| of_gpu(snapshot.gpus)).collect();
        let (Some(first), Some(last)) = (gpus.first(), gpus.last()) else {
            return Err("no snapshot".to_owned());
        };
        let (Some(then), Some(now)) = (first.energy_mj, last.energy_mj) else {
            return Err("the driver does not report the energy".to_owned());
        };
        let [before, after] = [first, last].map(|gpu| gpu.energy_parts_mj.clone().unwrap_or_default());
        let grown = |part: fn(&EnergyParts) -> u64| i128::from(part(&after)) - i128::from(part(&before));
        let of_user = |(user, energy): (&String, &u64)| {
            let earlier = before.users.get(user).copied().unwrap_or_default();
            (user.clone(), i128::from(*energy) - i128::from(earlier))
        };
        Ok(Increase {
            counter: i128::from(now) - i128::from(then),
            sum: grown(EnergyParts::sum),
            users: after.users.iter().map(of_user).collect(),
            idle: grown(|parts| parts.idle),
            unattributed: grown(|parts| parts.unattributed),
            snapshots: gpus.len(),
        })
    }
}
