//! Random histories of a Slurm cluster, and what cancelling by `job::decide` does to its jobs. The model of `scancel` is
//! what Slurm 22.05 was observed to do. Wrong decisions show that the model detects a wrongly cancelled job.
#![expect(clippy::unwrap_used, reason = "a test")]

#[path = "oracle/dice.rs"]
mod dice;

use std::time::Duration;

use bailiff_engine::job::{self, Job};
use bailiff_engine::policy::JobNodes;
use bailiff_snapshot::Moment;
use bailiff_snapshot::slurm::JobRecord;
use dice::Dice;

const HISTORIES: u64 = 1000;
const NODES: [&str; 2] = ["n1", "n2"];
/// Slurm starts a requeued job again only after its credential has expired, which takes 2 minutes by default.
const REQUEUE: u64 = 120;

/// Part of what a record is.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Part {
    Alone,
    /// Task of an array: id of the array and index.
    Task(u32, u32),
    /// Component of a heterogeneous job: id of the leader and index.
    Component(u32, u32),
}

/// A record of slurmctld.
#[derive(Debug, Clone)]
struct Record {
    id: u32,
    part: Part,
    uid: u32,
    nodes: &'static [&'static str],
    state: &'static str,
    start: u64,
    /// Number of the run. A requeued job is another run.
    run: u64,
}

/// What the node has seen of one run: its processes, or the record of its prolog.
#[derive(Debug)]
struct Seen {
    job: Job,
    run: u64,
}

/// When the node was booted, in seconds since the Unix epoch.
const BOOT: u64 = 1_690_000_000;

fn moment(now: u64) -> Moment {
    Moment { boot: Duration::from_secs(now - BOOT), wall: Duration::from_secs(now) }
}

struct Cluster {
    dice: Dice,
    now: u64,
    next: u32,
    runs: u64,
    records: Vec<Record>,
}

impl Cluster {
    fn new(seed: u64) -> Self {
        Self { dice: Dice::new(seed), now: 1_700_000_000, next: 7, runs: 0, records: Vec::new() }
    }

    fn id(&mut self) -> u32 {
        // Ids start again after MaxJobId, or if the state of slurmctld is lost.
        if self.dice.percent(12) {
            self.next = 7;
        }
        while self.records.iter().any(|record| record.id == self.next && !job::has_ended(record.state)) {
            self.next += 1;
        }
        let id = self.next;
        // A new job replaces the record of an old one.
        self.records.retain(|record| record.id != id);
        self.next += 1;
        id
    }

    fn start(&mut self, id: u32, part: Part, uid: u32) {
        self.runs += 1;
        let nodes: &[&str] = if self.dice.percent(20) { &NODES } else { &NODES[..1] };
        let (start, run) = (self.now, self.runs);
        self.records.push(Record { id, part, uid, nodes, state: "RUNNING", start, run });
    }

    /// Submits a job, an array or a heterogeneous job, and starts it.
    fn submit(&mut self) {
        let uid = 1000 + u32::try_from(self.dice.below(2)).unwrap();
        let first = self.id();
        match self.dice.below(3) {
            0 => self.start(first, Part::Alone, uid),
            1 => {
                let last = u32::try_from(1 + self.dice.below(3)).unwrap();
                // Each task but the last gets an id of its own when it starts.
                for task in 1..last {
                    let id = self.id_after(first);
                    self.start(id, Part::Task(first, task), uid);
                }
                self.start(first, Part::Task(first, last), uid);
            }
            _ => {
                let second = self.id_after(first);
                self.start(first, Part::Component(first, 0), uid);
                self.start(second, Part::Component(first, 1), uid);
            }
        }
    }

    fn id_after(&mut self, first: u32) -> u32 {
        loop {
            let id = self.id();
            if id != first {
                return id;
            }
        }
    }

    /// Something happens to a job.
    fn happen(&mut self) {
        self.now += 1 + self.dice.below(60);
        let choice = self.dice.below(5);
        if self.records.is_empty() || choice == 0 {
            return self.submit();
        }
        let count = u64::try_from(self.records.len()).unwrap();
        let place = usize::try_from(self.dice.below(count)).unwrap();
        let (runs, now) = (self.runs + 1, self.now + REQUEUE);
        let record = &mut self.records[place];
        match (choice, record.state) {
            (1, "RUNNING") if !matches!(record.part, Part::Component(..)) => {
                // The job is requeued, and starts again. Processes of the earlier run may still exist.
                (self.runs, self.now, record.run, record.start) = (runs, now, runs, now);
            }
            (2, "RUNNING") => record.state = "SUSPENDED",
            (2, "SUSPENDED") => record.state = "RUNNING",
            (3, _) => record.state = ["COMPLETED", "CANCELLED", "COMPLETING"][place % 3],
            _ => {}
        }
    }

    /// The node sees the processes of a running job.
    fn see(&mut self) -> Option<Seen> {
        let running: Vec<Record> =
            self.records.iter().filter(|record| record.state == "RUNNING").cloned().collect();
        let record = (!running.is_empty()).then(|| self.dice.pick(&running))?;
        let late = Duration::from_millis(self.dice.below(3000));
        Some(Seen {
            job: Job {
                id: record.id.to_string().parse().unwrap(),
                uid: record.uid,
                node: NODES[0].to_owned(),
                began: Duration::from_secs(record.start) + late,
            },
            run: record.run,
        })
    }

    /// Slurm starts a run on the node, and its prolog writes a record some time later. With Slurm's default settings, the
    /// prolog waits for the first step of the job.
    fn record(&mut self) -> Option<(JobRecord, u64)> {
        let running: Vec<Record> =
            self.records.iter().filter(|record| record.state == "RUNNING").cloned().collect();
        let run = (!running.is_empty()).then(|| self.dice.pick(&running))?;
        let latest = self.now - run.start;
        let written = run.start + self.dice.below(latest + 1);
        let record = JobRecord {
            boot_id: String::new(),
            job: run.id.to_string().parse().unwrap(),
            sluid: None,
            uid: run.uid,
            user: None,
            account: None,
            node: NODES[0].to_owned(),
            gpus: None,
            boot_ms: (written - BOOT) * 1000 + self.dice.below(1000),
        };
        Some((record, run.run))
    }

    /// Returns what `squeue --jobs=ID` prints: jobs, arrays and heterogeneous jobs with this id.
    fn squeue(&self, name: &str) -> String {
        let id: u32 = name.parse().unwrap_or_default();
        let line = |record: &Record| {
            let (shown_as, array, task, belongs) = match record.part {
                Part::Alone => (record.id.to_string(), record.id, "N/A".to_owned(), false),
                Part::Task(array, task) => (format!("{array}_{task}"), array, task.to_string(), array == id),
                Part::Component(leader, index) => {
                    (format!("{leader}+{index}"), record.id, "N/A".to_owned(), leader == id)
                }
            };
            let (uid, state, start) = (record.uid, record.state, record.start);
            let nodes = if record.nodes.len() == 1 { "n1" } else { "n[1-2]" };
            let count = record.nodes.len();
            let shown = if name.contains('_') { name == shown_as } else { belongs || record.id == id };
            shown.then(|| {
                format!("{}|{shown_as}|{array}|{task}|{uid}|{state}|{start}|{count}|{nodes}\n", record.id)
            })
        };
        self.records.iter().filter_map(line).collect()
    }

    /// Returns the runs that `scancel NAME` cancels.
    fn scancel(&self, name: &str) -> Vec<&Record> {
        let cancels = |record: &&Record| match (name.parse::<u32>(), record.part) {
            (Ok(id), Part::Alone) => record.id == id,
            // The id of an array names all tasks. The id of one task names none.
            (Ok(id), Part::Task(array, _)) => array == id,
            (Ok(id), Part::Component(leader, _)) => leader == id || record.id == id,
            (Err(_), Part::Task(array, task)) => name == format!("{array}_{task}"),
            (Err(_), _) => false,
        };
        let living = self.records.iter().filter(|record| !job::has_ended(record.state));
        living.filter(cancels).collect()
    }
}

/// A decision: the name for `scancel`, if any. The function runs `squeue` with a name.
type Decide = fn(&dyn Fn(&str) -> String, &Job, JobNodes) -> Option<String>;

fn right(squeue: &dyn Fn(&str) -> String, job: &Job, nodes: JobNodes) -> Option<String> {
    let name = unconfirmed(squeue, job, nodes)?;
    (name == job.id.as_ref() || job::confirm(&squeue(&name), job, &name).is_ok()).then_some(name)
}

fn unconfirmed(squeue: &dyn Fn(&str) -> String, job: &Job, nodes: JobNodes) -> Option<String> {
    job::decide(&squeue(job.id.as_ref()), job, nodes).ok().map(|job| job.name)
}

/// How a job becomes a target.
#[derive(Debug, Clone, Copy)]
enum By {
    /// By its processes.
    Processes,
    /// By the record of its prolog. The record stays if the epilog does not run.
    Record(OfRecord),
}

/// Returns the job of a record.
type OfRecord = fn(&JobRecord, Moment) -> Job;

/// Runs a history. Returns whether the job that was seen was cancelled.
fn history(seed: u64, by: By, decide: Decide) -> Result<bool, String> {
    let mut cluster = Cluster::new(seed);
    let before = cluster.dice.of(1, 6);
    (0..before).for_each(|_| cluster.happen());
    let (seen, record) = match by {
        By::Processes => (cluster.see(), None),
        By::Record(_) => (None, cluster.record()),
    };
    let after = cluster.dice.below(6);
    (0..after).for_each(|_| cluster.happen());
    let seen = match (by, record) {
        (By::Record(job), Some((record, run))) => Some(Seen { job: job(&record, moment(cluster.now)), run }),
        _ => seen,
    };
    let Some(seen) = seen else { return Ok(false) };
    let nodes = if cluster.dice.percent(50) { JobNodes::One } else { JobNodes::Any };
    let output = cluster.squeue(seen.job.id.as_ref());
    let Some(name) = decide(&|name| cluster.squeue(name), &seen.job, nodes) else { return Ok(false) };
    let cancelled = cluster.scancel(&name);
    let own = cluster.records.iter().find(|record| record.run == seen.run);
    for record in &cancelled {
        let same_job = matches!((record.part, own.map(|own| own.part)),
            (Part::Component(leader, _), Some(Part::Component(own, _))) if leader == own && nodes == JobNodes::Any);
        if record.run != seen.run && !same_job {
            return Err(format!("{seen:?}: scancel {name} cancelled {record:?}\n{output}"));
        }
        if nodes == JobNodes::One && record.nodes.len() > 1 {
            return Err(format!("{seen:?}: scancel {name} cancelled a job on several nodes\n{output}"));
        }
    }
    Ok(cancelled.iter().any(|record| record.run == seen.run))
}

#[test]
fn no_other_job_is_cancelled_in_random_histories() {
    for by in [By::Processes, By::Record(Job::of_record)] {
        let run = |seed| history(seed, by, right).unwrap_or_else(|wrong| panic!("history {seed}: {wrong}"));
        let cancelled = (1..=HISTORIES).filter(|seed| run(*seed)).count();
        assert!(cancelled > 150, "only {cancelled} of {HISTORIES} jobs were cancelled");
    }
}

/// Replaces fields by what the node knows, so that `job::decide` does not check them.
fn without_check<'a>(
    squeue: &'a dyn Fn(&str) -> String,
    replace: &'a [(usize, String)],
) -> impl Fn(&str) -> String + 'a {
    let line = move |line: &str| {
        let mut words: Vec<String> = line.split('|').map(str::to_owned).collect();
        for (place, word) in replace {
            words[*place].clone_from(word);
        }
        words.join("|") + "\n"
    };
    move |name| squeue(name).lines().map(line).collect()
}

#[test]
fn wrong_decisions_cancel_other_jobs() {
    let wrong: [(&str, Decide); 6] = [
        ("the id instead of the name", |squeue, job, nodes| {
            right(squeue, job, nodes).map(|_| job.id.to_string())
        }),
        ("no check of the name", unconfirmed),
        ("no check of the start", |squeue, job, nodes| {
            right(&without_check(squeue, &[(6, "1".to_owned())]), job, nodes)
        }),
        ("no check of the owner, nor of the start", |squeue, job, nodes| {
            right(&without_check(squeue, &[(4, job.uid.to_string()), (6, "1".to_owned())]), job, nodes)
        }),
        ("no check of the number of nodes", |squeue, job, _| right(squeue, job, JobNodes::Any)),
        ("the array instead of the task", |squeue, job, nodes| {
            right(squeue, job, nodes).map(|name| name.split('_').next().unwrap().to_owned())
        }),
    ];
    for (what, decide) in wrong {
        for by in [By::Processes, By::Record(Job::of_record)] {
            let found = (1..=HISTORIES).any(|seed| history(seed, by, decide).is_err());
            assert!(found, "{what}: not detected");
        }
    }
    // The time of the sample instead of the record's start.
    let job: OfRecord = |record, now| Job { began: now.wall, ..Job::of_record(record, now) };
    assert!((1..=HISTORIES).any(|seed| history(seed, By::Record(job), right).is_err()));
}
