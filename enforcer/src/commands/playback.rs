//! Replays the past: snapshots pass through the daemon's engine with their own clock, and every action is reported
//! as done. `replay`, `backtest` and rule tests differ only in where the snapshots come from.

use std::sync::Arc;
use std::time::Duration;

use bailiff_snapshot::wire;

use bailiff_engine::engine::{Engine, Now, Skip};
use bailiff_engine::policy::{Action, Mode, Policy};
use bailiff_engine::verdict::{ActionReport, Outcome, Verdict, What};
use bailiff_engine::view::View;

/// An engine on past snapshots.
#[derive(Debug)]
pub(super) struct Playback {
    pub(super) engine: Engine,
    /// The last evaluated snapshot.
    pub(super) last: Option<Arc<View>>,
    /// Results of actions, for the next snapshot.
    reports: Vec<ActionReport>,
}

impl Playback {
    pub(super) fn new(policy: Arc<Policy>) -> Self {
        Self { engine: Engine::new(policy, Mode::Enforce), last: None, reports: Vec::new() }
    }

    /// Takes the next snapshot, and reports the actions of the one before.
    pub(super) fn next(&mut self, snapshot: wire::Snapshot) -> Arc<View> {
        for report in self.reports.drain(..) {
            self.engine.report(&report);
        }
        Arc::new(View::between(self.last.as_deref(), snapshot))
    }

    /// Evaluates a snapshot.
    pub(super) fn evaluate(&mut self, view: &Arc<View>) -> Result<Vec<Verdict>, Skip> {
        let now = Now { boot: view.boot(), wall: Duration::from_millis(view.snapshot.wall_ms) };
        let verdicts = self.engine.tick(now, Arc::clone(view))?;
        for verdict in &verdicts {
            match &verdict.what {
                What::Act(id, action) => self.reports.push(done(*id, verdict.mode, action)),
                // Whether a channel would have delivered it is not known: it is taken as delivered.
                What::Notify(_) => self.engine.delivered(&verdict.rule, &verdict.subject.id),
                _ => {}
            }
        }
        self.last = Some(Arc::clone(view));
        Ok(verdicts)
    }
}

/// Returns the simulated result of an action. A terminated target may remain in the recording, in which it was not terminated.
fn done(id: u64, mode: Mode, action: &Action) -> ActionReport {
    let outcome = match (mode, action) {
        (Mode::DryRun, _) | (_, Action::Terminate { .. }) => Outcome::DryRun,
        (Mode::Enforce, _) => Outcome::Done,
    };
    ActionReport { acted: mode == Mode::Enforce, ..ActionReport::new(id, outcome, "") }
}
