//! The row `energy`: the published parts add up to the increase of the driver's counter.

use bailiff_snapshot::EnergyParts;
use bailiff_snapshot::wire::Gpu;

use crate::programs::{self, until};
use crate::report::{Tried, outcome};
use crate::run::Run;

impl Run {
    pub(crate) fn energy(&mut self) -> Tried {
        if self.card.mig {
            return Err("MIG is on".to_owned());
        }
        self.let_run(&["idle", "busy"])?;
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
        let increase = i128::from(now) - i128::from(then);
        let [before, after] = [first, last].map(|gpu| gpu.energy_parts_mj.clone().unwrap_or_default());
        let grown = |part: fn(&EnergyParts) -> u64| i128::from(part(&after)) - i128::from(part(&before));
        let users = grown(|parts| parts.users.values().sum());
        let answer = format!("the counter grew by {increase} mJ in {} snapshots", gpus.len());
        let published = format!(
            "users {users} mJ, idle {} mJ, unattributed {} mJ",
            grown(|parts| parts.idle),
            grown(|parts| parts.unattributed)
        );
        let claims = [
            (increase > 0, "the counter does not grow"),
            (grown(EnergyParts::sum) == increase, "the parts do not add up to it"),
            (users > 0 || self.card.others > 0 || !self.setting.shares_pid_namespace, "no user got energy"),
        ];
        outcome(["a process launched one kernel after the other", &answer, &published], &claims)
    }
}
