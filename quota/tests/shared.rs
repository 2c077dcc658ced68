//! A quota that processes share: the limit is reached and never passed, whoever races, forks or is killed; and files that
//! are none.
#![expect(clippy::disallowed_methods, clippy::unwrap_used, reason = "a case runs programs and fails loudly")]

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
/// So little that most requests are made at the limit.
const LIMIT: u64 = 8 * CHUNK;

/// How often something random is done: a short form in the usual run, more in `make soak`.
fn times(usual: usize, variable: &str) -> usize {
    std::env::var(variable).ok().and_then(|times| times.parse().ok()).unwrap_or(usual)
}

fn ledger(path: &Path) -> Ledger {
    bailiff_ledger::read(path).unwrap()
}

/// `race.c` with so many threads, and turns before all fill what is left; for ever where that is 0.
fn race(machine: &Machine, (threads, turns): (u32, u32)) -> Command {
    let mut command = machine.program(compiled("race", &[]));
    command.args(["proc", &threads.to_string(), &turns.to_string(), &CHUNK.to_string()]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    command
}

/// A running race.
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

    /// Lets it go on, and gives what it had when all were refused.
    fn granted(mut self) -> u64 {
        drop(self.running.0.stdin.take());
        let line = self.line();
        let (granted, failures) = line.trim().split_once(' ').unwrap();
        assert_eq!(failures, "0", "calls failed that had no reason to");
        granted.parse().unwrap()
    }
}

#[test]
fn threads_reach_the_limit_and_never_pass_it() {
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
fn processes_reach_the_limit_together_and_never_pass_it() {
    let mut reached = 0;
    for _ in 0..times(50, "BAILIFF_RACES") {
        let machine = Machine::new();
        let quota = machine.quota(LIMIT);
        let start = |_| Racer::start(race(&machine, (2, 1000)).env("WRAPPER_SHARED", &quota));
        let mut racers: Vec<Racer> = (0..6).map(start).collect();
        for racer in &mut racers {
            assert_eq!(racer.line(), "full\n");
        }
        let (used, told) = (machine.used(0), ledger(&quota));
        // Whoever waited for the lock in vain, on a machine that was busy otherwise, is refused though there is room.
        if told.faults == 0 {
            assert_eq!((used, machine.peak(0), told.gpus[0].peak), (LIMIT, LIMIT, LIMIT), "{told:?}");
            reached += 1;
        }
        assert!(machine.peak(0) <= LIMIT && told.gpus[0].peak <= LIMIT, "{told:?}");
        assert_eq!(told.gpus[0].used, used, "{told:?}");
        assert_eq!(told.processes.len(), 6);
        assert!(told.gpus[0].denied >= 12, "each was refused: {told:?}");
        assert_eq!(racers.into_iter().map(Racer::granted).sum::<u64>(), used);
    }
    assert!(reached > 0, "the limit was never reached without somebody waiting in vain");
}

#[test]
fn whoever_is_killed_leaves_nothing_and_holds_up_nobody() {
    const AT_ONCE: usize = 4;
    let machine = Machine::new();
    let quota = machine.quota(LIMIT);
    let mut command = race(&machine, (2, 0));
    command.env("WRAPPER_SHARED", &quota);
    let mut seed = u64::from(std::process::id());
    let mut dice = |most: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) % most
    };
    let mut racers: Vec<Racer> = (0..AT_ONCE).map(|_| Racer::start(&mut command)).collect();
    for _ in 0..times(60, "BAILIFF_KILLS") {
        // The moment is what is random here.
        std::thread::park_timeout(Duration::from_micros(dice(20_000)));
        let at = usize::try_from(dice(AT_ONCE as u64)).unwrap();
        let pid = Pid::from_child(&racers[at].running.0);
        kill_process(pid, Signal::KILL).unwrap();
        // Half are reaped at once, and half when the next has started: a zombie has nothing left.
        let next = if dice(2) == 0 { None } else { Some(Racer::start(&mut command)) };
        racers[at].running.0.wait().unwrap();
        racers[at] = next.unwrap_or_else(|| Racer::start(&mut command));
    }
    drop(racers);
    assert!(machine.peak(0) <= LIMIT, "{} of {LIMIT}", machine.peak(0));
    let fill = format!("fill {CHUNK}");
    let mut client = machine.client("dl", &["init 0", &fill, "used 0"]);
    let answers = answers(client.env("WRAPPER_SHARED", &quota));
    assert_eq!(answers[1], [8, 2], "all of it is there again");
    assert_eq!(answers[2], [i64::try_from(LIMIT).unwrap(), 0]);
}

#[test]
fn children_begin_with_nothing_while_threads_allocate() {
    const TIMES: &str = "200";
    let machine = Machine::new();
    let program = compiled("fork", &[]);
    // Each process has a quota of its own: its parent's memory is not the child's.
    let told = output(
        machine.program(&program).args(["proc", TIMES, "0", "40960"]).env("WRAPPER_MAX_MEMORY", "40960"),
    );
    assert_eq!(String::from_utf8_lossy(&told.stdout), "200 0\n", "{told:?}");
    // They share one: the child has what its parent leaves, and when it is gone the next one has it.
    let quota = machine.quota(3 * 40960);
    let told = output(
        machine.program(&program).args(["proc", TIMES, "40960", "81920"]).env("WRAPPER_SHARED", &quota),
    );
    assert_eq!(String::from_utf8_lossy(&told.stdout), "200 0\n", "{told:?}");
    assert!(machine.peak(0) <= 3 * 40960, "{}", machine.peak(0));
    assert_eq!(ledger(&quota).faults, 0);
}

#[test]
fn shared_limit_is_not_the_program_s_to_set() {
    let machine = Machine::new();
    let quota = machine.path("quota");
    fs::write(&quota, "").unwrap();
    let mut client = machine.client("dl", &["set-limit 5000", "init 0", "alloc 1001", "alloc 1000"]);
    client.env("WRAPPER_MAX_MEMORY", "1000").env("WRAPPER_SHARED", &quota);
    assert_eq!(codes(&mut client), [0, 0, 2, 0]);
}

/// A client that does this and then waits, and its calls' codes.
fn waiting(command: &mut Command) -> (Running, Vec<String>) {
    let mut running = Running(command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap());
    let mut lines = BufReader::new(running.0.stdout.as_mut().unwrap()).lines().map(Result::unwrap);
    let told = lines.by_ref().take_while(|line| line != "waiting").collect();
    (running, told)
}

#[test]
fn one_process_has_what_another_leaves() {
    let machine = Machine::new();
    let quota = machine.quota(1000);
    let (mut first, told) = waiting(
        machine.client("dl", &["init 0", "alloc 600", "wait", "alloc 1"]).env("WRAPPER_SHARED", &quota),
    );
    assert_eq!(told, ["0", "0"]);
    let mut second =
        machine.client("proc", &["init 0", "info", "total 0", "alloc 401", "alloc 400", "free 0"]);
    second.env("WRAPPER_SHARED", &quota);
    assert_eq!(answers(&mut second), [&[0][..], &[400, 1000, 0], &[1000, 0], &[2], &[0], &[0]]);
    let told = ledger(&quota);
    let names: Vec<&str> = told.processes.iter().map(|process| process.name.as_str()).collect();
    assert!(names.iter().all(|name| name.starts_with("client-")), "{names:?}");
    let counts: Vec<(u64, u64, u64)> =
        told.processes.iter().map(|process| (process.allocations, process.frees, process.denied)).collect();
    assert_eq!(counts, [(1, 0, 0), (1, 1, 1)]);
    assert_eq!(told.gpus[0].by_process, [600, 0]);
    assert_eq!((told.gpus[0].denied, told.gpus[0].denied_bytes, told.gpus[0].peak), (1, 401, 1000));
    assert!(told.gpus[0].last_denied > 1_700_000_000_000_000_000, "{told:?}");
    // A limit that is lowered holds at once, and takes nothing from anybody.
    bailiff_ledger::set_limit(&quota, uuid(0), 500).unwrap();
    assert_eq!(answers(&mut second)[1..4], [&[0, 500, 0][..], &[500, 0], &[2]]);
    drop(first.0.stdin.take());
    let mut rest = String::new();
    first.0.stdout.take().unwrap().read_to_string(&mut rest).unwrap();
    assert!(rest.ends_with("2\n"), "{rest}");
    // Raised, it is there at once too.
    bailiff_ledger::set_limit(&quota, uuid(0), 5000).unwrap();
    assert_eq!(codes(machine.client("dl", &["init 0", "alloc 5000"]).env("WRAPPER_SHARED", &quota)), [0, 0]);
}

#[test]
fn what_the_dead_had_is_there_for_those_who_were_there_before() {
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
fn a_program_that_becomes_another_begins_again() {
    let machine = Machine::new();
    let quota = machine.quota(1000);
    // Its memory is gone with its old image, whose place it takes.
    let mut client = machine.client("dl", &["init 0", "alloc 1000", "exec"]);
    assert_eq!(codes(client.env("WRAPPER_SHARED", &quota)), [0, 0, 0, 0, 2, 0]);
    let told = ledger(&quota);
    assert_eq!(told.processes.len(), 1, "{told:?}");
}

#[test]
fn a_gpu_that_the_file_does_not_know_gets_the_limit_of_whoever_asks_first() {
    let machine = Machine::new();
    let quota = machine.path("quota");
    // An empty file is a quota in the making.
    fs::write(&quota, "").unwrap();
    let run = |limit: &str| {
        let mut client = machine.client("dl", &["init 1", "alloc 701", "alloc 700"]);
        codes(client.env("WRAPPER_SHARED", &quota).env("WRAPPER_MAX_MEMORY", limit))
    };
    assert_eq!(run("700"), [0, 2, 0]);
    assert_eq!(run("9000"), [0, 2, 0], "the first has said it");
    let told = ledger(&quota);
    assert_eq!((told.gpus.len(), told.gpus[0].uuid, told.gpus[0].limit), (1, uuid(1), 700));
    assert_eq!(told.faults, 0);
}

#[test]
fn a_file_of_an_earlier_boot_is_emptied() {
    let machine = Machine::new();
    let quota = machine.quota(1000);
    let (first, _) =
        waiting(machine.client("dl", &["init 0", "alloc 600", "wait"]).env("WRAPPER_SHARED", &quota));
    drop(first);
    let file = OpenOptions::new().write(true).open(&quota).unwrap();
    file.write_all_at(&[0xee; 16], 24).unwrap();
    // A process that seems to live, since the pid and the start are ours.
    file.write_all_at(&std::process::id().to_le_bytes(), 128 + 64 * 16).unwrap();
    let before = ledger(&quota).generation;
    assert_eq!(codes(machine.client("dl", &["init 0", "alloc 1000"]).env("WRAPPER_SHARED", &quota)), [0, 0]);
    assert_eq!(ledger(&quota).generation, before + 1);
}

#[test]
fn functions_that_are_newer_than_the_library_are_counted() {
    let machine = Machine::new();
    let quota = machine.quota(1000);
    let _ = output(
        machine.client("dl", &["init 0", "alloc 1", "node 10", "ipc 0"]).env("WRAPPER_SHARED", &quota),
    );
    let told = ledger(&quota);
    assert_eq!((told.hooks_missing, told.uncounted, told.faults), (0, 2, 0));
}

/// The calls of a process under a quota that cannot be shared, and what it says.
fn alone(machine: &Machine, quota: &Path, closed: bool) -> (String, String) {
    let mut client =
        machine.client("dl", &["init 0", "alloc 600", "alloc 500", "alloc 400", "free 0", "info"]);
    client.env("WRAPPER_SHARED", quota).env("WRAPPER_MAX_MEMORY", "1000");
    let told = output(client.env("WRAPPER_FAIL_CLOSED", if closed { "1" } else { "0" }));
    (String::from_utf8(told.stdout).unwrap(), String::from_utf8(told.stderr).unwrap())
}

#[test]
fn a_file_that_is_no_quota_leaves_each_process_its_own() {
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
    let fifo = rustix::fs::FileType::Fifo;
    rustix::fs::mknodat(
        rustix::fs::CWD,
        machine.path("fifo"),
        fifo,
        rustix::fs::Mode::from_raw_mode(0o600),
        0,
    )
    .unwrap();
    fs::create_dir(machine.path("directory")).unwrap();
    for (path, reason) in [
        (machine.path("none"), "there is no such file"),
        (machine.path("no/where"), "there is no such file"),
        (machine.path("link"), "it is a link"),
        (machine.path("fifo"), "it is no file"),
        (machine.path("directory"), "it cannot be opened"),
        ("/dev/zero".into(), "it is no file"),
        (write("short", &good[..1000]), "it is too short"),
        (write("less", &good[..good.len() - 1]), "it is too short"),
        (write("magic", &changed(0, b'X')), "it is no quota"),
        (write("version", &changed(8, 9)), "it is of another version"),
        (write("size", &changed(13, 1)), "it is of another version"),
        (write("text", "x".repeat(30_000).as_bytes()), "it is no quota"),
    ] {
        let (told, said) = alone(&machine, &path, false);
        assert_eq!(told, "0\n0\n2\n0\n0\n600 1000 0\n", "{}", path.display());
        let said = said.trim_end().split_once(": ").unwrap().1;
        assert_eq!(said, format!("{}: {reason}: the quota is not shared", path.display()));
        let (told, _) = alone(&machine, &path, true);
        assert!(told.starts_with("0\n2\n2\n2\n"), "{}: {told}", path.display());
    }
    assert_eq!(fs::read(&quota).unwrap(), good, "through no link was anything written");
}

#[test]
fn absurd_claims_deny_memory_and_harm_nobody() {
    let machine = Machine::new();
    let quota = machine.quota(1000);
    // Joined once, so that it is of this boot.
    assert_eq!(codes(machine.client("dl", &["init 0", "alloc 1"]).env("WRAPPER_SHARED", &quota)), [0, 0]);
    let mut good = fs::read(&quota).unwrap();
    good[128 + 64 * 16..].fill(0);
    let used = 128 + 64 * 16 + 64 * 128;
    let slots = 128 + 64 * 16;
    let with = |changes: &[(usize, &[u8])]| {
        let mut bytes = good.clone();
        for (at, what) in changes {
            bytes[*at..*at + what.len()].copy_from_slice(what);
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
    // More slots than there are; a slot of a process that never was, with more than all memory.
    assert_eq!(with(&[(40, &[0xff; 4])]), [0, 0, 0, 0, 0]);
    let all = [0xff; 8];
    let dead: &[(usize, &[u8])] = &[
        (40, &[2]),
        (slots + 64, &[0xff, 0xff, 0x3f, 0]),
        (slots + 64 + 16, &namespace.to_le_bytes()),
        (used + 8, &all),
    ];
    assert_eq!(with(dead), [0, 0, 0, 0, 0], "it is dead");
    // The same of one that lives, or of a namespace that cannot be looked into: it is believed.
    let alive: &[(usize, &[u8])] = &[(40, &[2]), (slots + 64, &ours), (used + 8, &all)];
    assert_eq!(with(alive), [0, 2, 0, 2, 0]);
    // Two such: sums do not wrap.
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
    let told = output(&mut client);
    assert_eq!(String::from_utf8_lossy(&told.stdout), "0\n0\n2\n");
    assert!(String::from_utf8_lossy(&told.stderr).contains("it has no room for another process"), "{told:?}");
}

#[test]
fn a_file_that_is_cut_short_before_it_is_joined_is_refused_whenever_that_happens() {
    let machine = Machine::new();
    let quota = machine.quota(1000);
    let good = fs::read(&quota).unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                // Replaced as a whole: a file that is in use is never cut by this.
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
fn whoever_holds_the_lock_for_ever_delays_and_no_more() {
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
    assert!(ledger(&quota).faults >= 2, "it could not look for the dead");
    // Whoever begins now does not wait for ever either.
    let (told, said) = alone(&machine, &quota, false);
    assert_eq!(told, "0\n0\n2\n0\n0\n600 1000 0\n");
    assert!(said.contains("others hold its lock"), "{said}");
}

#[test]
fn a_program_that_closes_all_it_does_not_know_goes_on() {
    let machine = Machine::new();
    let quota = machine.quota(1000);
    let calls =
        ["init 0", "alloc 600", "close-all", "alloc 500", "alloc 400", "free 0", "alloc 600", "alloc 1"];
    let mut client = machine.client("dl", &calls);
    assert_eq!(codes(client.env("WRAPPER_SHARED", &quota)), [0, 0, 0, 2, 0, 0, 0, 2]);
    assert_eq!(ledger(&quota).faults, 0);
}

#[test]
fn a_process_of_another_namespace_is_not_taken_for_dead() {
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
    // Pid 600 and more are nobody's in there.
    assert_eq!(codes(&mut inside(&["init 0", "alloc 401", "alloc 400"])), [0, 2, 0]);
    // What that one had stays charged here, since from here nobody knows that it is gone; it was its namespace's last.
    let mut here = machine.client("dl", &["init 0", "alloc 1"]);
    assert_eq!(codes(here.env("WRAPPER_SHARED", &quota)), [0, 2]);
    outside.0.kill().unwrap();
    outside.0.wait().unwrap();
    assert_eq!(codes(&mut here), [0, 0]);
    until("the dead of this namespace to be forgotten", || {
        (ledger(&quota).processes.len() <= 2).then_some(())
    });
}
