//! Rebuilds a snapshot from the samples of one scrape. Values that Prometheus does not have are unknown.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use bailiff_snapshot::{Place, Why, millis, wire};
use serde::Deserialize;
use serde::de::IntoDeserializer;
use serde::de::value::{Error, StrDeserializer};

use super::Children;
use super::held::{ANCHOR, SAME_START, Scrape, Scraped, TAKEN, whole};
use super::jobs::Jobs;
use super::{Window, growth};
use bailiff_prometheus::Labels;

/// Prometheus has no cgroup paths, so selectors on them are unknown; pods, containers and jobs have labels.
const NO_CGROUP: &str = "/";

/// Rebuilds snapshots, scrape by scrape.
#[derive(Debug)]
pub(super) struct Rebuild<'a> {
    scraped: &'a Scraped,
    children: Children,
    /// Time between two snapshots.
    interval: Duration,
    /// Sampling interval of the exporter.
    tick: Duration,
    /// Number of the last snapshot.
    seq: Option<u64>,
    last_ms: Option<u64>,
    /// Start times of processes, by pid.
    starts: HashMap<u32, f64>,
    /// First snapshot of pids that only the driver lists.
    first: HashMap<u32, u64>,
    /// Busy seconds, by GPU and pid.
    busy: HashMap<(String, u32), f64>,
    jobs: Jobs,
}

impl<'a> Rebuild<'a> {
    pub(super) fn new(
        scraped: &'a Scraped,
        (interval, tick): (Duration, Duration),
        children: Children,
    ) -> Self {
        Self {
            scraped,
            children,
            interval,
            tick,
            seq: None,
            last_ms: None,
            starts: HashMap::new(),
            first: HashMap::new(),
            busy: HashMap::new(),
            jobs: Jobs::default(),
        }
    }

    /// Returns the snapshot of a scrape; `None` if it is the same as in the previous scrape.
    pub(super) fn snapshot(&mut self, scrape: &Scrape<'_>, at: i64) -> Option<wire::Snapshot> {
        let seq = whole(scrape.one(ANCHOR)?);
        if self.seq == Some(seq) {
            return None;
        }
        self.seq = Some(seq);
        let wall_ms = match scrape.one(TAKEN) {
            Some(seconds) => whole(seconds * 1000.0),
            None => u64::try_from(at).unwrap_or_default(),
        };
        let processes = self.processes(scrape, seq);
        let starts: HashMap<u32, u64> =
            processes.iter().filter_map(|process| Some((process.pid, process.start_ticks?))).collect();
        let gpus = self.gpus(scrape, (wall_ms, &starts));
        self.last_ms = Some(wall_ms);
        let namespace = scrape
            .of("bailiff_pid_namespace_info")
            .find_map(|(labels, value)| labels.get("pid_namespace").filter(|_| value > 0.0));
        let namespace = namespace.map(|namespace| namespace.as_str().into());
        Some(wire::Snapshot {
            version: wire::VERSION,
            seq,
            // Processes are identified by their start time, so one boot id serves for all.
            boot_id: Some("prometheus".to_owned()),
            wall_ms,
            boot_ms: wall_ms,
            interval_ms: millis(self.interval),
            pid_namespace: namespace.unwrap_or_default(),
            slurm: self.jobs.node((scrape, self.scraped), wall_ms),
            sources: sources(scrape),
            gpus,
            processes,
            relatives: match self.children {
                Children::Unknown => None,
                Children::Idle => Some(Vec::new()),
            },
            ..wire::Snapshot::default()
        })
    }

    fn processes<'s>(&mut self, scrape: &Scrape<'s>, seq: u64) -> Vec<wire::Process> {
        let mut rows: BTreeMap<u32, Row<'s>> = BTreeMap::new();
        let mut each = |metric, change: &dyn Fn(&mut Row<'s>, &'s Labels, f64)| {
            for (labels, value) in scrape.of(metric) {
                let Some(pid) = pid(labels) else { continue };
                change(rows.entry(pid).or_default(), labels, value);
            }
        };
        each("bailiff_process_info", &|row, labels, _| row.info = Some(labels));
        each("bailiff_process_state", &|row, labels, value| {
            row.state = labels.get("state").filter(|_| value > 0.0).map(String::as_str).or(row.state);
        });
        each("bailiff_process_start_time_seconds", &|row, _, value| row.start = Some(value));
        each("bailiff_process_cpu_seconds_total", &|row, _, value| row.cpu = Some(value));
        each("bailiff_process_io_bytes_total", &|row, _, value| {
            row.io = Some(row.io.unwrap_or_default() + whole(value));
        });
        each("bailiff_process_orphaned", &|row, _, value| row.orphaned = Some(value > 0.0));
        let mut starts = HashMap::new();
        let mut first = HashMap::new();
        let processes = rows.into_iter().map(|(pid, row)| {
            let start = row.start.map(|start| match self.starts.get(&pid) {
                Some(known) if (known - start).abs() <= SAME_START => *known,
                _ => start,
            });
            match start {
                Some(start) => drop(starts.insert(pid, start)),
                None => drop(first.insert(pid, *self.first.get(&pid).unwrap_or(&seq))),
            }
            self.process(pid, &row, (start, first.get(&pid).copied()))
        });
        let processes = processes.collect();
        (self.starts, self.first) = (starts, first);
        processes
    }

    fn process(&self, pid: u32, row: &Row<'_>, (start, first): (Option<f64>, Option<u64>)) -> wire::Process {
        let start_ticks = start.map(|start| whole(start * 100.0));
        let known = |name: &str| row.info.and_then(|info| self.scraped.label(info, name)).map(str::to_owned);
        // The exporter writes a process's name and CPU time only if `/proc` had them.
        let facts = row.cpu.filter(|_| start.is_some()).map(|cpu_seconds| {
            let place = Place {
                cgroup: NO_CGROUP.to_owned(),
                container: known("container"),
                runtime: known("runtime"),
                pod_uid: known("pod_uid"),
                pod: known("pod"),
                namespace: known("namespace"),
                slurm_job: known("slurm_job"),
                unit: known("unit"),
                ..Place::default()
            };
            wire::Facts {
                comm: known("comm").unwrap_or_default(),
                uid: known("uid").and_then(|uid| uid.parse().ok()),
                // A user without a name is published by uid, and has no name here either.
                user: known("user").filter(|user| known("uid").as_ref() != Some(user)),
                command: known("command"),
                cpu_seconds,
                io_bytes: row.io,
                orphaned: row.orphaned,
                reaped_cpu_seconds: match self.children {
                    Children::Unknown => None,
                    Children::Idle => Some(0.0),
                },
                workload: Some(
                    workload(&place)
                        .unwrap_or_else(|| format!("tree:{pid}@{}", start_ticks.unwrap_or_default())),
                ),
                place: place.into(),
                ..wire::Facts::default()
            }
        });
        wire::Process {
            pid,
            start_ticks,
            first_seq: first,
            state: row.state.unwrap_or("unknown").into(),
            facts,
        }
    }

    fn gpus(&mut self, scrape: &Scrape<'_>, (wall_ms, starts): (u64, &HashMap<u32, u64>)) -> Vec<wire::Gpu> {
        let mut gpus: BTreeMap<Vec<u32>, wire::Gpu> = BTreeMap::new();
        for (labels, _) in scrape.of("bailiff_gpu_info") {
            let Some(index) = labels.get("gpu") else { continue };
            gpus.insert(order(index), gpu(index, labels, scrape));
        }
        let passed = self.last_ms.map(|last| Duration::from_millis(wall_ms.saturating_sub(last)));
        let mut busy = HashMap::new();
        for ((index, pid), mut holding) in holdings(scrape) {
            let key = (index.clone(), pid);
            if let Some(now) = holding.busy {
                holding.growth = self.busy.get(&key).map(|before| growth(*before, now));
                busy.insert(key, now);
            }
            let Some(gpu) = gpus.get_mut(&order(&index)) else { continue };
            if !starts.contains_key(&pid) {
                holding.growth = None;
            }
            gpu.holders.push(holding.holder(pid, passed.unwrap_or_default(), self.tick));
        }
        // Counters of processes that a scrape lacks are kept, so that no growth is missed.
        self.busy.retain(|(_, pid), _| starts.contains_key(pid));
        self.busy.extend(busy);
        gpus.into_values().collect()
    }
}

/// Values of one process.
#[derive(Debug, Default)]
struct Row<'a> {
    info: Option<&'a Labels>,
    state: Option<&'a str>,
    start: Option<f64>,
    cpu: Option<f64>,
    io: Option<u64>,
    orphaned: Option<bool>,
}

fn pid(labels: &Labels) -> Option<u32> {
    labels.get("pid").and_then(|pid| pid.parse().ok())
}

/// Values of one process on one GPU.
#[derive(Debug, Default)]
struct Holding {
    kinds: String,
    memory: Option<u64>,
    percent: Option<u32>,
    unknown: Option<Why>,
    idle_ms: u64,
    busy: Option<f64>,
    growth: Option<f64>,
    xids: BTreeMap<u64, u64>,
}

impl Holding {
    fn holder(self, pid: u32, passed: Duration, tick: Duration) -> wire::Holder {
        let window = Window {
            gauge: self.percent,
            growth: self.growth,
            passed: passed.as_secs_f64(),
            tick: tick.as_secs_f64(),
        };
        let utilization = window.busiest();
        wire::Holder {
            pid,
            kinds: self.kinds,
            memory: self.memory,
            utilization,
            unknown: if utilization.is_some() { None } else { self.unknown.or(Some(Why::Failed)) },
            idle_ms: self.idle_ms,
            xids: self.xids,
        }
    }
}

fn holdings(scrape: &Scrape<'_>) -> BTreeMap<(String, u32), Holding> {
    let mut all: BTreeMap<(String, u32), Holding> = BTreeMap::new();
    let mut each = |metric, change: &dyn Fn(&mut Holding, &Labels, f64)| {
        for (labels, value) in scrape.of(metric) {
            let Some((gpu, pid)) = labels.get("gpu").zip(pid(labels)) else { continue };
            change(all.entry((gpu.clone(), pid)).or_default(), labels, value);
        }
    };
    each("bailiff_process_gpu_context_info", &|holding, labels, _| {
        holding.kinds = labels.get("context").cloned().unwrap_or_default();
    });
    each("bailiff_process_gpu_memory_bytes", &|holding, _, value| holding.memory = Some(whole(value)));
    each("bailiff_process_gpu_utilization_ratio", &|holding, labels, value| {
        // Memory bandwidth does not count as work.
        if labels.get("engine").is_some_and(|engine| engine != "memory") {
            holding.percent = holding.percent.max(Some(percent(value)));
        }
    });
    each("bailiff_process_gpu_utilization_unknown_info", &|holding, labels, _| {
        let reason = labels.get("reason").map(String::as_str).unwrap_or_default();
        let reason: StrDeserializer<'_, Error> = reason.into_deserializer();
        holding.unknown = Why::deserialize(reason).ok();
    });
    each("bailiff_process_gpu_idle_seconds", &|holding, _, value| holding.idle_ms = whole(value * 1000.0));
    each("bailiff_process_gpu_busy_seconds_total", &|holding, _, value| holding.busy = Some(value));
    each("bailiff_process_gpu_xid_errors_total", &|holding, labels, value| {
        let xid = labels.get("xid").and_then(|xid| xid.parse().ok());
        holding.xids.extend(xid.map(|xid| (xid, whole(value))));
    });
    all
}

fn sources(scrape: &Scrape<'_>) -> BTreeMap<String, wire::Source> {
    let faults: BTreeMap<&str, &str> = scrape
        .of("bailiff_source_fault_info")
        .filter_map(|(labels, _)| Some((labels.get("source")?.as_str(), labels.get("reason")?.as_str())))
        .collect();
    let sources = scrape.of("bailiff_source_up").filter_map(|(labels, up)| {
        let name = labels.get("source")?;
        let fault = faults.get(name.as_str()).map(|reason| (*reason).into());
        Some((name.clone(), wire::Source { up: up > 0.0, fault }))
    });
    sources.collect()
}

fn gpu(index: &str, about: &Labels, scrape: &Scrape<'_>) -> wire::Gpu {
    let read = |metric| {
        let of_it = |(labels, _): &(&Labels, f64)| labels.get("gpu").is_some_and(|gpu| gpu == index);
        scrape.of(metric).find(of_it).map(|(_, value)| value)
    };
    let fault = || {
        let reasons = scrape.of("bailiff_gpu_fault_info");
        let mut reason = reasons.filter(|(labels, _)| labels.get("gpu").is_some_and(|gpu| gpu == index));
        reason.find_map(|(labels, _)| labels.get("reason")).map_or("unknown", String::as_str).into()
    };
    let memory = || {
        Some(wire::Memory {
            total: whole(read("bailiff_gpu_memory_total_bytes")?),
            free: whole(read("bailiff_gpu_memory_free_bytes")?),
            used: whole(read("bailiff_gpu_memory_used_bytes")?),
            #[expect(clippy::cast_possible_truncation, reason = "bytes of a GPU")]
            unaccounted: read("bailiff_gpu_memory_unaccounted_bytes").map(|bytes| bytes.round() as i64),
            unreleased: read("bailiff_gpu_memory_unreleased_bytes").map(whole),
            ..wire::Memory::default()
        })
    };
    // Processes without series of their own also hold a part of the memory.
    let complete = read("bailiff_gpu_other_processes").is_none_or(|others| others <= 0.0);
    wire::Gpu {
        index: index.to_owned(),
        uuid: about.get("gpu_uuid").cloned(),
        name: about.get("name").cloned(),
        parent_uuid: about.get("parent_uuid").cloned(),
        minor: about.get("minor").and_then(|minor| minor.parse().ok()),
        fault: (read("bailiff_gpu_up") != Some(1.0)).then(fault),
        mig: about.contains_key("parent_uuid") || read("bailiff_gpu_mig_enabled") == Some(1.0),
        memory: memory(),
        utilization: read("bailiff_gpu_utilization_ratio").map(percent),
        listed: read("bailiff_gpu_processes").filter(|_| complete).map(whole),
        instances: read("bailiff_gpu_mig_instances").map(whole),
        unlisted_processes: read("bailiff_gpu_unlisted_processes").map(whole),
        ..wire::Gpu::default()
    }
}

/// Returns the outermost known unit of a place. A session and a user manager contain more than one workload.
fn workload(place: &Place) -> Option<String> {
    let unit = place.unit.as_ref().filter(|unit| !unit.starts_with("session-") && !unit.starts_with("user@"));
    let named = [
        ("slurm", &place.slurm_job),
        ("container", &place.container),
        ("pod", &place.pod_uid),
        ("unit", &unit.cloned()),
    ];
    named.into_iter().find_map(|(kind, name)| Some(format!("{kind}:{}", name.as_ref()?)))
}

/// Sorts `2` before `10`, and MIG instances after their GPU.
fn order(index: &str) -> Vec<u32> {
    index.split(':').map(|part| part.parse().unwrap_or(u32::MAX)).collect()
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "from 0 to 100")]
fn percent(ratio: f64) -> u32 {
    (ratio * 100.0).round().clamp(0.0, 100.0) as u32
}
