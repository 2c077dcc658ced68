//! A worker: a child of this program that does one thing with CUDA until its standard input ends, so that none outlives its
//! parent. It prints `ready` once it does it, and a forked child's pid behind that; `failed: WHY` where it cannot.
#![allow(unsafe_code, reason = "fork, and the end of the first thread alone, have no safe form")]

use std::io::{Read, Write, stdin, stdout};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use crate::cuda::Gpu;

/// How long a kernel runs: short enough to share the GPU with others.
const KERNEL: Duration = Duration::from_millis(5);
/// How long a worker that computes in bursts rests: with [`BURST`] kernels in a row, about a tenth of the time is work.
const REST: Duration = Duration::from_millis(180);
const BURST: usize = 4;
const STREAMS: usize = 16;

/// What workers do; the names are also the first argument of the worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Work {
    /// A context, and nothing else.
    Idle,
    /// A context and an allocation.
    Memory,
    /// A kernel after the other.
    Busy,
    /// Kernels in many streams.
    Streams,
    /// Work for a tenth of the time.
    Bursts,
    /// An allocation, held by a thread after the thread-group leader has exited.
    Leaderless,
    /// An allocation, and a forked child that inherits the open device files.
    Forked,
}

impl Work {
    const ALL: [Self; 7] =
        [Self::Idle, Self::Memory, Self::Busy, Self::Streams, Self::Bursts, Self::Leaderless, Self::Forked];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::Memory => "memory",
            Self::Busy => "busy",
            Self::Streams => "streams",
            Self::Bursts => "bursts",
            Self::Leaderless => "leaderless",
            Self::Forked => "forked",
        }
    }

    fn allocates(self) -> bool {
        matches!(self, Self::Memory | Self::Leaderless | Self::Forked)
    }
}

/// Bytes that workers allocate.
pub(crate) const ALLOCATION: usize = 512 << 20;

/// Does the work until standard input ends.
pub(crate) fn serve(name: &str) -> ExitCode {
    let work = Work::ALL.into_iter().find(|work| work.name() == name);
    match work.ok_or_else(|| format!("no such work: {name}")).and_then(act) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            say(&format!("failed: {why}"));
            ExitCode::FAILURE
        }
    }
}

fn act(work: Work) -> Result<(), String> {
    let gpu = Gpu::init()?;
    gpu.context()?;
    if work.allocates() {
        gpu.allocate(ALLOCATION)?;
    }
    match work {
        Work::Idle | Work::Memory => {
            say("ready");
            until_end();
        }
        Work::Busy => compute(&gpu, &[0], None)?,
        Work::Bursts => compute(&gpu, &[0; BURST], Some(REST))?,
        Work::Streams => {
            let streams: Result<Vec<usize>, String> = (0..STREAMS).map(|_| gpu.stream()).collect();
            compute(&gpu, &streams?, None)?;
        }
        Work::Leaderless => lose_leader(),
        Work::Forked => fork()?,
    }
    Ok(())
}

/// Launches a kernel on each of these streams, waits for all, and again.
fn compute(gpu: &Gpu, streams: &[usize], rest: Option<Duration>) -> Result<(), String> {
    static END: AtomicBool = AtomicBool::new(false);
    let kernel = gpu.kernel()?;
    let nanoseconds = u64::try_from(KERNEL.as_nanos()).map_err(|error| error.to_string())?;
    thread::spawn(|| {
        until_end();
        END.store(true, Relaxed);
    });
    let mut ready = false;
    while !END.load(Relaxed) {
        streams.iter().try_for_each(|stream| kernel.launch(*stream, nanoseconds))?;
        gpu.wait()?;
        if !ready {
            say("ready");
            ready = true;
        }
        if let Some(rest) = rest {
            thread::park_timeout(rest);
        }
    }
    Ok(())
}

/// Ends the first thread alone, after another was started that keeps the process.
fn lose_leader() {
    thread::spawn(|| {
        say("ready");
        until_end();
        // SAFETY: ends this process at once; no exit handler of the driver runs without its first thread.
        unsafe { libc::_exit(0) };
    });
    // SAFETY: SYS_exit ends the calling thread; its stack is never returned to, and nothing borrowed from it is in use.
    unsafe { libc::syscall(libc::SYS_exit, 0) };
}

/// Forks a child that only waits for the end of standard input; the parent does the same.
fn fork() -> Result<(), String> {
    // SAFETY: the child reads and exits, which is all that is allowed after a fork of a process with threads.
    match unsafe { libc::fork() } {
        -1 => Err("fork failed".to_owned()),
        0 => {
            let mut byte = 0u8;
            // SAFETY: one byte of our own; descriptor 0 is the pipe from the parent of both.
            while unsafe { libc::read(0, (&raw mut byte).cast(), 1) } > 0 {}
            // SAFETY: ends the child at once.
            unsafe { libc::_exit(0) }
        }
        child => {
            say(&format!("ready {child}"));
            until_end();
            Ok(())
        }
    }
}

fn until_end() {
    let _ = stdin().lock().read_to_end(&mut Vec::new());
}

fn say(line: &str) {
    let mut out = stdout().lock();
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}
