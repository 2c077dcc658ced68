//! Processes that hold nothing: their `stat` at every interval, and what seldom changes as seldom as that is safe. No
//! descriptor is held for them, and a cgroup is kept once for all that are in it. What they run is read of those alone that
//! turn out to belong to a holder's workload.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bailiff_snapshot::stat::{self, Stat};
use bailiff_snapshot::workload::{Home, LONGEST_PATH, enclosure};
use bailiff_snapshot::{Place, ProcessKey, Role, State, redact};

use super::files::{Directory, ReadError};
use crate::settings::Commands;

/// Owner and cgroup may change in a process's life, though they seldom do.
pub(crate) const FRESH: Duration = Duration::from_mins(1);

/// What was read of them before.
pub(crate) struct Others {
    known: HashMap<u32, Known>,
    /// By the text of `/proc/PID/cgroup`.
    cgroups: HashMap<Box<[u8]>, Arc<Cgroup>>,
    /// Kernel threads: pid and inode, in order.
    kernel_threads: Vec<(u32, u64)>,
    kernel_threads_now: Vec<(u32, u64)>,
    /// Those of this interval that bear the name of a part of MPS.
    named_mps: Vec<Stat>,
    interval: u64,
    buffer: Vec<u8>,
    ticks_per_second: f64,
}

/// A cgroup, as far as a workload depends on it.
pub(crate) struct Cgroup {
    pub(crate) place: Arc<Place>,
    pub(crate) home: Home,
    pub(crate) inside: Option<Arc<str>>,
}

struct Known {
    key: ProcessKey,
    ppid: u32,
    session: u32,
    fresh_until: Duration,
    interval: u64,
    uid: Option<u32>,
    cgroup: Arc<Cgroup>,
    program: Option<Program>,
}

/// What a process runs, as far as that may be read, and until when that is taken to be so.
#[derive(Clone, Default)]
pub(crate) struct Program {
    /// Another name is another program, most of the time.
    comm: Box<str>,
    fresh_until: Duration,
    pub(crate) exe: Option<Box<str>>,
    pub(crate) command: Option<Box<str>>,
}

/// One of them.
pub(crate) struct Other {
    pub(crate) stat: Stat,
    pub(crate) uid: Option<u32>,
    pub(crate) cgroup: Arc<Cgroup>,
}

impl Others {
    pub(crate) fn new(ticks_per_second: f64) -> Self {
        Self {
            known: HashMap::new(),
            cgroups: HashMap::new(),
            kernel_threads: Vec::new(),
            kernel_threads_now: Vec::new(),
            named_mps: Vec::new(),
            interval: 0,
            buffer: Vec::new(),
            ticks_per_second,
        }
    }

    /// A new interval.
    pub(crate) fn begin(&mut self) {
        self.interval += 1;
        self.kernel_threads_now.clear();
        self.named_mps.clear();
    }

    /// Reads one that was listed with this inode; none if it is a kernel thread, which is read only once.
    pub(crate) fn listed(
        &mut self,
        root: &Directory,
        (pid, inode): (u32, u64),
        now: Duration,
    ) -> Result<Option<Other>, ReadError> {
        // The kernel reports 1 for an unknown number.
        let is_known = inode > 1 && self.kernel_threads.binary_search(&(pid, inode)).is_ok();
        let found = if is_known { None } else { self.read(root, pid, now)? };
        if found.is_none() {
            self.kernel_threads_now.push((pid, inode));
        }
        Ok(found)
    }

    /// Reads one; none if it is a kernel thread.
    pub(crate) fn read(
        &mut self,
        root: &Directory,
        pid: u32,
        now: Duration,
    ) -> Result<Option<Other>, ReadError> {
        let line = root.read_piece(&format!("{pid}/stat"), &mut self.buffer)?;
        let stat = stat::parse(line).filter(|stat| stat.key.pid == pid).ok_or(ReadError::Failed)?;
        if stat.kernel_thread {
            return Ok(None);
        }
        if stat.comm == Role::COMM {
            self.named_mps.push(stat.clone());
        }
        let fresh = self.known.get(&pid).is_some_and(|known| known.holds(&stat, now));
        if !fresh {
            let known = self.identify(root, &stat, now)?;
            self.known.insert(pid, known);
        }
        let Some(known) = self.known.get_mut(&pid) else { return Err(ReadError::Failed) };
        known.interval = self.interval;
        Ok(Some(Other { stat, uid: known.uid, cgroup: Arc::clone(&known.cgroup) }))
    }

    /// Those that were read in this interval and bear the name of a part of MPS.
    pub(crate) fn named_mps(&self) -> &[Stat] {
        &self.named_mps
    }

    /// What it ran when that was last read, where that is not too long ago.
    pub(crate) fn program(&self, stat: &Stat, now: Duration) -> Option<Program> {
        let program =
            self.known.get(&stat.key.pid).filter(|known| known.key == stat.key)?.program.as_ref()?;
        (now < program.fresh_until && *program.comm == *stat.comm).then(|| program.clone())
    }

    /// Reads what it runs, through one held directory; nothing is known of one that has ended or may not be read.
    pub(crate) fn read_program(
        &mut self,
        root: &Directory,
        stat: &Stat,
        (now, commands): (Duration, Commands),
    ) -> Program {
        let mut program = Program {
            comm: stat.comm.as_str().into(),
            fresh_until: self.fresh(stat, now),
            ..Program::default()
        };
        let Ok(directory) = root.directory(&stat.key.pid.to_string()) else { return program };
        let held = directory.read_piece("stat", &mut self.buffer).ok().and_then(stat::parse);
        if held.is_none_or(|held| held.key != stat.key) {
            return program;
        }
        program.exe = exe(&directory).map(Into::into);
        if commands == Commands::Read {
            program.command = command(&directory, &mut self.buffer).map(Into::into);
        }
        if let Some(known) = self.known.get_mut(&stat.key.pid).filter(|known| known.key == stat.key) {
            known.program = Some(program.clone());
        }
        program
    }

    /// A process is moved, or becomes another program, soon after its start, if it does: what was read of a young one is
    /// old soon.
    fn fresh(&self, stat: &Stat, now: Duration) -> Duration {
        let age = now.as_secs_f64() - seconds(stat.key.start_ticks, self.ticks_per_second);
        now + Duration::try_from_secs_f64(age).unwrap_or_default().min(FRESH)
    }

    /// All were read: those that were not are gone.
    pub(crate) fn forget_the_rest(&mut self) {
        self.known.retain(|_, known| known.interval == self.interval);
        self.cgroups.retain(|_, cgroup| Arc::strong_count(cgroup) > 1);
        std::mem::swap(&mut self.kernel_threads, &mut self.kernel_threads_now);
        self.kernel_threads.sort_unstable();
    }

    /// Through one held directory: a pid that is used again meanwhile shows as gone, not as its successor.
    fn identify(&mut self, root: &Directory, stat: &Stat, now: Duration) -> Result<Known, ReadError> {
        let directory = root.directory(&stat.key.pid.to_string())?;
        let held = directory.read_piece("stat", &mut self.buffer).map(stat::parse)?;
        if held.is_none_or(|held| held.key != stat.key) {
            return Err(ReadError::Gone);
        }
        let text = match directory.read("cgroup", &mut self.buffer) {
            Ok(text) => text,
            Err(ReadError::Gone) if directory.exists("stat").is_err() => return Err(ReadError::Gone),
            Err(_) => &[],
        };
        let cgroup = cgroup(&mut self.cgroups, text);
        Ok(Known {
            key: stat.key,
            ppid: stat.ppid,
            session: stat.session,
            fresh_until: if cgroup.home == Home::Unknown { now } else { self.fresh(stat, now) },
            interval: self.interval,
            uid: directory.owner().ok(),
            cgroup,
            program: None,
        })
    }
}

impl Known {
    fn holds(&self, stat: &Stat, now: Duration) -> bool {
        let same = self.key == stat.key && self.ppid == stat.ppid && self.session == stat.session;
        // Version 1 of cgroups has all zombies in its roots.
        let ended = self.key == stat.key && stat.state == State::Zombie;
        ended || (same && now < self.fresh_until)
    }
}

fn cgroup(known: &mut HashMap<Box<[u8]>, Arc<Cgroup>>, text: &[u8]) -> Arc<Cgroup> {
    if let Some(cgroup) = known.get(text) {
        return Arc::clone(cgroup);
    }
    let place = Place::parse(&String::from_utf8_lossy(text));
    let (home, inside) = (Home::of(&place), enclosure(&place));
    // Nested cgroups of users must not produce an unreadably long line of the stream.
    let place = Some(place).filter(|place| fits(&place.cgroup)).unwrap_or_default().into();
    let cgroup = Arc::new(Cgroup { place, home, inside });
    known.insert(text.into(), Arc::clone(&cgroup));
    cgroup
}

/// The path of a process's program, where it may be read and is not too long to be published.
pub(super) fn exe(process: &Directory) -> Option<String> {
    process.link("exe").ok().filter(|path| fits(path))
}

/// A process's command line, redacted; nothing if it has cleared it.
pub(super) fn command(process: &Directory, buffer: &mut Vec<u8>) -> Option<String> {
    let line = process.read("cmdline", buffer).ok().map(redact::command);
    line.filter(|line| !line.is_empty())
}

/// Whether a path is short enough for a line of the stream, as JSON writes it.
fn fits(path: &str) -> bool {
    let written = |letter: char| match letter {
        '"' | '\\' => 2,
        letter if letter.is_control() => 6,
        letter => letter.len_utf8(),
    };
    path.chars().map(written).sum::<usize>() <= LONGEST_PATH
}

#[expect(clippy::cast_precision_loss, reason = "2^53 ticks are three million years")]
pub(crate) fn seconds(ticks: u64, per_second: f64) -> f64 {
    ticks as f64 / per_second
}
