//! Tests the enforcer's commands, as an administrator uses them, against a running daemon.
#![allow(
    clippy::disallowed_methods,
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a case runs programs, reads files and fails loudly"
)]

use std::fs;
use std::process::Output;

use end_to_end::enforcer;
use end_to_end::home::Home;
use end_to_end::node::Node;
use end_to_end::programs;
use end_to_end::tenant::Tenant;
use end_to_end::wait::until;
use serde_json::{Value, json};

const RULES: &str = "version: 1
defaults: {startup_grace: 0s}
rules:
  - name: idle-holder
    target: process
    mode: enforce
    when: {gpu_util: {max: 1%}, cpu_util: {max: 50%}}
    for: {samples: 3}
    then: [{flag: warning}, {after: {samples: 1000}, terminate: {}}]
  - name: too-large
    target: process
    when: {vram: {min: 1GiB}}
    for: {samples: 3}
    then: [{terminate: {}}]
";

fn stdout_of(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout.clone()).unwrap()
}

#[test]
fn status_and_explain_report_the_current_state() {
    let node = Node::new(RULES);
    let tenant = Tenant::ending_on_term(&node.home);
    node.hold(&tenant, 0, "used: 512MiB");
    let enforcer = node.home.enforcer(&[]);
    enforcer.until_streak(tenant.pid(), 4);
    let text = stdout_of(&enforcer.run(&["status"]));
    for part in ["bailiff-enforcer 0.1.0", "rules.yaml, ", "snapshot ", "0 of 6 (the node)", "idle-holder"] {
        assert!(text.contains(part), "no {part} in\n{text}");
    }
    let row = |start: &str| text.lines().find(|line| line.starts_with(start)).unwrap().to_owned();
    let words = |line: String| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(words(row("idle-holder"))[..6], ["idle-holder", "enforce", "process", "1", "0", "0"]);
    assert_eq!(words(row("too-large"))[..6], ["too-large", "dry-run", "process", "0", "0", "0"]);
    assert!(row(&format!("process:{}@", tenant.pid())).contains("terminate"), "{text}");
    assert!(row("warning").contains("nobody"), "{text}");

    let json: Value = serde_json::from_str(&stdout_of(&enforcer.run(&["status", "--json"]))).unwrap();
    assert_eq!((&json["stream"]["connected"], &json["rules"][0]["matches"]), (&json!(true), &json!(1)));

    let pid = tenant.pid().to_string();
    let text = stdout_of(&enforcer.run(&["explain", "--pid", &pid, "--rule", "idle-holder"]));
    let name = format!("idle-holder enforce: process:{pid}@");
    for part in [
        name.as_str(),
        "(sh) of nobody",
        "protection: passes",
        "startup_grace: passes (older than 0s)",
        "when: true",
        "true    gpu_util is 0%; required max 1% [nvml]",
        "next: terminate, after ",
    ] {
        assert!(text.contains(part), "no {part} in\n{text}");
    }
    let text = stdout_of(&enforcer.run(&["explain", "--pid", &pid, "--rule", "too-large"]));
    assert!(text.contains("false   vram is 512.0MiB; required min 1GiB"), "{text}");
    let json: Value =
        serde_json::from_str(&stdout_of(&enforcer.run(&["explain", "--pid", &pid, "--json"]))).unwrap();
    assert_eq!((json.as_array().unwrap().len(), &json[1]["outcome"]), (2, &json!("false")));
    let text = stdout_of(&enforcer.run(&["explain", "--pid", "1"]));
    assert!(text.contains("process 1 is not part of any target"), "{text}");
    let text = stdout_of(&enforcer.run(&["explain", "--pid", "4194305"]));
    assert!(text.contains("there is no process 4194305"), "the pid exceeds PID_MAX_LIMIT: {text}");
    let wrong = enforcer.run(&["explain", "--rule", "idel"]);
    assert!(!wrong.status.success());
    assert!(String::from_utf8_lossy(&wrong.stderr).contains("there is no rule \"idel\""), "{wrong:?}");
}

const EXEMPT: &str = "version: 1
protect: {namespaces: [kube-system]}
defaults: {startup_grace: 0s}
rules:
  - name: exempt
    target: process
    when: {gpu_util: {max: 1%}}
    for: {samples: 3}
    except: [{users: [nobody], reason: a demo until Friday}]
    then: [{flag: warning}]
";

#[test]
fn explain_reports_an_exempt_target() {
    let node = Node::new(EXEMPT);
    let tenant = Tenant::ending_on_term(&node.home);
    node.hold(&tenant, 0, "used: 512MiB");
    let enforcer = node.home.enforcer(&[]);
    let pid = tenant.pid().to_string();
    let text = until("the process is evaluated", || {
        let text = String::from_utf8(enforcer.run(&["explain", "--pid", &pid]).stdout).unwrap();
        text.contains("exempt dry-run").then_some(text)
    });
    assert!(text.contains("exempt: a demo until Friday"), "{text}");
    assert!(!text.contains("next: flag"), "{text}");
    assert!(text.contains("namespaces is none; required kube-system"), "{text}");
    let json: Value =
        serde_json::from_slice(&enforcer.run(&["explain", "--pid", &pid, "--json"]).stdout).unwrap();
    assert_eq!((&json[0]["next"], &json[0]["outcome"]), (&Value::Null, &json!("false")), "{json:#}");
}

#[test]
fn commands_without_a_daemon_report_it() {
    let home = Home::new();
    let control = home.control().display().to_string();
    for command in ["status", "explain", "pause", "resume", "reload"] {
        let output = enforcer::run(&[command, "--control", &control]);
        let printed = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{command}: {printed}");
        assert!(printed.contains("control.sock"), "{command}: {printed}");
    }
}

#[test]
fn check_compares_a_file_with_the_loaded_rules() {
    let home = Home::with(RULES);
    let enforcer = home.enforcer(&[]);
    let (rules, other) = (home.rules(), home.path().join("other.yaml"));
    fs::write(&other, format!("{RULES}# changed\n")).unwrap();
    let url = format!("http://{}", enforcer.address());
    let check = |file: &std::path::Path, url: &str| {
        let output = enforcer::run(&["check", file.to_str().unwrap(), "--against", url]);
        (output.status.code(), String::from_utf8(output.stdout).unwrap())
    };
    let (code, text) = check(&rules, &url);
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("runs this policy"), "{text}");
    let (code, text) = check(&other, &url);
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("runs another policy"), "{text}");
    drop(enforcer);
    let (code, text) = check(&rules, &url);
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("does not respond"), "{text}");
}

#[test]
fn shipped_rules_are_valid_and_have_a_schema() {
    let directory = programs::root().join("config");
    let mut files = vec![directory.join("rules.yaml")];
    files.extend(fs::read_dir(directory.join("rules")).unwrap().map(|entry| entry.unwrap().path()));
    assert!(files.len() > 1);
    for file in files {
        let output = enforcer::run(&["check", file.to_str().unwrap()]);
        let printed = String::from_utf8_lossy(&output.stdout).into_owned();
        assert_eq!(output.status.code(), Some(0), "{printed}");
        assert!(printed.contains(file.file_name().unwrap().to_str().unwrap()), "{printed}");
    }
    let schema: Value = serde_json::from_str(&stdout_of(&enforcer::run(&["schema"]))).unwrap();
    let shipped = fs::read(directory.join("rules.schema.json")).unwrap();
    assert_eq!(schema, serde_json::from_slice::<Value>(&shipped).unwrap());
}
