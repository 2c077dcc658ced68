//! Tests the path from the first idle sample to the release of the memory, with a real exporter, enforcer and
//! processes, and the fake driver.
#![allow(
    clippy::disallowed_methods,
    clippy::expect_used,
    clippy::float_cmp,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a case runs programs, reads files, compares exact figures and fails loudly"
)]

use std::fs::{File, Permissions, set_permissions};
use std::io::{Read, Seek, Write};
use std::os::unix::fs::{PermissionsExt, chown};
use std::process::Command;
use std::time::{Duration, UNIX_EPOCH};

use end_to_end::enforcer::pending;
use end_to_end::node::Node;
use end_to_end::page::Page;
use end_to_end::programs;
use end_to_end::tenant::{NOBODY_UID, Tenant};
use end_to_end::ticks::Ticks;
use end_to_end::wait::until;
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use serde_json::Value;

const GIB: u64 = 1 << 30;

/// Three idle samples match. The owner is then notified and gets two more samples.
const RULES: &str = "version: 1
mode: enforce
defaults: {startup_grace: 0s, clear_after: 1, grace: 30s}
notify: {owner: {tty: true}}
rules:
  - name: idle
    target: process
    when: {gpu_util: {max: 1%}}
    for: {samples: 3}
    then: [{flag: warning}, {notify: owner}, {after: {samples: 2}, terminate: {}}]
";

fn count(page: &Page, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
    page.value(name, labels)
}

/// A terminal of user nobody that accepts messages, and the text that was written to it so far.
struct Terminal(File, String);

impl Terminal {
    fn new() -> Self {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY;
        let controller = openpt(flags).unwrap();
        grantpt(&controller).unwrap();
        unlockpt(&controller).unwrap();
        rustix::io::ioctl_fionbio(&controller, true).unwrap();
        let path = ptsname(&controller, Vec::new()).unwrap().into_string().unwrap();
        chown(&path, Some(NOBODY_UID), None).unwrap();
        set_permissions(&path, Permissions::from_mode(0o620)).unwrap();
        Self(controller.into(), String::new())
    }

    fn read(&mut self) -> &str {
        let mut some = [0; 4096];
        while let Ok(read @ 1..) = self.0.read(&mut some) {
            self.1.push_str(&String::from_utf8_lossy(&some[..read]));
        }
        &self.1
    }
}

#[test]
fn idle_holder_is_flagged_notified_and_ended() {
    let mut terminal = Terminal::new();
    let node = Node::new(RULES);
    let tenant = Tenant::ending_on_term(&node.home);
    let pid = tenant.pid().to_string();
    node.hold(&tenant, 0, "used: 2GiB");
    let mut ticks = Ticks::of(&node.home.stream());
    let enforcer = node.home.enforcer(&["--node.name", "gpu-07"]);
    enforcer.until("the flag", |page| {
        let flag = page.label("bailiff_flag", &[("rule", "idle"), ("pid", &pid)], "severity")?;
        (flag == "warning").then_some(())
    });
    until("the notice", || terminal.read().contains(&format!("pid {pid}")).then_some(()));
    tenant.gone();
    assert_eq!(tenant.terms_received(), 1, "the tenant received TERM and exited");
    let page = enforcer.until("the kill is counted", |page| {
        page.happened("bailiff_kills_total", &[("result", "released")]).then(|| enforcer.page())
    });
    assert_eq!(count(&page, "bailiff_kills_total", &[("rule", "idle"), ("result", "released")]), Some(1.0));
    assert_eq!(count(&page, "bailiff_memory_released_bytes_total", &[]), Some(2.0 * f64::from(1 << 30)));
    for (step, result) in [("flag", "done"), ("notify", "done"), ("terminate", "released")] {
        let labels = [("step", step), ("result", result), ("mode", "enforce")];
        assert_eq!(count(&page, "bailiff_steps_total", &labels), Some(1.0), "{step}");
    }
    enforcer.until("the enforcer received the event", |page| {
        (count(page, "bailiff_notifications_total", &[("channel", "owner"), ("result", "ok")])? == 2.0)
            .then_some(())
    });
    assert!(
        terminal.read().contains("was terminated; 2.0GiB of GPU memory was released"),
        "{}",
        terminal.read()
    );
    enforcer
        .until("the flag is cleared", |page| page.all("bailiff_flag", &[]).next().is_none().then_some(()));
    audited(&node, tenant.pid());
    let begun = node.home.line("terminate", "begun").unwrap();
    let snapshot = ticks.find(|snapshot| begun["evidence"]["seq"] == snapshot.seq);
    let time = humantime::parse_rfc3339(begun["time"].as_str().unwrap()).unwrap();
    let seen = UNIX_EPOCH + Duration::from_millis(snapshot.wall_ms);
    println!("from the confirming sample to the audit log line on the disk: {:?}", time.duration_since(seen));
    let end = node.home.line("terminate", "released").unwrap();
    println!("from the taking hold to TERM: {} ms", end["sent"][0]["at_ms"]);
}

fn audited(node: &Node, pid: u32) {
    let lines = node.home.lines();
    let of_rule: Vec<(&str, &str)> = lines
        .iter()
        .filter(|line| line["rule"] == "idle")
        .map(|line| (line["step"].as_str().unwrap(), line["result"].as_str().unwrap()))
        .collect();
    let expected = [
        ("flag", "raised"),
        ("notify", "queued"),
        ("terminate", "due"),
        ("terminate", "begun"),
        ("terminate", "released"),
    ];
    // The flag is cleared while the memory is checked, and channels deliver concurrently.
    let others: Vec<_> = of_rule
        .iter()
        .filter(|line| !matches!(line, ("flag", "cleared") | ("notify", "delivered")))
        .collect();
    assert_eq!(others, expected.iter().collect::<Vec<_>>());
    assert_eq!(of_rule.iter().filter(|line| **line == ("flag", "cleared")).count(), 1);
    until("both notifications are delivered", || {
        let lines = node.home.lines();
        let delivered = lines.iter().filter(|line| line["step"] == "notify" && line["result"] == "delivered");
        (delivered.count() == 2).then_some(())
    });
    let end = node.home.line("terminate", "released").unwrap();
    assert_eq!(sent(&end), [(u64::from(pid), "SIGTERM".to_owned())]);
    assert_eq!((&end["vram_before"], &end["vram_after"]), (&Value::from(2 * GIB), &Value::from(0)));
    assert!(end["gone_ms"].is_u64() && end["boot_id"].is_string() && end["node"] == "gpu-07");
    let seq = |result| node.home.line("terminate", result).unwrap()["evidence"]["seq"].as_u64().unwrap();
    assert_eq!(seq("begun"), seq("due") + 1, "the action is due at one snapshot and begins at the next");
    let begun = node.home.line("terminate", "begun").unwrap();
    assert_eq!((begun["evidence"]["streak"].as_u64(), begun["id"].as_u64()), (Some(6), end["id"].as_u64()));
    assert_eq!(begun["target"]["members"][0]["pid"], pid);
    let leaf = &begun["evidence"]["leaves"][0];
    assert_eq!((&leaf["name"], &leaf["outcome"]), (&Value::from("gpu_util"), &Value::from("true")));
}

fn sent(line: &Value) -> Vec<(u64, String)> {
    let sent = line["sent"].as_array().unwrap();
    sent.iter()
        .map(|sent| (sent["pid"].as_u64().unwrap(), sent["signal"].as_str().unwrap().to_owned()))
        .collect()
}

#[test]
fn holder_that_ignores_term_is_killed_after_grace() {
    let node = Node::new(&RULES.replace("grace: 30s", "grace: 1s"));
    let tenant = Tenant::ignoring_term(&node.home);
    node.hold(&tenant, 0, "used: 1GiB");
    let enforcer = node.home.enforcer(&[]);
    tenant.until_terms(1);
    assert!(
        node.home.line("terminate", "begun").is_some(),
        "the action is recorded on the disk before it begins"
    );
    assert_eq!(enforcer.page().value("bailiff_action_in_flight", &[]), Some(1.0));
    assert!(tenant.is_running());
    tenant.gone();
    let end = node.home.until_line("terminate", "released");
    let signals: Vec<String> = sent(&end).into_iter().map(|(_, signal)| signal).collect();
    assert_eq!(signals, ["SIGTERM", "SIGSTOP", "SIGKILL"]);
    assert_eq!(tenant.terms_received(), 1);
    let at = |index: usize| end["sent"][index]["at_ms"].as_u64().unwrap();
    assert!(at(2) - at(0) >= 1000, "the grace period was {} ms", at(2) - at(0));
}

#[test]
fn holder_that_works_again_is_reprieved() {
    let node = Node::new(&RULES.replace("{samples: 2}", "{samples: 6}"));
    let tenant = Tenant::ending_on_term(&node.home);
    node.hold(&tenant, 0, "used: 1GiB");
    let enforcer = node.home.enforcer(&[]);
    // Nine matching samples are needed, and one more that confirms the match.
    enforcer.until_streak(tenant.pid(), 8);
    node.hold(&tenant, 0, "used: 1GiB, sm: 80");
    let line = node.home.until_line("reprieve", "skipped");
    // A busy machine misses ticks. They count as unknown.
    let why = ["the target no longer matches", "the condition was unknown for too long"];
    assert!(why.iter().any(|why| line["detail"] == *why), "{line}");
    enforcer.ticks(3);
    assert!(!enforcer.page().happened("bailiff_kills_total", &[]));
    assert_eq!(node.home.line("terminate", "begun"), None);
    assert!(tenant.is_running() && tenant.terms_received() == 0);
    assert_eq!(pending(&enforcer.status(), tenant.pid()), None);
}

#[test]
fn dry_run_rule_does_all_but_the_action() {
    let without_mode = RULES.replace("mode: enforce\n", "");
    for (rules, flags) in [(without_mode.as_str(), [].as_slice()), (RULES, &["--dry-run"])] {
        let node = Node::new(rules);
        let tenant = Tenant::ending_on_term(&node.home);
        node.hold(&tenant, 0, "used: 1GiB");
        let enforcer = node.home.enforcer(flags);
        let line = node.home.until_line("terminate", "dry_run");
        assert_eq!(
            (&line["mode"], &line["sent"]),
            (&Value::from("dry-run"), &Value::from(Vec::<Value>::new()))
        );
        let page = enforcer.until("the kill is counted", |page| {
            page.happened("bailiff_steps_total", &[("result", "dry_run")]).then(|| enforcer.page())
        });
        assert_eq!(
            page.value("bailiff_steps_total", &[("step", "terminate"), ("result", "dry_run")]),
            Some(1.0)
        );
        assert!(page.all("bailiff_kills_total", &[]).next().is_none());
        assert_eq!(page.label("bailiff_rule_info", &[], "mode").as_deref(), Some("dry-run"));
        for (step, result) in [("flag", "raised"), ("notify", "queued"), ("terminate", "due")] {
            assert!(node.home.line(step, result).is_some(), "{step}");
        }
        enforcer.ticks(3);
        assert_eq!(node.home.results("terminate"), ["due", "dry_run"]);
        assert!(tenant.is_running() && tenant.terms_received() == 0);
    }
}

#[test]
fn check_reads_rules_from_stdin() {
    let check = |rules: &str| {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(rules.as_bytes()).unwrap();
        file.rewind().unwrap();
        Command::new(programs::enforcer()).args(["check", "-"]).stdin(file).output().unwrap()
    };
    assert_eq!(check(RULES).status.code(), Some(0));
    let refused = check("version: 2\n");
    assert_eq!(refused.status.code(), Some(64));
    assert!(String::from_utf8_lossy(&refused.stdout).contains("--> -:1:10"), "{refused:?}");
}
