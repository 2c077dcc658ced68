//! What is on GPUs: processes that the driver lists, processes that have a device file open, and memory that no process
//! accounts for.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use bailiff_exposition::terminal::line;
use bailiff_proc::{Proc, Process};
use bailiff_sampler::{Launcher, SamplerSettings, Supervisor, device_processes};
use bailiff_snapshot::unlisted::{is_run_by_system, is_service, is_system};
use bailiff_snapshot::{
    DeviceProcess, Fault, Gpu, Holder, PidNamespace, Place, ProcessId, ProcessKey, Snapshot, Source,
};

use super::config::Config;
use super::inspection::{Finding, Found, Inspection};
use super::job::Job;
use crate::args::Machine;
use crate::output::joined;

/// Maximum deadline of the driver's calls in one sample, and time limit of the scan for open device files.
const DEADLINE: Duration = Duration::from_secs(2);

/// Maximum number of pids in a message.
const MOST_NAMED: usize = 5;

/// The GPUs to inspect.
#[derive(Debug, Default)]
pub(super) struct Scope {
    /// Minor number of each GPU, by its position in gres.conf.
    pub(super) gpus: BTreeMap<usize, u32>,
    /// Positions of GPUs that another job also uses: only processes of this job count there.
    pub(super) shared: BTreeSet<usize>,
    /// The hook's job.
    pub(super) job: Option<Job>,
}

/// Reads the GPUs, in a worker process that may hang.
pub(super) struct Inspector {
    supervisor: Supervisor,
    procfs: PathBuf,
    tolerance: u64,
    /// Names of the site's monitors.
    monitors: Vec<String>,
    seq: u64,
}

impl Inspector {
    /// Starts the worker's launcher. Opening the driver may take `patience`.
    pub(super) fn start(machine: &Machine, config: &Config, patience: Duration) -> io::Result<Self> {
        let settings = SamplerSettings {
            nvml_library: machine.nvml_library.clone(),
            procfs: machine.procfs.clone(),
            deadline: DEADLINE,
            open_deadline: patience.max(DEADLINE),
            ..SamplerSettings::default()
        };
        // slurmd waits until nobody has the hook's output open, but a hung worker cannot be ended.
        let launcher = Launcher::start_with(&settings, Stdio::null())?;
        let supervisor = Supervisor::new(launcher, settings);
        let (tolerance, monitors) = (config.tolerance, config.monitors.clone());
        Ok(Self { supervisor, procfs: machine.procfs.clone(), tolerance, monitors, seq: 0 })
    }

    /// Reads the GPUs of this scope.
    pub(super) fn inspect(&mut self, scope: &Scope) -> Inspection {
        let Some(snapshot) = self.snapshot() else {
            return Inspection::unknown("the helper process that reads the driver has exited");
        };
        if Source::Proc.fault(&snapshot.sources).is_some() {
            return Inspection::unknown("/proc cannot be read");
        }
        let reader = Reader {
            snapshot: &snapshot,
            scope,
            tolerance: self.tolerance,
            monitors: &self.monitors,
            proc: Proc::open(&self.procfs).ok(),
        };
        let mut inspection = match Source::Nvml.fault(&snapshot.sources) {
            Some(fault) => {
                let message = self.supervisor.words().map(line).unwrap_or_default();
                reader.without_driver(
                    format!("the driver cannot be read: {} {message}", fault.name()).trim_end(),
                )
            }
            None => reader.listed(),
        };
        if let Some((scan, unread)) = device_processes(&self.procfs, DEADLINE) {
            if scan.unreadable > 0 {
                let pids = joined(unread.iter().take(MOST_NAMED), ", ");
                let why = format!("open files of {} processes cannot be read: {pids}", scan.unreadable);
                inspection.unknown.push(why);
            }
            inspection.unread.pids.extend(unread);
            reader.add_unlisted(&scan.processes, &mut inspection);
        } else {
            inspection.unknown.push("/proc cannot be read".to_owned());
            inspection.unread.files = true;
        }
        inspection
    }

    fn snapshot(&mut self) -> Option<Snapshot> {
        loop {
            self.seq += 1;
            let sample = self.supervisor.sample(self.seq)?;
            let snapshot = Snapshot::between(None, sample);
            if Source::Nvml.fault(&snapshot.sources) != Some(Fault::Starting) {
                return Some(snapshot);
            }
        }
    }
}

/// Finds processes in one snapshot.
struct Reader<'a> {
    snapshot: &'a Snapshot,
    scope: &'a Scope,
    tolerance: u64,
    monitors: &'a [String],
    proc: Option<Proc>,
}

impl Reader<'_> {
    /// Returns the processes that the driver lists, and memory that they do not account for.
    fn listed(&self) -> Inspection {
        let mut inspection = Inspection::default();
        if self.snapshot.namespace != PidNamespace::Host {
            inspection.unknown.push("this command does not run in the host's PID namespace".to_owned());
            inspection.unread.all = true;
        }
        for (&position, &minor) in &self.scope.gpus {
            let whole = self
                .snapshot
                .gpus
                .iter()
                .find(|gpu| gpu.about.mig.is_none() && gpu.about.minor == Some(minor));
            let Some(gpu) = whole else {
                inspection
                    .unknown
                    .push(format!("gpu {position}: the driver does not report /dev/nvidia{minor}"));
                inspection.unread.gpus.insert(position);
                continue;
            };
            inspection.uuids.extend(gpu.about.id.iter().map(|id| (minor, id.0.clone())));
            self.add_gpu(position, gpu, &mut inspection);
        }
        inspection
    }

    /// Returns that nothing of the GPUs could be read. Open device files can be read nevertheless.
    fn without_driver(&self, why: &str) -> Inspection {
        let mut inspection = Inspection { unknown: vec![why.to_owned()], ..Inspection::default() };
        inspection.unread.gpus.extend(self.scope.gpus.keys());
        inspection
    }

    fn add_gpu(&self, position: usize, gpu: &Gpu, inspection: &mut Inspection) {
        let why = match gpu.fault {
            Some(fault) => Some(format!("cannot be read: {}", fault.name())),
            // Positions count instances then, and the driver lists processes by instance.
            None if gpu.mig() => Some("MIG is enabled".to_owned()),
            None if !gpu.lists_processes() => Some("the driver's process list cannot be read".to_owned()),
            None => None,
        };
        if let Some(why) = why {
            inspection.unknown.push(format!("gpu {position}: {why}"));
            inspection.unread.gpus.insert(position);
            inspection.lasting += usize::from(gpu.fault.is_none() && gpu.mig());
            return;
        }
        let holders = gpu.holders.iter();
        let counts = |process: &Found| self.counts(position, process);
        let found: Vec<(Found, Option<u64>)> = holders
            .clone()
            .filter(|holder| !self.is_exempt(holder))
            .map(|holder| (self.holder(holder), holder.memory))
            .collect();
        let before = inspection.findings.len();
        let findings = found.into_iter().filter(|(process, _)| counts(process));
        inspection.findings.extend(findings.map(|(process, bytes)| Finding {
            gpu: position,
            bytes,
            process: Some(process),
        }));
        if inspection.findings.len() > before || self.scope.shared.contains(&position) {
            return;
        }
        let held: u64 = holders.filter_map(|holder| holder.memory).sum();
        match gpu
            .memory
            .and_then(|memory| memory.total.checked_sub(memory.free)?.checked_sub(memory.reserved?))
        {
            Some(used) if used.saturating_sub(held) > self.tolerance => {
                inspection.findings.push(Finding { gpu: position, bytes: Some(used - held), process: None });
            }
            Some(_) => {}
            None => {
                inspection
                    .unknown
                    .push(format!("gpu {position}: the driver does not report its memory in use"));
                inspection.unread.memory.insert(position);
                // The driver is older than the call that reports it.
                inspection.lasting += usize::from(gpu.memory.is_some());
            }
        }
    }

    fn holder(&self, holder: &Holder) -> Found {
        let facts = self.snapshot.processes.get(&holder.process).and_then(|process| process.facts.as_ref());
        let key = match holder.process {
            ProcessId::Live(key) => Some(key),
            ProcessId::Unconfirmed { .. } => None,
        };
        Found {
            pid: holder.process.pid(),
            key,
            comm: facts.map(|facts| facts.comm.clone()),
            uid: facts.and_then(|facts| facts.uid),
            user: facts.and_then(|facts| facts.user.clone()).or_else(|| self.user(facts?.uid?)),
            job: facts.and_then(|facts| facts.place.slurm_job.clone()),
            listed: true,
        }
    }

    /// Adds processes that have the device file of a GPU open, without being listed for it.
    fn add_unlisted(&self, processes: &[DeviceProcess], inspection: &mut Inspection) {
        for (&position, &minor) in &self.scope.gpus {
            for process in processes.iter().filter(|process| process.minors.contains(&minor)) {
                let is_listed = inspection.findings.iter().any(|finding| {
                    finding.gpu == position
                        && finding.process.as_ref().is_some_and(|listed| listed.pid == process.pid)
                });
                let found = self.device_process(process);
                if !is_listed && !self.is_exempt_program(process, &found) && self.counts(position, &found) {
                    inspection.findings.push(Finding { gpu: position, bytes: None, process: Some(found) });
                }
            }
        }
    }

    fn device_process(&self, process: &DeviceProcess) -> Found {
        let read = |proc: &Proc| proc.process(process.pid)?.patiently(Process::cgroup);
        let cgroup = self.proc.as_ref().and_then(|proc| read(proc).ok()).unwrap_or_default();
        Found {
            pid: process.pid,
            key: process.start_ticks.map(|start_ticks| ProcessKey { pid: process.pid, start_ticks }),
            comm: Some(process.comm.clone()),
            uid: process.uid,
            user: process.uid.and_then(|uid| self.user(uid)),
            job: Place::parse(&String::from_utf8_lossy(&cgroup)).slurm_job,
            listed: false,
        }
    }

    /// Returns the name of a user, if it is the job's owner. The name service is not asked, because it may hang.
    fn user(&self, uid: u32) -> Option<String> {
        self.scope.job.as_ref().filter(|job| job.uid == uid)?.user.clone()
    }

    /// Returns whether a process on a GPU is a finding.
    fn counts(&self, position: usize, process: &Found) -> bool {
        let own = self.scope.job.as_ref().filter(|_| self.scope.shared.contains(&position));
        own.is_none_or(|own| match &process.job {
            Some(job) => own.is_named(job),
            // With `proctrack/linuxproc`, the cgroup does not show the job.
            None => process.uid.is_none_or(|uid| uid == own.uid),
        })
    }

    /// Returns whether a process that the driver lists does not count: a display server, MPS or a monitor of the system,
    /// which uses a GPU as long as the node runs.
    fn is_exempt(&self, holder: &Holder) -> bool {
        let facts = self.snapshot.processes.get(&holder.process).and_then(|process| process.facts.as_ref());
        facts.is_some_and(|facts| {
            let is_monitor = is_run_by_system(facts.uid) && self.monitors.contains(&facts.comm);
            facts.place.boundary.is_none() && (is_monitor || is_system(&facts.comm, facts.uid))
        })
    }

    /// Returns whether a process that has the device file open does not count: a service of the driver, or a display
    /// server, MPS or a monitor of the system. Monitors may run in containers, but not in jobs, where users choose names.
    fn is_exempt_program(&self, process: &DeviceProcess, found: &Found) -> bool {
        let is_monitor = is_run_by_system(process.uid) && self.monitors.contains(&process.comm);
        found.job.is_none() && (is_service(process) || is_monitor || is_system(&process.comm, process.uid))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bailiff_snapshot::{GpuSample, Memory};
    use snapshot_fixtures::sample as fixtures;

    fn with_reader<T>(snapshot: &Snapshot, test: impl FnOnce(&Reader<'_>) -> T) -> T {
        let scope = Scope { gpus: BTreeMap::from([(0, 0)]), ..Scope::default() };
        test(&Reader { snapshot, scope: &scope, tolerance: 0, monitors: &["gpu-mon".to_owned()], proc: None })
    }

    #[test]
    fn memory_in_use_is_a_finding_only_if_the_processes_are_known() {
        let listed = |entries| {
            let memory = Some(Memory { total: 8 << 30, free: 6 << 30, used: 2 << 30, reserved: Some(0) });
            let mut gpu = GpuSample { entries, memory, ..fixtures::gpu((0, "GPU-1"), vec![]) };
            gpu.about.minor = Some(0);
            fixtures::walk([fixtures::sample((0, Duration::from_secs(10)), vec![gpu], None)])
        };
        let found = |snapshot: &Snapshot| {
            with_reader(snapshot, |reader| {
                let found = reader.listed();
                (found.findings.len(), found.unknown, found.unread.gpus.contains(&0))
            })
        };
        assert_eq!(found(&listed(Some(vec![]))), (1, vec![], false));
        let unknown = "gpu 0: the driver's process list cannot be read".to_owned();
        assert_eq!(found(&listed(None)), (0, vec![unknown], true));
    }

    #[test]
    fn program_with_an_open_device_file_is_exempt_only_as_a_system_user_outside_jobs() {
        let snapshot = fixtures::walk([fixtures::sample((0, Duration::from_secs(10)), vec![], None)]);
        let is_exempt = |comm: &str, uid, job: Option<&str>| {
            let process = DeviceProcess {
                pid: 41,
                start_ticks: None,
                comm: comm.to_owned(),
                uid: Some(uid),
                minors: vec![0],
            };
            with_reader(&snapshot, |reader| {
                let found = Found { job: job.map(str::to_owned), ..reader.device_process(&process) };
                reader.is_exempt_program(&process, &found)
            })
        };
        for comm in ["dcgm-exporter", "gpu-mon", "Xorg", "nvidia-cuda-mps"] {
            let found = [(0, None), (1000, None), (0, Some("7"))].map(|(uid, job)| is_exempt(comm, uid, job));
            assert_eq!(found, [true, false, false], "{comm}");
        }
        assert!(!is_exempt("python", 0, None));
    }
}
