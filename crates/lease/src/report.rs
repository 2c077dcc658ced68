//! Converts an audit into a snapshot, with ages instead of times on another clock, and with holders as processes on
//! this node.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

use bailiff_proc::Proc;
use bailiff_snapshot::lease::{Record, Tally, Ticket, Waits};
use bailiff_snapshot::{
    GpuState, Held, Leases, PidNamespace, PoolGpu, ProcessKey, State, Truth, millis, stat,
};

use crate::audit::{self, Audit, Lease};
use crate::holder::{LocalHost, inode};
use crate::legacy::WriterEvidence;
use crate::pool::MOST_GPUS;

/// The maximum number of event names; the scripts define fewer.
const MOST_EVENTS: usize = 64;

/// Where holders are searched for: a `/proc`, and the boot and PID namespaces of its processes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    procfs: PathBuf,
    local_host: LocalHost,
    namespaces: Vec<String>,
}

impl Node {
    /// Reads the node of this `/proc`. `namespace` says whether it is the host's `/proc`, regardless of the namespace
    /// in which this program runs.
    pub fn read(procfs: &Path, namespace: PidNamespace) -> Self {
        let local_host = LocalHost::at(procfs);
        let own = Some(local_host.pidns.clone()).filter(|pidns| !pidns.is_empty());
        let host_namespace = namespace.attributes().then(|| inode(PidNamespace::INITIAL).to_owned());
        let namespaces = own.into_iter().chain(host_namespace).collect();
        Self { procfs: procfs.to_owned(), local_host, namespaces }
    }

    /// Returns the processes of a lease, if they are on this machine and in this boot and namespace, and whether one
    /// of them is running. If `silent`, no process renews the lease, so a holder in another boot has exited.
    fn holder(&self, lease: &Lease, silent: bool) -> (Option<ProcessKey>, Vec<ProcessKey>, Truth) {
        let boot = lease.get("boot");
        let local_host = self.local_host.is_machine(lease.get("host"), boot);
        if !local_host || boot != Some(self.local_host.boot.as_str()) {
            let rebooted = local_host && boot.is_some() && !self.local_host.boot.is_empty();
            let alive = if rebooted && silent { Truth::False } else { Truth::Unknown };
            return (None, Vec::new(), alive);
        }
        let visible =
            lease.get("pidns").is_some_and(|pidns| self.namespaces.iter().any(|known| known == pidns));
        let holder = lease.holder().filter(|_| visible);
        let chain = lease.get("chain").filter(|_| visible).unwrap_or_default().split(',').filter_map(process);
        let chain: Vec<ProcessKey> = chain.filter(|key| Some(*key) != holder).collect();
        let lives = |key: &ProcessKey| self.lives(*key);
        let alive = holder.iter().chain(&chain).map(lives).reduce(Truth::or).unwrap_or_default();
        // Under GPU.py's rules, a lease outlives the process that took it.
        let outlives = lease.get("mode") == Some("compat") && alive == Truth::False;
        (holder, chain, if outlives { Truth::Unknown } else { alive })
    }

    fn record(&self, record: &audit::Record) -> Record {
        let pid = record.pid.parse::<u32>().ok().filter(|pid| *pid > 0);
        let evidence = WriterEvidence::of(record);
        if evidence
            .as_ref()
            .is_some_and(|seen| !self.local_host.is_machine(Some(&seen.host), Some(&seen.boot)))
        {
            return Record { pid, start_ticks: None, time: record.time.clone(), alive: Truth::Unknown };
        }
        let evidence = evidence.filter(|evidence| {
            let same_boot = !evidence.boot.is_empty() && evidence.boot == self.local_host.boot;
            same_boot && self.namespaces.contains(&evidence.pidns) && evidence.prompt
        });
        // Only if the process is unique, because the same pid in another container's namespace is another process.
        let of_pid = |evidence: WriterEvidence| {
            let mut named = evidence.processes.into_iter().filter(|key| Some(key.pid) == pid);
            named.next().filter(|_| named.next().is_none())
        };
        let process = evidence.and_then(of_pid);
        let alive = match (process, pid) {
            (Some(process), _) => self.lives(process),
            (None, Some(pid)) => self.stat(pid).map_or_else(|missing| missing, |_| Truth::True),
            (None, None) => Truth::Unknown,
        };
        let start_ticks = process.map(|process| process.start_ticks);
        Record { pid, start_ticks, time: record.time.clone(), alive }
    }

    fn lives(&self, key: ProcessKey) -> Truth {
        match self.stat(key.pid) {
            Ok(stat) if stat.key != key => Truth::False,
            // The thread-group leader has exited. Whether other threads are running is not read here.
            Ok(stat) if stat.state == State::Zombie && stat.threads > 1 => Truth::Unknown,
            Ok(stat) => (!matches!(stat.state, State::Zombie | State::Dead)).into(),
            Err(missing) => missing,
        }
    }

    /// Returns the `stat` of a process, or `Err(Truth::False)` if there is no such process.
    fn stat(&self, pid: u32) -> Result<stat::Stat, Truth> {
        let proc = Proc::open(&self.procfs).map_err(|_| Truth::Unknown)?;
        proc.stat(pid).map_err(|error| if proc.proves_exit(error) { Truth::False } else { Truth::Unknown })
    }
}

impl Audit {
    /// The state for a snapshot; `boot` is the time of the audit since boot.
    pub fn leases(&self, node: &Node, boot: Duration) -> Leases {
        let mut by_name: BTreeMap<&str, &Lease> = BTreeMap::new();
        for lease in &self.leases {
            by_name.entry(&lease.lease).or_insert(lease);
        }
        // A server other than Redis can name a ticket many times.
        let mut seen = BTreeSet::new();
        let tickets = self.queue.iter().filter(|name| seen.insert(name.as_str()));
        let tickets: Vec<&Lease> = tickets.filter_map(|name| by_name.get(name.as_str()).copied()).collect();
        let held = self.leases.iter().filter(|lease| lease.state == "held");
        Leases {
            boot_ms: millis(boot),
            before_ms: None,
            gpus: self.gpus.iter().map(|gpu| pool_gpu(gpu, node)).collect(),
            held: held.map(|lease| self.held(lease, node)).collect(),
            queue: tickets.into_iter().map(|lease| self.ticket(lease)).collect(),
            tally: self.tally(),
        }
    }

    fn held(&self, lease: &Lease, node: &Node) -> Held {
        // Under GPU.py's rules, leases are not renewed.
        let silent = lease.get("known").is_some() || self.is_late(lease) && !self.has_agent(lease);
        let (holder, chain, alive) = node.holder(lease, silent);
        Held {
            lease: lease.lease.clone(),
            token: lease.number("tok").unwrap_or_default(),
            gpus: distinct(lease.gpus()),
            age_ms: self.since(lease, "granted"),
            silent_ms: self.since(lease, "renewed"),
            left_ms: left(lease.expires, self.now),
            user: lease.get("user").map(str::to_owned),
            uid: lease.number("uid"),
            mode: lease.get("mode").map(str::to_owned),
            priority: lease.number("prio").unwrap_or_default(),
            holder,
            chain,
            alive,
        }
    }

    fn ticket(&self, lease: &Lease) -> Ticket {
        Ticket {
            lease: lease.lease.clone(),
            want: lease.number("want").unwrap_or_default(),
            user: lease.get("user").map(str::to_owned),
            priority: lease.number("prio").unwrap_or_default(),
            age_ms: self.since(lease, "asked"),
        }
    }

    /// Returns the age in milliseconds on Redis' clock, which may have been set back.
    fn since(&self, lease: &Lease, field: &str) -> Option<u64> {
        Some(self.now.saturating_sub(lease.number(field)?))
    }

    fn tally(&self) -> Tally {
        let count = |name: &str| self.counts.get(name)?.parse::<u64>().ok();
        let is_event_name = |name: &str| {
            name.len() <= 32 && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_')
        };
        let events = self.counts.iter().filter_map(|(name, count)| {
            let name = name.strip_prefix("event:").filter(|name| is_event_name(name))?;
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
        gpu_state: gpu_state(gpu),
        lease: gpu.owner.clone(),
        record: legacy.map(|record| node.record(record)),
        ..PoolGpu::default()
    }
}

/// The state of a GPU, from the lists that contain it.
fn gpu_state(gpu: &audit::Gpu) -> GpuState {
    match gpu {
        _ if gpu.owner.is_some() => GpuState::Leased,
        _ if gpu.quarantine.is_some() => GpuState::Quarantined,
        _ if gpu.idle > 0 => GpuState::Idle,
        _ if gpu.pot > 0 => GpuState::Gathering,
        _ if gpu.bar > 0 => GpuState::Barrier,
        _ if gpu.record.as_ref().is_some_and(|record| record.lease.is_none()) => GpuState::Legacy,
        _ => GpuState::Unknown,
    }
}

/// Parses `PID:START`.
fn process(text: &str) -> Option<ProcessKey> {
    let (pid, start) = text.split_once(':')?;
    Some(ProcessKey { pid: pid.parse().ok()?, start_ticks: start.parse().ok()? })
}

/// Returns each GPU of a lease once. Of more GPUs than a pool can have, one too many is returned, so that not all are known.
fn distinct<'a>(gpus: impl Iterator<Item = &'a str>) -> Vec<String> {
    let mut seen = BTreeSet::new();
    gpus.filter(|id| seen.insert(*id)).take(MOST_GPUS + 1).map(str::to_owned).collect()
}

#[expect(clippy::cast_possible_truncation, clippy::cast_precision_loss, reason = "times are far below 2^53")]
fn left(expires: f64, now: u64) -> i64 {
    (expires - now as f64) as i64
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: &str = "0123456789abcdef0123456789abcdef";
    const OTHER: &str = "fedcba9876543210fedcba9876543210";

    /// The node of this test, with a fixed machine id.
    fn node() -> Node {
        let node = Node::read(Path::new("/proc"), PidNamespace::Unknown);
        Node { local_host: LocalHost { host: ONE.to_owned(), ..node.local_host }, ..node }
    }

    /// Returns whether the snapshot names the holder of a lease of this process, and whether that holder is running,
    /// for this host and boot.
    fn reported(host: &str, boot: &str, (expires, agents): (u64, &str)) -> (bool, Truth) {
        let (own_pid, pidns) = (std::process::id(), &node().namespaces[0]);
        let start = bailiff_proc::start(own_pid).unwrap().unwrap();
        let lease = format!(
            r#"{{"lease":"x","state":"held","expires":{expires},"host":"{host}","boot":"{boot}","pidns":"{pidns}","pid":"{own_pid}","start":"{start}"}}"#
        );
        let text = format!(
            r#"{{"now":1000,"barrier":null,"gpus":[],"leases":[{lease}],"queue":[],"agents":[{agents}]}}"#
        );
        let audit: Audit = serde_json::from_str(&text).unwrap();
        let held = audit.leases(&node(), Duration::ZERO).held.remove(0);
        (held.holder.is_some(), held.alive)
    }

    #[test]
    fn lease_of_cloned_machine_has_no_local_holder() {
        let (node, renewed) = (node(), (2000, ""));
        let boot = node.local_host.boot.as_str();
        assert_eq!(reported(ONE, boot, renewed), (true, Truth::True));
        assert_eq!(reported("pod", boot, renewed), (true, Truth::True));
        assert_eq!(
            reported(OTHER, boot, renewed),
            (false, Truth::Unknown),
            "the container's pids belong to other processes here"
        );
        let seen = |host: &str| {
            let evidence = WriterEvidence {
                pid: "4194303".to_owned(),
                time: "then".to_owned(),
                host: host.to_owned(),
                boot: boot.to_owned(),
                pidns: node.namespaces[0].clone(),
                uid: None,
                prompt: true,
                whole: true,
                processes: vec![ProcessKey { pid: 4_194_303, start_ticks: 7 }],
                session: None,
                at_ms: 0,
            };
            let (pid, time) = (evidence.pid.clone(), evidence.time.clone());
            let seen = serde_json::to_string(&evidence).ok();
            let record = node.record(&audit::Record { pid, time, lease: None, seen });
            (record.start_ticks, record.alive)
        };
        assert_eq!(seen(ONE), (Some(7), Truth::False));
        assert_eq!(seen(OTHER), (None, Truth::Unknown), "the evidence is from another machine");
    }

    #[test]
    fn lease_of_earlier_boot_is_dead_only_if_not_renewed() {
        assert_eq!(reported(ONE, "another", (2000, "")), (false, Truth::Unknown));
        assert_eq!(reported(ONE, "another", (900, "")), (false, Truth::False));
        assert_eq!(reported("worker-0", "another", (900, "")), (false, Truth::Unknown));
        let pidns = &node().namespaces[0];
        let agent = format!(r#"{{"host":"{ONE}","boot":"another","pidns":"{pidns}"}}"#);
        assert_eq!(
            reported(ONE, "another", (900, &agent)),
            (false, Truth::Unknown),
            "a cloned machine with a running agent"
        );
    }
}
