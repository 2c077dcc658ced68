//! Tests a quota that processes share: the limit is reached and never exceeded, even with concurrent, forked and
//! killed processes. Also tests files that are not quota files.
#![expect(clippy::disallowed_methods, clippy::unwrap_used, reason = "a test runs programs and fails loudly")]

use std::fs::{self, OpenOptions};
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::{FileExt, symlink};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bailiff_ledger::Ledger;
use end_to_end::cuda::{Machine, Running, answers, codes, compiled, output, uuid};
use end_to_end::wait::until;
use rustix::process::{Pid, Signal, kill_process};

const CHUNK: u64 = 4096;
/// A small limit, so that most requests reach it.
const LIMIT: u64 = 8 * CHUNK;

/// Returns the number of repetitions in a random test: few in the usual run, more in `make soak`.
fn times(usual: usize, variable: &str) -> usize {
    std::env::var(variable).ok().and_then(|times| times.parse().ok()).unwrap_or(usual)
}

fn ledger(path: &Path) -> Ledger {
    bailiff_ledger::read(path).unwrap()
}

/// Returns a command that runs `race.c` with this many threads. After this many rounds, all threads use up the rest of
/// the quota; 0 means endless rounds.
fn race(machine: &Machine, (threads, rounds): (u32, u32)) -> Command {
    let mut command = machine.program(compiled("race", &[]));
    command.args(["proc", &threads.to_string(), &rounds.to_string(), &CHUNK.to_string()]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    command
}

/// A running `race` program.
struct Racer {
    running: Running,
    lines: BufReader<std::process::ChildStdout>,
}

impl Racer {
    fn start(command: &mut Command) -> Self {
        let mut running = Running(command.spawn().unwrap());
        let lines = BufReader::new(running.0.stdout.take().unwrap());
        let mut racer = Self { running, lines };
        assert_eq!(racer.line(), "ready\n");
        racer
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.lines.read_line(&mut line).unwrap();
        line
    }

    /// Lets the program finish, and returns the memory that it held when all requests were refused.
    fn granted(mut self) -> u64 {
        drop(self.running.0.stdin.take());
        let line = self.line();
        let (granted, failures) = line.trim().split_once(' ').unwrap();
        assert_eq!(failures, "0", "calls failed although the quota was not full");
        granted.parse().unwrap()
    }
}

#[test]
fn threads_reach_but_never_exceed_the_limit() {
    for threads in [2, 8] {
        for _ in 0..times(50, "BAILIFF_RACES") {
            let machine = Machine::new();
            let mut racer =
                Racer::start(race(&machine, (threads, 2000)).env("WRAPPER_MAX_MEMORY", LIMIT.to_string()));
            assert_eq!(racer.line(), "full\n");
            assert_eq!(machine.used(0), LIMIT, "{threads} threads");
            assert_eq!(racer.granted(), LIMIT, "{threads} threads");
            assert_eq!(machine.peak(0), LIMIT, "{threads} threads");
        }
    }
}

#[test]
fn processes_reach_but_never_exceed_the_limit() {
    let mut reached = 0;
    for _ in 0..times(50, "BAILIFF_RACES") {
        let machine = Machine::new();
        let quota = machine.quota(LIMIT);
        let start = |_| Racer::start(race(&machine, (2, 1000)).env("WRAPPER_SHARED", &quota));
        let mut racers: Vec<Racer> = (0..6).map(start).collect();
        for racer in &mut racers {
            assert_eq!(racer.line(), "full\n");
        }
        let (used, ledger) = (machine.used(0), ledger(&quota));
        // On a busy machine, the wait for the lock may time out. The request is then refused even if memory is
        // available.
        if ledger.faults == 0 {
            assert_eq!((used, machine.peak(0), ledger.gpus[0].peak), (LIMIT, LIMIT, LIMIT), "{ledger:?}");
            reached += 1;
        }
        assert!(machine.peak(0) <= LIMIT && ledger.gpus[0].peak <= LIMIT, "{ledger:?}");
        assert_eq!(ledger.gpus[0].used, used, "{ledger:?}");
        assert_eq!(ledger.processes.len(), 6);
        assert!(ledger.gpus[0].denied >= 12, "not every request was refused: {ledger:?}");
        assert_eq!(racers.into_iter().map(Racer::granted).sum::<u64>(), used);
    }
    assert!(reached > 0, "there was a lock timeout in every run");
}

#[test]
fn killed_processes_release_all_memory_and_locks() {
    const AT_ONCE: usize = 4;
    let machine = Machine::new();
    let quota = machine.quota(LIMIT);
    let mut command = race(&machine, (2, 0));
    command.env("WRAPPER_SHARED", &quota);
    let mut seed = u64::from(std::process::id());
    let mut random = |limit: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) % limit
    };
    let mut racers: Vec<Racer> = (0..AT_ONCE).map(|_| Racer::start(&mut command)).collect();
    for _ in 0..times(60, "BAILIFF_KILLS") {
        // The time of the kill is random.
        std::thread::park_timeout(Duration::from_micros(random(20_000)));
        let at = usize::try_from(random(AT_ONCE as u64)).unwrap();
        let pid = Pid::from_child(&racers[at].running.0);
        kill_process(pid, Signal::KILL).unwrap();
        // Half of the processes are reaped at once, the others after the next process has started, because the memory
        // of a zombie must be released as well.
        let next = if random(2) == 0 { None } else { Some(Racer::start(&mut command)) };
        racers[at].running.0.wait().unwrap();
        racers[at] = next.unwrap_or_else(|| Racer::start(&mut command));
    }
    drop(racers);
    assert!(machine.peak(0) <= LIMIT, "{} of {LIMIT}", machine.peak(0));
    let fill = format!("fill {CHUNK}");
    let mut client = machine.client("dl", &["init 0", &fill, "used 0"]);
    let answers = answers(client.env("WRAPPER_SHARED", &quota));
    assert_eq!(answers[1], [8, 2], "all memory is available again");
    assert_eq!(answers[2], [i64::try_from(LIMIT).unwrap(), 0]);
}

#[test]
fn forked_children_start_with_empty_accounts() {
    const TIMES: &str = "200";
    let machine = Machine::new();
    let program = compiled("fork", &[]);
    // With a quota for each process, the parent's memory is not charged to the child.
    let result = output(
        machine.program(&program).args(["proc", TIMES, "0", "40960"]).env("WRAPPER_MAX_MEMORY", "40960"),
    );
    assert_eq!(String::from_utf8_lossy(&result.stdout), "200 0\n", "{result:?}");
    // With a shared quota, the child gets what its parent leaves. After that child has exited, the next child gets the
    // same.
    let quota = machine.quota(3 * 40960);
    let result = output(
        machine.program(&program).args(["proc", TIMES, "40960", "81920"]).env("WRAPPER_SHARED", &quota),
    );
    assert_eq!(String::from_utf8_lossy(&result.stdout), "200 0\n", "{result:?}");
    assert!(machine.peak(0) <= 3 * 40960, "{}", machine.peak(0));
    assert_eq!(ledger(&quota).faults, 0);
}

#[test]
fn program_cannot_change_a_shared_limit() {
    let machine = Machine::new();
    let quota = machine.path("quota");
    fs::write(&quota, "").unwrap();
    let mut client = machine.client("dl", &["set-limit 5000", "init 0", "alloc 1001", "alloc 1000"]);
    client.env("WRAPPER_MAX_MEMORY", "1000").env("WRAPPER_SHARED", &quota);
    assert_eq!(codes(&mut client), [0, 0, 2, 0]);
}

/// Starts a client that waits after these calls, and returns their codes.
fn waiting(command: &mut Command) -> (Running, Vec<String>) {
    let mut running = Running(command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap());
    let mut lines = BufReader::new(running.0.stdout.as_mut().unwrap()).lines().map(Result::unwrap);
    let codes = lines.by_ref().take_while(|line| line != "waiting").collect();
    (running, codes)
}

#[test]
fn process_gets_what_another_leaves() {
    let machine = Machine::new();
    let quota = machine.quota(1000);
    let (mut first, codes_of_first) = waiting(
        machine.client("dl", &["init 0", "alloc 600", "wait", "alloc 1"]).env("WRAPPER_SHARED", &quota),
    );
    assert_eq!(codes_of_first, ["0", "0"]);
    let mut second =
        machine.client("proc", &["init 0", "info", "total 0", "alloc 401", "alloc 400", "free 0"]);
    second.env("WRAPPER_SHARED", &quota);
    assert_eq!(answers(&mut second), [&[0][..], &[400, 1000, 0], &[1000, 0], &[2], &[0], &[0]]);
    let shared = ledger(&quota);
    let names: Vec<&str> = shared.processes.iter().map(|process| process.name.as_str()).collect();
    assert!(names.iter().all(|name| name.starts_with("client-")), "{names:?}");
    let counts: Vec<(u64, u64, u64)> =
        shared.processes.iter().map(|process| (process.allocations, process.frees, process.denied)).collect();
    assert_eq!(counts, [(1, 0, 0), (1, 1, 1)]);
    assert_eq!(shared.gpus[0].by_process, [600, 0]);
    assert_eq!((shared.gpus[0].denied, shared.gpus[0].denied_bytes, shared.gpus[0].peak), (1, 401, 1000));
    assert!(shared.gpus[0].last_denied > 1_700_000_000_000_000_000, "{shared:?}");
    // A lower limit applies at once, but frees nothing.
    bailiff_ledger::set_limit(&quota, uuid(0), 500).unwrap();
    assert_eq!(answers(&mut second)[1..4], [&[0, 500, 0][..], &[500, 0], &[2]]);
    drop(first.0.stdin.take());
    let mut rest = String::new();
    first.0.stdout.take().unwrap().read_to_string(&mut rest).unwrap();
    assert!(rest.ends_with("2\n"), "{rest}");
    // A higher limit also applies at once.
    bailiff_ledger::set_limit(&quota, uuid(0), 5000).unwrap();
    assert_eq!(codes(machine.client("dl", &["init 0", "alloc 5000"]).env("WRAPPER_SHARED", &quota)), [0, 0]);
}

#[test]
fn memory_of_killed_process_goes_to_running_ones() {
    let machine = Machine::new();
    let quota = machine.quota(1000);
    let calls = ["init 0", "alloc 300", "wait", "alloc 700"];
    let (mut waits, _) = waiting(machine.client("dl", &calls).env("WRAPPER_SHARED", &quota));
    let (mut dies, _) =
        waiting(machine.client("dl", &["init 0", "alloc 700", "wait"]).env("WRAPPER_SHARED", &quota));
    dies.0.kill().unwrap();
    dies.0.wait().unwrap();
    drop(waits.0.stdin.take());
    let mut rest = String::new();
    waits.0.stdout.take().unwrap().read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "0\n0\n");
}

#[test]
fn exec_releases_memory_and_reuses_the_slot() {
    let machine = Machine::new();
    let quota = machine.quota(1000);
    // The old program's memory was freed by the exec. The new program takes over the slot.
    let mut client = machine.client("dl", &["init 0", "alloc 1000", "exec"]);
    assert_eq!(codes(client.env("WRAPPER_SHARED", &quota)), [0, 0, 0, 0, 2, 0]);
    let shared = ledger(&quota);
    assert_eq!(shared.processes.len(), 1, "{shared:?}");
}

#[test]
fn unknown_gpu_gets_the_limit_of_its_first_process() {
    let machine = Machine::new();
    let quota = machine.path("quota");
    // The first process to use an empty file initializes it.
    fs::write(&quota, "").unwrap();
    let run = |limit: &str| {
        let mut client = machine.client("dl", &["init 1", "alloc 701", "alloc 700"]);
        codes(client.env("WRAPPER_SHARED", &quota).env("WRAPPER_MAX_MEMORY", limit))
    };
    assert_eq!(run("700"), [0, 2, 0]);
    assert_eq!(run("9000"), [0, 2, 0], "the limit in the file is not changed");
    let shared = ledger(&quota);
    assert_eq!((shared.gpus.len(), shared.gpus[0].uuid, shared.gpus[0].limit), (1, uuid(1), 700));
    assert_eq!(shared.faults, 0);
}

#[test]
fn file_of_an_earlier_boot_is_cleared() {
    let machine = Machine::new();
    let quota = machine.quota(1000);
    let (first, _) =
        waiting(machine.client("dl", &["init 0", "alloc 600", "wait"]).env("WRAPPER_SHARED", &quota));
    drop(first);
    let file = OpenOptions::new().write(true).open(&quota).unwrap();
    file.write_all_at(&[0xee; 16], 24).unwrap();
    // The slot seems to belong to a running process, because it contains the pid of this test.
    file.write_all_at(&std::process::id().to_le_bytes(), 128 + 64 * 16).unwrap();
    let before = ledger(&quota).generation;
    assert_eq!(codes(machine.client("dl", &["init 0", "alloc 1000"]).env("WRAPPER_SHARED", &quota)), [0, 0]);
    assert_eq!(ledger(&quota).generation, before + 1);
}

#[test]
fn uncounted_calls_are_counted_in_the_file() {
    let machine = Machine::new();
    let quota = machine.quota(1000);
    let _ = output(
        machine.client("dl", &["init 0", "alloc 1", "node 10", "ipc 0"]).env("WRAPPER_SHARED", &quota),
    );
    let shared = ledger(&quota);
    assert_eq!((shared.hooks_missing, shared.uncounted, shared.faults), (0, 2, 0));
}

/// Returns the output and the warnings of a process with an unusable quota file.
fn alone(machine: &Machine, quota: &Path, closed: bool) -> (String, String) {
    let mut client =
        machine.client("dl", &["init 0", "alloc 600", "alloc 500", "alloc 400", "free 0", "info"]);
    client.env("WRAPPER_SHARED", quota).env("WRAPPER_MAX_MEMORY", "1000");
    let result = output(client.env("WRAPPER_FAIL_CLOSED", if closed { "1" } else { "0" }));
    (String::from_utf8(result.stdout).unwrap(), String::from_utf8(result.stderr).unwrap())
}

#[test]
fn invalid_quota_file_falls_back_to_own_limit() {
    let machine = Machine::new();
    let quota = machine.quota(100);
    let good = fs::read(&quota).unwrap();
    let changed = |at: usize, byte: u8| {
        let mut bytes = good.clone();
        bytes[at] = byte;
        bytes
    };
    let write = |name: &str, bytes: &[u8]| {
        let path = machine.path(name);
        fs::write(&path, bytes).unwrap();
        path
    };
    symlink(&quota, machine.path("link")).unwrap();
    let (fifo, mode) = (rustix::fs::FileType::Fifo, rustix::fs::Mode::from_raw_mode(0o600));
    rustix::fs::mknodat(rustix::fs::CWD, machine.path("fifo"), fifo, mode, 0).unwrap();
    fs::create_dir(machine.path("directory")).unwrap();
    for (path, reason) in [
        (machine.path("none"), "no such file"),
        (machine.path("no/where"), "no such file"),
        (machine.path("link"), "it is a symbolic link"),
        (machine.path("fifo"), "it is not a regular file"),
        (machine.path("directory"), "it cannot be opened"),
        ("/dev/zero".into(), "it is not a regular file"),
        (write("short", &good[..1000]), "it is too short"),
        (write("less", &good[..good.len() - 1]), "it is too short"),
        (write("magic", &changed(0, b'X')), "it is not a quota file"),
        (write("version", &changed(8, 9)), "it has another version"),
        (write("size", &changed(13, 1)), "it has another version"),
        (write("text", "x".repeat(30_000).as_bytes()), "it is not a quota file"),
    ] {
        let (stdout, stderr) = alone(&machine, &path, false);
        assert_eq!(stdout, "0\n0\n2\n0\n0\n600 1000 0\n", "{}", path.display());
        let message = stderr.trim_end().split_once(": ").unwrap().1;
        assert_eq!(
            message,
            format!(
                "cannot share the quota file {}: {reason}; the limit applies only to this process",
                path.display()
            )
        );
        let (stdout, _) = alone(&machine, &path, true);
        assert!(stdout.starts_with("0\n2\n2\n2\n"), "{}: {stdout}", path.display());
    }
    assert_eq!(fs::read(&quota).unwrap(), good, "nothing was written through the link");
}

#[test]
fn implausible_file_content_only_denies_memory() {
    let machine = Machine::new();
    let quota = machine.quota(1000);
    // One process joins the quota, so that the file contains the current boot id.
    assert_eq!(codes(machine.client("dl", &["init 0", "alloc 1"]).env("WRAPPER_SHARED", &quota)), [0, 0]);
    let mut good = fs::read(&quota).unwrap();
    good[128 + 64 * 16..].fill(0);
    let used = 128 + 64 * 16 + 64 * 128;
    let slots = 128 + 64 * 16;
    let with = |changes: &[(usize, &[u8])]| {
        let mut bytes = good.clone();
        for (at, value) in changes {
            bytes[*at..*at + value.len()].copy_from_slice(value);
        }
        fs::write(&quota, bytes).unwrap();
        codes(
            machine
                .client("dl", &["init 0", "alloc 1000", "free 0", "alloc 1", "info"])
                .env("WRAPPER_SHARED", &quota),
        )
    };
    let ours = std::process::id().to_le_bytes();
    let namespace =
        fs::metadata("/proc/self/ns/pid").map(|about| std::os::unix::fs::MetadataExt::ino(&about)).unwrap();
    // The high-water mark exceeds the number of slots, and the slot of a nonexistent process contains more than all
    // memory.
    assert_eq!(with(&[(40, &[0xff; 4])]), [0, 0, 0, 0, 0]);
    let all = [0xff; 8];
    let dead: &[(usize, &[u8])] = &[
        (40, &[2]),
        (slots + 64, &[0xff, 0xff, 0x3f, 0]),
        (slots + 64 + 16, &namespace.to_le_bytes()),
        (used + 8, &all),
    ];
    assert_eq!(with(dead), [0, 0, 0, 0, 0], "the process does not exist");
    // With the same content for a running process or a process in another PID namespace, the memory counts.
    let alive: &[(usize, &[u8])] = &[(40, &[2]), (slots + 64, &ours), (used + 8, &all)];
    assert_eq!(with(alive), [0, 2, 0, 2, 0]);
    // With two such processes, the sum does not wrap.
    let two: &[(usize, &[u8])] =
        &[(40, &[3]), (slots + 64, &ours), (used + 8, &all), (slots + 128, &ours), (used + 16, &[1])];
    assert_eq!(with(two), [0, 2, 0, 2, 0]);
    // All slots are taken.
    let mut full = Vec::new();
    for slot in 0..128 {
        full.extend([0; 64]);
        full[slot * 64..slot * 64 + 4].copy_from_slice(&ours);
    }
    let mut client = machine.client("dl", &["init 0", "alloc 700", "alloc 400"]);
    client.env("WRAPPER_SHARED", &quota).env("WRAPPER_MAX_MEMORY", "1000");
    fs::write(&quota, [&good[..slots], &full, &good[slots + full.len()..]].concat()).unwrap();
    let result = output(&mut client);
    assert_eq!(String::from_utf8_lossy(&result.stdout), "0\n0\n2\n");
    assert!(
        String::from_utf8_lossy(&result.stderr).contains("it has no free slot for this process"),
        "{result:?}"
    );
}

#[test]
fn truncated_file_is_refused_at_any_time() {
    let machine = Machine::new();
    let quota = machine.quota(1000);
    let good = fs::read(&quota).unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                // Replaced by rename, because a mapped file must not be truncated.
                fs::write(machine.path("next"), &good[..good.len() / 2]).unwrap();
                fs::rename(machine.path("next"), &quota).unwrap();
                fs::write(machine.path("next"), &good).unwrap();
                fs::rename(machine.path("next"), &quota).unwrap();
            }
        });
        for _ in 0..30 {
            let mut client = machine.client("dl", &["init 0", "alloc 1000", "alloc 1", "free 0"]);
            assert_eq!(
                codes(client.env("WRAPPER_SHARED", &quota).env("WRAPPER_MAX_MEMORY", "1000")),
                [0, 0, 2, 0]
            );
        }
        done.store(true, Ordering::Relaxed);
    });
}

#[test]
fn file_locked_forever_only_delays() {
    let machine = Machine::new();
    let quota = machine.quota(1000);
    let mut client =
        machine.client("dl", &["init 0", "alloc 600", "wait", "alloc 500", "alloc 400", "alloc 1"]);
    let (mut client, _) = waiting(client.env("WRAPPER_SHARED", &quota));
    let lock = fs::File::open(&quota).unwrap();
    lock.lock().unwrap();
    drop(client.0.stdin.take());
    let mut rest = String::new();
    client.0.stdout.take().unwrap().read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "0\n2\n0\n2\n");
    assert!(ledger(&quota).faults >= 2, "the library could not check for exited processes");
    // A process that starts now does not wait indefinitely either.
    let (stdout, stderr) = alone(&machine, &quota, false);
    assert_eq!(stdout, "0\n0\n2\n0\n0\n600 1000 0\n");
    assert!(stderr.contains("another process holds its lock"), "{stderr}");
}

#[test]
fn program_that_closes_all_descriptors_keeps_working() {
    let machine = Machine::new();
    let quota = machine.quota(1000);
    let calls =
        ["init 0", "alloc 600", "close-all", "alloc 500", "alloc 400", "free 0", "alloc 600", "alloc 1"];
    let mut client = machine.client("dl", &calls);
    assert_eq!(codes(client.env("WRAPPER_SHARED", &quota)), [0, 0, 0, 2, 0, 0, 0, 2]);
    assert_eq!(ledger(&quota).faults, 0);
}

#[test]
fn process_of_another_namespace_is_not_reclaimed() {
    let machine = Machine::new();
    let quota = machine.quota(1000);
    let (mut outside, _) =
        waiting(machine.client("dl", &["init 0", "alloc 600", "wait"]).env("WRAPPER_SHARED", &quota));
    let inside = |calls: &[&str]| {
        let client = machine.client("dl", calls);
        let mut command = machine.bare("unshare");
        command.args(["--pid", "--fork", "--mount-proc", "env"]);
        command.arg(format!("LD_PRELOAD={}", end_to_end::cuda::library().display()));
        command.arg(client.get_program()).args(client.get_args()).env("WRAPPER_SHARED", &quota);
        command
    };
    // Pids inside the namespace are all below 600.
    assert_eq!(codes(&mut inside(&["init 0", "alloc 401", "alloc 400"])), [0, 2, 0]);
    // The memory of the exited process stays charged, because its namespace no longer exists and cannot be checked
    // from outside.
    let mut here = machine.client("dl", &["init 0", "alloc 1"]);
    assert_eq!(codes(here.env("WRAPPER_SHARED", &quota)), [0, 2]);
    outside.0.kill().unwrap();
    outside.0.wait().unwrap();
    assert_eq!(codes(&mut here), [0, 0]);
    until("the slots of exited processes to be released", || {
        (ledger(&quota).processes.len() <= 2).then_some(())
    });
}
