//! Tests `bailiff idle-timeout` with the fake driver, real processes and real signals: a command that leaves its GPUs
//! idle is terminated, and other processes are not.
#![expect(clippy::disallowed_methods, clippy::unwrap_used, reason = "a test runs programs and fails loudly")]

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Output};

use end_to_end::fake::Scenario;
use end_to_end::holder::Holder;
use end_to_end::idle_timeout::{IdleTimeout, command};
use end_to_end::programs;
use end_to_end::tenant::start;
use end_to_end::wait::until;
use rustix::process::Signal;

const GPUS: [&str; 2] =
    ["GPU-a5b02c30-9c95-cb81-e41e-ca204d57aa3b", "GPU-b805d632-775b-c673-fe68-26b26996cd09"];

/// Returns two GPUs with these processes, such as `{pid: 41, sm: 80}`.
fn two(first: &str, second: &str) -> String {
    let gpu = |uuid, processes| format!("  - {{uuid: {uuid}, processes: [{processes}]}}\n");
    format!("sampling_period: 20ms\ngpus:\n{}{}", gpu(GPUS[0], first), gpu(GPUS[1], second))
}

fn gone(pids: &[u32]) -> bool {
    pids.iter().all(|pid| start(*pid).is_none())
}

fn output(scenario: &Scenario, args: &[&str]) -> Output {
    command(scenario, args).output().unwrap()
}

fn code(output: &Output) -> Option<i32> {
    output.status.code()
}

/// Returns the original's log lines. All other lines start with our own name.
fn original_lines(log: &[String]) -> Vec<String> {
    let of_original = |line: &&String| line.split(' ').nth(1) == Some("gpu_idle_timeout:");
    for line in log.iter().filter(|line| !of_original(line)) {
        assert_eq!(line.split(' ').nth(1), Some("bailiff:"), "{line}");
    }
    log.iter().filter(of_original).cloned().collect()
}

#[test]
fn published_session_is_reproduced() {
    let golden = fs::read_to_string(programs::root().join("tests/golden/idle-timeout.log")).unwrap();
    // `make soak` runs this in real time, other runs are ten times as fast.
    let as_it_was = std::env::var_os("BAILIFF_REAL_TIME").is_some();
    let (every, golden) = if as_it_was {
        ("6", golden)
    } else {
        let faster =
            golden.replace("freq=6", "freq=0.6").replace("12 sec", "1.2 sec").replace(". 6 sec", ". 0.6 sec");
        ("0.6", faster.replace("size=30", "size=3").replace("last 30", "last 3"))
    };
    let scenario = Scenario::new(&two("", ""));
    let args = ["-t", "50", "-s", every, "-n", "5", "-d", "3", "-x", "--signal-name", "none", "grep", "foo"];
    let mut running = IdleTimeout::start(&scenario, &args);
    running.until_logged(1, "Starting");
    let child = child_of(&running, "grep");
    assert_eq!(running.end().code(), Some(1));
    assert!(gone(&[child]));
    let expected: Vec<&str> = golden.lines().collect();
    assert_eq!(original_lines(&running.log()), expected);
    let which = "has no GPU context, so all visible GPUs count";
    assert_eq!(running.log().iter().filter(|line| line.contains(which)).count(), 1, "{:#?}", running.log());
}

/// Returns the watcher's child with this name.
fn child_of(running: &IdleTimeout, name: &str) -> u32 {
    let parent = running.pid().as_raw_nonzero();
    let children = format!("/proc/{parent}/task/{parent}/children");
    until(name, || {
        let children = fs::read_to_string(&children).ok()?;
        let mut pids = children.split_ascii_whitespace().filter_map(|pid| pid.parse::<u32>().ok());
        pids.find(|pid| fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|comm| comm.trim() == name))
    })
}

/// A launcher with two ranks as its descendants.
const TRAINING: &str = "sh -c 'echo $$; sleep infinity & wait' & sleep infinity & echo $!; wait";

/// Returns the second GPU's utilization in each sample, in order.
fn readings(log: &[String]) -> Vec<u32> {
    let figure =
        |line: &String| line.split_once(GPUS[1])?.1.strip_prefix(" usage ")?.strip_suffix('%')?.parse().ok();
    log.iter().filter_map(figure).collect()
}

/// Starts a training run on two GPUs, with 20 % utilization for seven samples. Returns its ranks once both have been
/// sampled.
fn training(scenario: &Scenario) -> (IdleTimeout, Vec<u32>) {
    let args = ["-t", "20", "-s", "1", "-n", "7", "-d", "1", "-x", "--grace", "0.1", "sh", "-c", TRAINING];
    let running = IdleTimeout::start(scenario, &args);
    let ranks = running.pids(2);
    works(scenario, &ranks);
    running.until_logged(1, &format!("{} usage 70%", GPUS[1]));
    (running, ranks)
}

fn works(scenario: &Scenario, ranks: &[u32]) {
    let (first, second) = (ranks[0], ranks[1]);
    scenario.set(&two(&format!("{{pid: {first}, sm: 37}}"), &format!("{{pid: {second}, sm: 70}}")));
}

fn hangs(scenario: &Scenario, ranks: &[u32]) {
    let (first, second) = (ranks[0], ranks[1]);
    scenario.set(&two(&format!("{{pid: {first}}}"), &format!("{{pid: {second}, sm: 1}}")));
}

#[test]
fn hung_training_is_ended_after_seven_samples() {
    let scenario = Scenario::new(&two("", ""));
    let (mut running, ranks) = training(&scenario);
    hangs(&scenario, &ranks);
    assert_eq!(running.end().code(), Some(1));
    let log = running.log();
    assert!(
        log.iter().any(|line| line.contains("has a context on these GPUs, which count: ['GPU-a5b")),
        "{log:#?}"
    );
    let readings = readings(&log);
    let idle = readings.iter().rev().take_while(|percent| **percent < 20).count();
    assert_eq!(idle, 7, "{log:#?}");
    assert!(gone(&ranks), "the ranks were terminated, not only their launcher");
}

#[test]
fn training_paused_for_six_samples_is_not_ended() {
    let scenario = Scenario::new(&two("", ""));
    let (mut running, ranks) = training(&scenario);
    hangs(&scenario, &ranks);
    running.until_logged(6, &format!("{} usage 1%", GPUS[1]));
    let worked = running.log().len();
    works(&scenario, &ranks);
    until("the process to be observed busy again", || {
        running.log().get(worked..)?.iter().any(|line| line.contains("usage 70%")).then_some(())
    });
    assert!(running.is_running() && !gone(&ranks));
    assert!(readings(&running.log()).iter().filter(|percent| **percent == 1).count() >= 6);
    assert!(!running.log().iter().any(|line| line.contains("ERROR")), "{:#?}", running.log());
}

/// Returns the number of samples with a broken driver. In `make soak` there are more than a thousand.
fn sample_count() -> usize {
    std::env::var("BAILIFF_SAMPLES").ok().and_then(|count| count.parse().ok()).unwrap_or(100)
}

#[test]
fn driver_errors_end_no_process() {
    let faults = [
        "faults: {errors: {\"*\": unknown}}\n",
        "faults: {errors: {\"*\": timeout, nvmlDeviceGetCount_v2: unknown}}\n",
        "faults: {errors: {nvmlDeviceGetSamples: unknown, nvmlDeviceGetUtilizationRates: unknown, \
         nvmlDeviceGetProcessUtilization: unknown}}\n",
        "faults: {errors: {nvmlDeviceGetUUID: gpu_is_lost}}\n",
        "faults: {errors: {nvmlDeviceGetHandleByIndex_v2: gpu_is_lost}}\n",
    ];
    for fault in faults {
        let broken = format!("{fault}{}", two("", ""));
        let scenario = Scenario::new(&broken);
        let args =
            ["-t", "100", "-s", "0.02", "-n", "2", "-d", "0", "-x", "sh", "-c", "echo $$; read nothing"];
        let mut running = IdleTimeout::start(&scenario, &args);
        let child = running.pids(1);
        let unknown = if fault.contains("lost") { "no GPU counts" } else { "usage unknown" };
        running.until_logged(sample_count() / faults.len(), unknown);
        assert!(running.is_running() && !gone(&child), "{fault}: {:#?}", running.log());
        assert_eq!(readings(&running.log()), [0_u32; 0], "{fault}");
        // The command was running all the time.
        scenario.set(&two("", ""));
        assert_eq!(running.end().code(), Some(1), "{fault}");
    }
}

#[test]
fn hung_or_missing_driver_ends_no_process() {
    for fault in ["faults: {hang: true}\n", "init: driver_not_loaded\n", "init: unknown\n", "init: hang\n"] {
        let at_work = two("{pid: 4194300, sm: 90}", "{pid: 4194301, sm: 90}");
        let broken = format!("{fault}{}", two("", ""));
        let opens = fault.starts_with("faults");
        let scenario = Scenario::new(if opens { &at_work } else { &broken });
        let mut args = vec!["-t", "90", "-s", "0.1", "-n", "2", "-d", "0", "-x", "--deadline", "0.5"];
        args.extend(["sh", "-c", "read word; exit 3"]);
        let mut running = IdleTimeout::start(&scenario, &args);
        if opens {
            running.until_logged(1, "usage 90%");
            scenario.set(&broken);
        }
        running.until_logged(1, "the driver does not answer");
        running.until_logged(10, "usage unknown");
        assert!(running.is_running(), "{fault}: {:#?}", running.log());
        running.close_input();
        assert_eq!(running.end().code(), Some(3), "{fault}");
    }
}

/// Starts a process in its own session, and another process whose parent has exited.
const FAMILY: &str = "trap '' QUIT; setsid sh -c 'echo $$; sleep infinity' & \
                      sh -c 'setsid sleep infinity & echo $!'; echo $$; sleep infinity & echo $!; wait";

#[test]
fn descendants_are_ended_with_the_command() {
    let scenario = Scenario::new(&two("", ""));
    let args = ["-s", "0.2", "-n", "2", "-d", "0", "--grace", "0.3", "sh", "-c", FAMILY];
    let mut running = IdleTimeout::start(&scenario, &args);
    let family = running.pids(4);
    assert_eq!(running.end().code(), Some(1));
    assert!(gone(&family), "{family:?}");
    let log = running.log();
    let count = |text: &str| log.iter().filter(|line| line.contains(text)).count();
    assert_eq!(count("ERROR: gpu_idle_timeout: process still alive, maybe hung, killing."), 1, "{log:#?}");
    assert_eq!(count("INFO: gpu_idle_timeout: Sending signal 3 to process"), 1, "{log:#?}");
}

#[test]
fn kill_of_the_command_alone_is_optional() {
    let scenario = Scenario::new(&two("", ""));
    let args =
        ["-s", "0.2", "-n", "2", "-d", "0", "--kill", "command", "--signal-name", "none", "sh", "-c", FAMILY];
    let mut running = IdleTimeout::start(&scenario, &args);
    let family = running.pids(4);
    assert_eq!(running.end().code(), Some(1));
    let running_ones: Vec<bool> = family.iter().map(|pid| !gone(&[*pid])).collect();
    assert_eq!(
        running_ones.iter().filter(|running_ones| **running_ones).count(),
        3,
        "{family:?} {running_ones:?}"
    );
}

#[test]
fn configured_signal_reaches_children_before_parents() {
    let scenario = Scenario::new(&two("", ""));
    let script = "exec 2>/dev/null; trap 'echo parent; exit' TERM; sh -c 'trap \"echo child; exit\" TERM; echo begun; \
                  while :; do sleep 0.05; done' & while :; do sleep 0.05; done";
    let args =
        ["-s", "0.3", "-n", "3", "-d", "0", "--signal-name", "SIGTERM", "--signal-children", "--grace", "60"];
    let mut running = IdleTimeout::start(&scenario, &[&args[..], &["sh", "-c", script]].concat());
    assert_eq!(running.end().code(), Some(1));
    let mut lines = running.output_lines();
    lines.sort();
    assert_eq!(lines, ["begun", "child", "parent"]);
    let log = original_lines(&running.log());
    let children: Vec<&str> =
        log.iter().filter_map(|line| line.strip_prefix("INFO: gpu_idle_timeout: ")).skip(1).collect();
    let heads: Vec<String> = children.iter().map(|line| args_of(line)).collect();
    let at = |head: &str| {
        heads.iter().position(|line| line.starts_with(head)).unwrap_or_else(|| panic!("{head}: {heads:#?}"))
    };
    let order = [
        "signal children: logging process tree",
        "signal children: layer 0: pid N: 'sh -c exec",
        "signal children: layer 1: pid N: 'sh -c trap",
        "signal children: signalling started",
        "signal children: send signal Nto pid N in layer 1",
        "signal children: signaling ended",
        "Sending signal N to process N",
    ];
    let places: Vec<usize> = order.iter().map(|head| at(head)).collect();
    assert!(places.is_sorted(), "{heads:#?}");
    assert!(
        !log.iter().any(|line| line.contains("maybe hung")),
        "the command must exit within its grace period: {log:#?}"
    );
    let verdict = log.iter().find(|line| line.starts_with("ERROR")).unwrap();
    assert!(verdict.ends_with("was below threshhold 1% for last 0.9 seconds."), "{verdict}");
}

/// Returns a line with its pids and signal numbers masked.
fn args_of(line: &str) -> String {
    let mask = |word: &str| {
        let digits = word.trim_end_matches(|letter: char| !letter.is_ascii_digit());
        match digits.parse::<u32>() {
            Ok(_) if digits.len() > 1 || word.ends_with("to") => format!("N{}", &word[digits.len()..]),
            _ => word.to_owned(),
        }
    };
    line.split(' ').map(mask).collect::<Vec<_>>().join(" ")
}

#[test]
fn exit_codes_match_the_original() {
    let scenario = Scenario::new(&two("", ""));
    for (args, expected) in [
        (vec!["true"], 0),
        (vec!["sh", "-c", "exit 7"], 7),
        (vec!["sh", "-c", "kill -9 $$"], 256 - 9),
        (vec!["-t", "5", "--", "sh", "-c", "exit 8"], 8),
        (vec!["--nonsense", "true"], 2),
        (vec!["-t", "x", "true"], 2),
        (vec!["-s", "0", "true"], 1),
        (vec!["--signal-name", "SIGNONSENSE", "true"], 1),
        (vec!["nosuch-program"], 1),
        (vec!["--nvml-library", "/nowhere.so", "true"], 1),
        (vec!["--help"], 0),
        (vec![], 1),
    ] {
        let output = output(&scenario, &args);
        assert_eq!(code(&output), Some(expected), "{args:?}: {output:?}");
    }
    let failed = output(&scenario, &["--nvml-library", "/nowhere.so", "sh", "-c", "echo begun"]);
    assert!(
        String::from_utf8_lossy(&failed.stderr).ends_with("\nERROR: Unable to locate '/nowhere.so'\n"),
        "{failed:?}"
    );
    assert!(!String::from_utf8_lossy(&failed.stdout).contains("begun"));
    let as_a_command =
        Command::new(programs::bailiff()).args(["idle-timeout", "-t", "x", "true"]).output().unwrap();
    assert_eq!(code(&as_a_command), Some(2), "{as_a_command:?}");
}

#[test]
fn idle_timeout_errors_have_one_line_and_own_codes() {
    let scenario = Scenario::new(&two("", ""));
    for (args, expected, why) in [
        (vec!["--nonsense", "true"], 2, "--nonsense"),
        (vec!["-s", "0", "true"], 2, "SAMPLE_FREQ must be greater than 0"),
        (vec![], 2, "program and arguments"),
        (vec!["nosuch-program"], 127, "nosuch-program"),
        (vec!["/"], 126, "/"),
        (vec!["--nvml-library", "/nowhere.so", "true"], 69, "/nowhere.so"),
        (vec!["-s", "0.1", "-n", "1", "-d", "1", "sleep", "infinity"], 1, "below threshhold"),
    ] {
        let mut command = Command::new(programs::bailiff());
        command.arg("idle-timeout").args(&args).env("BAILIFF_NVML_LIBRARY", programs::fake_nvml());
        command.env("FAKE_NVML_SCENARIO", scenario.path()).env_remove("CUDA_VISIBLE_DEVICES");
        let output = command.output().unwrap();
        let err = String::from_utf8_lossy(&output.stderr);
        assert_eq!(code(&output), Some(expected), "{args:?}: {output:?}");
        assert!(err.contains(why) && output.stdout.is_empty(), "{args:?}: {output:?}");
        assert!(expected == 1 || err.lines().count() == 1, "{args:?}: {err}");
    }
}

#[test]
fn forwarded_signal_ends_the_watcher_likewise() {
    let scenario = Scenario::new(&two("", ""));
    let script = "for name in INT QUIT TERM HUP USR1 USR2; do trap \"echo $name\" $name; done; echo ready; \
                  while :; do sleep 0.02; done";
    let mut running = IdleTimeout::start(&scenario, &["sh", "-c", script]);
    until("the command to be ready", || (running.output_lines() == ["ready"]).then_some(()));
    let signals = [
        (Signal::INT, "INT"),
        (Signal::QUIT, "QUIT"),
        (Signal::TERM, "TERM"),
        (Signal::HUP, "HUP"),
        (Signal::USR1, "USR1"),
        (Signal::USR2, "USR2"),
    ];
    for (count, (signal, name)) in signals.iter().enumerate() {
        running.signal(*signal);
        until(name, || (running.output_lines().len() == count + 2).then_some(()));
        assert_eq!(running.output_lines().last().map(String::as_str), Some(*name));
    }
    assert!(running.is_running());
    for (signal, _) in signals {
        let mut running = IdleTimeout::start(&scenario, &["sh", "-c", "echo $$; exec sleep infinity"]);
        let child = running.pids(1);
        running.signal(signal);
        assert_eq!(running.end().signal(), Some(signal.as_raw()));
        assert!(gone(&child));
    }
    drop(running);
}

/// Presses Ctrl-C on a terminal, waits for the byte that reports the signal, lets the command continue, and repeats.
const TERMINAL: &str = r"import os, pty, sys
pid, tty = pty.fork()
if pid == 0: os.execv(sys.argv[1], sys.argv[1:])
said = b''
def wait(word, times):
    global said
    while said.count(word) < times: said += os.read(tty, 1024)
for round in range(1, 61):
    wait(b'ready', round)
    before = said.count(b'\x02')
    os.write(tty, b'\x03')
    wait(b'\x02', before + 1)
    os.write(tty, b'\n')
try:
    while True: said += os.read(tty, 1024)
except OSError: pass
print(said.count(b'\x02'), os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))";

/// Writes a byte for each SIGINT, before all other output, since two pending SIGINTs would merge. The byte arrives
/// through a pipe, because a non-blocking write fails whenever another process writes to the same terminal. The
/// program does not wait in a read: while the terminal discards the input of a key, it reports that input is available
/// (Linux 6.18).
const COUNTING: &str = "import os, select, signal, sys
os.setpriority(os.PRIO_PROCESS, 0, -20)
keys = os.open('/dev/tty', os.O_RDONLY | os.O_NONBLOCK)
heard, hear = os.pipe()
os.set_blocking(hear, False)
signal.set_wakeup_fd(hear)
signal.signal(signal.SIGINT, lambda *_: None)
def pressed():
    come = select.select([keys, heard], [], [])[0]
    if heard in come: os.write(1, os.read(heard, 100))
    try: return keys in come and os.read(keys, 100)
    except BlockingIOError: return False
for round in range(60):
    os.write(1, b'ready')
    while not pressed(): pass
sys.exit(5)";

#[test]
fn terminal_signal_reaches_the_command_once() {
    let scenario = Scenario::new(&two("", ""));
    let inner = command(&scenario, &["python3", "-c", COUNTING]);
    let mut terminal = Command::new("python3");
    terminal.args(["-c", TERMINAL]).arg(inner.get_program()).args(inner.get_args());
    let output = terminal.env("FAKE_NVML_SCENARIO", scenario.path()).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "60 5", "{output:?}");
}

#[test]
fn command_inherits_descriptors_and_environment() {
    let scenario = Scenario::new(&two("", ""));
    let masks = |command: &mut Command| {
        let output = command.output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let mask = |name: &str| {
            let line =
                text.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_else(|| panic!("{output:?}"));
            u64::from_str_radix(line.trim(), 16).unwrap()
        };
        (mask("SigBlk:"), mask("SigIgn:") & 1)
    };
    let args = ["cat", "/proc/self/status"];
    assert_eq!(masks(&mut command(&scenario, &args)), (0, 0));
    let inner = command(&scenario, &args);
    let mut nohup = Command::new("nohup");
    nohup.arg(inner.get_program()).args(inner.get_args()).env("FAKE_NVML_SCENARIO", scenario.path());
    assert_eq!(masks(&mut nohup), (0, 1), "a command under nohup keeps running when its terminal closes");
}

#[test]
fn killed_watcher_leaves_the_command_running() {
    let scenario = Scenario::new(&two("", ""));
    let mut running =
        IdleTimeout::start(&scenario, &["-s", "0.1", "sh", "-c", "echo $$; exec sleep infinity"]);
    let child = running.pids(1);
    let helper = child_of(&running, "exe");
    running.signal(Signal::KILL);
    assert_eq!(running.end().signal(), Some(9));
    until("our own helper to end", || gone(&[helper]).then_some(()));
    assert!(!gone(&child));
}

#[test]
fn use_by_others_counts_only_with_all_gpus() {
    let other = Holder::sleeping();
    let busy = format!("{{pid: {}, sm: 90}}", other.pid());
    for (count, ended) in [("used", true), ("all", false)] {
        let scenario = Scenario::new(&two("", &busy));
        let mut args = vec!["-s", "0.3", "-n", "3", "-d", "0", "-x", "--look-back", "0.6", "--count", count];
        args.extend(["sh", "-c", "echo $$; read nothing"]);
        let mut running = IdleTimeout::start(&scenario, &args);
        let child = running.pids(1)[0];
        // Another process uses the same GPU as well.
        scenario.set(&two(&format!("{{pid: {child}}}, {busy}"), &busy));
        if ended {
            assert_eq!(running.end().code(), Some(1));
            assert!(running.log().iter().any(|line| line.contains(GPUS[0]) && line.contains("usage 0%")));
        } else {
            running.until_logged(6, &format!("{} usage 90%", GPUS[1]));
            assert!(running.is_running());
        }
    }
}

#[test]
fn container_init_forwards_signals() {
    let scenario = Scenario::new(&two("", ""));
    let inside = |args: &[&str]| {
        let inner = command(&scenario, args);
        let mut outer = Command::new("unshare");
        outer.args(["--pid", "--fork", "--mount-proc", "--kill-child"]);
        outer.arg(inner.get_program()).args(inner.get_args()).env("FAKE_NVML_SCENARIO", scenario.path());
        outer.env_remove("CUDA_VISIBLE_DEVICES");
        IdleTimeout::spawn(outer)
    };
    let mut running = inside(&["-s", "0.3", "-n", "2", "-d", "0", "sleep", "infinity"]);
    assert_eq!(running.end().code(), Some(1));
    let which = "the GPUs that the command uses are unknown in this PID namespace, so all visible GPUs count: ['GPU-a5b";
    assert!(running.log().iter().any(|line| line.contains(which)), "{:#?}", running.log());
    let mut running = inside(&["sh", "-c", "trap 'exit 9' TERM; echo ready; while :; do sleep 0.05; done"]);
    until("the command to be ready", || (!running.output_lines().is_empty()).then_some(()));
    // A process that cannot leave its PID namespace is signalled from outside.
    let first = child_of(&running, "gpu_idle_timeou");
    rustix::process::kill_process(rustix::process::Pid::from_raw(first.cast_signed()).unwrap(), Signal::TERM)
        .unwrap();
    assert_eq!(running.end().code(), Some(9));
}
