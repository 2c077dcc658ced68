//! A run: starts and stops workers, observes them, and fills in the report. The parts that need more than a period
//! are in `parts.rs`.

use std::path::Path;
use std::thread::park_timeout;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bailiff_mps::Control;
use bailiff_mps::control::Question;
use bailiff_mps::reply;
use bailiff_snapshot::wire::Snapshot;

use crate::driver::{Answer, Card, Driver};
use crate::programs::{self, Program, Setting, Worker, until};
use crate::published::Published;
use crate::report::{Line, Outcome, Report, Tried};
use crate::rows::{About, Check, Plan, ROWS, Row};
use crate::worker::Work;
use crate::{FAILED, NO_GPU, Stop};

pub(crate) const FOREIGN_PIDS: &str =
    "the driver's pids are not those of this PID namespace; run it on the host";

/// A process of this run on the GPU.
pub(crate) struct Subject {
    pub(crate) work: Work,
    pub(crate) pid: u32,
    /// The pid under which the driver lists the process.
    pub(crate) listed: u32,
    /// `None` for the MPS server, which was started by its daemon.
    pub(crate) worker: Option<Worker>,
}

/// Observations while workers ran.
pub(crate) struct Observation {
    pub(crate) answer: Answer,
    pub(crate) snapshots: Vec<Snapshot>,
    /// Memory of a process that only has a context.
    pub(crate) context: Option<u64>,
}

/// The state of a run.
pub(crate) struct Run {
    pub(crate) setting: Setting,
    pub(crate) driver: Driver,
    pub(crate) card: Card,
    pub(crate) subjects: Vec<Subject>,
    pub(crate) seen: Option<(&'static [Work], Result<Observation, String>)>,
    pub(crate) exporter: Option<Program>,
    pub(crate) enforcer: Option<Program>,
    pub(crate) mps: Option<(Program, Control)>,
    /// Pids of processes that have computed.
    pub(crate) busy: Vec<u32>,
    /// Newest timestamps of the driver's samples, in the order in which they were read.
    pub(crate) stamps: Vec<u64>,
}

impl Run {
    pub(crate) fn new(setting: Setting, driver: Driver, card: Card) -> Self {
        let (subjects, busy, stamps) = (Vec::new(), Vec::new(), Vec::new());
        let (seen, exporter, enforcer, mps) = (None, None, None, None);
        Self { setting, driver, card, subjects, seen, exporter, enforcer, mps, busy, stamps }
    }

    /// Tries these rows, or all, and saves the report after each of them. Fails if CUDA does not work.
    pub(crate) fn report(mut self, rows: &[String], out: &Path) -> Result<Report, Stop> {
        let probe = self.start("idle").map_err(|why| (NO_GPU, format!("no CUDA: {why}")))?;
        self.setting.shares_pid_namespace = probe.listed == probe.pid;
        drop(probe);
        let (driver, gpu) = (self.driver.version(), self.card.name.clone());
        let mut report = Report { driver, gpu, lines: Vec::new() };
        for Row { id, claim, plan } in ROWS {
            if !rows.is_empty() && !rows.iter().any(|row| row == id) {
                continue;
            }
            let tried = match plan {
                Plan::Part(part) => part(&mut self),
                Plan::Observe(done, running, about, checks) => self.period([running, about], done, checks),
            };
            let line = Line { id, claim, tried: tried.and_then(|tried| self.fault().map_or(Ok(tried), Err)) };
            eprintln!("hardware: {id}: {}", line.cells()[5]);
            report.lines.push(line);
            report.save(out).map_err(|why| (FAILED, why))?;
        }
        Ok(report)
    }

    /// Observes workers, unless the previous row observed the same workers, and checks some of them. Claims that
    /// only concern the driver do not need pids.
    fn period(&mut self, [running, about]: [&'static [Work]; 2], done: &str, checks: &[Check]) -> Tried {
        let needs_mig = checks.iter().any(|check| check.about == About::Mig);
        if !running.is_empty() && needs_mig != self.card.mig {
            let state = if needs_mig { "off" } else { "on" };
            return Err(format!("MIG is {state}, and no setting of the GPU is changed"));
        }
        if checks.iter().any(|check| check.about == About::EmptyGpu)
            && (self.card.others > 0 || self.card.mig)
        {
            return Err(format!("{} processes of others are on the GPU, or MIG is on", self.card.others));
        }
        if self.seen.as_ref().is_none_or(|seen| seen.0 != running) {
            let seen = self.let_run(running).and_then(|()| self.observe());
            self.seen = Some((running, seen));
        }
        let Some((_, seen)) = &self.seen else { return Err("not observed".to_owned()) };
        let seen = seen.as_ref().map_err(String::clone)?;
        let about: Vec<&Subject> = self.subjects.iter().filter(|one| about.contains(&one.work)).collect();
        let none = Subject { work: "", pid: 0, listed: 0, worker: None };
        let known_pids = self.setting.shares_pid_namespace;
        let of_driver = |check: &Check| matches!(check.about, About::EmptyGpu | About::Driver);
        let holds = |check: &Check| match &about[..] {
            [] => check.holds(seen, &none),
            about => about.iter().all(|one| check.holds(seen, one)),
        };
        let tried = checks.iter().filter(|check| known_pids || of_driver(check));
        let wrong: Vec<_> = tried.filter(|check| !holds(check)).map(|check| check.failure).collect();
        if !known_pids && wrong.is_empty() && !checks.iter().all(of_driver) {
            return Err(FOREIGN_PIDS.to_owned());
        }
        Ok(Outcome { cells: cells(done, &about, seen), wrong })
    }

    /// Returns why the run cannot continue, if a program has exited.
    fn fault(&mut self) -> Option<String> {
        for (name, log, program) in [
            ("bailiff-exporter", "exporter.log", &mut self.exporter),
            ("bailiff-enforcer", "enforcer.log", &mut self.enforcer),
        ] {
            if program.as_mut().is_some_and(|program| program.ended().is_some()) {
                return Some(format!("{name} ended: {}", programs::log(&self.setting, log)));
            }
        }
        None
    }

    pub(crate) fn read(&mut self, since: u64) -> Result<Answer, String> {
        let answer = self.driver.read(&self.card.uuid, since);
        let answer = answer.map_err(|error| format!("the driver failed: {error}"))?;
        self.stamps.extend(answer.device.iter().map(|sample| sample.0).max());
        Ok(answer)
    }

    /// Runs exactly these workers.
    pub(crate) fn let_run(&mut self, running: &[Work]) -> Result<(), String> {
        let all = std::mem::take(&mut self.subjects);
        let (stay, ended): (Vec<_>, Vec<_>) = all.into_iter().partition(|one| running.contains(&one.work));
        self.subjects = stay;
        let ended: Vec<u32> =
            ended.into_iter().filter(|one| one.worker.is_some()).map(|one| one.listed).collect();
        until("the driver no longer lists ended workers", || {
            self.read(0).is_ok_and(|now| !ended.iter().any(|pid| now.lists_process(*pid)))
        })?;
        for work in running {
            if self.subjects.iter().all(|subject| subject.work != *work) {
                let subject = self.start(work)?;
                self.subjects.push(subject);
            }
        }
        if !running.is_empty() && self.exporter.is_none() {
            self.exporter = Some(programs::exporter(&self.setting)?);
            self.enforcer = Some(programs::enforcer(&self.setting, "dry-run.jsonl", true)?);
        }
        Ok(())
    }

    /// Starts a worker, and waits until the driver lists it.
    pub(crate) fn start(&mut self, work: Work) -> Result<Subject, String> {
        if work == "mps-server" {
            return self.mps_server();
        }
        if work.starts_with("mps") && self.mps.is_none() {
            self.mps = Some(programs::mps(&self.setting)?);
        }
        let before: Vec<u32> = self.read(0)?.pids().collect();
        let worker = Worker::start(&self.setting, work, &[])?;
        let mut listed = None;
        until("the driver lists the worker", || {
            let now = self.read(0).unwrap_or_default();
            // If the driver's pids are from another PID namespace, the first new pid is assumed to be the worker's.
            // Otherwise the pid must match, because a new pid might be the MPS server's.
            listed = if self.setting.shares_pid_namespace {
                now.lists_process(worker.pid).then_some(worker.pid)
            } else {
                now.pids().find(|pid| !before.contains(pid))
            };
            listed.is_some()
        })?;
        if work == "busy" {
            self.busy.push(worker.pid);
        }
        Ok(Subject { work, pid: worker.pid, listed: listed.unwrap_or_default(), worker: Some(worker) })
    }

    /// Returns the server that the daemon started for its clients.
    pub(crate) fn mps_server(&mut self) -> Result<Subject, String> {
        let (_, control) = self.mps.as_ref().ok_or("no client was started")?;
        let reply = control.query(Question::Servers).map_err(|error| error.to_string())?;
        let servers = reply::servers(&reply).map_err(|error| error.to_string())?;
        let pid = *servers.first().ok_or("CUDA started the clients without MPS")?;
        Ok(Subject { work: "mps-server", pid, listed: pid, worker: None })
    }

    /// Waits until earlier samples are older than the look-back, and then observes a period.
    pub(crate) fn observe(&mut self) -> Result<Observation, String> {
        pause(self.setting.look_back + 2 * self.setting.interval);
        let (since, from) = (self.read(0)?.newest(), wall_ms());
        pause(self.setting.observe);
        let answer = self.read(since)?;
        let snapshots = programs::snapshots(&self.setting, from);
        for subject in &mut self.subjects {
            if subject.worker.as_mut().is_some_and(|worker| worker.program.ended().is_some()) {
                return Err(format!("the worker {} exited unexpectedly", subject.work));
            }
        }
        if snapshots.is_empty() && self.exporter.is_some() {
            return Err("the exporter recorded no snapshot".to_owned());
        }
        let idle = self.subjects.iter().find(|subject| subject.work == "idle");
        let context = idle.and_then(|idle| answer.memory(idle.listed));
        Ok(Observation { answer, snapshots, context })
    }
}

fn cells(done: &str, about: &[&Subject], seen: &Observation) -> [String; 3] {
    let answers = about.iter().map(|one| seen.answer.of(one.listed));
    let published = about.iter().map(|one| Published::of(one.pid, &seen.snapshots).text());
    let answers: Vec<String> = answers.chain([seen.answer.of_gpu()]).collect();
    [done.to_owned(), answers.join("; "), published.collect::<Vec<_>>().join("; ")]
}

/// Waits for the duration of a period.
pub(crate) fn pause(time: Duration) {
    let began = Instant::now();
    while let Some(left) = time.checked_sub(began.elapsed()) {
        park_timeout(left);
    }
}

pub(crate) fn wall_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
