//! Reads of a process's memory, such as `environ` and `cmdline`. The process's owner can make them hang, so each runs in
//! a thread of its own, which is abandoned at a deadline.

#![expect(clippy::disallowed_methods, reason = "reads /etc/subuid")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::sync::mpsc::sync_channel;
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};
use std::thread::Builder;
use std::time::Duration;

use bailiff_snapshot::{SUBORDINATE_UIDS, SubordinateUids};
use rustix::io::Errno;

use crate::clock::{Deadline, running};
use crate::directory::ReadError;
use crate::process::Process;

/// Time limit of a read.
const PATIENCE: Duration = Duration::from_millis(200);
/// Time that the reads of all processes of a user other than root may take in each [`PERIOD`].
const BUDGET: Duration = Duration::from_secs(5);
const PERIOD: Duration = Duration::from_mins(1);
/// Maximum number of reads that hang at the same time, of the processes of one user, and of all users other than root.
/// Each has a thread and two descriptors, of which a process may have 1,024.
const MOST: usize = 8;
const MOST_OF_ALL: usize = 64;
/// The same for users of whose processes no read hangs.
const MOST_THREADS: usize = 256;
/// Size of a thread's stack.
const STACK: usize = 128 << 10;
static READS: LazyLock<Mutex<AllReads>> = LazyLock::new(Mutex::default);

/// Reads in progress, and limits for each user, so that one user's processes do not delay or prevent reads of others.
#[derive(Default)]
struct AllReads {
    /// Reads by the key of the user.
    users: BTreeMap<u32, Reads>,
    subordinate: SubordinateUids,
    /// End of the period for which the limit of time applies.
    period: Option<Deadline>,
}

/// Reads of the processes of one user.
#[derive(Default)]
struct Reads {
    /// Pids whose memory is being read. While a read hangs, no further one of the same process is started.
    pids: BTreeSet<u32>,
    spent: Duration,
}

impl AllReads {
    /// Starts a read, unless the processes of this uid's user have used up their limits. Returns the key of the user.
    fn begin(&mut self, uid: u32, pid: u32) -> Option<u32> {
        if self.period.is_none_or(Deadline::passed) {
            self.period = Some(Deadline::after(PERIOD));
            let text = fs::read_to_string(SUBORDINATE_UIDS).unwrap_or_default();
            self.subordinate = SubordinateUids::parse(&text);
            self.users.retain(|_, reads| {
                reads.spent = Duration::ZERO;
                !reads.pids.is_empty()
            });
        }
        let user = self.subordinate.user(uid);
        let all: usize = self.users.values().map(|reads| reads.pids.len()).sum();
        let reads = self.users.entry(user).or_default();
        // As long as there are few threads, one user more can have a read.
        let most_of_all = if reads.pids.is_empty() { MOST_THREADS } else { MOST_OF_ALL };
        let is_full = reads.pids.len() >= MOST || all >= most_of_all || reads.spent >= BUDGET;
        let is_limited = user != 0 && is_full;
        (!is_limited && reads.pids.insert(pid)).then_some(user)
    }
}

impl Process {
    /// Reads memory of the process.
    ///
    /// # Errors
    /// The errors of `read`; and a timeout if it does not return in time, if an earlier read still hangs, or if reads of
    /// this user's processes have taken too long.
    pub fn patiently<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Self) -> Result<T, ReadError> + Send + 'static,
    ) -> Result<T, ReadError> {
        let late = ReadError::Unreadable(Errno::TIMEDOUT);
        let (uid, pid, process) = (self.owner()?, self.pid(), self.again()?);
        let Some(user) = reads().begin(uid, pid) else { return Err(late) };
        let began = running();
        let (sender, receiver) = sync_channel(1);
        let end = move || {
            let took = running().saturating_sub(began);
            if let Some(reads) = reads().users.get_mut(&user) {
                reads.pids.remove(&pid);
                reads.spent += took;
            }
        };
        let started = Builder::new().name("memory".to_owned()).stack_size(STACK).spawn(move || {
            let done = read(&process);
            end();
            // The receiver may have given up.
            let _ = sender.send(done);
        });
        if started.is_err() {
            end();
            return Err(late);
        }
        receiver.recv_timeout(PATIENCE).unwrap_or(Err(late))
    }
}

fn reads() -> MutexGuard<'static, AllReads> {
    READS.lock().unwrap_or_else(PoisonError::into_inner)
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
        let late = Err(ReadError::Unreadable(Errno::TIMEDOUT));
        let (release, released) = channel::<()>();
        let hangs = move |_: &Process| {
            let _ = released.recv();
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

    fn all_reads(subordinate: &str) -> AllReads {
        let subordinate = SubordinateUids::parse(subordinate);
        AllReads { subordinate, period: Some(Deadline::after(PERIOD)), ..AllReads::default() }
    }

    #[test]
    fn limits_of_a_user_apply_to_no_other() {
        let mut all = all_reads("");
        for pid in 0..u32::try_from(MOST).unwrap() {
            assert_eq!(all.begin(4002, pid), Some(4002));
        }
        assert_eq!(all.begin(4002, 100), None, "too many reads hang");
        assert_eq!(all.begin(4005, 100), Some(4005));
        all.users.get_mut(&4005).unwrap().spent = BUDGET;
        assert_eq!(all.begin(4005, 101), None, "the time is used up");
        assert_eq!(all.begin(0, 101), Some(0));
        all.period = Some(Deadline::after(Duration::ZERO));
        assert_eq!(all.begin(4005, 101), Some(4005), "a new period");
    }

    #[test]
    fn subordinate_uids_count_as_one_user() {
        let mut all = all_reads("alice:100000:65536");
        for pid in 0..u32::try_from(MOST).unwrap() {
            assert_eq!(all.begin(100_000 + pid, pid), Some(100_000));
        }
        assert_eq!(all.begin(165_535, 100), None);
        assert_eq!(all.begin(165_536, 100), Some(165_536), "another user");
    }

    #[test]
    fn reads_of_all_users_are_limited() {
        let mut all = all_reads("");
        for uid in 1000..1000 + u32::try_from(MOST_OF_ALL).unwrap() {
            assert_eq!(all.begin(uid, uid), Some(uid));
        }
        assert_eq!(all.begin(1000, 1), None, "a user with a read that hangs");
        for uid in 2000..2000 + u32::try_from(MOST_THREADS - MOST_OF_ALL).unwrap() {
            assert_eq!(all.begin(uid, uid), Some(uid), "other users");
        }
        assert_eq!(all.begin(5000, 5000), None, "too many threads");
        assert_eq!(all.begin(0, 5001), Some(0));
    }
}
