//! Reads of processes that their owners can make hang: of memory, such as `environ`, while another thread changes it, and
//! of most files while the process executes another program. Such reads run in a thread, which is abandoned if the read
//! of one process takes too long.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Condvar, LazyLock, Mutex, MutexGuard, PoisonError};
use std::thread::Builder;
use std::time::Duration;

use bailiff_snapshot::{FIRST_USER, Status, SubordinateUids};
use rustix::fs::fstat;

use crate::clock::{Deadline, cpu_time, running};
use crate::directory::{Directory, LATE, ReadError};
use crate::own_thread::{OwnThread, delayed};
use crate::process::{Proc, Process};
use crate::subordinate::subordinate_uids;

/// Time limit for one process.
pub(crate) const PATIENCE: Duration = Duration::from_millis(200);
/// Time that the slow reads of all processes of a user other than root may take in each [`PERIOD`].
const BUDGET: Duration = Duration::from_secs(5);
const PERIOD: Duration = Duration::from_mins(1);
/// Likewise for one walk over many processes.
const MOST_IN_A_WALK: Duration = Duration::from_millis(200);
/// Reads that take less are not slow.
const SHORT: Duration = Duration::from_millis(1);
/// In a cgroup that is nested more deeply, each read of `cgroup` counts as slow, however short. In others none does, because
/// the kernel makes such a read wait for those in deeply nested cgroups.
const MOST_LEVELS: usize = 32;
/// Time that reading the real uids of processes of system users may take in each [`PERIOD`]. After that, they all count for
/// [`SYSTEM`].
const MOST_FOR_REAL_UIDS: Duration = Duration::from_millis(200);
/// Key of all system users except root: a user who is root in a container can have processes of all of them.
const SYSTEM: u32 = 1;
/// Maximum number of reads that hang, of the processes of one user, and of all users other than root. Then no further
/// process of the user is read. Each such read has a thread and up to five descriptors, of which a process may have 1,024.
const MOST: usize = 8;
const MOST_OF_ALL: usize = 64;
/// The same for users of whose processes no read hangs.
const MOST_THREADS: usize = 128;
/// Maximum factor by which the time limit is longer if the machine is so busy that the thread does not run.
const LONGER: u32 = 10;
/// Size of a thread's stack.
const STACK: usize = 128 << 10;
static HANGING: LazyLock<Mutex<AllReads>> = LazyLock::new(Mutex::default);
/// The same for reads of `cgroup`, which take some microseconds, but longer in deeply nested cgroups.
static SLOW_CGROUPS: LazyLock<Mutex<AllReads>> = LazyLock::new(AllReads::short);
/// The same for terminals. Those of a user do not open while the user's processes change the line discipline.
static SLOW_TERMINALS: LazyLock<Mutex<AllReads>> = LazyLock::new(AllReads::short);

/// Reads that hang, and limits for each user, so that one user's processes do not delay or prevent reads of others.
struct AllReads {
    /// Time limit for the reads of a user in each [`PERIOD`].
    budget: Duration,
    /// Likewise for one walk.
    most_in_a_walk: Duration,
    /// Reads by the key of the user.
    users: BTreeMap<u32, UserReads>,
    subordinate: SubordinateUids,
    /// End of the period for which the limit of time applies.
    period: Option<Deadline>,
    /// Whether a read of a process of a system user hung in this period, or such reads took [`MOST_IN_A_WALK`]. A user can
    /// cause that with a setuid program, so the processes of system users then count for their real uid.
    by_real_uid: bool,
    /// CPU time that reading real uids took in this period.
    real_uids: Duration,
}

impl Default for AllReads {
    fn default() -> Self {
        Self {
            budget: BUDGET,
            most_in_a_walk: MOST_IN_A_WALK,
            users: BTreeMap::new(),
            subordinate: SubordinateUids::default(),
            period: None,
            by_real_uid: false,
            real_uids: Duration::ZERO,
        }
    }
}

/// Reads of the processes of one user.
#[derive(Default)]
struct UserReads {
    /// Processes of which a read hangs. They are not read until it returns.
    processes: BTreeSet<u64>,
    spent: Duration,
}

/// Results of reading processes, by pid.
pub type Reads<T> = Vec<(u32, Result<T, ReadError>)>;

/// Returns whether a read with this result and duration counts against the limits of its user.
type IsSlow<T> = fn(&Result<T, ReadError>, Duration) -> bool;

/// The uid of a process, and a number that no other process has: its pid, or the inode number of its directory.
type Owned = (u32, u64);

/// Returns a key for the user of a uid: for a subordinate uid that of its user.
pub fn user_of(uid: u32) -> u32 {
    let mut all = lock(&HANGING);
    all.renew();
    all.subordinate.user(uid)
}

/// Writes to the terminals of a user with `write`, in a thread with a time limit, and within limits for each user.
///
/// # Errors
/// A timeout if that takes too long, an earlier call for the user still hangs, or calls for the user took 1 s in this minute.
pub fn with_terminals_of<T: Send + 'static>(
    uid: u32,
    write: impl Fn() -> T + Send + Sync + 'static,
) -> Result<T, ReadError> {
    let owner = |uid: &u32| Ok((*uid, u64::from(*uid)));
    let write = move |_: &u32| Ok(write());
    Walk::new(vec![uid], (owner, write), (&*SLOW_TERMINALS, is_long), (PATIENCE, None)).one()
}

/// Returns the key of the user for which reads of processes of a uid count.
pub(crate) fn limited_user(uid: u32) -> u32 {
    lock(&HANGING).user(uid)
}

impl AllReads {
    /// For reads that are usually short.
    fn short() -> Mutex<Self> {
        let (budget, most_in_a_walk) = (Duration::from_secs(1), Duration::from_millis(40));
        Mutex::new(Self { budget, most_in_a_walk, ..Self::default() })
    }

    /// Starts a new period if the current one has ended.
    fn renew(&mut self) {
        if self.period.is_none_or(Deadline::passed) {
            self.period = Some(Deadline::after(PERIOD));
            self.subordinate = subordinate_uids();
            (self.by_real_uid, self.real_uids) = (false, Duration::ZERO);
            self.users.retain(|_, reads| {
                reads.spent = Duration::ZERO;
                !reads.processes.is_empty()
            });
        }
    }

    /// Returns whether a process must not be read: a read of it hangs, or the processes of its user have used up their
    /// limits.
    fn refuses(&mut self, (uid, process): Owned) -> bool {
        self.renew();
        let user = self.user(uid);
        let all: usize = self.users.values().map(|reads| reads.processes.len()).sum();
        let none = UserReads::default();
        let reads = self.users.get(&user).unwrap_or(&none);
        // As long as there are few threads, one user more can have a read.
        let most_of_all = if reads.processes.is_empty() { MOST_THREADS } else { MOST_OF_ALL };
        let is_full = reads.processes.len() >= MOST || all >= most_of_all || reads.spent >= self.budget;
        (user != 0 && is_full) || reads.processes.contains(&process)
    }

    /// Returns the key of a uid's user.
    fn user(&self, uid: u32) -> u32 {
        if (1..FIRST_USER).contains(&uid) { SYSTEM } else { self.subordinate.user(uid) }
    }

    /// Returns whether reads of the processes of this uid's user were slow recently.
    fn is_slow(&self, uid: u32) -> bool {
        let user = self.user(uid);
        user != 0 && self.users.contains_key(&user)
    }

    /// Adds a process of which a read hangs. Returns the key of its user.
    fn add(&mut self, uid: u32, process: u64) -> u32 {
        self.renew();
        let user = self.user(uid);
        self.by_real_uid |= uid < FIRST_USER;
        self.users.entry(user).or_default().processes.insert(process);
        user
    }

    /// Removes a process, because the read has returned.
    fn remove(&mut self, user: u32, process: u64) {
        if let Some(reads) = self.users.get_mut(&user) {
            reads.processes.remove(&process);
        }
    }

    /// Adds the time of a slow read. Returns the key of its user.
    fn spend(&mut self, uid: u32, took: Duration) -> u32 {
        self.renew();
        let user = self.user(uid);
        let reads = self.users.entry(user).or_default();
        reads.spent += took;
        // Single slow reads also occur without an attack, and reading the real uids of all processes costs time.
        self.by_real_uid |= uid < FIRST_USER && reads.spent >= self.most_in_a_walk;
        user
    }
}

/// Returns the uid for which reads of a process count; `uid` is the owner of its directory.
fn charged(
    uid: u32,
    limits: &Mutex<AllReads>,
    directory: impl FnOnce() -> Result<Directory, ReadError>,
) -> u32 {
    if uid >= FIRST_USER || !lock(limits).by_real_uid {
        return uid;
    }
    if lock(limits).real_uids >= MOST_FOR_REAL_UIDS {
        return SYSTEM;
    }
    let began = cpu_time();
    let status = directory().and_then(|directory| directory.bytes("status"));
    let uids = status.ok().and_then(|text| Status::new(&text).uids());
    lock(limits).real_uids += cpu_time().saturating_sub(began);
    uids.and_then(|uids| uids.first().copied()).unwrap_or(uid)
}

/// Items that are read in order, by one thread at a time.
struct Walk<I, T, O, R> {
    items: Vec<I>,
    /// Returns the owner of an item, without a read that can hang.
    owner: O,
    read: R,
    limits: &'static Mutex<AllReads>,
    is_slow: IsSlow<T>,
    patience: Duration,
    until: Option<Deadline>,
    progress: Mutex<Progress<T>>,
    ended: Condvar,
}

/// State of a [`Walk`].
struct Progress<T> {
    /// Results, in order. The next item is being read.
    found: Vec<Result<T, ReadError>>,
    /// Owner of that item, as it was before the read: `execve` can change it.
    current: Option<Owned>,
    /// When that read began.
    began: Duration,
    /// The current thread in `/proc`.
    thread: Option<Directory>,
    /// For each abandoned thread, the user and the item on which it hangs. The number of the current thread is the number
    /// of abandoned ones.
    hung: Vec<Option<Owned>>,
    /// Time that slow reads took, by user.
    spent: BTreeMap<u32, Duration>,
    is_done: bool,
}

impl<I, T, O, R> Walk<I, T, O, R>
where
    I: Send + Sync + 'static,
    T: Send + 'static,
    O: Fn(&I) -> Result<Owned, ReadError> + Send + Sync + 'static,
    R: Fn(&I) -> Result<T, ReadError> + Send + Sync + 'static,
{
    fn new(
        items: Vec<I>,
        (owner, read): (O, R),
        (limits, is_slow): (&'static Mutex<AllReads>, IsSlow<T>),
        (patience, until): (Duration, Option<Deadline>),
    ) -> Self {
        let progress = Progress {
            found: Vec::with_capacity(items.len()),
            current: None,
            began: running(),
            thread: None,
            hung: Vec::new(),
            spent: BTreeMap::new(),
            is_done: items.is_empty(),
        };
        let (progress, ended) = (Mutex::new(progress), Condvar::new());
        Self { items, owner, read, limits, is_slow, patience, until, progress, ended }
    }

    /// Reads the items. Items that were not reached before the deadline are missing at the end.
    fn run(self) -> Vec<Result<T, ReadError>> {
        let walk = Arc::new(self);
        let mut progress = lock(&walk.progress);
        if !progress.is_done {
            walk.start(&mut progress);
        }
        while !progress.is_done {
            let took = running().saturating_sub(progress.began);
            let mut left = walk.patience.saturating_sub(took);
            if left.is_zero() && !walk.until.is_some_and(Deadline::passed) {
                left = progress.patience(walk.patience).saturating_sub(took);
            }
            if left.is_zero() {
                walk.abandon(&mut progress);
                walk.start(&mut progress);
            } else {
                let woken = walk.ended.wait_timeout(progress, left);
                (progress, _) = woken.unwrap_or_else(PoisonError::into_inner);
            }
        }
        std::mem::take(&mut progress.found)
    }

    /// Reads a single item.
    fn one(self) -> Result<T, ReadError> {
        self.run().pop().unwrap_or(Err(LATE))
    }

    /// Starts a thread that continues. Without one, the rest counts as too late.
    fn start(self: &Arc<Self>, progress: &mut Progress<T>) {
        (progress.began, progress.current, progress.thread) = (running(), None, None);
        let (walk, number) = (Arc::clone(self), progress.hung.len());
        let thread = Builder::new().name("process".to_owned()).stack_size(STACK);
        if thread.spawn(move || walk.continue_as(number)).is_err() {
            progress.found.resize_with(self.items.len(), || Err(LATE));
            progress.is_done = true;
        }
    }

    /// Gives up the item that is being read.
    fn abandon(&self, progress: &mut Progress<T>) {
        let hung = progress.current.map(|(uid, process)| (lock(self.limits).add(uid, process), process));
        if let Some((user, _)) = hung {
            *progress.spent.entry(user).or_default() += self.patience;
        }
        progress.hung.push(hung);
        progress.found.push(Err(LATE));
    }

    /// Reads items until none is left, or until this thread is abandoned.
    fn continue_as(&self, number: usize) {
        let mut thread = OwnThread::open();
        let mut result = None;
        loop {
            let mut progress = lock(&self.progress);
            if let Some(hung) = progress.hung.get(number) {
                if let Some((user, process)) = *hung {
                    lock(self.limits).remove(user, process);
                }
                return;
            }
            if progress.thread.is_none() {
                progress.thread = thread.handle();
            }
            progress.found.extend(result);
            let Some(item) = self.next(&mut progress) else { return };
            drop(progress);
            let began = running();
            let read = (self.read)(item);
            let took = running().saturating_sub(began);
            if (self.is_slow)(&read, took) {
                self.charge(number, took.saturating_sub(thread.delay()));
            }
            result = Some(read);
        }
    }

    /// Returns the next item that may be read; `None` at the end.
    fn next(&self, progress: &mut Progress<T>) -> Option<&I> {
        loop {
            let is_late = self.until.is_some_and(Deadline::passed);
            let owner = self.items.get(progress.found.len()).map(|item| (item, (self.owner)(item)));
            // A user whose processes are slow must not make those of others incomplete.
            let counts = |owner: &Owned| !is_late || lock(self.limits).is_slow(owner.0);
            let Some((item, owner)) = owner.filter(|(_, owner)| owner.as_ref().map_or(true, counts)) else {
                progress.is_done = true;
                self.ended.notify_one();
                return None;
            };
            match owner
                .and_then(|owner| if is_late { Err(LATE) } else { progress.admits(owner, self.limits) })
            {
                Ok(owner) => {
                    (progress.current, progress.began) = (Some(owner), running());
                    return Some(item);
                }
                Err(error) => progress.found.push(Err(error)),
            }
        }
    }

    /// Counts the time of a slow read against the limits of its user.
    fn charge(&self, number: usize, took: Duration) {
        let mut progress = lock(&self.progress);
        let hung = progress.hung.get(number).copied();
        let Some((uid, _)) = hung.unwrap_or(progress.current).filter(|_| !took.is_zero()) else { return };
        let user = lock(self.limits).spend(uid, took);
        if hung.is_none() {
            *progress.spent.entry(user).or_default() += took;
        }
    }
}

impl<T> Progress<T> {
    /// Returns the owner of a process unless it must not be read.
    fn admits(&self, owner: Owned, limits: &Mutex<AllReads>) -> Result<Owned, ReadError> {
        let mut all = lock(limits);
        let most = all.most_in_a_walk;
        let is_slow = |user| user != 0 && self.spent.get(&user).is_some_and(|spent| *spent >= most);
        let refused = !self.spent.is_empty() && is_slow(all.user(owner.0));
        let refused = refused || (!all.users.is_empty() && all.refuses(owner));
        if refused { Err(LATE) } else { Ok(owner) }
    }

    /// Returns the time limit of the current read, which is longer if the machine is so busy that its thread is delayed.
    fn patience(&self, patience: Duration) -> Duration {
        match &self.thread {
            Some(thread) => patience + delayed(thread).unwrap_or_default().min(patience * LONGER),
            // It has not started.
            None => patience * LONGER,
        }
    }
}

impl Proc {
    /// Reads each process with `read`, by one thread, first those of users whose reads are not slow. Processes that were
    /// not reached before the deadline are missing.
    ///
    /// # Errors
    /// If the thread's own handle cannot be created. The result of a process is a timeout if its read takes too long, if
    /// an earlier read of it still hangs, or if its user's processes have used up their limits.
    pub fn each<T: Send + 'static>(
        &self,
        pids: Vec<u32>,
        until: Option<Deadline>,
        read: impl Fn(&Self, u32) -> Result<T, ReadError> + Send + Sync + 'static,
    ) -> Result<Reads<T>, ReadError> {
        self.walk((pids, until), read, (&HANGING, is_long))
    }

    /// Like [`Self::each`], and reads `cgroup`. This has limits of its own, because it takes long in deeply nested
    /// cgroups: with Linux 6.18, 0.5 ms in 400 levels, 36 ms in 2,000, and 0.2 s in 4,000.
    ///
    /// # Errors
    /// As for [`Self::each`].
    pub fn each_with_cgroup<T: Send + 'static>(
        &self,
        pids: Vec<u32>,
        until: Option<Deadline>,
        read: impl Fn(&Process) -> Result<T, ReadError> + Send + Sync + 'static,
    ) -> Result<Reads<(T, Vec<u8>)>, ReadError> {
        let read = move |proc: &Self, pid| {
            let process = proc.process(pid)?;
            Ok((read(&process)?, process.cgroup()?))
        };
        self.walk(
            (pids, until),
            read,
            (&SLOW_CGROUPS, |read, _| read.as_ref().is_ok_and(|(_, text)| is_deep(text))),
        )
    }

    /// Reads `cgroup` of each process, also while other reads of the process hang.
    ///
    /// # Errors
    /// As for [`Self::each`].
    pub fn cgroups(&self, pids: Vec<u32>, until: Option<Deadline>) -> Result<Reads<Vec<u8>>, ReadError> {
        let read = self.each_with_cgroup(pids, until, |_| Ok(()))?;
        Ok(read.into_iter().map(|(pid, read)| (pid, read.map(|((), cgroup)| cgroup))).collect())
    }

    fn walk<T: Send + 'static>(
        &self,
        (mut pids, until): (Vec<u32>, Option<Deadline>),
        read: impl Fn(&Self, u32) -> Result<T, ReadError> + Send + Sync + 'static,
        (limits, is_slow): (&'static Mutex<AllReads>, IsSlow<T>),
    ) -> Result<Reads<T>, ReadError> {
        let (proc, same) = (self.again()?, self.again()?);
        let owner = move |pid: &u32| {
            let uid = charged(same.uid_of(*pid)?, limits, || same.directory(&pid.to_string()));
            Ok((uid, u64::from(*pid)))
        };
        let read = move |pid: &u32| read(&proc, *pid);
        if lock(limits).users.keys().any(|user| *user != 0) {
            // Users whose processes are slow come last.
            pids.sort_by_cached_key(|pid| self.uid_of(*pid).is_ok_and(|uid| lock(limits).is_slow(uid)));
        }
        let results = Walk::new(pids.clone(), (owner, read), (limits, is_slow), (PATIENCE, until)).run();
        Ok(pids.into_iter().zip(results).collect())
    }
}

impl Process {
    /// Reads the process with `read`.
    ///
    /// # Errors
    /// The errors of `read`; and a timeout, as for [`Proc::each`].
    pub fn patiently<T: Send + 'static>(
        &self,
        read: impl Fn(&Self) -> Result<T, ReadError> + Send + Sync + 'static,
    ) -> Result<T, ReadError> {
        self.within(PATIENCE, read)
    }

    /// Like [`Self::patiently`], with a time limit.
    ///
    /// # Errors
    /// As for [`Self::patiently`].
    pub fn within<T: Send + 'static>(
        &self,
        patience: Duration,
        read: impl Fn(&Self) -> Result<T, ReadError> + Send + Sync + 'static,
    ) -> Result<T, ReadError> {
        Walk::new(vec![self.again()?], (Self::owned, read), (&*HANGING, is_long), (patience, None)).one()
    }

    /// Returns the owner and the pid. After the process has exited, the owner is 0.
    fn owned(&self) -> Result<Owned, ReadError> {
        let uid = fstat(&**self)?.st_uid;
        Ok((charged(uid, &HANGING, || self.directory(".")), self.pid().into()))
    }
}

impl Directory {
    /// Reads an open `/proc/PID` with `read`, like [`Process::within`].
    pub(crate) fn within<T: Send + 'static>(
        self,
        patience: Duration,
        read: impl Fn(&Self) -> Result<T, ReadError> + Send + Sync + 'static,
    ) -> Result<T, ReadError> {
        let owned = |directory: &Self| {
            let found = fstat(directory)?;
            Ok((charged(found.st_uid, &HANGING, || directory.again()), found.st_ino))
        };
        Walk::new(vec![self], (owned, read), (&*HANGING, is_long), (patience, None)).one()
    }
}

fn is_long<T>(_: &Result<T, ReadError>, took: Duration) -> bool {
    took >= SHORT
}

/// Returns whether a cgroup is deeply nested. The text is empty if the path is too long.
fn is_deep(cgroup: &[u8]) -> bool {
    let is_deep = |line: &[u8]| line.split(|byte| *byte == b'/').count() > MOST_LEVELS + 1;
    cgroup.is_empty() || cgroup.split(|byte| *byte == b'\n').any(is_deep)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn hanging_read_delays_no_other_process_and_is_not_repeated() {
        let proc = Proc::own().unwrap();
        let (own, init) = (proc.process(std::process::id()).unwrap(), proc.process(1).unwrap());
        let late = Err(LATE);
        let (release, released) = channel::<()>();
        let released = Mutex::new(released);
        let hangs = move |_: &Process| {
            let _ = lock(&released).recv();
            Ok(7)
        };
        assert_eq!(own.patiently(hangs), late);
        assert_eq!(own.patiently(|_| Ok(8)), late, "the first read still hangs");
        assert_eq!(init.patiently(|_| Ok(9)), Ok(9));
        drop(release);
        while own.patiently(|_| Ok(10)) == late {
            std::thread::yield_now();
        }
    }

    #[test]
    fn process_that_hangs_is_skipped_and_the_others_are_read() {
        let proc = Proc::own().unwrap();
        let (release, released) = channel::<()>();
        let released = Mutex::new(released);
        let hanging = std::os::unix::process::parent_id();
        let pids = vec![1, hanging, std::process::id()];
        let read = move |_: &Proc, pid| {
            if pid == hanging {
                let _ = lock(&released).recv();
            }
            Ok(pid)
        };
        let found = proc.each(pids.clone(), None, read).unwrap();
        let late = |pid| if pid == hanging { Err(LATE) } else { Ok(pid) };
        assert_eq!(found, pids.iter().map(|pid| (*pid, late(*pid))).collect::<Vec<_>>());
        assert_eq!(proc.each(vec![hanging], None, |_, pid| Ok(pid)), Ok(vec![(hanging, Err(LATE))]));
        let passed = Some(Deadline::after(Duration::ZERO));
        assert_eq!(proc.each(pids, passed, |_, pid| Ok(pid)), Ok(Vec::new()), "no time is left");
        drop(release);
        while proc.each(vec![hanging], None, |_, pid| Ok(pid)) == Ok(vec![(hanging, Err(LATE))]) {
            std::thread::yield_now();
        }
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "runs a program as a user")]
    fn slow_reads_count_only_for_their_user_and_others_for_nobody() {
        use std::os::unix::process::CommandExt;
        let sleep = || std::process::Command::new("sleep").arg("600").uid(4006).spawn().unwrap();
        let (mut child, proc) = (sleep(), Proc::own().unwrap());
        let pids: Vec<u32> = [child.id(), std::process::id()].repeat(400);
        let read = |is_slow: IsSlow<()>| {
            let short = |_: &Proc, _| {
                let began = cpu_time();
                while cpu_time().saturating_sub(began) < Duration::from_micros(200) {}
                Ok(())
            };
            proc.walk((pids.clone(), None), short, (&SLOW_CGROUPS, is_slow)).unwrap()
        };
        let (none, all) = (read(|_, _| false), read(|_, _| true));
        child.kill().unwrap();
        child.wait().unwrap();
        let count =
            |read: &Reads<()>, of| read.iter().filter(|(pid, found)| *pid == of && found.is_ok()).count();
        assert_eq!(count(&none, child.id()), 400, "the limit is not used");
        assert!((1..300).contains(&count(&all, child.id())), "{}", count(&all, child.id()));
        assert_eq!(count(&all, std::process::id()), 400, "these tests run as root");
    }

    #[test]
    fn cgroups_are_deep_beyond_32_levels() {
        let cgroup = |levels| format!("12:pids:/\n0::{}\n", "/a".repeat(levels));
        assert_eq!([1, 32, 33].map(|levels| is_deep(cgroup(levels).as_bytes())), [false, false, true]);
        assert!(is_deep(b""), "the path is too long");
    }

    fn all_reads(subordinate: &str) -> AllReads {
        let subordinate = SubordinateUids::parse(subordinate, |_| None);
        AllReads { subordinate, period: Some(Deadline::after(PERIOD)), ..AllReads::default() }
    }

    #[test]
    fn limits_of_a_user_apply_to_no_other() {
        let mut all = all_reads("");
        for pid in 0..u64::try_from(MOST).unwrap() {
            assert!(!all.refuses((4002, 100)));
            all.add(4002, pid);
        }
        assert!(all.refuses((4002, 100)), "too many reads hang");
        assert!(!all.refuses((4005, 100)));
        all.spend(4005, BUDGET);
        assert!(all.refuses((4005, 101)), "the time is used up");
        assert!(!all.refuses((0, 101)));
        all.period = Some(Deadline::after(Duration::ZERO));
        assert!(!all.refuses((4005, 101)), "a new period");
    }

    #[test]
    fn user_whose_reads_are_slow_is_not_read_again_in_a_walk() {
        let spent = [(0, BUDGET), (4002, MOST_IN_A_WALK), (4005, SHORT)].into();
        let (current, began) = (None, running());
        let progress: Progress<()> = Progress {
            found: Vec::new(),
            current,
            began,
            thread: None,
            hung: Vec::new(),
            spent,
            is_done: false,
        };
        assert_eq!(
            [0, 4002, 4005, 4006].map(|uid| progress.admits((uid, 7), &HANGING).is_ok()),
            [true, false, true, true]
        );
    }

    #[test]
    fn setuid_programs_count_for_their_user_once_reads_are_slow() {
        let mut all = all_reads("");
        all.spend(4002, SHORT);
        assert!(!all.by_real_uid);
        all.spend(0, MOST_IN_A_WALK / 2);
        assert!(!all.by_real_uid, "single slow reads");
        all.spend(0, MOST_IN_A_WALK / 2);
        assert!(all.by_real_uid);
        all.period = Some(Deadline::after(Duration::ZERO));
        all.renew();
        assert!(!all.by_real_uid, "a new period");
    }

    /// The status of a process with 65,536 groups takes long to read. These tests run as root.
    #[test]
    fn reading_real_uids_has_a_limit_of_time() {
        let own = || Directory::open(Path::new("/proc/self"));
        // `all` is local; the shared limits are set below and restored, because tests may share this process.
        let mut all = all_reads("");
        assert_eq!([1, 33, 999, 1000].map(|uid| all.user(uid)), [SYSTEM, SYSTEM, SYSTEM, 1000]);
        for uid in 1..=u32::try_from(MOST).unwrap() {
            all.add(uid, uid.into());
        }
        assert!(all.refuses((500, 100)), "system users share their limits");
        assert!(!all.refuses((0, 100)) && !all.refuses((1000, 100)));
        (lock(&HANGING).by_real_uid, lock(&HANGING).period) = (true, Some(Deadline::after(PERIOD)));
        let charged = |uid, own| charged(uid, &HANGING, own);
        assert_eq!(charged(33, own), 0, "this test runs as root");
        lock(&HANGING).real_uids = MOST_FOR_REAL_UIDS;
        assert_eq!((charged(33, own), charged(0, own), charged(4002, own)), (SYSTEM, SYSTEM, 4002));
        (lock(&HANGING).by_real_uid, lock(&HANGING).real_uids) = (false, Duration::ZERO);
    }

    #[test]
    fn subordinate_uids_count_as_one_user() {
        let mut all = all_reads("alice:100000:65536");
        for pid in 0..u32::try_from(MOST).unwrap() {
            all.add(100_000 + pid, pid.into());
        }
        assert!(all.refuses((165_535, 100)));
        assert!(!all.refuses((165_536, 100)), "another user");
    }

    #[test]
    fn reads_of_all_users_are_limited() {
        let mut all = all_reads("");
        for uid in 1000..1000 + u32::try_from(MOST_OF_ALL).unwrap() {
            assert!(!all.refuses((uid, 1)));
            all.add(uid, uid.into());
        }
        assert!(all.refuses((1000, 1)), "a user with a read that hangs");
        for uid in 2000..2000 + u32::try_from(MOST_THREADS - MOST_OF_ALL).unwrap() {
            assert!(!all.refuses((uid, 1)), "other users");
            all.add(uid, uid.into());
        }
        assert!(all.refuses((5000, 5000)), "too many threads");
        assert!(!all.refuses((0, 5001)));
    }
}
