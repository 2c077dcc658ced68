//! Reads of processes that their owners can make hang: of memory, such as `environ`, while another thread changes it, and
//! of most files while the process executes another program. Such reads run in a thread, which is abandoned if the read
//! of one process takes too long.

#![expect(clippy::disallowed_methods, reason = "reads /etc/subuid")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::sync::{Arc, Condvar, LazyLock, Mutex, MutexGuard, PoisonError};
use std::thread::Builder;
use std::time::Duration;

use bailiff_snapshot::{SUBORDINATE_UIDS, SubordinateUids};
use rustix::fs::fstat;

use crate::clock::{Deadline, running};
use crate::directory::{Directory, LATE, ReadError};
use crate::process::{Proc, Process};

/// Time limit for one process.
pub(crate) const PATIENCE: Duration = Duration::from_millis(200);
/// Time that the reads of all processes of a user other than root may take in each [`PERIOD`]. Reads that take less than
/// [`SHORT`] do not count.
const BUDGET: Duration = Duration::from_secs(5);
const PERIOD: Duration = Duration::from_mins(1);
const SHORT: Duration = Duration::from_millis(5);
/// Maximum number of reads that hang, of the processes of one user, and of all users other than root. Then no further
/// process of the user is read. Each such read has a thread and two descriptors, of which a process may have 1,024.
const MOST: usize = 8;
const MOST_OF_ALL: usize = 64;
/// The same for users of whose processes no read hangs.
const MOST_THREADS: usize = 256;
/// Size of a thread's stack.
const STACK: usize = 128 << 10;
static HANGING: LazyLock<Mutex<AllReads>> = LazyLock::new(Mutex::default);

/// Reads that hang, and limits for each user, so that one user's processes do not delay or prevent reads of others.
#[derive(Default)]
struct AllReads {
    /// Reads by the key of the user.
    users: BTreeMap<u32, UserReads>,
    subordinate: SubordinateUids,
    /// End of the period for which the limit of time applies.
    period: Option<Deadline>,
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

/// The uid of a process, and a number that no other process has: its pid, or the inode number of its directory.
type Owned = (u32, u64);

impl AllReads {
    /// Starts a new period if the current one has ended.
    fn renew(&mut self) {
        if self.period.is_none_or(Deadline::passed) {
            self.period = Some(Deadline::after(PERIOD));
            let text = fs::read_to_string(SUBORDINATE_UIDS).unwrap_or_default();
            self.subordinate = SubordinateUids::parse(&text);
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
        let user = self.subordinate.user(uid);
        let all: usize = self.users.values().map(|reads| reads.processes.len()).sum();
        let none = UserReads::default();
        let reads = self.users.get(&user).unwrap_or(&none);
        // As long as there are few threads, one user more can have a read.
        let most_of_all = if reads.processes.is_empty() { MOST_THREADS } else { MOST_OF_ALL };
        let is_full = reads.processes.len() >= MOST || all >= most_of_all || reads.spent >= BUDGET;
        (user != 0 && is_full) || reads.processes.contains(&process)
    }

    /// Returns the reads of a uid's user.
    fn of(&mut self, uid: u32) -> &mut UserReads {
        self.renew();
        self.users.entry(self.subordinate.user(uid)).or_default()
    }
}

/// Items that are read in order, by one thread at a time.
struct Walk<I, T, O, R> {
    items: Vec<I>,
    /// Returns the owner of an item, without a read that can hang.
    owner: O,
    read: R,
    patience: Duration,
    until: Option<Deadline>,
    progress: Mutex<Progress<T>>,
    ended: Condvar,
}

/// State of a [`Walk`].
struct Progress<T> {
    /// Results, in order. The next item is being read.
    found: Vec<Result<T, ReadError>>,
    /// When that read began.
    began: Duration,
    /// For each abandoned thread, the owner of the item on which it hangs. The number of the current thread is the number
    /// of abandoned ones.
    hung: Vec<Option<Owned>>,
    is_done: bool,
}

impl<I, T, O, R> Walk<I, T, O, R>
where
    I: Send + Sync + 'static,
    T: Send + 'static,
    O: Fn(&I) -> Result<Owned, ReadError> + Send + Sync + 'static,
    R: Fn(&I) -> Result<T, ReadError> + Send + Sync + 'static,
{
    fn new(items: Vec<I>, (owner, read): (O, R), (patience, until): (Duration, Option<Deadline>)) -> Self {
        let found = Vec::with_capacity(items.len());
        let progress = Mutex::new(Progress { found, began: running(), hung: Vec::new(), is_done: false });
        Self { items, owner, read, patience, until, progress, ended: Condvar::new() }
    }

    /// Reads the items. Items that were not reached before the deadline are missing at the end.
    fn run(self) -> Vec<Result<T, ReadError>> {
        if self.items.is_empty() {
            return Vec::new();
        }
        let walk = Arc::new(self);
        let mut progress = lock(&walk.progress);
        walk.start(&mut progress);
        while !progress.is_done {
            let left = walk.patience.saturating_sub(running().saturating_sub(progress.began));
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

    /// Starts a thread that continues. Without one, the rest counts as too late.
    fn start(self: &Arc<Self>, progress: &mut Progress<T>) {
        progress.began = running();
        let (walk, number) = (Arc::clone(self), progress.hung.len());
        let thread = Builder::new().name("process".to_owned()).stack_size(STACK);
        if thread.spawn(move || walk.continue_as(number)).is_err() {
            progress.found.resize_with(self.items.len(), || Err(LATE));
            progress.is_done = true;
        }
    }

    /// Gives up the item that is being read.
    fn abandon(&self, progress: &mut Progress<T>) {
        let item = self.items.get(progress.found.len());
        let hung = item.and_then(|item| (self.owner)(item).ok());
        if let Some((uid, process)) = hung {
            lock(&HANGING).of(uid).processes.insert(process);
        }
        progress.hung.push(hung);
        progress.found.push(Err(LATE));
    }

    /// Reads items until none is left, or until this thread is abandoned.
    fn continue_as(&self, number: usize) {
        let mut result = None;
        loop {
            let mut progress = lock(&self.progress);
            if let Some(hung) = progress.hung.get(number) {
                if let Some((uid, process)) = *hung {
                    lock(&HANGING).of(uid).processes.remove(&process);
                }
                return;
            }
            progress.found.extend(result);
            let is_late = self.until.is_some_and(Deadline::passed);
            let Some(item) = self.items.get(progress.found.len()).filter(|_| !is_late) else {
                progress.is_done = true;
                self.ended.notify_one();
                return;
            };
            progress.began = running();
            drop(progress);
            result = Some(self.read_one(item));
        }
    }

    fn read_one(&self, item: &I) -> Result<T, ReadError> {
        let any_limited = !lock(&HANGING).users.is_empty();
        if any_limited && lock(&HANGING).refuses((self.owner)(item)?) {
            return Err(LATE);
        }
        let began = running();
        let result = (self.read)(item);
        let took = running().saturating_sub(began);
        if took >= SHORT
            && let Ok((uid, _)) = (self.owner)(item)
        {
            lock(&HANGING).of(uid).spent += took;
        }
        result
    }
}

impl Proc {
    /// Reads each process with `read`, in order and by one thread. Processes that were not reached before the deadline
    /// are missing at the end of the result.
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
        let (proc, same) = (self.again()?, self.again()?);
        let owner = move |pid: &u32| same.process(*pid)?.owned();
        let read = move |pid: &u32| read(&proc, *pid);
        let results = Walk::new(pids.clone(), (owner, read), (PATIENCE, until)).run();
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
        Walk::new(vec![self.again()?], (Self::owned, read), (patience, None)).run().pop().unwrap_or(Err(LATE))
    }

    /// Returns the owner and the pid. After the process has exited, the owner is 0.
    fn owned(&self) -> Result<Owned, ReadError> {
        Ok((fstat(&**self)?.st_uid, self.pid().into()))
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
            Ok((found.st_uid, found.st_ino))
        };
        Walk::new(vec![self], (owned, read), (patience, None)).run().pop().unwrap_or(Err(LATE))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Proc;
    use std::sync::mpsc::channel;

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

    fn all_reads(subordinate: &str) -> AllReads {
        let subordinate = SubordinateUids::parse(subordinate);
        AllReads { subordinate, period: Some(Deadline::after(PERIOD)), ..AllReads::default() }
    }

    #[test]
    fn limits_of_a_user_apply_to_no_other() {
        let mut all = all_reads("");
        for pid in 0..u64::try_from(MOST).unwrap() {
            assert!(!all.refuses((4002, 100)));
            all.of(4002).processes.insert(pid);
        }
        assert!(all.refuses((4002, 100)), "too many reads hang");
        assert!(!all.refuses((4005, 100)));
        all.of(4005).spent = BUDGET;
        assert!(all.refuses((4005, 101)), "the time is used up");
        assert!(!all.refuses((0, 101)));
        all.period = Some(Deadline::after(Duration::ZERO));
        assert!(!all.refuses((4005, 101)), "a new period");
    }

    #[test]
    fn subordinate_uids_count_as_one_user() {
        let mut all = all_reads("alice:100000:65536");
        for pid in 0..u32::try_from(MOST).unwrap() {
            all.of(100_000 + pid).processes.insert(pid.into());
        }
        assert!(all.refuses((165_535, 100)));
        assert!(!all.refuses((165_536, 100)), "another user");
    }

    #[test]
    fn reads_of_all_users_are_limited() {
        let mut all = all_reads("");
        for uid in 1000..1000 + u32::try_from(MOST_OF_ALL).unwrap() {
            assert!(!all.refuses((uid, 1)));
            all.of(uid).processes.insert(uid.into());
        }
        assert!(all.refuses((1000, 1)), "a user with a read that hangs");
        for uid in 2000..2000 + u32::try_from(MOST_THREADS - MOST_OF_ALL).unwrap() {
            assert!(!all.refuses((uid, 1)), "other users");
            all.of(uid).processes.insert(uid.into());
        }
        assert!(all.refuses((5000, 5000)), "too many threads");
        assert!(!all.refuses((0, 5001)));
    }
}
