//! Benchmarks a pool on this machine: the delay until a waiter gets a freed GPU, compared with the kernel's minimum,
//! which is an inotify event for the close of a file plus a lock. As in production, a waiter is a separate process.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use bailiff_lease::holder::LocalHost;
use bailiff_lease::{Leases, Local, Ticket, TicketStatus};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::inotify::{CreateFlags, WatchFlags, add_watch, init};
use rustix::fs::{FlockOperation, flock};
use rustix::time::{ClockId, clock_gettime};
use tempfile::TempDir;

use crate::wait::until;

const GPUS: u32 = 8;
/// Pause after which a waiter polls rarely and caches are cold.
const REST: Duration = Duration::from_millis(20);

/// A pool of eight GPUs in memory, like pools in `/run`.
pub struct Locks {
    directory: TempDir,
}

/// A waiting process.
struct Waiter {
    child: Child,
    stdout: BufReader<ChildStdout>,
}

impl Waiter {
    fn start(part: &str, pool: &Path) -> Self {
        let us = std::env::current_exe().expect("a path");
        let mut child = Command::new(us)
            .arg(part)
            .arg(pool)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the program starts");
        let stdout = BufReader::new(child.stdout.take().expect("stdout is piped"));
        Self { child, stdout }
    }

    /// Reads the next time that the waiter prints.
    fn read_time(&mut self) -> Duration {
        let mut line = String::new();
        self.stdout.read_line(&mut line).expect("the waiter is running");
        Duration::from_nanos(line.trim().parse().unwrap_or_else(|_| panic!("a moment: {line:?}")))
    }

    /// Makes the waiter release its GPU. Returns when the release began.
    fn go(mut self) -> Duration {
        drop(self.child.stdin.take());
        let began = self.read_time();
        self.child.wait().expect("the waiter exits");
        began
    }
}

/// Runs as a waiter if the arguments are those of a waiter. Returns whether it did.
pub fn waiter(arguments: &[String]) -> bool {
    let [part, pool] = arguments else { return false };
    match part.as_str() {
        "bare-waiter" => bare_waiter(Path::new(pool)),
        "waiter" => our_waiter(Path::new(pool)),
        _ => return false,
    }
    true
}

fn bare_waiter(pool: &Path) {
    let files = files(pool);
    let inotify = init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).expect("a bell");
    for file in &files {
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        add_watch(&inotify, path, WatchFlags::CLOSE_WRITE).expect("the file can be watched");
    }
    print_time();
    loop {
        let _ = poll(&mut [PollFd::new(&inotify, PollFlags::IN)], None);
        // The event may arrive before the lock is released.
        for file in files.iter().cycle().take(files.len() * 1000) {
            if flock(file, FlockOperation::NonBlockingLockExclusive).is_ok() {
                return print_time();
            }
        }
    }
}

/// Waits, and then holds the GPU until standard input is closed.
fn our_waiter(path: &Path) {
    let mut pool = Local::at(path);
    let lease = format!("w{}", std::process::id());
    let status = wait(&mut pool, &lease, 1);
    let locked = moment();
    acknowledge(&mut pool, &lease, &status);
    let written = moment();
    println!("{}\n{}", locked.as_nanos(), written.as_nanos());
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
    let began = moment();
    drop(pool);
    println!("{}", began.as_nanos());
}

fn moment() -> Duration {
    let time = clock_gettime(ClockId::Monotonic);
    Duration::new(time.tv_sec.cast_unsigned(), time.tv_nsec.try_into().expect("less than a second"))
}

fn print_time() {
    println!("{}", moment().as_nanos());
}

fn files(pool: &Path) -> Vec<File> {
    let open = |id| File::options().read(true).write(true).open(pool.join(format!("gpu/{id}")));
    (0..GPUS).map(|id| open(id).expect("a GPU has a file")).collect()
}

impl Locks {
    /// Creates a pool.
    pub fn new() -> Self {
        let memory = Path::new("/dev/shm");
        let directory = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() };
        let locks = Self { directory: directory.expect("a temporary directory") };
        let gpus: Vec<_> = (0..GPUS).map(|id| (id, None)).collect();
        Local::at(locks.pool()).init(&gpus, 0, false).expect("a pool is begun");
        locks
    }

    fn pool(&self) -> PathBuf {
        self.directory.path().join("lease")
    }

    /// Returns the time from the close of a file until the notified process holds the lock.
    pub fn bare(&self) -> Duration {
        let held = files(&self.pool());
        for file in &held {
            flock(file, FlockOperation::LockExclusive).expect("the lock is free");
        }
        let mut waiter = Waiter::start("bare-waiter", &self.pool());
        waiter.read_time();
        std::thread::park_timeout(REST);
        let began = moment();
        drop(held.into_iter().nth(3));
        let served = waiter.read_time();
        waiter.child.wait().expect("the waiter exits");
        served.saturating_sub(began)
    }

    /// Returns the times until each of this many waiters has its lease, and until the lease is recorded.
    pub fn ours(&self, waiters: usize) -> Vec<[Duration; 2]> {
        let (mut others, mut pool) = (Local::at(self.pool()), Local::at(self.pool()));
        for (pool, lease, want) in [(&mut others, "others", GPUS - 1), (&mut pool, "first", 1)] {
            let status = wait(pool, lease, want);
            acknowledge(pool, lease, &status);
        }
        let line: Vec<Waiter> = (0..waiters)
            .map(|number| {
                let waiter = Waiter::start("waiter", &self.pool());
                until("a waiter", || {
                    (Local::at(self.pool()).audit().ok()?.queue.len() == number + 1).then_some(())
                });
                waiter
            })
            .collect();
        let mut release: Box<dyn FnOnce() -> Duration> = Box::new(move || {
            let began = moment();
            drop(pool);
            began
        });
        let mut took = Vec::new();
        for mut waiter in line {
            std::thread::park_timeout(REST);
            let began = release();
            took.push([waiter.read_time(), waiter.read_time()].map(|time| time.saturating_sub(began)));
            release = Box::new(move || waiter.go());
        }
        release();
        took
    }
}

impl Default for Locks {
    fn default() -> Self {
        Self::new()
    }
}

fn wait(pool: &mut Local, lease: &str, want: u32) -> TicketStatus {
    pool.wait(&ticket(lease, want), (&LocalHost::read(), None), &mut |_| {}).expect("the pool responds")
}

fn acknowledge(pool: &mut Local, lease: &str, status: &TicketStatus) {
    let TicketStatus::Held(grant) = status else { panic!("{status:?}") };
    let touched = pool.touch(lease, Duration::from_mins(1), Some(grant.token));
    assert_eq!(touched.as_ref(), Ok(status));
}

fn ticket(lease: &str, want: u32) -> Ticket {
    let about = LocalHost::read().holder(std::process::id());
    Ticket { lease: lease.to_owned(), want, priority: 0, ttl: Duration::from_mins(1), nonblock: false, about }
}
