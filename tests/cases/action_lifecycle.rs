//! Tests the states of an action from its confirmation to its result, and the events that cancel it. Each case
//! checks cells of the table in docs/rules.md.
#![allow(
    clippy::disallowed_methods,
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a case runs programs, reads files and fails loudly"
)]

use std::fs;

use end_to_end::enforcer::{self, Enforcer};
use end_to_end::node::Node;
use end_to_end::programs;
use end_to_end::slow_sync::SlowSync;
use end_to_end::tenant::Tenant;
use end_to_end::wait::until;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

const RULES: &str = "version: 1
mode: enforce
defaults: {startup_grace: 0s, clear_after: 1, grace: 2s}
rules:
  - name: idle
    target: process
    when: {gpu_util: {max: 1%}}
    for: {samples: 4}
    then: [{terminate: {}}]
";

/// Longer than the duration of any test.
const SYNC_DELAY_MS: u64 = 600_000;

/// Returns the table cell for an event in a state: its outcome, and what the outcome means.
fn cell(event: &str, state: &str) -> String {
    let docs = fs::read_to_string(programs::root().join("docs/rules.md")).unwrap();
    let row =
        |line: &str| line.trim_matches('|').split('|').map(|it| it.trim().to_owned()).collect::<Vec<_>>();
    let mut table = docs.lines().skip_while(|line| !line.starts_with("| event |")).map(row);
    let head = table.next().expect("docs/rules.md must contain the table of an action's life");
    let column = head.iter().position(|it| it == state).unwrap_or_else(|| panic!("no state {state}"));
    let row = table.take_while(|row| row.len() > 1).find(|row| row[0] == event);
    row.unwrap_or_else(|| panic!("no event {event}"))[column].clone()
}

/// A node with one idle tenant, and an enforcer whose audit log can be delayed.
struct Fixture {
    sync: SlowSync,
    enforcer: Enforcer,
    tenant: Tenant,
    node: Node,
}

impl Fixture {
    fn new(tenant: fn(&end_to_end::home::Home) -> Tenant) -> Self {
        let node = Node::new(RULES);
        let tenant = tenant(&node.home);
        let sync = SlowSync::new(node.home.path());
        let mut command = enforcer::command(&node.home);
        sync.preload(&mut command);
        let enforcer = Enforcer::spawn(&node.home, command);
        Self { sync, enforcer, tenant, node }
    }

    /// Returns a fixture whose action is confirmed and whose audit record is waiting for the disk.
    fn confirmed() -> Self {
        let fixture = Self::new(Tenant::ending_on_term);
        fixture.enforcer.ticks(3);
        fixture.sync.set(SYNC_DELAY_MS);
        fixture.node.hold(&fixture.tenant, 0, "used: 1GiB");
        fixture.enforcer.until_status("an action", |status| status["in_flight"].as_object().map(drop));
        fixture
    }

    /// Returns a fixture whose tenant was sent TERM and ignores it.
    fn term_sent() -> Self {
        let fixture = Self::new(Tenant::ignoring_term);
        fixture.node.hold(&fixture.tenant, 0, "used: 1GiB");
        fixture.tenant.until_terms(1);
        fixture
    }

    /// Lets the disk write the record, and asserts that the result is as documented and that no signal was sent.
    fn assert_result_unsent(self, event: &str) {
        self.sync.set(0);
        let expected = cell(event, "confirmed");
        let line = self.node.home.until_line("terminate", &expected);
        assert_eq!(line["sent"], serde_json::json!([]), "{line}");
        assert_eq!(self.tenant.terms_received(), 0);
        if expected != "gone" {
            assert!(self.tenant.is_running());
        }
    }

    /// Waits until the action ends as documented, whether or not SIGKILL was sent.
    fn assert_result(self, event: &str) {
        let expected = cell(event, "TERM sent");
        if expected == "continues" {
            self.tenant.gone();
            let line = self.result();
            assert!(signals(&line).contains(&"SIGKILL".to_owned()), "{line}");
            return;
        }
        let line = self.node.home.until_line("terminate", &expected);
        assert_eq!(signals(&line), ["SIGTERM"], "{line}");
        assert!(self.tenant.is_running());
    }

    /// Returns the audit line with the result of the action.
    fn result(&self) -> Value {
        let results = |line: &Value| {
            line["step"] == "terminate" && line["sent"].as_array().is_some_and(|it| !it.is_empty())
        };
        until("a result", || self.node.home.lines().into_iter().find(results))
    }

    /// Performs `act` and waits until the enforcer has evaluated a later snapshot.
    fn apply_and_wait<T>(
        &self,
        what: &str,
        act: impl FnOnce(&Node) -> T,
        mut query: impl FnMut(&Value) -> Option<()>,
    ) {
        act(&self.node);
        self.enforcer.until_status(what, |status| query(status));
    }
}

fn signals(line: &Value) -> Vec<String> {
    let sent = line["sent"].as_array().cloned().unwrap_or_default();
    let mut names: Vec<String> =
        sent.iter().map(|sent| sent["signal"].as_str().unwrap().to_owned()).collect();
    names.dedup();
    names
}

fn busy(fixture: &Fixture) {
    let busy = |node: &Node| node.hold(&fixture.tenant, 0, "used: 1GiB, sm: 80");
    fixture.apply_and_wait("it is busy", busy, |status| {
        let rule = &status["rules"][0];
        (rule["matches"] == 0 && rule["unknown"] == 0).then_some(())
    });
}

fn unknown(fixture: &Fixture) {
    let fail =
        |node: &Node| node.change(|driver| "faults: {errors: {\"*\": unknown}}".clone_into(&mut driver.head));
    fixture
        .apply_and_wait("it is unknown", fail, |status| (status["rules"][0]["unknown"] == 1).then_some(()));
}

fn exporter_silent(fixture: &Fixture) {
    fixture.node.exporter.signal(Signal::STOP);
    fixture.enforcer.until("a silence", |page| {
        (page.value("bailiff_enforcer_snapshot_age_seconds", &[])? > 0.5).then_some(())
    });
}

fn invalid_file(fixture: &Fixture) {
    fixture.node.home.write("rules: [");
    until("the file is refused", || fixture.enforcer.is_held("invalid_file").then_some(()));
}

fn reload(fixture: &Fixture) {
    let before = fixture.enforcer.status()["policy"]["sha256"].clone();
    fixture.node.home.write(&RULES.replace("max: 1%", "max: 2%"));
    fixture
        .enforcer
        .until_status("the reload", |status| (status["policy"]["sha256"] != before).then_some(()));
}

fn pause(fixture: &Fixture) {
    assert!(fixture.enforcer.run(&["pause"]).status.success());
}

macro_rules! called_off_or_not {
    ($($event:literal: $confirmed:ident, $sent:ident, $act:expr;)*) => {$(
        #[test]
        fn $confirmed() {
            let fixture = Fixture::confirmed();
            $act(&fixture);
            fixture.assert_result_unsent($event);
        }

        #[test]
        fn $sent() {
            let fixture = Fixture::term_sent();
            $act(&fixture);
            fixture.assert_result($event);
        }
    )*};
}

called_off_or_not! {
    "the target is observed busy": confirmed_target_seen_busy, signalled_target_seen_busy, busy;
    "the target is unknown": confirmed_target_unknown, signalled_target_unknown, unknown;
    "no snapshot arrives": confirmed_without_snapshots, signalled_without_snapshots, exporter_silent;
    "`pause`": confirmed_then_paused, signalled_then_paused, pause;
    "the rules change": confirmed_then_reloaded, signalled_then_reloaded, reload;
    "the rules become invalid": confirmed_then_invalid, signalled_then_invalid, invalid_file;
    "the enforcer is stopped": confirmed_then_stopped, signalled_then_stopped, |fixture: &Fixture| fixture.enforcer.signal(Signal::TERM);
}

#[test]
fn confirmed_target_that_exits_is_gone() {
    let mut fixture = Fixture::confirmed();
    fixture.tenant.end();
    fixture.assert_result_unsent("the target exits");
}

/// An action that cannot be recorded is not performed: the SIGKILL waits, is reported, and can be cancelled.
#[test]
fn sigkill_waits_for_the_audit_log() {
    assert_eq!(cell("the audit log cannot be written", "TERM sent"), "waits");
    let fixture = Fixture::term_sent();
    let (log, aside) = (fixture.node.home.audit(), fixture.node.home.path().join("aside"));
    fs::rename(&log, &aside).unwrap();
    fs::create_dir(&log).unwrap();
    assert_sigkill_waits(&fixture.enforcer, &fixture.tenant, "the audit log cannot be written");
    let status = fixture.enforcer.run(&["status"]);
    assert!(String::from_utf8_lossy(&status.stdout).contains("SIGKILL waits"), "{status:?}");
    fs::remove_dir(&log).unwrap();
    fs::rename(&aside, &log).unwrap();
    fixture.tenant.gone();
    let line = fixture.node.home.until_line("terminate", "released");
    assert!(signals(&line).contains(&"SIGKILL".to_owned()), "{line}");
}

#[test]
fn sigkill_waiting_for_the_state_is_cancelled_by_pause() {
    assert_eq!(cell("the state is not on disk", "TERM sent"), "waits");
    let fixture = Fixture::term_sent();
    fs::create_dir(fixture.node.home.state().join("state.json.new")).unwrap();
    assert_sigkill_waits(&fixture.enforcer, &fixture.tenant, "the state is not on disk");
    pause(&fixture);
    fixture.assert_result("`pause`");
}

/// Asserts that the SIGKILL is due but delayed, and that `why` is the reported reason.
fn assert_sigkill_waits(enforcer: &Enforcer, tenant: &Tenant, why: &str) {
    enforcer.until_status(why, |status| {
        status["in_flight"]["waits"]
            .as_str()
            .filter(|assert_sigkill_waits| assert_sigkill_waits.contains(why))
            .map(drop)
    });
    enforcer.ticks(5);
    assert!(tenant.is_running());
}

/// The enforcer confirms a pause while the record of the planned stop is waiting for the disk, and sends no further
/// signal.
#[test]
fn pause_before_the_processes_are_stopped_cancels() {
    let fixture = Fixture::term_sent();
    fixture.sync.set(SYNC_DELAY_MS);
    fixture.node.home.until_line("terminate", "stopping");
    pause(&fixture);
    fixture.sync.set(0);
    fixture.assert_result("`pause`");
}

/// A TERM handler that writes a checkpoint through another program gets the whole grace period.
#[test]
fn checkpoint_written_by_a_child_is_complete() {
    let node = Node::new(&RULES.replace("grace: 2s", "grace: 60s"));
    let file = node.home.path().join("checkpoint");
    fs::write(&file, "").unwrap();
    fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o666)).unwrap();
    let program = format!(
        "import signal, subprocess, sys, time
def save(*_):
    subprocess.run(['sh', '-c', 'for i in $(seq 20); do echo $i >> {0}; sleep 1; done; echo saved >> {0}'])
    sys.exit()
signal.signal(signal.SIGTERM, save)
print('ready', flush=True)
while True: time.sleep(60)",
        file.display()
    );
    let tenant = Tenant::running(&node.home, &["/usr/bin/python3", "-c", &program]);
    until("the tenant's word", || (!tenant.output_lines().is_empty()).then_some(()));
    node.hold(&tenant, 0, "used: 1GiB");
    let _enforcer = node.home.enforcer(&[]);
    tenant.gone();
    let line = node.home.until_line("terminate", "released");
    assert_eq!(signals(&line), ["SIGTERM"], "{line}");
    assert!(fs::read_to_string(&file).unwrap().ends_with("20\nsaved\n"));
}

/// Number of looks at the tenant between two looks at the audit log.
const LOOKS: u32 = 1000;

/// Kills the enforcer while the tenant is stopped for its SIGKILL. Returns false if the kill came too late, or if the
/// enforcer was too slow for the sampling interval and the action failed.
fn kill_enforcer_while_stopped(
    (enforcer, node): (&mut Enforcer, &Node),
    tenant: &Tenant,
    also: impl Fn(u32),
) -> bool {
    let stat = format!("/proc/{}/stat", tenant.pid());
    let state = || bailiff_snapshot::stat::parse(&fs::read(&stat).unwrap_or_default()).map(|stat| stat.state);
    for look in 1_u32.. {
        match state() {
            Some(bailiff_snapshot::State::Stopped) => break,
            Some(bailiff_snapshot::State::Zombie) | None => return false,
            Some(_) => std::thread::yield_now(),
        }
        if look.is_multiple_of(LOOKS) && node.home.lines().iter().any(|line| line["result"] == "failed") {
            return false;
        }
    }
    also(enforcer.pid());
    enforcer.kill();
    tenant.is_running()
}

/// Returns a fixture in which the enforcer was killed between SIGSTOP and SIGKILL.
fn crash_between_stop_and_kill(also: impl Fn(u32)) -> (Node, Tenant) {
    // There are many processes, so that checking all of them before SIGKILL takes a while.
    let program = "trap '' TERM; echo ready; i=0; while [ $i -lt 150 ]; do sleep 1000 & i=$((i+1)); done; while :; do read nothing; done";
    for _ in 0..20 {
        let node = Node::new(&RULES.replace("grace: 2s", "grace: 500ms"));
        let tenant = Tenant::shell(&node.home, program);
        node.hold(&tenant, 0, "used: 1GiB");
        let mut enforcer = node.home.enforcer(&[]);
        if kill_enforcer_while_stopped((&mut enforcer, &node), &tenant, &also) {
            return (node, tenant);
        }
    }
    panic!("the enforcer always sent SIGKILL before it was killed, or was too slow");
}

fn until_running(tenant: &Tenant) {
    let stat = format!("/proc/{}/stat", tenant.pid());
    until("the tenant runs again", || {
        let stat = bailiff_snapshot::stat::parse(&fs::read(&stat).ok()?)?;
        (stat.state != bailiff_snapshot::State::Stopped).then_some(())
    });
    assert!(tenant.is_running());
}

#[test]
fn group_stopped_by_a_dead_enforcer_continues_by_watchdog() {
    assert_eq!(cell("the enforcer crashes", "TERM sent"), "interrupted");
    let (node, tenant) = crash_between_stop_and_kill(|_| {});
    until_running(&tenant);
    let enforcer = node.home.enforcer(&[]);
    assert!(enforcer.run(&["pause"]).status.success());
    node.home.until_line("terminate", "interrupted");
}

#[test]
fn group_stopped_by_a_dead_enforcer_continues_at_start() {
    let (node, tenant) = crash_between_stop_and_kill(|enforcer| {
        // A child is listed under the thread that started it.
        let tasks = fs::read_dir(format!("/proc/{enforcer}/task")).unwrap().flatten();
        let of_task =
            |task: fs::DirEntry| fs::read_to_string(task.path().join("children")).unwrap_or_default();
        let children: Vec<String> = tasks.map(of_task).collect();
        for child in children.iter().flat_map(|text| text.split_whitespace()) {
            let _ = kill_process(Pid::from_raw(child.parse().unwrap()).unwrap(), Signal::KILL);
        }
    });
    let enforcer = node.home.enforcer(&[]);
    assert!(enforcer.run(&["pause"]).status.success());
    until_running(&tenant);
    let line = node.home.until_line("terminate", "interrupted");
    assert!(line["detail"].as_str().unwrap().contains("that it had stopped were continued"), "{line}");
}

/// Tests that the documented table contains neither an event nor a state without a test.
#[test]
fn documented_table_has_no_untested_event() {
    let docs = fs::read_to_string(programs::root().join("docs/rules.md")).unwrap();
    let rows = docs.lines().skip_while(|line| !line.starts_with("| event |")).skip(2);
    let events: Vec<&str> = rows
        .take_while(|line| line.starts_with('|'))
        .filter_map(|line| Some(line.split('|').nth(1)?.trim()))
        .collect();
    let source = fs::read_to_string(programs::root().join("tests/cases/action_lifecycle.rs")).unwrap();
    assert!(events.len() >= 10, "{events:?}");
    for event in events {
        assert!(source.contains(&format!("\"{event}\"")), "{event} has no case");
    }
}
