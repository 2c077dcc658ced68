//! `bailiff run`: a limit that all share whom a command starts, GPUs of its own, an end when it idles or its time is up; and
//! everything is given back, however it ends.
#![expect(clippy::disallowed_methods, clippy::unwrap_used, reason = "a case runs programs and fails loudly")]

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Output, Stdio};

use end_to_end::cuda::{self, Machine};
use end_to_end::fake::Scenario;
use end_to_end::leases::{Folder, code, said, states};
use end_to_end::programs;
use end_to_end::tenant::start;
use end_to_end::wait::until;
use rustix::process::{Pid, Signal, kill_process};

/// `bailiff run` on a machine with a fake driver and no driver's library of NVIDIA's, its quotas in a folder of this test's.
fn bailiff(machine: &Machine, words: &[&str]) -> Command {
    let mut command = machine.bare(programs::bailiff());
    for other in ["LEASE_REDIS_URL", "LEASE_DIR", "BAILIFF_QUOTA_LIBRARY", "LD_PRELOAD"] {
        command.env_remove(other);
    }
    command.env("BAILIFF_QUOTA_DIR", quotas(machine)).stdin(Stdio::null());
    command.arg("run").args(words);
    command
}

fn quotas(machine: &Machine) -> PathBuf {
    machine.path("quotas")
}

fn files(machine: &Machine) -> Vec<PathBuf> {
    let files = fs::read_dir(quotas(machine)).into_iter().flatten();
    files.map(|file| file.unwrap().path()).collect()
}

fn run(machine: &Machine, words: &[&str]) -> Output {
    bailiff(machine, words).output().unwrap()
}

fn err(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// A running one that has said something, killed with its test.
struct Running {
    child: Child,
    lines: BufReader<ChildStdout>,
}

impl Running {
    fn start(mut command: Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        Self { child, lines }
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.lines.read_line(&mut line).unwrap();
        line.trim().to_owned()
    }

    fn pid(&mut self) -> u32 {
        self.line().parse().unwrap()
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    fn ends_with(&mut self, expected: i32) {
        let status = until("its end", || self.child.try_wait().unwrap());
        assert_eq!(status.code(), Some(expected), "{status:?}");
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.child.try_wait().is_ok_and(|ended| ended.is_none()) {
            let _ = rustix::process::kill_process_group(Pid::from_child(&self.child), Signal::KILL);
            let _ = self.child.wait();
        }
    }
}

fn gone(pid: u32) {
    until("the end of who was started", || start(pid).is_none().then_some(()));
}

fn kill(pid: u32) {
    kill_process(Pid::from_raw(i32::try_from(pid).unwrap()).unwrap(), Signal::KILL).unwrap();
}

#[test]
fn a_command_is_run_as_it_would_be_without_us() {
    let machine = Machine::new();
    for (words, expected) in [
        (&["true"][..], 0),
        (&["--", "sh", "-c", "exit 7"], 7),
        (&["--", "sh", "-c", "kill -9 $$"], 137),
        (&["nosuch-program"], 127),
        (&["/etc/passwd"], 126),
        (&["--vram", "8q", "true"], 64),
        (&["--idle-timeout", "0s", "true"], 64),
        (&["--wait", "3s", "true"], 64),
        (&["--nonblock", "true"], 64),
        (&["--pool-dir", "/nowhere", "true"], 64),
        (&[], 64),
    ] {
        let output = run(&machine, words);
        assert_eq!(code(&output), expected, "{words:?}: {output:?}");
    }
    let told = "echo ${LD_PRELOAD-none} ${WRAPPER_SHARED-none} ${CUDA_VISIBLE_DEVICES-none} $0";
    let output = run(&machine, &["--quiet", "--", "sh", "-c", told, "--vram"]);
    assert_eq!(said(&output), "none none none --vram\n");
    assert_eq!(err(&output), "", "nothing is said where nothing is asked for");
    assert!(err(&run(&machine, &["sh", "-c", "exit 7"])).contains("the command ended with 7 after"));
}

#[test]
fn signals_are_passed_on() {
    let machine = Machine::new();
    for (name, signal) in
        [("TERM", Signal::TERM), ("INT", Signal::INT), ("HUP", Signal::HUP), ("USR1", Signal::USR1)]
    {
        let script = format!("trap 'exit 5' {name}; echo ready; while :; do sleep 0.01; done");
        let mut running = Running::start(bailiff(&machine, &["--", "sh", "-c", &script]));
        assert_eq!(running.line(), "ready");
        running.signal(signal);
        running.ends_with(5);
    }
}

/// One that has all, one that is refused, and one that is given the same once the first has ended.
const THREE: &str = r#"cd $0; mkfifo in; stat -c %a $WRAPPER_SHARED .
$1 proc "init 0" "alloc 8192" wait <in >out & exec 9>in
until grep -q waiting out; do sleep 0.01; done
$1 proc "init 0" "alloc 1"
exec 9>&-; wait
$1 proc "init 0" "alloc 8192""#;

#[test]
fn all_that_a_command_starts_share_its_limit() {
    let machine = Machine::new();
    let client = cuda::client("proc");
    fs::create_dir(quotas(&machine)).unwrap();
    let mut command = bailiff(&machine, &["--vram", "8KiB", "--", "sh", "-c", THREE]);
    // Stronger than a limit for all, and than any.
    command.env("WRAPPER_MAX_MEMORY_0", "1").env("WRAPPER_DISABLE", "1");
    let output = command.arg(quotas(&machine)).arg(client).output().unwrap();
    assert_eq!(said(&output), "600\n755\n0\n2\n0\n0\n", "{output:?}");
    let peak = "peak under the quota: 8.0 KiB of 8.0 KiB on GPU-00000000-0000-4000-8000-000000000001, 1 request";
    assert!(err(&output).contains(peak), "{output:?}");
}
