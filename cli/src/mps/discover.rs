//! Collects the MPS report from `/proc`, the driver and each daemon.

use std::collections::{BTreeMap, BTreeSet};
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bailiff_mps::control::{self, Question};
use bailiff_mps::{Control, ControlError, place, reply};
use bailiff_proc::clock::Deadline;
use bailiff_snapshot::{MpsStatus, Sample};

use super::flags::Common;
use super::node::{self, MpsProcess, MpsProcesses, Pipes, is_trusted};
use super::report::{Client, Daemon, MpsReport, Orphan, ReportedGpu, Server, State};
use crate::args::Machine;
use crate::doctor::driver;
use crate::lease::request::user_name;

/// Maximum number of GPUs whose memory limit is queried per daemon.
const MAX_GPUS: usize = 16;
/// Maximum number of servers that are queried per daemon.
pub(super) const MAX_SERVERS: usize = 16;
/// Time limit of all queries of a daemon, as a multiple of the time limit of one.
const MAX_TIMES: u32 = 5;
/// Maximum number of parallel queries. A daemon that hangs takes seconds, so others are queried meanwhile.
const MAX_PARALLEL: usize = 16;
/// Maximum number of daemons of one other user, and of all other users, that are queried. One that does not respond costs
/// seconds.
const MOST_OF_ONE: usize = 4;
const MOST_OF_OTHERS: usize = 64;

/// Collects the report of `bailiff mps status`.
pub(super) fn collect(common: &Common) -> MpsReport {
    let node = MpsProcesses::read(&common.machine.procfs);
    let sample = driver::query(&common.machine, common.deadline).ok().map(|report| report.sample);
    let gpus = sample.as_ref().map(gpus).unwrap_or_default();
    let mut report = MpsReport {
        driver: sample.and_then(|sample| sample.driver.version),
        orphans: orphans(&node, common.pipe_dir.as_deref()),
        daemons: daemons(common, &node, (pipe_dirs(&node, common), gpus.len())),
        gpus,
        warnings: Vec::new(),
    };
    report.daemons.extend(daemons_without_pipe_dir(&node, common));
    report.add_warnings();
    report
}

fn gpus(sample: &Sample) -> Vec<ReportedGpu> {
    let gpus = sample.gpus.iter().filter(|gpu| gpu.about.mig.is_none());
    let gpu = |gpu: &bailiff_snapshot::GpuSample| ReportedGpu {
        index: gpu.about.index.clone(),
        uuid: gpu.about.id.as_ref().map(|id| id.0.clone()),
        compute_mode: gpu.telemetry.compute_mode.map(bailiff_snapshot::ComputeMode::name),
    };
    gpus.map(gpu).collect()
}

/// Returns the running daemons with their replies, and the pids of all servers.
pub(crate) fn running(machine: &Machine) -> (Vec<Daemon>, Vec<u32>) {
    let common = Common {
        pipe_dir: None,
        default_pipe_dir: None,
        mps_control: control::PROGRAM.into(),
        deadline: control::PATIENCE,
        machine: machine.clone(),
    };
    let node = MpsProcesses::read(&machine.procfs);
    let mut all = daemons(&common, &node, (daemon_pipe_dirs(&node), 0));
    all.extend(daemons_without_pipe_dir(&node, &common));
    (all, node.servers.iter().map(|server| server.pid).collect())
}

/// Returns the pipe directories in the daemons' environments.
fn daemon_pipe_dirs(node: &MpsProcesses) -> BTreeSet<PathBuf> {
    let mut of_users: BTreeMap<u32, usize> = BTreeMap::new();
    let counts = |daemon: &&MpsProcess<place::Daemon>| {
        let count = of_users.entry(daemon.uid).or_default();
        *count += 1;
        is_trusted(daemon.uid) || *count <= MOST_OF_ONE
    };
    // Those of root and the current user are not displaced by those of others.
    let (trusted, others): (Vec<_>, Vec<_>) =
        node.daemons.iter().filter(counts).partition(|daemon| is_trusted(daemon.uid));
    let directory = |daemon: &MpsProcess<place::Daemon>| Some(daemon.details.pipes()?.to_owned());
    trusted.into_iter().chain(others.into_iter().take(MOST_OF_OTHERS)).filter_map(directory).collect()
}

/// Returns the pipe directories to query: those of daemons, and the configured one if it has a socket.
fn pipe_dirs(node: &MpsProcesses, common: &Common) -> BTreeSet<PathBuf> {
    let mut directories = daemon_pipe_dirs(node);
    if let Ok(configured) = common.pipes() {
        if common.pipe_dir.is_some() {
            directories.retain(|directory| *directory == configured);
        }
        if node::has_socket(&configured) {
            directories.insert(configured);
        }
    }
    directories
}

/// Queries the daemons in parallel.
fn daemons(
    common: &Common,
    node: &MpsProcesses,
    (directories, gpus): (BTreeSet<PathBuf>, usize),
) -> Vec<Daemon> {
    let directories: Vec<PathBuf> = directories.into_iter().collect();
    let reports = directories.chunks(MAX_PARALLEL).flat_map(|directories| {
        std::thread::scope(|scope| {
            let query = |directory| scope.spawn(move || daemon(common, node, (directory, gpus)));
            let threads: Vec<_> = directories.iter().map(query).collect();
            let reports =
                threads.into_iter().map(|thread| thread.join().unwrap_or_else(|panic| resume_unwind(panic)));
            reports.collect::<Vec<Daemon>>()
        })
    });
    reports.collect()
}

/// Returns the daemons whose pipe directory is unknown because their environment cannot be read.
fn daemons_without_pipe_dir(node: &MpsProcesses, common: &Common) -> Vec<Daemon> {
    if common.pipe_dir.is_some() {
        return Vec::new();
    }
    let hidden = node.daemons.iter().filter(|daemon| daemon.details.pipes().is_none());
    let why = "cannot read the daemon's environment; use sudo, or specify the pipe directory with --pipe-dir";
    hidden.map(|found| Daemon { why: Some(why.to_owned()), ..unqueried(None, Some(found)) }).collect()
}

/// Returns the servers whose pipe directory has no running daemon.
fn orphans(node: &MpsProcesses, configured: Option<&Path>) -> Vec<Orphan> {
    let is_orphan = |pipes: &Path| {
        node.daemon(pipes).is_none() && configured.is_none_or(|configured| configured == pipes)
    };
    let orphans = node.servers.iter().filter_map(|server| {
        let pipes = &server.details.as_ref()?.pipes;
        is_orphan(pipes).then(|| Orphan {
            pid: server.pid,
            user: user_name(server.uid),
            pipe_dir: Some(pipes.display().to_string()),
        })
    });
    orphans.collect()
}

/// Returns what is known about a daemon without a query.
fn unqueried(pipes: Option<&Path>, found: Option<&MpsProcess<bailiff_mps::place::Daemon>>) -> Daemon {
    let details = found.map(|found| &found.details);
    let directories = details.and_then(|details| details.directories.as_ref());
    Daemon {
        pipe_dir: pipes.map(|pipes| pipes.display().to_string()),
        pid: found.map(|found| found.pid),
        user: found.map(|found| user_name(found.uid)),
        log_dir: directories.map(|directories| directories.logs.display().to_string()),
        log: directories.map(|directories| node::logs(&directories.logs)),
        visible: details.and_then(|details| details.visible.clone()),
        protocol: details.map(|details| details.flags.protocol),
        static_partitioning: details.map(|details| details.flags.static_partitioning),
        multiuser: details.map(|details| details.flags.multiuser),
        ..Daemon::default()
    }
}

/// Client of one daemon. After the first timeout it sends no more queries, because each would take as long.
struct DaemonClient {
    control: Control,
    /// Time limit of a query, and deadline of all queries.
    time: (Duration, Deadline),
    timed_out: Option<Duration>,
}

impl DaemonClient {
    fn query(&mut self, question: Question<'_>) -> Result<String, ControlError> {
        if let Some(deadline) = self.timed_out {
            return Err(ControlError::NoAnswer(deadline));
        }
        if self.time.1.passed() {
            self.timed_out = Some(self.time.0);
            return Err(ControlError::NoAnswer(self.time.0));
        }
        let answer = self.control.query(question);
        if let Err(ControlError::NoAnswer(deadline)) = &answer {
            self.timed_out = Some(*deadline);
        }
        answer
    }

    fn percentage(&mut self, question: Question<'_>) -> Option<f64> {
        reply::percentage(&self.query(question).ok()?).ok()
    }
}

fn daemon(common: &Common, node: &MpsProcesses, (pipes, gpus): (&PathBuf, usize)) -> Daemon {
    let mut daemon = unqueried(Some(pipes), node.daemon(pipes));
    let time = (common.deadline, Deadline::after(common.deadline * MAX_TIMES));
    let mut client = DaemonClient { control: common.control(pipes), time, timed_out: None };
    let servers = match client.query(Question::Servers) {
        Ok(answer) => reply::servers(&answer).map_err(|error| error.to_string()),
        Err(error) => {
            daemon.state = match error {
                ControlError::NoAnswer(_) => State::Hung,
                ControlError::NoDaemon => State::Stale,
                _ => State::Unknown,
            };
            Err(error.to_string())
        }
    };
    let servers = match servers {
        Ok(servers) => servers,
        Err(why) => return Daemon { why: Some(why), ..daemon },
    };
    daemon.state = State::Answers;
    if servers.len() > MAX_SERVERS {
        daemon.why = Some(format!("it lists {} servers, of which {MAX_SERVERS} are shown", servers.len()));
    }
    daemon.default_thread_percentage = client.percentage(Question::DefaultPercentage);
    // The daemon numbers the GPUs that it manages from 0.
    let count = daemon.visible.as_ref().map_or(gpus, |visible| visible.split(',').count());
    for gpu in (0..count.min(MAX_GPUS)).map(|gpu| gpu.to_string()) {
        let answer = client.query(Question::DefaultMemoryLimit(&gpu)).ok();
        if let Some(Some(limit)) = answer.and_then(|answer| reply::memory_limit(&answer).ok()) {
            daemon.default_memory_limits.insert(gpu, limit);
        }
    }
    daemon.servers = servers_of(common, node, (&mut client, &servers));
    if let Some(deadline) = client.timed_out {
        daemon.state = State::Hung;
        daemon.why = Some(ControlError::NoAnswer(deadline).to_string());
    }
    daemon
}

fn servers_of(
    common: &Common,
    node: &MpsProcesses,
    (daemon, servers): (&mut DaemonClient, &BTreeSet<u32>),
) -> Vec<Server> {
    if servers.is_empty() {
        return Vec::new();
    }
    let procfs = &common.machine.procfs;
    let processes = daemon.query(Question::Processes).ok().and_then(|answer| reply::processes(&answer).ok());
    let server = |pid: &u32| {
        let found = node.servers.iter().find(|server| server.pid == *pid);
        let status = daemon.query(Question::Status(*pid)).ok().and_then(|answer| reply::status(&answer));
        let clients = processes.as_ref().map(|all| {
            // The list has a row per client and GPU; the map keeps one row per client.
            let rows = all.iter().filter(|client| client.server == *pid);
            let rows: BTreeMap<u32, &reply::Client> = rows.map(|client| (client.pid, client)).collect();
            rows.values().map(|row| client(procfs, row)).collect()
        });
        Server {
            pid: *pid,
            user: found.map(|found| user_name(found.uid)),
            status: status.map_or("unknown", MpsStatus::name),
            thread_percentage: daemon.percentage(Question::Percentage(*pid)),
            clients,
        }
    };
    servers.iter().take(MAX_SERVERS).map(server).collect()
}

fn client(procfs: &Path, row: &reply::Client) -> Client {
    // A pid from another PID namespace may belong to a different process in this `/proc`.
    let same_namespace = row.namespace.is_none() || row.namespace == node::namespace(procfs);
    let (uid, comm) =
        if same_namespace && row.pid != 0 { node::uid_and_comm(procfs, row.pid) } else { (None, None) };
    Client { pid: row.pid, user: uid.map(user_name), command: row.command.clone().or(comm) }
}
