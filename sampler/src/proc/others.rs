//! Processes that hold nothing: their `stat` at every beat, and what seldom changes as seldom as that is safe. No
//! descriptor is held for them, and a cgroup is kept once for all that are in it.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bailiff_snapshot::stat::{self, Stat};
use bailiff_snapshot::workload::{Home, LONGEST_PATH, enclosure};
use bailiff_snapshot::{Place, ProcessKey, Role, State};

use super::files::{Folder, Missing};
use super::look::{FRESH, seconds};

/// What was read of them before.
pub(crate) struct Others {
    known: HashMap<u32, Known>,
    /// By the text of `/proc/PID/cgroup`.
    cgroups: HashMap<Box<[u8]>, Arc<Cgroup>>,
    /// Kernel threads: pid and inode, in order.
    kernel_threads: Vec<(u32, u64)>,
    kernel_threads_now: Vec<(u32, u64)>,
    /// Those of this beat that bear the name of a part of MPS.
    named_mps: Vec<Stat>,
    beat: u64,
    buffer: Vec<u8>,
    ticks_per_second: f64,
}

/// A cgroup, as far as a workload depends on it.
pub(crate) struct Cgroup {
    pub(crate) path: Box<str>,
    pub(crate) home: Home,
    pub(crate) inside: Option<Arc<str>>,
}

struct Known {
    key: ProcessKey,
    ppid: u32,
    session: u32,
    fresh_until: Duration,
    beat: u64,
    uid: Option<u32>,
    cgroup: Arc<Cgroup>,
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
            beat: 0,
            buffer: Vec::new(),
            ticks_per_second,
        }
    }

    /// A new beat.
    pub(crate) fn begin(&mut self) {
        self.beat += 1;
        self.kernel_threads_now.clear();
        self.named_mps.clear();
    }

    /// Reads one that was listed with this inode; none where it is a kernel thread, which is read only once.
    pub(crate) fn listed(
        &mut self,
        root: &Folder,
        (pid, inode): (u32, u64),
        now: Duration,
    ) -> Result<Option<Other>, Missing> {
        // 1 stands for a number that the kernel could not tell.
        let is_known = inode > 1 && self.kernel_threads.binary_search(&(pid, inode)).is_ok();
        let found = if is_known { None } else { self.read(root, pid, now)? };
        if found.is_none() {
            self.kernel_threads_now.push((pid, inode));
        }
        Ok(found)
    }

    /// Reads one; none where it is a kernel thread.
    pub(crate) fn read(&mut self, root: &Folder, pid: u32, now: Duration) -> Result<Option<Other>, Missing> {
        let line = root.read_piece(&format!("{pid}/stat"), &mut self.buffer)?;
        let stat = stat::parse(line).filter(|stat| stat.key.pid == pid).ok_or(Missing::Failed)?;
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
        let Some(known) = self.known.get_mut(&pid) else { return Err(Missing::Failed) };
        known.beat = self.beat;
        Ok(Some(Other { stat, uid: known.uid, cgroup: Arc::clone(&known.cgroup) }))
    }

    /// Those that were read in this beat and bear the name of a part of MPS.
    pub(crate) fn named_mps(&self) -> &[Stat] {
        &self.named_mps
    }

    /// All were read: those that were not are gone.
    pub(crate) fn forget_the_rest(&mut self) {
        self.known.retain(|_, known| known.beat == self.beat);
        self.cgroups.retain(|_, cgroup| Arc::strong_count(cgroup) > 1);
        std::mem::swap(&mut self.kernel_threads, &mut self.kernel_threads_now);
        self.kernel_threads.sort_unstable();
    }

    /// Through one held folder: a pid that is used again meanwhile shows as gone, not as its successor.
    fn identify(&mut self, root: &Folder, stat: &Stat, now: Duration) -> Result<Known, Missing> {
        let folder = root.folder(&stat.key.pid.to_string())?;
        let held = folder.read_piece("stat", &mut self.buffer).map(stat::parse)?;
        if held.is_none_or(|held| held.key != stat.key) {
            return Err(Missing::Gone);
        }
        let text = match folder.read("cgroup", &mut self.buffer) {
            Ok(text) => text,
            Err(Missing::Gone) if folder.exists("stat").is_err() => return Err(Missing::Gone),
            Err(_) => &[],
        };
        let cgroup = cgroup(&mut self.cgroups, text);
        // A process is moved soon after its start, if it is: what was read of a young one is old soon.
        let age = now.as_secs_f64() - seconds(stat.key.start_ticks, self.ticks_per_second);
        let fresh = Duration::try_from_secs_f64(age).unwrap_or_default().min(FRESH);
        Ok(Known {
            key: stat.key,
            ppid: stat.ppid,
            session: stat.session,
            fresh_until: if cgroup.home == Home::Unknown { now } else { now + fresh },
            beat: self.beat,
            uid: folder.owner().ok(),
            cgroup,
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
    // Users who may nest cgroups must not make a line of the stream that nobody reads.
    let path = Some(place.cgroup).filter(|path| path.len() <= LONGEST_PATH).unwrap_or_default();
    let cgroup = Arc::new(Cgroup { home, inside, path: path.into() });
    known.insert(text.into(), Arc::clone(&cgroup));
    cgroup
}
