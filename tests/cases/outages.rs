//! Tests that no process is terminated because of missing samples: exporter, enforcer and driver stop, exit, hang and
//! lose GPUs. No streak grows during the outage. After it, a rule needs its full number of samples again.
#![allow(
    clippy::disallowed_methods,
    clippy::expect_used,
    clippy::float_cmp,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a case runs programs, reads files, compares exact figures and fails loudly"
)]

use end_to_end::enforcer::{Enforcer, streak};
use end_to_end::node::{Driver, Node};
use end_to_end::page::Page;
use end_to_end::tenant::Tenant;
use end_to_end::wait::until;
use rustix::process::Signal;
use serde_json::Value;

/// Number of matching samples that an action needs.
const NEEDED: u64 = 7;

const RULES: &str = "version: 1
mode: enforce
defaults: {startup_grace: 0s, clear_after: 1, max_gap: 2, grace: 30s}
rules:
  - name: idle
    target: process
    when: {gpu_util: {max: 1%}}
    for: {samples: 7}
    then: [{terminate: {}}]
";

/// A tenant with half of the streak that an action needs, and the enforcer.
struct Setup {
    tenant: Tenant,
    enforcer: Enforcer,
    node: Node,
}

impl Setup {
    fn new() -> Self {
        Self::on(Node::new(RULES))
    }

    fn on(node: Node) -> Self {
        let tenant = Tenant::ending_on_term(&node.home);
        node.hold(&tenant, 0, "used: 1GiB");
        let enforcer = node.home.enforcer(&[]);
        let setup = Self { tenant, enforcer, node };
        setup.until_half_streak();
        setup
    }

    fn until_half_streak(&self) {
        self.enforcer.until_streak(self.tenant.pid(), NEEDED / 2);
    }

    fn assert_no_signal(&self) {
        assert!(self.tenant.is_running() && self.tenant.terms_received() == 0);
        assert!(self.node.home.results("terminate").is_empty());
    }

    /// Asserts that the streak never grows, is reset, and stays at 0.
    fn assert_streak_is_reset(&self) {
        let pid = self.tenant.pid();
        let mut last = self.enforcer.streak(pid);
        let over_at = self.enforcer.until_status("the streak is over", |status| {
            let now = streak(status, pid);
            assert!(now <= last + 1, "the streak grew from {last} to {now}");
            last = last.min(now);
            (now == 0).then(|| status["stream"]["seq"].as_u64().unwrap())
        });
        // The test does not wait long, because each failed query doubles the time until the next query.
        self.enforcer.until_status("ticks without data", |status| {
            assert_eq!(streak(status, pid), 0);
            (status["stream"]["seq"].as_u64()? > over_at + 3).then_some(())
        });
        self.assert_no_signal();
    }

    /// Asserts that the tenant is terminated after the full number of samples from this snapshot on, and not earlier.
    fn assert_ended_after_full_samples(self, seq: u64) {
        self.tenant.gone();
        let due = self.node.home.until_line("terminate", "due");
        let evidence = &due["evidence"];
        let (at, streak) = (evidence["seq"].as_u64().unwrap(), evidence["streak"].as_u64().unwrap());
        assert_eq!(streak, NEEDED);
        assert!(at >= seq + NEEDED, "healed after {seq}, due at {at}");
        self.node.home.until_line("terminate", "released");
    }
}

/// Waits until so many samples were missed that the action would otherwise have been performed.
fn until_samples_missed(enforcer: &Enforcer) {
    enforcer.until("a long time without a snapshot", |page| {
        (page.value("bailiff_enforcer_snapshot_age_seconds", &[])? > 1.5).then_some(())
    });
}

#[test]
fn stopped_exporter_freezes_streaks() {
    let setup = Setup::new();
    setup.node.exporter.signal(Signal::STOP);
    until_samples_missed(&setup.enforcer);
    setup.assert_no_signal();
    let seq = setup.enforcer.seq();
    setup.node.exporter.signal(Signal::CONT);
    setup.assert_ended_after_full_samples(seq);
}

#[test]
fn missing_exporter_freezes_streaks() {
    let mut setup = Setup::new();
    setup.node.exporter.kill();
    until_samples_missed(&setup.enforcer);
    setup.enforcer.until("the stream is down", |page| {
        (page.value("bailiff_stream_connected", &[])? == 0.0).then_some(())
    });
    setup.assert_no_signal();
    setup.node.restart_exporter();
    setup.assert_ended_after_full_samples(0);
}

/// The outage lasts a hundred ticks of 50 ms, during which the exporter continues.
#[test]
fn stopped_enforcer_freezes_streaks() {
    let ticks = ["--interval", "50ms", "--look-back", "100ms", "--deadline", "10s"];
    let setup = Setup::on(Node::with_ticks(RULES, &[""], &ticks));
    setup.enforcer.signal(Signal::STOP);
    let stopped_at = setup.node.tick();
    let seq = until("a hundred ticks", || Some(setup.node.tick()).filter(|tick| *tick >= stopped_at + 100));
    setup.assert_no_signal();
    setup.enforcer.signal(Signal::CONT);
    // Snapshots that are less than two ticks old may be evaluated, older snapshots are not.
    setup.assert_ended_after_full_samples(seq - 3);
}

/// Asserts that streaks are frozen while the driver has this fault, and that the driver recovers.
fn assert_frozen_while_driver(head: &str, also: impl FnOnce(&Setup)) {
    let ticks = ["--interval", "200ms", "--look-back", "400ms", "--deadline", "1s"];
    let setup = Setup::on(Node::with_ticks(RULES, &[""], &ticks));
    let up = |page: &Page| page.value("bailiff_source_up", &[("source", "nvml")]);
    setup.node.change(|driver| head.clone_into(&mut driver.head));
    also(&setup);
    setup.node.exporter.until("the driver is down", |page| (up(page)? == 0.0).then_some(()));
    setup.assert_no_signal();
    let seq = setup.node.tick();
    setup.node.change(|driver| driver.head.clear());
    setup.assert_ended_after_full_samples(seq);
}

#[test]
fn failing_driver_freezes_streaks() {
    assert_frozen_while_driver("faults: {errors: {\"*\": unknown}}", Setup::assert_streak_is_reset);
}

/// Each sample takes its whole deadline, and is too old to be evaluated when it arrives.
#[test]
fn hung_driver_freezes_streaks() {
    assert_frozen_while_driver("faults: {hang: true}", |setup| until_samples_missed(&setup.enforcer));
}

/// The driver is unloaded, and opening it again fails.
#[test]
fn missing_driver_freezes_streaks() {
    assert_frozen_while_driver("init: driver_not_loaded", |setup| {
        let worker = setup.node.exporter.children("sampling-worker")[0];
        let pid = rustix::process::Pid::from_raw(i32::try_from(worker).unwrap()).unwrap();
        rustix::process::kill_process(pid, Signal::KILL).unwrap();
        setup.assert_streak_is_reset();
    });
}

#[test]
fn lost_gpu_freezes_only_its_streaks() {
    let node = Node::of(RULES, &["", ""]);
    let other = Tenant::ending_on_term(&node.home);
    let setup = Setup::on(node);
    let pid = setup.tenant.pid();
    let set_gpu = |text: &str| setup.node.change(|driver| text.clone_into(&mut driver.gpus[0].text));
    set_gpu("faults: {lost: true}");
    setup.assert_streak_is_reset();
    setup.node.hold(&other, 1, "used: 1GiB");
    setup.enforcer.until_status("the other one is gone", |status| {
        assert_eq!(streak(status, pid), 0);
        (!other.is_running()).then_some(())
    });
    assert!(setup.tenant.is_running() && setup.tenant.terms_received() == 0);
    let seq = setup.node.tick();
    set_gpu("");
    setup.tenant.gone();
    let home = &setup.node.home;
    let is_due = |line: &Value| line["target"]["members"][0]["pid"] == pid && line["result"] == "due";
    let due = until("the action to become due", || home.lines().into_iter().find(is_due));
    assert!(due["evidence"]["seq"].as_u64().unwrap() >= seq + NEEDED, "healed after {seq}: {due}");
}

/// Asserts that a holder of two GPUs is not terminated if it is idle on the first GPU but the second is not
/// observed. Other holders on the first GPU are terminated.
fn assert_holder_survives_once(lose: impl FnOnce(&mut Driver)) {
    let rules =
        RULES.replace("rules:", "limits: {per_gpu_hour: 9, per_user_hour: 9, per_node_hour: 9}\nrules:");
    let mut node = Node::of(&rules, &["", ""]);
    let tenant = Tenant::ending_on_term(&node.home);
    for gpu in [0, 1] {
        node.hold(&tenant, gpu, "used: 1GiB");
    }
    let enforcer = node.home.enforcer(&[]);
    enforcer.until_streak(tenant.pid(), NEEDED / 2);
    node.change(lose);
    let pid = tenant.pid();
    enforcer.until_status("the streak is over", |status| (streak(status, pid) == 0).then_some(()));
    let another_is_ended = |node: &Node, why: &str| {
        let other = Tenant::ending_on_term(&node.home);
        node.hold(&other, 0, "used: 1GiB");
        other.gone();
        assert!(tenant.is_running() && tenant.terms_received() == 0, "{why}");
    };
    another_is_ended(&node, "the tenant might be computing on the lost GPU");
    assert_eq!(enforcer.streak(pid), 0);
    drop(enforcer);
    let enforcer = node.home.enforcer(&[]);
    another_is_ended(&node, "the enforcer was restarted");
    node.exporter.kill();
    node.restart_exporter();
    node.exporter
        .until("two snapshots", |page| (page.value("bailiff_snapshots_total", &[])? >= 2.0).then_some(()));
    another_is_ended(&node, "the exporter was restarted");
    assert_eq!(enforcer.streak(pid), 0);
}

#[test]
fn holder_of_a_lost_gpu_is_not_ended() {
    assert_holder_survives_once(|driver| "faults: {lost: true}".clone_into(&mut driver.gpus[1].text));
}

#[test]
fn holder_of_an_unlisted_gpu_is_not_ended() {
    assert_holder_survives_once(|driver| driver.gpus.truncate(1));
}
