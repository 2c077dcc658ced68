//! The node's agent: what it notices of deaths, clears and puts back.

use bailiff_lease::Op;

use crate::wire;
use crate::world::{PREFIX, Who, call};
use crate::{Client, Dead, Walk};

impl Walk {
    /// Whoever was left on a GPU ends, and the agent sees that it is quiet.
    pub(crate) fn orphan_ends(&mut self) {
        let Some(id) = self.world.orphans.pop_first() else { return };
        self.clear(&id);
    }

    /// Nobody is left on a GPU, and the agent sees that of all that are withheld: an older state may know more of them.
    pub(crate) fn all_quiet(&mut self) {
        while !self.world.orphans.is_empty() {
            self.orphan_ends();
        }
        for id in self.agent.request(&["HKEYS", "GPU_V2:QUAR"]).texts() {
            if self.world.holders[&id].is_empty() {
                self.clear(&id);
            }
        }
    }

    fn clear(&mut self, id: &str) {
        let withheld = self.agent.request(&["HGET", "GPU_V2:QUAR", id]);
        if withheld != wire::Reply::Nil && withheld.text().starts_with("busy:") {
            self.world.tell(Who { ours: true, number: 0 }, &format!("clears {id}"));
            let how = self.agent.request(&call(Op::Clear, &[id, &withheld.text()])).text();
            if how == "freed" {
                self.world.count("cleared");
            }
        }
    }

    /// The agent learns of a death.
    pub(crate) fn notice(&mut self) {
        match self.dead.pop_front() {
            Some(Dead::Lease(lease)) => {
                let busy: Vec<String> = self.world.orphans.iter().cloned().collect();
                let mut about = vec![lease.as_str(), self.dead_as(&lease), "", "", ""];
                about.extend(busy.iter().map(String::as_str));
                self.agent.request(&call(Op::Kill, &about));
            }
            Some(Dead::Legacy(pid)) if !self.resolve(|recorded| recorded.is_empty() || recorded == pid) => {
                self.dead.push_back(Dead::Legacy(pid));
            }
            Some(Dead::Legacy(_)) | None => {}
        }
    }

    /// A client of GPU.py's is between two of its commands: what it has popped and not recorded looks just like what is
    /// lost.
    fn busy(&mut self) -> bool {
        let busy = |client: &mut Client| match client {
            Client::Legacy(client) => client.runnable(),
            Client::Ours(_) | Client::Compat(_) => false,
        };
        self.clients.values_mut().any(busy)
    }

    /// Nobody can go on: what is withheld is looked at, and what is nowhere.
    pub(crate) fn look_around(&mut self) {
        self.all_quiet();
        let withheld = self.agent.request(&["HKEYS", "GPU_V2:QUAR"]).texts();
        if withheld.is_empty() {
            self.nudge();
            self.settle();
            if !self.runnable().is_empty() {
                return;
            }
            self.quiet += 1;
            if self.quiet > 30 {
                let audit = self.agent.request(&call(Op::Audit, &[])).text();
                panic!("nobody can go on: {audit}{}", self.world.story());
            }
            if self.quiet.is_multiple_of(10) {
                self.resolve(|_| true);
            }
        }
        for id in withheld {
            self.settle();
            if self.busy() {
                return;
            }
            if self.world.holders[&id].is_empty() {
                let recorded = self.recorded(&id);
                self.agent.request(&call(Op::Resolve, &[&id, &recorded, "3600"]));
            } else {
                self.agent.request(&["HDEL", "GPU_V2:QUAR", &id]);
            }
        }
    }

    /// What is known of the death of a lease's holder.
    pub(crate) fn dead_as(&mut self, lease: &str) -> &'static str {
        let known = self.agent.request(&["HEXISTS", &format!("GPU_V2:LEASE:{lease}"), "known"]).text() == "1";
        if known { "known_dead" } else { "dead" }
    }

    fn recorded(&mut self, id: &str) -> String {
        match self.agent.request(&["HGET", &format!("{PREFIX}_GPU{id}"), "PID"]) {
            wire::Reply::Nil => String::new(),
            reply => reply.text(),
        }
    }

    /// Puts back what nobody holds, where its record says nothing else. What is put back may wake a client of GPU.py's,
    /// and then the rest waits until it has recorded itself. Tells whether all were looked at.
    pub(crate) fn resolve(&mut self, dead: impl Fn(&str) -> bool) -> bool {
        for id in self.world.ids.clone() {
            self.settle();
            if self.busy() {
                return false;
            }
            let recorded = self.recorded(&id);
            let held = !self.world.holders[&id].is_empty() || self.world.orphans.contains(&id);
            if !held && dead(&recorded) {
                let how = self.agent.request(&call(Op::Resolve, &[&id, &recorded, "3600"])).text();
                if how == "freed" {
                    self.world.count("put back");
                }
            }
        }
        true
    }
}
