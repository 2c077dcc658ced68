//! Reads processes without GPU memory: `stat` in every interval, owner and cgroup less often. No descriptors
//! are held open. Program and command line are read only for members of a holder's workload.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use bailiff_proc::clock::Deadline;
use bailiff_proc::{LATE, NO_OWNER, Proc, Process, ReadError, StatusReads, unless_gone};
use bailiff_snapshot::stat::Stat;
use bailiff_snapshot::text_limit::fits;
use bailiff_snapshot::workload::{Home, enclosure};
use bailiff_snapshot::{Place, ProcessKey, Role, State};

use crate::settings::Commands;

/// Maximum age of cached properties, because owner and cgroup of a process can change.
pub(crate) const FRESH: Duration = Duration::from_mins(1);

/// Number of intervals for which a process is kept that incomplete scans did not reach.
const KEPT: u64 = 8;

/// Cache of processes without GPU memory.
pub(crate) struct Others {
    known: HashMap<u32, Known>,
    /// Parsed cgroups, by the text of `/proc/PID/cgroup`.
    cgroups: HashMap<Box<[u8]>, Arc<Cgroup>>,
    /// Pids and inodes of kernel threads in the last complete scan, sorted.
    kernel_threads: Vec<(u32, u64)>,
    kernel_threads_now: Vec<(u32, u64)>,
    /// Processes of this interval with the `comm` of an MPS program.
    named_mps: Vec<(Stat, Option<u32>)>,
    interval: u64,
    /// Whether properties that are only slightly outdated are kept, because time is short.
    short_of_time: bool,
    ticks_per_second: f64,
}

/// Properties of a cgroup that determine workloads.
pub(crate) struct Cgroup {
    pub(crate) place: Arc<Place>,
    pub(crate) home: Home,
    pub(crate) inside: Option<Arc<str>>,
}

struct Known {
    key: ProcessKey,
    /// Inode of its directory in `/proc`, which no other process with this pid has. The kernel may assign another one.
    inode: u64,
    ppid: u32,
    session: u32,
    read: Duration,
    fresh_until: Duration,
    interval: u64,
    uid: Option<u32>,
    cgroup: Arc<Cgroup>,
    program: Option<Program>,
}

/// Program and command line of a process, as far as readable, with an expiry time.
#[derive(Clone, Default)]
pub(crate) struct Program {
    /// `comm` at the time of reading. If it has changed, the program has usually changed too.
    comm: Box<str>,
    fresh_until: Duration,
    pub(crate) exe: Option<Box<str>>,
    pub(crate) exe_uid: Option<u32>,
    pub(crate) command: Option<Box<str>>,
}

impl Program {
    /// Returns a program that was not read in time. Any user can cause that, so the process's name must not protect it.
    pub(super) fn unread() -> Self {
        Self { exe_uid: Some(NO_OWNER), ..Self::default() }
    }
}

/// Time of a scan.
#[derive(Clone, Copy)]
pub(crate) struct Limits {
    /// Start, as time since boot.
    pub(crate) now: Duration,
    /// From then on, cached properties that are only slightly outdated are not renewed.
    pub(crate) short_from: Option<Deadline>,
    /// End of the scan.
    pub(crate) until: Option<Deadline>,
}

/// Result of a scan.
#[derive(Default)]
pub(crate) struct Found {
    pub(crate) others: Vec<Other>,
    /// Processes that were not read in time. Their owners can cause that.
    pub(crate) unread: Vec<u32>,
    /// Whether all processes were reached before the end.
    pub(crate) is_whole: bool,
}

/// A process without GPU memory.
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
            short_of_time: false,
            ticks_per_second,
        }
    }

    /// Starts a new interval.
    pub(crate) fn begin(&mut self) {
        self.interval += 1;
        self.short_of_time = false;
        self.kernel_threads_now.clear();
        self.named_mps.clear();
    }

    /// Returns whether a process that was listed with this inode is a kernel thread, which is read only once.
    pub(crate) fn is_kernel_thread(&mut self, listed: (u32, u64)) -> bool {
        // The kernel reports 1 if the inode is unknown.
        let is_known = listed.1 > 1 && self.kernel_threads.binary_search(&listed).is_ok();
        self.kernel_threads_now.extend(is_known.then_some(listed));
        is_known
    }

    /// Reads the processes that were listed with these inodes, except kernel threads. What is cached when the time is over
    /// is not read again by the next scan.
    pub(crate) fn read_all(
        &mut self,
        proc: &Proc,
        listed: &[(u32, u64)],
        limits: Limits,
    ) -> Result<Found, ReadError> {
        let pids = listed.iter().map(|(pid, _)| *pid).collect();
        let stats = proc.each(pids, limits.until, Proc::stat_blocking)?;
        self.short_of_time = limits.short_from.is_some_and(Deadline::passed);
        let mut found = Found { is_whole: stats.len() == listed.len(), ..Found::default() };
        let mut stale = BTreeMap::new();
        for (pid, stat) in stats {
            match found.sort(pid, stat)? {
                Some(stat) if stat.kernel_thread => {
                    self.kernel_threads_now.extend(listed.iter().find(|listed| listed.0 == pid));
                }
                Some(stat) if self.is_fresh(&stat, limits.now) => found.others.extend(self.other(stat)),
                Some(stat) => drop(stale.insert(pid, stat)),
                None => {}
            }
        }
        self.renew(proc, (stale, limits), &mut found)?;
        Ok(found)
    }

    /// Reads owner and cgroup of processes.
    fn renew(
        &mut self,
        proc: &Proc,
        (mut stale, limits): (BTreeMap<u32, Stat>, Limits),
        found: &mut Found,
    ) -> Result<(), ReadError> {
        let keys: BTreeMap<u32, ProcessKey> = stale.iter().map(|(pid, stat)| (*pid, stat.key)).collect();
        let pids = keys.keys().copied().collect();
        let read = proc.each_with_cgroup(pids, limits.until, move |process| {
            process.check(*keys.get(&process.pid()).ok_or(ReadError::Gone)?)?;
            Ok((process.inode()?, process.owner().ok()))
        })?;
        found.is_whole &= read.len() == stale.len();
        for (pid, read) in read {
            let Some((((inode, uid), cgroup), stat)) = found.sort(pid, read)?.zip(stale.remove(&pid)) else {
                continue;
            };
            let known = self.identified(&stat, (inode, uid, &cgroup), limits.now);
            self.known.insert(pid, known);
            found.others.extend(self.other(stat));
        }
        Ok(())
    }

    /// Reads a process; `None` for a kernel thread.
    pub(crate) fn read(&mut self, proc: &Proc, pid: u32, now: Duration) -> Result<Option<Other>, ReadError> {
        let limits = Limits { now, short_from: None, until: None };
        let mut found = self.read_all(proc, &[(pid, 0)], limits)?;
        match found.others.pop() {
            None if !found.unread.is_empty() => Err(LATE),
            None if self.kernel_threads_now.last() != Some(&(pid, 0)) => Err(ReadError::Gone),
            other => Ok(other),
        }
    }

    fn is_fresh(&self, stat: &Stat, now: Duration) -> bool {
        self.known.get(&stat.key.pid).is_some_and(|known| known.holds(stat, now, self.short_of_time))
    }

    /// Returns a process whose properties are cached.
    fn other(&mut self, stat: Stat) -> Option<Other> {
        let known = self.known.get_mut(&stat.key.pid)?;
        if stat.comm == Role::COMM {
            self.named_mps.push((stat.clone(), known.uid));
        }
        known.interval = self.interval;
        Some(Other { stat, uid: known.uid, cgroup: Arc::clone(&known.cgroup) })
    }

    /// Returns what can be read of a process that makes other reads hang: parent, session and owner, but no start time. If its
    /// user's processes have used up the limit, only the owner is known, and false is returned. A cgroup that was not read in
    /// time is that of an earlier interval, if the process is known to be the same, or unknown.
    pub(crate) fn read_status(
        &mut self,
        process: &Process,
        cgroup: Result<Vec<u8>, ReadError>,
        reads: &mut StatusReads,
    ) -> Result<(Other, bool), ReadError> {
        let inode = process.inode()?;
        let known = self.known.get_mut(&process.pid()).filter(|known| known.inode == inode);
        let cgroup = match (cgroup, known) {
            (Err(LATE), Some(known)) => {
                known.interval = self.interval;
                Arc::clone(&known.cgroup)
            }
            (Err(LATE), None) => located(&mut self.cgroups, &[]),
            (text, _) => located(&mut self.cgroups, &text?),
        };
        let (uid, stat) = reads.read(process)?;
        let has_parent = stat.is_some();
        let stat = stat.unwrap_or_else(|| Stat::unknown(process.pid()));
        Ok((Other { stat, uid: Some(uid), cgroup }, has_parent))
    }

    /// Returns the processes of this interval with the `comm` of an MPS program, and their owners, as far as known.
    pub(crate) fn named_mps(&self) -> &[(Stat, Option<u32>)] {
        &self.named_mps
    }

    /// Returns the cached program of a process, unless it is outdated.
    pub(crate) fn program(&self, stat: &Stat, now: Duration) -> Option<Program> {
        let program =
            self.known.get(&stat.key.pid).filter(|known| known.key == stat.key)?.program.as_ref()?;
        (now < program.fresh_until && *program.comm == *stat.comm).then(|| program.clone())
    }

    /// Reads the program through one open directory; empty if the process has exited or is unreadable, and `None` if it was not
    /// read in time.
    pub(crate) fn read_program(
        &mut self,
        proc: &Proc,
        stat: &Stat,
        (now, commands): (Duration, Commands),
    ) -> Option<Program> {
        let mut program = Program {
            comm: stat.comm.as_str().into(),
            fresh_until: self.fresh(stat, now),
            ..Program::default()
        };
        let key = stat.key;
        let read = move |process: &Process| {
            process.check(key)?;
            let command = if commands == Commands::Read { process.command() } else { None };
            let (exe, exe_uid) = program_file(process);
            Ok((exe, exe_uid, command))
        };
        let (exe, exe_uid, command) = match proc.process(key.pid).and_then(|process| process.patiently(read))
        {
            Ok(read) => read,
            Err(LATE) => return None,
            Err(_) => return Some(program),
        };
        (program.exe, program.exe_uid, program.command) =
            (exe.map(Into::into), exe_uid, command.map(Into::into));
        if let Some(known) = self.known.get_mut(&stat.key.pid).filter(|known| known.key == stat.key) {
            known.program = Some(program.clone());
        }
        Some(program)
    }

    /// Returns until when the properties of a process may be cached. Most changes of cgroup or program happen
    /// soon after the start, so the younger the process, the shorter the time. The maximum differs by pid, so
    /// that processes that were read together are not renewed together.
    fn fresh(&self, stat: &Stat, now: Duration) -> Duration {
        let age = now.as_secs_f64() - seconds(stat.key.start_ticks, self.ticks_per_second);
        let most = FRESH / 2 + FRESH / 128 * (stat.key.pid % 64);
        now + Duration::try_from_secs_f64(age).unwrap_or_default().min(most)
    }

    /// Drops processes that were not listed, or not read for some intervals, after a scan that was not complete.
    pub(crate) fn forget_old(&mut self, listed: &[(u32, u64)]) {
        let listed: HashSet<u32> = listed.iter().map(|(pid, _)| *pid).collect();
        let interval = self.interval;
        self.known.retain(|pid, known| listed.contains(pid) && known.interval + KEPT >= interval);
        self.cgroups.retain(|_, cgroup| Arc::strong_count(cgroup) > 1);
    }

    /// Drops processes that were not read in this interval. Call it after a complete scan.
    pub(crate) fn forget_the_rest(&mut self) {
        self.known.retain(|_, known| known.interval == self.interval);
        self.cgroups.retain(|_, cgroup| Arc::strong_count(cgroup) > 1);
        std::mem::swap(&mut self.kernel_threads, &mut self.kernel_threads_now);
        self.kernel_threads.sort_unstable();
    }

    fn identified(
        &mut self,
        stat: &Stat,
        (inode, uid, text): (u64, Option<u32>, &[u8]),
        now: Duration,
    ) -> Known {
        let cgroup = located(&mut self.cgroups, text);
        Known {
            key: stat.key,
            inode,
            ppid: stat.ppid,
            session: stat.session,
            read: now,
            fresh_until: if cgroup.home == Home::Unknown { now } else { self.fresh(stat, now) },
            interval: self.interval,
            uid,
            cgroup,
            program: None,
        }
    }
}

impl Found {
    /// Returns what was read of a process; `None` if it has exited, or was not read in time, which is recorded.
    fn sort<T>(&mut self, pid: u32, read: Result<T, ReadError>) -> Result<Option<T>, ReadError> {
        if matches!(read, Err(LATE)) {
            self.unread.push(pid);
            return Ok(None);
        }
        unless_gone(read)
    }
}

impl Known {
    fn holds(&self, stat: &Stat, now: Duration, short_of_time: bool) -> bool {
        let same = self.key == stat.key && self.ppid == stat.ppid && self.session == stat.session;
        // cgroup v1 shows every zombie in the root cgroup, so keep the earlier cgroup.
        let ended = self.key == stat.key && stat.state == State::Zombie;
        let more = if short_of_time { self.fresh_until.saturating_sub(self.read) } else { Duration::ZERO };
        ended || (same && now < self.fresh_until + more)
    }
}

fn located(known: &mut HashMap<Box<[u8]>, Arc<Cgroup>>, text: &[u8]) -> Arc<Cgroup> {
    if let Some(cgroup) = known.get(text) {
        return Arc::clone(cgroup);
    }
    let place = Place::parse(&String::from_utf8_lossy(text));
    let (home, inside) = (Home::of(&place), enclosure(&place));
    // Users can nest cgroups deeply, but a line of the stream has a maximum length.
    let place = if fits(&place.cgroup) { place } else { place.of_pod() }.into();
    let cgroup = Arc::new(Cgroup { place, home, inside });
    known.insert(text.into(), Arc::clone(&cgroup));
    cgroup
}

/// Returns the path of a process's program, if it is readable and not too long to be published, and the owner of its file.
pub(super) fn program_file(process: &Process) -> (Option<String>, Option<u32>) {
    let (path, owner) = process.program();
    (path.filter(|path| fits(path)), owner)
}

#[expect(clippy::cast_precision_loss, reason = "2^53 ticks are three million years")]
pub(crate) fn seconds(ticks: u64, per_second: f64) -> f64 {
    ticks as f64 / per_second
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stat(pid: u32) -> Stat {
        let line = format!("{pid} (sleep) S 1 {pid} {pid} 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 100 0 0 0");
        bailiff_snapshot::stat::parse(line.as_bytes()).expect("a line of /proc/PID/stat")
    }

    #[test]
    fn cached_properties_of_old_processes_do_not_expire_together() {
        let (others, now) = (Others::new(100.0), Duration::from_secs(100_000));
        let times: Vec<Duration> =
            (1..=64).map(|pid| others.fresh(&stat(pid), now).saturating_sub(now)).collect();
        assert!(times.iter().all(|time| (FRESH / 2..=FRESH).contains(time)), "{times:?}");
        let distinct: std::collections::BTreeSet<&Duration> = times.iter().collect();
        assert_eq!(distinct.len(), 64);
    }

    #[test]
    fn processes_that_ended_are_not_cached_after_an_incomplete_scan() {
        let mut others = Others::new(100.0);
        others.begin();
        for pid in [7, 8] {
            let known = others.identified(&stat(pid), (1, None, format!("0::/{pid}\n").as_bytes()), FRESH);
            others.known.insert(pid, known);
        }
        others.forget_old(&[(7, 1)]);
        assert_eq!(others.known.keys().collect::<Vec<_>>(), [&7]);
        assert_eq!(others.cgroups.len(), 1);
    }

    #[test]
    fn cgroup_of_an_earlier_process_with_the_same_pid_is_not_used() {
        let (mut others, mut reads) = (Others::new(100.0), StatusReads::default());
        let proc = Proc::own().unwrap();
        let process = proc.process(std::process::id()).unwrap();
        let inode = process.inode().unwrap();
        for (known, expected) in [(inode, Home::Tree), (inode + 1, Home::Unknown)] {
            let stat = stat(process.pid());
            let known = others.identified(&stat, (known, None, b"0::/here\n"), FRESH);
            others.known.insert(process.pid(), known);
            let (found, _) = others.read_status(&process, Err(LATE), &mut reads).unwrap();
            assert_eq!(found.cgroup.home, expected);
        }
    }

    #[test]
    fn outdated_properties_are_kept_once_while_time_is_short() {
        let seconds = Duration::from_secs;
        let known = Known {
            key: stat(7).key,
            inode: 0,
            ppid: 1,
            session: 7,
            read: seconds(100),
            fresh_until: seconds(140),
            interval: 1,
            uid: Some(1000),
            cgroup: located(&mut HashMap::new(), b"0::/here\n"),
            program: None,
        };
        let holds = |at, short_of_time| known.holds(&stat(7), seconds(at), short_of_time);
        assert_eq!([139, 140, 179, 180].map(|at| holds(at, false)), [true, false, false, false]);
        assert_eq!([139, 140, 179, 180].map(|at| holds(at, true)), [true, true, true, false]);
        let moved = Stat { session: 8, ..stat(7) };
        assert!(!known.holds(&moved, seconds(120), true), "a process that changed is read again");
    }
}
