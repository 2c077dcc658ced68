//! An audit as a snapshot tells it: ages instead of the times of another's clock, and holders as processes of this node.

#![expect(clippy::disallowed_methods, reason = "reads /proc")]

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bailiff_snapshot::lease::{Record, Tally, Ticket, Waits};
use bailiff_snapshot::{Held, Leases, PidNamespace, PoolGpu, ProcessKey, Spot, State, Truth, stat};

use crate::audit::{self, Audit, Lease};

/// Names of events are words of ours, and so many at most.
const MOST_EVENTS: usize = 64;

/// Where holders are looked for: a `/proc`, and which boot and PID namespaces its processes are of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    procfs: PathBuf,
    host: Option<String>,
    boot: Option<String>,
    namespaces: Vec<String>,
}

impl Node {
    /// The node of this `/proc`. Where that is the host's, whatever the namespace of this program is, `told` says so.
    #[must_use]
    pub fn look(procfs: &Path, told: PidNamespace) -> Self {
        let text = |path: &Path| {
            let text = fs::read_to_string(path).ok()?;
            Some(text.trim().to_owned()).filter(|text| !text.is_empty())
        };
        let ours = fs::read_link(procfs.join("self/ns/pid")).ok();
        let ours = ours.map(|link| link.to_string_lossy().into_owned());
        let hosts = told.attributes().then(|| PidNamespace::INITIAL.to_owned());
        let inode = |link: String| link.trim_start_matches("pid:[").trim_end_matches(']').to_owned();
        Self {
            procfs: procfs.to_owned(),
            host: text(Path::new("/etc/machine-id")),
            boot: text(&procfs.join("sys/kernel/random/boot_id")),
            namespaces: ours.into_iter().chain(hosts).map(inode).collect(),
        }
    }

    /// The processes that have a lease, where they are of this boot and namespace, and whether one of them lives.
    fn holder(&self, lease: &Lease) -> (Option<ProcessKey>, Vec<ProcessKey>, Truth) {
        let boot = lease.get("boot");
        if boot.is_none() || boot != self.boot.as_deref() {
            let rebooted = boot.is_some() && self.boot.is_some();
            let here = self.host.is_some() && lease.get("host") == self.host.as_deref();
            let alive = if rebooted && here { Truth::False } else { Truth::Unknown };
            return (None, Vec::new(), alive);
        }
        let ours = lease.get("pidns").is_some_and(|ours| self.namespaces.iter().any(|known| known == ours));
        let holder = number(lease, "pid").zip(number(lease, "start")).filter(|_| ours);
        let holder = holder.and_then(|(pid, start_ticks)| key(pid, start_ticks));
        let chain = lease.get("chain").filter(|_| ours).unwrap_or_default().split(',').filter_map(process);
        let chain: Vec<ProcessKey> = chain.filter(|key| Some(*key) != holder).collect();
        let lives = |key: &ProcessKey| self.lives(*key);
        let alive = holder.iter().chain(&chain).map(lives).reduce(Truth::or).unwrap_or_default();
        // By GPU.py's rules it outlives whoever took it.
        let outlives = lease.get("mode") == Some("compat") && alive == Truth::False;
        (holder, chain, if outlives { Truth::Unknown } else { alive })
    }

    fn lives(&self, key: ProcessKey) -> Truth {
        match self.stat(key.pid) {
            Ok(stat) if stat.key != key => Truth::False,
            // Its first thread has ended; whether others have, nobody needs to know at once.
            Ok(stat) if stat.state == State::Zombie && stat.threads > 1 => Truth::Unknown,
            Ok(stat) => (!matches!(stat.state, State::Zombie | State::Dead)).into(),
            Err(missing) => missing,
        }
    }

    /// False where there is no such process.
    fn stat(&self, pid: u32) -> Result<stat::Stat, Truth> {
        match fs::read(self.procfs.join(pid.to_string()).join("stat")) {
            Ok(text) => stat::parse(&text).ok_or(Truth::Unknown),
            // With hidepid everybody else's looks like one that has ended, the first process too.
            Err(error) if error.kind() == ErrorKind::NotFound && self.procfs.join("1/stat").exists() => {
                Err(Truth::False)
            }
            Err(_) => Err(Truth::Unknown),
        }
    }
}

impl Audit {
    /// What a snapshot tells of it; `boot` is when it was asked, since boot.
    #[must_use]
    pub fn leases(&self, node: &Node, boot: Duration) -> Leases {
        let lease = |name: &String| self.leases.iter().find(|lease| lease.lease == *name);
        let held = self.leases.iter().filter(|lease| lease.state == "held");
        Leases {
            boot_ms: u64::try_from(boot.as_millis()).unwrap_or(u64::MAX),
            before_ms: None,
            gpus: self.gpus.iter().map(|gpu| pool_gpu(gpu, node)).collect(),
            held: held.map(|lease| self.held(lease, node)).collect(),
            queue: self.queue.iter().filter_map(lease).map(|lease| self.ticket(lease)).collect(),
            tally: self.tally(),
        }
    }

    fn held(&self, lease: &Lease, node: &Node) -> Held {
        let (holder, chain, alive) = node.holder(lease);
        Held {
            lease: lease.lease.clone(),
            token: number(lease, "tok").unwrap_or_default(),
            gpus: lease.gpus().map(str::to_owned).collect(),
            age_ms: self.since(lease, "granted"),
            silent_ms: self.since(lease, "renewed"),
            left_ms: left(lease.expires, self.now),
            user: lease.get("user").map(str::to_owned),
            uid: number(lease, "uid").and_then(|uid| u32::try_from(uid).ok()),
            mode: lease.get("mode").map(str::to_owned),
            priority: priority(lease),
            holder,
            chain,
            alive,
        }
    }

    fn ticket(&self, lease: &Lease) -> Ticket {
        Ticket {
            lease: lease.lease.clone(),
            want: number(lease, "want").and_then(|want| u32::try_from(want).ok()).unwrap_or_default(),
            user: lease.get("user").map(str::to_owned),
            priority: priority(lease),
            age_ms: self.since(lease, "asked"),
        }
    }

    /// By Redis' clock, which may have stepped back.
    fn since(&self, lease: &Lease, field: &str) -> Option<u64> {
        Some(self.now.saturating_sub(number(lease, field)?))
    }

    fn tally(&self) -> Tally {
        let count = |name: &str| self.counts.get(name)?.parse::<u64>().ok();
        let is_word = |name: &str| {
            name.len() <= 32 && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_')
        };
        let events = self.counts.iter().filter_map(|(name, count)| {
            let name = name.strip_prefix("event:").filter(|name| is_word(name))?;
            Some((name.to_owned(), count.parse().ok()?))
        });
        let bucket = |bound: &u64| {
            (Duration::from_millis(*bound), count(&format!("wait:{bound}")).unwrap_or_default())
        };
        let waits = count("waited").map(|waited| Waits {
            buckets: self.waits_ms.iter().map(bucket).collect(),
            longer: count("wait:longer").unwrap_or_default(),
            sum: Duration::from_millis(waited),
        });
        Tally { events: events.take(MOST_EVENTS).collect(), waits, append_only: self.append_only }
    }
}

fn pool_gpu(gpu: &audit::Gpu, node: &Node) -> PoolGpu {
    let legacy = gpu.record.as_ref().filter(|record| record.lease.is_none());
    PoolGpu {
        id: gpu.id.clone(),
        uuid: gpu.uuid.clone(),
        spot: spot(gpu),
        lease: gpu.owner.clone(),
        record: legacy.map(|record| {
            let pid = record.pid.parse::<u32>().ok();
            let alive = pid.filter(|pid| *pid > 0).map_or(Truth::Unknown, |pid| match node.stat(pid) {
                Ok(_) => Truth::True,
                Err(missing) => missing,
            });
            Record { pid, time: record.time.clone(), alive }
        }),
        ..PoolGpu::default()
    }
}

/// In which of its places a GPU is.
fn spot(gpu: &audit::Gpu) -> Spot {
    match gpu {
        _ if gpu.owner.is_some() => Spot::Leased,
        _ if gpu.quarantine.is_some() => Spot::Quarantine,
        _ if gpu.idle > 0 => Spot::Idle,
        _ if gpu.pot > 0 => Spot::Pot,
        _ if gpu.bar > 0 => Spot::Barrier,
        _ if gpu.record.as_ref().is_some_and(|record| record.lease.is_none()) => Spot::Legacy,
        _ => Spot::Unknown,
    }
}

fn number(lease: &Lease, field: &str) -> Option<u64> {
    lease.get(field)?.parse().ok()
}

fn priority(lease: &Lease) -> i32 {
    lease.get("prio").and_then(|priority| priority.parse().ok()).unwrap_or_default()
}

fn key(pid: u64, start_ticks: u64) -> Option<ProcessKey> {
    Some(ProcessKey { pid: u32::try_from(pid).ok()?, start_ticks })
}

/// `PID:START`.
fn process(text: &str) -> Option<ProcessKey> {
    let (pid, start) = text.split_once(':')?;
    key(pid.parse().ok()?, start.parse().ok()?)
}

#[expect(clippy::cast_possible_truncation, clippy::cast_precision_loss, reason = "times are far below 2^53")]
fn left(expires: f64, now: u64) -> i64 {
    (expires - now as f64) as i64
}
