//! Orders to the lease agent, and its events.

use super::Daemon;
use crate::agent::{AgentEvent, Orders};
use crate::status::tally::LeaseAct;
use bailiff_engine::policy::Mode;
use bailiff_engine::verdict::Hold;

/// Holds that stop the lease agent. Others affect only rules: an exited lease holder has exited in any case.
const HOLDS: [Hold; 4] = [Hold::Paused, Hold::InvalidFile, Hold::Audit, Hold::Untrusted];

impl Daemon {
    /// Sends the lease settings, and whether the agent may act, to the lease agent if they have changed.
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
