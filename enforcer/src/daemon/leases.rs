//! Orders to the lease agent, and its events.

use super::Daemon;
use crate::agent::{AgentEvent, Orders};
use crate::web::tally::LeaseAct;
use bailiff_engine::policy::Mode;
use bailiff_engine::verdict::Hold;

/// Holds that keep it from acting. Others hold only rules: an ended holder has ended, whatever else is unknown.
const HOLDS: [Hold; 4] = [Hold::Paused, Hold::InvalidFile, Hold::Audit, Hold::Untrusted];

impl Daemon {
    /// Passes it the lease settings and whether it may act, after a change.
    pub(super) fn order_the_agent(&mut self) {
        let holds = self.engine.holds();
        let policy = self.engine.policy();
        let orders = Orders {
            leases: policy.leases.clone(),
            policy: policy.sha256.as_str().into(),
            acts: self.settings.most == Mode::Enforce && HOLDS.iter().all(|hold| !holds.contains(hold)),
        };
        if self.ordered != orders {
            self.ordered = orders.clone();
            self.agent.order(orders);
        }
    }

    pub(super) fn heard(&mut self, events: AgentEvent) {
        match events {
            AgentEvent::Status(status) => self.status.leases = status,
            AgentEvent::LeaseAction(act, result) => {
                self.status.counters.leases.count(LeaseAct { act, result });
            }
        }
    }
}
