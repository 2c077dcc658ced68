//! A server that is rolled back to a state that was saved earlier. Holders reclaim their leases. Leases that have
//! ended since then are found to have no running holder.

use crate::{Client, Exited, Run};

/// The state of rollbacks.
#[derive(Debug, Default)]
pub(crate) struct Rollback {
    saved: bool,
    /// Whether the barrier is closed. It is opened when all holders have renewed.
    closed: bool,
}

impl Run {
    /// Copies all keys into another database.
    pub(crate) fn save(&mut self) {
        self.copy("0", "1");
        self.rollback.saved = true;
    }

    pub(crate) fn roll_back(&mut self) {
        if !self.rollback.saved {
            return;
        }
        self.model.count("rollbacks");
        // The leases of orphaned processes would not be reclaimed.
        while !self.model.orphans.is_empty() {
            self.orphan_ends();
        }
        self.agent.request(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
        self.copy("1", "0");
        self.agent.request(&["HSET", "GPU_V2:META", "run", "another", "barrier_ms", "600000"]);
        self.agent.request(&["HDEL", "GPU_V2:META", "barrier"]);
        self.invariants.forget();
        self.rollback.closed = true;
        for client in self.clients.values_mut() {
            match client {
                Client::Native(client) => client.reconnect(&mut self.model),
                Client::Legacy(_) | Client::Compat(_) => unreachable!("these clients cannot reclaim"),
            }
        }
        for lease in self.agent.request(&["ZRANGE", "GPU_V2:EXP", "0", "-1"]).texts() {
            let lives = self.clients.values().any(|client| match client {
                Client::Native(client) => client.lease == lease,
                Client::Legacy(_) | Client::Compat(_) => false,
            });
            if !lives {
                self.exited.push_back(Exited::Lease(lease));
            }
        }
    }

    /// Ends the barrier once all holders have renewed.
    pub(crate) fn end_barrier(&mut self) {
        let silent = |client: &Client| matches!(client, Client::Native(client) if client.silent());
        if self.rollback.closed && !self.clients.values().any(silent) {
            self.rollback.closed = false;
            self.agent.request(&["HSET", "GPU_V2:META", "barrier", "1", "barrier_ms", "1"]);
        }
    }

    fn copy(&mut self, from: &str, to: &str) {
        self.agent.request(&["SELECT", to]);
        self.agent.request(&["FLUSHDB"]);
        self.agent.request(&["SELECT", from]);
        for key in self.agent.request(&["KEYS", "*"]).texts() {
            self.agent.request(&["COPY", &key, &key, "DB", to]);
        }
        self.agent.request(&["SELECT", "0"]);
    }
}
