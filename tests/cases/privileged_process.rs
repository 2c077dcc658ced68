//! The enforcer's privileged process: the daemon has no capabilities, and gains none through this process.
#![allow(
    clippy::disallowed_methods,
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a case runs programs, reads files and fails loudly"
)]

use std::fs::{self, File, Permissions};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use bailiff_proc::Pidfd;
use bailiff_proc::channel::Channel;
use end_to_end::enforcer::{self, Enforcer};
use end_to_end::hung::Hung;
use end_to_end::node::Node;
use end_to_end::programs;
use end_to_end::tenant::{self, Tenant};
use end_to_end::wait::until;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

/// A user with a process on a GPU.
const UID: u32 = 4002;
/// The enforcer's user.
const ENFORCER: u32 = 4003;
/// Time limit of a request.
const PATIENCE: Duration = Duration::from_secs(30);

const RULES: &str = "version: 1
mode: enforce
defaults: {startup_grace: 0s, clear_after: 1, grace: 1s}
protect: [{exe: /usr/bin/nothing, reason: reading the program needs a capability}]
rules:
  - name: idle
    target: process
    select: {vram: {min: 512MiB}}
    when: {gpu_util: {max: 1%}}
    for: {samples: 3}
    then: [{terminate: {}}]
";

/// Starts a program of a user; it ignores SIGTERM if `trap` says so.
fn program_of(node: &Node, uid: u32, trap: &str) -> Tenant {
    let mut command = Command::new("setsid");
    command.args(["sh", "-c", &format!("{trap} while :; do sleep 0.2; done")]);
    command.uid(uid).gid(uid);
    Tenant::spawn(&node.home, command)
}

/// Starts the enforcer as its unit does: as a user of its own, with three capabilities.
fn enforcer_of_unit(node: &Node) -> Enforcer {
    let home = node.home.path();
    fs::set_permissions(home, Permissions::from_mode(0o755)).unwrap();
    for own in [home.to_owned(), node.home.state()] {
        chown(own, Some(ENFORCER), Some(ENFORCER)).unwrap();
    }
    chown(node.home.stream(), None, Some(ENFORCER)).unwrap();
    let rights = "-all,+kill,+sys_ptrace,+dac_read_search";
    // The user may not be allowed to traverse the directories on the path to the program.
    let start = format!(
        "exec setpriv --reuid={ENFORCER} --regid={ENFORCER} --clear-groups --inh-caps={rights} \
         --ambient-caps={rights} --bounding-set={rights} /proc/self/fd/9 \"$@\" 9<\"$0\""
    );
    let mut command = Command::new("sh");
    command.args(["-c", &start]).arg(programs::enforcer()).args(enforcer::arguments(&node.home));
    Enforcer::spawn(&node.home, command)
}

/// Returns the pid of the daemon's privileged process.
fn privileged(enforcer: &Enforcer) -> u32 {
    let of_task = |task: fs::DirEntry| fs::read_to_string(task.path().join("children")).unwrap_or_default();
    until("the privileged process", || {
        let tasks = fs::read_dir(format!("/proc/{}/task", enforcer.pid())).ok()?.flatten();
        let children: String = tasks.map(of_task).collect();
        let is_it = |pid: &u32| {
            fs::read_to_string(format!("/proc/{pid}/cmdline"))
                .is_ok_and(|line| line.contains("privileged-process"))
        };
        children.split_whitespace().filter_map(|pid| pid.parse().ok()).find(is_it)
    })
}

/// Returns a mask of capabilities in `/proc/PID/status`.
fn capabilities(pid: u32, set: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(set)).unwrap();
    u64::from_str_radix(line.trim(), 16).unwrap()
}

#[test]
fn daemon_of_the_unit_terminates_without_capabilities() {
    let node = Node::new(RULES);
    let asked = program_of(&node, UID, "");
    let killed = program_of(&node, UID, "trap '' TERM;");
    for tenant in [&asked, &killed] {
        node.hold(tenant, 0, "used: 1GiB");
    }
    let enforcer = enforcer_of_unit(&node);
    for set in ["CapEff:", "CapPrm:", "CapInh:", "CapAmb:"] {
        assert_eq!(capabilities(enforcer.pid(), set), 0, "{set}");
    }
    let kill_ptrace_and_read = 1 << 5 | 1 << 19 | 1 << 2;
    assert_eq!(capabilities(privileged(&enforcer), "CapEff:"), kill_ptrace_and_read);
    asked.gone();
    killed.gone();
    until("both are verified", || {
        (node.home.results("terminate").iter().filter(|it| *it == "released").count() == 2).then_some(())
    });
    for line in node.home.lines() {
        let notes = line["notes"].to_string();
        assert!(
            !notes.contains("no permission"),
            "the privileged process reads which device is open: {line}"
        );
    }
}

/// Programs of rules inherit this from the thread that starts them.
#[test]
fn no_thread_of_roots_daemon_can_gain_privileges() {
    let node = Node::new(RULES);
    let enforcer = node.home.enforcer(&[]);
    for task in fs::read_dir(format!("/proc/{}/task", enforcer.pid())).unwrap() {
        // A thread may end in the meantime.
        let Ok(status) = fs::read_to_string(task.unwrap().path().join("status")) else { continue };
        assert!(status.contains("NoNewPrivs:\t1\n"), "{status}");
    }
}

#[test]
fn daemon_exits_with_its_privileged_process() {
    let node = Node::new(RULES);
    let mut enforcer = node.home.enforcer(&[]);
    let child = Pid::from_raw(privileged(&enforcer).try_into().unwrap()).unwrap();
    kill_process(child, Signal::TERM).unwrap();
    enforcer.ticks(3);
    kill_process(child, Signal::KILL).unwrap();
    enforcer.until_logged("the privileged process has exited");
    until("the daemon has exited", || enforcer.ended().map(|code| assert_eq!(code, 1)));
}

/// A privileged process, used by an attacker who controls the daemon.
struct Privileged {
    child: Child,
    signals: Channel,
    reads: Channel,
}

impl Privileged {
    fn start(node: &Node) -> Self {
        let ((signals, input), (reads, output)) = (Channel::pair().unwrap(), Channel::pair().unwrap());
        let mut command = Command::new(programs::enforcer());
        command.args(["privileged-process", "/proc"]).arg(node.home.path().join("nvidia"));
        let child = command.stdin(input).stdout(output).spawn().unwrap();
        Self { child, signals, reads }
    }

    fn authorize(&self, holders: &[(u32, u64)], allow_root: bool) -> Value {
        let keys: Vec<Value> =
            holders.iter().map(|(pid, start)| json!({"pid": pid, "start_ticks": start})).collect();
        let request = json!({"Authorize": {"holders": keys, "allow_root": allow_root}});
        self.signals.call(&request, None, PATIENCE).unwrap().0
    }

    fn signal(&self, pid: u32, signal: Signal) -> Value {
        let pidfd = Pidfd::open(pid).unwrap().unwrap();
        self.signals.call(&json!({"Signal": signal.as_raw()}), Some(pidfd.as_fd()), PATIENCE).unwrap().0
    }

    fn read(&self, request: &Value, directory: BorrowedFd<'_>) -> Value {
        self.reads.call(request, Some(directory), PATIENCE).unwrap().0
    }
}

impl Drop for Privileged {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn refused(answer: &Value, why: &str) {
    assert!(answer["Refused"].as_str().is_some_and(|text| text.contains(why)), "{answer}: expected {why}");
}

#[test]
fn privileged_process_signals_only_users_of_gpus() {
    let node = Node::new(RULES);
    let holder = program_of(&node, UID, "");
    let other = program_of(&node, UID + 1, "");
    let mut without_device =
        Command::new("sleep").arg("infinity").uid(UID).stdin(Stdio::null()).spawn().unwrap();
    let key = |tenant: &Tenant| (tenant.pid(), tenant::start(tenant.pid()).unwrap());
    let privileged = Privileged::start(&node);
    let own = "does not belong to the owner";

    refused(&privileged.signal(holder.pid(), Signal::TERM), own);
    let key_without = (without_device.id(), tenant::start(without_device.id()).unwrap());
    refused(&privileged.authorize(&[key_without], true), "no device file open");
    refused(&privileged.signal(without_device.id(), Signal::TERM), own);
    refused(&privileged.authorize(&[key(&holder), key(&other)], false), "several owners");
    refused(&privileged.signal(holder.pid(), Signal::TERM), own);
    let (pid, start) = key(&holder);
    assert_eq!(privileged.authorize(&[(pid, start + 1)], false), "Gone");
    refused(&privileged.signal(pid, Signal::TERM), own);

    assert_eq!(privileged.authorize(&[key(&holder)], false), "Done");
    for pid in [other.pid(), std::process::id(), 1] {
        refused(&privileged.signal(pid, Signal::KILL), own);
    }
    assert_eq!(privileged.signal(holder.pid(), Signal::TERM), "Done");
    holder.gone();
    assert!(other.is_running() && without_device.try_wait().unwrap().is_none());
    without_device.kill().unwrap();
    without_device.wait().unwrap();
}

#[test]
fn privileged_process_signals_no_protected_process() {
    let node = Node::new(RULES);
    let of_root = program_of(&node, 0, "");
    let key = (of_root.pid(), tenant::start(of_root.pid()).unwrap());
    let privileged = Privileged::start(&node);
    assert_eq!(privileged.authorize(&[key], false), "Done");
    refused(&privileged.signal(of_root.pid(), Signal::TERM), "runs as root");
    assert_eq!(privileged.authorize(&[key], true), "Done");
    refused(&privileged.signal(1, Signal::TERM), "init process");
    for pid in [std::process::id(), privileged.child.id()] {
        refused(&privileged.signal(pid, Signal::TERM), "the enforcer or one of its ancestors");
    }
    assert_eq!(privileged.signal(of_root.pid(), Signal::TERM), "Done");
}

#[test]
fn request_that_timed_out_takes_no_effect() {
    let node = Node::new(RULES);
    let holder = program_of(&node, UID, "");
    let key = (holder.pid(), tenant::start(holder.pid()).unwrap());
    let privileged = Privileged::start(&node);
    assert_eq!(privileged.authorize(&[key], false), "Done");
    let process = Pid::from_raw(privileged.child.id().try_into().unwrap()).unwrap();
    kill_process(process, Signal::STOP).unwrap();
    let pidfd = Pidfd::open(holder.pid()).unwrap().unwrap();
    let request = json!({"Signal": Signal::KILL.as_raw()});
    // More requests than the socket's buffer holds.
    for _ in 0..400 {
        let answer = privileged.signals.call::<_, Value>(&request, Some(pidfd.as_fd()), Duration::ZERO);
        assert_eq!(answer.unwrap_err(), rustix::io::Errno::TIMEDOUT);
    }
    kill_process(process, Signal::CONT).unwrap();
    // This request is answered after all the others.
    until("the privileged process answers", || {
        let answer = privileged.signals.call::<_, Value>(&json!("Forget"), None, PATIENCE).ok()?;
        (answer.0 == "Done").then_some(())
    });
    assert!(holder.is_running());
}

#[test]
fn only_freezers_of_cgroups_are_written() {
    let node = Node::new(RULES);
    let file = node.home.path().join("cgroup.freeze");
    fs::write(&file, "kept").unwrap();
    let fifo = node.home.path().join("fifo");
    rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, rustix::fs::Mode::RWXU, 0)
        .unwrap();
    let mut privileged = Privileged::start(&node);
    for path in [&file, &fifo] {
        let request = json!({"Watch": {"freezer": path}});
        assert_eq!(privileged.signals.call::<_, Value>(&request, None, PATIENCE).unwrap().0, "Done");
    }
    // The privileged process thaws what it watches once the daemon is gone.
    let ((signals, _), (reads, _)) = (Channel::pair().unwrap(), Channel::pair().unwrap());
    (privileged.signals, privileged.reads) = (signals, reads);
    assert!(privileged.child.wait().unwrap().success());
    assert_eq!(fs::read_to_string(&file).unwrap(), "kept");
}

/// Opens a file with a long name of characters that a message would have to escape, as often as possible.
const MANY_FILES: &str = "import os, resource, sys, time
limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
directory = sys.argv[1]
for _ in range(15):
    directory += '/' + chr(1) * 250
    os.mkdir(directory)
file = os.open(directory + '/file', os.O_CREAT)
try:
    while True:
        os.dup(file)
except OSError:
    print('ready', flush=True)
time.sleep(1000)";

#[test]
fn many_open_files_delay_no_action() {
    let node = Node::new(RULES);
    let files = node.home.path().join("files");
    fs::create_dir(&files).unwrap();
    chown(&files, Some(UID), Some(UID)).unwrap();
    let mut command = Command::new("setsid");
    command.args(["python3", "-c", MANY_FILES]).arg(&files).uid(UID).gid(UID);
    let many = Tenant::spawn(&node.home, command);
    until("all files are open", || (!many.output_lines().is_empty()).then_some(()));
    let other = program_of(&node, UID + 1, "");
    // The process with the most memory comes first.
    node.hold(&many, 0, "used: 2GiB");
    node.hold(&other, 0, "used: 1GiB");
    let _enforcer = enforcer_of_unit(&node);
    many.gone();
    other.gone();
}

/// A request to look for open files whose paths start with this text, until a time far in the future.
fn has_open(prefix: &str) -> Value {
    let files = json!({"prefix": prefix, "longer": true, "major": null});
    json!({"HasOpen": [files, {"secs": 4_000_000_000_u64, "nanos": 0}]})
}

#[test]
fn path_that_hangs_delays_no_other_read() {
    let node = Node::new(RULES);
    let hung = Hung::at(node.home.path().join("hung"));
    let mut command = Command::new("sleep");
    command.arg("infinity");
    let mut process = hung.in_namespace(&command).spawn().unwrap();
    until("the file system is mounted", || {
        let comm = fs::read_to_string(format!("/proc/{}/comm", process.id())).ok()?;
        (comm == "sleep\n").then_some(())
    });
    let privileged = Privileged::start(&node);
    let directory = File::open(format!("/proc/{}", process.id())).unwrap();
    let path = format!("root{}", hung.path("file").display());
    let late = json!({"Error": rustix::io::Errno::TIMEDOUT.raw_os_error()});
    assert_eq!(privileged.read(&json!({"Attributes": path}), directory.as_fd()), late);
    assert_eq!(
        privileged.read(&json!({"Link": "exe"}), directory.as_fd()),
        late,
        "the first read still hangs"
    );
    let own = File::open("/proc/self").unwrap();
    assert_eq!(privileged.read(&has_open("/dev/"), own.as_fd()), json!({"HasOpen": true}), "another process");
    process.kill().unwrap();
    process.wait().unwrap();
}

#[test]
fn privileged_process_reads_only_what_the_daemon_needs() {
    let node = Node::new(RULES);
    let holder = program_of(&node, UID, "");
    let privileged = Privileged::start(&node);
    let process = File::open(format!("/proc/{}", holder.pid())).unwrap();
    let elsewhere = File::open("/etc").unwrap();
    let not_permitted = json!({"Error": rustix::io::Errno::PERM.raw_os_error()});
    for request in [
        json!({"Open": "mem"}),
        json!({"Open": "root/etc/shadow"}),
        json!({"Open": "task/1/mem"}),
        json!({"Open": "fdinfo/../mem"}),
        json!({"Open": "fd/0"}),
        json!({"Link": "cwd"}),
        json!({"Link": "root/etc"}),
        json!({"Attributes": "exe/../x"}),
        json!({"Attributes": "cwd/x"}),
    ] {
        assert_eq!(privileged.read(&request, process.as_fd()), not_permitted, "{request}");
    }
    let not_in_proc = json!({"Error": rustix::io::Errno::BADF.raw_os_error()});
    for request in [json!({"Open": "environ"}), json!({"Attributes": "root/shadow"}), has_open("/")] {
        assert_eq!(privileged.read(&request, elsewhere.as_fd()), not_in_proc, "{request}");
    }
    for request in [json!({"Open": "environ"}), json!({"Open": "fdinfo"})] {
        assert_eq!(privileged.read(&request, process.as_fd()), "File", "{request}");
    }
    let device = node.home.device();
    for (path, open) in [(device.to_str().unwrap(), true), ("/nonexistent", false)] {
        assert_eq!(privileged.read(&has_open(path), process.as_fd()), json!({"HasOpen": open}), "{path}");
    }
    let exe = fs::read_link(format!("/proc/{}/exe", holder.pid())).unwrap();
    assert_eq!(privileged.read(&json!({"Link": "exe"}), process.as_fd()), json!({"Link": exe}));
}
