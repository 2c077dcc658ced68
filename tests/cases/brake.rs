//! What withholds everything: an admin's pause, a disk that is full, a stream of somebody else's.
#![allow(
    clippy::disallowed_methods,
    clippy::expect_used,
    clippy::float_cmp,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a case runs programs, reads files, compares exact figures and fails loudly"
)]

use std::fs::{self, File, Permissions};
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::process::{Command, Output};

use end_to_end::enforcer::{self, Enforcer};
use end_to_end::home::{self, Home};
use end_to_end::node::Node;
use end_to_end::programs;
use end_to_end::tenant::{NOBODY, Tenant};
use end_to_end::wait::until;

const RULES: &str = "version: 1
mode: enforce
defaults: {startup_grace: 0s, clear_after: 1, grace: 30s}
rules:
  - name: idle
    of: process
    when: {gpu_util: {max: 1%}}
    for: {samples: 4}
    then: [{flag: info}, {terminate: {}}]
";

fn said(output: &Output) -> String {
    [output.stdout.as_slice(), &output.stderr].map(String::from_utf8_lossy).concat()
}

#[test]
fn a_pause_withholds_deeds_and_a_resume_lets_them_go_on() {
    let node = Node::new(RULES);
    let tenant = Tenant::obeying(&node.home);
    let mut enforcer = node.home.enforcer(&[]);
    let paused = enforcer.run(&["pause", "--for", "2h", "--reason", "driver upgrade"]);
    assert!(paused.status.success() && said(&paused).contains("paused for 2 h"), "{}", said(&paused));
    node.hold(&tenant, 0, "used: 1GiB");
    node.home.until_line("flag", "raised");
    enforcer.until_waits(tenant.pid(), "paused");
    assert!(enforcer.is_held("paused"));
    let status = said(&enforcer.run(&["status"]));
    assert!(status.contains("an admin paused it") && status.contains("driver upgrade"), "{status}");
    // It outlives the one that was told.
    assert_eq!(enforcer.stop(), Some(0));
    let enforcer = node.home.enforcer(&[]);
    enforcer.until_waits(tenant.pid(), "paused");
    assert!(tenant.lives() && tenant.asked() == 0);
    assert_eq!(node.home.line("pause", "done").unwrap()["detail"], "by uid 0: driver upgrade");
    assert!(enforcer.run(&["resume"]).status.success());
    tenant.gone();
    assert_eq!(node.home.line("resume", "done").unwrap()["detail"], "by uid 0");
    assert!(!enforcer.is_held("paused"));
}

#[test]
fn a_pause_in_the_grace_calls_the_kill_off() {
    let node = Node::new(&RULES.replace("grace: 30s", "grace: 2s"));
    let tenant = Tenant::stubborn(&node.home);
    node.hold(&tenant, 0, "used: 1GiB");
    let enforcer = node.home.enforcer(&[]);
    tenant.until_asked(1);
    assert!(enforcer.run(&["pause"]).status.success());
    let line = node.home.until_line("terminate", "cancelled");
    assert_eq!(line["sent"].as_array().unwrap().len(), 1, "{line}");
    // Longer than the grace would have been.
    enforcer.beats(15);
    assert!(tenant.lives() && tenant.asked() == 1);
    assert_eq!(enforcer.page().value("bailiff_kills_total", &[("result", "cancelled")]), Some(1.0));
}

/// A command by nobody, who may not look into the folders on the way to the program.
fn by_nobody(enforcer_of: &Home, arguments: &[&str]) -> Output {
    let program = File::open(programs::enforcer()).unwrap();
    let mut command = Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "/proc/self/fd/0"]).stdin(program);
    command.args(arguments).arg("--control").arg(enforcer_of.control()).output().unwrap()
}

#[test]
fn only_root_and_the_sockets_group_change_anything() {
    let home = Home::with(RULES);
    let enforcer = home.enforcer(&[]);
    let refused = by_nobody(&home, &["pause"]);
    assert!(!refused.status.success(), "owner and group may connect: {}", said(&refused));
    fs::set_permissions(home.control(), Permissions::from_mode(0o666)).unwrap();
    for command in ["pause", "resume", "reload"] {
        let refused = by_nobody(&home, &[command]);
        assert_eq!(refused.status.code(), Some(1), "{}", said(&refused));
        assert!(said(&refused).contains("that needs root, or the group"), "{}", said(&refused));
    }
    assert!(by_nobody(&home, &["status"]).status.success(), "whoever may connect may ask");
    assert!(!enforcer.is_held("paused"));
    assert_eq!(home.line("pause", "done"), None);
}

/// An enforcer whose audit log is on a disk of its own, which is full.
fn on_a_full_disk(node: &Node) -> (Enforcer, PathBuf) {
    let disk = node.home.path().join("disk");
    fs::create_dir(&disk).unwrap();
    let prepare =
        "mount -t tmpfs -o size=64k tmpfs \"$0\" && head -c 65536 /dev/zero > \"$0/full\" && exec \"$@\"";
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", prepare]).arg(&disk).arg(programs::enforcer());
    command.args(enforcer::arguments(&node.home)).arg("--audit").arg(disk.join("audit.jsonl"));
    let enforcer = Enforcer::spawn(&node.home, command);
    // Its mounts are its own; this is how others see them.
    let seen = PathBuf::from(format!("/proc/{}/root{}", enforcer.pid(), disk.display()));
    (enforcer, seen)
}

#[test]
fn while_the_audit_log_cannot_be_written_nobody_is_ended() {
    let node = Node::new(RULES);
    let tenant = Tenant::obeying(&node.home);
    let (enforcer, disk) = on_a_full_disk(&node);
    enforcer.until("it is held", |page| {
        (page.value("bailiff_hold_active", &[("hold", "audit")])? == 1.0).then_some(())
    });
    node.hold(&tenant, 0, "used: 1GiB");
    let pid = tenant.pid().to_string();
    enforcer.until("the flag", |page| page.value("bailiff_flag", &[("pid", &pid)]));
    enforcer.until_waits(tenant.pid(), "audit");
    enforcer.beats(3);
    assert!(tenant.lives() && tenant.asked() == 0);
    assert!(enforcer.page().value("bailiff_audit_write_failures_total", &[]) > Some(0.0));
    enforcer.until_logged("the audit log cannot be written");
    fs::remove_file(disk.join("full")).unwrap();
    tenant.gone();
    let lines = until("what was not written is", || {
        let lines = home::lines(&disk.join("audit.jsonl"));
        lines.iter().any(|line| line["result"] == "released").then_some(lines)
    });
    for (step, result) in [("start", "done"), ("flag", "raised"), ("terminate", "begun")] {
        assert!(lines.iter().any(|line| line["step"] == step && line["result"] == result), "{step}");
    }
}

#[test]
fn a_stream_of_somebody_elses_is_not_believed() {
    let home = Home::with(RULES);
    let listener = UnixListener::bind(home.stream()).unwrap();
    chown(home.stream(), Some(NOBODY), None).unwrap();
    let enforcer = home.enforcer(&[]);
    enforcer.until("it is refused", |page| {
        page.value("bailiff_stream_refused_total", &[("reason", "distrusted")])
    });
    let why = format!("{} belongs to uid {NOBODY}, who is neither root", home.stream().display());
    enforcer.until_logged(&why);
    assert!(said(&enforcer.run(&["status"])).contains("belongs to uid"));
    assert_eq!(enforcer.page().value("bailiff_stream_connected", &[]), Some(0.0));
    listener.set_nonblocking(true).unwrap();
    assert!(listener.accept().is_err(), "nobody was even asked");
    drop(enforcer);

    // Its owner is to be believed, and somebody else listens.
    let enforcer = home.enforcer(&["--stream.user", &NOBODY.to_string()]);
    enforcer.until("it is refused", |page| {
        page.value("bailiff_stream_refused_total", &[("reason", "distrusted")])
    });
    enforcer.until_logged("and uid 0 listens on it");
}
