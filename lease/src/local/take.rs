//! The first of the queue: he alone tries the GPUs, all that he wants or none.

use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::inotify::{CreateFlags, WatchFlags, add_watch, init};
use rustix::fs::{FlockOperation, OFlags, flock};

use super::folder::{Folder, Managed};

/// The kernel says that a file was closed some instructions before it forgets the lock: who comes too early tries again
/// so soon, and then ever later.
const SOON: Duration = Duration::from_micros(50);
/// So late at last: should a bell be missed.
const LATE: Duration = Duration::from_secs(1);
/// Where this user has no bells left.
const WITHOUT: Duration = Duration::from_millis(20);

/// The first of the queue, with the files of all GPUs open.
#[derive(Debug)]
pub(super) struct Head {
    managed: Vec<Managed>,
    gpus: Vec<(u32, File)>,
    bell: Option<OwnedFd>,
    pause: Duration,
}

impl Head {
    pub(super) fn open(folder: &Folder, managed: Vec<Managed>) -> Self {
        let open = |gpu: &Managed| Some((gpu.id, folder.gpu(gpu.id, OFlags::RDWR).ok()?));
        let gpus = managed.iter().filter_map(open).collect();
        Self { managed, gpus, bell: None, pause: SOON }
    }

    pub(super) fn is_of(&self, managed: &[Managed]) -> bool {
        self.managed == managed
    }

    /// Takes so many, those first that nobody has had for the longest time.
    pub(super) fn take(&mut self, folder: &Folder, want: usize) -> Option<Vec<(u32, File)>> {
        let used = |file: &File| file.metadata().and_then(|found| found.modified()).ok();
        self.gpus.sort_by_cached_key(|(id, file)| (used(file), *id));
        let mut taken = Vec::new();
        for (place, (id, file)) in self.gpus.iter().enumerate() {
            if taken.len() == want {
                break;
            }
            if flock(file, FlockOperation::NonBlockingLockExclusive).is_ok() {
                // A lock on a file that was replaced keeps nobody out.
                if folder.is_gpu(*id, file) { taken.push(place) } else { self.managed.clear() }
            }
        }
        if taken.len() == want {
            return Some(taken.into_iter().rev().map(|place| self.gpus.swap_remove(place)).collect());
        }
        for place in taken {
            let _ = flock(&self.gpus[place].1, FlockOperation::Unlock);
        }
        None
    }

    /// From now on hears that a GPU was let go; tells whether that is new.
    pub(super) fn listen(&mut self) -> bool {
        if self.bell.is_some() {
            return false;
        }
        let ring = || {
            let bell = init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
            for (_, file) in &self.gpus {
                let path = format!("/proc/self/fd/{}", file.as_raw_fd());
                add_watch(&bell, path, WatchFlags::CLOSE_WRITE)?;
            }
            rustix::io::Result::Ok(bell)
        };
        self.bell = ring().ok();
        self.bell.is_some()
    }

    /// Back when a GPU was let go, or when it is time to try again.
    pub(super) fn rest(&mut self, at_most: Duration) {
        let Some(bell) = &self.bell else {
            std::thread::park_timeout(at_most.min(WITHOUT));
            return;
        };
        let pause = self.pause.min(at_most);
        let time = Timespec { tv_sec: pause.as_secs().cast_signed(), tv_nsec: pause.subsec_nanos().into() };
        let rung = poll(&mut [PollFd::new(bell, PollFlags::IN)], Some(&time)).is_ok_and(|ready| ready > 0);
        if rung {
            let mut heard = [0; 4096];
            while rustix::io::read(bell, &mut heard).is_ok_and(|bytes| bytes > 0) {}
        }
        self.pause = if rung { SOON } else { (self.pause * 4).min(LATE) };
    }
}
