//! Reads the processes that the driver lists. Other properties are cached, but `stat` is read in every
//! sample, through a file held open. Reading it fails once its process exits, so a reused pid is detected.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use bailiff_proc::clock::Deadline;
use bailiff_proc::{HeldFile, LATE, Proc, Process, ReadError, Reads};
use bailiff_snapshot::environment::notebook;
use bailiff_snapshot::pod_resources::LivePod;
use bailiff_snapshot::stat::{self, Stat};
use bailiff_snapshot::text_limit::{limit_holders, limit_relatives};
use bailiff_snapshot::workload::{Home, Node, enclosure};
use bailiff_snapshot::{
    Claim, Facts, Fault, Gap, Gaps, Io, Moment, Place, ProcessKey, Relative, Role, Seen, State,
};

use super::descriptors::room;
use super::freezer::Freezer;
use super::names::Names;
use super::orphan::Member;
use super::others::{self, FRESH, seconds};
use super::pods::Pods;
use super::relations::{Relations, Time};
use super::threads;
use crate::settings::{Claims, Commands, SamplerSettings};

/// Maximum number of owners of processes without GPU memory whose names are looked up.
const MOST_OWNERS: usize = 256;

/// Maximum number of bytes read from an environment.
pub(crate) const MOST_OF_ENVIRON: usize = 128 << 10;

/// Reader and cache of processes.
pub(crate) struct Processes {
    proc: Proc,
    /// Number of processes whose files may be held open.
    room: usize,
    commands: Commands,
    claims: Claims,
    notebooks: bool,
    known: HashMap<u32, Known>,
    pods: Pods,
    names: Names,
    relations: Relations,
    freezer: Freezer,
    buffer: Vec<u8>,
    ticks_per_second: f64,
    boot_time: Option<f64>,
}

/// What is needed to read a known process again.
struct Held {
    key: ProcessKey,
    ppid: u32,
    /// Whether its cached properties are still valid.
    is_fresh: bool,
    stat: Option<HeldFile>,
    io: Option<HeldFile>,
}

/// Which texts of processes are read that may contain secrets: command lines, leases, notebooks.
type TextSettings = (Commands, Claims, bool);

/// What is read of a process in one interval.
struct Raw {
    stat: Stat,
    state: State,
    io: Option<Io>,
    /// Properties to be cached, unless the cached ones are still valid.
    identity: Option<Result<Identity, ReadError>>,
}

/// Properties of a process that are cached.
struct Identity {
    uid: Option<u32>,
    cgroup: Vec<u8>,
    exe: Option<String>,
    exe_uid: Option<u32>,
    role: Option<Role>,
    command: Option<String>,
    claim: Claim,
    notebook: Option<String>,
    stat: HeldFile,
    io: Option<HeldFile>,
}

/// Cached properties of a process.
struct Known {
    key: ProcessKey,
    ppid: u32,
    read: Duration,
    uid: Option<u32>,
    place: Place,
    command: Option<String>,
    home: Home,
    inside: Option<Arc<str>>,
    exe: Option<String>,
    exe_uid: Option<u32>,
    role: Option<Role>,
    claim: Claim,
    notebook: Option<String>,
    /// Files that show whether the process's cgroup is frozen.
    freezer: Vec<bailiff_snapshot::freezer::File>,
    /// Files read in every interval; held open if `room` allows.
    stat: Option<HeldFile>,
    io: Option<HeldFile>,
}

impl Known {
    fn held(&self, at: Moment) -> Held {
        let is_fresh = at.boot.saturating_sub(self.read) < FRESH;
        Held { key: self.key, ppid: self.ppid, is_fresh, stat: self.stat.clone(), io: self.io.clone() }
    }
}

impl Raw {
    fn read(
        (proc, pid): (&Proc, u32),
        held: Option<&Held>,
        settings: TextSettings,
    ) -> Result<Self, ReadError> {
        // If the file held open cannot be read, the process has exited. The path shows whether its pid was reused.
        let again = held.and_then(|held| held.stat.as_ref()).map(|stat| stat.parse(stat::parse));
        let (stat, opened) = match again {
            Some(Ok(stat)) => (stat, None),
            Some(Err(ReadError::Malformed)) => return Err(ReadError::Malformed),
            Some(Err(ReadError::Gone | ReadError::Unreadable(_))) | None => {
                let process = proc.process(pid)?;
                process.check_leader()?;
                let file = process.hold("stat")?;
                let stat = file.parse(|line| stat::parse(line).filter(|stat| stat.key.pid == pid))?;
                (stat, Some((process, file)))
            }
        };
        let held = held.filter(|held| held.key == stat.key && held.ppid == stat.ppid && held.is_fresh);
        let identity = held.is_none().then(|| Identity::read((proc, &stat), opened, settings));
        let parse = |text: &[u8]| Io::parse(std::str::from_utf8(text).ok()?);
        let io = match held.and_then(|held| held.io.as_ref()) {
            Some(held) => held.parse(parse),
            None => proc.parse(&format!("{pid}/io"), parse),
        };
        Ok(Self { state: threads::state_blocking(proc, &stat), stat, io: io.ok(), identity })
    }
}

impl Identity {
    /// Reads through one open directory; returns `Gone` if the pid is reused meanwhile.
    fn read(
        (proc, stat): (&Proc, &Stat),
        opened: Option<(Process, HeldFile)>,
        (commands, claims, notebooks): TextSettings,
    ) -> Result<Self, ReadError> {
        let (process, held) = if let Some(opened) = opened {
            opened
        } else {
            let process = proc.process(stat.key.pid)?;
            process.check(stat.key)?;
            let held = process.hold("stat")?;
            (process, held)
        };
        let (exe, exe_uid) = others::program_file(&process);
        let is_mps = stat.comm == Role::COMM;
        let role = if is_mps { role(&process, (exe.as_deref(), exe_uid), commands) } else { None };
        let (claim, notebook) = environment(&process, (claims, notebooks));
        Ok(Self {
            uid: process.owner().ok(),
            cgroup: process.cgroup()?,
            exe_uid,
            exe,
            role,
            command: if commands == Commands::Read { process.command() } else { None },
            claim,
            notebook,
            io: process.hold("io").ok(),
            stat: held,
        })
    }
}

/// Returns the process's role in MPS, determined by its program or, without permission to read it, by its first argument.
fn role(process: &Process, (exe, exe_uid): (Option<&str>, Option<u32>), commands: Commands) -> Option<Role> {
    match exe_uid {
        // A user can give any name to a copy of a program.
        Some(uid) => return exe.filter(|_| uid == 0).and_then(Role::of_program),
        None if commands == Commands::Shunned => return None,
        None => {}
    }
    let line = process.cmdline().ok()?;
    Role::of_program(&String::from_utf8_lossy(line.split(|byte| *byte == 0).next()?))
}

/// Returns the lease and the notebook in the environment with which a process was started.
fn environment(process: &Process, (claims, notebooks): (Claims, bool)) -> (Claim, Option<String>) {
    if claims == Claims::Left && !notebooks {
        return (Claim::Unread, None);
    }
    let mut buffer = Vec::new();
    let environ = process.read_within(MOST_OF_ENVIRON, "environ", &mut buffer).ok();
    let claim = environ.filter(|_| claims == Claims::Read).map_or(Claim::Unread, Claim::of_environment);
    let notebook = environ.filter(|_| notebooks).and_then(notebook);
    // The environment may contain secrets, so erase it.
    buffer.fill(0);
    (claim, notebook)
}

impl Processes {
    pub(crate) fn open(settings: &SamplerSettings) -> Result<Self, Fault> {
        let proc = Proc::open(&settings.procfs).map_err(fault)?;
        let boot_time = proc.boot_time().map(f64::from);
        #[expect(clippy::cast_precision_loss, reason = "USER_HZ is 100")]
        let ticks_per_second = rustix::param::clock_ticks_per_second() as f64;
        Ok(Self {
            room: if proc.is_kernels() { room() } else { 0 },
            proc,
            commands: settings.commands,
            claims: settings.claims,
            notebooks: settings.notebooks,
            known: HashMap::new(),
            pods: Pods::new(settings.pods.clone()),
            names: Names::new(),
            relations: Relations::new(ticks_per_second, settings),
            freezer: Freezer::new(),
            buffer: Vec::new(),
            ticks_per_second,
            boot_time,
        })
    }

    /// Checks that this is a `/proc`, not an empty directory, which would look like a node without processes.
    pub(crate) fn answer(&self) -> Result<(), Fault> {
        self.proc.check().map_err(fault)
    }

    /// Reads each pid. Its value is the time since boot at which it was listed. An unreadable process, or one that is not
    /// reached before the deadline, is left out, because it is unknown whether it is running.
    pub(crate) fn scan(
        &mut self,
        pids: &BTreeMap<u32, Duration>,
        (at, until): (Moment, Deadline),
        gaps: &mut Gaps,
    ) -> BTreeMap<u32, Seen> {
        self.names.begin();
        self.relations.begin();
        self.freezer.begin();
        let mut seen = BTreeMap::new();
        for (pid, read) in self.read(pids.keys().copied().collect(), at, until) {
            let listed = pids.get(&pid).copied().unwrap_or_default();
            match self.one(pid, read, (at, gaps)) {
                Ok(Seen::Found(facts)) if self.began_after(facts.key, listed) => {
                    gaps.count(Gap::Vanished);
                    self.relations.no_holder(pid);
                    seen.insert(pid, Seen::Gone);
                }
                Ok(found) => drop(seen.insert(pid, found)),
                Err(gap) => gaps.count(gap),
            }
        }
        self.known.retain(|pid, _| seen.contains_key(pid) || self.relations.is_unread(*pid));
        let no_io = |seen: &Seen| matches!(seen, Seen::Found(facts) if facts.io.is_none());
        if seen.values().any(no_io) {
            gaps.count(Gap::NotPermitted);
        }
        seen
    }

    /// Sets the workloads of the processes that were read, and returns the other members of these workloads.
    pub(crate) fn relate(
        &mut self,
        seen: &mut BTreeMap<u32, Seen>,
        (at, patience): (Moment, Duration),
        gaps: &mut Gaps,
    ) -> Result<Option<Vec<Relative>>, Gap> {
        let related = self.relations.relate(&self.proc, seen, (Time::of(at.boot, patience), gaps));
        limit_holders(seen);
        let mut relatives = related?;
        if let Some(relatives) = &mut relatives {
            self.name_owners(seen, relatives);
            self.pods.name_all(relatives, at.boot);
            limit_relatives(relatives);
        }
        Ok(relatives)
    }

    /// Returns the names of the owners' groups, as far as the name service has replied.
    pub(crate) fn groups(
        &mut self,
        seen: &BTreeMap<u32, Seen>,
        relatives: Option<&[Relative]>,
    ) -> BTreeMap<u32, Vec<String>> {
        let mut uids: BTreeSet<u32> =
            seen.values().filter_map(Seen::found).filter_map(|facts| facts.uid).collect();
        let named = relatives.into_iter().flatten().filter(|relative| relative.user.is_some());
        uids.extend(named.filter_map(|relative| relative.uid));
        uids.into_iter().filter_map(|uid| Some((uid, self.names.groups(uid)?))).collect()
    }

    /// Sets the names of owners: those of holders, and others up to a limit, because a user namespace may have thousands
    /// of uids.
    fn name_owners(&mut self, seen: &BTreeMap<u32, Seen>, relatives: &mut [Relative]) {
        let holders = seen.values().filter_map(Seen::found).filter_map(|facts| facts.uid);
        let mut owners: HashMap<u32, Option<String>> = holders.map(|uid| (uid, self.names.of(uid))).collect();
        let most = owners.len() + MOST_OWNERS;
        for relative in relatives {
            let Some(uid) = relative.uid else { continue };
            if !owners.contains_key(&uid) && owners.len() < most {
                owners.insert(uid, self.names.of(uid));
            }
            relative.user = owners.get(&uid).cloned().flatten();
        }
    }

    /// Returns whether a process started after its pid was listed, which means that the pid was reused.
    fn began_after(&self, key: ProcessKey, listed: Duration) -> bool {
        let slack = 2.0 / self.ticks_per_second;
        seconds(key.start_ticks, self.ticks_per_second) > listed.as_secs_f64() + slack
    }

    /// Returns the pods with processes, given the holders; `None` if not all processes were read.
    pub(crate) fn live_pods(&mut self, seen: &BTreeMap<u32, Seen>, now: Duration) -> Option<Vec<LivePod>> {
        let holders = seen.values().filter_map(Seen::found).map(|facts| &facts.place);
        let places = self.relations.pods()?.chain(holders);
        let by_uid: BTreeMap<&str, &Place> =
            places.filter_map(|place| Some((place.pod_uid.as_deref()?, place))).collect();
        let pods = by_uid.into_iter().map(|(uid, place)| {
            let mut place = place.clone();
            self.pods.name(&mut place, now);
            LivePod { uid: uid.to_owned(), name: place.namespace.zip(place.pod) }
        });
        Some(pods.collect())
    }

    /// Returns the non-holders with the `comm` of an MPS program.
    pub(crate) fn named_mps(&self) -> &[(Stat, Option<u32>)] {
        self.relations.named_mps()
    }

    /// Returns whether a process may run that was not read in this interval.
    pub(crate) fn may_be_unread(&self, pid: u32) -> bool {
        self.relations.may_be_unread(pid)
    }

    /// Returns when a process started, in seconds since the Unix epoch.
    pub(crate) fn started(&self, key: ProcessKey) -> Option<f64> {
        self.boot_time.map(|boot| boot + seconds(key.start_ticks, self.ticks_per_second))
    }

    /// Returns the `/proc` directory.
    pub(crate) const fn proc(&self) -> &Proc {
        &self.proc
    }

    /// Reads each process in a thread, because its owner can make reads hang.
    fn read(&self, pids: Vec<u32>, at: Moment, until: Deadline) -> Reads<Raw> {
        let held = pids.iter().filter_map(|pid| Some((*pid, self.known.get(pid)?.held(at))));
        let held: HashMap<u32, Held> = held.collect();
        let settings = (self.commands, self.claims, self.notebooks);
        let read = move |proc: &Proc, pid| Raw::read((proc, pid), held.get(&pid), settings);
        let mut reads = self.proc.each(pids.clone(), Some(until), read).unwrap_or_default();
        let reached: BTreeSet<u32> = reads.iter().map(|(pid, _)| *pid).collect();
        reads.extend(pids.into_iter().filter(|pid| !reached.contains(pid)).map(|pid| (pid, Err(LATE))));
        reads
    }

    fn one(
        &mut self,
        pid: u32,
        read: Result<Raw, ReadError>,
        (at, gaps): (Moment, &mut Gaps),
    ) -> Result<Seen, Gap> {
        let raw = match read {
            Ok(raw) => raw,
            Err(error) if self.proc.proves_exit(error) => return Ok(Seen::Gone),
            Err(ReadError::Malformed) => return Err(Gap::Malformed),
            Err(error) if error == ReadError::Gone || error.is_denied() => return Ok(Seen::Hidden),
            Err(LATE) => {
                self.relations.unread_holder(pid);
                return Err(Gap::Unread);
            }
            Err(_) => return Err(Gap::Unreadable),
        };
        match raw.identity {
            Some(Ok(identity)) => {
                let known = self.identified(&raw.stat, identity, at);
                self.known.insert(pid, known);
            }
            Some(Err(ReadError::Gone)) => {
                gaps.count(Gap::Vanished);
                return Ok(Seen::Gone);
            }
            Some(Err(_)) => return Err(Gap::Unreadable),
            None => {}
        }
        Ok(Seen::Found(Box::new(self.facts(raw.stat, (raw.state, raw.io)).ok_or(Gap::Unreadable)?)))
    }

    /// Returns the properties to be cached.
    fn identified(&mut self, stat: &Stat, identity: Identity, at: Moment) -> Known {
        let cgroup = String::from_utf8_lossy(&identity.cgroup);
        let mut place = Place::parse(&cgroup);
        self.pods.name(&mut place, at.boot);
        let before = self.known.get(&stat.key.pid).filter(|known| known.key == stat.key);
        let claim = match (identity.claim, before) {
            // The process may overwrite its environment, so an earlier result is kept if there is no new one.
            (Claim::Unread, Some(before)) => before.claim.clone(),
            (claim, _) => claim,
        };
        let keeps = self.known.len() < self.room;
        Known {
            stat: keeps.then_some(identity.stat),
            io: identity.io.filter(|_| keeps),
            key: stat.key,
            ppid: stat.ppid,
            read: at.boot,
            uid: identity.uid,
            home: Home::of(&place),
            inside: enclosure(&place),
            place,
            role: identity.role,
            claim,
            notebook: identity.notebook,
            freezer: self.freezer.files(&cgroup),
            exe: identity.exe,
            exe_uid: identity.exe_uid,
            command: identity.command,
        }
    }

    fn facts(&mut self, stat: Stat, (state, io): (State, Option<Io>)) -> Option<Facts> {
        let known = self.known.get(&stat.key.pid)?;
        let state = self.freezer.state(state, &known.freezer, &mut self.buffer);
        let member = Member::new(&stat, known.inside.clone());
        self.relations.holder(Node::new(&stat, known.uid, known.home.clone()), member);
        Some(Facts {
            key: stat.key,
            state,
            ppid: stat.ppid,
            comm: stat.comm,
            uid: known.uid,
            user: known.uid.and_then(|uid| self.names.of(uid)),
            place: known.place.clone(),
            command: known.command.clone(),
            started: self.started(stat.key),
            cpu_seconds: seconds(stat.cpu_ticks, self.ticks_per_second),
            io,
            // All other cases need a scan of all processes.
            orphaned: known.place.in_service().then_some(false),
            reaped_cpu_seconds: stat.reaped_ticks.map(|ticks| seconds(ticks, self.ticks_per_second)),
            workload: None,
            exe: known.exe.clone(),
            exe_uid: known.exe_uid,
            role: known.role,
            claim: known.claim.clone(),
            notebook: known.notebook.clone(),
            ancestors: None,
            restored: false,
            reused_pid: false,
            unread_relatives: false,
        })
    }
}

const fn fault(error: ReadError) -> Fault {
    if error.is_denied() { Fault::NotPermitted } else { Fault::Error }
}
