//! Reads of a process's memory, such as `environ` and `cmdline`. The process's owner can make them hang, so each runs in
//! a thread of its own, which is abandoned at a deadline.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::mpsc::sync_channel;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::Builder;
use std::time::Duration;

use rustix::io::Errno;

use crate::clock::{Deadline, running};
use crate::directory::ReadError;
use crate::process::Process;

/// Time limit of a read.
const PATIENCE: Duration = Duration::from_millis(200);
/// Time that the reads of all processes of a user other than root may take in each [`PERIOD`].
const BUDGET: Duration = Duration::from_secs(5);
const PERIOD: Duration = Duration::from_mins(1);
/// Maximum number of reads that hang at the same time, of the processes of one user. Each has a thread and two
/// descriptors.
const MOST: usize = 8;
/// Size of a thread's stack.
const STACK: usize = 128 << 10;

/// Reads in progress by uid, so that one user's processes do not delay or prevent reads of others.
static READS: Mutex<BTreeMap<u32, Reads>> = Mutex::new(BTreeMap::new());

/// Reads of the processes of one user.
#[derive(Default)]
struct Reads {
    /// Pids whose memory is being read. While a read hangs, no further one of the same process is started.
    pids: BTreeSet<u32>,
    spent: Duration,
    /// End of the period in which that time was spent.
    until: Option<Deadline>,
}

impl Reads {
    /// Starts a read, unless the processes of this user have used up their limits.
    fn begin(&mut self, uid: u32, pid: u32) -> bool {
        if self.until.is_none_or(Deadline::passed) {
            (self.spent, self.until) = (Duration::ZERO, Some(Deadline::after(PERIOD)));
        }
        let is_limited = uid != 0 && (self.pids.len() >= MOST || self.spent >= BUDGET);
        !is_limited && self.pids.insert(pid)
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
        if !reads().entry(uid).or_default().begin(uid, pid) {
            return Err(late);
        }
        let began = running();
        let (sender, receiver) = sync_channel(1);
        let end = move || {
            if let Some(reads) = reads().get_mut(&uid) {
                reads.pids.remove(&pid);
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
        let done = receiver.recv_timeout(PATIENCE).unwrap_or(Err(late));
        reads().entry(uid).or_default().spent += running().saturating_sub(began);
        done
    }
}

fn reads() -> MutexGuard<'static, BTreeMap<u32, Reads>> {
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

    #[test]
    fn limits_of_a_user_apply_to_no_other() {
        let mut users: BTreeMap<u32, Reads> = BTreeMap::new();
        let mut begin = |uid: u32, pid: u32| users.entry(uid).or_default().begin(uid, pid);
        for pid in 0..u32::try_from(MOST).unwrap() {
            assert!(begin(4002, pid));
        }
        assert!(!begin(4002, 100), "too many reads hang");
        assert!(begin(4005, 100));
        users.get_mut(&4005).unwrap().spent = BUDGET;
        let mut begin = |uid: u32, pid: u32| users.entry(uid).or_default().begin(uid, pid);
        assert!(!begin(4005, 101), "the time is used up");
        assert!(begin(0, 101));
        users.get_mut(&4005).unwrap().until = Some(Deadline::after(Duration::ZERO));
        assert!(users.get_mut(&4005).unwrap().begin(4005, 101), "a new period");
    }
}
