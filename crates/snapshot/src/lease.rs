//! State of a lease pool at one moment, as reported by Redis and as written to the stream. [`attribution`]
//! determines the lease of a process.

pub mod attribution;

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_with_macros::skip_serializing_none;

use crate::{ProcessKey, Truth, Word};

/// State of a lease pool at one moment.
#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Leases {
    /// Time of the query, in milliseconds since boot.
    pub boot_ms: u64,
    /// Time of the previous query, in milliseconds since boot; `None` if it was not answered.
    pub before_ms: Option<u64>,
    /// GPUs managed by the pool.
    pub gpus: Vec<PoolGpu>,
    /// Held leases. GPUs held by GPU.py clients have a [`Record`] instead of a lease.
    pub held: Vec<Held>,
    /// Waiting requests, in the order in which they will be served.
    pub queue: Vec<Ticket>,
    /// Counters of the server; not part of the stream.
    #[serde(skip)]
    pub tally: Tally,
}

crate::label_values! {
/// State of a GPU in a pool.
#[serde(from = "Word<GpuState>")]
pub enum GpuState (default Unknown) {
    /// Free: the next request receives it.
    Idle = "idle",
    /// Held by a lease.
    Leased = "leased",
    /// Held by a GPU.py client, according to its record.
    Legacy = "legacy",
    /// Reserved for a waiting request for several GPUs.
    Gathering = "gathering",
    /// Withheld because something is wrong with it.
    Quarantined = "quarantined",
    /// Withheld for a while after a restart of the server.
    Barrier = "barrier",
    /// Not in any of the pool's lists that this version knows. A GPU.py client may be taking it.
    Unknown = "unknown",
}
}

impl From<Word<Self>> for GpuState {
    fn from(word: Word<Self>) -> Self {
        word.known().unwrap_or_default()
    }
}

/// A GPU in a pool.
#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct PoolGpu {
    /// Id in the pool. GPU.py uses it as the driver's index.
    pub id: String,
    /// UUID, if the pool knows it.
    pub uuid: Option<String>,
    /// State in the pool.
    #[serde(rename = "state")]
    pub gpu_state: GpuState,
    /// Name of the lease that holds the GPU. The pool's list of held leases may lack it.
    pub lease: Option<String>,
    /// Record that a GPU.py client has written for this GPU.
    pub record: Option<Record>,
    /// How long all samples have shown the same state, lease and record; 0 in the first.
    #[serde(default)]
    pub since_ms: u64,
    /// Time observed idle under this lease since last observed busy. Unobserved time is not counted.
    #[serde(default)]
    pub idle_ms: u64,
    /// Whether the GPU was idle in the last window; unknown unless it is leased.
    #[serde(default)]
    pub idle: Truth,
}

/// Record of a GPU.py client that took a GPU.
#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// Pid in the record: the parent of a `GPU.py --get`. `None` if it is not a number.
    pub pid: Option<u32>,
    /// Start tick of that process, if a node's agent saw the process when the record was written.
    pub start_ticks: Option<u64>,
    /// Time of the record, in an unknown local time zone.
    pub time: String,
    /// Whether the process is alive. Without a start tick, any process with this pid on this node counts.
    pub alive: Truth,
}

/// A held lease.
#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Held {
    /// Name of the lease, as in the environment of its processes.
    pub lease: String,
    /// Fencing token: rises with each grant.
    pub token: u64,
    /// Pool ids of its GPUs.
    pub gpus: Vec<String>,
    /// Time since the grant; `None` if the server no longer knows.
    pub age_ms: Option<u64>,
    /// Time since the holder itself last renewed the lease; `None` if not recorded.
    pub silent_ms: Option<u64>,
    /// Time until the lease is overdue; negative once it is.
    pub left_ms: i64,
    /// User name, as given by the holder.
    pub user: Option<String>,
    /// Uid, as given by the holder.
    pub uid: Option<u32>,
    /// Mode of the holder: `run`, `compat` and so on.
    pub mode: Option<String>,
    /// Priority of the request. Higher priorities are served first.
    #[serde(default)]
    pub priority: i32,
    /// Process that holds the lease, if it belongs to this boot and PID namespace.
    pub holder: Option<ProcessKey>,
    /// Other processes that may hold the lease by the rules of GPU.py: ancestors of the holder, such as the shell
    /// that started it as a subshell, or the program that reads the output of GPU.py.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub chain: Vec<ProcessKey>,
    /// Whether the holder or a process in `chain` is alive. Their children may outlive them and
    /// still hold the lease.
    pub alive: Truth,
}

impl Held {
    /// Returns whether GPU.py's rules apply: the lease outlives its process, and any process may release it.
    pub fn is_compat(&self) -> bool {
        self.mode.as_deref() == Some("compat")
    }
}

/// A waiting request.
#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ticket {
    /// Name of the lease that the request will become.
    pub lease: String,
    /// Number of GPUs, granted all together or not at all.
    pub want: u32,
    /// User name, as given in the request.
    pub user: Option<String>,
    /// Priority. Higher priorities are served first.
    #[serde(default)]
    pub priority: i32,
    /// Time since the request.
    pub age_ms: Option<u64>,
}

/// Counters of the lease server since its data was created.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Tally {
    /// Number of events, by name.
    pub events: BTreeMap<String, u64>,
    /// Waiting times of granted requests.
    pub waits: Option<Waits>,
    /// Whether Redis persists its writes (`appendonly`); `None` if Redis did not report it.
    pub append_only: Option<bool>,
}

/// Histogram of waiting times.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Waits {
    /// Upper bounds in rising order, each with the number of requests above the previous bound.
    pub buckets: Vec<(Duration, u64)>,
    /// Number of requests that waited longer than all bounds.
    pub longer: u64,
    /// Sum of all waiting times.
    pub sum: Duration,
}

/// Returns the values of a variable, which can occur several times; `None` if the process has overwritten its environment.
pub(crate) fn values<'a>(environ: &'a [u8], name: &str) -> Option<Vec<&'a [u8]>> {
    let pairs = environ.strip_suffix(b"\0")?;
    let mut values = Vec::new();
    for pair in pairs.split(|byte| *byte == 0) {
        let (key, value) = pair.split_at(pair.iter().position(|byte| *byte == b'=')?);
        values.extend(value.get(1..).filter(|_| key == name.as_bytes()));
    }
    Some(values)
}

/// Lease that a process claims to belong to, by the environment that it was started with.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Claim {
    /// The environment was not read, is not readable, or was overwritten by the process.
    #[default]
    Unread,
    /// The environment names no lease.
    Nothing,
    /// The environment names this lease.
    Lease(String),
}

impl Claim {
    /// Environment variable with the name of the lease; every process of a lease has it.
    pub const VARIABLE: &str = "BAILIFF_LEASE_ID";
    /// Maximum length of a lease name, in bytes.
    pub const MOST: usize = 64;

    /// Parses the whole of `/proc/PID/environ`. A process may have overwritten it, for example with its
    /// title; then the result is `Unread`.
    pub fn of_environment(environ: &[u8]) -> Self {
        let Some(values) = values(environ, Self::VARIABLE) else { return Self::Unread };
        let mut claims = values.into_iter().map(Self::named);
        claims.find(|claim| *claim != Self::Nothing).unwrap_or(Self::Nothing)
    }

    fn named(value: &[u8]) -> Self {
        match std::str::from_utf8(value) {
            Ok(name) if !name.is_empty() && name.len() <= Self::MOST => Self::Lease(name.to_owned()),
            _ => Self::Nothing,
        }
    }

    /// Returns whether the claim is `Unread`; serialization then omits it.
    pub fn is_unread(&self) -> bool {
        *self == Self::Unread
    }
}

/// Names by which a pool may know a GPU.
#[derive(Debug, Clone, Copy)]
pub struct Names<'a> {
    /// The driver's index. A MIG instance has its GPU's index and its own: `0:1`.
    pub index: &'a str,
    /// UUID of the GPU or MIG instance.
    pub uuid: Option<&'a str>,
    /// UUID of the GPU that contains the MIG instance.
    pub parent: Option<&'a str>,
}

impl PoolGpu {
    /// Returns whether this is the named GPU or contains it, by UUID if the pool knows it, else by index.
    pub fn is(&self, names: Names<'_>) -> bool {
        match &self.uuid {
            Some(uuid) => [names.uuid, names.parent].contains(&Some(uuid.as_str())),
            None => names.index.split(':').next() == Some(self.id.as_str()),
        }
    }

    /// Returns whether the GPU has the same state, lease and record as before.
    pub(crate) fn as_before(&self, before: &Self) -> bool {
        let facts_of =
            |gpu: &Self| (gpu.gpu_state, gpu.record.as_ref().map(|record| (record.pid, record.time.clone())));
        (&self.id, &self.uuid, &self.lease) == (&before.id, &before.uuid, &before.lease)
            && facts_of(self) == facts_of(before)
    }
}

impl Leases {
    /// Returns the pool's entry for a GPU; for a MIG instance its own entry, or that of its GPU.
    pub fn gpu<'a>(&self, names: impl Into<Names<'a>>) -> Option<&PoolGpu> {
        let names = names.into();
        // A MIG instance's own entry takes precedence over that of its GPU.
        let itself = self.gpus.iter().find(|gpu| gpu.uuid.is_some() && gpu.uuid.as_deref() == names.uuid);
        itself.or_else(|| self.gpus.iter().find(|gpu| gpu.is(names)))
    }

    /// Returns the held lease with this name.
    pub fn held(&self, lease: &str) -> Option<&Held> {
        self.held.iter().find(|held| held.lease == lease)
    }

    /// Returns the lease that holds a GPU, if known.
    pub fn holding(&self, gpu: &PoolGpu) -> Option<&Held> {
        self.held(gpu.lease.as_deref()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_environment_that_was_written_over_says_nothing() {
        let lease = |name: &str| Claim::Lease(name.to_owned());
        let long = format!("BAILIFF_LEASE_ID=0123456789{}\0", "0".repeat(Claim::MOST));
        let cases: [(&[u8], Claim); 11] = [
            (b"PATH=/bin\0BAILIFF_LEASE_ID=abc\0HOME=/\0", lease("abc")),
            (b"PATH=/bin\0", Claim::Nothing),
            (b"XBAILIFF_LEASE_ID=abc\0ABAILIFF_LEASE_ID=abc\0", Claim::Nothing),
            (b"BAILIFF_LEASE_ID=\0", Claim::Nothing),
            (b"BAILIFF_LEASE_ID=one\0BAILIFF_LEASE_ID=two\0", lease("one")),
            (b"BAILIFF_LEASE_ID=a=b\0", lease("a=b")),
            (long.as_bytes(), Claim::Nothing),
            (b"", Claim::Unread),
            (b"PATH=/bin\0BAILIFF_LEASE_ID=abc", Claim::Unread),
            (b"python3: worker 7\0BAILIFF_LEASE_ID=abc\0", Claim::Unread),
            (b"BAILIFF_LEASE_ID=abc\0\0\0\0", Claim::Unread),
        ];
        for (environ, expected) in cases {
            let text = String::from_utf8_lossy(environ);
            assert_eq!(Claim::of_environment(environ), expected, "{text:?}");
        }
    }

    #[test]
    fn a_gpu_is_found_by_its_uuid_or_else_by_its_index() {
        let gpu = |id: &str, uuid: Option<&str>| PoolGpu {
            id: id.to_owned(),
            uuid: uuid.map(str::to_owned),
            ..PoolGpu::default()
        };
        let gpus =
            vec![gpu("0", Some("GPU-a")), gpu("1", Some("GPU-b")), gpu("2", None), gpu("9", Some("MIG-c"))];
        let leases = Leases { gpus, ..Leases::default() };
        let cases = [
            (("1", Some("GPU-a"), None), Some("0")),
            (("0", Some("GPU-z"), None), None),
            (("2", Some("GPU-z"), None), Some("2")),
            (("2", None, None), Some("2")),
            (("2:0", Some("MIG-y"), Some("GPU-z")), Some("2")),
            (("0:1", Some("MIG-y"), Some("GPU-a")), Some("0")),
            (("0:1", Some("MIG-c"), Some("GPU-a")), Some("9")),
            (("20", None, None), None),
        ];
        for ((index, uuid, parent), id) in cases {
            let found = leases.gpu(Names { index, uuid, parent }).map(|gpu| gpu.id.as_str());
            assert_eq!(found, id, "{index} {uuid:?}");
        }
    }
}
