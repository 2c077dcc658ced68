//! The first of the queue: he alone tries the GPUs, all that he wants or none.

use std::collections::BTreeSet;
use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::inotify::{CreateFlags, WatchFlags, add_watch, init};
use rustix::fs::{FlockOperation, OFlags, Stat, flock};

use super::directory::{self, Directory, Managed};
use super::record::Record;

/// The kernel says that a file was closed some instructions before it forgets the lock: who comes too early tries again
/// so soon, and then ever later.
const SOON: Duration = Duration::from_micros(50);
/// So late at last: should a bell be missed.
const LATE: Duration = Duration::from_secs(1);
/// Where this user has no bells left.
const WITHOUT: Duration = Duration::from_millis(20);

/// Tokens are numbers in JSON, too.
const HIGHEST: u64 = (1 << 53) - 1;

/// Which GPUs would do.
#[derive(Debug, Default)]
pub(super) struct Wish {
    /// Any of these, and no other; where there are none, any.
    among: BTreeSet<u32>,
    /// These after the rest.
    last: BTreeSet<u32>,
}

impl Wish {
    pub(super) fn of(record: &Record) -> Self {
        let ids = |field| {
            record.get(field).unwrap_or_default().split(',').filter_map(|id| id.parse().ok()).collect()
        };
        Self { among: ids("among"), last: ids("last") }
    }

    fn fits(&self, id: u32) -> bool {
        self.among.is_empty() || self.among.contains(&id)
    }

    /// How many would do.
    pub(super) fn fit(&self, managed: &Managed) -> usize {
        managed.gpus.iter().filter(|gpu| self.fits(gpu.id)).count()
    }
}

/// What is kept for those who wait for particular GPUs and came before; who wants any goes behind them only for these.
#[derive(Debug, Default)]
pub(super) struct Kept {
    gpus: BTreeSet<u32>,
    pub(super) tickets: u64,
}

impl Kept {
    /// Keeps what somebody wants, unless all would do.
    pub(super) fn add(&mut self, wish: &Wish) -> bool {
        self.tickets += 1;
        self.gpus.extend(&wish.among);
        !wish.among.is_empty()
    }
}

/// The first of the queue, with the files of all GPUs open that would do.
#[derive(Debug)]
pub(super) struct Head {
    managed: Managed,
    pub(super) kept: Kept,
    /// Those first that nobody was given for the longest time; as long as we are the first nobody is given any.
    gpus: Vec<Gpu>,
    /// The highest in the records, when they were last looked at.
    pub(super) token: u64,
    pub(super) bell: Option<Bell>,
    pause: Duration,
}

/// A GPU's file.
#[derive(Debug)]
pub(super) struct Gpu {
    pub(super) id: u32,
    pub(super) file: File,
    found: Stat,
}

impl Head {
    pub(super) fn open(directory: &Directory, managed: Managed, wish: &Wish) -> Self {
        let open = |gpu: &directory::Gpu| {
            let (file, found) = directory.gpu(gpu.id, OFlags::RDWR).ok()?;
            Some(Gpu { id: gpu.id, file, found })
        };
        let fits = managed.gpus.iter().filter(|gpu| wish.fits(gpu.id));
        let mut gpus: Vec<Gpu> = fits.filter_map(open).collect();
        let given = |gpu: &Gpu| (gpu.found.st_mtime, gpu.found.st_mtime_nsec);
        gpus.sort_by_key(|gpu| (wish.last.contains(&gpu.id), given(gpu), gpu.id));
        Self { managed, kept: Kept::default(), gpus, token: 0, bell: None, pause: SOON }
    }

    /// Looks up the tokens that were given with the GPUs.
    pub(super) fn look_up(&mut self) {
        let tokens = self.gpus.iter().filter_map(|gpu| Record::read(&gpu.file)?.number("tok"));
        self.token = tokens.filter(|token| *token < HIGHEST).max().unwrap_or_default();
    }

    /// Whether these are the GPUs that are handed out.
    pub(super) fn is_current(&self, directory: &Directory) -> bool {
        directory.is_current(&self.managed)
            && self.gpus.iter().all(|gpu| directory.is_gpu(gpu.id, &gpu.found))
    }

    /// Takes so many.
    pub(super) fn take(&mut self, directory: &Directory, want: usize) -> Option<Vec<Gpu>> {
        let mut taken = Vec::new();
        for (place, gpu) in self.gpus.iter().enumerate() {
            if taken.len() == want {
                break;
            }
            let may = !self.kept.gpus.contains(&gpu.id);
            if may && flock(&gpu.file, FlockOperation::NonBlockingLockExclusive).is_ok() {
                taken.push(place);
            }
        }
        // A lock on a file that was replaced keeps nobody out.
        let usable = |place: &usize| directory.is_gpu(self.gpus[*place].id, &self.gpus[*place].found);
        if taken.len() == want && taken.iter().all(usable) && directory.is_current(&self.managed) {
            return Some(taken.into_iter().rev().map(|place| self.gpus.swap_remove(place)).collect());
        }
        for place in taken {
            let _ = flock(&self.gpus[place].file, FlockOperation::Unlock);
        }
        None
    }

    /// From now on hears that a GPU was let go; tells whether that is new.
    pub(super) fn listen(&mut self) -> bool {
        let new = self.bell.is_none();
        if new {
            self.bell = Bell::hang(&self.gpus);
        }
        new && self.bell.is_some()
    }

    /// Back when a GPU was let go, which it tells, or when it is time to look around.
    pub(super) fn rest(&mut self, at_most: Duration) -> bool {
        let Some(bell) = &self.bell else {
            std::thread::park_timeout(at_most.min(WITHOUT));
            return false;
        };
        let rung = bell.heard(self.pause.min(at_most));
        self.pause = if rung { SOON } else { (self.pause * 4).min(LATE) };
        rung
    }

    /// It was heard. Whoever tries the GPUs after that misses nothing.
    pub(super) fn quiet(&self) {
        if let Some(bell) = &self.bell {
            bell.quiet();
        }
    }
}

impl Drop for Head {
    fn drop(&mut self) {
        if let Some(bell) = self.bell.take() {
            bell.take_down(std::mem::take(&mut self.gpus));
        }
    }
}

/// Rings when one of the files is closed.
#[derive(Debug)]
pub(super) struct Bell {
    ears: OwnedFd,
    down: Sender<Box<dyn Send>>,
}

impl Bell {
    fn hang(gpus: &[Gpu]) -> Option<Self> {
        let ears = init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).ok()?;
        for gpu in gpus {
            let path = format!("/proc/self/fd/{}", gpu.file.as_raw_fd());
            add_watch(&ears, path, WatchFlags::CLOSE_WRITE).ok()?;
        }
        let (down, until) = channel();
        let thread = std::thread::Builder::new().name("bell".to_owned());
        thread.spawn(move || drop(until.recv())).ok()?;
        Some(Self { ears, down })
    }

    /// Takes the kernel some 10 ms, and who has waited has better things to do: a thread does that, and puts away the
    /// rest.
    pub(super) fn take_down(self, rest: impl Send + 'static) {
        let _ = self.down.send(Box::new((rest, self.ears)));
    }

    /// Whether it rings within, or still does.
    fn heard(&self, within: Duration) -> bool {
        let time = Timespec { tv_sec: within.as_secs().cast_signed(), tv_nsec: within.subsec_nanos().into() };
        let mut ears = [PollFd::new(&self.ears, PollFlags::IN)];
        poll(&mut ears, Some(&time)).is_ok_and(|ready| ready > 0)
    }

    /// It rings no longer, unless there is more.
    fn quiet(&self) {
        let _ = rustix::io::read(&self.ears, &mut [0; 4096]);
    }
}
