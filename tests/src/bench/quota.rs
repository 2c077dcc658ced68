//! Benchmarks the quota library: the cost of a driver call with and without the library, in one run.

use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{ChildStdin, ChildStdout, Command, Stdio};

use crate::cuda::{Machine, Running, compiled};
use crate::programs;

/// The library in front of the driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Front {
    /// The driver is called directly.
    Bare,
    /// The quota applies to one process.
    Own,
    /// The quota is shared with this many other processes.
    Shared(usize),
}

/// The measured calls.
#[derive(Debug, Clone, Copy)]
pub struct Load {
    /// `plain` or `async`.
    pub kind: &'static str,
    /// Number of other live allocations.
    pub live: usize,
    /// Which allocation is freed and requested again: `last`, or `any` of all allocations, which is not in the
    /// CPU cache.
    pub which: &'static str,
}

/// The machine on which the calls are measured.
pub struct Scale {
    machine: Machine,
    library: PathBuf,
}

/// A measured process, or one of the other processes that share the quota.
struct Measured {
    _running: Running,
    stdin: ChildStdin,
    lines: BufReader<ChildStdout>,
}

impl Scale {
    /// Returns a machine with the library as it is shipped.
    ///
    /// # Panics
    /// If the library is not built.
    pub fn new() -> Self {
        let library = programs::root().join("target/quota/libbailiff_quota.so");
        assert!(library.exists(), "no library: run `cargo build --profile quota --package bailiff-quota`");
        Self { machine: Machine::new(), library }
    }

    /// Returns the nanoseconds per call. This is the minimum of several attempts, since other load can only
    /// increase it.
    pub fn weigh(&self, front: Front, load: Load) -> f64 {
        let others = if let Front::Shared(others) = front { others } else { 0 };
        let quota = self.machine.path("quota");
        let _ = std::fs::remove_file(&quota);
        bailiff_ledger::create(&quota, &[]).expect("a quota can be created");
        let _others: Vec<Measured> =
            (0..others).map(|_| self.start(front, Load { kind: "plain", live: 0, which: "last" })).collect();
        (0..5).map(|_| self.start(front, load).measure()).fold(f64::INFINITY, f64::min)
    }

    fn start(&self, front: Front, load: Load) -> Measured {
        let mut command = self.machine.bare(compiled("cost", &[]));
        // The fake driver's record of several processes costs more than a record of one process.
        command.env_remove("FAKE_CUDA_TRUTH").args(["proc", load.kind]);
        command.args([&load.live.to_string(), load.which, "1000000"]);
        if front != Front::Bare {
            command.env("LD_PRELOAD", &self.library).env("WRAPPER_MAX_MEMORY", "16GiB");
        }
        if let Front::Shared(_) = front {
            command.env("WRAPPER_SHARED", self.machine.path("quota"));
        }
        Measured::start(&mut command)
    }
}

impl Default for Scale {
    fn default() -> Self {
        Self::new()
    }
}

impl Measured {
    fn start(command: &mut Command) -> Self {
        let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut running = Running(child.expect("a test program starts"));
        let stdin = running.0.stdin.take().expect("stdin is piped");
        let lines = BufReader::new(running.0.stdout.take().expect("stdout is piped"));
        let mut measured = Self { _running: running, stdin, lines };
        assert_eq!(measured.line(), "ready\n");
        measured
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.lines.read_line(&mut line).expect("the client prints a line");
        line
    }

    fn measure(mut self) -> f64 {
        self.stdin.write_all(b"\n").expect("the client reads its input");
        self.line().trim().parse().expect("nanoseconds")
    }
}
