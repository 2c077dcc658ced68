//! A workload against which no step is taken keeps no other from being picked.

use bailiff_engine::verdict::Outcome;
use bailiff_snapshot::SubordinateUids;

use super::node::Node;
use super::{crowded, picking};

const HOUR: u64 = 3_600_000;

/// Returns a node with two idle workloads: a small one of uid 1000, which comes first, and one of uid 1001.
fn with_small_and_large(rules: &str) -> Node {
    let mut node = crowded(&[(4100, 7000), (4200, 9000)]);
    node.engine.set_subordinate(SubordinateUids::default());
    node.process(4200).uid = Some(1001);
    node.reload(rules);
    node
}

/// Ends the first action: the process has exited, but the GPU needs more memory.
fn release(node: &mut Node, pid: u32) {
    node.report(Outcome::Released);
    node.processes.remove(&pid);
}

#[test]
fn workload_of_a_failed_action_is_picked_last_on_its_other_gpus() {
    let mut node = with_small_and_large(&picking(""));
    node.gpus[1].free_mib = 1000;
    node.process(4100).gpus = vec![0, 1];
    node.process(4200).gpus = vec![1];
    let before = node.ticks(5);
    assert_eq!(before[4], "slurm:4100 terminate");
    node.report(Outcome::Failed);
    let events = node.ticks(3);
    assert!(events[0].ends_with("slurm:4100 reprieved, slurm:4200 notify owner"), "{events:?}");
    assert_eq!(events[2], "slurm:4200 terminate");
}

#[test]
fn user_whose_budget_is_used_up_is_picked_last() {
    let one = picking("").replace("per_user_hour: 100", "per_user_hour: 1");
    let mut node = with_small_and_large(&one);
    node.process(4300).mib = Some(7000);
    assert_eq!(node.ticks(5)[4], "slurm:4100 terminate");
    assert_eq!(
        node.tick(),
        "",
        "an action that is being carried out is not cancelled by its own entry in the budget"
    );
    release(&mut node, 4100);
    let events = node.ticks(3);
    assert_eq!(events[2], "slurm:4200 terminate", "the smaller 4300 has no budget left: {events:?}");
    release(&mut node, 4200);
    let events = node.ticks(2);
    assert_eq!(events[0], "slurm:4300 notify owner", "no other is eligible");
    assert_eq!(events[1], "slurm:4300 withheld terminate: user_budget");
}

#[test]
fn workload_without_a_delivered_notice_is_passed_over_after_a_minute() {
    let steps = "{after: {samples: 1}, terminate: {requires_notice: true}}";
    let mut node = with_small_and_large(&picking("").replace("{after: {samples: 1}, terminate: {}}", steps));
    assert_eq!(node.ticks(4)[3], "slurm:4100 withheld terminate: undelivered");
    let events = node.ticks(13);
    assert_eq!(events[11..], ["slurm:4100 notify owner", "slurm:4100 reprieved, slurm:4200 notify owner"]);
    assert!(!node.ticks(40).concat().contains("4100"), "they do not take turns");
}

#[test]
fn workload_with_three_cancelled_attempts_is_passed_over_for_an_hour() {
    let mut node = with_small_and_large(&picking(""));
    assert_eq!(node.ticks(5)[4], "slurm:4100 terminate");
    for _ in 0..2 {
        node.report(Outcome::Cancelled);
        assert_eq!(node.ticks(2)[1], "slurm:4100 terminate");
    }
    node.report(Outcome::Cancelled);
    assert_eq!(node.tick(), "slurm:4100 reprieved, slurm:4200 notify owner");
    node.process(4200).util = Some(90);
    assert_eq!(node.ticks(2), ["slurm:4200 reprieved, slurm:4100 notify owner", "slurm:4100 due terminate"]);
    // After an hour, the order of the rule applies again.
    node.process(4100).util = Some(90);
    node.wait(HOUR);
    node.process(4100).util = Some(0);
    node.process(4200).util = Some(0);
    let events = node.ticks(3);
    assert_eq!(events[2], "slurm:4100 notify owner", "{events:?}");
}

#[test]
fn workload_that_cannot_be_signalled_is_picked_last_by_rules_with_a_destructive_step() {
    let flag = "[{flag: warning}]";
    let notify = "[{notify: [owner]}, {after: {samples: 1}, terminate: {}}]";
    for (steps, expected) in [(notify, "slurm:4200 notify owner"), (flag, "slurm:4100 flag")] {
        let mut node = with_small_and_large(&picking("").replace(notify, steps));
        node.engine.limit_to(1001);
        assert_eq!(node.ticks(3)[2], expected);
    }
}

#[test]
fn cooldown_applies_to_the_workload_and_not_to_its_gpu() {
    let mut node = with_small_and_large(&picking("").replace("cooldown: 0s", "cooldown: 1h"));
    assert_eq!(node.ticks(5)[4], "slurm:4100 terminate");
    release(&mut node, 4100);
    assert_eq!(node.ticks(3)[2], "slurm:4200 terminate");
}

#[test]
fn refused_workload_is_passed_over() {
    let mut node = with_small_and_large(&picking("").replace("cooldown: 0s", "cooldown: 1h"));
    assert_eq!(node.ticks(5)[4], "slurm:4100 terminate");
    node.report(Outcome::IdentityChanged);
    assert_eq!(node.tick(), "slurm:4100 reprieved, slurm:4200 notify owner");
    // The user makes it absent for one snapshot.
    let absent = node.processes.remove(&4100).unwrap();
    node.process(4200).util = Some(90);
    assert_eq!(node.tick(), "slurm:4200 reprieved");
    node.processes.insert(4100, absent);
    node.process(4200).util = Some(0);
    let events = node.ticks(3).concat();
    assert!(events.starts_with("slurm:4200 notify owner"), "{events}");
}

#[test]
fn workload_whose_condition_is_unknown_whenever_a_decision_is_to_be_confirmed_is_passed_over() {
    let mut node = with_small_and_large(&picking(""));
    let mut events = node.ticks(3);
    for _ in 0..3 {
        events.push(node.tick());
        node.process(4100).util = None;
        events.push(node.tick());
        node.process(4100).util = Some(0);
    }
    events.push(node.tick());
    let expected =
        ["slurm:4100 notify owner", "slurm:4100 due terminate", "", "slurm:4100 due terminate", ""];
    assert_eq!(events[2..7], expected);
    assert_eq!(events[9], "slurm:4100 reprieved, slurm:4200 notify owner");
}

#[test]
fn workload_that_still_matches_after_the_last_step_is_passed_over() {
    let signal = picking("").replace("terminate: {}", "signal: USR1");
    let mut node = with_small_and_large(&signal);
    assert_eq!(node.ticks(5)[4], "slurm:4100 signal");
    node.report(Outcome::Done);
    assert_eq!(node.tick(), "slurm:4100 reprieved, slurm:4200 notify owner");
}

#[test]
fn workload_that_waits_for_its_cooldown_on_another_gpu_is_passed_over() {
    let mut node = with_small_and_large(&picking("").replace("cooldown: 0s", "cooldown: 1h"));
    node.gpus[1].free_mib = 1000;
    node.process(4100).gpus = vec![0, 1];
    node.process(4200).gpus = vec![1];
    assert_eq!(node.ticks(5)[4], "slurm:4100 terminate");
    node.report(Outcome::IdentityChanged);
    let events = node.ticks(4);
    assert!(events.concat().contains("slurm:4200 notify owner"), "{events:?}");
}

/// With workloads that take turns in being busy for a moment, a user could otherwise delay the rule without end.
#[test]
fn user_whose_picked_workloads_become_busy_or_exit_is_picked_last() {
    let later = "{after: {samples: 9}, terminate: {}}";
    let mut node = with_small_and_large(&picking("").replace("{after: {samples: 1}, terminate: {}}", later));
    node.process(4300).mib = Some(7000);
    assert_eq!(node.ticks(3)[2], "slurm:4100 notify owner");
    for (busy, next) in [(4100, 4300), (4300, 4100)] {
        node.process(busy).util = Some(90);
        assert_eq!(node.tick(), format!("slurm:{busy} reprieved, slurm:{next} notify owner"));
        node.process(busy).util = Some(0);
        assert_eq!(node.ticks(4), [""; 4]);
    }
    node.processes.remove(&4100);
    assert_eq!(node.tick(), "slurm:4200 notify owner", "the smaller 4300 belongs to the same user");
    assert_eq!(node.ticks(10)[9], "slurm:4200 terminate");
}
