//! Tests shared quota files with the exporter and the enforcer: what the real library writes is exported for the
//! processes that use the file. Hostile files affect neither the daemons nor another user's processes.
#![allow(
    clippy::disallowed_methods,
    clippy::cast_precision_loss,
    clippy::expect_used,
    clippy::float_cmp,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a case runs programs, compares exact figures and fails loudly"
)]

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use end_to_end::cuda::{Machine, Running, uuid};
use end_to_end::exporter::Exporter;
use end_to_end::fake::Scenario;
use end_to_end::holder::Holder;
use end_to_end::http;
use end_to_end::node::{self, Node};
use end_to_end::page::Page;
use end_to_end::tenant::Tenant;
use end_to_end::wait::until;
use rustix::fs::{CWD, FileType, Mode, mknodat};

/// The GPU's UUID in a quota file and in NVML.
const UUID: &str = "GPU-00000000-0000-4000-8000-000000000001";
const MIB: u64 = 1 << 20;

/// Offsets in a version 1 file, as described in docs/quota.md.
const LIMIT: u64 = 128 + 16;
const SLOTS: u64 = 1152;
const USED: u64 = 9344;

fn scenario(held: &[(u32, u64)]) -> String {
    let one = |(pid, mib): &(u32, u64)| format!("{{pid: {pid}, used: {mib}MiB, sm: 0}}");
    let held: Vec<String> = held.iter().map(one).collect();
    format!("sampling_period: 20ms\ngpus:\n  - uuid: {UUID}\n    processes: [{}]\n", held.join(", "))
}

fn watch(scenario: &Scenario, directory: &Path) -> Exporter {
    Exporter::start(scenario, &["--deadline", "10s", "--quota.dir", &directory.display().to_string()])
}

/// Returns a metric of the only quota.
fn of(page: &Page, name: &str) -> Option<f64> {
    page.value(&format!("bailiff_quota_{name}"), &[])
}

/// A CUDA client under a shared quota, which makes the given calls and stops at each `wait`.
struct Client(Running, BufReader<std::process::ChildStdout>);

impl Client {
    fn start(machine: &Machine, quota: &Path, calls: &[&str]) -> Self {
        let mut command = machine.client("dl", calls);
        command.env("WRAPPER_SHARED", quota).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child: Child = command.spawn().unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        Self(Running(child), out)
    }

    fn until_waiting(&mut self) {
        let mut line = String::new();
        while line != "waiting\n" {
            line.clear();
            assert_ne!(self.1.read_line(&mut line).unwrap(), 0, "the client exited before its `wait`");
        }
    }

    fn go_on(&mut self) {
        self.0.0.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
        self.until_waiting();
    }
}

#[test]
fn quota_file_is_exported_for_its_processes() {
    let machine = Machine::new();
    let directory = tempfile::tempdir().unwrap();
    let quota = directory.path().join("1000/a");
    fs::create_dir(directory.path().join("1000")).unwrap();
    bailiff_ledger::create(&quota, &[(uuid(0), 100 * MIB)]).unwrap();
    let (forty, seventy) = (format!("alloc {}", 40 * MIB), format!("alloc {}", 70 * MIB));
    let calls = ["init 0", &forty, "wait", &seventy, "wait"];
    let mut client = Client::start(&machine, &quota, &calls);
    client.until_waiting();
    let pid = client.0.0.id();
    let scenario = Scenario::new(&scenario(&[(pid, 300)]));
    let exporter = watch(&scenario, directory.path());
    let page =
        exporter.until("the process is known", |page| of(page, "process_used_bytes").map(|_| page.clone()));
    let figures = ["region_valid", "limit_bytes", "used_bytes", "peak_bytes", "denied_total"];
    let mib = |mib: u64| Some((mib * MIB) as f64);
    assert_eq!(figures.map(|name| of(&page, name)), [Some(1.0), mib(100), mib(40), mib(40), Some(0.0)]);
    assert_eq!(of(&page, "unaccounted_bytes"), mib(260), "the context's memory is not accounted");
    let labels = [("quota", "1000/a"), ("gpu", "0"), ("gpu_uuid", UUID), ("pid", &pid.to_string())];
    assert_eq!(page.value("bailiff_quota_process_used_bytes", &labels), mib(40));
    assert_eq!((of(&page, "processes"), of(&page, "dead_slots")), (Some(1.0), Some(0.0)));
    assert_eq!(page.value("bailiff_source_up", &[("source", "quota")]), Some(1.0));
    assert_eq!(of(&page, "hooks_missing"), Some(0.0));
    let shown = http::get(exporter.address(), "/", &[]).unwrap().text();
    assert!(shown.contains(">Quotas</h2>") && shown.contains("1000/a"), "{shown}");
    client.go_on();
    let page = exporter.next();
    assert_eq!((of(&page, "denied_total"), of(&page, "denied_bytes_total")), (Some(1.0), mib(70)));
    // The process and its driver memory are gone, but its slot and the memory in the slot remain until the slot is
    // reused.
    drop(client);
    scenario.set(&self::scenario(&[]));
    let page = exporter.next();
    assert_eq!((of(&page, "processes"), of(&page, "dead_slots")), (Some(0.0), Some(1.0)));
    assert_eq!((of(&page, "used_bytes"), of(&page, "unaccounted_bytes")), (mib(40), Some(0.0)));
    assert_eq!(of(&page, "process_used_bytes"), None);
}

#[test]
fn missing_directory_leaves_quotas_absent() {
    let directory = tempfile::tempdir().unwrap();
    let scenario = Scenario::new(&scenario(&[]));
    let exporter = watch(&scenario, &directory.path().join("none"));
    let page = exporter.next();
    assert_eq!(page.value("bailiff_source_up", &[("source", "quota")]), None);
    assert_eq!(of(&page, "region_valid"), None);
    fs::create_dir(directory.path().join("none")).unwrap();
    exporter.until("the directory is read", |page| page.value("bailiff_source_up", &[("source", "quota")]));
    assert_eq!(of(&exporter.next(), "region_valid"), None);
}

/// Writes a slot for a process: its pid in its PID namespace, and the memory that it claims on the first GPU.
fn write_claim(file: &File, (slot, pid): (u64, u32), used: u64) {
    let stat = bailiff_snapshot::stat::parse(&fs::read(format!("/proc/{pid}/stat")).unwrap()).unwrap();
    let namespace = fs::metadata(format!("/proc/{pid}/ns/pid")).unwrap().ino();
    let at = SLOTS + 64 * slot;
    file.write_all_at(&stat.key.start_ticks.to_le_bytes(), at + 8).unwrap();
    file.write_all_at(&namespace.to_le_bytes(), at + 16).unwrap();
    file.write_all_at(&used.to_le_bytes(), USED + 8 * slot).unwrap();
    file.write_all_at(&pid.to_le_bytes(), at).unwrap();
}

fn quota_file(path: PathBuf) -> File {
    bailiff_ledger::create(&path, &[(uuid(0), 100 * MIB)]).unwrap();
    OpenOptions::new().write(true).open(path).unwrap()
}

#[test]
fn hostile_files_are_rejected() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    let mut victim = Holder::sleeping();
    mknodat(CWD, path("fifo"), FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
    symlink("/dev/zero", path("link")).unwrap();
    fs::write(path("empty"), "").unwrap();
    fs::write(path("text"), "x".repeat(30_000)).unwrap();
    fs::write(path("small"), "BAILIFFQ").unwrap();
    fs::write(path("new\nline{a=\"b\"} 1"), "").unwrap();
    // Impossible numbers, the same GPU in all rows, and a process that does not use the file.
    let absurd = quota_file(path("absurd"));
    for row in 0..16 {
        absurd.write_all_at(&uuid(0), 128 + 64 * row).unwrap();
        absurd.write_all_at(&[0xff; 48], 128 + 64 * row + 16).unwrap();
    }
    absurd.write_all_at(&[0xff; 24], 40).unwrap();
    for slot in 0..3 {
        write_claim(&absurd, (slot, victim.pid()), u64::MAX);
    }
    let good = fs::read(path("absurd")).unwrap();
    let scenario = Scenario::new(&scenario(&[(victim.pid(), 300)]));
    let exporter = watch(&scenario, directory.path());
    let page = exporter.next();
    for (name, reason) in [("fifo", "no_file"), ("link", "no_file"), ("text", "no_quota"), ("small", "short")]
    {
        assert_eq!(page.value("bailiff_quota_region_valid", &[("quota", name)]), Some(0.0), "{name}");
        let labels = [("quota", name), ("reason", reason)];
        assert_eq!(page.value("bailiff_quota_region_fault_info", &labels), Some(1.0), "{name}");
    }
    assert_eq!(page.all("bailiff_quota_region_valid", &[]).count(), 5, "the empty file is not exported");
    assert_eq!(page.value("bailiff_quota_processes", &[("quota", "absurd")]), Some(3.0));
    assert_eq!(of(&page, "process_used_bytes"), None, "the process has not mapped the file");
    assert_eq!(of(&page, "unaccounted_bytes"), None);
    // The file is truncated and restored while the exporter reads it.
    let before = exporter.children("sampling-worker");
    for _ in 0..20 {
        for _ in 0..200 {
            absurd.set_len(0).unwrap();
            absurd.write_all_at(&good, 0).unwrap();
        }
        exporter.next();
    }
    assert_eq!(exporter.children("sampling-worker"), before, "no worker was lost");
    victim.end();
}

#[test]
fn process_of_another_pid_namespace_is_matched() {
    let directory = tempfile::tempdir().unwrap();
    let file = quota_file(directory.path().join("a"));
    let map = format!(
        "import mmap, os, time\nfile = open('{}/a', 'r+b')\nmapped = mmap.mmap(file.fileno(), 0)\n\
         print(os.getpid(), flush=True)\ntime.sleep(10000)",
        directory.path().display()
    );
    let mut command = Command::new("unshare");
    command.args(["--pid", "--fork", "--kill-child", "python3", "-c", &map]).stdout(Stdio::piped());
    let mut outer = Running(command.spawn().unwrap());
    let mut inside = String::new();
    BufReader::new(outer.0.stdout.take().unwrap()).read_line(&mut inside).unwrap();
    let children = fs::read_to_string(format!("/proc/{0}/task/{0}/children", outer.0.id())).unwrap();
    let pid: u32 = children.trim().parse().unwrap();
    write_claim(&file, (0, pid), 7 * MIB);
    file.write_all_at(&inside.trim().parse::<u32>().unwrap().to_le_bytes(), SLOTS).unwrap();
    let scenario = Scenario::new(&scenario(&[(pid, 300)]));
    let exporter = watch(&scenario, directory.path());
    let labels = [("pid", &*pid.to_string())];
    let used = |page: &Page| page.value("bailiff_quota_process_used_bytes", &labels);
    assert_eq!(exporter.until("the process is exported", used), (7 * MIB) as f64);
    assert_eq!(of(&exporter.next(), "unaccounted_bytes"), Some((293 * MIB) as f64));
}

/// Starts a program that maps a file in this directory, and that runs `then` once the test lets it continue.
fn mapping_process(directory: &Path, then: &str) -> Running {
    let program = format!(
        "import mmap, os, sys\nfile = open('{}/a', 'r+b')\nmapped = mmap.mmap(file.fileno(), 0)\n\
         print('ready', flush=True)\nsys.stdin.readline()\n{then}\nprint('done', flush=True)\nsys.stdin.read()",
        directory.display()
    );
    let mut command = Command::new("python3");
    command.args(["-c", &program]).stdin(Stdio::piped()).stdout(Stdio::piped());
    Running(command.spawn().unwrap())
}

#[test]
fn process_that_left_its_file_is_not_listed() {
    let directory = tempfile::tempdir().unwrap();
    let file = quota_file(directory.path().join("a"));
    for then in ["mapped.close()", "os.execvp('sh', ['sh', '-c', 'echo done; read nothing'])"] {
        let mut user = mapping_process(directory.path(), then);
        let mut out = BufReader::new(user.0.stdout.take().unwrap());
        let mut line = || {
            let mut line = String::new();
            out.read_line(&mut line).unwrap();
            line
        };
        assert_eq!(line(), "ready\n");
        write_claim(&file, (0, user.0.id()), 7 * MIB);
        let scenario = Scenario::new(&scenario(&[(user.0.id(), 300)]));
        let exporter = watch(&scenario, directory.path());
        exporter.until("the process is exported", |page| of(page, "process_used_bytes"));
        user.0.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
        assert_eq!(line(), "done\n");
        assert_eq!(of(&exporter.next(), "process_used_bytes"), None, "{then}");
        assert_eq!(
            of(&exporter.next(), "used_bytes"),
            Some((7 * MIB) as f64),
            "the file still contains the claim"
        );
    }
}

#[test]
fn file_of_an_earlier_boot_has_no_process() {
    let directory = tempfile::tempdir().unwrap();
    let mut holder = Holder::sleeping();
    let file = quota_file(directory.path().join("a"));
    write_claim(&file, (0, holder.pid()), 7 * MIB);
    file.write_all_at(&[1; 16], 24).unwrap();
    let scenario = Scenario::new(&scenario(&[(holder.pid(), 300)]));
    let exporter = watch(&scenario, directory.path());
    let page = exporter.until("the quota is exported", |page| of(page, "region_valid").map(|_| page.clone()));
    assert_eq!((of(&page, "used_bytes"), of(&page, "processes")), (Some(0.0), Some(0.0)));
    assert_eq!(of(&page, "limit_bytes"), Some((100 * MIB) as f64));
    holder.end();
}

#[test]
fn thousand_files_of_one_user_hide_no_others() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    for name in ["crowd-0", "crowd-1", "honest"] {
        fs::create_dir(path(name)).unwrap();
    }
    let _honest = quota_file(path("honest/a"));
    for number in 0..1200 {
        fs::copy(path("honest/a"), path(&format!("crowd-{}/{number}", number % 2))).unwrap();
    }
    for (name, owner) in [("crowd-0", 1001), ("crowd-1", 1001), ("honest", 1002)] {
        std::os::unix::fs::chown(path(name), Some(owner), None).unwrap();
    }
    // A hard link to the same file, and a directory outside the quota directory.
    fs::hard_link(path("honest/a"), path("honest/b")).unwrap();
    symlink(path("honest"), path("link")).unwrap();
    let scenario = Scenario::new(&scenario(&[]));
    let exporter = watch(&scenario, directory.path());
    let seen = |page: &Page| page.value("bailiff_source_up", &[("source", "quota")]).map(|_| page.clone());
    let page = exporter.until("the directory is read", seen);
    let named = |prefix: &str| -> usize {
        let all = page.all("bailiff_quota_used_bytes", &[]);
        all.filter(|(labels, _)| labels["quota"].starts_with(prefix)).count()
    };
    assert_eq!((named("crowd"), named("honest"), named("link")), (64, 1, 0));
    assert!(page.value("bailiff_gaps_total", &[("gap", "quotas")]) > Some(0.0), "the gap is counted");
}

/// Waits for a page with the quotas of a directory, and returns it and the number of files in the directories with this
/// prefix that it shows.
fn counted(exporter: &Exporter, prefix: &str) -> (Page, usize) {
    let seen = |page: &Page| {
        page.value("bailiff_quota_used_bytes", &[("quota", "honest/a"), ("gpu_uuid", UUID)])
            .map(|_| page.clone())
    };
    let page = exporter.until("the quota of another user", seen);
    let all = page.all("bailiff_quota_region_valid", &[]);
    let count = all.filter(|(labels, _)| labels["quota"].starts_with(prefix)).count();
    assert!(page.value("bailiff_gaps_total", &[("gap", "quotas")]) > Some(0.0), "the gap is counted");
    (page, count)
}

#[test]
fn directories_of_one_user_delay_no_sample() {
    const DIRECTORIES: u32 = 200;
    const LINKS: u32 = 1000;
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    fs::create_dir(path("honest")).unwrap();
    let _honest = quota_file(path("honest/a"));
    for number in 0..DIRECTORIES {
        let crowd = path(&format!("crowd-{number}"));
        fs::create_dir(&crowd).unwrap();
        fs::copy(path("honest/a"), crowd.join("0")).unwrap();
        for link in 1..LINKS {
            fs::hard_link(crowd.join("0"), crowd.join(link.to_string())).unwrap();
        }
        std::os::unix::fs::chown(crowd, Some(1001), None).unwrap();
    }
    let scenario = Scenario::new(&scenario(&[]));
    // With the usual deadline.
    let flags = ["--quota.dir", &directory.path().display().to_string()];
    let exporter = Exporter::start(&scenario, &flags);
    assert_eq!(counted(&exporter, "crowd").1, 1, "of files with several links, one is shown");
}

/// Fills the directories of 16 users with files of full slots for this many GPUs, and returns how many files are shown.
fn full_files(gpus: u8) -> usize {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    fs::create_dir(path("honest")).unwrap();
    let _honest = quota_file(path("honest/a"));
    let limits: Vec<_> = (0..gpus).map(|gpu| (uuid(gpu), 100 * MIB)).collect();
    bailiff_ledger::create(&path("full"), &limits).unwrap();
    let full = OpenOptions::new().write(true).open(path("full")).unwrap();
    for slot in 0..128 {
        // The process is in a PID namespace that does not exist, so it may run.
        for (at, number) in [(0, 7), (8, u64::MAX), (16, 7)] {
            full.write_all_at(&number.to_le_bytes(), SLOTS + 64 * slot + at).unwrap();
        }
    }
    full.write_all_at(&[0xff; 8 * 16 * 128], USED).unwrap();
    for uid in 100_000..100_016 {
        let crowd = path(&format!("crowd-{uid}"));
        fs::create_dir(&crowd).unwrap();
        for number in 0..64 {
            fs::copy(path("full"), crowd.join(number.to_string())).unwrap();
        }
        std::os::unix::fs::chown(crowd, Some(uid), None).unwrap();
    }
    fs::remove_file(path("full")).unwrap();
    let scenario = Scenario::new(&scenario(&[]));
    let exporter = watch(&scenario, directory.path());
    counted(&exporter, "crowd").1
}

#[test]
fn full_files_of_many_users_are_shown_up_to_a_limit() {
    // A file counts as 128 * (GPUs + 10) + 10 * GPUs figures, of which there are at most 2^18.
    assert_eq!([full_files(16), full_files(1)], [75, 184]);
}

#[test]
fn quota_rule_ends_only_processes_over_their_quota() {
    let directory = tempfile::tempdir().unwrap();
    let quotas = directory.path().display().to_string();
    fs::set_permissions(directory.path(), Permissions::from_mode(0o755)).unwrap();
    let rules = "version: 1
mode: enforce
defaults: {startup_grace: 0s, clear_after: 1, grace: 30s}
rules:
  - name: over-quota
    target: process
    when: {vram_quota_ratio: {above: 110%}}
    for: {samples: 3}
    then: [{flag: warning}, {after: {samples: 2}, terminate: {}}]
";
    let gpu = format!("uuid: {UUID}");
    let ticks = [&node::TICKS[..], &["--quota.dir", &quotas]].concat();
    let node = Node::with_ticks(rules, &[&gpu], &ticks);
    let [greedy, forged] = ["greedy", "forged"].map(|name| {
        let file = quota_file(directory.path().join(name));
        fs::set_permissions(directory.path().join(name), Permissions::from_mode(0o666)).unwrap();
        file
    });
    let map = format!(
        "import mmap, time\nfile = open('{quotas}/greedy', 'r+b')\nmapped = mmap.mmap(file.fileno(), 0)\n\
         print('ready', flush=True)\ntime.sleep(10000)"
    );
    let user = Tenant::running(&node.home, &["python3", "-c", &map]);
    until("the file is mapped", || (!user.output_lines().is_empty()).then_some(()));
    let victim = Tenant::running(&node.home, &["sleep", "infinity"]);
    write_claim(&greedy, (0, user.pid()), 90 * MIB);
    // Both files contain a process that uses neither of them, and one of the files has a tiny limit.
    write_claim(&greedy, (1, victim.pid()), 0);
    write_claim(&forged, (0, victim.pid()), MIB);
    forged.write_all_at(&MIB.to_le_bytes(), LIMIT).unwrap();
    node.hold_together(&[(&user, "used: 105MiB, sm: 0"), (&victim, "used: 1GiB, sm: 0")]);
    let enforcer = node.home.enforcer(&[]);
    enforcer.ticks(10);
    assert!(
        user.is_running() && victim.is_running(),
        "105 MiB of 100 MiB exceeds the limit by less than a tenth"
    );
    node.hold(&user, 0, "used: 150MiB, sm: 0");
    user.gone();
    let end = node.home.until_line("terminate", "released");
    assert_eq!(end["target"]["members"][0]["pid"], user.pid());
    enforcer.ticks(10);
    assert!(victim.is_running());
}
