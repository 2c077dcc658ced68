//! A look at the listed pids. What cannot change is read once per identity and again now and then; `stat`
//! is read at every beat, since CPU time and state are in it, and with it the start time: so no descriptor
//! is held, and a reused pid is seen for what it is.

use std::collections::{BTreeMap, HashMap};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;

use bailiff_snapshot::stat::{self, Stat};
use bailiff_snapshot::{
    Facts, Fault, Gap, Gaps, Io, Moment, Openers, Place, ProcessKey, Seen, State, redact,
};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::files::{Folder, Missing};
use super::names::Names;
use super::openers;
use super::orphan::{Parent, orphaned};
use super::pods::Pods;
use crate::settings::{Commands, Settings};

/// Owner and cgroup may change in a process's life, though they seldom do.
const FRESH: Duration = Duration::from_mins(1);

/// All that is known of processes.
pub(crate) struct Processes {
    root: Folder,
    /// A made-up `/proc` says nothing about the kernel's own processes.
    real: bool,
    commands: Commands,
    known: HashMap<u32, Known>,
    pods: Pods,
    names: Names,
    buffer: Vec<u8>,
    ticks_per_second: f64,
    boot_time: f64,
}

/// What was read once.
struct Known {
    key: ProcessKey,
    ppid: u32,
    read: Duration,
    uid: Option<u32>,
    place: Place,
    command: Option<String>,
    orphaned: Option<bool>,
}

impl Processes {
    pub(crate) fn open(settings: &Settings) -> Result<Self, Fault> {
        let root = Folder::open(&settings.procfs).map_err(|missing| match missing {
            Missing::Denied => Fault::NotPermitted,
            Missing::Gone | Missing::Failed => Fault::Error,
        })?;
        let mut buffer = Vec::new();
        let boot_time = root.read("stat", &mut buffer).ok().and_then(boot_time).unwrap_or_default();
        Ok(Self {
            root,
            real: settings.procfs == Path::new("/proc"),
            commands: settings.commands,
            known: HashMap::new(),
            pods: Pods::new(settings.pods.clone()),
            names: Names::new(),
            buffer,
            #[expect(clippy::cast_precision_loss, reason = "USER_HZ is 100")]
            ticks_per_second: rustix::param::clock_ticks_per_second() as f64,
            boot_time,
        })
    }

    /// Looks at each pid. One that could not be read is left out: neither there nor gone.
    pub(crate) fn look(&mut self, pids: &[u32], at: Moment, gaps: &mut Gaps) -> BTreeMap<u32, Seen> {
        self.names.begin();
        let mut seen = BTreeMap::new();
        for pid in pids {
            match self.one(*pid, at, gaps) {
                Ok(found) => drop(seen.insert(*pid, found)),
                Err(gap) => gaps.count(gap),
            }
        }
        self.known.retain(|pid, _| seen.contains_key(pid));
        seen
    }

    /// Who has device files open.
    pub(crate) fn openers(&self, at: Moment) -> Option<Openers> {
        openers::find(&self.root, at).ok()
    }

    fn one(&mut self, pid: u32, at: Moment, gaps: &mut Gaps) -> Result<Seen, Gap> {
        let Some(stat) = self.stat(pid)? else {
            return Ok(if self.exists(pid) { Seen::Hidden } else { Seen::Gone });
        };
        let fresh = self.known.get(&pid).is_some_and(|known| {
            known.key == stat.key && known.ppid == stat.ppid && at.boot.saturating_sub(known.read) < FRESH
        });
        if !fresh {
            match self.identify(&stat, at) {
                Ok(known) => drop(self.known.insert(pid, known)),
                Err(Missing::Gone) => {
                    gaps.count(Gap::Vanished);
                    return Ok(Seen::Gone);
                }
                Err(Missing::Denied | Missing::Failed) => return Err(Gap::Unreadable),
            }
        }
        Ok(Seen::Found(Box::new(self.facts(stat).ok_or(Gap::Unreadable)?)))
    }

    /// `None` where there is no such process.
    fn stat(&mut self, pid: u32) -> Result<Option<Stat>, Gap> {
        match self.root.read_piece(&format!("{pid}/stat"), &mut self.buffer) {
            Ok(line) => stat::parse(line).filter(|stat| stat.key.pid == pid).map(Some).ok_or(Gap::Malformed),
            Err(Missing::Gone | Missing::Denied) => Ok(None),
            Err(Missing::Failed) => Err(Gap::Unreadable),
        }
    }

    /// Whether the kernel has such a process although `/proc` does not show it (`hidepid`).
    fn exists(&self, pid: u32) -> bool {
        let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) else { return false };
        let opened: Result<OwnedFd, Errno> = pidfd_open(pid, PidfdFlags::empty());
        // ESRCH: none. EINVAL: a thread, which is no process of that number. Anything else says nothing.
        self.real
            && !matches!(opened, Err(Errno::SRCH | Errno::INVAL))
            && self.root.exists(&pid.to_string()).is_err()
    }

    /// Reads what does not change, all through one held folder: a pid that is used again meanwhile shows as
    /// gone, not as its successor.
    fn identify(&mut self, stat: &Stat, at: Moment) -> Result<Known, Missing> {
        let pid = stat.key.pid;
        let folder = self.root.folder(&pid.to_string())?;
        let held = folder.read("stat", &mut self.buffer).map(stat::parse)?;
        if held.is_none_or(|held| held.key != stat.key) {
            return Err(Missing::Gone);
        }
        let mut place = match folder.read("cgroup", &mut self.buffer) {
            Ok(text) => Place::parse(&String::from_utf8_lossy(text)),
            Err(Missing::Gone) if folder.exists("stat").is_err() => return Err(Missing::Gone),
            Err(_) => Place::default(),
        };
        self.pods.name(&mut place, at.boot);
        let command = match self.commands {
            Commands::Left => None,
            Commands::Read => folder.read("cmdline", &mut self.buffer).ok().map(redact::command),
        };
        Ok(Known {
            key: stat.key,
            ppid: stat.ppid,
            read: at.boot,
            uid: folder.owner().ok(),
            orphaned: self.orphaned(stat, &place),
            place,
            command: command.filter(|command| !command.is_empty()),
        })
    }

    fn orphaned(&mut self, stat: &Stat, place: &Place) -> Option<bool> {
        let parent = self.stat(stat.ppid).ok().flatten();
        let parent = parent.map(|parent| Parent {
            is_init: stat.ppid == 1 || self.is_init_of_a_namespace(stat.ppid),
            comm: parent.comm,
        });
        let leader = self.stat(stat.session).ok().flatten();
        orphaned(stat, place, parent.as_ref(), leader.as_ref())
    }

    /// Whether it is pid 1 in a namespace below ours (`NSpid` of `/proc/PID/status`, Linux 4.1).
    fn is_init_of_a_namespace(&mut self, pid: u32) -> bool {
        let Ok(status) = self.root.read(&format!("{pid}/status"), &mut self.buffer) else { return false };
        let status = String::from_utf8_lossy(status);
        let pids = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
        pids.is_some_and(|pids| pids.split_ascii_whitespace().nth(1).is_some() && pids.ends_with("\t1"))
    }

    fn facts(&mut self, stat: Stat) -> Option<Facts> {
        let state = match stat.state {
            State::Zombie if self.has_live_threads(stat.key.pid) => State::ZombieLeader,
            state => state,
        };
        let io = self.root.read_piece(&format!("{}/io", stat.key.pid), &mut self.buffer).ok();
        let io = io.and_then(|text| Io::parse(std::str::from_utf8(text).ok()?));
        let known = self.known.get(&stat.key.pid)?;
        Some(Facts {
            key: stat.key,
            state,
            ppid: stat.ppid,
            comm: stat.comm,
            uid: known.uid,
            user: known.uid.and_then(|uid| self.names.of(uid)),
            place: known.place.clone(),
            command: known.command.clone(),
            started: self.boot_time + seconds(stat.key.start_ticks, self.ticks_per_second),
            cpu_seconds: seconds(stat.cpu_ticks, self.ticks_per_second),
            io,
            orphaned: known.orphaned,
        })
    }

    fn has_live_threads(&mut self, pid: u32) -> bool {
        let Ok(threads) = self.root.folder(&format!("{pid}/task")).and_then(|tasks| tasks.numbers()) else {
            return false;
        };
        threads.into_iter().filter(|thread| *thread != pid).any(|thread| {
            let line = self.root.read(&format!("{pid}/task/{thread}/stat"), &mut self.buffer);
            let state = line.ok().and_then(stat::parse).map(|stat| stat.state);
            state.is_some_and(|state| !matches!(state, State::Zombie | State::Dead))
        })
    }
}

#[expect(clippy::cast_precision_loss, reason = "2^53 ticks are three million years")]
fn seconds(ticks: u64, per_second: f64) -> f64 {
    ticks as f64 / per_second
}

/// When the node was booted, seconds since the Unix epoch (`btime` of `/proc/stat`).
fn boot_time(text: &[u8]) -> Option<f64> {
    let text = String::from_utf8_lossy(text);
    text.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse().ok()
}
