//! A server that ends, and comes back with what it had saved some time ago. Those who hold say so; those whose leases
//! have ended since are found to be dead.

use crate::{Client, Dead, Walk};

/// What is kept of a pool to come back to.
#[derive(Debug, Default)]
pub(crate) struct Past {
    saved: bool,
    /// Nothing is given away until all who hold have spoken.
    closed: bool,
}

impl Walk {
    /// Copies all keys into another database.
    pub(crate) fn save(&mut self) {
        self.copy("0", "1");
        self.past.saved = true;
    }

    pub(crate) fn go_back(&mut self) {
        if !self.past.saved {
            return;
        }
        self.world.count("went back");
        // Whom the dead have left behind nobody asks back.
        while !self.world.orphans.is_empty() {
            self.orphan_ends();
        }
        self.agent.request(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
        self.copy("1", "0");
        self.agent.request(&["HSET", "GPU_V2:META", "run", "another", "barrier_ms", "600000"]);
        self.agent.request(&["HDEL", "GPU_V2:META", "barrier"]);
        self.law.forget();
        self.past.closed = true;
        for client in self.clients.values_mut() {
            match client {
                Client::Ours(client) => client.reconnect(&mut self.world),
                Client::Legacy(_) | Client::Compat(_) => unreachable!("what they have nobody asks back"),
            }
        }
        for lease in self.agent.request(&["ZRANGE", "GPU_V2:EXP", "0", "-1"]).texts() {
            let lives = self.clients.values().any(|client| match client {
                Client::Ours(client) => client.lease == lease,
                Client::Legacy(_) | Client::Compat(_) => false,
            });
            if !lives {
                self.dead.push_back(Dead::Lease(lease));
            }
        }
    }

    /// Ends the barrier once all have spoken.
    pub(crate) fn open_again(&mut self) {
        let silent = |client: &Client| matches!(client, Client::Ours(client) if client.silent());
        if self.past.closed && !self.clients.values().any(silent) {
            self.past.closed = false;
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
