//! Reads of a process's memory, such as `environ` and `cmdline`. The process's owner can make them hang, so each runs in
//! a thread of its own, which is abandoned at a deadline.

use std::collections::BTreeSet;
use std::sync::mpsc::sync_channel;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::Builder;
use std::time::Duration;

use rustix::io::Errno;

use crate::directory::ReadError;
use crate::process::Process;

/// Time limit of a read.
const PATIENCE: Duration = Duration::from_millis(200);
/// Maximum number of reads that hang at the same time. Further reads fail.
const MOST: usize = 1024;
/// Size of a thread's stack.
const STACK: usize = 128 << 10;

/// Pids whose memory is being read. While a read hangs, no further one of the same process is started.
static READING: Mutex<BTreeSet<u32>> = Mutex::new(BTreeSet::new());

impl Process {
    /// Reads memory of the process.
    ///
    /// # Errors
    /// The errors of `read`; and a timeout if it does not return in time, or if an earlier read still hangs.
    pub fn patiently<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Self) -> Result<T, ReadError> + Send + 'static,
    ) -> Result<T, ReadError> {
        let late = ReadError::Unreadable(Errno::TIMEDOUT);
        let (pid, process) = (self.pid(), self.again()?);
        {
            let mut reading = reading();
            if reading.len() >= MOST || !reading.insert(pid) {
                return Err(late);
            }
        }
        let (sender, receiver) = sync_channel(1);
        let started = Builder::new().name("memory".to_owned()).stack_size(STACK).spawn(move || {
            let done = read(&process);
            reading().remove(&pid);
            // The receiver may have given up.
            let _ = sender.send(done);
        });
        if started.is_err() {
            reading().remove(&pid);
            return Err(late);
        }
        receiver.recv_timeout(PATIENCE).unwrap_or(Err(late))
    }
}

fn reading() -> MutexGuard<'static, BTreeSet<u32>> {
    READING.lock().unwrap_or_else(PoisonError::into_inner)
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
}
