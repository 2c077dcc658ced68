//! Tests the workloads of holders and their other members, with real and made-up processes, as reported
//! on the stream.
#![allow(
    clippy::disallowed_methods,
    clippy::expect_used,
    clippy::float_cmp,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a case runs programs, reads files, compares exact figures and fails loudly"
)]

use std::process::Command;

use bailiff_snapshot::wire::{Facts, Relative, Snapshot};
use end_to_end::exporter::Exporter;
use end_to_end::fake::Scenario;
use end_to_end::holder::{Session, child, children};
use end_to_end::procfs::{Process, Procfs};
use end_to_end::ticks::Ticks;
use end_to_end::wait::until;

const CONTAINER: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

/// An exporter with one GPU that these processes hold, and the exporter's stream.
struct StreamReader {
    ticks: Ticks,
    _exporter: Exporter,
    _scenario: Scenario,
}

impl StreamReader {
    fn new(holders: &[u32], arguments: &[&str]) -> Self {
        let holders: Vec<String> = holders.iter().map(|pid| format!("{{pid: {pid}, used: 1GiB}}")).collect();
        let scenario = Scenario::new(&format!(
            "sampling_period: 20ms\ngpus:\n  - processes: [{}]\n",
            holders.join(", ")
        ));
        let path = scenario.directory().join("stream.sock");
        let stream = format!("--stream={}", path.display());
        let exporter = Exporter::start(&scenario, &[&[stream.as_str()], arguments].concat());
        Self { ticks: Ticks::of(&path), _exporter: exporter, _scenario: scenario }
    }

    fn over(procfs: &Procfs, holders: &[u32]) -> Self {
        Self::new(holders, &["--procfs", procfs.path().to_str().unwrap()])
    }

    /// Returns the first snapshot with relatives.
    fn next_with_relatives(&mut self) -> Snapshot {
        self.ticks.find(|snapshot| snapshot.relatives.is_some())
    }
}

fn facts(snapshot: &Snapshot, pid: u32) -> &Facts {
    let process = snapshot.processes.iter().find(|process| process.pid == pid).unwrap();
    process.facts.as_ref().unwrap()
}

fn workload(snapshot: &Snapshot, pid: u32) -> &str {
    facts(snapshot, pid).workload.as_deref().unwrap()
}

fn relative(snapshot: &Snapshot, pid: u32) -> Option<&Relative> {
    snapshot.relatives.as_ref()?.iter().find(|relative| relative.pid == pid)
}

fn relatives(snapshot: &Snapshot) -> Vec<u32> {
    snapshot.relatives.as_ref().unwrap().iter().map(|relative| relative.pid).collect()
}

/// Returns the name of a process tree, computed from `/proc`.
fn tree(root: u32) -> String {
    let stat = bailiff_snapshot::stat::parse(&std::fs::read(format!("/proc/{root}/stat")).unwrap()).unwrap();
    format!("tree:{root}@{}", stat.key.start_ticks)
}

fn sorted(mut pids: Vec<u32>) -> Vec<u32> {
    pids.sort_unstable();
    pids
}

#[test]
fn computing_child_is_reported_with_its_cpu_time() {
    let python = end_to_end::programs::python();
    let program = "import subprocess\nsubprocess.Popen(['sh', '-c', 'while :; do :; done']).wait()";
    let session = Session::of(&[python.to_str().unwrap(), "-c", program]);
    let (holder, busy) = (session.leader(), session.child("sh"));
    let mut reader = StreamReader::new(&[holder], &[]);
    let snapshot = reader.next_with_relatives();
    assert_eq!(relatives(&snapshot), [busy]);
    let first = relative(&snapshot, busy).unwrap().clone();
    assert_eq!(workload(&snapshot, holder), tree(holder));
    assert_eq!((first.ppid, first.comm.as_str(), first.workload), (holder, "sh", tree(holder)));
    assert_eq!(first.uid, Some(rustix::process::getuid().as_raw()));
    assert_eq!(first.place, facts(&snapshot, holder).place);
    let exe = std::fs::read_link(format!("/proc/{busy}/exe")).unwrap();
    assert_eq!((first.exe.as_deref(), first.command.as_deref()), (exe.to_str(), None));
    assert_eq!(first.user, facts(&snapshot, holder).user);
    let published = StreamReader::new(&[holder], &["--process.command"]).next_with_relatives();
    assert_eq!(relative(&published, busy).unwrap().command.as_deref(), Some("sh -c while :; do :; done"));
    reader.ticks.until("more time", |snapshot| {
        (relative(snapshot, busy)?.cpu_seconds > first.cpu_seconds).then_some(())
    });
}

#[test]
fn cpu_time_of_exited_children_counts_for_the_parent() {
    let loops = "while :; do sh -c 'i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done'; done";
    let session = Session::of(&["sh", "-c", loops]);
    let mut reader = StreamReader::new(&[session.leader()], &[]);
    let reaped = |snapshot: &Snapshot| facts(snapshot, session.leader()).reaped_cpu_seconds;
    let first = reaped(&reader.next_with_relatives()).unwrap();
    reader.ticks.until("time of exited children", |snapshot| (reaped(snapshot)? > first).then_some(()));
}

#[test]
fn session_led_by_a_program_is_one_workload() {
    let python = end_to_end::programs::python();
    let program = "import subprocess\nsubprocess.Popen(['sh', '-c', 'sleep 300; :']).wait()";
    let session = Session::of(&[python.to_str().unwrap(), "-c", program]);
    let script = session.child("sh");
    let holder = child(script, "sleep");
    let snapshot = StreamReader::new(&[holder], &[]).next_with_relatives();
    assert_eq!(workload(&snapshot, holder), tree(session.leader()));
    assert_eq!(relatives(&snapshot), sorted(vec![session.leader(), script]));
}

#[test]
fn each_job_of_a_shell_is_its_own_workload() {
    // The inner shell runs a script. The outer shell leads the session, as a terminal's shell does.
    let session =
        Session::of(&["bash", "-c", "sh -c 'sleep 300 & sleep 301 & wait' & tail -f /dev/null & wait"]);
    let (script, other) = (session.child("sh"), session.child("tail"));
    let sleeps = until("both", || Some(children(script)).filter(|children| children.len() == 2));
    let holder = child(script, "sleep");
    let snapshot = StreamReader::new(&[holder, other], &[]).next_with_relatives();
    assert_eq!(workload(&snapshot, holder), tree(script));
    assert_eq!(workload(&snapshot, other), tree(other));
    let sibling = sleeps.into_iter().find(|pid| *pid != holder).unwrap();
    assert_eq!(
        relatives(&snapshot),
        sorted(vec![script, sibling]),
        "the interactive shell is not a relative"
    );
}

#[test]
fn descendant_in_another_session_is_reported() {
    let python = end_to_end::programs::python();
    let program = "import subprocess\nsubprocess.Popen(['sleep', '300'], start_new_session=True).wait()";
    let session = Session::of(&[python.to_str().unwrap(), "-c", program]);
    let below = session.child("sleep");
    let snapshot = StreamReader::new(&[session.leader()], &[]).next_with_relatives();
    assert_eq!(relatives(&snapshot), [below]);
    assert_eq!(
        relative(&snapshot, below).unwrap().workload,
        tree(below),
        "the child still has its own workload"
    );
}

#[test]
fn only_processes_of_the_same_container_are_members() {
    let at = |pid: u32, cgroup: &str| Process { cgroup: format!("0::{cgroup}\n"), ..Process::new(pid) };
    let of_user = |uid: u32| format!("/user.slice/user-{uid}.slice/user@{uid}.service/app.slice/nb.service");
    let container = format!("/system.slice/docker-{CONTAINER}.scope");
    let procfs = Procfs::new()
        .with(&at(4100, &container))
        .with(&at(4101, &format!("{container}/below")))
        .with(&at(4200, &of_user(1000)))
        .with(&at(4201, &of_user(1000)))
        .with(&at(4202, &of_user(1001)))
        .with(&at(4300, "/user.slice/user-1000.slice/session-3.scope"))
        .with(&at(4301, "/user.slice/user-1000.slice/session-3.scope"));
    let snapshot = StreamReader::over(&procfs, &[4100, 4200, 4300]).next_with_relatives();
    assert_eq!(workload(&snapshot, 4100), format!("container:{container}"));
    assert_eq!(workload(&snapshot, 4200), format!("unit:{}", of_user(1000)));
    assert_eq!(workload(&snapshot, 4300), "tree:4300@100", "a session is not a workload");
    assert_eq!(relatives(&snapshot), [4101, 4201]);
    let other = relative(&snapshot, 4101).unwrap();
    assert_eq!((other.cpu_seconds, other.reaped_cpu_seconds, &*other.state), (20.0, 0.5, "sleeping"));
    assert_eq!(facts(&snapshot, 4100).reaped_cpu_seconds, Some(0.5));
}

#[test]
fn overlong_cgroup_path_is_absent() {
    let deep = format!("0::/{}\n", "nested/".repeat(300));
    let child = Process { ppid: 4100, session: Some(4100), cgroup: deep, ..Process::new(4200) };
    let procfs = Procfs::new().with(&Process::new(4100)).with(&child);
    std::os::unix::fs::symlink(format!("/{}", "nested/".repeat(300)), procfs.path().join("4200/exe"))
        .unwrap();
    std::os::unix::fs::symlink(format!("/{}", "\u{1}".repeat(300)), procfs.path().join("4100/exe")).unwrap();
    let snapshot = StreamReader::over(&procfs, &[4100]).next_with_relatives();
    let other = relative(&snapshot, 4200).unwrap();
    assert_eq!((other.place.cgroup.as_str(), other.exe.as_deref()), ("", None));
    assert_eq!(facts(&snapshot, 4100).exe, None, "the path is too long once escaped as JSON");
}

#[test]
fn exited_thread_group_leader_is_reported() {
    let session = "0::/system.slice/nb.service\n";
    let of_unit = |process: Process| Process { cgroup: session.into(), ..process };
    let procfs = Procfs::new()
        .with(&of_unit(Process::new(4100)))
        .with(&of_unit(Process { state: 'Z', threads: vec!['S'], ..Process::new(4200) }))
        .with(&of_unit(Process { state: 'Z', ..Process::new(4300) }));
    let snapshot = StreamReader::over(&procfs, &[4100]).next_with_relatives();
    let state = |pid| relative(&snapshot, pid).unwrap().state.clone();
    assert_eq!((&*state(4200), &*state(4300)), ("zombie_leader", "zombie"));
}

/// An incomplete list is left out, and is reported again once it is complete. Holders are always
/// reported.
#[test]
fn incomplete_member_list_is_absent() {
    let job = Process { session: Some(4100), ..Process::new(4100) };
    let below = Process { ppid: 4100, session: Some(4100), ..Process::new(4101) };
    let procfs = Procfs::new().with(&job).with(&below).with(&Process::new(4200));
    let mut reader = StreamReader::over(&procfs, &[4101]);
    let snapshot = reader.next_with_relatives();
    assert_eq!((relatives(&snapshot), workload(&snapshot, 4101)), (vec![4100], "tree:4100@100"));
    let none = |snapshot: &Snapshot| snapshot.relatives.is_none();
    let workload_of = |snapshot: &Snapshot| facts(snapshot, 4101).workload.clone();

    procfs.write("4200/stat", "4200 (cut");
    let snapshot = reader.ticks.find(none);
    assert_eq!(
        workload_of(&snapshot).as_deref(),
        Some("tree:4100@100"),
        "the holder's own ancestors were read"
    );
    procfs.write("4100/stat", "4100 (cut");
    reader.ticks.until("an ancestor not in the process table", |snapshot| {
        (none(snapshot) && workload_of(snapshot).is_none()).then_some(())
    });
    procfs.add(&job);
    procfs.add(&Process::new(4200));
    reader.next_with_relatives();

    procfs.remove(1);
    let snapshot = reader.ticks.find(none);
    assert_eq!(
        workload_of(&snapshot).as_deref(),
        Some("tree:4100@100"),
        "processes that were observed earlier remain"
    );
    procfs.remove(4100);
    reader.ticks.until("a parent that may be hidden", |snapshot| {
        (none(snapshot) && workload_of(snapshot).is_none()).then_some(())
    });
}

/// A process that cannot be attributed does not affect other processes.
#[test]
fn process_with_unreadable_cgroup_is_left_out() {
    let procfs = Procfs::new().with(&Process::new(4100)).with(&Process::new(4200));
    std::fs::remove_file(procfs.path().join("4200/cgroup")).unwrap();
    let mut reader = StreamReader::over(&procfs, &[4100]);
    let workload_of = |snapshot: &Snapshot| facts(snapshot, 4100).workload.clone();
    let snapshot = reader.next_with_relatives();
    assert!(relatives(&snapshot).is_empty());
    assert_eq!(workload_of(&snapshot).as_deref(), Some("tree:4100@100"));
    std::fs::remove_file(procfs.path().join("4100/cgroup")).unwrap();
    let again = StreamReader::over(&procfs, &[4100]).next_with_relatives();
    assert_eq!(workload_of(&again), None);
}

/// It may be a member of the workload of its parent.
#[test]
fn child_with_unreadable_cgroup_makes_only_its_relatives_unknown() {
    let below = |pid, ppid| Process { ppid, session: Some(4100), ..Process::new(pid) };
    let procfs = Procfs::new().with(&Process::new(4100)).with(&Process::new(4300));
    let procfs = procfs.with(&below(4101, 4100)).with(&below(4102, 4100)).with(&below(4103, 4102));
    std::fs::remove_file(procfs.path().join("4102/cgroup")).unwrap();
    let snapshot = StreamReader::over(&procfs, &[4101, 4300]).next_with_relatives();
    assert_eq!(workload(&snapshot, 4101), "tree:4100@100");
    let unclear = |pid| facts(&snapshot, pid).unread_relatives;
    assert_eq!([4101, 4300].map(unclear), [true, false]);
    // A child of a holder, and a child of that.
    let snapshot = StreamReader::over(&procfs, &[4100, 4300]).next_with_relatives();
    let unclear = |pid| facts(&snapshot, pid).unread_relatives;
    assert_eq!([4100, 4300].map(unclear), [true, false]);
    assert_eq!(relatives(&snapshot), [4101]);
}

#[test]
fn children_of_criu_are_restored_also_after_it_has_exited() {
    let criu = |pid| Process { comm: "criu".into(), owner: 0, ..Process::new(pid) };
    let docker = format!("0::/system.slice/docker-{CONTAINER}.scope\n");
    let criu_of = [
        criu(4000),
        Process { owner: 1000, ..criu(4010) },
        Process { cgroup: docker, ..criu(4020) },
        // A setuid program that a user started under this name.
        criu(4030),
        Process::new(4040),
    ];
    let child = |parent: &Process| Process { ppid: parent.pid, ..Process::new(parent.pid + 1) };
    let procfs = criu_of.iter().fold(Procfs::new(), |all, parent| all.with(parent).with(&child(parent)));
    // Files of root.
    procfs.write("bin/criu", "");
    std::os::unix::fs::symlink(procfs.path().join("bin/criu"), procfs.path().join("4000/exe")).unwrap();
    std::os::unix::fs::symlink("/usr/bin/su", procfs.path().join("4030/exe")).unwrap();
    let holders = criu_of.map(|parent| parent.pid + 1);
    let mut reader = StreamReader::over(&procfs, &holders);
    let restored = |snapshot: &Snapshot| holders.map(|pid| facts(snapshot, pid).restored);
    assert_eq!(restored(&reader.next_with_relatives()), [true, false, false, false, false]);
    procfs.add(&Process::new(4001));
    procfs.remove(4000);
    let snapshot = reader.ticks.find(|snapshot| facts(snapshot, 4001).ppid == 1);
    assert_eq!(restored(&snapshot), [true, false, false, false, false], "criu -d");
    procfs.write("4001/stat", "4001 (python3) S 1 4001 4001 0 -1 4194304 0 0 0 0 0 0 0 0 20 0 1 0 200 0 0");
    reader
        .ticks
        .until("another process with this pid", |snapshot| (!facts(snapshot, 4001).restored).then_some(()));
}

#[test]
fn process_table_over_the_limit_is_not_read() {
    let procfs = Procfs::new().with(&Process::new(4100));
    for pid in 100_000..100_000 + (32 << 10) {
        // Hard links to one file are faster to create and remove than directories, and only the names
        // matter.
        std::fs::hard_link(procfs.path().join("stat"), procfs.path().join(pid.to_string())).unwrap();
    }
    let snapshot = StreamReader::over(&procfs, &[4100]).ticks.find(|snapshot| !snapshot.processes.is_empty());
    assert_eq!((snapshot.relatives.as_ref(), workload(&snapshot, 4100)), (None, "tree:4100@100"));
}

#[test]
fn without_holders_no_process_table_is_read() {
    let procfs = Procfs::new().with(&Process::new(4100));
    let mut reader = StreamReader::over(&procfs, &[]);
    assert_eq!(
        reader.ticks.find(|snapshot| snapshot.sources.get("proc").is_some_and(|proc| proc.up)).relatives,
        None
    );
}

#[test]
fn program_and_owner_groups_are_reported() {
    let session = Session::of(&["sleep", "300"]);
    let mut reader = StreamReader::new(&[session.leader()], &[]);
    let path = format!("/proc/{}/exe", session.leader());
    let exe = until("the process runs sleep", || {
        let exe = std::fs::read_link(&path).ok()?;
        exe.ends_with("sleep").then_some(exe)
    });
    let groups =
        Command::new("id").args(["-Gn"]).arg(rustix::process::getuid().as_raw().to_string()).output();
    let groups = String::from_utf8(groups.unwrap().stdout).unwrap();
    let mut expected: Vec<&str> = groups.split_whitespace().collect();
    expected.sort_unstable();
    let mut groups =
        reader.ticks.until("the groups", |snapshot| facts(snapshot, session.leader()).groups.clone());
    groups.sort_unstable();
    assert_eq!(groups, expected);
    let snapshot = StreamReader::new(&[session.leader()], &[]).next_with_relatives();
    assert_eq!(facts(&snapshot, session.leader()).exe.as_deref(), exe.to_str());
}

#[test]
fn mps_daemon_server_and_client_are_distinguished() {
    let directory = tempfile::tempdir().unwrap();
    let program = directory.path().join("nvidia-cuda-mps-server");
    std::fs::copy("/bin/sleep", &program).unwrap();
    let session = Session::of(&[program.to_str().unwrap(), "300"]);
    let comm = format!("/proc/{}/comm", session.leader());
    until("the process's name", || {
        (std::fs::read_to_string(&comm).ok()? == "nvidia-cuda-mps\n").then_some(())
    });
    let role = |snapshot: &Snapshot, pid| facts(snapshot, pid).role.clone();
    let snapshot = StreamReader::new(&[session.leader()], &[]).next_with_relatives();
    assert_eq!(role(&snapshot, session.leader()).as_deref(), Some("mps_server"));

    let mps = Process { comm: "nvidia-cuda-mps".into(), ..Process::new(4100) };
    let procfs =
        Procfs::new().with(&mps).with(&Process { pid: 4200, ..mps.clone() }).with(&Process::new(4300));
    for pid in [4100, 4200, 4300] {
        procfs.write(&format!("{pid}/cmdline"), "/usr/bin/nvidia-cuda-mps-control\0-d\0");
    }
    let program = "bin/nvidia-cuda-mps-control";
    procfs.write(program, "");
    std::os::unix::fs::symlink(procfs.path().join(program), procfs.path().join("4100/exe")).unwrap();
    let snapshot = StreamReader::over(&procfs, &[4100, 4200, 4300]).next_with_relatives();
    assert_eq!(
        role(&snapshot, 4100).as_deref(),
        Some("mps_control"),
        "a process is recognized by its program, and not by its arguments if it has none"
    );
    assert_eq!((role(&snapshot, 4200), role(&snapshot, 4300)), (None, None));
}

/// A process is moved into its cgroup shortly after it starts, so a young process is read again soon.
#[test]
fn young_process_moved_to_another_cgroup_is_reread() {
    let uptime = std::fs::read_to_string("/proc/uptime").unwrap();
    let seconds: f64 = uptime.split(' ').next().unwrap().parse().unwrap();
    let ticks = format!("{:.0}", seconds * 100.0);
    let container = format!("0::/system.slice/docker-{CONTAINER}.scope\n");
    let procfs = Procfs::new().with(&Process { cgroup: container.clone(), ..Process::new(4100) });
    procfs.add(&Process::new(4200));
    procfs
        .write("4200/stat", &format!("4200 (a) S 1 4200 4200 0 -1 0 0 0 0 0 1 1 0 0 20 0 1 0 {ticks} 0 0\n"));
    let mut reader = StreamReader::over(&procfs, &[4100]);
    assert!(relatives(&reader.next_with_relatives()).is_empty());
    procfs.write("4200/cgroup", &container);
    reader.ticks.until("the process's new cgroup", |snapshot| relative(snapshot, 4200).map(drop));
}
