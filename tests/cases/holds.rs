//! Tests what holds all actions: a pause, a full disk, a stream from another user, and open breakers.
#![allow(
    clippy::disallowed_methods,
    clippy::expect_used,
    clippy::float_cmp,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a case runs programs, reads files, compares exact figures and fails loudly"
)]

use std::fs::{self, File, Permissions};
use std::io::Write;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use end_to_end::enforcer::{self, Enforcer};
use end_to_end::home::{self, Home};
use end_to_end::node::Node;
use end_to_end::programs;
use end_to_end::tenant::{NOBODY_UID, Tenant};
use end_to_end::wait::until;

const RULES: &str = "version: 1
mode: enforce
defaults: {startup_grace: 0s, clear_after: 1, grace: 30s}
rules:
  - name: idle
    target: process
    when: {gpu_util: {max: 1%}}
    for: {samples: 4}
    then: [{flag: info}, {terminate: {}}]
";

fn stdout_of(output: &Output) -> String {
    [output.stdout.as_slice(), &output.stderr].map(String::from_utf8_lossy).concat()
}

#[test]
fn pause_holds_actions_until_resume() {
    let node = Node::new(RULES);
    let tenant = Tenant::ending_on_term(&node.home);
    let mut enforcer = node.home.enforcer(&[]);
    let paused = enforcer.run(&["pause", "--for", "2h", "--reason", "driver upgrade"]);
    assert!(
        paused.status.success() && stdout_of(&paused).contains("paused for 2 h"),
        "{}",
        stdout_of(&paused)
    );
    node.hold(&tenant, 0, "used: 1GiB");
    node.home.until_line("flag", "raised");
    enforcer.until_waits(tenant.pid(), "paused");
    assert!(enforcer.is_held("paused"));
    let status = stdout_of(&enforcer.run(&["status"]));
    assert!(status.contains("paused by an administrator") && status.contains("driver upgrade"), "{status}");
    // The pause survives a restart of the enforcer.
    assert_eq!(enforcer.stop(), Some(0));
    let enforcer = node.home.enforcer(&[]);
    enforcer.until_waits(tenant.pid(), "paused");
    assert!(tenant.is_running() && tenant.terms_received() == 0);
    assert_eq!(node.home.line("pause", "done").unwrap()["detail"], "by uid 0: driver upgrade");
    assert!(enforcer.run(&["resume"]).status.success());
    tenant.gone();
    assert_eq!(node.home.line("resume", "done").unwrap()["detail"], "by uid 0");
    assert!(!enforcer.is_held("paused"));
}

#[test]
fn pause_in_the_grace_cancels_the_kill() {
    let node = Node::new(&RULES.replace("grace: 30s", "grace: 2s"));
    let tenant = Tenant::ignoring_term(&node.home);
    node.hold(&tenant, 0, "used: 1GiB");
    let enforcer = node.home.enforcer(&[]);
    tenant.until_terms(1);
    assert!(enforcer.run(&["pause"]).status.success());
    let line = node.home.until_line("terminate", "cancelled");
    assert_eq!(line["sent"].as_array().unwrap().len(), 1, "{line}");
    // Wait longer than the grace period.
    enforcer.ticks(15);
    assert!(tenant.is_running() && tenant.terms_received() == 1);
    assert_eq!(enforcer.page().value("bailiff_kills_total", &[("result", "cancelled")]), Some(1.0));
}

/// Runs a command as user nobody, who cannot traverse the directories on the path to the program.
fn as_nobody(enforcer_of: &Home, arguments: &[&str]) -> Output {
    let program = File::open(programs::enforcer()).unwrap();
    let mut command = Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "/proc/self/fd/0"]).stdin(program);
    command.args(arguments).arg("--control").arg(enforcer_of.control()).output().unwrap()
}

#[test]
fn control_socket_accepts_only_root_and_its_group() {
    let home = Home::with(RULES);
    let enforcer = home.enforcer(&[]);
    let refused = as_nobody(&home, &["pause"]);
    assert!(!refused.status.success(), "owner and group may connect: {}", stdout_of(&refused));
    fs::set_permissions(home.control(), Permissions::from_mode(0o666)).unwrap();
    for command in ["pause", "resume", "reload"] {
        let refused = as_nobody(&home, &[command]);
        assert_eq!(refused.status.code(), Some(1), "{}", stdout_of(&refused));
        assert!(stdout_of(&refused).contains("root, or membership in the group"), "{}", stdout_of(&refused));
    }
    assert!(as_nobody(&home, &["status"]).status.success(), "every client that can connect may send queries");
    assert!(!enforcer.is_held("paused"));
    assert_eq!(home.line("pause", "done"), None);
}

/// Returns an enforcer whose audit log is on its own, full disk.
fn enforcer_on_full_disk(node: &Node) -> (Enforcer, PathBuf) {
    enforcer_on_disk(node, "head -c 65536 /dev/zero > \"$0/full\"")
}

/// Returns an enforcer whose audit log is on its own disk, prepared by `before`.
fn enforcer_on_disk(node: &Node, before: &str) -> (Enforcer, PathBuf) {
    let disk = node.home.path().join("disk");
    fs::create_dir(&disk).unwrap();
    let prepare = format!("mount -t tmpfs -o size=64k tmpfs \"$0\" && {before} && exec \"$@\"");
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", &prepare]).arg(&disk).arg(programs::enforcer());
    command.args(enforcer::arguments(&node.home)).arg("--audit").arg(disk.join("audit.jsonl"));
    let enforcer = Enforcer::spawn(&node.home, command);
    // The enforcer has its own mount namespace. This is the path of the disk from outside.
    let seen = PathBuf::from(format!("/proc/{}/root{}", enforcer.pid(), disk.display()));
    (enforcer, seen)
}

#[test]
fn unwritable_audit_log_holds_actions() {
    let node = Node::new(RULES);
    let tenant = Tenant::ending_on_term(&node.home);
    let (enforcer, disk) = enforcer_on_full_disk(&node);
    enforcer.until("actions are held", |page| {
        (page.value("bailiff_hold_active", &[("hold", "audit")])? == 1.0).then_some(())
    });
    node.hold(&tenant, 0, "used: 1GiB");
    let pid = tenant.pid().to_string();
    enforcer.until("the flag", |page| page.value("bailiff_flag", &[("pid", &pid)]));
    enforcer.until_waits(tenant.pid(), "audit");
    enforcer.ticks(3);
    assert!(tenant.is_running() && tenant.terms_received() == 0);
    assert!(enforcer.page().value("bailiff_audit_write_failures_total", &[]) > Some(0.0));
    enforcer.until_logged("cannot write the audit log");
    fs::remove_file(disk.join("full")).unwrap();
    tenant.gone();
    let lines = until("missing parts are written", || {
        let lines = home::lines(&disk.join("audit.jsonl"));
        lines.iter().any(|line| line["result"] == "released").then_some(lines)
    });
    for (step, result) in [("start", "done"), ("flag", "raised"), ("terminate", "begun")] {
        assert!(lines.iter().any(|line| line["step"] == step && line["result"] == result), "{step}");
    }
}

/// Fills a disk to its last byte, with a file and the rest of the audit log's last page.
fn fill(disk: &Path) {
    for name in ["full", "audit.jsonl"] {
        let mut file = File::options().create(true).append(true).open(disk.join(name)).unwrap();
        while file.write_all(b"{}\n").is_ok() {}
    }
}

#[test]
fn unwritten_result_is_logged_at_the_next_start() {
    let node = Node::new(RULES);
    let tenant = Tenant::ignoring_term(&node.home);
    let (mut enforcer, disk) = enforcer_on_disk(&node, "true");
    node.hold(&tenant, 0, "used: 1GiB");
    tenant.until_terms(1);
    fill(&disk);
    assert_eq!(enforcer.stop(), Some(0));
    drop(enforcer);
    let kept = node.home.state().join("audit.unwritten.jsonl");
    assert!(kept.exists());

    // The disk was removed, and another disk replaces it.
    let log = node.home.path().join("disk/audit.jsonl");
    let results = || {
        let lines = home::lines(&log).into_iter();
        lines.filter(|line| line["step"] == "terminate" && line["result"] == "cancelled").collect::<Vec<_>>()
    };
    for _ in 0..2 {
        let mut enforcer = node.home.enforcer(&["--audit", &log.display().to_string()]);
        assert!(enforcer.run(&["pause"]).status.success());
        until("the line is there, and is not kept", || {
            (results().len() == 1 && !kept.exists()).then_some(())
        });
        assert_eq!(enforcer.stop(), Some(0));
    }
    let line = results().pop().unwrap();
    let sent = line["sent"].as_array().unwrap();
    assert_eq!((&sent[0]["pid"], &sent[0]["signal"]), (&tenant.pid().into(), &"SIGTERM".into()), "{line}");
    assert!(
        home::lines(&log).iter().any(|line| line["step"] == "end"),
        "the end of the previous run is recorded too"
    );
}

#[test]
fn stream_of_another_user_is_rejected() {
    let home = Home::with(RULES);
    let listener = UnixListener::bind(home.stream()).unwrap();
    chown(home.stream(), Some(NOBODY_UID), None).unwrap();
    let enforcer = home.enforcer(&[]);
    enforcer.until("the stream is refused", |page| {
        page.value("bailiff_stream_refused_total", &[("reason", "distrusted")])
    });
    let why = format!("{} belongs to uid {NOBODY_UID}, which is not root", home.stream().display());
    enforcer.until_logged(&why);
    assert!(stdout_of(&enforcer.run(&["status"])).contains("belongs to uid"));
    assert_eq!(enforcer.page().value("bailiff_stream_connected", &[]), Some(0.0));
    listener.set_nonblocking(true).unwrap();
    assert!(listener.accept().is_err(), "the enforcer must not connect");
    drop(enforcer);

    // The owner is trusted, but another user listens on the socket.
    let enforcer = home.enforcer(&["--stream.user", &NOBODY_UID.to_string()]);
    enforcer.until("the stream is refused", |page| {
        page.value("bailiff_stream_refused_total", &[("reason", "distrusted")])
    });
    enforcer.until_logged("but a process of uid 0 listens on it");
}

#[test]
fn failures_of_a_user_hold_it_until_clean_time() {
    let rules = RULES.replace("{terminate: {}}", "{exec: [/bin/false]}").replace(
        "rules:",
        "limits: {per_gpu_hour: 99, per_user_hour: 99, per_node_hour: 99, breaker_reset: 20s}\nrules:",
    );
    let node = Node::new(&rules);
    let enforcer = node.home.enforcer(&[]);
    // Tenants are added one at a time: if half of all workloads were unknown at once, another breaker would open.
    for _ in 0..3 {
        let mut tenant = Tenant::ending_on_term(&node.home);
        let failed = || node.home.lines().iter().filter(|line| line["result"] == "failed").count();
        let before = failed();
        node.hold(&tenant, 0, "used: 1GiB");
        until("the action failed", || (failed() > before).then_some(()));
        tenant.end();
    }
    let tenant = Tenant::ending_on_term(&node.home);
    node.hold(&tenant, 0, "used: 1GiB");
    enforcer.until_waits(tenant.pid(), "user_failure_breaker");
    let opened = node.home.until_line("breaker", "opened");
    let detail = format!("failures: three consecutive actions against user {NOBODY_UID} failed");
    assert_eq!(opened["detail"], detail.as_str());
    let page = enforcer.page();
    assert_eq!(page.value("bailiff_breaker_open", &[("breaker", "failures")]), Some(1.0));
    let mut command = Command::new("setsid");
    command.args(["sleep", "infinity"]).uid(4002).gid(4002);
    let other = Tenant::spawn(&node.home, command);
    node.hold(&other, 0, "used: 1GiB");
    let failed = |tenant: &Tenant| {
        let of_tenant = |line: &serde_json::Value| line["target"]["members"][0]["pid"] == tenant.pid();
        node.home.lines().iter().any(|line| line["result"] == "failed" && of_tenant(line)).then_some(())
    };
    until("an action against another user", || failed(&other));
    let lines = node.home.lines();
    assert!(!lines.iter().any(|line| line["result"] == "closed"), "the breaker is still open: {lines:?}");
    assert_eq!(
        page.value("bailiff_hold_active", &[("hold", "failure_breaker")]),
        Some(0.0),
        "the node's breaker stays closed"
    );
    let status = stdout_of(&enforcer.run(&["status"]));
    let words: Vec<&str> = status.split_whitespace().collect();
    assert!(words.join(" ").contains(&format!("against user {NOBODY_UID} failed")), "{status}");
    assert_eq!(node.home.until_line("breaker", "closed")["detail"], detail.as_str());
    enforcer.until("the connection is closed", |page| {
        (page.value("bailiff_breaker_open", &[("breaker", "failures")])? == 0.0).then_some(())
    });
    until("the action", || failed(&tenant));
}

#[test]
fn driver_that_hangs_after_an_action_stops_all_actions() {
    let ticks = ["--interval", "1s", "--look-back", "2s", "--deadline", "1s"];
    let node = Node::with_ticks(RULES, &[""], &ticks);
    let tenant = Tenant::ending_on_term(&node.home);
    node.hold(&tenant, 0, "used: 1GiB");
    let enforcer = node.home.enforcer(&[]);
    tenant.gone();
    node.change(|driver| driver.head = "faults: {hang: true}".to_owned());
    enforcer.until("the breaker is open", |page| {
        (page.value("bailiff_breaker_open", &[("breaker", "driver_hang")])? == 1.0).then_some(())
    });
    let opened = node.home.until_line("breaker", "opened");
    assert_eq!(opened["detail"], "driver_hang: the driver stopped responding after an action");
    node.change(|driver| driver.head.clear());
    let tenant = Tenant::ending_on_term(&node.home);
    node.hold(&tenant, 0, "used: 1GiB");
    enforcer.until_waits(tenant.pid(), "driver_hang_breaker");
    assert!(enforcer.run(&["resume"]).status.success());
    tenant.gone();
}

/// Processes younger than two intervals do not count as unknown, so a test suite that starts many processes does not
/// hold the node's actions.
#[test]
fn short_lived_holders_do_not_open_the_unknown_breaker() {
    let ticks = ["--interval", "500ms", "--look-back", "1s", "--deadline", "10s"];
    let node = Node::with_ticks(RULES, &[""], &ticks);
    let enforcer = node.home.enforcer(&[]);
    let (mut most_unknown, mut tenants) = (0, Vec::<Tenant>::new());
    for _ in 0..25 {
        // The processes from the previous sample exit first, so that each process is in a single sample.
        tenants.clear();
        tenants.extend((0..6).map(|_| Tenant::running(&node.home, &["/bin/sleep", "60"])));
        node.hold_together(&tenants.iter().map(|tenant| (tenant, "used: 1GiB")).collect::<Vec<_>>());
        enforcer.ticks(1);
        most_unknown += u32::from(enforcer.status()["rules"][0]["unknown"].as_u64() >= Some(4));
    }
    assert!(most_unknown >= 20, "unknown processes at {most_unknown} of 25 snapshots alone");
    assert_eq!(node.home.line("breaker", "opened"), None);
    let page = enforcer.page();
    assert_eq!(page.value("bailiff_breaker_open", &[("breaker", "unknown")]), Some(0.0));
}

/// A notification that no channel delivered holds later steps, if the rule requires delivery.
#[test]
fn terminate_that_requires_a_notice_waits_for_delivery() {
    let rules = |channels: &str| {
        RULES.replace("rules:", &format!("notify: {channels}\nrules:")).replace(
            "{flag: info}, {terminate: {}}",
            "{notify: [owner]}, {terminate: {requires_notice: true}}",
        )
    };
    let node = Node::new(&rules("{owner: {tty: true}}"));
    let tenant = Tenant::ending_on_term(&node.home);
    node.hold(&tenant, 0, "used: 1GiB");
    let enforcer = node.home.enforcer(&[]);
    let line = node.home.until_line("notify", "failed");
    assert_eq!(line["detail"], "owner: the owner has no terminal that accepts messages");
    enforcer.until_waits(tenant.pid(), "undelivered");
    enforcer.ticks(5);
    assert!(tenant.is_running() && tenant.terms_received() == 0);
    node.home.write(&rules("{owner: {exec: [/bin/true]}}").replace("name: idle", "name: notifying"));
    tenant.gone();
    let line = node.home.until_line("notify", "delivered");
    assert_eq!((&line["rule"], &line["detail"]), (&"notifying".into(), &"owner".into()), "{line}");
}
