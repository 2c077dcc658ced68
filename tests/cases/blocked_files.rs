//! Tests administrator files that block: FIFOs and files on hung file systems. In each case, the emergency brake
//! (`pause`) and the metrics keep working, and no process is terminated.
#![allow(
    clippy::disallowed_methods,
    clippy::expect_used,
    clippy::float_cmp,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a case runs programs, reads files, compares exact figures and fails loudly"
)]

use std::fs;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use bailiff_lifecycle::control::query_within;
use end_to_end::enforcer::{self, Enforcer};
use end_to_end::home::Home;
use end_to_end::hung::{Hung, link};
use end_to_end::node::Node;
use end_to_end::tenant::Tenant;
use end_to_end::wait::until;
use rustix::fs::{CWD, FileType, Mode, mknodat};
use serde_json::{Value, json};

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
/// Time limit for the emergency brake.
const PAUSE_LIMIT: Duration = Duration::from_millis(100);

/// Asserts that the median duration of five `pause` requests is below 100 ms. The measurement is repeated, because
/// a busy machine may be slow, but a blocked brake is slow every time.
fn assert_pause_is_fast(home: &Home) {
    let query = |question: Value| query_within(&home.control(), &question, Duration::from_secs(10));
    until("pause is answered within 100 ms", || {
        let mut took: Vec<Duration> = (0..5)
            .map(|_| {
                let began = Instant::now();
                let answer = query(json!({"command": "pause", "for_seconds": 3600, "reason": "brake"}));
                if answer.is_ok_and(|answer| answer["ok"] == true) { began.elapsed() } else { Duration::MAX }
            })
            .collect();
        took.sort_unstable();
        (took[2] < PAUSE_LIMIT).then_some(())
    });
    let status = query(json!({"command": "status"})).unwrap()["status"].take();
    let judged = status["stream"]["seq"].is_number();
    assert!(!judged || holds(&status).contains(&"paused".to_owned()), "{status}");
    assert_eq!(query(json!({"command": "resume"})).unwrap()["ok"], true);
}

fn holds(status: &Value) -> Vec<String> {
    let held = status["holds"].as_array().into_iter().flatten();
    held.filter_map(|held| Some(held["hold"].as_str()?.to_owned())).collect()
}

fn until_held(enforcer: &Enforcer, hold: &str) {
    enforcer.until(hold, |page| (page.value("bailiff_hold_active", &[("hold", hold)])? == 1.0).then_some(()));
}

/// Returns a text without its line breaks.
fn unwrapped(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn fifo(path: &Path) {
    let next = path.with_extension("fifo");
    mknodat(CWD, &next, FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
    fs::rename(next, path).unwrap();
}

/// Returns a hung file system that only this home's enforcer sees.
fn hung(home: &Home) -> Hung {
    Hung::at(home.path().join("hung"))
}

fn start_with_hung(home: &Home, hung: &Hung, arguments: &[&str]) -> Enforcer {
    let mut command = enforcer::command(home);
    command.args(arguments);
    Enforcer::spawn(home, hung.in_namespace(&command))
}

/// Asserts that the tenant received no signal.
fn assert_no_signal(enforcer: &Enforcer, tenant: &Tenant) {
    enforcer.ticks(8);
    assert!(tenant.is_running() && tenant.terms_received() == 0);
}

/// Replaces a directory with a symbolic link to it, so that its path can be replaced atomically. Creates the
/// directory if it does not exist. Returns the path.
fn linked(home: &Home, name: &str) -> PathBuf {
    let (path, real) = (home.path().join(name), home.path().join(format!("{name}.real")));
    match fs::rename(&path, &real) {
        Ok(()) => {}
        Err(_) => fs::create_dir(&real).unwrap(),
    }
    link(&real, &path);
    path
}

#[test]
fn rules_replaced_by_a_fifo_hold_actions() {
    let node = Node::new(RULES);
    let tenant = Tenant::ending_on_term(&node.home);
    let enforcer = node.home.enforcer(&[]);
    fifo(&node.home.rules());
    // Tests an explicit reload too.
    let output = enforcer.run(&["reload"]);
    assert_eq!(output.status.code(), Some(64), "{output:?}");
    until_held(&enforcer, "invalid_file");
    assert_pause_is_fast(&node.home);
    node.hold(&tenant, 0, "used: 1GiB");
    enforcer.until_waits(tenant.pid(), "invalid_file");
    assert_no_signal(&enforcer, &tenant);
    node.home.write(RULES);
    tenant.gone();
}

#[test]
fn rules_on_a_hung_file_system_hold_actions() {
    let node = Node::new(RULES);
    let tenant = Tenant::ending_on_term(&node.home);
    let hung = hung(&node.home);
    let enforcer = start_with_hung(&node.home, &hung, &[]);
    link(&hung.path("rules.yaml"), &node.home.rules());
    until_held(&enforcer, "invalid_file");
    assert_pause_is_fast(&node.home);
    let output = enforcer.run(&["reload"]);
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(printed.contains("rules.yaml: ") && printed.contains("no response for 2s"), "{printed}");
    assert!(
        printed.starts_with("the rules file was not loaded") && !printed.contains("no sense"),
        "{printed}"
    );
    let status = String::from_utf8(enforcer.run(&["status"]).stdout).unwrap();
    assert!(unwrapped(&status).contains("no response for 2s"), "{status}");
    node.hold(&tenant, 0, "used: 1GiB");
    enforcer.until_waits(tenant.pid(), "invalid_file");
    assert_no_signal(&enforcer, &tenant);
    node.home.write(RULES);
    // The thread that is waiting for the hung file exits only when the file system is removed.
    drop(hung);
    tenant.gone();
}

#[test]
fn unreadable_rules_prevent_the_start() {
    let home = Home::with(RULES);
    fifo(&home.rules());
    let output = enforcer::command(&home).output().unwrap();
    assert_eq!(output.status.code(), Some(64), "{output:?}");
    let hung = hung(&home);
    link(&hung.path("rules.yaml"), &home.rules());
    let output = hung.in_namespace(&enforcer::command(&home)).output().unwrap();
    let printed = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(64), "{printed}");
    assert!(printed.contains("no response for 2s"), "{printed}");
}

#[test]
fn hung_audit_log_holds_actions() {
    let node = Node::new(RULES);
    let tenant = Tenant::ending_on_term(&node.home);
    let hung = hung(&node.home);
    let log = linked(&node.home, "log");
    let file = log.join("audit.jsonl").display().to_string();
    let mut enforcer = start_with_hung(&node.home, &hung, &["--audit", &file]);
    until("the log is there", || log.join("audit.jsonl").exists().then_some(()));
    link(&hung.path(""), &log);
    // The enforcer notices when it writes the next line.
    assert_pause_is_fast(&node.home);
    until_held(&enforcer, "audit");
    assert_pause_is_fast(&node.home);
    node.hold(&tenant, 0, "used: 1GiB");
    enforcer.until_waits(tenant.pid(), "audit");
    assert_no_signal(&enforcer, &tenant);
    assert_eq!(enforcer.stop(), Some(0), "the exit does not wait for the disk");
}

#[test]
fn hung_audit_log_at_start_holds_actions() {
    let node = Node::new(RULES);
    let tenant = Tenant::ending_on_term(&node.home);
    let hung = hung(&node.home);
    let file = hung.path("audit.jsonl").display().to_string();
    let enforcer = start_with_hung(&node.home, &hung, &["--audit", &file]);
    assert_pause_is_fast(&node.home);
    until_held(&enforcer, "audit");
    node.hold(&tenant, 0, "used: 1GiB");
    assert_no_signal(&enforcer, &tenant);
}

#[test]
fn hung_state_holds_actions() {
    let node = Node::new(RULES);
    let tenant = Tenant::ending_on_term(&node.home);
    let hung = hung(&node.home);
    let state = linked(&node.home, "state");
    let mut enforcer = start_with_hung(&node.home, &hung, &[]);
    enforcer.until("only the start holds it", |page| {
        (page.value("bailiff_hold_active", &[("hold", "state")])? == 0.0).then_some(())
    });
    link(&hung.path(""), &state);
    assert_pause_is_fast(&node.home);
    until_held(&enforcer, "state");
    node.hold(&tenant, 0, "used: 1GiB");
    enforcer.until_waits(tenant.pid(), "state");
    assert_no_signal(&enforcer, &tenant);
    assert_eq!(enforcer.stop(), Some(0), "the exit does not wait for the disk");
}

#[test]
fn hung_state_at_start_is_a_pause() {
    let node = Node::new(RULES);
    let tenant = Tenant::ending_on_term(&node.home);
    let hung = hung(&node.home);
    let state = hung.path("").display().to_string();
    let enforcer = start_with_hung(&node.home, &hung, &["--state", &state]);
    until_held(&enforcer, "paused");
    let status = String::from_utf8(enforcer.run(&["status"]).stdout).unwrap();
    assert!(unwrapped(&status).contains("cannot be read: no response for 2s"), "{status}");
    node.hold(&tenant, 0, "used: 1GiB");
    assert_no_signal(&enforcer, &tenant);
    assert_pause_is_fast(&node.home);
}

#[test]
fn fifo_state_at_start_is_a_pause() {
    let node = Node::new(RULES);
    fifo(&node.home.state().join("state.json"));
    fifo(&node.home.state().join("state.json.new"));
    let enforcer = node.home.enforcer(&[]);
    until_held(&enforcer, "paused");
    until_held(&enforcer, "state");
    assert_pause_is_fast(&node.home);
}

#[test]
fn hung_web_config_keeps_pause_working() {
    let home = Home::with(RULES);
    let hung = hung(&home);
    let config = home.path().join("web.yml");
    fs::write(&config, "").unwrap();
    let path = config.display().to_string();
    let enforcer = start_with_hung(&home, &hung, &["--web.config.file", &path]);
    assert_eq!(enforcer.page().value("bailiff_hold_active", &[("hold", "paused")]), Some(0.0));
    link(&hung.path("web.yml"), &config);
    let address = enforcer.address();
    let scrape = std::thread::spawn(move || end_to_end::http::get(address, "/metrics", &[]).is_ok());
    assert_pause_is_fast(&home);
    drop(scrape.join());
    assert_pause_is_fast(&home);
    drop(enforcer);
    let hung = Hung::at(home.path().join("hung-again"));
    link(&hung.path("web.yml"), &config);
    let mut command = enforcer::command(&home);
    command.args(["--web.config.file", &path]);
    let output = hung.in_namespace(&command).output().unwrap();
    let printed = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && printed.contains("no response for 5s"), "{printed}");
}

#[test]
fn hung_stream_socket_keeps_pause_working() {
    let home = Home::with(RULES);
    let hung = hung(&home);
    let stream = hung.path("stream.sock").display().to_string();
    let mut enforcer = start_with_hung(&home, &hung, &["--stream", &stream]);
    assert_pause_is_fast(&home);
    enforcer.until("the metrics say so", |page| {
        page.value("bailiff_stream_refused_total", &[("reason", "no_answer")])
    });
    assert_eq!(enforcer.stop(), Some(0));
}

/// Returns rules that reference a secret file at this path in every supported way, or run it as a program.
fn rules_naming(path: &Path) -> Vec<String> {
    let path = path.display();
    let rule = |then: &str| {
        RULES.replace("then: [{flag: info}, {terminate: {}}]", &format!("then: [{{flag: info}}, {then}]"))
    };
    let channel = |channel: &str| format!("{}notify:\n  chat: {channel}\n", rule("{notify: [chat]}"));
    vec![
        format!("{RULES}leases: {{redis_file: {path}}}\n"),
        channel(&format!("{{webhook: {{url_file: {path}}}}}")),
        channel(&format!("{{exec: [{path}]}}")),
        rule(&format!("{{exec: [{path}]}}")),
    ]
}

/// Checks the emergency brake, the metrics and the exit with these rules.
fn assert_pause_is_fast_with(rules: &str, node: &Node, mut enforcer: Enforcer) {
    let tenant = Tenant::ending_on_term(&node.home);
    node.hold(&tenant, 0, "used: 1GiB");
    let pid = tenant.pid().to_string();
    enforcer.until("the flag", |page| page.value("bailiff_flag", &[("pid", &pid)]));
    assert_pause_is_fast(&node.home);
    enforcer.ticks(2);
    assert_pause_is_fast(&node.home);
    let ends = Instant::now();
    assert_eq!(enforcer.stop(), Some(0));
    println!("ended after {:?}: {rules}", ends.elapsed());
}

#[test]
fn hung_rule_files_and_programs_keep_pause_working() {
    let node = Node::new(RULES);
    for index in 0..rules_naming(Path::new("")).len() {
        // Each enforcer gets its own hung file system.
        let hung = Hung::at(node.home.path().join(format!("hung-{index}")));
        let rules = &rules_naming(&hung.path("named"))[index];
        node.home.write(rules);
        assert_pause_is_fast_with(rules, &node, start_with_hung(&node.home, &hung, &[]));
    }
    let named = node.home.path().join("named");
    fifo(&named);
    for rules in rules_naming(&named) {
        node.home.write(&rules);
        assert_pause_is_fast_with(&rules, &node, node.home.enforcer(&[]));
    }
}

#[test]
fn silent_clients_keep_pause_working() {
    let home = Home::with(RULES);
    let enforcer = home.enforcer(&[]);
    let silent: Vec<UnixStream> = (0..40).map(|_| UnixStream::connect(home.control()).unwrap()).collect();
    let answer = enforcer.query(&json!({"command": "pause", "for_seconds": 60}));
    assert_eq!(answer["ok"], true, "{answer}");
    assert_pause_is_fast(&home);
    drop(silent);
    assert_eq!(enforcer.page().value("bailiff_hold_active", &[("hold", "paused")]), Some(0.0));
}
