//! The true state: the trial's processes, their work, and the resulting scenario for the fake driver.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use end_to_end::fake::Scenario;
use end_to_end::home::Home;
use end_to_end::tenant::start;
use rustix::process::{Pid, Signal, kill_process};

use crate::{boot, run};

/// Number of GPUs.
pub(crate) const GPUS: usize = 3;
/// Delay after which the driver reports a new value: the sampling period plus the time to read the scenario.
const SETTLED: Duration = Duration::from_millis(60);

/// The specification of a target.
#[derive(Debug, Clone)]
pub(crate) struct Spec {
    /// Kind of the target, as in `target.c`.
    pub(crate) kind: &'static str,
    pub(crate) uid: u32,
    pub(crate) comm: &'static str,
    /// Container of the target.
    pub(crate) container: Option<usize>,
    /// Whether the target is in a cgroup below its container's cgroup, named like another container's.
    pub(crate) nested: bool,
    /// Whether the target runs the protected program.
    pub(crate) precious: bool,
    pub(crate) milliseconds: u64,
    pub(crate) gpus: Vec<usize>,
    pub(crate) sm: u32,
}

/// A process: a target or a target's helper.
#[derive(Debug)]
pub(crate) struct Process {
    pub(crate) pid: u32,
    /// Start time in ticks, or `None` until the process is ready.
    pub(crate) ticks: Option<u64>,
    /// Earliest possible start time.
    pub(crate) born: Duration,
    /// When the process was waited for, so that its pid became free.
    pub(crate) ended: Option<Duration>,
    /// Index of the target from which the process descends. For a target, this is its own index.
    pub(crate) root: usize,
    pub(crate) kind: &'static str,
    pub(crate) uid: u32,
    pub(crate) comm: String,
    pub(crate) container: Option<String>,
    nested: bool,
    pub(crate) precious: bool,
    /// Whether the workload has processes of several users.
    pub(crate) foreign: bool,
    pub(crate) gpus: Vec<usize>,
    /// Utilization over time. Each value was written to the scenario between the two moments.
    use_of: Vec<(Duration, Duration, u32)>,
    /// When the trial stopped (true) and continued (false) the process.
    pub(crate) stops: Vec<(Duration, bool)>,
}

/// Faults of the fake driver.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    pub(crate) lost: [bool; GPUS],
    pub(crate) hung: bool,
}

/// The true state of the node.
pub(crate) struct World {
    pub(crate) processes: Vec<Process>,
    pub(crate) faults: Faults,
    pub(crate) scenario: Scenario,
    programs: [PathBuf; 2],
    log: PathBuf,
    cgroups: Cgroups,
}

/// Cgroups for the trial's two containers. Each container has a nested cgroup that is named like the other
/// container.
struct Cgroups(PathBuf);

/// Returns the id of a container.
pub(crate) fn container(number: usize) -> String {
    ["a", "b"][number].repeat(64)
}

impl Cgroups {
    fn new() -> Self {
        let mounts = fs::read_to_string("/proc/mounts").expect("the mounts");
        let mount = mounts
            .lines()
            .find_map(|line| line.split_once(" cgroup2 ").or(line.split_once(" cgroup2fs ")).map(|_| line));
        let root =
            mount.and_then(|line| line.split(' ').nth(1)).expect("a hierarchy of cgroups of version 2");
        let all = Self(Path::new(root).join(format!("bailiff-trial-{}.slice", std::process::id())));
        for number in [0, 1] {
            fs::create_dir_all(all.path(number, true)).expect("cgroups can be created");
        }
        all
    }

    fn path(&self, number: usize, nested: bool) -> PathBuf {
        let own = self.0.join(format!("docker-{}.scope", container(number)));
        if nested { own.join(format!("docker-{}.scope", container(1 - number))) } else { own }
    }
}

impl Drop for Cgroups {
    fn drop(&mut self) {
        let mut all: Vec<PathBuf> = [(0, true), (1, true), (0, false), (1, false)]
            .map(|(number, nested)| self.path(number, nested))
            .into();
        all.push(self.0.clone());
        for path in all {
            let began = boot();
            while path.exists() && fs::remove_dir(&path).is_err() && boot() < began + Duration::from_secs(5) {
                std::thread::park_timeout(Duration::from_millis(5));
            }
        }
    }
}

impl World {
    /// Returns a world without processes. Compiles the targets' program.
    pub(crate) fn new(home: &Home) -> Self {
        let programs = ["target", "treasure"].map(|name| home.path().join(name));
        let source = end_to_end::programs::root().join("tests/fixtures/trial/target.c");
        let path = |path: &Path| path.display().to_string();
        run("cc", &["-O1", "-Wall", "-pthread", "-o", &path(&programs[0]), &path(&source)]);
        fs::copy(&programs[0], &programs[1]).expect("a program can be copied");
        let log = home.path().join("signals");
        File::create(&log).expect("a log");
        run("chmod", &["0666", &path(&log)]);
        let world = Self {
            processes: Vec::new(),
            faults: Faults::default(),
            scenario: Scenario::new(""),
            programs,
            log,
            cgroups: Cgroups::new(),
        };
        world.write_scenario();
        world
    }

    /// Returns the path of the program that the rules protect.
    pub(crate) fn protected_program(&self) -> &Path {
        &self.programs[1]
    }

    /// Starts a target, optionally with a pid that has just become free.
    #[expect(clippy::zombie_processes, reason = "all children are waited for in one place")]
    pub(crate) fn spawn(&mut self, home: &Home, spec: Spec, pid: Option<u32>) {
        let program = &self.programs[usize::from(spec.precious)];
        let cgroup = spec.container.map(|number| self.cgroups.path(number, spec.nested).join("cgroup.procs"));
        let mut command = Command::new(program);
        if let Some(pid) = pid {
            command.arg("reuse").arg(pid.to_string()).arg(program);
        }
        command.arg(&self.log).arg(cgroup.unwrap_or_default()).arg(spec.uid.to_string());
        command.args([spec.comm, spec.kind, &spec.milliseconds.to_string()]);
        let born = boot();
        let child = command.stdin(home.open_device()).process_group(0).spawn().expect("a target starts");
        let root = self.processes.len();
        let process = Process {
            pid: pid.unwrap_or_else(|| child.id()),
            ticks: None,
            born,
            ended: None,
            root,
            kind: spec.kind,
            uid: spec.uid,
            comm: spec.comm.to_owned(),
            container: spec.container.map(container),
            nested: spec.nested,
            precious: spec.precious,
            foreign: spec.kind == "foreign",
            gpus: spec.gpus,
            use_of: vec![(born, born, spec.sm)],
            stops: Vec::new(),
        };
        self.processes.push(process);
        // The driver lists a reused pid immediately, not only after READY, because it identifies processes only by pid.
        if let Some(pid) = pid {
            let until = boot() + Duration::from_secs(1);
            while !belongs_to_trial(pid) && boot() < until {
                std::thread::yield_now();
            }
            // Another process on this machine might have taken the pid.
            if belongs_to_trial(pid) { self.ready(pid) } else { self.ended(pid) }
        }
    }

    /// Records that a target is ready. The driver lists it from now on.
    pub(crate) fn ready(&mut self, pid: u32) {
        if let Some(index) = self.at(pid, boot()).filter(|index| self.processes[*index].ticks.is_none()) {
            self.processes[index].ticks = start(pid);
            let sm = self.processes[index].sm();
            self.set(index, sm);
        }
    }

    /// Records a helper of a process.
    pub(crate) fn forked(&mut self, (parent, pid, uid): (u32, u32, u32), at: Duration) {
        let Some(root) = self.at(parent, at).map(|index| self.processes[index].root) else { return };
        let target = &self.processes[root];
        let helper = Process {
            pid,
            ticks: start(pid),
            born: at.saturating_sub(Duration::from_millis(500)),
            ended: None,
            root,
            kind: "helper",
            uid: if uid == 0 { target.uid } else { uid },
            comm: target.comm.clone(),
            container: target.container.clone(),
            nested: target.nested,
            precious: target.precious,
            foreign: target.foreign,
            gpus: Vec::new(),
            use_of: Vec::new(),
            stops: Vec::new(),
        };
        self.processes.push(helper);
    }

    /// Returns the newest process that had a pid at a time.
    pub(crate) fn at(&self, pid: u32, at: Duration) -> Option<usize> {
        let had = |process: &Process| process.pid == pid && process.born <= at;
        self.processes.iter().rposition(had)
    }

    /// Returns the targets that are running and listed.
    pub(crate) fn targets(&self) -> Vec<usize> {
        let all = self.processes.iter().enumerate();
        let live = all.filter(|(_, process)| {
            process.ended.is_none() && process.ticks.is_some() && !process.gpus.is_empty()
        });
        live.map(|(index, _)| index).collect()
    }

    /// Sets the utilization of a process from now on.
    pub(crate) fn set(&mut self, index: usize, sm: u32) {
        let before = boot();
        self.processes[index].use_of.push((before, Duration::MAX, sm));
        self.write_scenario();
        if let Some(last) = self.processes[index].use_of.last_mut() {
            last.1 = boot();
        }
    }

    /// Records that a child was waited for. The driver no longer lists it.
    pub(crate) fn ended(&mut self, pid: u32) {
        let index = self.at(pid, Duration::MAX);
        if let Some(index) = index.filter(|index| self.processes[*index].ended.is_none()) {
            self.processes[index].ended = Some(boot());
            self.write_scenario();
        }
    }

    /// Stops or continues a target.
    pub(crate) fn stop(&mut self, index: usize, stopped: bool) {
        let signal = if stopped { Signal::STOP } else { Signal::CONT };
        self.processes[index].stops.push((boot(), stopped));
        self.signal(index, signal);
    }

    /// Moves a container's target into a nested cgroup that is named like another container's, or back.
    pub(crate) fn change_cgroup(&mut self, index: usize) -> Option<()> {
        let process = &mut self.processes[index];
        let number =
            [0, 1].into_iter().find(|number| process.container.as_ref() == Some(&container(*number)))?;
        process.nested = !process.nested;
        let path = self.cgroups.path(number, process.nested).join("cgroup.procs");
        fs::write(path, process.pid.to_string()).ok()
    }

    /// Sends a signal to a process that has not been waited for, so that its pid cannot have been reused.
    pub(crate) fn signal(&self, index: usize, signal: Signal) {
        let process = &self.processes[index];
        // A helper is waited for by its parent.
        let there = process.root == index || (process.ticks.is_some() && start(process.pid) == process.ticks);
        if process.ended.is_none()
            && there
            && let Some(pid) = i32::try_from(process.pid).ok().and_then(Pid::from_raw)
        {
            let _ = kill_process(pid, signal);
        }
    }

    /// Writes the driver's scenario.
    pub(crate) fn write_scenario(&self) {
        let hang = if self.faults.hung { "faults: {hang: true}\n" } else { "" };
        let mut text = format!("sampling_period: 20ms\n{hang}gpus:\n");
        for gpu in 0..GPUS {
            let held =
                self.processes.iter().filter(|process| process.ended.is_none() && process.ticks.is_some());
            let held = held.filter(|process| process.gpus.contains(&gpu));
            // A process with several GPUs uses only the first of them.
            let sm = |process: &Process| if process.gpus.first() == Some(&gpu) { process.sm() } else { 0 };
            let held: Vec<String> = held
                .map(|process| format!("{{pid: {}, used: 1GiB, sm: {}}}", process.pid, sm(process)))
                .collect();
            let lost = if self.faults.lost[gpu] { "    faults: {lost: true}\n" } else { "" };
            let _ = write!(text, "  - processes: [{}]\n{lost}", held.join(", "));
        }
        self.scenario.set(&text);
    }

    /// Kills every target and waits for it.
    pub(crate) fn end(&mut self) {
        for index in 0..self.processes.len() {
            self.signal(index, Signal::KILL);
        }
    }
}

impl Process {
    /// Returns the current utilization.
    pub(crate) fn sm(&self) -> u32 {
        self.use_of.last().map_or(0, |(_, _, sm)| *sm)
    }

    /// Returns whether the process was busy between two moments, and for so long before them that every sample
    /// must show it.
    pub(crate) fn surely_busy(&self, from: Duration, to: Duration) -> bool {
        let from = from.saturating_sub(SETTLED);
        let before = self.use_of.iter().rfind(|(begun, ..)| *begun <= from);
        let after = self.use_of.iter().any(|(begun, _, _)| *begun > from && *begun <= to);
        self.ticks.is_some() && !after && before.is_some_and(|(_, written, sm)| *sm > 1 && *written <= from)
    }

    /// Returns since when the trial has stopped the process, if it was stopped at that moment.
    pub(crate) fn stopped_at(&self, at: Duration) -> Option<Duration> {
        let last = self.stops.iter().rfind(|(when, _)| *when <= at);
        last.and_then(|(when, stopped)| stopped.then_some(*when))
    }

    /// Returns the name of the process in reports.
    pub(crate) fn name(&self) -> String {
        let Self { pid, kind, uid, comm, gpus, .. } = self;
        let container =
            self.container.as_ref().map(|id| format!(" in container {id:.1}…")).unwrap_or_default();
        format!("{pid} ({kind}, user {uid}, {comm}, GPUs {gpus:?}{container})")
    }
}

/// Returns whether a process is a child of this program.
fn belongs_to_trial(pid: u32) -> bool {
    let stat = fs::read(format!("/proc/{pid}/stat")).ok();
    stat.and_then(|stat| bailiff_snapshot::stat::parse(&stat))
        .is_some_and(|stat| stat.ppid == std::process::id())
}
