//! A pool of this machine's own: how soon a waiter has what was let go, beside the least that the kernel allows: a bell
//! when one of the files is closed, and a lock.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use bailiff_lease::holder::Here;
use bailiff_lease::{Leases, Local, Standing, Ticket};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::inotify::{CreateFlags, WatchFlags, add_watch, init};
use rustix::fs::{FlockOperation, flock};
use tempfile::TempDir;

use crate::wait::until;

const GPUS: u32 = 8;
/// Until a waiter is at rest, and the caches are somebody else's.
const REST: Duration = Duration::from_millis(2);

/// A pool of eight GPUs where `/run` would be: in memory.
pub struct Locks {
    folder: TempDir,
}

impl Locks {
    /// Begins one.
    #[must_use]
    pub fn new() -> Self {
        let memory = Path::new("/dev/shm");
        let folder = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() };
        let locks = Self { folder: folder.expect("a temporary folder") };
        let gpus: Vec<_> = (0..GPUS).map(|id| (id, None)).collect();
        Local::at(locks.pool()).init(&gpus, 0, false).expect("a pool is begun");
        locks
    }

    fn pool(&self) -> PathBuf {
        self.folder.path().join("lease")
    }

    fn files(&self) -> Vec<File> {
        let open = |id| File::options().read(true).write(true).open(self.pool().join(format!("gpu/{id}")));
        (0..GPUS).map(|id| open(id).expect("a GPU has a file")).collect()
    }

    /// From the close of a file to the lock of whoever heard it.
    #[must_use]
    pub fn bare(&self) -> Duration {
        let held = self.files();
        for file in &held {
            flock(file, FlockOperation::LockExclusive).expect("nobody has it");
        }
        let (tell, told) = channel();
        std::thread::scope(|scope| {
            scope.spawn(|| listen(&self.files(), &tell));
            told.recv().expect("the waiter listens");
            std::thread::park_timeout(REST);
            let began = Instant::now();
            drop(held.into_iter().nth(3));
            told.recv().expect("the waiter has it").duration_since(began)
        })
    }

    /// The same until each of so many waiters of ours has his lease.
    #[must_use]
    pub fn ours(&self, waiters: usize) -> Vec<Duration> {
        let (mut others, mut pool) = (Local::at(self.pool()), Local::at(self.pool()));
        for (pool, lease, want) in [(&mut others, "others", GPUS - 1), (&mut pool, "first", 1)] {
            let standing = ask(pool, lease, want);
            assert!(matches!(standing, Standing::Held(_)), "{standing:?}");
        }
        let (tell, told) = channel();
        std::thread::scope(|scope| {
            for number in 0..waiters {
                let (tell, path) = (tell.clone(), self.pool());
                scope.spawn(move || wait(&path, number, &tell));
                until("a waiter", || {
                    (Local::at(self.pool()).audit().ok()?.queue.len() == number + 1).then_some(())
                });
            }
            let mut release: Box<dyn FnOnce()> = Box::new(move || drop(pool));
            let mut took = Vec::new();
            for _ in 0..waiters {
                std::thread::park_timeout(REST);
                let began = Instant::now();
                release();
                let (served, go): (Instant, Sender<()>) = told.recv().expect("a waiter is served");
                took.push(served.duration_since(began));
                release = Box::new(move || drop(go));
            }
            release();
            took
        })
    }
}

impl Default for Locks {
    fn default() -> Self {
        Self::new()
    }
}

fn ask(pool: &mut Local, lease: &str, want: u32) -> Standing {
    pool.wait(&ticket(lease, want), (&Here::look(), None), &mut |_| {}).expect("the pool answers")
}

fn ticket(lease: &str, want: u32) -> Ticket {
    let about = Here::look().holder(std::process::id());
    Ticket { lease: lease.to_owned(), want, priority: 0, ttl: Duration::from_mins(1), nonblock: false, about }
}

/// Waits, and holds until told otherwise.
fn wait(path: &Path, number: usize, tell: &Sender<(Instant, Sender<()>)>) {
    let mut pool = Local::at(path);
    let standing = ask(&mut pool, &format!("w{number}"), 1);
    let served = Instant::now();
    assert!(matches!(standing, Standing::Held(_)), "{standing:?}");
    let (go, come): (Sender<()>, Receiver<()>) = channel();
    tell.send((served, go)).expect("somebody measures");
    let _ = come.recv();
}

fn listen(files: &[File], tell: &Sender<Instant>) {
    let bell = init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).expect("a bell");
    for file in files {
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        add_watch(&bell, path, WatchFlags::CLOSE_WRITE).expect("the file can be watched");
    }
    tell.send(Instant::now()).expect("somebody measures");
    loop {
        let _ = poll(&mut [PollFd::new(&bell, PollFlags::IN)], None);
        // The bell may be heard before the lock is let go.
        for file in files.iter().cycle().take(files.len() * 1000) {
            if flock(file, FlockOperation::NonBlockingLockExclusive).is_ok() {
                tell.send(Instant::now()).expect("somebody measures");
                return;
            }
        }
    }
}
