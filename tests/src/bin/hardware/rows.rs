//! The rows of the table, and what all of them need: workers whose pids are known, and a period of observation.

use std::thread::park_timeout;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bailiff_snapshot::wire::Snapshot;

use crate::Stop;
use crate::driver::{Answer, Card, Driver};
use crate::programs::{Daemons, Setting, Worker, until};
use crate::report::{Report, Row, Verdict};
use crate::worker::Work;

/// All rows, in the order of the report. Those called row-N are rows of the table in `snapshot/src/utilization.md`.
const CLAIMS: &[(&str, &str)] = &[
    ("samples-idle", "`nvmlDeviceGetSamples` has new samples of a GPU that nothing runs on"),
    ("not-found", "`nvmlDeviceGetProcessUtilization` answers NOT_FOUND where nothing ran"),
    ("pid", "the driver lists a process by the pid that it has here"),
    ("memory", "the driver's figure grows by what a process allocates, and is published as it is"),
    ("row-1", "MIG is on: utilization is unknown (`mig`)"),
    ("row-2", "no snapshot before: utilization is unknown (`first_look`)"),
    ("row-3", "a process that computes has samples above 1 %, and is published with them"),
    ("row-3-streams", "the same where it computes in many streams"),
    ("row-3-shared", "the same of two processes that share a GPU"),
    ("row-4", "an idle client of MPS beside a busy one is never published as 0"),
    ("row-5", "an idle process beside a busy one has no sample, and is published as 0"),
    ("row-6", "idle processes alone have no sample, the GPU is at most at 1 %, and all are published as 0"),
    ("row-7", "a process that computes a tenth of the time is never published as idle"),
    ("row-8", "a step of the driver's clock, or a window longer than its buffer: unknown"),
    (
        "leaderless",
        "a process whose thread-group leader exited is still listed with its memory, as zombie_leader",
    ),
    ("forked", "a forked child that inherited the device files keeps the memory of its ended parent"),
    ("release", "memory comes back within 10 s of the end of a process, and is no longer listed"),
    ("two-lists", "a process in the compute and the graphics list holds the same memory, not two memories"),
    ("quota", "the quota library refuses an allocation above its limit, and grants one below"),
    ("dry-run-idle", "the enforcer flags an idle process after 3 s, and would terminate it after 30 s"),
    ("dry-run-busy", "it neither flags nor would terminate a process that computes"),
    ("dry-run-signals", "a dry run sends no signal"),
];

/// Rows that no run can try, and why.
const NEVER: &[(&str, &str)] = &[
    ("row-8", "neither can be caused without a change of the machine's clock or a wait of minutes"),
    (
        "two-lists",
        "no process was in both lists; it needs a program that draws and computes, on a GPU with a screen",
    ),
];

const FOREIGN_PIDS: &str = "the driver's pids are not those of this PID namespace; run it on the host";

/// A worker, and the pid by which the driver lists it.
pub(crate) struct Subject {
    pub(crate) worker: Worker,
    pub(crate) listed: u32,
}

/// What was seen while workers did their work.
pub(crate) struct Seen {
    pub(crate) answer: Answer,
    pub(crate) snapshots: Vec<Snapshot>,
}

/// What was done, answered and published, in words.
pub(crate) type Words = [String; 3];

/// A claim about the driver or about what was published: whether it holds, and what is said where it does not.
pub(crate) type Claim = (bool, &'static str);

/// A run.
pub(crate) struct Trial<'a> {
    pub(crate) setting: Setting,
    pub(crate) driver: Driver,
    pub(crate) card: Card,
    pub(crate) report: &'a mut Report,
}

impl Trial<'_> {
    /// Fills the report.
    pub(crate) fn run(mut self) -> Result<(), Stop> {
        if self.card.others > 0 {
            let others = format!("{} processes of others were on the GPU.", self.card.others);
            self.report.notes.push(others);
        }
        self.idle_gpu().map_err(Stop::Failed)?;
        let idle = self.start(Work::Idle).map_err(|why| Stop::NoGpu(format!("no CUDA: {why}")))?;
        self.setting.pids_are_ours = idle.listed == idle.worker.pid;
        let answer = self.read(0).map_err(Stop::Failed)?;
        let words = ["a process made a context".to_owned(), answer.of(idle.listed), String::new()];
        self.driver_row("pid", words, &[(self.setting.pids_are_ours, "it is listed by another pid")]);
        self.both_lists(&answer);
        let mut broken = None;
        if let Err(why) = self.with_programs(idle) {
            self.report.notes.push(format!("The run broke off: {why}."));
            broken = Some(why);
        }
        self.complete(broken.as_deref().unwrap_or("its part was left out"));
        Ok(())
    }

    /// Adds the rows that are missing, and puts all in order.
    fn complete(&mut self, why: &str) {
        for (id, claim) in CLAIMS {
            if self.report.rows.iter().all(|row| row.id != *id) {
                let never = NEVER.iter().find(|never| never.0 == *id).map_or(why, |never| never.1);
                self.report.rows.push(Row::not_tried(id, claim, never));
            }
        }
        self.report.rows.sort_by_key(|row| CLAIMS.iter().position(|claim| claim.0 == row.id));
    }

    /// Rows of a part that cannot be tried.
    pub(crate) fn skip(&mut self, ids: &[&str], why: &str) {
        for (id, claim) in CLAIMS.iter().filter(|claim| ids.contains(&claim.0)) {
            self.report.rows.push(Row::not_tried(id, claim, why));
        }
    }

    /// A row that rests on the driver alone, or on programs that need no pids.
    pub(crate) fn driver_row(&mut self, id: &'static str, words: Words, claims: &[Claim]) {
        self.add(id, words, Verdict::of(claims));
    }

    /// A row with claims about the driver, and others about what was published, which need the driver's pids to be ours.
    pub(crate) fn row(&mut self, id: &'static str, words: Words, claims: [&[Claim]; 2]) {
        let [driver, published] = claims;
        let verdict = match Verdict::of(driver) {
            Verdict::Agree if !self.setting.pids_are_ours => Verdict::NotTried(FOREIGN_PIDS.to_owned()),
            _ if self.setting.pids_are_ours => Verdict::of(&[driver, published].concat()),
            of_driver => of_driver,
        };
        self.add(id, words, verdict);
    }

    fn add(&mut self, id: &'static str, words: Words, verdict: Verdict) {
        let claim = CLAIMS.iter().find(|claim| claim.0 == id).map_or("", |claim| claim.1);
        let [done, driver, published] = words;
        eprintln!("hardware: {id}: {verdict}");
        self.report.rows.push(Row { id, claim, done, driver, published, verdict });
    }

    pub(crate) fn read(&self, since: u64) -> Result<Answer, String> {
        self.driver.read(&self.card.uuid, since).map_err(|error| format!("the driver failed: {error}"))
    }

    /// Starts a worker, and waits until the driver lists a process more.
    pub(crate) fn start(&self, work: Work) -> Result<Subject, String> {
        let before = self.read(0)?.compute;
        let worker = Worker::start(work, &self.card.uuid, &[])?;
        let mut listed = None;
        until("the driver lists the worker", || {
            let now = self.read(0).map(|answer| answer.compute).unwrap_or_default();
            let new = || now.keys().find(|pid| !before.contains_key(pid)).copied();
            listed = now.contains_key(&worker.pid).then_some(worker.pid).or_else(new);
            listed.is_some()
        })?;
        Ok(Subject { worker, listed: listed.unwrap_or_default() })
    }

    /// Waits until what was before is out of the look-back, and then observes.
    pub(crate) fn observe(
        &self,
        daemons: &mut Daemons,
        subjects: &mut [&mut Subject],
    ) -> Result<Seen, String> {
        pause(self.setting.look_back + 2 * self.setting.interval);
        let (since, from) = (self.read(0)?.newest(), wall_ms());
        pause(self.setting.observe);
        let answer = self.read(since)?;
        let snapshots = daemons.snapshots(from, wall_ms());
        if let Some(fault) = daemons.fault() {
            return Err(fault);
        }
        match subjects.iter_mut().find_map(|subject| (!subject.worker.lives()).then_some(subject.worker.work))
        {
            Some(work) => Err(format!("the worker {} ended by itself", work.name())),
            None if snapshots.is_empty() => Err("the exporter recorded no snapshot".to_owned()),
            None => Ok(Seen { answer, snapshots }),
        }
    }
}

/// Lets time pass: what is observed is what happens in a period.
pub(crate) fn pause(time: Duration) {
    let end = std::time::Instant::now() + time;
    while let Some(left) =
        end.checked_duration_since(std::time::Instant::now()).filter(|left| !left.is_zero())
    {
        park_timeout(left);
    }
}

pub(crate) fn wall_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
