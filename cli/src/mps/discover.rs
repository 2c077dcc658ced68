//! Looks at `/proc` and the driver, and asks each daemon.

use std::collections::{BTreeMap, BTreeSet};
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bailiff_mps::control::{self, Question};
use bailiff_mps::{Control, ControlError, words};
use bailiff_snapshot::Sample;

use super::flags::Common;
use super::node::{self, Found, Node, Pipes};
use super::report::{Client, Daemon, Gpu, Orphan, Report, Server, State};
use crate::doctor::driver;
use crate::flags::Machine;

/// More GPUs of a daemon are not asked about.
const MOST_GPUS: usize = 16;
/// Daemons that are asked at the same time: each that is silent takes seconds.
const MOST_AT_ONCE: usize = 16;

/// Looks once.
pub(super) fn look(common: &Common) -> Report {
    let node = Node::look(&common.machine.procfs);
    let sample = driver::look(&common.machine, common.deadline).ok().map(|told| told.sample);
    let gpus = sample.as_ref().map(gpus).unwrap_or_default();
    let mut report = Report {
        driver: sample.and_then(|sample| sample.driver.version),
        orphans: orphans(&node, common.pipe_dir.as_deref()),
        daemons: daemons(common, &node, (places(&node, common), gpus.len())),
        gpus,
        warnings: Vec::new(),
    };
    report.daemons.extend(hidden(&node, common));
    report.warn();
    report
}

fn gpus(sample: &Sample) -> Vec<Gpu> {
    let whole = sample.gpus.iter().filter(|gpu| gpu.about.mig.is_none());
    let gpu = |gpu: &bailiff_snapshot::GpuSample| Gpu {
        index: gpu.about.index.clone(),
        uuid: gpu.about.id.as_ref().map(|id| id.0.clone()),
        compute_mode: gpu.telemetry.compute_mode.map(bailiff_snapshot::ComputeMode::name),
    };
    whole.map(gpu).collect()
}

/// The daemons that run and what each answers, and the pids of all servers.
pub(crate) fn running(machine: &Machine) -> (Vec<Daemon>, Vec<u32>) {
    let common = Common {
        pipe_dir: None,
        usual_pipe_dir: None,
        mps_control: control::PROGRAM.into(),
        deadline: control::PATIENCE,
        machine: machine.clone(),
    };
    let node = Node::look(&machine.procfs);
    let mut all = daemons(&common, &node, (of_daemons(&node), 0));
    all.extend(hidden(&node, &common));
    (all, node.servers.iter().map(|server| server.pid).collect())
}

/// Pipe directories that daemons name.
fn of_daemons(node: &Node) -> BTreeSet<PathBuf> {
    node.daemons.iter().filter_map(|daemon| Some(daemon.is.pipes()?.to_owned())).collect()
}

/// Pipe directories to ask in: those of daemons, and the one that is named, or usual, if a socket is there.
fn places(node: &Node, common: &Common) -> BTreeSet<PathBuf> {
    let mut places = of_daemons(node);
    if let Ok(named) = common.pipes() {
        if common.pipe_dir.is_some() {
            places.retain(|place| *place == named);
        }
        if node::has_socket(&named) {
            places.insert(named);
        }
    }
    places
}

/// Asks them side by side.
fn daemons(common: &Common, node: &Node, (places, gpus): (BTreeSet<PathBuf>, usize)) -> Vec<Daemon> {
    let places: Vec<PathBuf> = places.into_iter().collect();
    let asked = places.chunks(MOST_AT_ONCE).flat_map(|places| {
        std::thread::scope(|scope| {
            let query = |place| scope.spawn(move || daemon(common, node, (place, gpus)));
            let asked: Vec<_> = places.iter().map(query).collect();
            let told =
                asked.into_iter().map(|asked| asked.join().unwrap_or_else(|panic| resume_unwind(panic)));
            told.collect::<Vec<Daemon>>()
        })
    });
    asked.collect()
}

/// Daemons of which it is not known where they are.
fn hidden(node: &Node, common: &Common) -> Vec<Daemon> {
    if common.pipe_dir.is_some() {
        return Vec::new();
    }
    let hidden = node.daemons.iter().filter(|daemon| daemon.is.pipes().is_none());
    let why =
        "its environment is not for this user to read; root may, or name its pipe directory by --pipe-dir";
    hidden.map(|found| Daemon { why: Some(why.to_owned()), ..blank(None, Some(found)) }).collect()
}

/// Servers of a pipe directory without a living daemon.
fn orphans(node: &Node, named: Option<&Path>) -> Vec<Orphan> {
    let is_orphan = |pipes: &Path| node.daemon(pipes).is_none() && named.is_none_or(|named| named == pipes);
    let orphans = node.servers.iter().filter_map(|server| {
        let pipes = &server.is.as_ref()?.pipes;
        is_orphan(pipes).then(|| Orphan {
            pid: server.pid,
            user: node::user(server.uid),
            pipe_dir: Some(pipes.display().to_string()),
        })
    });
    orphans.collect()
}

/// What is known of a daemon without asking it.
fn blank(pipes: Option<&Path>, found: Option<&Found<bailiff_mps::place::Daemon>>) -> Daemon {
    let is = found.map(|found| &found.is);
    let directories = is.and_then(|is| is.directories.as_ref());
    Daemon {
        pipe_dir: pipes.map(|pipes| pipes.display().to_string()),
        pid: found.map(|found| found.pid),
        user: found.map(|found| node::user(found.uid)),
        state: State::Unknown,
        why: None,
        log_dir: directories.map(|directories| directories.logs.display().to_string()),
        log: directories.map(|directories| node::logs(&directories.logs)),
        visible: is.and_then(|is| is.visible.clone()),
        protocol: is.map(|is| is.flags.protocol),
        static_partitioning: is.map(|is| is.flags.static_partitioning),
        multiuser: is.map(|is| is.flags.multiuser),
        default_thread_percentage: None,
        default_memory_limits: BTreeMap::new(),
        servers: Vec::new(),
    }
}

/// A daemon that is asked; no more once it was silent, since each question more would wait as long.
struct Asked {
    control: Control,
    silence: Option<Duration>,
}

impl Asked {
    fn query(&mut self, question: Question<'_>) -> Result<String, ControlError> {
        if let Some(deadline) = self.silence {
            return Err(ControlError::NoAnswer(deadline));
        }
        let said = self.control.query(question);
        if let Err(ControlError::NoAnswer(deadline)) = &said {
            self.silence = Some(*deadline);
        }
        said
    }

    fn percentage(&mut self, question: Question<'_>) -> Option<f64> {
        words::percentage(&self.query(question).ok()?).ok()
    }
}

fn daemon(common: &Common, node: &Node, (pipes, gpus): (&PathBuf, usize)) -> Daemon {
    let mut daemon = blank(Some(pipes), node.daemon(pipes));
    let mut asked = Asked { control: common.control(pipes), silence: None };
    let servers = match asked.query(Question::Servers) {
        Ok(said) => words::servers(&said).map_err(|odd| odd.to_string()),
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
    daemon.default_thread_percentage = asked.percentage(Question::DefaultPercentage);
    // It numbers its own GPUs from 0.
    let own = daemon.visible.as_ref().map_or(gpus, |visible| visible.split(',').count());
    for gpu in (0..own.min(MOST_GPUS)).map(|gpu| gpu.to_string()) {
        let said = asked.query(Question::DefaultMemoryLimit(&gpu)).ok();
        if let Some(Some(limit)) = said.and_then(|said| words::memory_limit(&said).ok()) {
            daemon.default_memory_limits.insert(gpu, limit);
        }
    }
    daemon.servers = of_daemon(common, node, (&mut asked, &servers));
    if let Some(deadline) = asked.silence {
        daemon.state = State::Hung;
        daemon.why = Some(ControlError::NoAnswer(deadline).to_string());
    }
    daemon
}

fn of_daemon(common: &Common, node: &Node, (asked, servers): (&mut Asked, &BTreeSet<u32>)) -> Vec<Server> {
    if servers.is_empty() {
        return Vec::new();
    }
    let procfs = &common.machine.procfs;
    let processes = asked.query(Question::Processes).ok().and_then(|said| words::processes(&said).ok());
    let of_server = |pid: &u32| {
        let found = node.servers.iter().find(|server| server.pid == *pid);
        let status =
            asked.query(Question::Status(*pid)).map_or(words::Status::Unknown, |said| words::status(&said));
        let clients = processes.as_ref().map(|all| {
            // A client has a row for each of its GPUs.
            let theirs = all.iter().filter(|client| client.server == *pid);
            let theirs: BTreeMap<u32, &words::Client> = theirs.map(|client| (client.pid, client)).collect();
            theirs.values().map(|told| client(procfs, told)).collect()
        });
        Server {
            pid: *pid,
            user: found.map(|found| node::user(found.uid)),
            status: status.name(),
            thread_percentage: asked.percentage(Question::Percentage(*pid)),
            clients,
        }
    };
    servers.iter().map(of_server).collect()
}

fn client(procfs: &Path, told: &words::Client) -> Client {
    // A pid of another PID namespace is another process here.
    let local_host = told.namespace.is_none() || told.namespace == node::namespace(procfs);
    let (uid, comm) = if local_host && told.pid != 0 { node::who(procfs, told.pid) } else { (None, None) };
    Client { pid: told.pid, user: uid.map(node::user), command: told.command.clone().or(comm) }
}
