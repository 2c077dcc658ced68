#![expect(clippy::disallowed_methods, reason = "a worker times its own steps")]
//! The sampling worker: a process that loads NVML and reads `/proc` and quota files, one sample per request
//! on standard input. It announces each step, so that the supervisor knows where it hung.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use bailiff_proc::clock::{Deadline, now};
use bailiff_snapshot::{BootId, Fault, Gap, Seen, SourceState};
use rustix::process::Signal;

use crate::cgroup_limits::{CgroupLimits, Cgroups, can_be_found};
use crate::channel;
use crate::device_file_scan::{self, DeviceFileScan, Interval, has_unattributed};
use crate::kernel_log::KernelLogReader;
use crate::kubelet::{KubeletPoller, QueryKubelet};
use crate::launcher;
use crate::message::{Request, Rest, WorkerMessage};
use crate::mps;
use crate::nvml::{Context, Gpus};
use crate::own_cgroup::OwnCgroup;
use crate::proc::Processes;
use crate::quota::{Node, Quotas};
use crate::settings::{Commands, Mps, SamplerSettings};
use crate::slurm;

/// Divisors of the deadline: the scan of all processes may take half of it, and reading quotas an eighth. All parts of
/// reading `/proc` together may take seven tenths. The supervisor kills a worker that has taken four fifths.
const HOLDERS_PART: u32 = 4;
const WALK_PART: u32 = 2;
const MPS_PART: u32 = 8;
const QUOTA_PART: u32 = 8;
/// Time for which a worker skips processes without GPU memory, if its predecessor hung in `/proc`.
const WALK_PAUSE: Duration = Duration::from_mins(5);

/// Main function of a worker: takes samples until standard input closes. The kubelet is asked with `query`, if the settings
/// contain its socket.
pub fn serve(query: Option<QueryKubelet>) -> ExitCode {
    // A hung worker does not notice that its input was closed, so the kernel kills it when the launcher
    // exits.
    let with_launcher = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
    match with_launcher.map_err(io::Error::from).and_then(|()| work(query)) {
        Ok(()) => ExitCode::SUCCESS,
        // The error needs no report: the supervisor has exited, or sees the socket close.
        Err(_) => ExitCode::FAILURE,
    }
}

fn work(query: Option<QueryKubelet>) -> io::Result<()> {
    let settings = launcher::worker_settings().ok_or(io::ErrorKind::InvalidInput)?;
    // Requests and reports both use the socket on standard input.
    let mut socket = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    let mut requests = socket.try_clone()?;
    crate::proc::reserve_descriptors();
    let kubelet = settings.pod_resources.clone().zip(query);
    let kubelet = kubelet.map(|(settings, query)| KubeletPoller::start(settings, query));
    let kernel_log = settings.kernel_log.clone().map(KernelLogReader::open);
    let (gpus, driver) = match Gpus::open(settings.nvml_library.as_deref()) {
        Ok(open) => open,
        Err((fault, words)) => return say(&mut socket, &WorkerMessage::Failed(fault, words)),
    };
    say(&mut socket, &WorkerMessage::Opened(driver))?;
    let processes = Processes::open(&settings);
    let quotas = settings.quotas.clone().map(Quotas::new);
    let boot = crate::proc::Node::read(&settings).boot_id;
    let mut worker = Worker {
        settings,
        socket,
        gpus,
        processes,
        quotas,
        boot,
        kernel_log,
        kubelet,
        device_file_scan: DeviceFileScan::default(),
        cgroups: Cgroups::new(),
        began: Instant::now(),
    };
    while let Some(request) = channel::read::<Request>(&mut requests)? {
        if let Err((fault, words)) = worker.sample(&request)? {
            // The driver was unloaded or replaced: only a new process can load it again.
            return say(&mut worker.socket, &WorkerMessage::Failed(fault, words));
        }
    }
    Ok(())
}

struct Worker {
    settings: SamplerSettings,
    socket: UnixStream,
    gpus: Gpus,
    processes: Result<Processes, Fault>,
    quotas: Option<Quotas>,
    boot: Option<BootId>,
    kernel_log: Option<KernelLogReader>,
    kubelet: Option<KubeletPoller>,
    device_file_scan: DeviceFileScan,
    /// Cgroups of the processes in the previous sample.
    cgroups: Cgroups,
    began: Instant,
}

impl Worker {
    fn sample(&mut self, request: &Request) -> io::Result<Result<(), (Fault, String)>> {
        let began = Instant::now();
        let mut rest = Rest::default();
        // Before processes are listed: a process that is listed now was also running when the records were written.
        self.read_kernel_log(&mut rest);
        let count = match self.gpus.count() {
            Ok(count) => count,
            Err(error) => return Ok(Err(error)),
        };
        let (pids, unattributed) = self.read_gpus((request, count), &mut rest)?;
        rest.nvml_took = began.elapsed();
        say(&mut self.socket, &WorkerMessage::Looking { count })?;
        let began = Instant::now();
        self.scan_processes(&pids, &mut rest);
        self.cgroups = cgroups(&rest.processes);
        if rest.proc_fault.is_none() {
            self.find_mps(began, &mut rest);
            self.read_quotas(began, &mut rest);
            self.read_slurm(&mut rest);
            self.read_pod_resources(&mut rest);
            self.scan_device_files((began, unattributed), &mut rest);
        }
        say(&mut self.socket, &WorkerMessage::Done(Box::new(rest)))?;
        Ok(Ok(()))
    }

    /// Reads and sends the GPUs. Returns the time since boot at which each pid was listed, and whether a GPU has unattributed
    /// memory.
    fn read_gpus(
        &mut self,
        (request, count): (&Request, u32),
        rest: &mut Rest,
    ) -> io::Result<(BTreeMap<u32, Duration>, bool)> {
        // A process that started later has only reused the pid.
        let mut pids: BTreeMap<u32, Duration> = request.also.iter().map(|pid| (*pid, now().boot)).collect();
        let mut unattributed = false;
        let own_cgroup = OwnCgroup::read(&self.settings);
        let limits = CgroupLimits::read(&self.settings, &self.cgroups, &mut rest.gaps);
        for index in (0..count).filter(|index| !request.skip.contains(index)) {
            say(&mut self.socket, &WorkerMessage::Reading { index, count })?;
            let context = Context {
                lookback: self.settings.lookback.max(self.settings.interval * 2),
                now: now().boot,
                own_cgroup: &own_cgroup,
                limits: limits.as_ref(),
                activity: self.settings.activity,
                mig_idle: self.settings.mig_idle,
                memory_unknown: None,
                gaps: &mut rest.gaps,
            };
            let samples = self.gpus.read(index, context);
            for gpu in &samples {
                for entry in gpu.entries.iter().flatten().filter(|entry| entry.pid != 0) {
                    pids.entry(entry.pid).or_insert(gpu.entries_at);
                }
                unattributed |= has_unattributed(gpu);
            }
            say(&mut self.socket, &WorkerMessage::Read(samples))?;
        }
        Ok((pids, unattributed))
    }

    fn read_kernel_log(&mut self, rest: &mut Rest) {
        match self.kernel_log.as_mut().map(|log| log.read(&mut rest.gaps)) {
            Some(Ok(read)) => rest.kernel_log = Some(read),
            Some(Err(error)) => {
                rest.kernel_log_error = Some(error);
                rest.gaps.count(Gap::KernelLog);
            }
            None => {}
        }
    }

    /// Continues the scan of device files. Skips it if reading `/proc` hung recently, because this scan may
    /// be the cause. `began` is when this sample started to read `/proc`.
    fn scan_device_files(&mut self, (began, is_requested): (Instant, bool), rest: &mut Rest) {
        let Ok(processes) = &self.processes else { return };
        if self.settings.commands == Commands::Shunned {
            return self.device_file_scan.leave(is_requested, rest);
        }
        let part = self.settings.deadline / 5;
        let left = self.left(began, part);
        if left < device_file_scan::SHORTEST.min(part) {
            // There would be no time for a process that is slow to read.
            return self.device_file_scan.skip(is_requested, rest);
        }
        let until = Instant::now() + left;
        self.device_file_scan.run(&Interval { proc: processes.proc(), at: now(), until, is_requested }, rest);
    }

    fn scan_processes(&mut self, pids: &BTreeMap<u32, Duration>, rest: &mut Rest) {
        let began = Instant::now();
        let (limit, walk) = (self.settings.deadline * 7 / 10, self.patience(WALK_PART));
        let answer = match &self.processes {
            Ok(processes) => processes.answer(),
            Err(fault) => Err(*fault),
        };
        match (answer, &mut self.processes) {
            (Ok(()), Ok(processes)) => {
                let until = Deadline::after(self.settings.deadline / HOLDERS_PART);
                rest.processes = processes.scan(pids, (now(), until), &mut rest.gaps);
                let patience = walk.min(limit.saturating_sub(began.elapsed()));
                match processes.relate(&mut rest.processes, (now(), patience), &mut rest.gaps) {
                    Ok(relatives) => rest.relatives = relatives,
                    // A missing permission affects several reads; count it once per interval.
                    Err(gap) if rest.gaps.of(gap) > 0 => {}
                    Err(gap) => rest.gaps.count(gap),
                }
                rest.groups = processes.groups(&rest.processes, rest.relatives.as_deref());
            }
            (Err(fault), _) | (_, &mut Err(fault)) => {
                rest.proc_fault = Some(fault);
                rest.gaps.count(Gap::Unreadable);
            }
        }
        rest.proc_took = began.elapsed();
    }

    /// Finds MPS daemons and servers among the processes that were read, unless reading command lines hung.
    fn find_mps(&self, began: Instant, rest: &mut Rest) {
        let (Ok(processes), Mps::Read) = (&self.processes, self.settings.mps) else { return };
        if self.settings.commands == Commands::Shunned {
            rest.gaps.count(Gap::Mps);
        } else {
            let until = Deadline::after(self.left(began, self.settings.deadline / MPS_PART));
            rest.mps = mps::find(processes, (&rest.processes, until), &mut rest.gaps);
        }
    }

    /// Reads the quota files, unless reading `/proc`, which identifies their processes, hung recently.
    fn read_quotas(&mut self, sample_began: Instant, rest: &mut Rest) {
        let (began, patience) = (Instant::now(), self.left(sample_began, self.patience(QUOTA_PART)));
        let (Some(quotas), Ok(processes)) = (&mut self.quotas, &self.processes) else { return };
        if patience.is_zero() {
            rest.quota_state = Some(SourceState::down(Fault::Timeout));
            return;
        }
        let boot = self.boot.as_ref();
        let node = Node { proc: processes.proc(), seen: &rest.processes, boot, until: began + patience };
        match quotas.read(&node, &mut rest.gaps) {
            Ok(found) => {
                rest.quota_state = found.is_some().then(|| SourceState::up(began.elapsed()));
                rest.quotas = found;
            }
            Err(fault) => rest.quota_state = Some(SourceState::down(fault)),
        }
    }

    /// Reads the directory of Slurm's hooks, which only root writes.
    fn read_slurm(&self, rest: &mut Rest) {
        let Some(directory) = &self.settings.slurm else { return };
        let began = Instant::now();
        match slurm::read(directory, &mut rest.gaps) {
            Ok(found) => {
                rest.slurm_state = found.is_some().then(|| SourceState::up(began.elapsed()));
                rest.slurm = found;
            }
            Err(fault) => rest.slurm_state = Some(SourceState::down(fault)),
        }
    }

    /// Adds the kubelet's last answer, and the pods whose processes were found.
    fn read_pod_resources(&mut self, rest: &mut Rest) {
        let (Some(kubelet), Ok(processes)) = (&mut self.kubelet, &mut self.processes) else { return };
        kubelet.fill(now().boot, rest);
        if let Some(found) = &mut rest.pod_resources {
            found.live = processes.live_pods(&rest.processes, now().boot);
        }
    }

    /// Returns the time limit of a part, of which all together, since `began`, may take seven tenths of the deadline.
    fn left(&self, began: Instant, part: Duration) -> Duration {
        part.min((self.settings.deadline * 7 / 10).saturating_sub(began.elapsed()))
    }

    /// Returns the time limit for reading processes without GPU memory. It is zero for a while after reading
    /// `/proc` hung, because one of them may be the cause.
    fn patience(&self, part: u32) -> Duration {
        let shunned = self.settings.commands == Commands::Shunned && self.began.elapsed() < WALK_PAUSE;
        if shunned { Duration::ZERO } else { self.settings.deadline / part }
    }
}

/// Returns the cgroup of each process.
fn cgroups(processes: &BTreeMap<u32, Seen>) -> Cgroups {
    let cgroup = |(pid, seen): (&u32, &Seen)| match seen {
        Seen::Found(facts) if can_be_found(&facts.place.cgroup) => Some((*pid, facts.place.cgroup.clone())),
        _ => None,
    };
    processes.iter().filter_map(cgroup).collect()
}

fn say(socket: &mut UnixStream, report: &WorkerMessage) -> io::Result<()> {
    socket.write_all(&channel::frame(report)?)
}
