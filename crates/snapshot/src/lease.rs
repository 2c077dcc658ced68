//! A lease pool at one moment, as reported by Redis. The stream has it in this form; [`attribution`] determines
//! the lease of a process.

pub mod attribution;

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{Gpu, ProcessKey, Truth, wire};

/// A pool at one moment.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Leases {
    /// When it was asked, milliseconds since boot.
    pub boot_ms: u64,
    /// Time of the previous query, if it was answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before_ms: Option<u64>,
    /// Managed GPUs.
    pub gpus: Vec<PoolGpu>,
    /// Leases of ours that are held.
    pub held: Vec<Held>,
    /// Tickets, in the order in which they will be served.
    pub queue: Vec<Ticket>,
    /// What the server has counted; it is not in the stream.
    #[serde(skip)]
    pub tally: Tally,
}

/// Where a GPU of a pool is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GpuState {
    /// Free: the next request receives it.
    Idle,
    /// Held by a lease of ours.
    Leased,
    /// Held by a client of GPU.py, by its record.
    Legacy,
    /// Reserved for a waiting request for several GPUs.
    Gathering,
    /// Withheld, since something is wrong with it.
    Quarantined,
    /// Withheld for a while after the server was restarted.
    Barrier,
    /// In no list, or in one that only a newer program knows: a client of GPU.py may be taking it.
    #[default]
    #[serde(other)]
    Unknown,
}

impl GpuState {
    /// Every spot, in the order of a page.
    pub const ALL: [Self; 7] = [
        Self::Idle,
        Self::Leased,
        Self::Legacy,
        Self::Gathering,
        Self::Quarantined,
        Self::Barrier,
        Self::Unknown,
    ];

    /// Its label value.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::Leased => "leased",
            Self::Legacy => "legacy",
            Self::Gathering => "gathering",
            Self::Quarantined => "quarantined",
            Self::Barrier => "barrier",
            Self::Unknown => "unknown",
        }
    }
}

/// A GPU of a pool.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct PoolGpu {
    /// Its id in the pool; GPU.py takes it for the driver's index.
    pub id: String,
    /// Its UUID, where the pool knows it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uuid: Option<String>,
    /// Where it is.
    #[serde(rename = "state")]
    pub gpu_state: GpuState,
    /// The lease of ours that has it; it need not be among those that are held.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease: Option<String>,
    /// What a client of GPU.py has written of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub record: Option<Record>,
    /// For how long all samples have shown the same of it; 0 in the first.
    #[serde(default)]
    pub since_ms: u64,
    /// For how long it was seen leased to this lease and idle; time that was not observed adds nothing.
    #[serde(default)]
    pub idle_ms: u64,
    /// Whether it was idle in the last window, where it is leased.
    #[serde(default)]
    pub idle: Truth,
}

/// A record of GPU.py's.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// The process that it names: the parent of a `GPU.py --get`. None if it is no number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// When that process began, where a node's agent saw it as the record was written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_ticks: Option<u64>,
    /// Time of the record, in an unknown local time zone.
    pub time: String,
    /// Whether there is this process; a process of this number on this node, where no more is known of it.
    pub alive: Truth,
}

/// A lease of ours that is held.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Held {
    /// Its name: what the environment of its processes says.
    pub lease: String,
    /// It rises with each grant.
    pub token: u64,
    /// Ids of its GPUs in the pool.
    pub gpus: Vec<String>,
    /// Since it was granted; none if the server has forgotten that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub age_ms: Option<u64>,
    /// Since its holder last renewed it himself; none if that was not noted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub silent_ms: Option<u64>,
    /// Until it is overdue; below 0 it is.
    pub left_ms: i64,
    /// The user, as given by the holder.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// The same as a number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
    /// `run`, `compat` and so on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<String>,
    /// Higher ones were served first.
    #[serde(default)]
    pub priority: i32,
    /// The process that holds it, where it is of this boot and PID namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub holder: Option<ProcessKey>,
    /// Other processes that may hold it by GPU.py's rules: the shells that the holder is a part of.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub chain: Vec<ProcessKey>,
    /// Whether that process, or one of these, lives. Processes that it started may outlive it, and have the lease then.
    pub alive: Truth,
}

impl Held {
    /// The rules of GPU.py: it outlives the process that took it, and anybody may release it.
    #[must_use]
    pub fn is_compat(&self) -> bool {
        self.mode.as_deref() == Some("compat")
    }
}

/// A waiting request.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ticket {
    /// The name of what will be a lease.
    pub lease: String,
    /// How many GPUs, all or none.
    pub want: u32,
    /// The user, as given in the request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// Higher ones are served first.
    #[serde(default)]
    pub priority: i32,
    /// Time since the request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub age_ms: Option<u64>,
}

/// What the server of leases has counted since its data began.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Tally {
    /// Events by name.
    pub events: BTreeMap<String, u64>,
    /// Waiting times of granted requests.
    pub waits: Option<Waits>,
    /// Redis writes down what it does (`appendonly`); none if it did not say.
    pub append_only: Option<bool>,
}

/// A histogram of waits.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Waits {
    /// How many waited at most so long, each counted at the smallest bound that holds for it.
    pub buckets: Vec<(Duration, u64)>,
    /// How many waited longer.
    pub longer: u64,
    /// All waits together.
    pub sum: Duration,
}

/// Which lease a process says that it belongs to, by the environment that it was started with.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Claim {
    /// Its environment was not read, may not be read, or is no longer what it was started with.
    #[default]
    Unread,
    /// It was read, and names no lease.
    Nothing,
    /// It names this one.
    Lease(String),
}

impl Claim {
    /// The environment of every process of a lease has its name here.
    pub const VARIABLE: &str = "BAILIFF_LEASE_ID";
    /// More bytes than this no lease has in its name.
    pub const MOST: usize = 64;

    /// Understands `/proc/PID/environ`, of which all was read. A process may have written something else over it, its
    /// title for example: that says nothing.
    #[must_use]
    pub fn of_environment(environ: &[u8]) -> Self {
        let Some(pairs) = environ.strip_suffix(b"\0") else { return Self::Unread };
        let mut claim = Self::Nothing;
        for pair in pairs.split(|byte| *byte == 0) {
            let Some(equals) = pair.iter().position(|byte| *byte == b'=') else { return Self::Unread };
            let (name, value) = pair.split_at(equals);
            // The first occurrence of a name is what getenv returns.
            if name == Self::VARIABLE.as_bytes() && claim == Self::Nothing {
                claim = Self::named(&value[1..]);
            }
        }
        claim
    }

    fn named(value: &[u8]) -> Self {
        match std::str::from_utf8(value) {
            Ok(name) if !name.is_empty() && name.len() <= Self::MOST => Self::Lease(name.to_owned()),
            _ => Self::Nothing,
        }
    }

    /// For what is left out of a line.
    #[must_use]
    pub fn is_unread(&self) -> bool {
        *self == Self::Unread
    }
}

/// The names by which a pool may know a GPU.
#[derive(Debug, Clone, Copy)]
pub struct Names<'a> {
    /// The driver's index; of a MIG instance its GPU's and its own, `0:1`.
    pub index: &'a str,
    /// UUID.
    pub uuid: Option<&'a str>,
    /// UUID of the GPU that it is an instance of.
    pub parent: Option<&'a str>,
}

impl<'a> From<&'a Gpu> for Names<'a> {
    fn from(gpu: &'a Gpu) -> Self {
        let parent = gpu.about.mig.as_ref().and_then(|mig| mig.parent.as_ref());
        Self {
            index: &gpu.about.index,
            uuid: gpu.about.id.as_ref().map(|id| id.0.as_str()),
            parent: parent.map(|id| id.0.as_str()),
        }
    }
}

impl<'a> From<&'a wire::Gpu> for Names<'a> {
    fn from(gpu: &'a wire::Gpu) -> Self {
        Self { index: &gpu.index, uuid: gpu.uuid.as_deref(), parent: gpu.parent_uuid.as_deref() }
    }
}

impl PoolGpu {
    /// Whether it is this one, or the GPU that this one is an instance of: by UUID where the pool knows it, else by index.
    #[must_use]
    pub fn is(&self, names: Names<'_>) -> bool {
        match &self.uuid {
            Some(uuid) => [names.uuid, names.parent].contains(&Some(uuid.as_str())),
            None => names.index.split(':').next() == Some(self.id.as_str()),
        }
    }

    /// The same GPU, in the same place, of the same lease.
    fn as_before(&self, before: &Self) -> bool {
        let facts_of =
            |gpu: &Self| (gpu.gpu_state, gpu.record.as_ref().map(|record| (record.pid, record.time.clone())));
        (&self.id, &self.uuid, &self.lease) == (&before.id, &before.uuid, &before.lease)
            && facts_of(self) == facts_of(before)
    }
}

impl Leases {
    /// The GPU of the pool that this one is, or is an instance of.
    #[must_use]
    pub fn gpu<'a>(&self, names: impl Into<Names<'a>>) -> Option<&PoolGpu> {
        let names = names.into();
        // An instance that is in the pool itself comes before its GPU.
        let itself = self.gpus.iter().find(|gpu| gpu.uuid.is_some() && gpu.uuid.as_deref() == names.uuid);
        itself.or_else(|| self.gpus.iter().find(|gpu| gpu.is(names)))
    }

    /// A lease that is held.
    #[must_use]
    pub fn held(&self, lease: &str) -> Option<&Held> {
        self.held.iter().find(|held| held.lease == lease)
    }

    /// The lease that holds a GPU, where it is known.
    #[must_use]
    pub fn holding(&self, gpu: &PoolGpu) -> Option<&Held> {
        self.held(gpu.lease.as_deref()?)
    }

    /// Joins it with the previous sample's pool; none without one.
    pub(crate) fn carry_on(&mut self, before: Option<&Self>, window: Duration, gpus: &[Gpu]) {
        let window = u64::try_from(window.as_millis()).unwrap_or(u64::MAX);
        self.before_ms = before.map(|before| before.boot_ms);
        for gpu in &mut self.gpus {
            let before = before.and_then(|before| before.gpus.iter().find(|before| gpu.as_before(before)));
            let seen = gpus.iter().find(|seen| gpu.is(Names::from(*seen)));
            if let Some(before) = before {
                gpu.since_ms = before.since_ms.saturating_add(window);
            }
            if gpu.gpu_state == GpuState::Leased {
                gpu.idle = before.and(seen).map_or(Truth::Unknown, |seen| seen.idle);
                gpu.idle_ms = match (before, gpu.idle) {
                    (Some(before), Truth::True) => before.idle_ms.saturating_add(window),
                    (Some(before), Truth::Unknown) => before.idle_ms,
                    (Some(_), Truth::False) | (None, _) => 0,
                };
            }
        }
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
