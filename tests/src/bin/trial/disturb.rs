//! Random disturbances in the trial.

use std::collections::BTreeSet;
use std::fs::{self, OpenOptions};
use std::time::Duration;

use rustix::fs::{CWD, FileType, Mode, mknodat};
use rustix::process::Signal;
use serde_json::json;

use crate::daemons::{self, Daemon};
use crate::policy::{COMPUTING, CONTAINER, PROCESS, PROTECTED, Policy, TREE, TWO_GPUS, YOUNG};
use crate::world::{GPUS, Spec};
use crate::{Trial, boot};

/// A delayed event.
pub(crate) type Later = Box<dyn FnOnce(&mut Trial)>;

/// A disturbance with its relative frequency.
type Disturbance = (&'static str, u64, fn(&mut Trial) -> Option<()>);

#[expect(clippy::unit_arg, reason = "these can always be done")]
const ALL: [Disturbance; 21] = [
    ("use", 300, |trial| trial.flip()),
    ("stop target", 6, |trial| trial.stop_target()),
    ("reuse pid", 5, |trial| trial.reuse_pid()),
    ("end target", 3, |trial| trial.end_target()),
    ("kill exporter", 1, |trial| trial.kill(Daemon::Exporter)),
    ("kill enforcer", 1, |trial| trial.kill(Daemon::Enforcer)),
    ("stop exporter", 2, |trial| trial.stop_daemon(Daemon::Exporter)),
    ("stop enforcer", 2, |trial| trial.stop_daemon(Daemon::Enforcer)),
    ("hang driver", 1, |trial| Some(trial.hang())),
    ("move to another cgroup", 4, |trial| trial.change_cgroup()),
    ("lose GPU", 8, |trial| trial.lose_gpu()),
    ("rules: protect a user", 3, |trial| trial.protect_user()),
    ("rules: protect a name", 1, |trial| {
        trial.reload(Policy { comms: vec!["work".to_owned()], ..Policy::open() })
    }),
    ("rules: watch", 1, |trial| trial.reload(Policy { watch: true, ..Policy::open() })),
    ("rules: small budgets", 1, |trial| trial.small_budgets()),
    ("rules: invalid", 1, |trial| Some(trial.invalid())),
    ("rules: FIFO", 1, |trial| trial.fifo()),
    ("full disk", 1, |trial| Some(trial.fill())),
    ("slow sync", 8, |trial| Some(trial.slow())),
    ("short holders", 3, |trial| Some(trial.short_holders())),
    ("pause", 3, |trial| trial.pause()),
];

/// Number of long-lived targets at a time.
const TARGETS: usize = 16;

impl Trial {
    /// Applies a random disturbance that is possible now.
    pub(crate) fn disturb(&mut self) {
        let sum = ALL.iter().map(|(_, weight, _)| weight).sum::<u64>();
        let mut left = self.dice.within(0, sum - 1);
        for (name, weight, act) in &ALL {
            if left < *weight {
                let at = boot();
                if act(self).is_some() {
                    self.witness.count(format!("disturbance {name}"));
                    if *name != "use" {
                        self.note_at(at, None, format!("disturbance: {name}"));
                    }
                }
                return;
            }
            left -= weight;
        }
    }

    /// Keeps the number of targets constant, and closes breakers as an administrator would.
    pub(crate) fn upkeep(&mut self) {
        if self.world.targets().len() < TARGETS
            && self.world.processes.iter().filter(|p| p.born + Duration::from_secs(1) > boot()).count() < 3
        {
            let spec = self.spec();
            self.world.spawn(&self.daemons.home, spec, None);
        }
        if self.resumed + Duration::from_secs(2) < boot() && !self.paused && !self.rules_busy {
            self.resumed = boot();
            self.query("resume");
        }
    }

    /// Returns a random target.
    fn spec(&mut self) -> Spec {
        // A process cannot be started on a lost GPU.
        let lost = self.world.faults.lost;
        let there: Vec<usize> = (0..GPUS).filter(|gpu| !lost[*gpu]).collect();
        let gpu = self.dice.pick(&there).copied().unwrap_or_default();
        let kinds = ["obedient", "obedient", "ignore", "checkpoint", "forker", "leaderless"];
        let kind = self.dice.pick(&kinds).copied().unwrap_or("obedient");
        let milliseconds = self.dice.within(5_000, 40_000);
        let spec = Spec {
            kind,
            uid: PROCESS,
            comm: "work",
            container: None,
            nested: false,
            precious: false,
            milliseconds,
            gpus: vec![gpu],
            sm: 80,
        };
        // Exempt processes are usually idle.
        let idle = Spec { sm: 0, ..spec.clone() };
        let second = there.iter().copied().find(|other| *other != gpu).unwrap_or(gpu);
        match self.dice.within(0, 19) {
            0..=4 => spec,
            5 | 6 => {
                Spec { uid: TWO_GPUS, gpus: BTreeSet::from([gpu, second]).into_iter().collect(), ..spec }
            }
            7 => Spec { uid: YOUNG, sm: 0, ..spec },
            8 | 9 => Spec { uid: TREE, ..spec },
            10 | 11 => Spec { uid: CONTAINER, container: Some(0), ..spec },
            12 => Spec { uid: CONTAINER, container: Some(1), ..spec },
            13 => Spec { uid: CONTAINER, container: Some(0), nested: true, ..spec },
            14 if self.dice.percent(50) => Spec { uid: COMPUTING, kind: "spin", sm: 0, ..spec },
            14 => Spec { uid: COMPUTING, ..spec },
            15 => Spec { uid: PROTECTED, ..idle },
            16 => Spec { comm: "precious", ..idle },
            17 => Spec { precious: true, ..idle },
            18 => Spec { comm: "exempted", uid: if self.dice.percent(50) { 0 } else { PROCESS }, ..idle },
            _ => Spec { kind: "foreign", uid: if self.dice.percent(50) { TREE } else { PROCESS }, ..idle },
        }
    }

    fn target(&mut self) -> Option<usize> {
        let all = self.world.targets();
        self.dice.pick(&all).copied()
    }

    /// Schedules an event after a random number of milliseconds.
    pub(crate) fn after(&mut self, from: u64, to: u64, later: impl FnOnce(&mut Self) + 'static) {
        let at = boot() + Duration::from_millis(self.dice.within(from, to));
        self.number += 1;
        self.later.insert((at, self.number), Box::new(later));
    }

    fn flip(&mut self) -> Option<()> {
        let index = self.target()?;
        let process = &self.world.processes[index];
        if process.kind == "spin" {
            self.world.signal(index, Signal::USR2);
            self.after(600, 4_000, move |trial| trial.world.signal(index, Signal::USR2));
            return Some(());
        }
        let busy = self.world.targets().iter().filter(|index| self.world.processes[**index].sm() > 0).count();
        // If half of all workloads were idle, a breaker would stop all actions.
        if process.sm() > 0 && busy * 3 < self.world.targets().len() * 2 {
            return None;
        }
        let sm = if process.sm() > 0 { 0 } else { 80 };
        // A container is idle only if all of its processes are.
        let container = process.container.clone();
        let all = self.world.targets().into_iter().filter(|other| {
            *other == index || (container.is_some() && self.world.processes[*other].container == container)
        });
        for index in all.collect::<Vec<_>>() {
            self.use_now(index, sm);
            if sm == 0 {
                self.after(600, 5_000, move |trial| trial.use_now(index, 80));
            }
        }
        Some(())
    }

    fn change_cgroup(&mut self) -> Option<()> {
        let mut all = self.world.targets();
        all.retain(|index| self.world.processes[*index].container.is_some());
        let index = *self.dice.pick(&all)?;
        self.world.change_cgroup(index)
    }

    /// Sets the utilization of a target from now on.
    pub(crate) fn use_now(&mut self, index: usize, sm: u32) {
        if self.world.processes[index].ended.is_some() {
            return;
        }
        self.world.set(index, sm);
        let text = format!("{} computes at {sm}%", self.world.processes[index].name());
        self.note(Some(index), text);
    }

    fn stop_target(&mut self) -> Option<()> {
        let index = self.target()?;
        self.stop_now(index);
        Some(())
    }

    pub(crate) fn stop_now(&mut self, index: usize) {
        if self.world.processes[index].stopped_at(boot()).is_none() {
            self.world.stop(index, true);
            self.note(
                Some(index),
                format!("{} was stopped by the trial", self.world.processes[index].name()),
            );
            self.after(200, 4_000, move |trial| trial.continue_target(index));
        }
    }

    fn continue_target(&mut self, index: usize) {
        self.world.stop(index, false);
        self.note(Some(index), "continued by the trial".to_owned());
    }

    /// Kills a target. As soon as its pid is free, a busy target is started with the same pid.
    fn reuse_pid(&mut self) -> Option<()> {
        let index = self.target()?;
        let old = &self.world.processes[index];
        let (pid, uid) = (old.pid, old.uid);
        let spec = Spec { uid, sm: 80, ..self.spec() };
        self.reuse.insert(pid, spec);
        self.world.signal(index, Signal::KILL);
        Some(())
    }

    fn end_target(&mut self) -> Option<()> {
        let index = self.target()?;
        self.world.signal(index, Signal::KILL);
        Some(())
    }

    fn kill(&mut self, which: Daemon) -> Option<()> {
        self.daemons.pid(which)?;
        self.expected.insert(which);
        self.daemons.signal(which, Signal::KILL);
        // Without the state file, the budgets start at zero again.
        if which == Daemon::Enforcer && self.dice.percent(20) {
            self.forget = true;
        }
        self.after(100, 1_000, move |trial| trial.start(which));
        Some(())
    }

    fn stop_daemon(&mut self, which: Daemon) -> Option<()> {
        self.daemons.pid(which).filter(|_| !self.daemons.stopped[which as usize])?;
        self.daemons.signal(which, Signal::STOP);
        self.after(100, 1_500, move |trial| {
            trial.daemons.signal(which, Signal::CONT);
            trial.note(None, format!("{which:?} was continued"));
        });
        Some(())
    }

    fn hang(&mut self) {
        self.change_driver(|faults| faults.hung = true);
        self.after(200, 1_500, |trial| trial.change_driver(|faults| faults.hung = false));
    }

    fn lose_gpu(&mut self) -> Option<()> {
        let gpu = usize::try_from(self.dice.within(0, 2)).ok()?;
        if self.world.faults.lost.iter().filter(|lost| **lost).count() + 1 == GPUS {
            return None;
        }
        self.change_driver(|faults| faults.lost[gpu] = true);
        self.after(500, 5_000, move |trial| trial.change_driver(|faults| faults.lost[gpu] = false));
        Some(())
    }

    fn protect_user(&mut self) -> Option<()> {
        let user = *self.dice.pick(&[PROCESS, YOUNG, TREE, CONTAINER, TWO_GPUS, COMPUTING])?;
        self.reload(Policy { protect: vec![user], ..Policy::open() })
    }

    fn small_budgets(&mut self) -> Option<()> {
        let limits = match self.dice.within(0, 2) {
            0 => [2, 100_000, 100_000],
            1 => [100_000, 3, 100_000],
            _ => [100_000, 100_000, usize::try_from(self.witness.budget_used() + 2).ok()?],
        };
        self.reload(Policy { limits, ..Policy::open() })
    }

    fn reload(&mut self, policy: Policy) -> Option<()> {
        if self.rules_busy {
            return None;
        }
        self.rules_busy = true;
        self.write_rules(policy);
        self.after(1_500, 6_000, Self::good_rules);
        Some(())
    }

    /// Replaces the rules and requests a reload.
    pub(crate) fn write_rules(&mut self, policy: Policy) {
        let home = &self.daemons.home;
        home.write(&policy.text(self.world.protected_program()));
        let sha256 = daemons::sha256(&home.rules());
        self.note(None, format!("rules {sha256:.8}: {policy:?}"));
        self.witness.policies.insert(sha256, policy);
        self.query("reload");
    }

    fn invalid(&mut self) {
        if !self.rules_busy {
            self.rules_busy = true;
            self.daemons.home.write("version: 1\nrules: []\n");
            self.query("reload");
            self.after(500, 2_500, Self::good_rules);
        }
    }

    fn fifo(&mut self) -> Option<()> {
        if !self.rules_busy {
            self.rules_busy = true;
            let next = self.daemons.home.path().join("next");
            mknodat(CWD, &next, FileType::Fifo, Mode::from_raw_mode(0o644), 0).ok()?;
            fs::rename(next, self.daemons.home.rules()).ok()?;
            self.after(1_000, 1_000, Self::end_fifo);
        }
        Some(())
    }

    fn fill(&mut self) {
        self.daemons.fill(true);
        self.after(500, 3_000, |trial| trial.daemons.fill(false));
    }

    /// Delays each sync to the disk by half an interval to one and a half intervals.
    fn slow(&mut self) {
        self.daemons.sync.set(self.dice.within(100, 300));
        self.after(2_000, 8_000, |trial| trial.daemons.sync.set(0));
    }

    fn short_holders(&mut self) {
        for _ in 0..self.dice.within(2, 5) {
            let spec = Spec { milliseconds: self.dice.within(200, 1_500), ..self.spec() };
            self.world.spawn(&self.daemons.home, spec, None);
        }
    }

    fn pause(&mut self) -> Option<()> {
        if self.paused || !self.query("pause") {
            return None;
        }
        self.paused = true;
        self.witness.pauses.push((boot(), Duration::MAX));
        self.after(500, 3_000, Self::resume);
        Some(())
    }

    fn running(&self) -> bool {
        self.daemons.pid(Daemon::Enforcer).is_some() && !self.daemons.stopped[Daemon::Enforcer as usize]
    }

    /// Sends a command to the enforcer; returns whether it was confirmed.
    fn query(&mut self, command: &str) -> bool {
        if !self.running() {
            return false;
        }
        let answer = self.daemons.query(&json!({"command": command}), Duration::from_secs(2));
        self.note(
            None,
            format!("{command}: {}", answer.as_ref().map_or("no answer".to_owned(), ToString::to_string)),
        );
        if answer.is_none() {
            self.witness.count(format!("unanswered {command}"));
        }
        answer.is_some_and(|answer| answer["ok"] == true)
    }

    fn end_fifo(&mut self) {
        if self.running()
            && self.daemons.query(&json!({"command": "status"}), Duration::from_secs(5)).is_none()
        {
            let text = "its status was queried while the rules file was a FIFO".to_owned();
            self.witness.violate(boot(), "an enforcer that does not answer", (text, None));
        }
        // A blocked reader of the FIFO continues now.
        let fifo = OpenOptions::new().read(true).write(true).open(self.daemons.home.rules());
        self.good_rules();
        self.fifo = fifo.ok();
    }

    fn good_rules(&mut self) {
        self.fifo = None;
        self.write_rules(Policy::open());
        (self.rules_busy, self.rules_good) = (false, boot());
    }

    fn change_driver(&mut self, change: impl FnOnce(&mut crate::world::Faults)) {
        change(&mut self.world.faults);
        self.world.write_scenario();
        self.note(None, format!("the driver: {:?}", self.world.faults));
    }

    fn resume(&mut self) {
        // The pause is over when the request is sent, because actions may continue before the
        // response.
        self.end_pause();
        if !self.query("resume") {
            self.after(500, 500, Self::resume);
        }
    }

    /// Records that actions are permitted from now on.
    pub(crate) fn end_pause(&mut self) {
        self.paused = false;
        if let Some((_, end)) = self.witness.pauses.last_mut() {
            *end = boot().min(*end);
        }
    }
}
