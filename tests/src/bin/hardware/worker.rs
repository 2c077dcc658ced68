//! A worker: a child of this program that does one kind of CUDA work until its standard input is closed, so that it
//! exits with its parent. It prints `ready` and the pid of a forked child once its work has started, or `failed: WHY`.
#![allow(unsafe_code, reason = "fork, and the exit of one thread, have no safe form")]

use std::io::{Read, Write, stdin, stdout};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use crate::cuda::Gpu;

/// Duration of a kernel, short enough to share the GPU.
const KERNEL: Duration = Duration::from_millis(5);
/// Pause of a worker that computes in bursts. With [`BURST`] kernels in a row, the worker is busy about a tenth of the
/// time.
const REST: Duration = Duration::from_millis(180);
const BURST: usize = 4;
const STREAMS: usize = 16;
/// Age of a worker that writes outside of memory, when it does.
const SETTLED: Duration = Duration::from_secs(3);

/// An address at which no memory of the GPU is mapped.
const UNMAPPED: u64 = 16;

/// The kind of work: `idle`, `memory` and so on, as in [`run`]. Kinds that use MPS start with `mps`.
pub(crate) type Work = &'static str;

/// Bytes that workers allocate.
pub(crate) const ALLOCATION: u64 = 512 << 20;
/// Bytes of one copy.
const COPY: usize = 256 << 20;

/// The kind of work that is done as another user.
pub(crate) const OTHER_USER: Work = "other-user";

/// Does the work under this process name until standard input is closed.
pub(crate) fn serve(work: &str, comm: &str) -> ExitCode {
    let named = std::fs::write("/proc/self/comm", comm).map_err(|error| format!("/proc/self/comm: {error}"));
    match named.and_then(|()| run(work)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            print_line(&format!("failed: {why}"));
            ExitCode::FAILURE
        }
    }
}

fn run(work: &str) -> Result<(), String> {
    let gpu = Gpu::open()?;
    if matches!(work, "memory" | "leaderless" | "forked" | "terminated" | "killed") {
        gpu.allocate(ALLOCATION)?;
    }
    match work {
        "busy" | "mps-busy" | "killed" | OTHER_USER => compute(&gpu, &[0], None),
        "copies" => copy_on_gpu(&gpu),
        "host-copies" => copy_from_host(&gpu),
        "bursts" => compute(&gpu, &[0; BURST], Some(REST)),
        "streams" => {
            let streams: Result<Vec<usize>, String> = (0..STREAMS).map(|_| gpu.stream()).collect();
            compute(&gpu, &streams?, None)
        }
        "fault" => {
            // The kernel log is attributed only to processes that an earlier sample contains.
            thread::park_timeout(SETTLED);
            // The error of the wait is the expected one.
            let _ = gpu.launch(&gpu.kernel(c"fault")?, 0, UNMAPPED).and_then(|()| gpu.wait());
            print_line("ready");
            until_end();
            Ok(())
        }
        "leaderless" => exit_leader(),
        "forked" => fork(),
        "idle" | "mps-idle" | "memory" | "terminated" => {
            print_line("ready");
            until_end();
            Ok(())
        }
        _ => Err("unknown work".to_owned()),
    }
}

/// Launches a kernel on each of these streams, waits for all of them, and repeats.
fn compute(gpu: &Gpu, streams: &[usize], rest: Option<Duration>) -> Result<(), String> {
    let kernel = gpu.kernel(c"spin")?;
    let nanoseconds = u64::try_from(KERNEL.as_nanos()).map_err(|error| error.to_string())?;
    repeat(|| {
        streams.iter().try_for_each(|stream| gpu.launch(&kernel, *stream, nanoseconds))?;
        gpu.wait()?;
        if let Some(rest) = rest {
            thread::park_timeout(rest);
        }
        Ok(())
    })
}

fn copy_on_gpu(gpu: &Gpu) -> Result<(), String> {
    let (to, from) = (gpu.allocate(COPY as u64)?, gpu.allocate(COPY as u64)?);
    repeat(|| gpu.copy(to, from, COPY).and_then(|()| gpu.wait()))
}

fn copy_from_host(gpu: &Gpu) -> Result<(), String> {
    let (to, from) = (gpu.allocate(COPY as u64)?, vec![1; COPY]);
    repeat(|| gpu.copy_from_host(to, &from).and_then(|()| gpu.wait()))
}

/// Repeats this work until standard input is closed.
fn repeat(mut work: impl FnMut() -> Result<(), String>) -> Result<(), String> {
    static END: AtomicBool = AtomicBool::new(false);
    thread::spawn(|| {
        until_end();
        END.store(true, Relaxed);
    });
    let mut ready = false;
    while !END.load(Relaxed) {
        work()?;
        if !ready {
            print_line("ready");
            ready = true;
        }
    }
    Ok(())
}

/// Exits the thread-group leader only, after starting another thread that keeps the process running.
fn exit_leader() -> Result<(), String> {
    thread::spawn(|| {
        print_line("ready");
        until_end();
        // SAFETY: the process exits at once, so no exit handler of the driver runs without the first thread.
        unsafe { libc::_exit(0) };
    });
    // SAFETY: SYS_exit ends the calling thread. The call does not return, and no borrow of its stack is in use.
    unsafe { libc::syscall(libc::SYS_exit, 0) };
    Err("the thread-group leader did not exit".to_owned())
}

/// Forks a child that only waits until standard input is closed. The parent does the same.
fn fork() -> Result<(), String> {
    // SAFETY: the child only reads and exits, which is permitted after a fork in a multithreaded process.
    match unsafe { libc::fork() } {
        -1 => Err("fork failed".to_owned()),
        0 => {
            let mut byte = 0u8;
            // SAFETY: the buffer is one byte on this stack, and descriptor 0 is the pipe from the program that started
            // both.
            while unsafe { libc::read(0, (&raw mut byte).cast(), 1) } > 0 {}
            // SAFETY: the child exits at once.
            unsafe { libc::_exit(0) }
        }
        child => {
            print_line(&format!("ready {child}"));
            until_end();
            Ok(())
        }
    }
}

fn until_end() {
    let _ = stdin().lock().read_to_end(&mut Vec::new());
}

fn print_line(line: &str) {
    let mut out = stdout().lock();
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}
