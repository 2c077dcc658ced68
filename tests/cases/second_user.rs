//! Attacks of a user without privileges, who wants to keep GPU memory in spite of the rules, or to stop enforcement.
#![allow(
    clippy::disallowed_methods,
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a case runs programs, reads files and fails loudly"
)]

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use end_to_end::cgroups::Slice;
use end_to_end::enforcer;
use end_to_end::home::Home;
use end_to_end::hung::{HungExecution, Parent};
use end_to_end::node::Node;
use end_to_end::programs;
use end_to_end::tenant::Tenant;
use end_to_end::wait::until;

/// The attacker.
const UID: u32 = 4002;

const RULES: &str = "version: 1
mode: enforce
defaults: {startup_grace: 0s, clear_after: 1, grace: 1s}
LIMITS
rules:
  - name: idle
    target: process
    select: {vram: {min: 512MiB}}
    when: {gpu_util: {max: 1%}}
    for: {samples: 3}
    then: [{terminate: {}}]
";

/// Starts an idle program of the attacker, which has this name.
fn attacker(node: &Node, name: &str) -> Tenant {
    let program = node.home.path().join(name);
    let _ = symlink("/bin/sleep", &program);
    let mut command = Command::new("setsid");
    command.arg(&program).arg("infinity").uid(UID).gid(UID);
    let tenant = Tenant::spawn(&node.home, command);
    until("the process's name", || {
        let comm = fs::read_to_string(format!("/proc/{}/comm", tenant.pid())).ok()?;
        name.starts_with(comm.trim_end()).then_some(())
    });
    tenant
}

#[test]
fn name_of_a_system_service_does_not_protect() {
    let node =
        Node::new(&RULES.replace("LIMITS", "limits: {per_user_hour: 9, per_gpu_hour: 9, mass_min: 9}"));
    let names = ["dcgm-mine", "sshd", "systemd", "Xorg", "nvidia-cuda-mps"];
    let tenants = names.map(|name| attacker(&node, name));
    for tenant in &tenants {
        node.hold(tenant, 0, "used: 1GiB");
    }
    let _enforcer = node.home.enforcer(&[]);
    tenants.iter().for_each(Tenant::gone);
}

/// The user can choose the name of a setuid program, and stop it.
#[test]
fn setuid_program_belongs_to_the_user_who_runs_it() {
    let node =
        Node::new(&RULES.replace("LIMITS", "limits: {per_user_hour: 9, per_gpu_hour: 9, mass_min: 9}"));
    let setuid = node.home.path().join("setuid");
    fs::copy("/bin/sleep", &setuid).unwrap();
    fs::set_permissions(&setuid, Permissions::from_mode(0o4755)).unwrap();
    let tenants = ["Xorg", "sshd", "criu"].map(|name| {
        let program = node.home.path().join(name);
        symlink(&setuid, &program).unwrap();
        let mut command = Command::new("setsid");
        command.arg(&program).arg("infinity").uid(UID).gid(UID);
        let tenant = Tenant::spawn(&node.home, command);
        until("the program", || {
            let status = fs::read_to_string(format!("/proc/{}/status", tenant.pid())).ok()?;
            status.contains(&format!("Uid:\t{UID}\t0\t0\t0\n")).then_some(())
        });
        tenant
    });
    for tenant in &tenants {
        node.hold(tenant, 0, "used: 1GiB");
    }
    let _enforcer = node.home.enforcer(&[]);
    tenants.iter().for_each(Tenant::gone);
    let page = node.exporter.next();
    assert_eq!(page.all("bailiff_held_gpu_seconds_total", &[("user", "root")]).count(), 0);
}

/// A thread-group leader and a child that have exited have no program, but keep the name that they chose.
#[test]
fn name_of_a_process_without_a_program_does_not_protect() {
    let node =
        Node::new(&RULES.replace("LIMITS", "limits: {per_user_hour: 9, per_gpu_hour: 9, mass_min: 9}"));
    let leader = "import ctypes, threading, time
libc = ctypes.CDLL(None)
libc.prctl(15, b'Xorg', 0, 0, 0)
threading.Thread(target=time.sleep, args=(1000,)).start()
print('ready', flush=True)
libc.pthread_exit(None)";
    let child = "import ctypes, os, time
if os.fork() == 0:
    ctypes.CDLL(None).prctl(15, b'sway', 0, 0, 0)
    os._exit(0)
print('ready', flush=True)
time.sleep(1000)";
    let tenants = [leader, child].map(|program| {
        let mut command = Command::new("setsid");
        command.args(["python3", "-c", program]).uid(UID).gid(UID);
        let tenant = Tenant::spawn(&node.home, command);
        until("the program", || (!tenant.output_lines().is_empty()).then_some(()));
        tenant
    });
    for tenant in &tenants {
        node.hold(tenant, 0, "used: 1GiB");
    }
    let _enforcer = node.home.enforcer(&[]);
    tenants.iter().for_each(Tenant::gone);
}

#[test]
fn name_of_an_mps_server_hides_no_use() {
    let node = Node::new(&RULES.replace("LIMITS", ""));
    let tenant = attacker(&node, "nvidia-cuda-mps-server");
    node.hold(&tenant, 0, "used: 1GiB");
    let user = UID.to_string();
    node.exporter.until("the time for which the user holds a GPU", |page| {
        page.value("bailiff_held_gpu_seconds_total", &[("user", &user)]).filter(|seconds| *seconds > 0.0)
    });
}

#[test]
fn small_holders_do_not_use_up_the_budget_for_a_large_one() {
    let node = Node::new(&RULES.replace("LIMITS", ""));
    let decoys = [513, 514, 515].map(|mib| (attacker(&node, "decoy"), mib));
    for (decoy, mib) in &decoys {
        node.hold(decoy, 0, &format!("used: {mib}MiB"));
    }
    let enforcer = node.home.enforcer(&[]);
    enforcer.until("the budget of the GPU is used up", |_| {
        (decoys.iter().filter(|(decoy, _)| decoy.is_running()).count() == 1).then_some(())
    });
    node.home.until_line("terminate", "withheld");
    let large = attacker(&node, "large");
    node.hold(&large, 0, "used: 40GiB");
    large.gone();
    assert_eq!(decoys.iter().filter(|(decoy, _)| decoy.is_running()).count(), 1, "the smallest one remains");
}

#[test]
fn processes_that_hang_in_execve_delay_no_action() {
    let cpu = "gpu_util: {max: 1%}, cpu_util: {max: 50%}";
    let rules = RULES.replace("target: process", "target: workload").replace("gpu_util: {max: 1%}", cpu);
    let ticks = ["--interval", "1s", "--look-back", "2s", "--deadline", "1s"];
    let node = Node::with_ticks(&rules.replace("LIMITS", ""), &["", ""], &ticks);
    // More than are waited for.
    let hung = HungExecution::start(&node.home, UID, (Parent::Hangs, 20));
    let target = Tenant::ending_on_term(&node.home);
    node.hold(&target, 1, "used: 1GiB");
    for pid in hung.pids() {
        node.hold_pid(pid, "used: 1GiB");
    }
    let _enforcer = node.home.enforcer(&[]);
    target.gone();
    node.home.until_line("terminate", "released");
    let (held, by) = ("bailiff_process_gpu_memory_bytes", |pid: u32| pid.to_string());
    node.exporter
        .until("the memory of the process that hangs", |page| page.value(held, &[("pid", &by(hung.pid()))]));
}

#[test]
fn workload_with_a_process_that_hangs_in_execve_is_unknown() {
    let rules = RULES.replace("target: process", "target: workload").replace("gpu_util", "cpu_util");
    let node = Node::new(&rules.replace("LIMITS", "").replace("mode: enforce", "mode: dry-run"));
    let hung = HungExecution::start(&node.home, UID, (Parent::Runs, 1));
    node.hold_pid(hung.pid(), "used: 1GiB");
    let other = Tenant::ending_on_term(&node.home);
    node.hold(&other, 0, "used: 1GiB");
    let enforcer = node.home.enforcer(&[]);
    let is_unknown = |pid: u32| {
        let output = enforcer.run(&["explain", "--pid", &pid.to_string()]).stdout;
        let text = String::from_utf8(output).unwrap();
        let line = text.lines().find(|line| line.contains("cpu_util"));
        line.map(|line| line.contains("unknown"))
    };
    until("the CPU use of another workload", || (is_unknown(other.pid()) == Some(false)).then_some(()));
    assert_eq!(is_unknown(hung.pid()), Some(true));
}

#[test]
fn orphan_that_hangs_in_execve_makes_no_other_workload_unknown() {
    let rules = RULES.replace("target: process", "target: workload").replace("gpu_util", "cpu_util");
    let node = Node::new(&rules.replace("LIMITS", ""));
    let _hung = HungExecution::start(&node.home, UID, (Parent::Leaves, 1));
    let other = Tenant::ending_on_term(&node.home);
    node.hold(&other, 0, "used: 1GiB");
    node.exporter.until("a process that is not read", |page| {
        page.value("bailiff_gaps_total", &[("gap", "unread")]).filter(|gaps| *gaps > 1.0)
    });
    let _enforcer = node.home.enforcer(&[]);
    other.gone();
}

#[test]
fn process_with_a_child_that_hangs_in_execve_is_not_terminated() {
    let node = Node::new(&RULES.replace("LIMITS", ""));
    let hung = HungExecution::start(&node.home, UID, (Parent::Runs, 1));
    third_attempt_has_failed(&node, &hung, &[hung.pid()]);
}

/// The child may be a target of its own, but its user must not gain endless attempts from that.
#[test]
fn process_with_a_child_that_holds_memory_and_hangs_in_execve_is_not_terminated() {
    let node = Node::new(&RULES.replace("LIMITS", ""));
    let hung = HungExecution::start(&node.home, UID, (Parent::Runs, 1));
    third_attempt_has_failed(&node, &hung, &hung.pids());
}

/// The child that hangs is started only when the action has begun.
#[test]
fn process_that_starts_a_child_that_hangs_when_it_is_terminated_is_tried_three_times() {
    let rules = RULES.replace("LIMITS", "limits: {per_user_hour: 9, per_gpu_hour: 9, mass_min: 9}");
    let node = Node::new(&rules.replace("grace: 1s}", "grace: 1s, cooldown: 1s}"));
    let hung = HungExecution::start(&node.home, UID, (Parent::Forks, 0));
    until("the handler of SIGTERM", || {
        let status = fs::read_to_string(format!("/proc/{}/status", hung.pid())).ok()?;
        let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:\t"))?;
        (u64::from_str_radix(caught, 16).ok()? & (1 << 14) != 0).then_some(())
    });
    third_attempt_has_failed(&node, &hung, &[hung.pid()]);
    assert_eq!(node.home.until_line("terminate", "failed")["id"], 3, "the first attempt counts");
}

fn third_attempt_has_failed(node: &Node, hung: &HungExecution, holders: &[u32]) {
    for pid in holders {
        node.hold_pid(*pid, "used: 1GiB");
    }
    let _enforcer = node.home.enforcer(&[]);
    let line = node.home.until_line("terminate", "failed");
    assert!(line["detail"].to_string().contains("3 attempts in a row: process"), "{line}");
    assert!(end_to_end::tenant::start(hung.pid()).is_some());
}

#[test]
fn idle_sessions_of_one_user_do_not_open_the_mass_breaker() {
    let node = Node::new(&RULES.replace("LIMITS", "limits: {mass_share: 50%}"));
    let idle = [(); 4].map(|()| attacker(&node, "idle"));
    let other = Tenant::ending_on_term(&node.home);
    for tenant in &idle {
        node.hold(tenant, 0, "used: 1GiB");
    }
    node.hold(&other, 0, "used: 100MiB");
    let _enforcer = node.home.enforcer(&[]);
    until("a session has been terminated", || idle.iter().any(|tenant| !tenant.is_running()).then_some(()));
    assert!(other.is_running());
}

const NOTHING: &str = "version: 1
rules:
  - {name: none, target: gpu, when: {process_count: {min: 1000}}, for: 1h, then: [{flag: info}]}
";

/// Returns why an enforcer does not start in this directory.
fn refusal(home: &Home) -> String {
    let output = enforcer::command(home).output().unwrap();
    assert_eq!(output.status.code(), Some(64));
    String::from_utf8(output.stderr).unwrap()
}

fn chmod(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

#[test]
fn rules_that_another_user_can_change_are_refused() {
    let home = Home::with(NOTHING);
    chmod(&home.rules(), 0o666);
    let (path, fix) = (home.rules(), "or use --no-strict-permissions");
    let (why, path) = ("is writable for other users, mode 0666 (chmod go-w", path.display());
    let text = format!("the rules file {path}: refused: {path} {why} {path}; {fix})");
    let printed = refusal(&home);
    assert!(printed.contains(&text), "{printed}");
    drop(home.enforcer(&["--no-strict-permissions"]));
    // As in the unit: the daemon sees the directory read-only, but other users do not.
    let read_only = "mount --bind \"$0\" \"$0\" && mount -o remount,ro,bind \"$0\" && exec \"$@\"";
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", read_only]).arg(home.path()).arg(programs::enforcer());
    let output = command.args(enforcer::arguments(&home)).output().unwrap();
    assert!(String::from_utf8(output.stderr).unwrap().contains(&text));
    chmod(&home.rules(), 0o644);
    chown(home.path(), Some(UID), None).unwrap();
    let printed = refusal(&home);
    assert!(printed.contains(&format!("{} belongs to another user, uid {UID}", home.path().display())));
    chown(home.path(), Some(0), None).unwrap();

    let enforcer = home.enforcer(&[]);
    let next = home.path().join("next");
    fs::write(&next, NOTHING.replace("none", "mine")).unwrap();
    chown(&next, Some(UID), None).unwrap();
    fs::rename(&next, home.rules()).unwrap();
    enforcer.until_logged(&format!("belongs to another user, uid {UID}"));
    assert_eq!(enforcer.page().label("bailiff_rule_info", &[], "rule").as_deref(), Some("none"));
    assert!(enforcer.is_held("invalid_file"));
    chown(home.rules(), Some(0), None).unwrap();
    enforcer.until("the new rules", |page| {
        (page.label("bailiff_rule_info", &[], "rule")? == "mine").then_some(())
    });
}

#[test]
fn program_that_another_user_can_change_is_not_run() {
    let node = Node::new(&RULES.replace("LIMITS", ""));
    let (program, ran) = (node.home.path().join("program"), node.home.path().join("ran"));
    fs::write(&program, format!("#!/bin/sh\ntouch {}\n", ran.display())).unwrap();
    chmod(&program, 0o777);
    let exec = format!("{{exec: [{}]}}", program.display());
    node.home.write(&RULES.replace("LIMITS", "").replace("{terminate: {}}", &exec));
    let text = format!("refused: {} is writable for other users, mode 0777", program.display());
    let printed = refusal(&node.home);
    assert!(printed.contains(&text), "{printed}");
    let checked = enforcer::run(&["check", &node.home.rules().display().to_string()]);
    assert_eq!(checked.status.code(), Some(0));
    let printed = String::from_utf8(checked.stdout).unwrap();
    assert!(printed.starts_with("warning: the enforcer would refuse") && printed.contains("mode 0777"));

    // The program becomes writable after the rules were loaded.
    chmod(&program, 0o755);
    let enforcer = node.home.enforcer(&[]);
    chmod(&program, 0o777);
    let tenant = attacker(&node, "idle");
    node.hold(&tenant, 0, "used: 1GiB");
    let line = node.home.until_line("exec", "failed");
    assert!(line.to_string().contains("is writable for other users"), "{line}");
    assert!(!ran.exists());
    drop(enforcer);
}

/// Four thousand sleeping processes and six busy ones.
const CROWD: &str = "i=0; while [ $i -lt 4000 ]; do sleep infinity & i=$((i + 1)); done; \
    for loop in 1 2 3 4 5 6; do (while :; do :; done) & done; echo ready; wait";

#[test]
fn many_processes_of_a_user_do_not_hide_the_cpu_use_of_others() {
    let rules = RULES.replace("LIMITS", "").replace("target: process", "target: workload");
    let rules = rules.replace("{gpu_util: {max: 1%}}", "{gpu_util: {max: 1%}, cpu_util: {max: 5%}}");
    // A debug build reads 4,000 processes on two busy cores in less than the default interval, but not in that of other
    // tests.
    let ticks = ["--interval", "2s", "--look-back", "4s", "--deadline", "4s"];
    let node = Node::with_ticks(&rules, &[""], &ticks);
    let mut command = Command::new("setsid");
    command.args(["/bin/sh", "-c", CROWD]).uid(UID).gid(UID);
    let crowd = Tenant::spawn(&node.home, command);
    until("the processes", || (!crowd.output_lines().is_empty()).then_some(()));
    let idle = Tenant::ending_on_term(&node.home);
    node.hold(&idle, 0, "used: 1GiB");
    let _enforcer = node.home.enforcer(&[]);
    idle.gone();
    assert!(crowd.is_running());
}

/// Creates nested cgroups in a directory, and starts processes in the innermost.
const NESTED: &str = "import os, sys
os.chdir(sys.argv[1])
for _ in range(1900):
    os.mkdir('a')
    os.chdir('a')
end, kept = os.pipe()
for number in range(151):
    if number == 150 or os.fork() == 0:
        with open('cgroup.procs', 'w') as file:
            file.write('0')
        if number < 150:
            os.dup2(end, 0)
            os.execv(sys.argv[2], ['cat'])
print('ready', flush=True)
sys.stdin.read()";

#[test]
fn nested_cgroups_of_a_user_delay_no_action_against_others() {
    nested_cgroups_delay_no_action(Permissions::from_mode(0o755));
}

/// Effective uid 0 does not count as root.
#[test]
fn nested_cgroups_of_setuid_programs_delay_no_action_against_others() {
    nested_cgroups_delay_no_action(Permissions::from_mode(0o4755));
}

fn nested_cgroups_delay_no_action(permissions: Permissions) {
    let rules = RULES.replace("LIMITS", "").replace("target: process", "target: workload");
    let rules = rules.replace("{gpu_util: {max: 1%}}", "{gpu_util: {max: 1%}, cpu_util: {max: 5%}}");
    let slice = Slice::new();
    let node =
        Node::with_ticks(&rules, &[""], &["--interval", "1s", "--look-back", "2s", "--deadline", "2s"]);
    let directory = slice.delegate("user@4002.service", UID);
    let program = node.home.path().join("cat");
    fs::copy("/bin/cat", &program).unwrap();
    fs::set_permissions(&program, permissions).unwrap();
    let mut command = Command::new("sh");
    let move_in = "echo 0 > $0/cgroup.procs; exec setpriv --reuid=4002 --regid=4002 --clear-groups /usr/bin/python3 -c \"$1\" $0 $2";
    command.args(["-c", move_in]).arg(&directory).arg(NESTED).arg(&program);
    let nested = Tenant::spawn(&node.home, command);
    until("the processes", || (!nested.output_lines().is_empty()).then_some(()));
    let idle = Tenant::ending_on_term(&node.home);
    node.hold(&idle, 0, "used: 1GiB");
    let _enforcer = node.home.enforcer(&[]);
    idle.gone();
    node.home.until_line("terminate", "released");
    assert_eq!(node.home.effects("terminate"), ["released"], "no attempt was too late");
    assert!(nested.is_running());
}
