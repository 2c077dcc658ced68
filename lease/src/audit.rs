//! Everything in a pool at one moment, as Redis tells it.

use std::collections::BTreeMap;

use serde::Deserialize;

/// A pool at one moment.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Audit {
    /// Milliseconds since the Unix epoch by Redis' clock.
    pub now: u64,
    /// Until then idle GPUs are withheld: the server was restarted, and holders speak first.
    pub barrier: Option<u64>,
    /// Managed GPUs.
    pub gpus: Vec<Gpu>,
    /// Leases and tickets that have not ended.
    pub leases: Vec<Lease>,
    /// Tickets, in the order in which they will be served.
    pub queue: Vec<String>,
    /// Agents of nodes that are there.
    #[serde(default)]
    pub agents: Vec<Agent>,
    /// What the scripts have counted: `event:NAME`, `wait:BOUND`, and all waits together as `waited`.
    #[serde(default)]
    pub counts: BTreeMap<String, String>,
    /// The bounds of the waits that are counted, milliseconds.
    #[serde(default)]
    pub waits_ms: Vec<u64>,
    /// Redis writes down what it does.
    #[serde(default)]
    pub append_only: Option<bool>,
}

/// A node's agent, which looks after the dead of its PID namespace.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Agent {
    /// Its host.
    pub host: String,
    /// Which boot of it.
    pub boot: String,
    /// The PID namespace.
    pub pidns: String,
}

/// One managed GPU.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Gpu {
    /// Its id.
    pub id: String,
    /// The GPU that it stood for when the pool was begun, where that was known.
    pub uuid: Option<String>,
    /// How many times it is listed as idle: 1 where it is, more where somebody released it twice.
    pub idle: u32,
    /// Times among those that were popped for whoever waits.
    pub pot: u32,
    /// Times among those withheld after a restart.
    pub bar: u32,
    /// The lease that holds it.
    pub owner: Option<String>,
    /// Why it is withheld, and since when.
    pub quarantine: Option<String>,
    /// What GPU.py would read of it.
    pub record: Option<Record>,
}

/// A record as GPU.py writes it.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Record {
    /// A process.
    pub pid: String,
    /// A local time of nobody knows where.
    pub time: String,
    /// The lease, where it is one of ours.
    pub lease: Option<String>,
    /// What a node's agent saw of whoever wrote it, or an earlier one.
    #[serde(default)]
    pub seen: Option<String>,
}

/// A lease or a ticket.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Lease {
    /// Its name.
    pub lease: String,
    /// `waiting` or `held`; empty where somebody has deleted it.
    #[serde(default)]
    pub state: String,
    /// When it is forgotten unless it is renewed, in milliseconds since the Unix epoch.
    pub expires: f64,
    /// All that its holder said, and what Redis noted: `want`, `gpus`, `tok`, `pid`, `user` and so on.
    #[serde(flatten)]
    pub about: BTreeMap<String, serde_json::Value>,
}

impl Lease {
    /// One of the things that are known of it.
    #[must_use]
    pub fn get(&self, field: &str) -> Option<&str> {
        self.about.get(field)?.as_str().filter(|text| !text.is_empty())
    }

    /// Its holder has said that he knows of it; not yet so where it was granted, or asked back, just now.
    #[must_use]
    pub fn is_acknowledged(&self) -> bool {
        self.state == "held" && (self.get("renewed").is_some() || self.get("known").is_some())
    }

    /// Its GPUs.
    pub fn gpus(&self) -> impl Iterator<Item = &str> {
        self.get("gpus").unwrap_or_default().split(',').filter(|id| !id.is_empty())
    }
}
