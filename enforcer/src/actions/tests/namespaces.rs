//! Tests that need a separate namespace or cgroup: a reused pid, and a cgroup that is killed as a whole. The
//! ignored tests are run by the others, inside the namespace.

use std::time::Duration;

use super::*;
use crate::actions::cgroup::Boundary;
use crate::actions::cgroup_kill;
use crate::actions::group::Group;
use crate::actions::inbox::Inbox;
use bailiff_engine::verdict::Outcome;

const LONG: Duration = Duration::from_secs(40);
const CGROUPS: [&str; 2] = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"];

/// Runs an ignored test of this module below `unshare`.
fn inside(unshare: &[&str], test: &str) {
    let name = format!("{}::{test}", module_path!().split_once("::").unwrap().1);
    let output = Command::new("unshare")
        .args(unshare)
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "--ignored", "--nocapture", &name])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && text.contains("1 passed"),
        "{text}\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

#[test]
fn a_process_that_got_the_pid_of_the_judged_one_lives() {
    inside(&["--pid", "--fork", "--mount-proc"], "a_reused_pid");
}

#[test]
#[ignore = "run in a PID namespace of its own, where the next pid can be chosen"]
fn a_reused_pid() {
    let home = Home::new();
    let start = |pid: u32| {
        fs::write("/proc/sys/kernel/ns_last_pid", (pid - 1).to_string()).unwrap();
        let mut command = Command::new("/bin/sleep");
        command.arg("1000").uid(NOBODY).gid(NOBODY).stdin(File::open(home.device()).unwrap());
        Holder(command.spawn().unwrap())
    };
    let first = start(4100);
    assert_eq!(first.pid(), 4100, "the next pid could be chosen");
    let subject = of_process(&first);
    drop(first);
    // Retries until the process starts in a later clock tick: only the start tick differs from the first process.
    let second = until("another start time", || {
        let again = start(4100);
        (again.pid() == 4100 && again.key() != subject.members[0].key.unwrap()).then_some(again)
    });
    let mut hands = home.executor();
    let report = hands.act(terminate(subject, LONG), &mut Machine::default());
    assert_eq!(report.outcome, Outcome::IdentityChanged, "{}", report.detail);
    assert!(second.lives());
    assert_eq!(home.results(), ["identity_changed"]);
}

/// A cgroup v2 that looks like a container's, for one test.
struct Container {
    root: PathBuf,
    id: String,
}

impl Container {
    /// Creates the cgroup; returns `None` if that is not possible here.
    fn new(digit: char) -> Option<Self> {
        let id: String = std::iter::repeat_n(digit, 64).collect();
        let root = CGROUPS.map(PathBuf::from).into_iter().find(|root| root.join("cgroup.procs").exists())?;
        let container = Self { root, id };
        fs::create_dir_all(container.directory()).ok()?;
        container.directory().join("cgroup.kill").exists().then_some(container)
    }

    fn path(&self) -> String {
        format!("/bailiff_test{}.slice/docker-{}.scope", std::process::id(), self.id)
    }

    fn directory(&self) -> PathBuf {
        self.root.join(&self.path()[1..])
    }

    fn take(&self, pid: u32) {
        fs::write(self.directory().join("cgroup.procs"), pid.to_string()).unwrap();
    }

    fn pids(&self) -> Vec<u32> {
        let text = fs::read_to_string(self.directory().join("cgroup.procs")).unwrap();
        text.lines().map(|line| line.parse().unwrap()).collect()
    }

    fn subject(&self, holder: &Holder) -> Subject {
        subject(Kind::Workload, &format!("workload:container:{}", self.path()), &[holder.key()])
    }

    fn settings(&self, home: &Home) -> ExecutorSettings {
        ExecutorSettings { cgroups: Some(self.root.clone()), ..home.settings() }
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        let _ = fs::write(self.directory().join("cgroup.kill"), "1");
        until("an empty cgroup", || fs::remove_dir(self.directory()).ok());
        let _ = fs::remove_dir(self.directory().parent().unwrap());
    }
}

/// Moves the holder and the processes in its session into the container.
fn in_container(container: &Container, holder: &Holder) {
    container.take(holder.pid());
    for pid in of_session(holder.pid()) {
        container.take(pid);
    }
}

#[test]
fn a_container_is_ended_with_what_left_the_session() {
    let Some(container) = Container::new('1') else {
        return println!("skipped: no cgroup of version 2 can be made here");
    };
    let home = Home::new();
    let holder = Holder::shell(&home, "trap '' TERM; read word < /dev/null; echo ready; exec sleep 1000");
    in_container(&container, &holder);
    let stranger = Holder::shell(&home, "trap '' TERM; echo ready; exec sleep 1000");
    container.take(stranger.pid());
    let outside = Holder::shell(&home, "echo ready; exec sleep 1000");
    let mut machine = Machine::with(&[holder.key()]);
    let request = terminate(container.subject(&holder), Duration::from_millis(200));
    let report = home.executor_with(container.settings(&home)).act(request, &mut machine);
    assert_eq!(report.outcome, Outcome::Released, "{}", report.detail);
    assert!(!holder.lives() && !stranger.lives() && outside.lives());
    assert_eq!(container.pids(), Vec::<u32>::new());
}

#[test]
fn a_cgroup_is_ended_whole_only_with_the_verified_in_it() {
    let Some(container) = Container::new('2') else {
        return println!("skipped: no cgroup of version 2 can be made here");
    };
    let home = Home::new();
    let holder = Holder::shell(&home, "echo ready; exec sleep 1000");
    container.take(holder.pid());
    let request = terminate(container.subject(&holder), LONG);
    let permit = super::super::permit::for_a_test();
    let inbox = Inbox::new(tokio::sync::mpsc::unbounded_channel().0).unwrap();
    let proc_table = Processes::open("/proc".as_ref(), &home.device().display().to_string()).unwrap();
    let gather = || {
        let table = proc_table.everybody().unwrap();
        Group::gather(&proc_table, &request, (None, table)).unwrap()
    };

    let mut group = gather();
    let stranger = Holder::start(&home, 0, &["/bin/sh", "-c", "echo ready; exec sleep 1000"]);
    container.take(stranger.pid());
    let refused = cgroup_kill::kill(&container.root, &inbox, &mut group, &permit).unwrap_err();
    assert!(refused.contains("it has uid 0"), "{refused}");
    assert!(holder.lives() && stranger.lives());
    let frozen = fs::read_to_string(container.directory().join("cgroup.freeze")).unwrap();
    assert_eq!(frozen.trim(), "0", "and run on");
    drop(stranger);

    let mut group = gather();
    cgroup_kill::kill(&container.root, &inbox, &mut group, &permit).unwrap();
    until("the end", || (!holder.lives()).then_some(()));
}

#[test]
fn cgroup_made_again_at_the_same_path_has_no_members() {
    let Some(container) = Container::new('3') else {
        return println!("skipped: no cgroup of version 2 can be made here");
    };
    let home = Home::new();
    let holder = Holder::shell(&home, "echo ready; exec sleep 1000");
    container.take(holder.pid());
    let request = terminate(container.subject(&holder), LONG);
    let proc_table = Processes::open("/proc".as_ref(), &home.device().display().to_string()).unwrap();
    let boundary = Boundary::open(Some(&container.root), &request.subject);
    let mut group = Group::gather(&proc_table, &request, (None, proc_table.everybody().unwrap())).unwrap();
    group.boundary = boundary;
    let sibling = Holder::shell(&home, "echo ready; exec sleep 1000");
    container.take(sibling.pid());
    assert_eq!(group.renew().unwrap(), 1, "a process that joined the cgroup is a member");
    group.ask(&super::super::permit::for_a_test());
    drop((holder, sibling));
    until("an empty cgroup", || fs::remove_dir(container.directory()).ok());
    fs::create_dir(container.directory()).unwrap();
    let stranger = Holder::shell(&home, "echo ready; exec sleep 1000");
    container.take(stranger.pid());
    assert_eq!(group.renew().unwrap(), 0);
    assert!(group.all_ended() && stranger.lives());
}

#[test]
fn directory_of_another_mount_namespace_differs_only_if_it_is_another() {
    let directory = tempfile::tempdir().unwrap();
    let (here, below) = (directory.path().display().to_string(), directory.path().join("below"));
    fs::create_dir(&below).unwrap();
    let script = format!("mount -t tmpfs none {} && echo ready && exec sleep 1000", below.display());
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", &script]).stdout(Stdio::piped());
    let mut child = Holder(command.spawn().unwrap());
    let mut ready = [0; 6];
    std::io::Read::read_exact(&mut child.0.stdout.take().unwrap(), &mut ready).unwrap();
    let table = Processes::open("/proc".as_ref(), "/dev/nvidia").unwrap();
    assert_eq!(table.sees_same(child.pid(), &here), Ok(Some(true)));
    assert_eq!(table.sees_same(child.pid(), &below.display().to_string()), Ok(Some(false)));
    assert_eq!(table.sees_same(child.pid(), "/nowhere"), Ok(None));
}
