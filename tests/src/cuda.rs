//! Programs on a fake CUDA driver, with or without the quota library: compiled from C, run, and compared with what the
//! driver has actually allocated.

use std::collections::hash_map::DefaultHasher;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::hash::{Hash, Hasher};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use tempfile::TempDir;

use crate::programs;

/// A machine with a driver that records the actual allocations.
pub struct Machine {
    directory: TempDir,
}

/// Returns the UUID of the fake driver's GPU with this number, by which processes share a quota.
pub fn uuid(gpu: u8) -> [u8; 16] {
    let mut uuid = *b"\0\0\0\0\0\0\x40\0\x80\0\0\0\0\0\0\0";
    uuid[15] = gpu + 1;
    uuid
}

/// Number of GPUs in the record, whose layout is described in `tests/fakes/cuda/src/truth.rs`.
const GPUS: usize = 8;
const PROCESSES: usize = 4096;

impl Machine {
    /// Returns a machine without allocations.
    ///
    /// # Panics
    /// If a file cannot be written or the driver is not built.
    pub fn new() -> Self {
        let machine = Self { directory: tempfile::tempdir().expect("a temporary directory") };
        fs::write(machine.path("truth"), "").expect("the record is writable");
        for name in ["libcuda.so.1", "libcuda.so"] {
            symlink(programs::built("libfake_cuda.so"), machine.path(name)).expect("a link can be made");
        }
        machine
    }

    /// Returns the path of a file in the machine's directory.
    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Creates a shared quota with this limit on the first GPU.
    ///
    /// # Panics
    /// If the quota cannot be created.
    pub fn quota(&self, limit: u64) -> PathBuf {
        let path = self.path("quota");
        bailiff_ledger::create(&path, &[(uuid(0), limit)]).expect("a quota can be created");
        path
    }

    /// Returns a command that runs a program with the fake driver and without the quota library.
    pub fn bare(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        for (name, _) in std::env::vars_os() {
            let name = name.to_string_lossy();
            if name.starts_with("WRAPPER_") || name.starts_with("FAKE_CUDA_") || name.starts_with("CUDA_") {
                command.env_remove(name.as_ref());
            }
        }
        command.env("LD_LIBRARY_PATH", self.directory.path()).env("FAKE_CUDA_TRUTH", self.path("truth"));
        command
    }

    /// Returns a command that runs a program with the fake driver and the quota library.
    pub fn program(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = self.bare(program);
        command.env("LD_PRELOAD", library());
        command
    }

    /// Returns a command that runs the test program `client.c` with this interface to the driver (`dl`, `proc`,
    /// `linked`, …) and these calls.
    pub fn client(&self, interface: &str, calls: &[&str]) -> Command {
        let mut command = self.program(client(interface));
        command.arg(interface).args(calls);
        command
    }

    /// Returns the memory that all processes have currently allocated on a GPU.
    pub fn used(&self, gpu: usize) -> u64 {
        let words = self.truth();
        let row = 2 + GPUS;
        let first = 2 * GPUS + 1;
        let rows = words[first..first + row * PROCESSES].chunks(row);
        rows.filter(|row| row[0] != 0 && started(row[0]) == Some(row[1])).map(|row| row[2 + gpu]).sum()
    }

    /// Returns the peak of the allocations on a GPU.
    pub fn peak(&self, gpu: usize) -> u64 {
        self.truth()[GPUS + gpu]
    }

    fn truth(&self) -> Vec<u64> {
        let bytes = fs::read(self.path("truth")).expect("the record is readable");
        let (words, _) = bytes.as_chunks();
        words.iter().map(|word| u64::from_le_bytes(*word)).collect()
    }
}

impl Default for Machine {
    fn default() -> Self {
        Self::new()
    }
}

/// Returns the start time of a process, unless it has exited.
fn started(pid: u64) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let fields: Vec<&str> = text.rsplit_once(')')?.1.split_whitespace().collect();
    if fields[0] == "Z" { None } else { fields[19].parse().ok() }
}

/// Returns the path of the quota library.
pub fn library() -> PathBuf {
    programs::built("libbailiff_quota.so")
}

/// Returns the test program for an interface to the driver. `linked` needs a program that is linked with the driver.
pub fn client(interface: &str) -> PathBuf {
    if interface == "linked" { linked("client", &["-DLINKED"]) } else { compiled("client", &[]) }
}

/// Returns a C program that is linked with the driver.
pub fn linked(name: &str, flags: &[&str]) -> PathBuf {
    let machine = Machine::new();
    let directory = format!("-L{}", machine.directory.path().display());
    build(name, &[flags, &[&directory, "-lcuda"]].concat(), flags)
}

/// Returns a C program from `tests/fixtures/quota`, compiled once for each set of flags.
pub fn compiled(name: &str, flags: &[&str]) -> PathBuf {
    build(name, flags, flags)
}

fn build(name: &str, flags: &[&str], key: &[&str]) -> PathBuf {
    let sources = programs::root().join("tests/fixtures/quota");
    let source = sources.join(format!("{name}.c"));
    let text = |path: &Path| fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let mut hash = DefaultHasher::new();
    (text(&source), text(&sources.join("driver.h")), key).hash(&mut hash);
    let directory = programs::root().join("target/fixtures");
    let built = directory.join(format!("{name}-{:016x}", hash.finish()));
    if !built.exists() {
        fs::create_dir_all(&directory).expect("target/ can be written");
        // The program is renamed into place, because other tests may be executing it.
        let next = directory.join(format!("{name}-{}", std::process::id()));
        let mut command = Command::new("cc");
        command.args(["-O2", "-g", "-Wall", "-Werror", "-pthread", "-o"]).arg(&next).arg(&source).args(flags);
        let output = command.output().expect("a C compiler: tests/setup compiler");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        fs::rename(next, &built).expect("target/ can be written");
    }
    built
}

/// Returns the output of a client, one line per call: values, and the driver's code last.
///
/// # Panics
/// If the client fails.
pub fn answers(command: &mut Command) -> Vec<Vec<i64>> {
    let output = output(command);
    let line = |line: &str| -> Vec<i64> {
        line.split(' ')
            .filter(|word| *word != "granted")
            .map(|word| word.parse().expect("a number"))
            .collect()
    };
    String::from_utf8_lossy(&output.stdout).lines().map(line).collect()
}

/// Returns only the driver's codes.
pub fn codes(command: &mut Command) -> Vec<i64> {
    answers(command).iter().map(|answer| *answer.last().expect("a code")).collect()
}

/// Runs a program, which must succeed.
///
/// # Panics
/// If the program fails.
pub fn output(command: &mut Command) -> Output {
    let output = command.stdin(Stdio::null()).output().expect("a test program starts");
    assert!(output.status.success(), "{command:?}: {output:?}");
    output
}

/// A running program, killed with its test.
pub struct Running(pub Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Returns an allocator that `tests/setup allocators` has installed.
///
/// # Panics
/// If the allocator is not installed.
pub fn allocator(name: &str) -> OsString {
    let directory = programs::root().join("target/tools/allocators/usr/lib");
    let directories = fs::read_dir(&directory).into_iter().flatten().filter_map(Result::ok);
    let found = directories.map(|entry| entry.path().join(name)).find(|path| path.exists());
    found
        .unwrap_or_else(|| panic!("no {name} in {}: run `tests/setup allocators`", directory.display()))
        .into()
}
