//! Tests that exemptions are evaluated for every process of a target: helpers without GPU memory, and processes that
//! start later.
#![allow(
    clippy::disallowed_methods,
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a case runs programs, reads files and fails loudly"
)]

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;

use end_to_end::enforcer::Enforcer;
use end_to_end::exporter::{self, Exporter};
use end_to_end::fake::Scenario;
use end_to_end::holder::{child, children};
use end_to_end::home::Home;
use end_to_end::node::{Node, TICKS};
use end_to_end::programs;
use end_to_end::tenant::Tenant;
use end_to_end::wait::until;

/// Rules that terminate idle targets. KIND and EXEMPT are replaced.
const RULES: &str = "version: 1
mode: enforce
defaults: {startup_grace: 0s, grace: 1s}
PROTECT
rules:
  - name: idle
    target: KIND
    EXCEPT
    when: {gpu_util: {max: 1%}}
    for: {samples: 3}
    then: [{terminate: {}}]
";

/// A helper that logs and ignores TERM. Its holder is another program with another command line.
const HELPER: &str = "bash -c \"trap 'echo HELPER' TERM; while :; do read x <&3; done\"";

fn rules(kind: &str, protect: &str, except: &str) -> String {
    RULES.replace("KIND", kind).replace("PROTECT", protect).replace("EXCEPT", except)
}

/// Returns the path of a program as in `/proc/PID/exe`.
fn exe(name: &str) -> PathBuf {
    fs::canonicalize(name).unwrap()
}

fn node(rules: &str) -> Node {
    Node::with_ticks(rules, &[""], &[TICKS.as_slice(), &["--process.command"]].concat())
}

/// Returns a holder that logs and ignores TERM, and its helper.
fn with_helper(node: &Node) -> (Tenant, u32) {
    let program =
        format!("exec 3<&0; trap 'echo TERM' TERM; {HELPER} & echo ready; while :; do read x <&3; done");
    let tenant = Tenant::shell(&node.home, &program);
    let helper = child(tenant.pid(), "bash");
    (tenant, helper)
}

fn explained(enforcer: &Enforcer, pid: u32) -> String {
    let output = enforcer.run(&["explain", "--pid", &pid.to_string(), "--rule", "idle"]);
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn exempt_helper_protects_its_holder() {
    let bash = exe("/bin/bash").display().to_string();
    let by_exe = format!("protect: {{exe: [{bash}]}}");
    let excepted = format!("except: [{{exe: [{bash}], reason: kept}}]");
    let other = "except: [{not: {comms: [sh]}, reason: kept}]";
    let cases = [
        (by_exe.as_str(), "", format!("exe is {bash}")),
        ("protect: {cmdline: [\"bash -c trap*\"]}", "", "cmdline is bash -c trap".to_owned()),
        ("", excepted.as_str(), format!("exe is {bash}")),
        ("", other, "comms is bash".to_owned()),
    ];
    for kind in ["process", "workload"] {
        for (protect, except, why) in &cases {
            let node = node(&rules(kind, protect, except));
            let (tenant, helper) = with_helper(&node);
            let idle = Tenant::ending_on_term(&node.home);
            node.hold_together(&[(&tenant, "used: 1GiB"), (&idle, "used: 1GiB")]);
            let enforcer = node.home.enforcer(&[]);
            idle.gone();
            enforcer.ticks(5);
            let text = explained(&enforcer, tenant.pid());
            assert!(
                text.contains(&format!("process {helper} (bash) is exempt")),
                "{kind} {protect}{except}: {text}"
            );
            assert!(text.contains(why), "{kind} {protect}{except}: {text}");
            assert_eq!(tenant.output_lines(), ["ready"], "{kind} {protect}{except}");
            assert!(tenant.is_running() && fs::exists(format!("/proc/{helper}")).unwrap());
        }
    }
}

/// The helper is not in the snapshot that confirmed the action, but `/proc` is read again before each signal.
#[test]
fn helper_started_after_the_snapshot_cancels_the_action() {
    let bash = exe("/bin/bash").display().to_string();
    for protect in
        [format!("protect: {{exe: [{bash}]}}"), "protect: {cmdline: [\"bash -c trap*\"]}".to_owned()]
    {
        let node = node(&rules("workload", &protect, ""));
        let program = format!(
            "exec 3<&0; trap '{} & echo TERM' TERM; echo ready; while :; do read x <&3; done",
            HELPER.replace('\'', "'\\''")
        );
        let tenant = Tenant::shell(&node.home, &program);
        node.hold(&tenant, 0, "used: 1GiB");
        let _enforcer = node.home.enforcer(&[]);
        tenant.until_terms(1);
        let helper = child(tenant.pid(), "bash");
        let line = node.home.until_line("terminate", "failed");
        let detail = line["detail"].as_str().unwrap();
        assert!(detail.contains("the policy protects it"), "{line}");
        assert_eq!(tenant.output_lines(), ["ready", "TERM"], "{protect}");
        assert!(tenant.is_running() && fs::exists(format!("/proc/{helper}")).unwrap());
    }
}

/// Ending a process that CRIU restored can hang the driver.
#[test]
fn process_below_criu_is_exempt() {
    let node = node(&rules("process", "", ""));
    let directory = tempfile::tempdir().unwrap();
    let program = directory.path().join("criu");
    fs::copy(exe("/bin/sh"), &program).unwrap();
    let mut command = Command::new("setsid");
    command
        .arg(&program)
        .args(["-c", "setpriv --reuid 65534 --clear-groups sleep infinity & echo ready; wait"]);
    let criu = Tenant::spawn(&node.home, command);
    let restored = until("the restored process", || {
        let pid = *children(criu.pid()).first()?;
        (fs::read_to_string(format!("/proc/{pid}/comm")).ok()? == "sleep\n").then_some(pid)
    });
    node.hold_process(restored, "used: 1GiB");
    let idle = Tenant::ending_on_term(&node.home);
    node.hold(&idle, 0, "used: 1GiB");
    let enforcer = node.home.enforcer(&[]);
    idle.gone();
    enforcer.ticks(5);
    let text = explained(&enforcer, restored);
    assert!(text.contains("CRIU restored it, and ending it can hang the driver"), "{text}");
    assert!(fs::exists(format!("/proc/{restored}")).unwrap());
}

#[test]
fn process_with_the_name_of_a_daemon_is_ended() {
    let node = node(&rules("process", "", ""));
    let directory = tempfile::tempdir().unwrap();
    fs::set_permissions(directory.path(), Permissions::from_mode(0o755)).unwrap();
    let program = directory.path().join("bailiff-x");
    fs::copy(exe("/bin/sleep"), &program).unwrap();
    let tenant = Tenant::running(&node.home, &[program.to_str().unwrap(), "1000"]);
    until("the process's name", || {
        let comm = fs::read_to_string(format!("/proc/{}/comm", tenant.pid())).ok()?;
        (comm == "bailiff-x\n").then_some(())
    });
    node.hold(&tenant, 0, "used: 1GiB");
    let _enforcer = node.home.enforcer(&[]);
    tenant.gone();
    node.home.until_line("terminate", "released");
}

/// The exporter runs under another name and is listed as a holder, and the rules may act on root's processes.
#[test]
fn exporter_is_exempt_whatever_its_name() {
    let home = Home::with(&rules("process", "allow_root: true", ""));
    let program = home.path().join("observer");
    fs::copy(programs::exporter(), &program).unwrap();
    let scenario = Scenario::new("gpus: [{}]\n");
    let stock = exporter::command(&scenario);
    let mut command = Command::new(&program);
    command.args(stock.get_args()).args(["--stream", home.stream().to_str().unwrap()]).args(TICKS);
    command.args(["--trust-pid-namespace"]);
    command.envs(stock.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let exporter = Exporter::spawn(command);
    let pid = exporter.pid();
    scenario.set(&format!("gpus: [{{processes: [{{pid: {pid}, used: 1GiB}}]}}]\n"));
    let enforcer = home.enforcer(&[]);
    let text = until("the target is evaluated", || {
        let text = explained(&enforcer, pid);
        text.contains("protection").then_some(text)
    });
    assert!(
        text.contains("protection: does not pass (it belongs to the enforcer or the exporter)"),
        "{text}"
    );
    assert!(!text.contains("(bailiff"), "{text}");
}
