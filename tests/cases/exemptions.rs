//! Tests which targets are exempt and which reasons are reported: protected targets, workloads of several owners,
//! reused pids.
#![allow(
    clippy::disallowed_methods,
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a case runs programs, reads files and fails loudly"
)]

use std::fs;
use std::os::unix::fs::symlink;
use std::os::unix::process::CommandExt;
use std::process::Command;

use end_to_end::enforcer::{Enforcer, streak};
use end_to_end::holder::child;
use end_to_end::node::Node;
use end_to_end::tenant::{NOBODY_UID, Tenant, start};
use end_to_end::wait::until;
use rustix::process::Signal;
use serde_json::{Value, json};

const RULES: &str = "version: 1
mode: enforce
defaults: {startup_grace: 0s, clear_after: 1, grace: 30s}
protect: {comms: [precious]}
rules:
  - name: idle
    target: process
    when: {gpu_util: {max: 1%}}
    for: {samples: 4}
    then: [{terminate: {}}]
";

fn explained(enforcer: &Enforcer, pid: u32) -> Value {
    enforcer.query(&json!({"command": "explain", "pid": pid}))["explanation"][0].take()
}

#[test]
fn protected_targets_are_exempt_with_a_reason() {
    let node = Node::new(RULES);
    let precious = node.home.path().join("precious");
    symlink("/bin/sleep", &precious).unwrap();
    let by_policy = Tenant::running(&node.home, &[precious.to_str().unwrap(), "infinity"]);
    let mut of_root = Command::new("setsid");
    of_root.args(["sleep", "infinity"]);
    let of_root = Tenant::spawn(&node.home, of_root);
    let plain = Tenant::ending_on_term(&node.home);
    let all = [&by_policy, &of_root, &plain];
    for tenant in all {
        node.hold(tenant, 0, "used: 1GiB");
    }
    let enforcer = node.home.enforcer(&[]);
    plain.gone();
    node.home.until_line("terminate", "released");
    let exempt = json!(format!("process {} (precious) is exempt", by_policy.pid()));
    for (tenant, why) in [(&by_policy, exempt), (&of_root, json!("it runs as root outside a container"))] {
        assert!(tenant.is_running());
        let explanation = explained(&enforcer, tenant.pid());
        let gate = &explanation["gates"][0];
        assert_eq!(
            (&gate["gate"], &gate["passes"], &gate["why"]),
            (&json!("protection"), &json!("false"), &why)
        );
        assert_eq!((&explanation["outcome"], &explanation["streak"]), (&json!("false"), &json!(0)));
    }
    let leaf = &explained(&enforcer, by_policy.pid())["gates"][0]["leaves"][0];
    assert_eq!((&leaf["name"], &leaf["outcome"]), (&json!("comms"), &json!("true")));
    let text = enforcer.run(&["explain", "--pid", &of_root.pid().to_string()]);
    let text = String::from_utf8(text.stdout).unwrap();
    assert!(text.contains("protection: does not pass (it runs as root outside a container)"), "{text}");
    let about = |line: &Value| line["target"]["members"][0]["pid"] == plain.pid();
    assert!(node.home.lines().iter().filter(|line| line["step"] == "terminate").all(about));
}

/// A process of another owner in the same process tree exempts the whole workload.
#[test]
fn workload_of_several_owners_is_exempt() {
    let rules = RULES.replace("target: process", "target: workload");
    let node = Node::new(&rules);
    let mut command = Command::new("setsid");
    let other = "setpriv --reuid=65533 --regid=65533 --clear-groups sleep infinity &
                 exec setpriv --reuid=65534 --regid=65534 --clear-groups sleep 1000000";
    command.args(["sh", "-c", other]);
    let tenant = Tenant::spawn(&node.home, command);
    let other = child(tenant.pid(), "sleep");
    until("both processes have their uids", || {
        let comm = fs::read_to_string(format!("/proc/{}/comm", tenant.pid())).ok()?;
        (comm == "sleep\n").then_some(())
    });
    node.hold(&tenant, 0, "used: 1GiB");
    let enforcer = node.home.enforcer(&[]);
    let line = node.home.until_line("terminate", "refused");
    let detail = format!("process {other} is exempt: it has uid 65533, but the target has uid {NOBODY_UID}");
    assert_eq!((&line["detail"], &line["sent"]), (&json!(detail), &json!([])));
    enforcer.until("the result is counted", |page| {
        page.happened("bailiff_kills_total", &[("result", "refused")]).then_some(())
    });
    enforcer.ticks(3);
    assert_eq!(node.home.effects("terminate"), ["refused"], "the action is attempted once");
    assert!(tenant.is_running() && start(other).is_some());
    let actions = enforcer.status()["actions"].take();
    assert_eq!((&actions[0]["outcome"], &actions[0]["detail"]), (&json!("refused"), &json!(detail)));
}

/// Runs an ignored test in this file in its own PID namespace, where the next pid can be chosen.
fn inside(test: &str) {
    let output = Command::new("unshare")
        .args(["--pid", "--fork", "--mount-proc", "--kill-child"])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "--ignored", "--nocapture", &format!("exemptions::{test}")])
        .output()
        .unwrap();
    let printed = String::from_utf8_lossy(&output.stdout);
    let passed = output.status.success() && printed.contains("1 passed");
    assert!(passed, "{printed}\n{}", String::from_utf8_lossy(&output.stderr));
    println!("{printed}");
}

/// Makes the next process get this pid, unless another process is created first.
fn next_pid(pid: u32) {
    fs::write("/proc/sys/kernel/ns_last_pid", (pid - 1).to_string()).unwrap();
}

/// Returns a tenant that ignores every signal that can be ignored. Its pid is far from other pids.
fn first(node: &Node) -> Tenant {
    next_pid(20_000);
    ignoring_all(node)
}

/// Returns another tenant with the same pid.
fn second(node: &Node, mut first: Tenant) -> Tenant {
    let pid = first.pid();
    first.end();
    until("the pid", || {
        next_pid(pid);
        Some(ignoring_all(node)).filter(|tenant| tenant.pid() == pid)
    })
}

fn ignoring_all(node: &Node) -> Tenant {
    let program = "trap 'echo TERM' TERM; echo ready; while :; do read nothing; done";
    // `setsid` is not used here, because it forks.
    let mut command = Command::new("/bin/sh");
    command.args(["-c", program]).uid(NOBODY_UID).gid(NOBODY_UID).process_group(0);
    let tenant = Tenant::spawn(&node.home, command);
    until("the tenant's first line", || (!tenant.output_lines().is_empty()).then_some(()));
    tenant
}

#[test]
fn reused_pid_of_an_idle_process_starts_at_zero() {
    inside("reused_pid_inside");
}

#[test]
#[ignore = "runs in its own PID namespace"]
fn reused_pid_inside() {
    let node = Node::new(&RULES.replace("samples: 4", "samples: 10"));
    let first = first(&node);
    let pid = first.pid();
    node.hold_pid(pid, "used: 1GiB");
    let enforcer = node.home.enforcer(&[]);
    enforcer.until_streak(pid, 7);
    let began = start(pid);
    // While both daemons are stopped, no other process can get the pid.
    let second = node.exporter.while_stopped(|| enforcer.while_stopped(|| second(&node, first)));
    assert_ne!(start(pid), began);
    // Waits for the sample at which the first tenant would have been terminated, and for two more ticks.
    let name = format!("process:{pid}@{}", start(pid).unwrap());
    let status = enforcer.until_status("the second is seen", |status| {
        status["pending"].as_array()?.iter().any(|pending| pending["target"] == name).then(|| status.clone())
    });
    assert!(streak(&status, pid) <= 2, "the new streak starts with {}", streak(&status, pid));
    enforcer.ticks(5);
    assert!(second.is_running() && second.terms_received() == 0);
    assert!(node.home.results("terminate").is_empty());
    // The second tenant is terminated after its own samples.
    second.until_terms(1);
    let line = node.home.until_line("terminate", "begun");
    assert_eq!((&line["target"]["id"], &line["evidence"]["streak"]), (&json!(name), &json!(11)));
}

#[test]
fn pid_reused_before_the_action_is_not_signalled() {
    inside("pid_reused_after_the_decision_inside");
}

/// The enforcer is stopped between its decision and the moment at which another process has the pid.
#[test]
#[ignore = "runs in its own PID namespace"]
fn pid_reused_after_the_decision_inside() {
    let node = Node::new(RULES);
    let first = first(&node);
    let (pid, began) = (first.pid(), start(first.pid()).unwrap());
    node.hold_pid(pid, "used: 1GiB");
    let enforcer = node.home.enforcer(&[]);
    until("the decision", || node.home.line("terminate", "due"));
    enforcer.signal(Signal::STOP);
    // If the enforcer was stopped too late, the action was against the first tenant.
    let too_late = node.home.line("terminate", "begun").is_some();
    let terms = first.terms_received();
    node.exporter.next();
    let second = node.exporter.while_stopped(|| second(&node, first));
    enforcer.signal(Signal::CONT);
    enforcer.ticks(3);
    println!("too late: {too_late}, results: {:?}", node.home.results("terminate"));
    assert!(too_late || terms == 0);
    assert!(
        second.is_running() && second.terms_received() == 0,
        "the process with the reused pid received a signal"
    );
    let first_only = |line: &Value| line["target"]["id"] == format!("process:{pid}@{began}");
    let lines = node.home.lines();
    assert!(
        lines.iter().filter(|line| line["step"] == "terminate" && line["result"] != "due").all(first_only)
    );
}
