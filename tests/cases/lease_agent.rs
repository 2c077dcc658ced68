//! Tests the enforcer as a node's lease agent: GPUs of dead holders are freed at once, or quarantined while they are
//! in use. Orphaned leases of GPU.py clients are freed once it is certain that they are orphaned. While Redis is not
//! responding, no lease is freed.
#![allow(
    clippy::disallowed_methods,
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a case runs programs, reads files and fails loudly"
)]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use bailiff_lease::Leases as _;
use bailiff_lease::audit::{Audit, Gpu};
use bailiff_lease::{Grant, Pool, TicketStatus};
use end_to_end::enforcer::Enforcer;
use end_to_end::hostile_redis::{ATTACKS, HostileRedis, MOST_MIB};
use end_to_end::hung::{HungExecution, Parent};
use end_to_end::leases;
use end_to_end::node::{Node, TICKS};
use end_to_end::programs;
use end_to_end::redis::Redis;
use end_to_end::tenant::{Tenant, start};
use end_to_end::wait::until;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// A pool, a node whose policy refers to the pool, and GPUs without processes.
struct Fixture {
    redis: Redis,
    node: Node,
}

impl Fixture {
    /// Returns a fixture with this many GPUs, and with these keys in `leases` besides the address.
    fn new(gpus: usize, leases: &str) -> Self {
        Self::with(
            gpus,
            leases,
            "  - {name: none, target: gpu, when: {process_count: {min: 1000}}, for: 1h, then: [{flag: info}]}",
        )
    }

    fn with(gpus: usize, leases: &str, rules: &str) -> Self {
        let redis = Redis::start();
        let address = redis.address();
        let rules = format!(
            "version: 1
mode: enforce
defaults: {{startup_grace: 0s, clear_after: 1}}
leases: {{redis: '{address}'{leases}}}
rules:
{rules}
"
        );
        let mut ticks: Vec<&str> = TICKS.to_vec();
        ticks.extend(["--lease.redis", &address]);
        let fixture = Self { node: Node::with_ticks(&rules, &vec![""; gpus], &ticks), redis };
        let output = fixture.bailiff(&["init", "--gpus", &format!("0-{}", gpus - 1)]).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        fixture
    }

    fn enforcer(&self) -> Enforcer {
        self.node.home.enforcer(&[])
    }

    fn bailiff(&self, args: &[&str]) -> Command {
        let mut command = Command::new(programs::bailiff());
        command.arg("lease").args(args).env("LEASE_REDIS_URL", self.redis.address());
        command.env_remove("BAILIFF_LEASE_ID");
        command
    }

    /// Waits until a command holds a GPU. Returns the runner, the pid of the command, and the GPU.
    fn hold(&self) -> (Child, u32, String) {
        let path = self.node.home.path().join("gpu");
        let _ = fs::remove_file(&path);
        let script = "echo $$ $BAILIFF_LEASE_GPUS > $0.new; mv $0.new $0; exec sleep infinity";
        let mut command = self.bailiff(&["run", "--", "sh", "-c", script]);
        let runner = command.arg(&path).stdin(Stdio::null()).spawn().unwrap();
        let line = until("the command prints its GPU", || fs::read_to_string(&path).ok());
        let (pid, gpu) = line.trim().split_once(' ').unwrap();
        (runner, pid.parse().unwrap(), gpu.to_owned())
    }

    fn pool(&self) -> Pool {
        Pool::open(&self.redis.address(), "GPU", Duration::from_secs(30)).unwrap()
    }

    /// Returns an audit from a dry run, which frees nothing.
    fn audit(&self) -> Audit {
        self.pool().audit().unwrap()
    }

    fn gpu(&self, id: &str) -> Gpu {
        self.audit().gpus.into_iter().find(|gpu| gpu.id == id).unwrap()
    }

    fn until_idle(&self, id: &str) {
        until("the GPU is idle", || (self.gpu(id).idle == 1).then_some(()));
    }

    /// Waits until the audit log contains one action of this kind with this result.
    fn until_results(&self, action: &str, result: &str) {
        let done = || (self.node.home.results(action) == ["begun", result]).then_some(());
        until("the audit log has it", done);
    }

    fn redis(&self, args: &[&str]) -> String {
        let output: Output =
            Command::new("redis-cli").arg("-s").arg(self.redis.socket()).args(args).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }

    /// Returns the agent's verdict on a GPU.
    fn verdict(enforcer: &Enforcer, id: &str) -> Option<String> {
        let status = enforcer.status();
        let judged = status["leases"]["judged"].as_array()?.clone();
        let of_it = judged.into_iter().find(|judged| judged["gpu"] == id)?;
        Some(of_it["judgement"].as_str()?.to_owned())
    }

    /// Returns a program that takes a GPU for its parent, as GPU.py does, and exits once the agent has seen that.
    fn original_client(&self) -> String {
        let path = self.node.home.path().join("get");
        let socket = self.redis.socket().display().to_string();
        let text = format!(
            "#!/bin/bash
redis() {{ redis-cli -s {socket} \"$@\"; }}
gpu=$(redis brpop GPU_IDLE 0 | tail -n 1)
time=$(date '+%F %T')
redis lpush GPU_EVENTS \"$time: GPU $gpu acquired by PID $PPID.\" >&2
redis hset GPU_GPU$gpu PID $PPID >&2
redis hset GPU_GPU$gpu TIME \"$time\" >&2
until redis hget GPU_V2:SEEN $gpu | grep -qF \"\\\"$time\\\"\"; do :; done
echo $gpu
"
        );
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        path.display().to_string()
    }

    /// Like [`Self::original_client`], but the program does not wait for the agent.
    fn original_client_unobserved(&self) -> String {
        let path = self.original_client();
        let text = fs::read_to_string(&path).unwrap();
        let lines: Vec<&str> = text.lines().filter(|line| !line.starts_with("until ")).collect();
        fs::write(&path, lines.join("\n")).unwrap();
        path
    }

    /// Returns the command that takes a GPU with our drop-in.
    fn drop_in(&self) -> String {
        let path = self.node.home.path().join("GPU.py");
        if !path.exists() {
            std::os::unix::fs::symlink(programs::bailiff(), &path).unwrap();
        }
        format!("LEASE_REDIS_URL={} {} --get", self.redis.address(), path.display())
    }

    /// Starts a launcher whose task takes a GPU with this command, runs `then` and waits. Returns the pids of both.
    fn task(&self, take: &str, then: &str) -> (u32, u32) {
        self.task_of(":", (take, then))
    }

    /// Like [`Self::task`], but the launcher runs `first` before it starts the task.
    fn task_of(&self, first: &str, (take, then): (&str, &str)) -> (u32, u32) {
        let [path, program] = ["task", "launcher"].map(|name| self.node.home.path().join(name));
        let _ = fs::remove_file(&path);
        let text = format!(
            "{first}
( gpu=$({take})
{then}
echo $$ $BASHPID > {0}.new; mv {0}.new {0}; exec 5<&-; exec sleep infinity ) &
while :; do sleep 1000; done
",
            path.display()
        );
        fs::write(&program, text).unwrap();
        let mut command = Command::new("setsid");
        let forked = command.args(["-f", "bash"]).arg(program).stdin(Stdio::null()).status();
        assert!(forked.unwrap().success());
        let line = until("the task has its GPU", || fs::read_to_string(&path).ok());
        let (launcher, task) = line.trim().split_once(' ').unwrap();
        (launcher.parse().unwrap(), task.parse().unwrap())
    }

    /// Starts a script that takes a GPU in a subshell that has exited. The script is not a descendant of this test.
    /// Returns its pid.
    fn script(&self) -> u32 {
        let path = self.node.home.path().join("taken");
        let _ = fs::remove_file(&path);
        let get = self.original_client();
        let program = format!(
            "gpu=$({get} 2>/dev/null | cat); echo $$ $gpu > {0}.new; mv {0}.new {0}; while :; do sleep 1000; done",
            path.display()
        );
        let forked =
            Command::new("setsid").args(["-f", "bash", "-c", &program]).stdin(Stdio::null()).status();
        assert!(forked.unwrap().success());
        let line = until("the script has its GPU", || fs::read_to_string(&path).ok());
        line.split_once(' ').unwrap().0.parse().unwrap()
    }

    fn recorded_pid(&self, id: &str) -> u32 {
        self.redis(&["hget", &format!("GPU_GPU{id}"), "PID"]).parse().unwrap()
    }
}

fn kill(pid: u32) {
    let pid = Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
    kill_process(pid, Signal::KILL).unwrap();
}

/// Terminates a child, but not its descendants.
fn end(mut child: Child) {
    child.kill().unwrap();
    child.wait().unwrap();
}

/// Terminates a script and its descendants.
fn end_session(script: u32) {
    let group = Pid::from_raw(i32::try_from(script).unwrap()).unwrap();
    rustix::process::kill_process_group(group, Signal::KILL).unwrap();
    until("the script has ended", || start(script).is_none().then_some(()));
}

/// Runs an ignored test in this file in its own PID namespace, where the next pid can be chosen and the init process
/// (PID 1) adopts orphans.
fn inside(test: &str) {
    let output = Command::new("unshare")
        .args(["--pid", "--fork", "--mount-proc", "--kill-child"])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "--ignored", "--nocapture", &format!("lease_agent::{test}")])
        .output()
        .unwrap();
    let printed = String::from_utf8_lossy(&output.stdout);
    let passed = output.status.success() && printed.contains("1 passed");
    assert!(passed, "{printed}\n{}", String::from_utf8_lossy(&output.stderr));
}

/// Waits until the agent has read the pool.
fn until_up(enforcer: &Enforcer) {
    enforcer.until_status("the agent is at work", |status| (status["leases"]["up"] == true).then_some(()));
}

#[test]
fn lease_of_a_dead_holder_is_freed_at_once() {
    let fixture = Fixture::new(1, "");
    let enforcer = fixture.enforcer();
    until_up(&enforcer);
    let (runner, child, gpu) = fixture.hold();
    end(runner);
    enforcer.ticks(3);
    assert_eq!(fixture.audit().leases.len(), 1, "the command is still running, so the lease remains");
    kill(child);
    fixture.until_idle(&gpu);
    let line = fixture.node.home.until_line("reap_dead", "freed");
    assert!(line["target"]["id"].as_str().unwrap().starts_with("lease:"), "{line}");
    fixture.until_results("reap_dead", "freed");
    let done = [("action", "reap_dead"), ("result", "freed")];
    enforcer.until("the action is counted", |page| {
        (page.value("bailiff_lease_agent_actions_total", &done)? >= 1.0).then_some(())
    });
    assert_eq!(enforcer.page().value("bailiff_lease_agent_up", &[]), Some(1.0));
}

#[test]
fn processes_that_hang_in_execve_keep_no_lease_of_another_user() {
    let fixture = Fixture::new(1, "");
    let _hung = HungExecution::start(&fixture.node.home, 4002, (Parent::Hangs, 2));
    let enforcer = fixture.enforcer();
    until_up(&enforcer);
    let (runner, child, gpu) = fixture.hold();
    end(runner);
    kill(child);
    fixture.until_idle(&gpu);
    fixture.until_results("reap_dead", "freed");
}

#[test]
fn environment_of_another_user_keeps_no_lease() {
    let fixture = Fixture::new(1, "");
    let enforcer = fixture.enforcer();
    until_up(&enforcer);
    let (runner, child, gpu) = fixture.hold();
    let lease = fixture.gpu(&gpu).owner.unwrap();
    let mut command = Command::new("setsid");
    command.args(["sleep", "infinity"]).env("BAILIFF_LEASE_ID", &lease).uid(4002).gid(4002);
    let _other = Tenant::spawn(&fixture.node.home, command);
    end(runner);
    kill(child);
    fixture.until_idle(&gpu);
    fixture.until_results("reap_dead", "freed");
}

#[test]
fn gpu_still_in_use_is_quarantined_until_free() {
    let fixture = Fixture::new(2, "");
    let mut tenant = Tenant::running(&fixture.node.home, &["sleep", "infinity"]);
    let enforcer = fixture.enforcer();
    until_up(&enforcer);
    let (mut runner, child, gpu) = fixture.hold();
    fixture.node.hold(&tenant, gpu.parse().unwrap(), "used: 1GiB");
    // The agent sees the process before the holder dies.
    enforcer.ticks(3);
    runner.kill().unwrap();
    kill(child);
    runner.wait().unwrap();
    let withheld = || fixture.gpu(&gpu).quarantine;
    let why = until("the GPU is withheld", withheld);
    assert!(why.starts_with("busy:"), "{why}");
    fixture.node.home.until_line("reap_dead", "withheld");
    fixture.until_results("reap_dead", "withheld");
    enforcer.ticks(5);
    assert_eq!(withheld(), Some(why), "the GPU is quarantined while the process runs");
    // Other clients can still acquire GPUs.
    let (other, _, other_gpu) = fixture.hold();
    assert_ne!(other_gpu, gpu);
    tenant.end();
    fixture.until_idle(&gpu);
    fixture.until_results("clear_quarantine", "freed");
    leases::end(other, Signal::TERM);
}

#[test]
fn lease_of_a_dead_subshell_is_freed_after_grace() {
    inside("dead_subshell_inside");
}

#[test]
#[ignore = "needs its own PID namespace"]
fn dead_subshell_inside() {
    let fixture = Fixture::new(1, ", legacy_idle_grace: 1s");
    let enforcer = fixture.enforcer();
    until_up(&enforcer);
    let script = fixture.script();
    let pid = fixture.recorded_pid("0");
    assert!(pid != script && start(pid).is_none(), "the record must name an exited process");
    fixture.until_idle("0");
    assert!(start(script).is_some());
    fixture.until_results("free_orphaned", "freed");
    let event = fixture.redis(&["lindex", "GPU_EVENTS", "0"]);
    let text = format!(
        ": GPU 0 acquired by process with PID {pid}, was released by redis purge as the process with given PID does no longer exist."
    );
    assert!(event.ends_with(&text), "{event}");
    end_session(script);
}

#[test]
fn gpuget_lease_of_a_dead_task_is_freed_after_grace() {
    inside("dead_gpuget_task_inside");
}

#[test]
#[ignore = "needs its own PID namespace"]
fn dead_gpuget_task_inside() {
    let fixture = Fixture::new(1, ", legacy_idle_grace: 2s");
    let enforcer = fixture.enforcer();
    until_up(&enforcer);
    let (launcher, task) = fixture.task(&fixture.drop_in(), "");
    enforcer.ticks(15);
    assert_eq!(Fixture::verdict(&enforcer, "0").as_deref(), Some("keep"));
    kill(task);
    until("the lease is suspect", || (Fixture::verdict(&enforcer, "0")? == "suspect").then_some(()));
    fixture.until_idle("0");
    assert!(start(launcher).is_some());
    fixture.until_results("free_orphaned", "freed");
    end_session(launcher);
}

#[test]
fn gpu_number_inherited_by_a_process_keeps_the_lease() {
    inside("inherited_gpu_number_inside");
}

#[test]
#[ignore = "needs its own PID namespace"]
fn inherited_gpu_number_inside() {
    let fixture = Fixture::new(3, ", legacy_idle_grace: 1s");
    let enforcer = fixture.enforcer();
    until_up(&enforcer);
    // Processes between the program and the task that reads its output exit at once.
    let shapes = ["timeout 60 env", "sh -c '\"$@\"; true' sh env", "setsid -w env"];
    let tasks = shapes.map(|around| fixture.task(&format!("{around} {}", fixture.drop_in()), ""));
    enforcer.ticks(20);
    for id in ["0", "1", "2"] {
        assert_eq!(
            Fixture::verdict(&enforcer, id).as_deref(),
            Some("keep"),
            "{}",
            shapes[id.parse::<usize>().unwrap()]
        );
    }
    for (launcher, _) in tasks {
        end_session(launcher);
    }
}

#[test]
fn original_lease_of_a_dead_task_is_freed_after_grace() {
    inside("dead_original_task_inside");
}

#[test]
#[ignore = "needs its own PID namespace"]
fn dead_original_task_inside() {
    let fixture = Fixture::new(1, ", legacy_idle_grace: 4s");
    let enforcer = fixture.enforcer();
    until_up(&enforcer);
    let (launcher, task) = fixture.task(&fixture.original_client(), "");
    assert_eq!(fixture.recorded_pid("0"), task);
    enforcer.ticks(15);
    assert_eq!(Fixture::verdict(&enforcer, "0").as_deref(), Some("keep"));
    let list = || String::from_utf8(fixture.bailiff(&["list"]).output().unwrap().stdout).unwrap();
    assert!(!list().contains("process gone"), "{}", list());
    kill(task);
    until("the lease is suspect", || (Fixture::verdict(&enforcer, "0")? == "suspect").then_some(()));
    let status = String::from_utf8(enforcer.run(&["status"]).stdout).unwrap();
    assert!(status.contains("GPU 0 is suspect: ") && status.contains("; freed in "), "{status}");
    assert!(list().contains("(process gone)"), "{}", list());
    fixture.until_idle("0");
    assert!(start(launcher).is_some());
    end_session(launcher);
}

#[test]
fn older_session_process_with_open_device_keeps_the_lease() {
    inside("open_device_inside");
}

#[test]
#[ignore = "needs its own PID namespace"]
fn open_device_inside() {
    let fixture = Fixture::new(2, ", legacy_idle_grace: 1s");
    let enforcer = fixture.enforcer();
    until_up(&enforcer);
    // The pool leases GPU 0 first, then GPU 1. The launcher has only the device file of GPU 0 open.
    let device = fixture.node.home.device();
    let first = format!("exec 5<>{}", device.display());
    let (launcher, task) = fixture.task_of(&first, (&fixture.original_client(), ""));
    kill(task);
    let kept = "a process of the same session has the device open";
    enforcer.until_status("the lease is kept", |status| {
        (status["leases"]["judged"][0]["why"] == kept).then_some(())
    });
    enforcer.ticks(15);
    assert_eq!(fixture.gpu("0").idle, 0);
    end_session(launcher);
    fixture.until_idle("0");
}

#[test]
fn reap_without_an_agent_frees_dead_tasks() {
    inside("reap_without_agent_inside");
}

#[test]
#[ignore = "needs its own PID namespace"]
fn reap_without_agent_inside() {
    let fixture = Fixture::new(2, "");
    let (launcher, task) = fixture.task(&fixture.drop_in(), "");
    let (other, original) = fixture.task(&fixture.original_client_unobserved(), "");
    let stream = fixture.node.home.stream();
    let reap = |args: &[&str]| {
        let output = fixture
            .bailiff(&[&["reap", "--stream", stream.to_str().unwrap()], args].concat())
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap())
    };
    assert_eq!(reap(&["--legacy"]), ["0\n", ""], "both tasks are running");
    kill(task);
    kill(original);
    until("the processes have exited", || (start(task).or(start(original)).is_none()).then_some(()));
    assert_eq!(reap(&[]), ["0\n", ""], "descendants of the tasks may still be running");
    // A record does not contain the PID namespace of its pid.
    let elsewhere = "bailiff: GPU 1: its process does not exist here, but may be running on another host or in another container; not freed\n";
    let [lines, kept] = reap(&["--legacy", "--dry-run"]);
    assert!(lines.ends_with("GPU 0 its process has exited\n") && lines.lines().count() == 1, "{lines}");
    assert_eq!(kept, elsewhere);
    let silent = fixture.node.home.path().join("silent.sock");
    let _listener = std::os::unix::net::UnixListener::bind(&silent).unwrap();
    let mut unanswered = fixture.bailiff(&["reap", "--legacy", "--stream"]);
    let output = unanswered.arg(&silent).output().unwrap();
    let kept = String::from_utf8(output.stderr).unwrap();
    assert!(kept.contains("GPU 0: the exporter does not report which processes are on it"), "{kept}");
    assert_eq!(output.stdout, b"0\n");
    assert_eq!(reap(&["--legacy"]), ["1\n", elsewhere]);
    assert_eq!([fixture.gpu("0").idle, fixture.gpu("1").idle], [1, 0]);
    for launcher in [launcher, other] {
        end_session(launcher);
    }
}

#[test]
fn lease_of_a_dead_holder_in_use_is_kept() {
    inside("dead_holder_in_use_inside");
}

#[test]
#[ignore = "needs its own PID namespace"]
fn dead_holder_in_use_inside() {
    let fixture = Fixture::new(2, "");
    let enforcer = fixture.enforcer();
    until_up(&enforcer);
    end_session(fixture.script());
    until("the lease is suspect", || (Fixture::verdict(&enforcer, "0")? == "suspect").then_some(()));
    let tenant = Tenant::running(&fixture.node.home, &["sleep", "infinity"]);
    fixture.node.hold(&tenant, 0, "used: 1GiB");
    until("a process is seen on it", || (Fixture::verdict(&enforcer, "0")? == "keep").then_some(()));
    drop(tenant);
    until("the lease is suspect again", || (Fixture::verdict(&enforcer, "0")? == "suspect").then_some(()));
    enforcer.ticks(10);
    assert_eq!(fixture.node.home.results("free_orphaned"), [""; 0]);
    assert_eq!(fixture.gpu("0").idle, 0);
}

#[test]
fn reused_pid_is_not_the_holder() {
    inside("reused_pid_inside");
}

#[test]
#[ignore = "needs its own PID namespace"]
fn reused_pid_inside() {
    let fixture = Fixture::new(1, ", legacy_idle_grace: 1s");
    let enforcer = fixture.enforcer();
    until_up(&enforcer);
    end_session(fixture.script());
    let pid = fixture.recorded_pid("0");
    let mut reused = until("the pid comes round again", || {
        fs::write("/proc/sys/kernel/ns_last_pid", (pid - 1).to_string()).unwrap();
        let child = Command::new("sleep").arg("infinity").spawn().unwrap();
        if child.id() == pid {
            return Some(child);
        }
        end(child);
        None
    });
    fixture.until_idle("0");
    reused.kill().unwrap();
    reused.wait().unwrap();
}

#[test]
fn gpu_lost_in_transfer_is_returned() {
    let fixture = Fixture::new(1, ", lost_after: 2s");
    let enforcer = fixture.enforcer();
    until_up(&enforcer);
    // A client that is killed after its pop from the idle list and before it writes its record.
    fixture.redis(&["brpop", "GPU_IDLE", "0"]);
    until("the lease is suspect", || (Fixture::verdict(&enforcer, "0")? == "suspect").then_some(()));
    fixture.until_idle("0");
    fixture.until_results("put_back_lost", "freed");
}

#[test]
fn agent_in_dry_run_frees_nothing() {
    for (leases, flags) in [(", reap: false", vec![]), ("", vec!["--dry-run"])] {
        let fixture = Fixture::new(2, leases);
        let enforcer = fixture.node.home.enforcer(&flags);
        until_up(&enforcer);
        let (mut runner, child, gpu) = fixture.hold();
        fixture.redis(&["brpop", "GPU_IDLE", "0"]);
        runner.kill().unwrap();
        kill(child);
        runner.wait().unwrap();
        enforcer.ticks(15);
        assert!(fixture.gpu(&gpu).owner.is_some(), "{leases} {flags:?}");
        assert_eq!(enforcer.status()["leases"]["acts"], Value::Bool(false));
        assert!(fixture.audit().agents.is_empty(), "other agents free these leases");
        for step in ["reap_dead", "put_back_lost"] {
            assert_eq!(fixture.node.home.results(step), [""; 0]);
        }
        // While a process is exiting, it is unknown for a moment whether it had the lease.
        until("the GPU is freed", || {
            (fixture.bailiff(&["reap"]).output().unwrap().stdout == b"1\n").then_some(())
        });
    }
}

#[test]
fn pause_holds_lease_releases() {
    let fixture = Fixture::new(1, "");
    let enforcer = fixture.enforcer();
    until_up(&enforcer);
    let (mut runner, child, gpu) = fixture.hold();
    assert!(enforcer.run(&["pause"]).status.success());
    enforcer.until_status("the pause", |status| (status["leases"]["acts"] == false).then_some(()));
    runner.kill().unwrap();
    kill(child);
    runner.wait().unwrap();
    enforcer.ticks(10);
    assert!(fixture.gpu(&gpu).owner.is_some());
    assert!(enforcer.run(&["resume"]).status.success());
    fixture.until_idle(&gpu);
}

#[test]
fn silent_redis_delays_only_lease_actions() {
    let fixture = Fixture::new(1, ", legacy_idle_grace: 1s, lost_after: 1s");
    let enforcer = fixture.enforcer();
    until_up(&enforcer);
    let (mut runner, child, gpu) = fixture.hold();
    fixture.redis.stop();
    runner.kill().unwrap();
    kill(child);
    runner.wait().unwrap();
    enforcer.until_status("the silence is noticed", |status| {
        (status["leases"]["up"] == false && status["leases"]["error"].is_string()).then_some(())
    });
    // Snapshots are still evaluated.
    enforcer.ticks(10);
    assert_eq!(enforcer.page().value("bailiff_lease_agent_up", &[]), Some(0.0));
    assert_eq!(enforcer.page().all("bailiff_lease_agent_gpus", &[]).count(), 0);
    assert_eq!(fixture.node.home.results("reap_dead").iter().filter(|result| *result == "freed").count(), 0);
    fixture.redis.go_on();
    fixture.until_idle(&gpu);
    until_up(&enforcer);
}

#[test]
fn hostile_redis_is_bounded() {
    let mut fixture = Fixture::new(1, "");
    let enforcer = fixture.enforcer();
    until_up(&enforcer);
    let before = enforcer.peak_mib();
    for (attack, why) in ATTACKS {
        fixture.redis.kill();
        let hostile = HostileRedis::listen(&fixture.redis.socket(), attack);
        enforcer.until_status(why, |status| status["leases"]["error"].as_str()?.contains(why).then_some(()));
        hostile.until_refused(8);
        println!("{} MiB after {attack:?}", enforcer.peak_mib());
        fixture.redis.start_again();
        until_up(&enforcer);
    }
    let after = enforcer.peak_mib();
    assert!(after < before + MOST_MIB, "{before} MiB before, {after} MiB after");
    let output = fixture.bailiff(&["init", "--gpus", "0"]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    fixture.until_idle("0");
}

/// Rules that release unused leases.
const UNUSED: &str = "  - {name: unused, target: lease, when: {attached_processes: {max: 0}}, for: {samples: 5}, then: [{flag: info}, {release_lease: {}}]}";

#[test]
fn idle_lease_is_released_and_its_holder_notified() {
    let fixture = Fixture::with(2, "", UNUSED);
    let tenant = Tenant::running(&fixture.node.home, &["sleep", "infinity"]);
    let (used, _, gpu) = fixture.hold();
    let lease = fixture.gpu(&gpu).owner.unwrap();
    // The process's environment refers to the lease.
    let home = &fixture.node.home;
    let mut command = Command::new("setsid");
    command.args(["sleep", "infinity"]).env("BAILIFF_LEASE_ID", &lease);
    let user = Tenant::spawn(home, command);
    fixture.node.hold(&user, gpu.parse().unwrap(), "used: 1GiB");
    let (idle, child, other) = fixture.hold();
    let held = fixture.audit().leases.into_iter().find(|lease| lease.gpus().eq([other.as_str()])).unwrap();
    let token: u64 = held.get("tok").unwrap().parse().unwrap();
    let mut pool = fixture.pool();
    let mut touch = || pool.touch(&held.lease, Duration::from_mins(1), Some(token)).unwrap();
    assert_eq!(touch(), TicketStatus::Held(Grant { token, gpus: vec![other.parse().unwrap()] }));
    let enforcer = fixture.enforcer();
    let line = home.until_line("release_lease", "released");
    assert_eq!(line["target"]["id"], format!("lease:{}#{token}", held.lease));
    fixture.until_idle(&other);
    assert_eq!(touch(), TicketStatus::Ended("revoked".to_owned()));
    assert!(start(child).is_some(), "no process is terminated");
    enforcer.ticks(10);
    assert_eq!(fixture.gpu(&gpu).owner, Some(lease), "the lease is in use");
    assert_eq!(home.effects("release_lease"), ["released"]);
    drop((tenant, user));
    for runner in [used, idle] {
        leases::end(runner, Signal::TERM);
    }
}

#[test]
fn without_redis_no_lease_is_evaluated() {
    let rules = format!(
        "{UNUSED}
  - {{name: no-lease, target: process, when: {{has_lease: false}}, for: {{samples: 3}}, then: [{{flag: warning}}]}}"
    );
    let fixture = Fixture::with(2, ", reap: false", &rules);
    let tenant = Tenant::running(&fixture.node.home, &["sleep", "infinity"]);
    fixture.node.hold(&tenant, 1, "used: 1GiB");
    let enforcer = fixture.enforcer();
    let flagged = |rule: &str| enforcer.page().value("bailiff_flag", &[("rule", rule)]) == Some(1.0);
    until("the process without a lease is flagged", || flagged("no-lease").then_some(()));
    fixture.redis.stop();
    let unknown = |rule: &str| enforcer.page().value("bailiff_rule_unknown", &[("rule", rule)]);
    until("the lease's use is unknown", || (unknown("no-lease")? > 0.0).then_some(()));
    fixture.redis.go_on();
    until("the lease's use is observed again", || (unknown("no-lease")? == 0.0).then_some(()));
    // If the holder's node does not report, the lease is not released, no matter how long that lasts.
    let (runner, child, gpu) = fixture.hold();
    fixture.redis.stop();
    until("the lease's use is unknown", || (unknown("no-lease")? > 0.0).then_some(()));
    let released = || fixture.node.home.results("release_lease").contains(&"released".to_owned());
    let before = released();
    enforcer.ticks(15);
    assert_eq!(released(), before);
    fixture.redis.go_on();
    fixture.until_idle(&gpu);
    end(runner);
    kill(child);
}
