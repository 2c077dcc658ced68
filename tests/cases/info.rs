//! Tests `bailiff info`: complete reports against golden files (`UPDATE_GOLDEN=1` renews them; review the difference),
//! with and without the exporter, in pipes and on terminals, and against each other. Needs root, to set the owner of
//! made-up processes.
#![allow(
    clippy::disallowed_methods,
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a case runs programs, reads files and fails loudly"
)]

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use end_to_end::exporter::{self, Exporter};
use end_to_end::fake::Scenario;
use end_to_end::holder::Holder;
use end_to_end::leases;
use end_to_end::page::Page;
use end_to_end::procfs::{OWNER, Process, Procfs};
use end_to_end::programs;
use end_to_end::terminal;
use end_to_end::wait::until;
use serde_json::{Value, json};

const CONTAINER: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
/// Long enough for the fake driver to take samples.
const INTERVAL: &str = "700ms";

/// Returns the processes in the scenarios: a Slurm job, a container, a service and a session.
fn procfs() -> Procfs {
    let job = "0::/system.slice/slurmstepd.scope/job_4711/step_0/user/task_0\n";
    let container = format!("0::/system.slice/docker-{CONTAINER}.scope\n");
    Procfs::new()
        .with(&Process { cgroup: job.into(), ..Process::new(4100) })
        .with(&Process { cgroup: container, comm: "vllm".into(), ..Process::new(4101) })
        .with(&Process { cgroup: "0::/system.slice/jupyter.service\n".into(), ..Process::new(4102) })
        .with(&Process { state: 'R', ..Process::new(4103) })
        .with(&Process { comm: "\u{1b}[31mX\u{202e}".into(), ..Process::new(4104) })
        .with(&Process { state: 'D', ..Process::new(4110) })
}

/// Returns the command with a fake driver and a made-up `/proc`. It writes only to the scenario's directory.
fn info(scenario: &Scenario, procfs: &Procfs, flags: &[&str]) -> Command {
    let mut command = Command::new(programs::bailiff());
    command.arg("info").args(flags).args(["--interval", INTERVAL]);
    over(&mut command, scenario, procfs);
    command
}

fn over(command: &mut Command, scenario: &Scenario, procfs: &Procfs) {
    command.arg("--nvml-library").arg(programs::fake_nvml()).arg("--procfs").arg(procfs.path());
    command.env("FAKE_NVML_SCENARIO", scenario.path()).env("XDG_STATE_HOME", scenario.directory());
    command.env("TZ", "UTC").env("TERM", "xterm").env_remove("NO_COLOR").env_remove("COLUMNS");
    command.env_remove("LEASE_REDIS_URL").env("LEASE_DIR", scenario.directory().join("pool"));
    command.env("BAILIFF_STREAM", scenario.directory().join("stream.sock"));
}

fn run(mut command: Command) -> Output {
    command.output().unwrap()
}

fn stdout_of(command: Command) -> String {
    let output = run(command);
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

fn json_of(command: Command) -> Value {
    serde_json::from_str(&stdout_of(command)).unwrap()
}

/// Masks what depends on when the test ran: the time and short durations.
fn masked(text: &str) -> String {
    let days = ["Mon ", "Tue ", "Wed ", "Thu ", "Fri ", "Sat ", "Sun "];
    let line = |line: &str| {
        if days.iter().any(|day| line.starts_with(day)) {
            return "…".to_owned();
        }
        if line.starts_with("timestamp ") {
            return "timestamp                …".to_owned();
        }
        if let Some((tag, rest)) = line.split_once(", ").filter(|_| line.starts_with("since ")) {
            let ago = rest.rsplit(", ").next().unwrap_or_default();
            let digits = ago.chars().any(|letter| letter.is_ascii_digit());
            return format!("{tag}, …, {}", if digits { "Ns before" } else { ago });
        }
        let short = |word: &str| {
            let number = word
                .strip_suffix("ms")
                .or_else(|| word.strip_suffix('s').filter(|number| number.len() == 1))
                .is_some_and(|number| number.parse::<u16>().is_ok());
            if number { "Ns".to_owned() } else { word.to_owned() }
        };
        line.split(' ').map(short).collect::<Vec<_>>().join(" ")
    };
    text.lines().map(|text| line(text) + "\n").collect()
}

fn golden(name: &str, text: &str) {
    let narrow = |line: &str| line.chars().count() <= 80 && !line.contains('\u{1b}');
    assert!(text.lines().all(narrow), "a pipe has 80 columns and no colours:\n{text}");
    let path = programs::root().join("tests/golden/info").join(format!("{name}.txt"));
    let text = masked(text);
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, &text).unwrap();
    }
    let expected = fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(text, expected, "{} differs; UPDATE_GOLDEN=1 renews it", path.display());
}

/// Compares the compact and the full report with their golden files.
fn check(name: &str) {
    check_over(name, &procfs());
}

fn check_over(name: &str, procfs: &Procfs) {
    golden(&format!("{name}-compact"), &stdout_of(info(&Scenario::named(name), procfs, &["--alone"])));
    golden(name, &stdout_of(info(&Scenario::named(name), procfs, &["--alone", "--full"])));
}

#[test]
fn idle() {
    check("idle");
}

#[test]
fn busy() {
    check("busy");
}

#[test]
fn mig() {
    check("mig");
}

#[test]
fn mps() {
    check("mps");
}

#[test]
fn graphics() {
    check("graphics");
}

#[test]
fn lost() {
    check("lost");
}

#[test]
fn dead_pid() {
    let procfs = procfs();
    procfs.remove(4101);
    check_over("dead-pid", &procfs);
}

#[test]
fn absent_values_are_not_zero() {
    let scenario = Scenario::named("idle");
    let library = ["--alone", "--nvml-library", "/nonexistent/libnvidia-ml.so.1"];
    let mut command = Command::new(programs::bailiff());
    command.arg("info").args(library).env("TZ", "UTC");
    let output = run(command);
    golden("no-library", &String::from_utf8(output.stdout).unwrap());
    assert_eq!(output.status.code(), Some(69));
    let why = String::from_utf8(output.stderr).unwrap();
    assert!(why.contains("library not found") && why.contains("bailiff doctor"), "{why}");
    scenario.set("gpus: []\n");
    let output = run(info(&scenario, &procfs(), &["--alone", "--json"]));
    assert_eq!(output.status.code(), Some(69), "the data of every GPU is invalid");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["sources"]["nvml"]["fault"], "no_devices");
}

#[test]
fn hung_driver_does_not_hang_info() {
    let scenario = Scenario::new("init: hang\ngpus: [{}]\n");
    let output = run(info(&scenario, &procfs(), &["--alone", "--deadline", "500ms"]));
    assert_eq!(output.status.code(), Some(69), "{output:?}");
    let hung = Scenario::named("hung");
    let report = json_of(info(&hung, &procfs(), &["--alone", "--deadline", "1s", "--json"]));
    assert_eq!(report["gpus"][0]["holders"][0]["pid"], 4100, "the other GPU is still reported");
    assert_eq!(report["gpus"][1]["fault"], "timeout");
    assert_eq!(report["gpus"][1]["memory"], Value::Null);
}

/// The laptop from the original's documentation.
const LAPTOP: &str = "gpus:
  - name: GeForce GT 750M
    compute_capability: [3, 0]
    memory: {total: 2147024896B, reserved: 0MiB, unaccounted: 447800000B}
";

#[test]
fn cuda_info_output_matches_the_original() {
    let (scenario, procfs) = (Scenario::new(LAPTOP), procfs());
    for (name, verbose) in
        [("cuda_info.sh", None), ("cuda_info.py", Some("-v")), ("cuda_info", Some("--verbose"))]
    {
        let link = scenario.directory().join(name);
        symlink(programs::bailiff(), &link).unwrap();
        let mut command = Command::new(link);
        over(&mut command, &scenario, &procfs);
        command.args(["--interval", "10ms"]).args(verbose);
        let text = stdout_of(command);
        let lines: Vec<&str> = text.lines().collect();
        let (name, time) = lines[0].split_at(25);
        assert_eq!(name, "timestamp                ");
        let words: Vec<&str> = time.split_whitespace().collect();
        assert!(words.len() == 5 && words[3].len() == 8 && words[4].starts_with("20"), "{time}");
        let expected = [
            "tag                      default",
            "name                     GeForce GT 750M",
            "compute capability       (3, 0)",
            "memory total             2.1G",
            "memory used              447.8M",
            "memory free              1.7G",
        ];
        assert_eq!(lines[1..7], expected);
    }
}

#[test]
fn exporter_and_info_report_the_same() {
    let (scenario, procfs) = (Scenario::named("busy"), procfs());
    let exporter = exporter(&scenario, &procfs);
    exporter
        .until("a window", |page| page.value("bailiff_snapshots_total", &[]).filter(|ticks| *ticks >= 2.0));
    let plain = |flags: &[&str]| {
        let mut report = json_of(info(&scenario, &procfs, flags));
        let by = report["seen_by"].take();
        for field in ["wall_ms", "age_ms"] {
            assert!(report[field].take().is_u64(), "{report}");
        }
        for gpu in report["gpus"].as_array_mut().unwrap() {
            for holder in gpu["holders"].as_array_mut().unwrap() {
                holder.as_object_mut().unwrap().remove("idle_ms");
            }
        }
        (by, report)
    };
    let (by, from_exporter) = plain(&["--json"]);
    assert_eq!(by, "exporter");
    let (by, alone) = plain(&["--json", "--alone"]);
    assert_eq!(by, "itself");
    assert_eq!(from_exporter, alone);
    assert_eq!(alone["gpus"][0]["holders"][0]["utilization"], 92, "{alone}");
    // `bailiff info` does not wait for an exporter that does not respond.
    let output = exporter.while_stopped(|| run(info(&scenario, &procfs, &["--json"])));
    assert!(
        String::from_utf8_lossy(&output.stderr)
            .contains("no snapshot before the deadline; sampling the driver directly"),
        "{output:?}"
    );
    assert_eq!(serde_json::from_slice::<Value>(&output.stdout).unwrap()["seen_by"], "itself");
}

fn exporter(scenario: &Scenario, procfs: &Procfs) -> Exporter {
    let mut command = exporter::command(scenario);
    command.args(["--interval", INTERVAL, "--deadline", "10s", "--procfs"]).arg(procfs.path());
    command.arg("--stream").arg(scenario.directory().join("stream.sock"));
    Exporter::spawn(command)
}

#[test]
fn reports_are_compared_by_tag() {
    let (scenario, procfs) = (Scenario::new(""), procfs());
    let holding = |held: &str, unaccounted: &str| {
        scenario
            .set(&format!("gpus:\n  - memory: {{unaccounted: {unaccounted}}}\n    processes: [{held}]\n"));
    };
    holding("{pid: 4100, used: 10GiB}, {pid: 4101, used: 4GiB}", "0MiB");
    stdout_of(info(&scenario, &procfs, &["--alone", "--tag", "before"]));
    let since = || stdout_of(info(&scenario, &procfs, &["--alone", "--since", "before", "--tag", "after"]));
    holding("{pid: 4100, used: 11GiB}", "0MiB");
    golden("since-came-back", &since());
    holding("{pid: 4100, used: 10GiB}", "4GiB");
    golden("since-stayed", &since());
    procfs.remove(4101);
    holding("{pid: 4100, used: 10GiB}, {pid: 4101, used: 4GiB}", "0MiB");
    golden("since-died", &since());
    let compared = json_of(info(&scenario, &procfs, &["--alone", "--since", "before", "--json"]));
    assert_eq!(compared["changes"][0]["holders"][0]["how"], "died");
    assert_eq!(compared["changes"][0]["back"], json!({"came_back": "stayed", "bytes": 4_u64 << 30}));
    // For each tag, the newest report is kept.
    let again = json_of(info(&scenario, &procfs, &["--alone", "--since", "after", "--json"]));
    assert_eq!(again["changes"][0]["holders"], json!([]));
    let output = run(info(&scenario, &procfs, &["--since", "befor"]));
    assert_eq!(output.status.code(), Some(64));
    let why = String::from_utf8(output.stderr).unwrap();
    assert!(why.contains("there is no saved report \"befor\"") && why.contains("after, before"), "{why}");
}

#[test]
fn processes_with_the_device_open_are_listed() {
    let procfs = procfs();
    procfs.open_file(4100, "/dev/nvidia0");
    procfs.open_file(4103, "/dev/nvidia0");
    procfs.open_file(4102, "/dev/nvidia1");
    let scenario = Scenario::new(
        "gpus: [{memory: {unaccounted: 1700MB}, processes: [{pid: 4100, used: 1GiB}]}]\n"
            .replace("MB", "MiB")
            .as_str(),
    );
    let plain = stdout_of(info(&scenario, &procfs, &["--alone"]));
    assert!(
        plain.contains("GPU 0                    1.7GiB not held by any listed process; see --who"),
        "{plain}"
    );
    let plain = stdout_of(info(&scenario, &procfs, &["--alone", "--full"]));
    assert!(plain.contains("1.7GiB, not held by any listed process; see --who"), "{plain}");
    golden("who", &stdout_of(info(&scenario, &procfs, &["--alone", "--who"])));
    let exporter = exporter(&scenario, &procfs);
    exporter.until("a scan of open files", |page| page.value("bailiff_gpu_unlisted_processes", &[]));
    let report = json_of(info(&scenario, &procfs, &["--who", "--json"]));
    assert_eq!(report["seen_by"], "exporter");
    let pids: Vec<&Value> = report["gpus"][0]["device_processes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|process| &process["pid"])
        .collect();
    assert_eq!(pids, [&json!(4100), &json!(4103)]);
    assert!(report["device_processes_age_ms"].is_u64(), "{report}");
}

/// Root can read more files than an exporter with few privileges.
#[test]
fn root_scans_what_the_exporter_could_not() {
    let procfs = procfs();
    procfs.open_file(4100, "/dev/nvidia0");
    procfs.write("4104/fd", "no directory");
    let text = "gpus: [{memory: {unaccounted: 1700MiB}, processes: [{pid: 4100, used: 1GiB}]}]\n";
    let scenario = Scenario::new(text);
    let exporter = exporter(&scenario, &procfs);
    exporter.until("a scan of open files", |page| {
        (page.value("bailiff_unlisted_processes_unreadable", &[])? >= 1.0).then_some(())
    });
    procfs.open_file(4103, "/dev/nvidia0");
    let report = json_of(info(&scenario, &procfs, &["--who", "--json"]));
    assert_eq!((&report["seen_by"], &report["device_processes_age_ms"]), (&json!("exporter"), &json!(0)));
    let processes = report["gpus"][0]["device_processes"].as_array().unwrap();
    assert!(processes.iter().any(|process| process["pid"] == 4103), "{report}");
}

/// Asserts that GPU 0 is leased to the first process and used by both, and that GPU 1 is idle.
fn leases_are_reported(report: &Value, (holder, intruder): (u64, u64)) {
    let lease = |gpu: usize, key: &str| report["gpus"][gpu]["lease"][key].clone();
    let (first, second) = ((lease(0, "state"), lease(0, "alive")), lease(1, "state"));
    assert_eq!((first, second), ((json!("leased"), json!("true")), json!("idle")), "{report}");
    let leased = |pid: u64| {
        let holders = report["gpus"][0]["holders"].as_array().unwrap();
        holders.iter().find(|holder| holder["pid"] == pid).unwrap()["leased"].clone()
    };
    assert_eq!((leased(holder), leased(intruder)), (json!(true), json!(false)));
}

#[test]
fn leases_are_listed() {
    let scenario = Scenario::new("gpus: [{}, {}]\n");
    let (redis, intruder) = (leases::pool("0,1"), Holder::sleeping_as(65534));
    let runner = leases::hold(&redis, &["run", "--gpu", "0"]);
    let command = leases::command_of(&runner);
    let (holder, other) = (command.as_raw_pid(), intruder.pid());
    let held = format!("{{pid: {holder}, used: 1GiB}}, {{pid: {other}, used: 2GiB}}");
    scenario.set(&format!("sampling_period: 20ms\ngpus: [{{processes: [{held}]}}, {{}}]\n"));
    let stream = scenario.directory().join("stream.sock").display().to_string();
    let address = redis.address();
    let flags = ["--deadline", "10s", "--lease.redis", &address, "--stream", &stream];
    let exporter = Exporter::start(&scenario, &flags);
    exporter.until("a read of the pool", |page| page.value("bailiff_lease_unreserved_use", &[("gpu", "0")]));
    let over_proc = |flags: &[&str]| {
        let mut command = Command::new(programs::bailiff());
        command.arg("info").args(flags).args(["--nvml-library"]).arg(programs::fake_nvml());
        command.env("FAKE_NVML_SCENARIO", scenario.path()).env("BAILIFF_STREAM", &stream).env("TZ", "UTC");
        command.env("LEASE_REDIS_URL", &address);
        command
    };
    let report = until("both processes are listed", || {
        let report = json_of(over_proc(&["--json"]));
        let holders = report["gpus"][0]["holders"].as_array().unwrap();
        holders.iter().all(|entry| entry["leased"].is_boolean()).then_some(report)
    });
    leases_are_reported(&report, (u64::try_from(holder).unwrap(), other.into()));
    let text = stdout_of(over_proc(&[]));
    let row = |gpu: &str| text.lines().find(|line| line.starts_with(gpu)).unwrap().to_owned();
    assert!(row("0 ").contains(" root ") && row("1 ").ends_with(" idle"), "{text}");
    assert!(text.lines().any(|line| line.contains(&other.to_string()) && line.ends_with(" no")), "{text}");
    let text = stdout_of(over_proc(&["--full"]));
    let owner = format!("pid {}", runner.id());
    for part in ["lease                    root for ", &owner, "lease                    none"] {
        assert!(text.contains(part), "{text}");
    }
    // Without the exporter, the command reads the pool itself, and reports if Redis is not responding.
    let alone = json_of(over_proc(&["--json", "--alone"]));
    assert_eq!(alone["gpus"][0]["lease"]["lease"], report["gpus"][0]["lease"]["lease"]);
    drop(redis);
    let text = stdout_of(over_proc(&["--alone"]));
    let (unseen, listed) =
        (text.contains("unavailable              leases: Redis at "), text.contains("\nlease "));
    assert!(unseen && !listed, "{text}");
    rustix::process::kill_process(command, rustix::process::Signal::KILL).unwrap();
    leases::end(runner, rustix::process::Signal::KILL);
}

/// One GPU with 200 holders, and seven GPUs without holders.
const MANY_HOLDERS: &str = "gpus:
  - processes: [{pid: 4100, count: 200, used: 64MiB}]
  - count: 7
";

#[test]
fn many_processes_fit_one_screen() {
    let (scenario, procfs) = (Scenario::new(MANY_HOLDERS), Procfs::new());
    let text = stdout_of(info(&scenario, &procfs, &["--alone", "--full", "--gpu", "0"]));
    let rows: Vec<&str> = text.lines().collect();
    assert!(rows.len() <= 40, "{text}");
    assert!(text.contains("and 190 more with 11.9GiB; use --top 200 to show all"), "{text}");
    let all = stdout_of(info(&scenario, &procfs, &["--alone", "--full", "--top", "200"]));
    assert_eq!(all.lines().filter(|line| line.contains("gone")).count(), 200);
    assert_eq!(all.matches("no processes hold GPU memory").count(), 7);
    let output = run(info(&scenario, &procfs, &["--alone", "--gpu", "0,8"]));
    assert_eq!(output.status.code(), Some(64));
    assert!(
        String::from_utf8_lossy(&output.stderr).contains("this machine has no GPU with index or UUID \"8\"")
    );
}

/// Returns eight GPUs with this many holders each.
fn eight(holders: u32) -> Scenario {
    let gpu = |gpu: u32| {
        let (pid, memory) = (5000 + 100 * gpu, "memory: {total: 143771MiB}");
        format!("  - {{{memory}, processes: [{{pid: {pid}, count: {holders}, used: 64MiB}}]}}\n")
    };
    Scenario::new(&format!("gpus:\n{}", (0..8).map(gpu).collect::<String>()))
}

#[test]
fn eight_gpus_fit_one_screen() {
    let pids = (0..8).flat_map(|gpu| (0..12).map(move |nth| 5000 + 100 * gpu + nth));
    let procfs = pids.fold(Procfs::new(), |procfs, pid| procfs.with(&Process::new(pid)));
    for (holders, rows, shown) in [(1, 24, 8), (12, 24, 8), (3, 40, 24), (12, 40, 24)] {
        let scenario = eight(holders);
        let mut command = info(&scenario, &procfs, &["--alone"]);
        command.env("NO_COLOR", "1");
        let (text, code) = terminal::shown(command, (80, rows));
        assert_eq!(code, Some(0));
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines.len() < rows.into(), "{} lines:\n{text}", lines.len());
        assert!(lines.iter().all(|line| line.chars().count() <= 80), "{text}");
        for gpu in 0..8 {
            let starts = |line: &&&str| line.starts_with(&format!("{gpu} "));
            let of_gpu: Vec<_> = lines.iter().filter(starts).collect();
            assert!(of_gpu.len() >= 2 && of_gpu[0].contains("140.4GiB"), "GPU {gpu}:\n{text}");
        }
        let listed = lines.iter().filter(|line| line.contains("session-3")).count();
        assert_eq!(listed, shown, "{text}");
        let rest = format!("and {} more", 8 * holders - u32::try_from(listed).unwrap());
        assert_eq!(text.contains(&rest), listed < usize::try_from(8 * holders).unwrap(), "{text}");
    }
}

#[test]
fn unknown_value_is_a_question_mark() {
    let scenario = Scenario::new("gpus: [{faults: {lost: true}}, {processes: [{pid: 4104, used: null}]}]\n");
    let text = stdout_of(info(&scenario, &procfs(), &["--alone"]));
    let row = |begin: &str| {
        let row = text.lines().find(|line| line.starts_with(begin)).unwrap_or_else(|| panic!("{text}"));
        row.split_whitespace().map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(row("0 "), ["0", "?", "?", "?", "?", "?"], "{text}");
    assert_eq!(row("1   4104")[3], "?", "{text}");
    assert!(text.contains("GPU 0                    the GPU has fallen off the bus"), "{text}");
}

#[test]
fn watch_redraws_in_place() {
    let (scenario, procfs) = (Scenario::named("busy"), procfs());
    let exporter = exporter(&scenario, &procfs);
    let ticks = |page: &end_to_end::page::Page| page.value("bailiff_snapshots_total", &[]);
    let first = exporter.until("a sample", ticks);
    let mut command = info(&scenario, &procfs, &["--watch"]);
    command.env("NO_COLOR", "1");
    let ends = std::thread::spawn(move || {
        exporter.until("more samples", |page| ticks(page).filter(|tick| *tick >= first + 4.0));
        drop(exporter);
    });
    let (text, code) = terminal::shown(command, (80, 40));
    ends.join().unwrap();
    assert_eq!(code, Some(69), "the exporter has exited: {text}");
    assert_eq!(text.matches("\u{1b}[2J").count(), 1, "the screen is cleared once: {text:?}");
    let drawn: Vec<&str> = text.split("\u{1b}[H").skip(1).collect();
    assert!(drawn.len() >= 2, "{text:?}");
    for report in drawn {
        assert!(report.contains("NVIDIA H200") && report.ends_with("\u{1b}[J"), "{report:?}");
        assert!(
            report.trim_end_matches("\u{1b}[J").lines().all(|line| line.ends_with("\u{1b}[K")),
            "{report:?}"
        );
    }
}

#[test]
fn terminal_output_has_colours_and_its_width() {
    let (scenario, procfs) = (Scenario::named("busy"), procfs());
    let long = "0::/system.slice/a-service-with-a-name-that-needs-a-wide-terminal-to-be-read.service\n";
    procfs.add(&Process { cgroup: long.into(), ..Process::new(4100) });
    let (text, code) = terminal::shown(info(&scenario, &procfs, &["--alone", "--full"]), (80, 24));
    assert_eq!(code, Some(0));
    let plain = |text: &str| text.replace("\u{1b}[1m", "").replace("\u{1b}[31m", "").replace("\u{1b}[0m", "");
    assert!(text.contains("\u{1b}[1mNVIDIA H200\u{1b}[0m"), "{text}");
    assert!(plain(&text).lines().all(|line| line.chars().count() <= 80), "{text}");
    assert!(text.contains('…'));
    let (text, _) = terminal::shown(info(&scenario, &procfs, &["--alone"]), (200, 24));
    assert!(text.contains("to-be-read.service"), "{text}");
    let mut command = info(&scenario, &procfs, &["--alone"]);
    command.env("NO_COLOR", "1");
    let (text, _) = terminal::shown(command, (80, 24));
    assert!(!text.contains('\u{1b}'), "{text}");
}

#[test]
fn watch_ends_when_its_reader_closes() {
    let (scenario, procfs) = (Scenario::named("busy"), procfs());
    let exporter = exporter(&scenario, &procfs);
    for flags in [&["--watch", "--json"][..], &["--watch", "--json", "--alone"]] {
        let mut child = info(&scenario, &procfs, flags).stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut next =
            || serde_json::from_str::<Value>(&lines.next().unwrap().unwrap()).unwrap()["wall_ms"].clone();
        let (first, second) = (next(), next());
        assert!(first.as_u64() < second.as_u64(), "{flags:?}");
        drop(lines);
        assert_eq!(child.wait().unwrap().code(), Some(0), "{flags:?}");
    }
    drop(exporter);
}

#[test]
fn invalid_flags_are_reported() {
    for flags in [&["--tag", "a/b"][..], &["--since", "x", "--watch"], &["--interval", "soon"], &["--gpus"]] {
        let mut command = Command::new(programs::bailiff());
        command.arg("info").args(flags);
        assert_eq!(run(command).status.code(), Some(64), "{flags:?}");
    }
}

#[test]
fn failed_open_device_scan_lists_no_process() {
    let (scenario, procfs) = (Scenario::named("busy"), procfs());
    fs::remove_dir_all(procfs.path()).unwrap();
    let text = stdout_of(info(&scenario, &procfs, &["--who"]));
    assert!(
        text.contains("unavailable              processes with the device open: the scan failed"),
        "{text}"
    );
    assert!(!text.contains("open files of 0 processes"), "{text}");
    let report = json_of(info(&scenario, &procfs, &["--who", "--json"]));
    assert_eq!(
        (&report["device_processes_failed"], &report["unreadable"]),
        (&Value::from(true), &Value::Null)
    );
}

#[test]
fn own_memory_is_one_line_at_login() {
    let scenario = Scenario::new("gpus: [{}, {processes: [{pid: 4100, used: 2GiB}]}]");
    let procfs = Procfs::new().with(&Process::new(4100));
    let brief = |flags: &[&str]| {
        let mut command = Command::new(programs::bailiff());
        command
            .args(["info", "--brief"])
            .args(flags)
            .env("BAILIFF_STREAM", scenario.directory().join("stream.sock"));
        stdout_of(command)
    };
    assert_eq!(brief(&["--mine"]), "", "there is no exporter");
    let stream = scenario.directory().join("stream.sock");
    let flags = ["--stream", stream.to_str().unwrap(), "--procfs", procfs.path().to_str().unwrap()];
    let exporter = Exporter::start(&scenario, &[&["--interval", "200ms"], &flags[..]].concat());
    let idle = |page: &Page| page.value("bailiff_process_gpu_idle_seconds", &[("pid", "4100")]);
    exporter.until("idle time", |page| (idle(page)? >= 1.0).then_some(()));
    let line = brief(&["--user", &OWNER.to_string()]);
    assert!(
        line.starts_with("You hold 2.0GiB on ") && line.contains(": GPU 1, idle ") && line.ends_with("s.\n"),
        "{line}"
    );
    assert_eq!((brief(&["--mine"]), brief(&["--user", "1001"])), (String::new(), String::new()));

    examples_print_one_line(&stream);
}

/// Runs the examples that the packages contain. A login shell is interactive.
fn examples_print_one_line(stream: &Path) {
    let example = |name| fs::read_to_string(programs::root().join("config/login").join(name)).unwrap();
    let pam = example("pam-gpu-memory").replace("/usr/bin/bailiff", programs::bailiff().to_str().unwrap());
    let profile = example("profile.sh").replace("--mine", &format!("--user {OWNER}"));
    let search_path = programs::bailiff().parent().unwrap().display().to_string() + ":/usr/bin:/bin";
    let printed = |flags: &[&str], text: &str, when: &str| {
        let mut command = Command::new("sh");
        command.args(flags).args(["-c", text]).env("BAILIFF_STREAM", stream).env("PATH", &search_path);
        command.env("PAM_TYPE", when).env("PAM_USER", OWNER.to_string()).stdin(Stdio::null());
        stdout_of(command)
    };
    assert!(printed(&[], &pam, "open_session").starts_with("You hold 2.0GiB on "));
    assert_eq!(printed(&[], &pam, "close_session"), "");
    assert!(printed(&["-i"], &profile, "").starts_with("You hold 2.0GiB on "));
    assert_eq!(printed(&[], &profile, ""), "", "scripts print nothing");
}
