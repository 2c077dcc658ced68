//! Tests what owners can do about the enforcer's rules: hold a process, and learn why one ended. Each command runs as a real
//! user, who may not see or hold the processes of others.
#![allow(
    clippy::disallowed_methods,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a case runs programs, reads files and fails loudly"
)]

use std::fs::{Permissions, set_permissions};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Output, Stdio};

use end_to_end::home::Home;
use end_to_end::node::Node;
use end_to_end::programs;
use end_to_end::tenant::{NOBODY_UID, Tenant};
use end_to_end::user::as_user;
use end_to_end::wait::until;
use serde_json::Value;

/// Another user.
const OTHER_UID: u32 = 4002;

const RULES: &str = "version: 1
mode: enforce
defaults: {startup_grace: 0s, clear_after: 1, grace: 30s}
rules:
  - name: idle
    target: process
    when: {gpu_util: {max: 1%}}
    for: {samples: 4}
    hold: {max: 1h}
    then: [{flag: info}, {terminate: {}}]
";

fn stdout_of(output: &Output) -> String {
    [output.stdout.as_slice(), &output.stderr].map(String::from_utf8_lossy).concat()
}

/// Lets users reach the enforcer's sockets.
fn open(home: &Home) {
    set_permissions(home.path(), Permissions::from_mode(0o755)).unwrap();
}

#[test]
fn owner_holds_a_process_and_learns_why_another_ended() {
    let node = Node::new(RULES);
    let [held, ended] = [(); 2].map(|()| Tenant::ending_on_term(&node.home));
    open(&node.home);
    let enforcer = node.home.enforcer(&[]);
    assert!(enforcer.run(&["pause"]).status.success());
    node.hold(&held, 0, "used: 1GiB");
    node.hold(&ended, 0, "used: 2GiB");
    enforcer.until_waits(held.pid(), "paused");
    let [held_pid, ended_pid] = [&held, &ended].map(|tenant| tenant.pid().to_string());
    let reason = ["--reason", "not \u{1b}[2Jsaved yet"];
    let hold = |uid, pid| as_user(uid, &node.home, &[&["hold", "2h", pid], &reason[..]].concat());
    let (code, text) = hold(OTHER_UID, &held_pid);
    assert!(code == Some(1) && text.contains("you have no such process"), "{text}");
    let (code, text) = hold(NOBODY_UID, &held_pid);
    assert!(code == Some(0) && text.starts_with("held for 1h (rule idle): process:"), "{text}");
    let (_, text) = hold(NOBODY_UID, &held_pid);
    assert!(text.contains("the rule permits one hold within 24 hours"), "{text}");
    let (_, why) = as_user(NOBODY_UID, &node.home, &["why", &held_pid]);
    let expected = ["coming: terminate", "; held for ", "enforcer: hold granted by rule idle, process:"];
    assert!(expected.iter().all(|text| why.contains(text)), "{why}");
    let explained = stdout_of(&enforcer.run(&["explain", "--pid", &held_pid]));
    assert!(
        explained.contains("held by its owner (uid 65534) for ") && !explained.contains('\u{1b}'),
        "{explained}"
    );
    let line = node.home.until_line("hold", "granted");
    assert_eq!(enforcer.page().value("bailiff_owner_holds", &[("rule", "idle")]), Some(1.0));
    assert_eq!(line["detail"], "for 1h by uid 65534: not \u{1b}[2Jsaved yet");

    // The hold survives a restart of the enforcer, and protects only its process.
    drop(enforcer);
    let enforcer = node.home.enforcer(&[]);
    assert!(enforcer.run(&["resume"]).status.success());
    ended.gone();
    node.home.until_line("terminate", "released");
    enforcer.until_waits(held.pid(), "owner");
    enforcer.ticks(10);
    assert!(held.is_running() && held.terms_received() == 0);

    let (code, why) = as_user(NOBODY_UID, &node.home, &["why", &ended_pid]);
    assert!(code == Some(0) && why.contains("enforcer: terminate released by rule idle, process:"), "{why}");
    assert!(why.contains("gpu_util is 0% (max 1%)"), "{why}");
    let last = as_user(NOBODY_UID, &node.home, &["why", "--last", "--json"]).1;
    let last: Value = serde_json::from_str(&last).unwrap();
    assert!(last["findings"][0]["text"].as_str().unwrap().starts_with("terminate released"), "{last}");
    others_learn_nothing(&node.home, [&ended_pid, &held_pid]);
    // The rules decide: without `hold`, the hold ends.
    node.home.write(&RULES.replace("    hold: {max: 1h}\n", ""));
    held.gone();
}

fn others_learn_nothing(home: &Home, pids: [&str; 2]) {
    for pid in pids {
        let (code, why) = as_user(OTHER_UID, home, &["why", pid]);
        assert!(code == Some(1) && why.starts_with("not known\n"), "another user: {why}");
    }
}

#[test]
fn login_line_says_when_a_process_will_be_terminated() {
    let node = Node::new(&RULES.replace("{terminate: {}}", "{after: 30m, terminate: {}}"));
    let tenant = Tenant::ending_on_term(&node.home);
    let _enforcer = node.home.enforcer(&[]);
    node.hold(&tenant, 0, "used: 2GiB");
    let line = |user: &str| {
        let mut command = Command::new(programs::bailiff());
        command.args(["info", "--brief", "--user", user, "--stream"]).arg(node.home.stream());
        stdout_of(&command.arg("--enforcer").arg(node.home.path().join("user.sock")).output().unwrap())
    };
    let text =
        until("the time", || Some(line("nobody")).filter(|line| line.contains(" To be terminated at ")));
    assert!(text.starts_with("You hold 2.0GiB on ") && text.lines().count() == 1, "{text}");
    assert_eq!(line("root"), "");
}

#[test]
fn users_socket_accepts_no_request_of_administrators() {
    let home = Home::with(RULES);
    open(&home);
    let enforcer = home.enforcer(&[]);
    let socket = home.path().join("user.sock");
    for (request, reason) in [
        ("{\"command\":\"pause\"}", "unknown variant"),
        ("{\"command\":\"status\"}", "unknown variant"),
        ("{\"command\":\"hold\",\"for_seconds\":-1,\"which\":\"mine\"}", "invalid request"),
        ("{\"command\":\"hold\",\"for_seconds\":1,\"which\":\"all\"}", "invalid request"),
        ("[]", "must be a JSON object"),
    ] {
        let mut client = UnixStream::connect(&socket).unwrap();
        client.write_all(format!("{request}\n").as_bytes()).unwrap();
        let mut answer = String::new();
        BufReader::new(client).read_line(&mut answer).unwrap();
        assert!(answer.contains(reason) && answer.contains("\"ok\":false"), "{request}: {answer}");
    }
    assert!(!enforcer.is_held("paused"));
    let (code, text) = as_user(OTHER_UID, &home, &["hold", "1h", "--mine"]);
    assert!(code == Some(1), "{text}");
    let (code, text) = as_user(OTHER_UID, &home, &["hold", "1h"]);
    assert!(code == Some(64) && text.contains("--mine"), "{text}");
}

/// Opens many connections to the socket, sends requests on each and reads no answer.
const FLOOD: &str = "
import socket, sys, time
clients = []
while True:
    try:
        client = socket.socket(socket.AF_UNIX)
        client.connect(sys.argv[1])
        client.setblocking(False)
        client.send(b'{\"command\":\"why\"}\\n' * 500)
        clients.append(client)
    except OSError:
        pass
    if len(clients) == 64:
        print('flooded', flush=True)
        clients = []
";

/// The process that floods the socket, which is killed with the test.
struct Flood(Child);

impl Drop for Flood {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn requests_of_one_user_keep_neither_others_nor_administrators_out() {
    let node = Node::new(RULES);
    let tenant = Tenant::ending_on_term(&node.home);
    open(&node.home);
    let enforcer = node.home.enforcer(&[]);
    node.hold(&tenant, 0, "used: 1GiB");
    let mut command = Command::new("setpriv");
    command.args(["--reuid=4002", "--regid=4002", "--clear-groups", "/usr/bin/python3", "-c", FLOOD]);
    command.arg(node.home.path().join("user.sock")).stdout(Stdio::piped());
    let mut flood = Flood(command.spawn().unwrap());
    let mut line = String::new();
    BufReader::new(flood.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "flooded\n");
    let pid = tenant.pid().to_string();
    until("the process is in a snapshot", || {
        let (code, text) = as_user(NOBODY_UID, &node.home, &["hold", "1h", &pid]);
        assert!(!text.contains("too many clients"), "{text}");
        (code == Some(0)).then_some(())
    });
    enforcer.ticks(3);
    assert!(enforcer.run(&["pause"]).status.success());
}
