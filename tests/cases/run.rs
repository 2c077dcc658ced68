//! Tests `bailiff run`: a limit that all descendants of a command share, its own GPUs, and a stop when the command
//! is idle or exceeds its time. All resources are released, however the command ends.
#![expect(clippy::disallowed_methods, clippy::unwrap_used, reason = "a test runs programs and fails loudly")]

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Output, Stdio};

use end_to_end::cuda::{self, Machine};
use end_to_end::fake::Scenario;
use end_to_end::holder;
use end_to_end::leases::{Directory, code, states, stdout_of};
use end_to_end::programs;
use end_to_end::tenant::start;
use end_to_end::wait::until;
use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, kill_process, prlimit};

/// Returns `bailiff run` with a fake driver, without NVIDIA libraries, and with quotas in a directory of this test.
fn bailiff(machine: &Machine, args: &[&str]) -> Command {
    let mut command = machine.bare(programs::bailiff());
    for other in ["LEASE_REDIS_URL", "LEASE_DIR", "BAILIFF_QUOTA_LIBRARY", "LD_PRELOAD"] {
        command.env_remove(other);
    }
    command.env("BAILIFF_QUOTA_DIR", quotas(machine)).stdin(Stdio::null());
    command.arg("run").args(args);
    command
}

fn quotas(machine: &Machine) -> PathBuf {
    machine.path("quotas")
}

fn files(machine: &Machine) -> Vec<PathBuf> {
    let files = fs::read_dir(quotas(machine)).into_iter().flatten();
    files.map(|file| file.unwrap().path()).collect()
}

fn run(machine: &Machine, args: &[&str]) -> Output {
    bailiff(machine, args).output().unwrap()
}

fn err(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// A running command that has printed a line. It is killed with its test.
struct Running {
    child: Child,
    lines: BufReader<ChildStdout>,
}

impl Running {
    fn start(mut command: Command) -> Self {
        let mut child =
            command.stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0).spawn().unwrap();
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

    fn children(&self) -> Vec<u32> {
        holder::children(self.child.id())
    }

    /// Returns the standard error of the command, once it has exited.
    fn stderr_text(&mut self) -> String {
        let mut text = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut text).unwrap();
        text
    }

    fn ends_with(&mut self, expected: i32) {
        let status = until("the command's exit", || self.child.try_wait().unwrap());
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
    until("the end of the process", || start(pid).is_none().then_some(()));
}

fn kill(pid: u32) {
    kill_process(Pid::from_raw(i32::try_from(pid).unwrap()).unwrap(), Signal::KILL).unwrap();
}

/// The longest duration that can be specified.
const FOREVER: &str = "18446744073709551615s";

#[test]
fn command_runs_unchanged() {
    let machine = Machine::new();
    for (args, expected) in [
        (&["true"][..], 0),
        (&["--", "sh", "-c", "exit 7"], 7),
        (&["--", "sh", "-c", "kill -9 $$"], 137),
        (&["nosuch-program"], 127),
        (&["/etc/passwd"], 126),
        (&["--vram", "0B", "true"], 64),
        (&["--idle-timeout", "1ns", "true"], 64),
        (&["--idle-timeout", "0s", "true"], 64),
        (&["--idle-timeout", FOREVER, "true"], 64),
        (&["--max-time", FOREVER, "true"], 64),
        (&["--grace", FOREVER, "true"], 64),
        (&["--min-free", "1GiB", "--wait", FOREVER, "true"], 64),
        (&["--max-time", "100years", "true"], 0),
        (&["--wait", "3s", "true"], 64),
        (&["--nonblock", "true"], 64),
        (&["--pool-dir", "/nowhere", "true"], 64),
        (&[], 64),
    ] {
        let output = run(&machine, args);
        assert_eq!(code(&output), expected, "{args:?}: {output:?}");
    }
    let script = "echo ${LD_PRELOAD-none} ${WRAPPER_SHARED-none} ${CUDA_VISIBLE_DEVICES-none} $0";
    let output = run(&machine, &["--quiet", "--", "sh", "-c", script, "--vram"]);
    assert_eq!(stdout_of(&output), "none none none --vram\n");
    assert_eq!(err(&output), "", "without options, nothing is printed");
    assert!(err(&run(&machine, &["sh", "-c", "exit 7"])).contains("the command exited with 7 after"));
}

#[test]
fn size_without_a_binary_unit_is_refused() {
    let machine = Machine::new();
    for (size, fix) in [
        ("4", "`4` has no unit: write `4MiB`, `4GiB`, or `4B` for bytes"),
        ("8GB", "`GB` is not a memory unit: did you mean GiB? write `8GiB`"),
        ("8G", "write `8GiB`"),
        ("8q", "valid units: B, KiB, MiB, GiB, TiB"),
        ("1,5GiB", "write it as `512MiB` or `8GiB`"),
        ("999999999TiB", "is too large"),
    ] {
        for flag in ["--vram", "--min-free"] {
            let output = run(&machine, &[flag, size, "true"]);
            assert_eq!(code(&output), 64, "{flag} {size}: {output:?}");
            assert!(err(&output).contains(fix), "{flag} {size}: {output:?}");
        }
    }
}

#[test]
fn limit_above_the_gpu_is_refused_with_its_size() {
    let (machine, pool) = (Machine::new(), Directory::of("0"));
    let scenario = Scenario::new("gpus: [{memory: {total: 80GiB}}, {memory: {total: 24GiB}}]\n");
    let library = programs::fake_nvml().display().to_string();
    let limited = |flags: &[&str], visible: &str| {
        let mut command = bailiff(&machine, flags);
        command.args(["--nvml-library", &library, "echo", "begun"]);
        command.env("FAKE_NVML_SCENARIO", scenario.path()).env("LEASE_DIR", pool.path());
        command.env("CUDA_VISIBLE_DEVICES", visible).env("CUDA_DEVICE_ORDER", "PCI_BUS_ID");
        command.output().unwrap()
    };
    for (flags, visible, size) in [
        (&["--vram", "400TiB"][..], "0,1", "exceeds the memory of GPU 0 (80.0 GiB)"),
        (&["--vram", "400TiB", "--quiet"], "0", "exceeds the memory of GPU 0 (80.0 GiB)"),
        (&["--vram", "40GiB"], "1", "exceeds the memory of GPU 1 (24.0 GiB)"),
        (&["--vram", "81GiB", "--gpus", "1"], "1", "exceeds the memory of GPU 0 (80.0 GiB)"),
        (&["--min-free", "81GiB"], "0", "exceeds the memory of GPU 0 (80.0 GiB)"),
    ] {
        let output = limited(flags, visible);
        assert_eq!(code(&output), 64, "{flags:?}: {output:?}");
        assert!(output.stdout.is_empty() && err(&output).contains(size), "{flags:?}: {output:?}");
        assert_eq!((files(&machine), states(&pool)), (Vec::new(), vec!["idle".to_owned()]));
    }
    for (flags, visible) in [(&["--vram", "80GiB"][..], "0,1"), (&["--vram", "40GiB", "--gpus", "1"], "1")] {
        assert_eq!(stdout_of(&limited(flags, visible)), "begun\n", "{flags:?}");
    }
    scenario.set("gpus: [{memory: {total: 80GiB}}, {faults: {lost: true}}]\n");
    assert_eq!(
        stdout_of(&limited(&["--vram", "400TiB"], "0,1")),
        "begun\n",
        "the size of one GPU is unknown"
    );
    assert_eq!(stdout_of(&run(&machine, &["--vram", "400TiB", "echo", "begun"])), "begun\n", "no driver");
}

#[test]
fn unwritable_stderr_does_not_stop_the_command() {
    let machine = Machine::new();
    for (args, expected) in
        [(&["--", "sh", "-c", "exit 3"][..], 3), (&["--max-time", "50ms", "--", "sleep", "infinity"], 124)]
    {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        for err in [Stdio::from(writer), full.into()] {
            let status = bailiff(&machine, args).stderr(err).status().unwrap();
            assert_eq!(status.code(), Some(expected), "{args:?}");
        }
    }
}

/// Starts a child that leaves a process behind, then executes the command.
const EXEC_WITH_CHILD: &str = "( sleep 0.2; echo $$; sleep infinity & echo $! ) & exec \"$0\" \"$@\"";

#[test]
fn only_descendants_of_the_command_are_ended() {
    let machine = Machine::new();
    let inner = bailiff(&machine, &["-q", "--max-time", "1s", "--grace", "0s", "--", "sleep", "infinity"]);
    let mut command = machine.bare("sh");
    command.arg("-c").arg(EXEC_WITH_CHILD).arg(inner.get_program()).args(inner.get_args());
    let mut running = Running::start(command);
    running.line();
    let stranger = running.pid();
    running.ends_with(124);
    assert!(start(stranger).is_some());
    kill(stranger);
}

#[test]
fn exit_is_seen_with_sigchld_ignored() {
    let machine = Machine::new();
    let inner = bailiff(&machine, &["-q", "--", "sh", "-c", "exit 5"]);
    let ignores = "import os, signal, sys; signal.signal(signal.SIGCHLD, signal.SIG_IGN); os.execv(sys.argv[1], sys.argv[1:])";
    let mut command = machine.bare(programs::python());
    command.args(["-c", ignores]).arg(inner.get_program()).args(inner.get_args());
    Running::start(command).ends_with(5);
}

#[test]
fn signals_are_forwarded() {
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

#[test]
fn waiter_under_nohup_survives_the_terminal() {
    let (machine, pool) = (Machine::new(), Directory::of("0"));
    let nohup = |args: &[&str]| {
        let inner = bailiff(&machine, args);
        let mut command = machine.bare("nohup");
        command.env_remove("LEASE_REDIS_URL");
        command.arg(inner.get_program()).args(inner.get_args()).env("LEASE_DIR", pool.path());
        Running::start(command)
    };
    let mut first = nohup(&["--gpus", "1", "--", "sh", "-c", "echo begun; exec sleep infinity"]);
    assert_eq!(first.line(), "begun");
    let mut second = nohup(&["--gpus", "1", "echo", "begun"]);
    let waits = || fs::read_dir(pool.path().join("queue")).unwrap().count() == 1;
    until("the second to wait", || waits().then_some(()));
    first.signal(Signal::HUP);
    second.signal(Signal::HUP);
    first.signal(Signal::TERM);
    first.ends_with(143);
    assert_eq!(second.line(), "begun");
    second.ends_with(0);
}

/// Starts three processes: one uses the whole limit, one is refused, and one gets the memory once the first has
/// exited.
const THREE: &str = r#"cd $0; mkfifo in; stat -c %a $WRAPPER_SHARED ${WRAPPER_SHARED%/*}
$1 proc "init 0" "alloc 8192" wait <in >out & exec 9>in
until grep -q waiting out; do sleep 0.01; done
$1 proc "init 0" "alloc 1"
exec 9>&-; wait
$1 proc "init 0" "alloc 8192""#;

#[test]
fn descendants_share_the_limit_of_the_command() {
    let machine = Machine::new();
    let client = cuda::client("proc");
    let work = machine.path("work");
    fs::create_dir(&work).unwrap();
    let mut command = bailiff(&machine, &["--vram", "8KiB", "--", "sh", "-c", THREE]);
    // The shared quota takes precedence over the limit on one GPU and over the switch that disables limits.
    command.env("WRAPPER_MAX_MEMORY_0", "1").env("WRAPPER_DISABLE", "1");
    let output = command.arg(work).arg(client).output().unwrap();
    assert_eq!(stdout_of(&output), "600\n700\n0\n2\n0\n0\n", "{output:?}");
    let peak = "peak under the quota: 8.0 KiB of 8.0 KiB on 00000000-0000-4000-8000-000000000001, 1 request";
    assert!(err(&output).contains(peak), "{output:?}");
}

#[test]
fn existing_preload_is_kept() {
    let machine = Machine::new();
    let script = "echo $LD_PRELOAD; echo $WRAPPER_MAX_MEMORY $WRAPPER_FAIL_CLOSED";
    let mut command = bailiff(&machine, &["--vram", "1.5GiB", "--", "sh", "-c", script]);
    let output = command.env("LD_PRELOAD", "libm.so.6").output().unwrap();
    assert!(stdout_of(&output).ends_with("/libbailiff_quota.so:libm.so.6\n1610612736 1\n"), "{output:?}");
}

#[test]
fn missing_parts_are_reported_before_the_start() {
    let machine = Machine::new();
    let ran = machine.path("ran");
    let ran = ran.to_str().unwrap();
    fs::write(machine.path("file"), "").unwrap();
    let file = machine.path("file").display().to_string();
    let blank = machine.path("a blank.so");
    fs::copy(cuda::library(), &blank).unwrap();
    for (args, expected, message) in [
        (&["--vram", "1GiB", "--quota-library", "/nowhere/a.so"][..], 69, "/nowhere/a.so"),
        (&["--vram", "1GiB", "--quota-library", blank.to_str().unwrap()], 69, "whitespace"),
        (&["--vram", "1GiB", "--quota-dir", &file], 69, "BAILIFF_QUOTA_DIR"),
        (&["--vram", "1GiB", "--quota-dir", "/proc/nowhere"], 69, "/proc/nowhere"),
        (&["--idle-timeout", "1h", "--nvml-library", "/nowhere/nvml.so"], 69, "/nowhere/nvml.so"),
    ] {
        let output = run(&machine, &[args, &["touch", ran]].concat());
        assert_eq!(code(&output), expected, "{args:?}: {output:?}");
        assert!(err(&output).contains(message), "{args:?}: {output:?}");
        assert!(!Path::new(ran).exists(), "{args:?}");
    }
    let nested =
        bailiff(&machine, &["--vram", "1GiB", "touch", ran]).env("WRAPPER_SHARED", "/a").output().unwrap();
    assert_eq!(code(&nested), 64, "{nested:?}");
    assert!(!Path::new(ran).exists());
}

#[test]
fn quota_directory_writable_by_others_is_refused() {
    let machine = Machine::new();
    fs::create_dir(quotas(&machine)).unwrap();
    fs::set_permissions(quotas(&machine), fs::Permissions::from_mode(0o777)).unwrap();
    assert_eq!(code(&run(&machine, &["--vram", "1GiB", "true"])), 69);
    fs::remove_dir(quotas(&machine)).unwrap();
    symlink(machine.path(""), quotas(&machine)).unwrap();
    assert_eq!(code(&run(&machine, &["--vram", "1GiB", "true"])), 69);
}

/// Prepares `/run` in its own mount namespace: another user has created the directory with this user's uid. Then runs
/// a command with a quota twice as this user.
const SQUATTED: &str = r#"
mount -t tmpfs -o mode=755 none /run
install -d -m 755 /run/bailiff
install -d -m 1777 /run/bailiff/quota
setpriv --reuid 4002 --regid 4002 --clear-groups mkdir -m 777 /run/bailiff/quota/4003
: > /run/bailiff/quota/0
mkdir /run/bailiff/quota/4004
mount -t tmpfs -o uid=4004,gid=4004,mode=700 none /run/bailiff/quota/4004
"$0" run --vram 1GiB sh -c 'dirname "$WRAPPER_SHARED"'
for turn in 1 2; do
    setpriv --reuid 4003 --regid 4003 --clear-groups "$0" run --vram 1GiB \
        sh -c 'dirname "$WRAPPER_SHARED"; stat -c %u:%a "$(dirname "$WRAPPER_SHARED")" "$WRAPPER_SHARED"'
done
ls -A /run/bailiff/quota/4003
setpriv --reuid 4004 --regid 4004 --clear-groups "$0" run --vram 1GiB sh -c 'dirname "$WRAPPER_SHARED"'
"#;

#[test]
fn quota_directory_of_another_user_is_neither_used_nor_in_the_way() {
    let machine = Machine::new();
    fs::set_permissions(machine.path(""), fs::Permissions::from_mode(0o755)).unwrap();
    let mut command = machine.bare("unshare");
    command.args(["-m", "sh", "-ec", SQUATTED]).arg(programs::bailiff());
    for other in ["BAILIFF_QUOTA_DIR", "BAILIFF_QUOTA_LIBRARY", "LD_PRELOAD", "XDG_RUNTIME_DIR"] {
        command.env_remove(other);
    }
    let output = command.output().unwrap();
    assert_eq!(code(&output), 0, "{output:?}");
    let text = stdout_of(&output);
    let lines: Vec<&str> = text.lines().collect();
    let [roots, directory, owners @ .., again, _, _, over_mount] = lines.as_slice() else {
        unreachable!("{output:?}")
    };
    // Users can create links to files of root.
    assert!(roots.starts_with("/run/bailiff/quota/0-"), "{output:?}");
    assert!(directory.starts_with("/run/bailiff/quota/4003-"), "{output:?}");
    assert_eq!(owners, ["4003:700", "4003:600"]);
    assert_eq!(directory, again, "the directory is used again");
    // With `fusermount3`, a user can mount a file system that reports any owner.
    assert!(over_mount.starts_with("/run/bailiff/quota/4004-"), "{output:?}");
}

#[test]
fn quota_file_is_removed_after_the_last_descendant() {
    let machine = Machine::new();
    let script = "sleep infinity & echo $!; [ -e $WRAPPER_SHARED ]";
    let mut running =
        Running::start(bailiff(&machine, &["--quiet", "--vram", "1GiB", "--", "sh", "-c", script]));
    let left = running.pid();
    // The number of children is the only sign that the command has exited while a descendant remains.
    until("the end of the command", || (start(left).is_some() && running.children() == [left]).then_some(()));
    assert_eq!(files(&machine).len(), 1);
    kill(left);
    running.ends_with(0);
    assert_eq!(files(&machine), Vec::<PathBuf>::new());
    for args in [&["--vram", "1GiB", "false"][..], &["--vram", "1GiB", "nosuch-program"]] {
        assert_ne!(code(&run(&machine, args)), 0);
        assert_eq!(files(&machine), Vec::<PathBuf>::new(), "{args:?}");
    }
}

/// Kills the remaining descendant, and asserts that the next run removes the quota file.
fn assert_next_run_removes_the_file_of(left: u32, machine: &Machine) {
    kill(left);
    gone(left);
    stdout_of(&run(machine, &["--vram", "1GiB", "true"]));
    assert_eq!(files(machine), Vec::<PathBuf>::new());
}

#[test]
fn terminated_run_leaves_the_quota_file_to_descendants() {
    let machine = Machine::new();
    let script = "sleep infinity & echo $!";
    let mut running =
        Running::start(bailiff(&machine, &["--quiet", "--vram", "1GiB", "--", "sh", "-c", script]));
    let left = running.pid();
    until("the end of the command", || (running.children() == [left]).then_some(()));
    running.signal(Signal::TERM);
    running.ends_with(143);
    assert!(start(left).is_some());
    assert_eq!(files(&machine).len(), 1);
    assert_next_run_removes_the_file_of(left, &machine);
}

#[test]
fn quota_file_of_a_killed_run_is_removed_once_unused() {
    let machine = Machine::new();
    let mut running = Running::start(bailiff(
        &machine,
        &["--vram", "1GiB", "--", "sh", "-c", "echo $$; exec sleep infinity"],
    ));
    let left = running.pid();
    running.signal(Signal::KILL);
    running.child.wait().unwrap();
    assert_eq!(files(&machine).len(), 1);
    stdout_of(&run(&machine, &["--vram", "1GiB", "true"]));
    assert_eq!(files(&machine).len(), 1, "the command continues with the same limit");
    assert_next_run_removes_the_file_of(left, &machine);
}

/// Overwrites the program's whole environment, as `setproctitle` does.
const TITLED: &str = r"import ctypes, time
begin, end = (int(field) for field in open('/proc/self/stat').read().rsplit(')', 1)[1].split()[47:49])
ctypes.memset(begin, 0, end - begin)
print(__import__('os').getpid(), flush=True)
time.sleep(1e6)";

#[test]
fn process_with_a_changed_title_keeps_the_quota_file() {
    let machine = Machine::new();
    let python = programs::python().display().to_string();
    let mut running = Running::start(bailiff(&machine, &["--vram", "1GiB", "--", &python, "-c", TITLED]));
    let left = running.pid();
    running.signal(Signal::KILL);
    running.child.wait().unwrap();
    stdout_of(&run(&machine, &["--vram", "1GiB", "true"]));
    assert_eq!(files(&machine).len(), 1);
    assert_next_run_removes_the_file_of(left, &machine);
}

/// The first thread exits, and another thread continues.
const HEADLESS: &str = r"import ctypes, os, threading
threading.Thread(target=threading.Event().wait).start()
print(os.getpid(), flush=True)
ctypes.CDLL(None).pthread_exit(None)";

#[test]
fn exited_leader_with_threads_keeps_the_quota_file() {
    let machine = Machine::new();
    let python = programs::python().display().to_string();
    let mut running = Running::start(bailiff(&machine, &["--vram", "1GiB", "--", &python, "-c", HEADLESS]));
    let left = running.pid();
    until("the first thread to exit", || {
        fs::read_to_string(format!("/proc/{left}/stat")).unwrap().contains(") Z ").then_some(())
    });
    running.signal(Signal::KILL);
    running.child.wait().unwrap();
    stdout_of(&run(&machine, &["--vram", "1GiB", "true"]));
    assert_eq!(files(&machine).len(), 1);
    assert_next_run_removes_the_file_of(left, &machine);
}

#[test]
fn unreadable_proc_entries_count_as_running() {
    let (machine, pool, scenario) = (Machine::new(), Directory::of("0"), Scenario::new(&gpus("")));
    let library = programs::fake_nvml().display().to_string();
    let args = ["--gpus", "1", "--idle-timeout", "1h", "--nvml-library", &library, "--", "sh", "-c"];
    let script = "sleep infinity & echo $!; echo $$; exec sleep infinity";
    let mut command = bailiff(&machine, &[&args[..], &[script]].concat());
    command.env("FAKE_NVML_SCENARIO", scenario.path()).env("LEASE_DIR", pool.path());
    let mut running = Running::start(command);
    let (left, first) = (running.pid(), running.pid());
    let us = Some(Pid::from_child(&running.child));
    let limit = |current| Rlimit { current, ..getrlimit(Resource::Nofile) };
    let before = prlimit(us, Resource::Nofile, limit(Some(3))).unwrap();
    kill(first);
    gone(first);
    for _ in 0..20 {
        assert_eq!(states(&pool), ["leased"], "a descendant is still running");
    }
    prlimit(us, Resource::Nofile, before).unwrap();
    kill(left);
    running.ends_with(137);
    assert_eq!(states(&pool), ["idle"]);
}

#[test]
fn run_terminated_before_its_start_leaves_no_file() {
    let machine = Machine::new();
    let scenario = Scenario::new(&format!("faults: {{hang: true}}\n{}", gpus("")));
    let library = programs::fake_nvml().display().to_string();
    let args = ["--vram", "1GiB", "--idle-timeout", "1h", "--nvml-library", &library, "sleep", "infinity"];
    let mut command = bailiff(&machine, &args);
    command.env("FAKE_NVML_SCENARIO", scenario.path());
    let mut running = Running::start(command);
    until("the helper that asks the driver", || (!running.children().is_empty()).then_some(()));
    running.signal(Signal::TERM);
    until("the command's exit", || running.child.try_wait().unwrap());
    assert_eq!(files(&machine), Vec::<PathBuf>::new());
}

#[test]
fn gpus_are_leased_and_released() {
    let (machine, pool) = (Machine::new(), Directory::of("0,1"));
    let leased = |args: &[&str]| bailiff(&machine, args).env("LEASE_DIR", pool.path()).output().unwrap();
    let echo = ["--", "sh", "-c", "echo $CUDA_VISIBLE_DEVICES ${LD_PRELOAD:+limited}"];
    let output = leased(&[&["--gpus", "2", "--vram", "1GiB"][..], &echo].concat());
    assert_eq!(stdout_of(&output), "0,1 limited\n");
    assert!(err(&output).contains("2 GPUs held"), "{output:?}");
    assert_eq!(stdout_of(&leased(&[&["--gpu", "1"][..], &echo].concat())), "1\n");
    assert_eq!(
        stdout_of(&leased(&["--gpu", "1", "echo", "-p", "0:{index}"])),
        "-p 0:0\n",
        "the command sees only its own GPU"
    );
    assert_eq!(stdout_of(&leased(&["--gpus", "2", "echo", "{index}"])), "0,1\n");
    assert_eq!(
        stdout_of(&leased(&["echo", "{index}"])),
        "{index}\n",
        "without own GPUs, the placeholder is not replaced"
    );
    for (args, expected) in [
        (&["--gpus", "1", "nosuch-program"][..], 127),
        (&["--gpus", "3", "true"], 64),
        (&["--gpus", "1", "--max-time", "50ms", "sleep", "infinity"], 124),
    ] {
        assert_eq!(code(&leased(args)), expected, "{args:?}");
        assert_eq!(states(&pool), ["idle"; 2], "{args:?}");
    }
    let mut held =
        bailiff(&machine, &["--gpus", "2", "--vram", "1GiB", "--", "sh", "-c", "echo; exec sleep infinity"]);
    held.env("LEASE_DIR", pool.path());
    let mut held = Running::start(held);
    held.line();
    assert_eq!(states(&pool), ["leased"; 2]);
    let late = leased(&["--gpus", "1", "--vram", "1GiB", "--wait", "50ms", "true"]);
    assert_eq!(code(&late), 124);
    assert_eq!(code(&leased(&["--gpus", "1", "--nonblock", "true"])), 75);
    assert_eq!(files(&machine).len(), 1, "a waiter that gives up leaves no quota file");
    held.signal(Signal::TERM);
    held.ends_with(143);
    assert_eq!(states(&pool), ["idle"; 2]);
}

/// Two processes that ignore all signals except SIGKILL, and that print their pids.
const DEAF: &str = "trap '' TERM QUIT; sleep infinity & echo $!; echo $$; while :; do wait; done";

#[test]
fn time_limit_ends_all_processes() {
    let machine = Machine::new();
    let args = ["--vram", "1GiB", "--max-time", "300ms", "--grace", "100ms", "--", "sh", "-c", DEAF];
    let mut running = Running::start(bailiff(&machine, &args));
    let pids = [running.pid(), running.pid()];
    running.ends_with(124);
    assert!(pids.iter().all(|pid| start(*pid).is_none()));
    assert_eq!(files(&machine), Vec::<PathBuf>::new());
}

#[test]
fn command_that_exits_first_is_not_timed_out() {
    let machine = Machine::new();
    let script = "sleep infinity & echo $!; exit 3";
    let args = ["--max-time", "500ms", "--grace", "0s", "--", "sh", "-c", script];
    let mut running = Running::start(bailiff(&machine, &args));
    let left = running.pid();
    until("the end of the command", || (running.children().contains(&left)).then_some(()));
    running.signal(Signal::USR1);
    running.ends_with(3);
    assert!(start(left).is_none());
    let printed = running.stderr_text();
    assert!(
        printed.contains("the command exited with 3")
            && printed.contains("its remaining processes were stopped"),
        "{printed}"
    );
}

const GPUS: [&str; 2] =
    ["GPU-a5b02c30-9c95-cb81-e41e-ca204d57aa3b", "GPU-b805d632-775b-c673-fe68-26b26996cd09"];

/// Returns two GPUs, the first of which has these processes.
fn gpus(processes: &str) -> String {
    let [first, second] = GPUS;
    format!(
        "sampling_period: 20ms\ngpus:\n  - {{uuid: {first}, processes: [{processes}]}}\n  - {{uuid: {second}}}\n"
    )
}

/// Starts a command with an idle timeout, with the fake driver.
fn running(machine: &Machine, scenario: &Scenario) -> Running {
    let library = programs::fake_nvml().display().to_string();
    let args = ["--idle-timeout", "600ms", "--grace", "100ms", "--nvml-library", &library];
    let mut command = bailiff(machine, &[&args[..], &["--", "sh", "-c", DEAF]].concat());
    command.env("FAKE_NVML_SCENARIO", scenario.path()).env("CUDA_VISIBLE_DEVICES", GPUS[0]);
    Running::start(command)
}

/// Waits for the time that it takes to detect that a command is idle.
fn until_idle_command_is_ended(machine: &Machine) {
    running(machine, &Scenario::new(&gpus(""))).ends_with(124);
}

#[test]
fn idle_gpus_end_all_processes() {
    let (machine, scenario) = (Machine::new(), Scenario::new(&gpus("{pid: 1, sm: 70}")));
    let mut running = running(&machine, &scenario);
    let pids = [running.pid(), running.pid()];
    let holds = |usage: u32| gpus(&format!("{{pid: {}, sm: {usage}, used: 3GiB}}", pids[0]));
    scenario.set(&holds(70));
    until_idle_command_is_ended(&machine);
    assert!(pids.iter().all(|pid| start(*pid).is_some()), "the command is busy");
    scenario.set(&holds(0));
    running.ends_with(124);
    assert!(pids.iter().all(|pid| start(*pid).is_none()));
    let printed = running.stderr_text();
    assert!(printed.contains("its GPUs were idle"), "{printed}");
    assert!(printed.contains("GPU-seconds busy"), "{printed}");
    assert!(printed.contains(&format!("peak memory: 3.0 GiB on {}", GPUS[0])), "{printed}");
}

#[test]
fn unknown_use_is_not_idle() {
    let broken = "faults: {errors: {\"*\": unknown}}\n";
    let (machine, scenario) = (Machine::new(), Scenario::new(&(broken.to_owned() + &gpus(""))));
    let mut running = running(&machine, &scenario);
    let pids = [running.pid(), running.pid()];
    until_idle_command_is_ended(&machine);
    assert!(pids.iter().all(|pid| start(*pid).is_some()));
    scenario.set(&gpus(""));
    running.ends_with(124);
    let printed = running.stderr_text();
    assert!(printed.contains("the driver does not respond"), "{printed}");
}

#[test]
fn command_starts_once_enough_memory_is_free() {
    let (machine, pool) = (Machine::new(), Directory::of("0"));
    let library = programs::fake_nvml().display().to_string();
    let scenario = Scenario::new(&gpus("{pid: 1, used: 3GiB}"));
    let command = |args: &[&str]| {
        let mut command =
            bailiff(&machine, &["--gpus", "1", "--min-free", "138GiB", "--nvml-library", &library]);
        command.args(args).args(["sh", "-c", "echo begun"]);
        command.env("FAKE_NVML_SCENARIO", scenario.path()).env("LEASE_DIR", pool.path());
        command
    };
    for (args, expected) in [(&["--nonblock"][..], 75), (&["--wait", "50ms"], 124)] {
        let output = command(args).output().unwrap();
        assert_eq!(code(&output), expected, "{output:?}");
        assert!(output.stdout.is_empty() && err(&output).contains(GPUS[0]), "{output:?}");
        assert_eq!(states(&pool), ["idle"]);
    }
    let mut waiting = Running::start(command(&["--quiet"]));
    until("the lease", || (states(&pool) == ["leased"]).then_some(()));
    assert_eq!(waiting.children().len(), 1, "only the helper process");
    scenario.set(&gpus(""));
    assert_eq!(waiting.line(), "begun");
    waiting.ends_with(0);
    let mut waiting = Running::start({
        scenario.set(&gpus("{pid: 1, used: 3GiB}"));
        command(&[])
    });
    until("the lease", || (states(&pool) == ["leased"]).then_some(()));
    waiting.signal(Signal::TERM);
    waiting.ends_with(143);
    assert_eq!(states(&pool), ["idle"]);
}
