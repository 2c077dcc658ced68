//! The first waiter in the queue. It alone tries to lock GPUs: all GPUs that it requests, or none.

use std::collections::BTreeSet;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use bailiff_proc::clock::Deadline;
use bailiff_proc::readable;
use rustix::fs::inotify::{CreateFlags, WatchFlags, add_watch, init};
use rustix::fs::{FlockOperation, Stat, flock};

use super::directory::{self, Directory, Managed};
use super::record::Record;

/// The kernel reports the close of a file shortly before it releases the lock. A waiter that is too early retries
/// after this time, and then at growing intervals.
const FIRST_RETRY: Duration = Duration::from_micros(50);
/// Before a longer interval, events do not cause a retry, because any user can cause them by opening and closing a file.
const LONGEST_WITHOUT_EVENTS: Duration = Duration::from_millis(4);
/// Longest interval between retries, in case an event is missed.
const LAST_RETRY: Duration = Duration::from_secs(1);
/// The polling interval if the user's inotify limit is reached.
const WITHOUT_INOTIFY: Duration = Duration::from_millis(20);

/// The GPUs that a ticket accepts.
#[derive(Debug, Default)]
pub(super) struct GpuSelection {
    /// Only these GPUs are accepted. If empty, any GPU is accepted.
    among: BTreeSet<u32>,
    /// These GPUs are used only if all other accepted GPUs are taken.
    last: BTreeSet<u32>,
}

impl GpuSelection {
    pub(super) fn of(record: &Record) -> Self {
        let ids = |field| {
            record.get(field).unwrap_or_default().split(',').filter_map(|id| id.parse().ok()).collect()
        };
        Self { among: ids("among"), last: ids("last") }
    }

    pub(super) fn accepts(&self, id: u32) -> bool {
        self.among.is_empty() || self.among.contains(&id)
    }

    /// The number of acceptable GPUs.
    pub(super) fn count(&self, managed: &Managed) -> usize {
        managed.gpus.iter().filter(|gpu| self.accepts(gpu.id)).count()
    }
}

/// GPUs that are reserved for earlier tickets with a selection. A ticket for any GPU does not get a reserved GPU.
#[derive(Debug, Default)]
pub(super) struct Reserved {
    gpus: BTreeSet<u32>,
    pub(super) tickets: u64,
}

impl Reserved {
    /// Reserves the selection of a ticket. Returns false if the ticket accepts any GPU.
    pub(super) fn add(&mut self, selection: &GpuSelection) -> bool {
        self.tickets += 1;
        self.gpus.extend(&selection.among);
        !selection.among.is_empty()
    }
}

/// The first waiter, with the opened files of all GPUs that it accepts.
#[derive(Debug)]
pub(super) struct Head {
    pub(super) managed: Managed,
    pub(super) reserved: Reserved,
    /// The least recently granted GPU comes first. The order cannot change while this waiter is the first.
    gpus: Vec<GpuFile>,
    pub(super) watch: Option<CloseWatch>,
    pause: Duration,
}

/// The opened file of a GPU.
#[derive(Debug)]
pub(super) struct GpuFile {
    pub(super) id: u32,
    pub(super) file: File,
    found: Stat,
}

impl Head {
    pub(super) fn open(directory: &Directory, managed: Managed, selection: &GpuSelection) -> Self {
        let open = |gpu: &directory::ManagedGpu| {
            let (file, found) = directory.gpu(gpu.id).ok()?;
            Some(GpuFile { id: gpu.id, file, found })
        };
        let accepted = managed.gpus.iter().filter(|gpu| selection.accepts(gpu.id));
        let mut gpus: Vec<GpuFile> = accepted.filter_map(open).collect();
        let granted = |gpu: &GpuFile| directory.last_granted(gpu.id);
        gpus.sort_by_cached_key(|gpu| (selection.last.contains(&gpu.id), granted(gpu), gpu.id));
        Self { managed, reserved: Reserved::default(), gpus, watch: None, pause: LONGEST_WITHOUT_EVENTS }
    }

    /// Whether the opened files are still those of the pool.
    pub(super) fn is_current(&self, directory: &Directory) -> bool {
        directory.is_current(&self.managed)
            && self.gpus.iter().all(|gpu| directory.is_gpu(gpu.id, &gpu.found))
    }

    /// Locks `want` GPUs, or none if there are not enough.
    pub(super) fn take(&mut self, directory: &Directory, want: usize) -> Option<Vec<GpuFile>> {
        let mut taken = Vec::new();
        for (place, gpu) in self.gpus.iter().enumerate() {
            if taken.len() == want {
                break;
            }
            let may = !self.reserved.gpus.contains(&gpu.id);
            if may && flock(&gpu.file, FlockOperation::NonBlockingLockExclusive).is_ok() {
                taken.push(place);
            }
        }
        // A lock on a replaced file does not exclude other clients.
        let usable = |place: &usize| directory.is_gpu(self.gpus[*place].id, &self.gpus[*place].found);
        if taken.len() == want && taken.iter().all(usable) && directory.is_current(&self.managed) {
            return Some(taken.into_iter().rev().map(|place| self.gpus.swap_remove(place)).collect());
        }
        for place in taken {
            let _ = flock(&self.gpus[place].file, FlockOperation::Unlock);
        }
        None
    }

    /// Starts watching for released GPUs. Returns whether the watch is new.
    pub(super) fn listen(&mut self) -> bool {
        let new = self.watch.is_none();
        if new {
            self.watch = CloseWatch::open(&self.gpus);
        }
        new && self.watch.is_some()
    }

    /// Waits until a GPU may have been released or a retry is due.
    pub(super) fn wait_for_release(&mut self, at_most: Duration) {
        let Some(watch) = &self.watch else {
            std::thread::park_timeout(at_most.min(WITHOUT_INOTIFY));
            return;
        };
        let pause = self.pause.min(at_most);
        let is_event = if self.pause < LONGEST_WITHOUT_EVENTS {
            std::thread::park_timeout(pause);
            false
        } else {
            watch.wait(pause)
        };
        if is_event {
            watch.clear();
        }
        self.pause = if is_event { FIRST_RETRY } else { (self.pause * 4).min(LAST_RETRY) };
    }
}

impl Drop for Head {
    fn drop(&mut self) {
        if let Some(watch) = self.watch.take() {
            watch.close_in_background(std::mem::take(&mut self.gpus));
        }
    }
}

/// An inotify watch that reports when one of the files is closed.
#[derive(Debug)]
pub(super) struct CloseWatch {
    inotify: OwnedFd,
    cleanup: Sender<Box<dyn Send>>,
}

impl CloseWatch {
    fn open(gpus: &[GpuFile]) -> Option<Self> {
        let inotify = init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).ok()?;
        for gpu in gpus {
            let path = format!("/proc/self/fd/{}", gpu.file.as_raw_fd());
            add_watch(&inotify, path, WatchFlags::CLOSE_NOWRITE | WatchFlags::CLOSE_WRITE).ok()?;
        }
        let (cleanup, receiver) = channel();
        let thread = std::thread::Builder::new().name("gpu-watch".to_owned());
        thread.spawn(move || drop(receiver.recv())).ok()?;
        Some(Self { inotify, cleanup })
    }

    /// Closes the watch and drops `rest` in a thread, because the kernel needs about 10 ms for it.
    pub(super) fn close_in_background(self, rest: impl Send + 'static) {
        let _ = self.cleanup.send(Box::new((rest, self.inotify)));
    }

    /// Whether an event is pending or arrives within this time.
    fn wait(&self, within: Duration) -> bool {
        readable(&[self.inotify.as_fd()], Some(Deadline::after(within))).is_ok_and(|ready| ready == [true])
    }

    /// Discards pending events. The retries after this find a GPU that was closed but was not unlocked yet.
    fn clear(&self) {
        let _ = rustix::io::read(&self.inotify, &mut [0; 4096]);
    }
}
