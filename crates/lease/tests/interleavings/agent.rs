//! The node's agent in the model: it notices exits, ends quarantines and returns lost GPUs.

use bailiff_lease::Op;

use crate::connection;
use crate::model::{ClientId, PREFIX, call};
use crate::{Client, Exited, Run};

impl Run {
    /// Simulates that the last process on an orphaned GPU exits, and that the agent sees no further use of the GPU.
    pub(crate) fn orphan_ends(&mut self) {
        let Some(id) = self.model.orphans.pop_first() else { return };
        self.clear(&id);
    }

    /// Simulates that all orphaned processes exit, and that the agent ends all quarantines. An older state may contain
    /// more quarantines.
    pub(crate) fn end_quarantines(&mut self) {
        while !self.model.orphans.is_empty() {
            self.orphan_ends();
        }
        for id in self.agent.request(&["HKEYS", "GPU_V2:QUAR"]).texts() {
            if self.model.holders[&id].is_empty() {
                self.clear(&id);
            }
        }
    }

    fn clear(&mut self, id: &str) {
        let reason = self.agent.request(&["HGET", "GPU_V2:QUAR", id]);
        if reason != connection::Reply::Nil && reason.text().starts_with("busy:") {
            self.model.record(ClientId { ours: true, number: 0 }, &format!("clears {id}"));
            let how = self.agent.request(&call(Op::Clear, &[id, &reason.text()])).text();
            if how == "freed" {
                self.model.count("cleared");
            }
        }
    }

    /// Simulates that the agent notices the exit of a process.
    pub(crate) fn notice(&mut self) {
        match self.exited.pop_front() {
            Some(Exited::Lease(lease)) => {
                let busy: Vec<String> = self.model.orphans.iter().cloned().collect();
                let mut arguments = vec![lease.as_str(), self.kill_reason(&lease), "", "", ""];
                arguments.extend(busy.iter().map(String::as_str));
                self.agent.request(&call(Op::Kill, &arguments));
            }
            Some(Exited::Legacy(pid)) if !self.resolve(|recorded| recorded.is_empty() || recorded == pid) => {
                self.exited.push_back(Exited::Legacy(pid));
            }
            Some(Exited::Legacy(_)) | None => {}
        }
    }

    /// Returns whether a client of GPU.py is between two of its commands. A GPU that the client has popped but not
    /// recorded looks like a lost GPU.
    fn busy(&mut self) -> bool {
        let busy = |client: &mut Client| match client {
            Client::Legacy(client) => client.runnable(),
            Client::Native(_) | Client::Compat(_) => false,
        };
        self.clients.values_mut().any(busy)
    }

    /// Called when no client can continue: checks quarantined and lost GPUs.
    pub(crate) fn unblock(&mut self) {
        self.end_quarantines();
        let quarantined = self.agent.request(&["HKEYS", "GPU_V2:QUAR"]).texts();
        if quarantined.is_empty() {
            self.renew_waiting();
            self.settle();
            if !self.runnable().is_empty() {
                return;
            }
            self.quiet += 1;
            if self.quiet > 30 {
                let audit = self.agent.request(&call(Op::Audit, &[])).text();
                panic!("no client can continue: {audit}{}", self.model.trace());
            }
            if self.quiet.is_multiple_of(10) {
                self.resolve(|_| true);
            }
        }
        for id in quarantined {
            self.settle();
            if self.busy() {
                return;
            }
            if self.model.holders[&id].is_empty() {
                let recorded = self.recorded(&id);
                self.agent.request(&call(Op::Resolve, &[&id, &recorded, "3600"]));
            } else {
                self.agent.request(&["HDEL", "GPU_V2:QUAR", &id]);
            }
        }
    }

    /// Returns the reason for `Op::Kill`, which depends on whether the lease was acknowledged.
    pub(crate) fn kill_reason(&mut self, lease: &str) -> &'static str {
        let known = self.agent.request(&["HEXISTS", &format!("GPU_V2:LEASE:{lease}"), "known"]).text() == "1";
        if known { "known_dead" } else { "dead" }
    }

    fn recorded(&mut self, id: &str) -> String {
        match self.agent.request(&["HGET", &format!("{PREFIX}_GPU{id}"), "PID"]) {
            connection::Reply::Nil => String::new(),
            reply => reply.text(),
        }
    }

    /// Returns GPUs without a holder to the pool if their record allows it. A returned GPU may wake a client of
    /// GPU.py. The other GPUs are then checked after that client has written its record. Returns whether all GPUs were
    /// checked.
    pub(crate) fn resolve(&mut self, exited: impl Fn(&str) -> bool) -> bool {
        for id in self.model.ids.clone() {
            self.settle();
            if self.busy() {
                return false;
            }
            let recorded = self.recorded(&id);
            let held = !self.model.holders[&id].is_empty() || self.model.orphans.contains(&id);
            if !held && exited(&recorded) {
                let how = self.agent.request(&call(Op::Resolve, &[&id, &recorded, "3600"])).text();
                if how == "freed" {
                    self.model.count("put back");
                }
            }
        }
        true
    }
}
