//! Tests that the enforcer can be killed at any step and restarted: no process is sent KILL without a new TERM,
//! budgets are kept, and the audit log contains the interrupted action.
#![allow(
    clippy::disallowed_methods,
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a case runs programs, reads files and fails loudly"
)]

use end_to_end::enforcer::Enforcer;
use end_to_end::node::Node;
use end_to_end::tenant::Tenant;
use end_to_end::wait::until;
use serde_json::Value;

fn rules(grace: &str, per_hour: u32) -> String {
    format!(
        "version: 1
mode: enforce
defaults: {{startup_grace: 0s, clear_after: 1, cooldown: 0s, grace: {grace}}}
limits: {{per_node_hour: {per_hour}}}
rules:
  - name: idle
    target: process
    when: {{gpu_util: {{max: 1%}}}}
    for: {{samples: 4}}
    then: [{{terminate: {{}}}}]
"
    )
}

/// Returns the ids of actions with this result.
fn ids(node: &Node, result: &str) -> Vec<u64> {
    let lines = node.home.lines().into_iter();
    let found = lines.filter(|line| line["step"] == "terminate" && line["result"] == result);
    found.filter_map(|line| line["id"].as_u64()).collect()
}

fn signals(line: &Value) -> Vec<&str> {
    line["sent"].as_array().unwrap().iter().filter_map(|sent| sent["signal"].as_str()).collect()
}

/// A tenant that ignores TERM, and an enforcer that is killed at a given moment and restarted.
struct Crash {
    tenant: Tenant,
    node: Node,
    enforcer: Enforcer,
}

impl Crash {
    fn at(rules: &str, moment: impl Fn(&Node, &Tenant, &Enforcer)) -> Self {
        let node = Node::new(rules);
        let tenant = Tenant::ignoring_term(&node.home);
        node.hold(&tenant, 0, "used: 1GiB");
        let mut enforcer = node.home.enforcer(&[]);
        moment(&node, &tenant, &enforcer);
        enforcer.kill();
        assert!(tenant.is_running());
        let enforcer = node.home.enforcer(&[]);
        Self { tenant, node, enforcer }
    }

    /// Asserts that the tenant is terminated, and that it was sent TERM again first.
    fn assert_ended_with_new_term(&self, earlier: usize) {
        self.tenant.gone();
        let end = self.node.home.until_line("terminate", "released");
        assert_eq!(signals(&end), ["SIGTERM", "SIGSTOP", "SIGKILL"]);
        assert_eq!(self.tenant.terms_received(), earlier + 1, "sent TERM before each KILL");
        let begun = ids(&self.node, "begun");
        assert_eq!(begun.last().copied(), end["id"].as_u64());
        let interrupted = ids(&self.node, "interrupted");
        assert_eq!([interrupted, ids(&self.node, "released")].concat(), begun, "every process has exited");
    }
}

#[test]
fn killed_before_the_decision() {
    let crash = Crash::at(&rules("1s", 6), |_, tenant, enforcer| enforcer.until_streak(tenant.pid(), 3));
    crash.assert_ended_with_new_term(0);
}

#[test]
fn killed_after_the_decision() {
    let crash = Crash::at(&rules("1s", 6), |node, _, _| drop(node.home.until_line("terminate", "due")));
    // The kill may have come a moment too late, so there may be no interrupted action.
    crash.assert_ended_with_new_term(ids(&crash.node, "interrupted").len());
}

#[test]
fn killed_right_after_the_action_began() {
    let crash = Crash::at(&rules("1s", 6), |node, _, _| drop(node.home.until_line("terminate", "begun")));
    // It is random whether TERM was sent before the kill. Only later TERMs are counted.
    let earlier = crash.tenant.terms_received();
    assert_eq!(ids(&crash.node, "interrupted"), [1]);
    crash.assert_ended_with_new_term(earlier);
}

#[test]
fn killed_in_the_grace() {
    let crash = Crash::at(&rules("2s", 6), |_, tenant, _| tenant.until_terms(1));
    assert_eq!(ids(&crash.node, "interrupted"), [1], "the interruption is logged before any other event");
    crash.enforcer.until_logged("exited before its result was written");
    crash.assert_ended_with_new_term(1);
}

/// An action that has started counts towards the budget, even if its end was not recorded.
#[test]
fn budgets_survive_a_restart() {
    let crash = Crash::at(&rules("30s", 1), |_, tenant, _| tenant.until_terms(1));
    let second = Tenant::ending_on_term(&crash.node.home);
    crash.node.hold(&second, 0, "used: 1GiB");
    crash.enforcer.until_waits(second.pid(), "node_budget");
    crash.enforcer.until_waits(crash.tenant.pid(), "node_budget");
    crash.enforcer.ticks(3);
    assert!(crash.tenant.is_running() && crash.tenant.terms_received() == 1);
    assert!(second.is_running() && second.terms_received() == 0);
    let page = crash.enforcer.page();
    let budget = |name| page.value(name, &[("budget", "node")]);
    assert_eq!((budget("bailiff_budget_used"), budget("bailiff_budget_limit")), (Some(1.0), Some(1.0)));
    assert_eq!(ids(&crash.node, "begun"), [1]);
}

/// If the state file is invalid, the enforcer renames it and starts paused.
#[test]
fn unreadable_state_is_a_pause() {
    let node = Node::new(&rules("30s", 6));
    let state = node.home.path().join("state");
    std::fs::create_dir_all(&state).unwrap();
    std::fs::write(state.join("state.json"), "{\"orderly\": true}").unwrap();
    let tenant = Tenant::ignoring_term(&node.home);
    node.hold(&tenant, 0, "used: 1GiB");
    let enforcer = node.home.enforcer(&[]);
    enforcer.until_waits(tenant.pid(), "paused");
    assert!(tenant.is_running() && tenant.terms_received() == 0);
    assert!(state.join("state.json.unread").exists(), "the previous file is kept");
}

/// On SIGTERM, the enforcer cancels its action: the log contains the signals that were sent, and no KILL follows.
#[test]
fn stopped_in_the_grace() {
    let node = Node::new(&rules("30s", 6));
    let tenant = Tenant::ignoring_term(&node.home);
    node.hold(&tenant, 0, "used: 1GiB");
    let mut enforcer = node.home.enforcer(&[]);
    tenant.until_terms(1);
    assert_eq!(enforcer.stop(), Some(0));
    let line =
        node.home.line("terminate", "cancelled").expect("the line must be written before the enforcer exits");
    assert_eq!(signals(&line), ["SIGTERM"]);
    assert_eq!(node.home.lines().last().unwrap()["step"], "end");
    assert!(tenant.is_running() && tenant.terms_received() == 1);
    assert!(until("the socket is removed", || Some(!node.home.control().exists())));
}
