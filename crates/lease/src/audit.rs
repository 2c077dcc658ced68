//! The whole state of a pool at one moment, as the audit script returns it.

use std::collections::BTreeMap;

use bailiff_snapshot::ProcessKey;
use serde::Deserialize;

/// A pool at one moment.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
pub struct Audit {
    /// Milliseconds since the Unix epoch, on Redis' clock.
    pub now: u64,
    /// Idle GPUs are not granted before this time, because the server was restarted and holders can reclaim their
    /// leases first.
    pub barrier: Option<u64>,
    /// Managed GPUs.
    pub gpus: Vec<Gpu>,
    /// Leases and tickets that have not ended.
    pub leases: Vec<Lease>,
    /// Tickets, in the order in which they are served.
    pub queue: Vec<String>,
    /// Registered agents of nodes.
    #[serde(default)]
    pub agents: Vec<Agent>,
    /// Counters of the scripts: `event:NAME`, `wait:BOUND`, and the sum of all waits as `waited`.
    #[serde(default)]
    pub counts: BTreeMap<String, String>,
    /// Bounds of the wait histogram, in milliseconds.
    #[serde(default)]
    pub waits_ms: Vec<u64>,
    /// Whether Redis persists every change (`appendonly`).
    pub append_only: Option<bool>,
    /// Number of tickets that were not read, because their users have very many; only in the machine's own pool.
    #[serde(skip)]
    pub unread: u64,
}

impl Audit {
    /// Returns the number of all tickets.
    pub const fn waiting(&self) -> u64 {
        self.queue.len() as u64 + self.unread
    }
}

/// A node's agent, which ends the leases of exited holders in its PID namespace.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Agent {
    /// Machine id of the agent's host.
    pub host: String,
    /// Boot id of the agent's host.
    pub boot: String,
    /// PID namespace of the agent.
    pub pidns: String,
}

/// One managed GPU.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Gpu {
    /// Its id.
    pub id: String,
    /// The UUID when the pool was created, if known.
    pub uuid: Option<String>,
    /// How many times the GPU is in the list of idle GPUs: 1 if idle, more if it was released twice.
    pub idle: u32,
    /// How many times the GPU is in the gathering list, where popped GPUs wait to be assigned.
    pub pot: u32,
    /// How many times the GPU is in the barrier list, where idle GPUs wait after a restart.
    pub bar: u32,
    /// Lease that holds the GPU.
    pub owner: Option<String>,
    /// Why the GPU is quarantined, and since when.
    pub quarantine: Option<String>,
    /// Record that GPU.py would read.
    pub record: Option<Record>,
    /// The processes that have locked the GPU without a lease; only in the machine's own pool.
    #[serde(skip)]
    pub blockers: Vec<Blocker>,
}

impl Gpu {
    /// Returns whether the GPU is in none of the lists of GPUs that are not taken.
    pub const fn is_unlisted(&self) -> bool {
        self.idle == 0 && self.pot == 0 && self.bar == 0
    }
}

/// A process that has locked a GPU without a lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Blocker {
    /// Its pid.
    pub pid: u32,
    /// Its owner, if it could be read.
    pub uid: Option<u32>,
}

/// A record of a GPU in GPU.py's format.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Record {
    /// The pid of a process.
    pub pid: String,
    /// A local time; the time zone is unknown.
    pub time: String,
    /// The lease, if the record was not written by GPU.py.
    pub lease: Option<String>,
    /// Evidence from a node's agent about the process that wrote this record or an earlier record.
    pub seen: Option<String>,
}

/// A lease or a ticket.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Lease {
    /// Name of the lease.
    pub lease: String,
    /// `waiting` or `held`; empty if the key was deleted by hand.
    #[serde(default)]
    pub state: String,
    /// When the lease expires unless it is renewed, in milliseconds since the Unix epoch.
    pub expires: f64,
    /// All other fields, from the holder and from Redis: `want`, `gpus`, `tok`, `pid`, `user` and so on.
    #[serde(flatten)]
    pub about: BTreeMap<String, serde_json::Value>,
}

impl Lease {
    /// The value of a field.
    pub fn get(&self, field: &str) -> Option<&str> {
        self.about.get(field)?.as_str().filter(|text| !text.is_empty())
    }

    /// The value of a field, as a number.
    pub fn number<T: std::str::FromStr>(&self, field: &str) -> Option<T> {
        self.get(field)?.parse().ok()
    }

    /// The holder's process; `None` if the lease does not name a process.
    pub fn holder(&self) -> Option<ProcessKey> {
        Some(ProcessKey { pid: self.number("pid")?, start_ticks: self.number("start")? })
    }

    /// Whether the holder has acknowledged the lease. A lease that was just granted or reclaimed has not been
    /// acknowledged yet.
    pub fn is_acknowledged(&self) -> bool {
        self.state == "held" && (self.get("renewed").is_some() || self.get("known").is_some())
    }

    /// The lease's GPUs.
    pub fn gpus(&self) -> impl Iterator<Item = &str> {
        self.get("gpus").unwrap_or_default().split(',').filter(|id| !id.is_empty())
    }
}
