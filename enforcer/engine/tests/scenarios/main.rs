//! Tests the engine, case by case: a policy as an administrator writes it, snapshots with their times, and the
//! resulting events. Each paragraph about evaluation in the specification has its cases here.
#![expect(clippy::unwrap_used, clippy::panic, reason = "a test")]

mod jobs;
mod node;
mod owner_holds;
mod pods;
mod withheld_picks;

use std::time::Duration;

use bailiff_engine::Kind;
use bailiff_engine::engine::{Holds, Question, Skip};
use bailiff_engine::verdict::{Hold, Outcome};
use bailiff_engine::view::TargetId;
use bailiff_snapshot::{SubordinateUids, Truth};

use node::{Gpu, Node, TICK};

/// Returns a policy with one rule, which applies the steps in `then` to a process after three idle samples. `more` is
/// inserted into the rule.
fn rule(more: &str, then: &str) -> String {
    format!(
        "version: 1
defaults: {{max_gap: 1, startup_grace: 0s, clear_after: 2, cooldown: 0s}}
limits: {{per_gpu_hour: 100, per_user_hour: 100, per_node_hour: 100}}
notify: {{owner: {{tty: true}}}}
rules:
  - name: idle
    mode: enforce
    target: process
    when: {{gpu_util: {{max: 1%}}}}
    for: {{samples: 3}}
{more}
    then: {then}
"
    )
}

fn flag() -> String {
    rule("", "[{flag: warning}]")
}

fn terminate() -> String {
    rule("", "[{terminate: {}}]")
}

fn notifying() -> String {
    rule("", "[{notify: [owner]}, {after: {samples: 2}, terminate: {}}]")
}

#[test]
fn match_needs_the_configured_true_samples() {
    let cases: [(&str, &[&str]); 7] = [
        ("TTT", &["", "", "4100 flag"]),
        ("TTUT", &["", "", "", "4100 flag"]),
        ("TTUUTTT", &["", "", "", "", "", "", "4100 flag"]),
        ("TTFTTT", &["", "", "", "", "", "4100 flag"]),
        ("TUTUT", &["", "", "", "", "4100 flag"]),
        ("UUUUUUUU", &["", "", "", "", "", "", "", ""]),
        ("FFFF", &["", "", "", ""]),
    ];
    for (samples, expected) in cases {
        assert_eq!(Node::new(&flag()).run(samples), expected, "{samples}");
    }
}

#[test]
fn missed_tick_counts_as_unknown() {
    let cases: [(&str, &[&str]); 4] = [
        ("TT.T", &["", "", "4100 flag"]),
        ("TT..TTT", &["", "", "", "", "4100 flag"]),
        ("TTU.T", &["", "", "", ""]),
        ("T.T.T", &["", "", "4100 flag"]),
    ];
    for (samples, expected) in cases {
        assert_eq!(Node::new(&flag()).run(samples), expected, "{samples}");
    }
    let mut node = Node::new(&flag());
    assert_eq!(node.run("TT"), ["", ""]);
    node.wait(3_600_000);
    assert_eq!(node.run("TTT"), ["", "", "4100 flag"], "the node was suspended for an hour");
}

#[test]
fn duration_is_rounded_up_to_samples() {
    let policy = flag().replace("{samples: 3}", "11s");
    assert_eq!(Node::new(&policy).run("TTT"), ["", "", "4100 flag"]);
}

#[test]
fn changed_interval_resets_streaks() {
    let policy = flag().replace("{samples: 3}", "30s");
    let mut node = Node::new(&policy);
    assert_eq!(node.run("TTTTT"), [""; 5], "half a minute is six samples");
    node.interval = 15_000;
    node.wait(10_000);
    assert_eq!(node.tick(), "", "two samples are needed now, and earlier samples do not count");
    node.wait(10_000);
    assert_eq!(node.tick(), "4100 flag");
}

#[test]
fn repeated_snapshot_is_not_evaluated() {
    let mut node = Node::new(&terminate());
    node.run("TT");
    assert_eq!(node.feed(0), Err(Skip::Duplicate));
    node.wait(TICK);
    assert_eq!(node.feed(2 * TICK + 1), Err(Skip::Stale));
    node.boot_ms -= 2 * TICK;
    assert_eq!(node.feed(0), Err(Skip::Duplicate), "an older snapshot");
    node.boot_ms += 2 * TICK;
    let ahead = node.snapshot();
    node.boot_ms -= 1;
    let view = bailiff_engine::view::View::between(None, ahead);
    assert_eq!(node.engine.tick(node.now(0), view.into()), Err(Skip::Future));
    node.boot_ms += 1;
    node.interval = 0;
    assert_eq!(node.feed(0), Err(Skip::NoInterval));
    node.interval = TICK;
    assert_eq!(node.run("T"), ["4100 due terminate"], "the stale snapshot only counts as a missed tick");
}

#[test]
fn steps_run_once_in_order_at_their_sample() {
    let policy = rule(
        "",
        "[{flag: warning}, {after: {samples: 1}, notify: [owner]}, {after: {samples: 3}, signal: SIGUSR1}, \
         {after: {samples: 3}, terminate: {}}]",
    );
    let mut node = Node::new(&policy);
    assert_eq!(node.run("TTTTT"), ["", "", "4100 flag", "4100 notify owner", ""]);
    assert_eq!(node.run("U"), [""], "an unknown sample does not trigger a step");
    assert_eq!(node.run("TT"), ["4100 due signal", "4100 signal"]);
    assert_eq!(node.run("TT"), ["", ""], "the next step waits for the effect of the signal");
    node.report(Outcome::Done);
    assert_eq!(node.run("TT"), ["4100 due terminate", "4100 terminate"]);
    node.report(Outcome::Undetermined);
    let again = ["", "", "4100 flag", "4100 notify owner"];
    assert_eq!(node.run("TTTT"), again, "a step is done once per match, which ended with the termination");
}

#[test]
fn request_needs_true_at_decision_and_next_sample() {
    let mut node = Node::new(&terminate());
    assert_eq!(node.run("TTTF"), ["", "", "4100 due terminate", ""]);
    assert_eq!(node.run("TTTU"), ["", "", "4100 due terminate", ""]);
    assert_eq!(
        node.run("TT"),
        ["4100 due terminate", "4100 terminate"],
        "the action is decided again and confirmed"
    );
}

#[test]
fn notified_target_is_reprieved_at_once() {
    let mut node = Node::new(&notifying());
    assert_eq!(node.run("TTTF"), ["", "", "4100 notify owner", "4100 reprieved"]);
    assert_eq!(
        node.run("TTTUU"),
        ["", "", "4100 notify owner", "", "4100 reprieved"],
        "the target was unknown for too long"
    );
    let events = node.run("TTTTTT");
    assert_eq!(
        events,
        ["", "", "4100 notify owner", "", "4100 due terminate", "4100 terminate"],
        "a new match starts with the first step"
    );
}

#[test]
fn flag_clears_after_consecutive_samples_not_true() {
    let mut node = Node::new(&flag());
    assert_eq!(node.run("TTTFT"), ["", "", "4100 flag", "", ""], "one sample that is not true is not enough");
    assert_eq!(node.run("FU"), ["", "4100 clear"], "an unknown sample counts");
    let mut node = Node::new(&flag());
    node.run("TTT");
    assert_eq!(node.run("UUUU"), ["", "4100 clear", "", ""]);
    let mut node = Node::new(&flag());
    node.run("TTT");
    assert_eq!(node.run("...F"), [""], "a missed tick does not count as a sample");
}

#[test]
fn flag_of_an_absent_target_clears() {
    let mut node = Node::new(&flag());
    node.run("TTT");
    node.gpus[0].fault = Some("timeout");
    assert_eq!(node.ticks(4), ["", "4100 clear", "", ""]);
    node.gpus[0].fault = None;
    assert_eq!(node.run("FF"), ["", ""], "once");
}

#[test]
fn target_that_is_gone_leaves_no_state() {
    let mut node = Node::new(&notifying());
    assert_eq!(node.run("TTTTT"), ["", "", "4100 notify owner", "", "4100 due terminate"]);
    let gone = node.processes.remove(&4100).unwrap();
    assert_eq!(node.tick(), "", "the decision is dropped with the target");
    node.processes.insert(4100, gone);
    assert_eq!(node.run("TT"), ["", ""], "the streak is dropped too");
}

#[test]
fn reused_pid_starts_at_zero() {
    let mut node = Node::new(&terminate());
    assert_eq!(node.run("TTT"), ["", "", "4100 due terminate"]);
    node.process(4100).ticks = 1_000_300;
    assert_eq!(node.run("TT"), ["", ""], "another process has the pid now");
    assert_eq!(node.run("TT"), ["4100 due terminate", "4100 terminate"]);
}

#[test]
fn unobserved_target_is_not_gone() {
    let mut node = Node::new(&terminate());
    assert_eq!(node.run("TT"), ["", ""]);
    node.gpus[0].fault = Some("timeout");
    assert_eq!(node.tick(), "");
    node.gpus[0].fault = None;
    assert_eq!(node.run("T"), ["4100 due terminate"], "a gap of one sample is allowed");
    node.proc_up = false;
    assert_eq!(node.ticks(2), ["", ""]);
    node.proc_up = true;
    assert_eq!(node.run("TTT"), ["", "", "4100 due terminate"], "a gap of two samples is not allowed");
    node.process(4100).confirmed = false;
    assert_eq!(node.tick(), "", "no action is taken on an unconfirmed process");
    node.process(4100).confirmed = true;
    assert_eq!(node.run("TT"), ["4100 due terminate", "4100 terminate"]);
}

#[test]
fn unresponsive_gpu_makes_every_process_unknown() {
    let mut node = Node::new(&terminate());
    node.gpus[1].fault = Some("timeout");
    assert_eq!(node.run("TTTTTT"), [""; 6], "4100 might be busy on the GPU that does not respond");
    node.gpus[1].fault = Some("lost");
    assert_eq!(node.run("TTT"), ["", "", "4100 due terminate"], "4100 cannot be busy on a lost GPU");
}

#[test]
fn lost_gpu_makes_its_holders_unknown_and_no_others() {
    for of in ["process", "workload"] {
        let mut node = Node::new(&terminate().replace("target: process", &format!("target: {of}")));
        node.process(4100).gpus = vec![0, 1];
        node.gpus[1].fault = Some("lost");
        assert_eq!(node.ticks(6), [""; 6], "{of}: the target might be computing on the lost GPU");
        node.process(4200);
        let events = node.ticks(4).concat();
        assert!(events.ends_with("4200 terminate") && !events.contains("4100"), "{of}: {events}");
    }
}

#[test]
fn lost_gpu_without_memory_makes_older_processes_unknown() {
    let mut node = Node::new(&terminate());
    node.process(4100);
    node.gpus[1] = Gpu { fault: Some("lost"), remembered: false, ..node.gpus[1].clone() };
    let since = node.boot_ms;
    node.gpus[1].since_ms = Some(since);
    assert_eq!(node.ticks(6), [""; 6], "the process might have held the lost GPU");
    node.process(4200).ticks = since / 10;
    assert_eq!(node.ticks(4), ["", "", "4200 due terminate", "4200 terminate"], "the process started later");
}

#[test]
fn lost_gpu_makes_sums_of_its_holders_lower_bounds() {
    for (when, ends) in [
        ("vram: {max: 2GiB}", false),
        ("vram: {min: 512MiB}", true),
        ("vram_share: {max: 5%}", false),
        ("gpu_count: {max: 1}", false),
        ("gpu_count: {min: 1}", true),
        ("not: {gpus: [\"1\"]}", false),
        ("gpus: [\"0\"]", true),
    ] {
        let mut node = Node::new(&terminate().replace("gpu_util: {max: 1%}", when));
        node.process(4100).gpus = vec![0, 1];
        node.gpus[1].fault = Some("lost");
        let events = node.ticks(4).concat();
        assert_eq!(events.contains("4100 terminate"), ends, "{when}: {events}");
    }
}

#[test]
fn gate_that_is_false_or_unknown_skips_the_target() {
    fn skipped(policy: &str, change: impl Fn(&mut Node)) -> bool {
        let mut node = Node::new(policy);
        node.process(4100);
        change(&mut node);
        node.ticks(8).iter().all(String::is_empty)
    }
    let gate = |more: &str| rule(more, "[{terminate: {}}]");
    assert!(!skipped(&gate(""), |_| {}));
    let sshd =
        |uid| move |node: &mut Node| (node.process(4100).comm, node.process(4100).uid) = ("sshd", Some(uid));
    assert!(skipped(&gate(""), sshd(998)));
    assert!(!skipped(&gate(""), sshd(1000)), "any user can choose this name");
    assert!(skipped(&gate(""), |node| node.process(4100).uid = Some(0)));
    assert!(skipped(&gate(""), |node| node.process(4100).uid = None), "the owner is unknown");
    let protect = terminate().replace("rules:", "protect: {users: [user-1000]}\nrules:");
    assert!(skipped(&protect, |_| {}));
    let select = gate("    select: {vram: {min: 512MiB}}");
    assert!(!skipped(&select, |_| {}));
    assert!(skipped(&select, |node| node.process(4100).mib = Some(100)));
    assert!(skipped(&select, |node| node.process(4100).mib = None), "the memory is unknown");
    let except = gate("    except: [{users: [user-1000], until: 2030-01-01, reason: deadline}]");
    assert!(skipped(&except, |_| {}));
    assert!(!skipped(&except, |node| node.process(4100).uid = Some(1001)));
    assert!(skipped(&gate(""), |node| node.process(4100).restored = true));
    assert!(skipped(&gate(""), |node| node.process(4100).reused_pid = true));
    let restored = gate("    except: [{restored: true, reason: kept}]");
    assert!(skipped(&restored, |_| {}), "it may have been restored");
    assert!(skipped(&restored, |node| node.process(4100).restored = true));
    let grace = gate("    startup_grace: 10m");
    assert!(!skipped(&grace, |_| {}), "the process started long ago");
    assert!(skipped(&grace, |node| node.process(4100).ticks = node.boot_ms / 10));
}

#[test]
fn exception_expires() {
    let except = "    except: [{users: [user-1000], until: 2023-11-15, reason: deadline}]";
    let mut node = Node::new(&rule(except, "[{terminate: {}}]"));
    assert_eq!(node.run("TTTT"), [""; 4], "the simulated time is 2023-11-15, after 01:00");
    node.wait(86_400_000);
    assert_eq!(node.run("TTTT"), ["", "", "4100 due terminate", "4100 terminate"]);
}

#[test]
fn workload_is_idle_when_every_member_is() {
    let policy = terminate().replace("target: process", "target: workload");
    let mut node = Node::new(&policy);
    node.process(4200).workload = "slurm:4100".to_owned();
    node.process(4200).util = Some(50);
    assert_eq!(node.run("TTTT"), [""; 4], "one rank is busy");
    node.process(4200).util = None;
    assert_eq!(node.run("TTTT"), [""; 4], "one rank is unknown");
    node.process(4200).util = Some(0);
    assert_eq!(node.run("TTTT"), ["", "", "slurm:4100 due terminate", "slurm:4100 terminate"]);
    node.report(Outcome::Cancelled);
    node.process(4200).comm = "Xorg";
    assert_eq!(node.run("TTTT"), [""; 4], "one protected process protects the whole workload");
}

#[test]
fn target_of_a_cancelled_action_comes_after_the_others() {
    let mut node = Node::new(&terminate());
    node.process(4100);
    node.process(4101);
    node.process(4200).uid = Some(1001);
    assert_eq!(node.ticks(4)[3], "4100 terminate");
    node.report(Outcome::Cancelled);
    assert_eq!(node.ticks(2), ["4200 due terminate", "4200 terminate"]);
    node.report(Outcome::Cancelled);
    assert_eq!(
        node.ticks(2),
        ["4100 due terminate", "4100 terminate"],
        "a smaller one of its user does not come first"
    );
}

/// A user can cause that, for example with a process whose CPU time becomes unknown when it exits.
#[test]
fn decisions_that_an_unknown_sample_drops_are_flagged_and_come_last() {
    let mut node = Node::new(&terminate());
    node.process(4200).util = Some(0);
    node.process(4200).uid = Some(1001);
    node.process(4100).mib = Some(9000);
    assert_eq!(node.run("TTT")[2], "4100 due terminate");
    assert_eq!(node.run("U"), ["4200 due terminate"]);
    assert_eq!(node.run("T"), ["4200 terminate"], "the larger one has a decision that was not confirmed");
    node.report(Outcome::Released);
    node.processes.remove(&4200);
    let events = node.run("TUTUT");
    assert_eq!(events, ["4100 due terminate", "", "4100 due terminate", "", "4100 flag, 4100 due terminate"]);
    assert_eq!(node.run("T"), ["4100 terminate"]);
}

/// A user with many workloads could otherwise have one decided upon in each snapshot, and make it busy before the next.
#[test]
fn targets_of_a_user_come_last_after_a_decision_that_a_busy_sample_drops() {
    let mut node = Node::new(&terminate());
    for (pid, uid, mib) in [(4100, 1000, 9000), (4200, 1001, 1000), (4300, 1000, 8000)] {
        let process = node.process(pid);
        (process.uid, process.util, process.mib) = (Some(uid), Some(0), Some(mib));
    }
    assert_eq!(node.run("TTT")[2], "4100 due terminate");
    assert_eq!(node.run("FF"), ["4200 due terminate", "4200 terminate"]);
}

/// A unit or container can have other processes by then.
#[test]
fn target_that_exists_after_its_termination_is_not_exempt() {
    let policy = terminate().replace("target: process", "target: workload");
    let mut node = Node::new(&policy);
    assert_eq!(node.run("TTTT")[3], "slurm:4100 terminate");
    node.report(Outcome::Released);
    assert_eq!(node.run("TTTT"), ["", "", "slurm:4100 due terminate", "slurm:4100 terminate"]);
    let mut with_flag =
        Node::new(&policy.replace("{terminate: {}}", "{terminate: {}}, {after: 1m, flag: critical}"));
    assert_eq!(with_flag.run("TTTT")[3], "slurm:4100 terminate");
    with_flag.report(Outcome::Released);
    assert_eq!(with_flag.run("TTTT")[3], "slurm:4100 terminate", "no later step ends a target");
    let mut once = Node::new(&policy.replace("{terminate: {}}", "{signal: USR1}"));
    assert_eq!(once.run("TTTT")[3], "slurm:4100 signal");
    once.report(Outcome::Done);
    assert_eq!(once.run("TTTT"), [""; 4], "a signal is sent once in a match");
}

/// Otherwise a user could delay all actions, by ending each target while the attempt against it takes long.
#[test]
fn targets_of_a_user_come_after_the_others_if_one_exited_during_an_attempt() {
    let mut node = Node::new(&terminate());
    node.process(4100).mib = Some(9000);
    node.process(4101).mib = Some(8000);
    node.process(4200).uid = Some(1001);
    assert_eq!(node.ticks(4)[3], "4100 terminate");
    node.processes.remove(&4100);
    assert_eq!(node.tick(), "");
    node.report(Outcome::Reprieved);
    assert_eq!(node.ticks(2), ["4200 due terminate", "4200 terminate"]);
    node.report(Outcome::Released);
    node.processes.remove(&4200);
    node.wait(600_000);
    node.process(4202).uid = Some(1001);
    assert_eq!(node.ticks(4)[3], "4101 terminate", "after ten minutes, the larger one comes first again");
}

#[test]
fn only_one_request_is_in_flight() {
    let mut node = Node::new(&terminate());
    node.process(4100);
    node.process(4200);
    assert_eq!(node.ticks(6), ["", "", "4100 due terminate", "4100 terminate", "", ""]);
    node.report(Outcome::Released);
    node.processes.remove(&4100);
    assert_eq!(node.ticks(2), ["4200 due terminate", "4200 terminate"]);
}

#[test]
fn dry_run_reports_actions_and_uses_no_budget() {
    let policy = terminate()
        .replace("mode: enforce", "mode: dry-run")
        .replace("per_node_hour: 100", "per_node_hour: 1");
    let mut node = Node::new(&policy);
    node.process(4100);
    node.process(4200);
    assert_eq!(node.ticks(4), ["", "", "4100 due terminate", "4100 would terminate"]);
    node.report(Outcome::DryRun);
    assert_eq!(
        node.ticks(2),
        ["4200 due terminate", "4200 would terminate"],
        "a dry run does not use the budget"
    );
}

#[test]
fn actions_stay_within_the_budget() {
    let limits = [
        ("per_node_hour", "node_budget", 1001, 1),
        ("per_user_hour", "user_budget", 1000, 1),
        ("per_gpu_hour", "gpu_budget", 1001, 0),
    ];
    for (limit, hold, uid, gpu) in limits {
        let policy = terminate().replace(&format!("{limit}: 100"), &format!("{limit}: 1"));
        let mut node = Node::new(&policy);
        node.run("TTTT");
        node.report(Outcome::Released);
        node.processes.remove(&4100);
        node.process(4200).uid = Some(uid);
        node.process(4200).gpus = vec![gpu];
        let withheld = format!("4200 withheld terminate: {hold}");
        assert_eq!(node.ticks(5), ["", "", &withheld, "", ""], "reported once");
        node.restart();
        let events = node.ticks(6);
        assert!(events.contains(&withheld) && !events.contains(&"4200 terminate".to_owned()), "{events:?}");
        node.wait(3_600_000);
        assert_eq!(
            node.ticks(4),
            ["", "", "4200 due terminate", "4200 terminate"],
            "the budget is available again after an hour"
        );
    }
}

#[test]
fn small_targets_do_not_use_up_the_budget_for_a_large_one() {
    for (limit, hold) in
        [("per_user_hour", "user_budget"), ("per_gpu_hour", "gpu_budget"), ("per_node_hour", "node_budget")]
    {
        let mut node = Node::new(&terminate().replace(&format!("{limit}: 100"), &format!("{limit}: 3")));
        for small in [4100, 4101, 4102] {
            node.process(small).mib = Some(513);
            assert!(node.ticks(4).concat().ends_with(&format!("{small} terminate")));
            node.report(Outcome::Released);
            node.processes.remove(&small);
        }
        node.process(4200).mib = Some(1539);
        assert!(node.ticks(4).concat().ends_with(&format!("4200 withheld terminate: {hold}")), "not more");
        node.process(4300).mib = Some(70_000);
        assert!(node.ticks(4).concat().ends_with("4300 terminate"), "{limit}");
        node.report(Outcome::Released);
        node.processes.remove(&4300);
        node.process(4400).mib = Some(71_539);
        assert!(node.ticks(4).concat().ends_with(&format!("4400 withheld terminate: {hold}")), "{limit}");
        node.process(4500).mib = None;
        assert!(node.ticks(4).concat().ends_with(&format!("4500 withheld terminate: {hold}")), "unknown");
    }
}

#[test]
fn small_targets_of_two_users_do_not_shield_a_large_one() {
    let limits = "per_user_hour: 2, per_node_hour: 4";
    let mut node = Node::new(&terminate().replace("per_user_hour: 100, per_node_hour: 100", limits));
    // The third action against a user counts neither for the node nor against the large target.
    for (small, mib) in [(4100, 100), (4101, 100), (4102, 201), (4103, 100), (4104, 100)] {
        let process = node.process(small);
        (process.mib, process.uid) = (Some(mib), Some(if small > 4102 { 1001 } else { 1000 }));
        assert!(node.ticks(4).concat().ends_with(&format!("{small} terminate")), "{small}");
        node.report(Outcome::Released);
        node.processes.remove(&small);
    }
    let process = node.process(4200);
    (process.mib, process.uid) = (Some(501), Some(1002));
    assert!(node.ticks(4).concat().ends_with("4200 withheld terminate: node_budget"), "not more");
    let process = node.process(4300);
    (process.mib, process.uid) = (Some(70_000), Some(1002));
    assert!(node.ticks(4).concat().ends_with("4300 terminate"));
}

#[test]
fn memory_that_was_not_freed_does_not_count_against_a_large_target() {
    let mut node = Node::new(&terminate().replace("per_user_hour: 100", "per_user_hour: 1"));
    node.process(4100).mib = Some(70_000);
    node.ticks(4);
    node.report(Outcome::GoneNotReleased);
    node.process(4200).mib = Some(60_000);
    assert!(node.ticks(4).concat().ends_with("4200 terminate"));
}

#[test]
fn one_user_uses_at_most_the_users_share_of_the_nodes_budget() {
    let limits = "per_user_hour: 2, per_node_hour: 3";
    let mut node = Node::new(&terminate().replace("per_user_hour: 100, per_node_hour: 100", limits));
    for (place, mib) in (0..).zip([100, 200, 400, 800]) {
        node.process(4100 + place).mib = Some(mib);
        assert!(node.ticks(4).concat().ends_with(&format!("{} terminate", 4100 + place)), "{mib}");
        node.report(Outcome::Released);
        node.processes.remove(&(4100 + place));
    }
    node.process(4200).uid = Some(1001);
    assert!(node.ticks(4).concat().ends_with("4200 terminate"));
    node.report(Outcome::Released);
    node.processes.remove(&4200);
    node.process(4300).uid = Some(1002);
    assert!(node.ticks(4).concat().ends_with("4300 withheld terminate: node_budget"));
}

#[test]
fn largest_target_comes_first() {
    let mut node = Node::new(&terminate());
    for (pid, mib) in [(4100, Some(600)), (4200, None), (4300, Some(70_000))] {
        node.process(pid).mib = mib;
    }
    assert_eq!(node.ticks(4)[2..], ["4300 due terminate", "4300 terminate"]);
}

#[test]
fn action_not_done_uses_no_budget() {
    let policy =
        rule("    cooldown: 1m", "[{terminate: {}}]").replace("per_node_hour: 100", "per_node_hour: 1");
    let mut node = Node::new(&policy);
    node.run("TTTT");
    node.report(Outcome::Refused);
    assert_eq!(
        node.run("TT"),
        ["4100 withheld terminate: cooldown", ""],
        "the action is not retried at once"
    );
    node.process(4200);
    assert_eq!(node.ticks(4), ["", "", "4200 due terminate", "4200 terminate"]);
}

#[test]
fn next_action_on_the_same_target_waits() {
    let policy = rule("    cooldown: 1m", "[{signal: SIGUSR1}]");
    let mut node = Node::new(&policy);
    assert_eq!(node.run("TTTT"), ["", "", "4100 due signal", "4100 signal"]);
    node.report(Outcome::Done);
    assert_eq!(node.run("FTTT"), ["4100 reprieved", "", "", "4100 withheld signal: cooldown"]);
    assert_eq!(node.run("TTTTTTT"), [""; 7], "the step stays due");
    assert_eq!(node.run("TT"), ["4100 due signal", "4100 signal"], "the cooldown ends after a minute");
}

/// One refusal, which a user may have caused, does not exempt the target from its rule.
#[test]
fn refused_action_is_tried_again_after_the_cooldown() {
    for outcome in [Outcome::Refused, Outcome::IdentityChanged] {
        let steps = "[{signal: SIGUSR1}, {terminate: {}}]";
        let mut node = Node::new(&rule("    cooldown: 1m", steps));
        assert_eq!(node.run("TTTT")[3], "4100 signal");
        node.report(Outcome::Done);
        assert_eq!(node.run("TT"), ["4100 due terminate", "4100 terminate"]);
        for _ in 0..3 {
            node.report(outcome);
            assert_eq!(node.run("T"), ["4100 withheld terminate: cooldown"], "{outcome:?}");
            assert_eq!(node.run("TTTTTTTTTT"), [""; 10], "{outcome:?}");
            assert_eq!(node.run("TT"), ["4100 due terminate", "4100 terminate"], "{outcome:?}");
        }
        node.report(Outcome::Failed);
        assert_eq!(node.run("T"), ["4100 withheld terminate: failed"]);
        node.wait(600_000);
        assert!(!node.run("TTTTTTTT").contains(&"4100 terminate".to_owned()));
    }
    // A job that the step can never cancel is not tried again.
    for outcome in [Outcome::SpansNodes, Outcome::NotVisible] {
        let mut node = Node::new(&terminate());
        node.run("TTTT");
        node.report(outcome);
        assert_eq!(node.run("T"), ["4100 withheld terminate: failed"]);
    }
}

#[test]
fn terminate_that_requires_a_notice_waits_for_delivery() {
    let steps = "[{notify: [owner]}, {after: {samples: 2}, terminate: {requires_notice: true}}]";
    let mut node = Node::new(&rule("", steps));
    assert_eq!(node.run("TTT"), ["", "", "4100 notify owner"]);
    assert_eq!(node.run("TT"), ["", "4100 withheld terminate: undelivered"]);
    assert_eq!(
        node.run("T".repeat(12).as_str()).concat(),
        "4100 notify owner",
        "the notification is repeated after a minute"
    );
    node.engine.delivered("idle", &TargetId("process:4200@100".into()));
    assert_eq!(node.run("T"), [""], "the delivery was for another target");
    node.engine.delivered("idle", &TargetId("process:4100@100".into()));
    assert_eq!(node.run("TT"), ["4100 due terminate", "4100 terminate"]);
}

#[test]
fn notice_of_an_earlier_match_does_not_count() {
    let steps = "[{notify: [owner]}, {after: {samples: 2}, terminate: {requires_notice: true}}]";
    let mut node = Node::new(&rule("", steps));
    node.run("TTT");
    node.engine.delivered("idle", &TargetId("process:4100@100".into()));
    node.run("F");
    assert_eq!(node.run("TTTTT")[4], "4100 withheld terminate: undelivered");
    node.restart();
    assert!(node.run("TTTTTTTT").concat().contains("undelivered"));
}

#[test]
fn signal_before_such_a_terminate_also_waits() {
    let steps = "[{notify: [owner]}, {after: {samples: 1}, signal: USR1}, {after: {samples: 2}, terminate: {requires_notice: true}}]";
    let mut node = Node::new(&rule("", steps));
    assert_eq!(node.run("TTTT"), ["", "", "4100 notify owner", "4100 withheld signal: undelivered"]);
    node.engine.delivered("idle", &TargetId("process:4100@100".into()));
    assert_eq!(node.run("TT"), ["4100 due signal", "4100 signal"]);
}

/// Creates workloads with one process each, with these utilizations.
fn workloads(node: &mut Node, utilization: &[Option<u32>]) {
    for (place, util) in (0..).zip(utilization) {
        node.process(4100 + place * 100).util = *util;
    }
}

#[test]
fn matching_most_workloads_opens_the_mass_breaker() {
    let mut node = Node::new(&terminate());
    workloads(&mut node, &[Some(0); 4]);
    let each = |pid: u32| format!("{pid} withheld terminate: mass_breaker");
    let held = [4100, 4200, 4300, 4400].map(each).join(", ");
    assert_eq!(node.ticks(3), ["", "", &held]);
    node.processes.remove(&4200);
    assert_eq!(node.ticks(3), ["", "", ""], "only an administrator can close the breaker");
    node.engine.resume();
    assert_eq!(node.ticks(2), ["4100 due terminate", "4100 terminate"]);
}

#[test]
fn idle_workloads_of_one_user_do_not_open_the_mass_breaker() {
    let mut node = Node::new(&terminate());
    workloads(&mut node, &[Some(0); 10]);
    node.process(5100).uid = Some(1001);
    node.process(5100).util = None;
    assert_eq!(node.ticks(4)[2..], ["4100 due terminate", "4100 terminate"]);
    let opens = |change: fn(&mut Node)| {
        let mut node = Node::new(&terminate());
        workloads(&mut node, &[Some(0); 20]);
        change(&mut node);
        node.ticks(3).concat().contains("mass_breaker")
    };
    assert!(opens(|_| {}), "the node has only one user");
    assert!(opens(|node| node.process(4100).uid = Some(1001)), "two users match");
    let third = |node: &mut Node| (node.process(7100).uid, node.process(7100).util) = (Some(1002), None);
    assert!(!opens(third), "another user does not match");
    assert!(
        opens(|node| {
            node.process(4100).uid = Some(1001);
            (node.process(7100).uid, node.process(7100).util) = (Some(1002), None);
        }),
        "two of three users match"
    );
    let display = |node: &mut Node| {
        (node.process(7100).uid, node.process(7100).comm) = (Some(998), "Xorg");
    };
    assert!(opens(display), "the owner of a protected workload does not count");
}

#[test]
fn two_idle_workloads_of_four_do_not_open_the_mass_breaker() {
    for others in [Some(80), None] {
        let mut node = Node::new(&terminate());
        workloads(&mut node, &[Some(0), Some(0), others, others]);
        assert_eq!(node.ticks(4), ["", "", "4100 due terminate", "4100 terminate"], "{others:?}");
    }
}

#[test]
fn mass_share_and_minimum_come_from_the_file() {
    let policy = |limits| terminate().replace("per_node_hour: 100", limits);
    let mut node = Node::new(&policy("per_node_hour: 100, mass_share: 50%, mass_min: 3"));
    workloads(&mut node, &[Some(0), None, None]);
    assert_eq!(
        node.ticks(4),
        ["", "", "4100 due terminate", "4100 terminate"],
        "a third of the workloads matches"
    );
    let mut node = Node::new(&policy("per_node_hour: 100, mass_share: 50%, mass_min: 3"));
    workloads(&mut node, &[Some(0), Some(0), None]);
    assert!(node.ticks(3).concat().contains("4100 withheld terminate: mass_breaker"));
    let mut node = Node::new(&policy("per_node_hour: 100, mass_min: 5"));
    workloads(&mut node, &[Some(0); 4]);
    assert_eq!(node.ticks(3), ["", "", "4100 due terminate"], "four workloads are too few");
}

#[test]
fn mass_breaker_stays_closed_while_another_workload_is_observed_busy() {
    let policy = terminate().replace("per_node_hour: 100", "per_node_hour: 100, mass_share: 50%");
    let with = |other, then| {
        let mut node = Node::new(&policy);
        workloads(&mut node, &[Some(0), Some(0), other, None]);
        node.tick();
        node.process(4300).util = then;
        node.ticks(2).concat().contains("mass_breaker")
    };
    assert!(!with(Some(80), Some(80)));
    assert!(!with(Some(80), None), "a workload was busy while the others were observed idle");
    assert!(with(None, None), "there is no evidence that the driver distinguishes busy from idle");
    let mut node = Node::new(&policy);
    workloads(&mut node, &[None, None, Some(80), None]);
    node.tick();
    workloads(&mut node, &[Some(0), Some(0), None, None]);
    let events = node.ticks(4).concat();
    assert!(
        events.contains("mass_breaker"),
        "the workload was busy before the others were observed idle: {events}"
    );
}

/// Makes three actions in a row against a user fail.
fn fail(node: &mut Node, uid: u32) {
    for pid in [uid * 10, uid * 10 + 1, uid * 10 + 2] {
        node.process(pid).uid = Some(uid);
        let events = node.ticks(4).concat();
        assert!(events.ends_with(&format!("{pid} terminate")), "{events}");
        node.report(Outcome::GoneNotReleased);
        node.processes.remove(&pid);
        assert_eq!(node.tick(), "");
    }
}

#[test]
fn failures_of_one_user_hold_only_that_user() {
    let mut node = Node::new(&terminate());
    fail(&mut node, 1000);
    node.process(4100);
    assert_eq!(node.ticks(4), ["", "", "4100 withheld terminate: user_failure_breaker", ""]);
    node.restart();
    let events = node.ticks(6);
    assert!(events.contains(&"4100 withheld terminate: user_failure_breaker".to_owned()), "{events:?}");
    node.process(4200).uid = Some(1001);
    assert_eq!(node.ticks(4), ["", "", "4200 due terminate", "4200 terminate"]);
    node.report(Outcome::Released);
    node.processes.remove(&4200);
    node.engine.resume();
    assert_eq!(node.ticks(2), ["4100 due terminate", "4100 terminate"]);
}

#[test]
fn failures_of_two_users_hold_the_node() {
    let mut node = Node::new(&terminate());
    fail(&mut node, 1000);
    fail(&mut node, 1001);
    node.process(4100).uid = Some(1002);
    assert_eq!(node.ticks(4), ["", "", "4100 withheld terminate: failure_breaker", ""]);
    node.engine.resume();
    assert_eq!(node.ticks(2), ["4100 due terminate", "4100 terminate"]);
}

#[test]
fn subordinate_uids_count_as_one_user() {
    let mut node = Node::new(&terminate());
    node.engine.set_subordinate(SubordinateUids::parse("alice:100000:65536", |_| Some(1001)));
    fail(&mut node, 100_000);
    for (pid, uid) in [(4200, 100_001), (4300, 1001)] {
        node.process(pid).uid = Some(uid);
        let withheld = format!("{pid} withheld terminate: user_failure_breaker");
        assert_eq!(node.ticks(4), ["", "", withheld.as_str(), ""]);
        node.processes.remove(&pid);
        assert_eq!(node.tick(), "");
    }
    node.process(4100).uid = Some(1002);
    assert_eq!(node.ticks(4), ["", "", "4100 due terminate", "4100 terminate"], "the node is not held");
}

#[test]
fn failures_separated_by_a_success_hold_nothing() {
    let mut node = Node::new(&terminate());
    for (pid, outcome) in (4100..).zip([
        Outcome::Unkillable,
        Outcome::Unkillable,
        Outcome::Released,
        Outcome::Unkillable,
        Outcome::Unkillable,
    ]) {
        node.process(pid);
        assert_eq!(node.ticks(4)[3], format!("{pid} terminate"));
        node.report(outcome);
        node.processes.remove(&pid);
    }
    node.process(4200);
    assert_eq!(node.ticks(4)[3], "4200 terminate");
}

#[test]
fn failure_breaker_closes_after_the_last_failure() {
    let policy = terminate().replace("per_node_hour: 100", "per_node_hour: 100, breaker_reset: 10m");
    let mut node = Node::new(&policy);
    fail(&mut node, 1000);
    node.process(4100);
    node.wait(500_000);
    assert_eq!(node.ticks(4), ["", "", "4100 withheld terminate: user_failure_breaker", ""]);
    node.wait(100_000);
    assert_eq!(node.ticks(4), ["", "", "4100 due terminate", "4100 terminate"]);
}

#[test]
fn too_many_unknown_targets_open_the_breaker() {
    let mut node = Node::new(&terminate());
    for pid in [4200, 4300, 4400, 4500] {
        node.process(pid).util = None;
    }
    assert_eq!(node.ticks(10), [""; 10]);
    assert_eq!(node.run("TTT"), ["", "", "4100 withheld terminate: unknown_breaker"]);
    for pid in [4200, 4300, 4400, 4500] {
        node.process(pid).util = Some(90);
    }
    assert_eq!(node.run("T"), [""]);
    node.engine.resume();
    assert_eq!(
        node.run("TT"),
        ["4100 due terminate", "4100 terminate"],
        "an administrator closes the breaker"
    );
}

#[test]
fn unknown_targets_of_one_user_do_not_open_the_breaker_for_others() {
    for (uids, opens) in [([1000; 4], true), ([1001; 4], false), ([1001, 1001, 1001, 1002], true)] {
        let mut node = Node::new(&terminate());
        node.process(4100).util = Some(90);
        for (pid, uid) in [4200, 4300, 4400, 4500].into_iter().zip(uids) {
            (node.process(pid).util, node.process(pid).uid) = (None, Some(uid));
        }
        node.ticks(10);
        let events = node.run("TTTT").concat();
        assert_eq!(events.contains("unknown_breaker"), opens, "{uids:?}: {events}");
        assert_eq!(events.contains("4100 terminate"), !opens, "{uids:?}: {events}");
    }
}

#[test]
fn unknown_breaker_closes_after_clean_time() {
    let policy = terminate().replace("per_node_hour: 100", "per_node_hour: 100, breaker_reset: 1m");
    let mut node = Node::new(&policy);
    for pid in [4200, 4300, 4400, 4500] {
        node.process(pid).util = None;
    }
    node.ticks(10);
    assert_eq!(node.run("TTT")[2], "4100 withheld terminate: unknown_breaker");
    for pid in [4200, 4300, 4400, 4500] {
        node.process(pid).util = Some(90);
    }
    assert_eq!(node.run("TTTTTT"), [""; 6]);
    node.wait(300_000);
    let events = node.run("TTTTTTTTTTTT").concat();
    assert_eq!(
        events, "4100 withheld terminate: unknown_breaker",
        "time without samples does not count as time without failures"
    );
    assert_eq!(node.run("TT"), ["4100 due terminate", "4100 terminate"]);
}

/// The breaker opens if a GPU does not respond in 20 consecutive samples soon after an action, and only an administrator
/// closes it.
#[test]
fn hang_of_the_driver_after_an_action_stops_all_actions() {
    let cases = [
        ("after an action", Some(Outcome::Released), 0, 20, true),
        ("while it is being carried out", None, 0, 20, true),
        ("one late response of all GPUs", Some(Outcome::Released), 0, 19, false),
        ("long after it", Some(Outcome::Released), 120_000, 20, false),
        ("after an action that did nothing", Some(Outcome::Refused), 0, 20, false),
    ];
    for (name, outcome, later, hung, opens) in cases {
        let mut node =
            Node::new(&terminate().replace("per_node_hour: 100", "per_node_hour: 100, breaker_reset: 1m"));
        assert_eq!(node.run("TTTT")[3], "4100 terminate", "{name}");
        if let Some(outcome) = outcome {
            node.report(outcome);
            node.tick();
        }
        node.wait(later);
        node.gpus[1].fault = Some("timeout");
        for _ in 0..hung {
            node.tick();
        }
        node.gpus[1].fault = None;
        if node.engine.in_flight().is_some() {
            node.report(Outcome::Released);
        }
        node.processes.clear();
        node.process(4200);
        for _ in 0..3 {
            node.wait(600_000);
            node.tick();
        }
        let events = node.ticks(4).concat();
        assert_eq!(events.contains("driver_hang_breaker"), opens, "{name}: {events}");
        assert_eq!(events.contains("4200 terminate"), !opens, "{name}: {events}");
        if opens {
            node.engine.resume();
            assert_eq!(node.ticks(2), ["4200 due terminate", "4200 terminate"], "{name}");
        }
    }
}

#[test]
fn processes_younger_than_two_intervals_are_not_unknown() {
    for (age, opens) in [(9_000, false), (10_000, true)] {
        let mut node = Node::new(&terminate());
        node.process(4100).util = Some(90);
        for round in 0..12 {
            node.processes.retain(|pid, _| *pid == 4100);
            for place in 0..24 {
                let ticks = (node.boot_ms + TICK - age) / 10;
                let process = node.process(5000 + round * 100 + place);
                (process.ticks, process.util) = (ticks, None);
            }
            assert_eq!(node.tick(), "");
        }
        let events = node.run("TTTT").concat();
        assert_eq!(events.contains("unknown_breaker"), opens, "{age} ms old: {events}");
        assert_eq!(events.contains("4100 terminate"), !opens, "{age} ms old: {events}");
    }
}

#[test]
fn target_that_survived_is_not_retried() {
    let mut node = Node::new(&terminate());
    node.run("TTTT");
    node.report(Outcome::Unkillable);
    assert_eq!(node.run("TTT"), ["4100 withheld terminate: failed", "", ""]);
    assert_eq!(
        node.run("FTTTT"),
        ["", "", "", "4100 withheld terminate: failed", ""],
        "the action is not retried in another match"
    );
    node.restart();
    let events = node.run("TTTTT");
    assert_eq!(events.last().unwrap(), "", "the action is not retried after a restart: {events:?}");
    assert!(events.contains(&"4100 withheld terminate: failed".to_owned()), "{events:?}");
    node.engine.resume();
    node.run("F");
    assert_eq!(
        node.run("TTTT"),
        ["", "", "4100 due terminate", "4100 terminate"],
        "an administrator can allow a retry"
    );
}

#[test]
fn held_action_stays_due() {
    type Change = fn(&mut Node);
    let cases: [(&str, Change, Change); 4] = [
        ("paused", |node| assert_eq!(node.pause(), None), |node| node.engine.resume()),
        (
            "audit",
            |node| node.engine.hold(Hold::Audit, Holds::Yes),
            |node| node.engine.hold(Hold::Audit, Holds::No),
        ),
        (
            "invalid_file",
            |node| node.engine.hold(Hold::InvalidFile, Holds::Yes),
            |node| node.engine.hold(Hold::InvalidFile, Holds::No),
        ),
        ("untrusted", |node| node.namespace = "other", |node| node.namespace = "host"),
    ];
    for (hold, begin, end) in cases {
        let mut node = Node::new(&terminate());
        begin(&mut node);
        let withheld = format!("4100 withheld terminate: {hold}");
        assert_eq!(node.run("TTTTT"), ["", "", &withheld, "", ""], "reported once");
        end(&mut node);
        assert_eq!(node.run("T"), ["4100 due terminate"], "{hold}");
        begin(&mut node);
        assert_eq!(node.run("T"), [withheld], "a decided action is held as well");
    }
}

#[test]
fn pause_cancels_the_request_in_flight() {
    let mut node = Node::new(&terminate());
    node.run("TTTT");
    assert_eq!(node.pause(), node.requests.last().copied());
}

#[test]
fn state_of_another_interval_is_ignored() {
    let mut node = Node::new(&terminate().replace("version: 1", "version: 1\ninterval: 15s"));
    assert_eq!(node.run("TTTT"), ["", "", "4100 withheld terminate: other_interval", ""]);
}

#[test]
fn first_three_snapshots_start_no_action() {
    let mut node = Node::fresh(&terminate());
    let events = node.run("TTTTT");
    assert_eq!(events, ["", "", "4100 withheld terminate: started", "4100 due terminate", "4100 terminate"]);
}

#[test]
fn reload_keeps_streaks_of_unchanged_rules() {
    let mut node = Node::new(&notifying());
    assert_eq!(node.run("TT"), ["", ""]);
    assert_eq!(node.reload(&notifying().replace("name: idle", "name: renamed")), None);
    assert_eq!(node.run("T"), ["4100 notify owner"]);
    assert_eq!(node.run("TTTT"), ["", "4100 due terminate", "4100 terminate", ""]);
}

#[test]
fn reload_holds_actions_for_two_snapshots() {
    let mut node = Node::new(&terminate());
    assert_eq!(node.run("TTT"), ["", "", "4100 due terminate"]);
    node.reload(&terminate());
    let events = node.run("TTTT");
    assert_eq!(events, ["4100 withheld terminate: reloaded", "", "4100 due terminate", "4100 terminate"]);
}

#[test]
fn reload_resets_streaks_of_changed_rules() {
    let mut node = Node::new(&flag());
    node.run("TT");
    node.reload(&flag().replace("max: 1%", "max: 2%"));
    assert_eq!(node.run("TTT"), ["", "", "4100 flag"]);
    let watching = terminate().replace("mode: enforce", "mode: dry-run");
    let mut node = Node::new(&watching);
    node.run("TT");
    node.reload(&terminate());
    let events = node.run("TTTT");
    assert_eq!(
        events,
        ["", "", "4100 due terminate", "4100 terminate"],
        "samples from the dry run do not count"
    );
}

#[test]
fn wall_clock_step_ends_no_pause() {
    let mut node = Node::new(&terminate());
    node.run("FFT");
    node.pause_for(Duration::from_millis(TICK * 4));
    node.wall_offset += 3_600_000;
    assert_eq!(node.run("TTT"), ["", "4100 withheld terminate: paused", ""]);
    assert_eq!(node.run("TT"), ["4100 due terminate", "4100 terminate"]);
}

#[test]
fn wall_clock_step_before_the_first_snapshot_ends_no_pause() {
    let mut node = Node::fresh(&terminate());
    node.engine.booted(Some(node.boot.to_owned()));
    node.pause_for(Duration::from_millis(TICK * 7));
    node.wall_offset += 3_600_000;
    assert_eq!(node.run("FFTTT")[4], "4100 withheld terminate: paused");
    assert_eq!(node.run("TTT"), ["", "4100 due terminate", "4100 terminate"]);
}

#[test]
fn slow_disk_delays_actions() {
    let mut node = Node::new(&terminate());
    assert_eq!(node.run("FFTTT")[4], "4100 due terminate");
    node.engine.hold(Hold::State, Holds::Yes);
    assert_eq!(node.run("TT"), ["4100 withheld terminate: state", ""]);
    node.engine.hold(Hold::State, Holds::No);
    assert_eq!(node.run("T"), ["4100 terminate"], "the decision is still valid");
    let mut node = Node::new(&terminate());
    node.run("FFTTT");
    node.engine.hold(Hold::State, Holds::Yes);
    assert_eq!(node.run("TF"), ["4100 withheld terminate: state", ""]);
    node.engine.hold(Hold::State, Holds::No);
    assert_eq!(node.run("TTT"), ["", "", "4100 due terminate"], "the decision ended with its match");
    let mut node = Node::new(&terminate());
    node.run("FFTTT");
    node.engine.hold(Hold::State, Holds::Yes);
    node.engine.hold(Hold::Audit, Holds::Yes);
    node.run("T");
    node.engine.hold(Hold::State, Holds::No);
    node.engine.hold(Hold::Audit, Holds::No);
    assert_eq!(
        node.run("TT"),
        ["4100 due terminate", "4100 terminate"],
        "the decision is not kept if another hold applies"
    );
    let mut node = Node::new(&terminate());
    node.run("FFTTT");
    node.engine.hold(Hold::State, Holds::Yes);
    let ticks = usize::try_from(60_000 / TICK).unwrap() + 1;
    node.ticks(ticks);
    node.engine.hold(Hold::State, Holds::No);
    assert_eq!(node.run("TT"), ["4100 due terminate", "4100 terminate"], "an old decision is made again");
}

#[test]
fn reload_keeps_the_boot_id() {
    let mut node = Node::fresh(&terminate());
    node.engine.booted(Some(node.boot.to_owned()));
    node.reload(&terminate().replace("max: 1%", "max: 2%"));
    node.pause_for(Duration::from_millis(TICK * 7));
    node.wall_offset += 3_600_000;
    assert_eq!(node.run("FFTTT")[4], "4100 withheld terminate: paused");
}

#[test]
fn sample_before_the_decision_confirms_nothing() {
    let mut node = Node::new(&terminate());
    node.run("FFTT");
    // Two snapshots were queued. The second was taken before the first was evaluated.
    node.boot_ms += TICK;
    assert_eq!(node.feed(TICK * 3 / 2).unwrap(), "4100 due terminate");
    node.boot_ms += TICK;
    assert_eq!(node.feed(TICK / 2).unwrap(), "");
    assert_eq!(node.run("T"), ["4100 terminate"]);
}

#[test]
fn reload_cancels_the_action_in_flight() {
    // Even unchanged actions are cancelled and decided again under the new file, which may exempt their target.
    let other = terminate().replace("max: 1%", "max: 2%");
    let watching = terminate().replace("mode: enforce", "mode: dry-run");
    for next in [other, watching, terminate()] {
        let mut node = Node::new(&terminate());
        node.run("TTTT");
        assert_eq!(node.reload(&next), node.requests.last().copied());
    }
    let mut node = Node::new(&terminate());
    node.run("TTTT");
    node.reload(&terminate());
    assert_eq!(node.run("TTTT"), [""; 4], "no action starts before the cancelled action has ended");
    node.report(Outcome::Cancelled);
    assert_eq!(node.run("TT"), ["4100 due terminate", "4100 terminate"]);
}

#[test]
fn restart_counts_as_a_gap() {
    let mut node = Node::new(&terminate());
    node.run("TT");
    node.restart();
    assert_eq!(node.run(".TTTT")[0], "4100 withheld terminate: started", "one missed tick is allowed");
    let mut node = Node::new(&flag());
    node.run("TT");
    node.restart();
    assert_eq!(node.run("..TTT"), ["", "", "4100 flag"], "two missed ticks are too many");
    let mut node = Node::new(&flag());
    node.run("TT");
    node.restart();
    node.restart();
    assert_eq!(node.run("T"), ["4100 flag"], "two restarts in a row keep the streak");
}

#[test]
fn state_of_another_boot_is_ignored() {
    let mut node = Node::new(&flag());
    node.run("TT");
    node.restart();
    node.boot = "boot-2";
    assert_eq!(node.run("TTT"), ["", "", "4100 flag"]);
}

#[test]
fn request_interrupted_by_a_restart_starts_over() {
    let policy = rule("    cooldown: 1h", "[{notify: [owner]}, {terminate: {}}]");
    let mut node = Node::new(&policy);
    assert_eq!(node.run("TTTT")[3], "4100 terminate");
    node.restart();
    let events = node.run("TTTTT");
    assert_eq!(events, ["4100 withheld terminate: started", "", "", "4100 due terminate", "4100 terminate"]);
    assert_eq!(node.requests.len(), 2);
    assert!(node.requests[0] < node.requests[1], "the new action has a new id");
}

/// Returns a policy that keeps 8,000 MiB of a GPU free.
fn picking(more: &str) -> String {
    format!(
        "version: 1
defaults: {{max_gap: 1, startup_grace: 0s, clear_after: 2, cooldown: 0s}}
limits: {{per_gpu_hour: 100, per_user_hour: 100, per_node_hour: 100}}
notify: {{owner: {{tty: true}}}}
rules:
  - name: keep-free
    mode: enforce
    target: gpu
    when: {{vram_free: {{below: 8000MiB}}}}
    for: {{samples: 2}}
    pick: {{from: {{gpu_util: {{max: 1%}}}}, idle_for: {{samples: 3}}, order: [smallest_sufficient]}}
{more}
    then: [{{notify: [owner]}}, {{after: {{samples: 1}}, terminate: {{}}}}]
"
    )
}

/// Returns a node on which GPU 0 lacks 7,000 MiB and GPU 1 lacks nothing.
fn crowded(sizes: &[(u32, u64)]) -> Node {
    let mut node = Node::new(&picking(""));
    node.gpus[1].free_mib = 70_000;
    for (pid, mib) in sizes {
        node.process(*pid).mib = Some(*mib);
    }
    node
}

#[test]
fn smallest_sufficient_holder_is_picked_and_notified_first() {
    let mut node = crowded(&[(4100, 9000), (4200, 7000), (4300, 500), (4400, 30_000)]);
    let events = node.ticks(5);
    assert_eq!(
        events,
        ["", "", "slurm:4200 notify owner", "slurm:4200 due terminate", "slurm:4200 terminate"]
    );
    let mut node = crowded(&[(4100, 900), (4200, 700)]);
    assert_eq!(
        node.ticks(3),
        ["", "", "slurm:4100 notify owner"],
        "the largest holder is picked if no single holder is enough"
    );
}

#[test]
fn busy_holders_and_other_gpus_are_not_picked() {
    let mut node = crowded(&[(4100, 7000), (4200, 8000), (4300, 9000)]);
    node.process(4100).util = Some(50);
    node.process(4200).gpus = vec![1];
    assert_eq!(node.ticks(3), ["", "", "slurm:4300 notify owner"]);
    node.process(4300).util = Some(50);
    assert_eq!(node.tick(), "slurm:4300 reprieved");
    node.process(4100).util = Some(0);
    let events = node.ticks(5);
    assert_eq!(
        events,
        ["", "", "slurm:4100 notify owner", "slurm:4100 due terminate", "slurm:4100 terminate"],
        "the holder must be idle for long enough and notified first"
    );
}

#[test]
fn gpu_with_free_memory_again_cancels_the_pick() {
    let mut node = crowded(&[(4100, 9000)]);
    assert_eq!(node.ticks(4)[3], "slurm:4100 due terminate");
    node.gpus[0].free_mib = 9000;
    assert_eq!(node.ticks(3), ["slurm:4100 reprieved", "", ""]);
}

#[test]
fn picked_holder_that_left_the_gpu_is_released() {
    let mut node = crowded(&[(4100, 9000)]);
    assert_eq!(node.ticks(4)[3], "slurm:4100 due terminate");
    node.process(4100).gpus = vec![1];
    assert_eq!(node.ticks(3), ["slurm:4100 reprieved", "", ""]);
}

#[test]
fn next_holder_is_picked_only_if_still_needed() {
    let mut node = crowded(&[(4100, 5000), (4200, 4000)]);
    assert_eq!(node.ticks(5)[4], "slurm:4100 terminate");
    node.report(Outcome::Released);
    node.processes.remove(&4100);
    node.gpus[0].free_mib = 6000;
    assert_eq!(
        node.ticks(3),
        ["slurm:4200 notify owner", "slurm:4200 due terminate", "slurm:4200 terminate"]
    );
}

/// Returns a policy that picks, with a flag, a notification and six more samples before the termination, and a
/// node with a workload of 9,000 MiB.
fn flagging() -> (String, Node) {
    let policy = picking("").replace("[{notify: [owner]}, {after: {samples: 1}", STEPS);
    let mut node = Node::new(&policy);
    node.gpus[1].free_mib = 70_000;
    node.process(4100).mib = Some(9000);
    (policy, node)
}

const STEPS: &str = "[{flag: warning}, {notify: [owner]}, {after: {samples: 6}";
const OTHER: &str =
    "rules:\n  - {name: other, target: process, when: {gpu_util: {max: 3%}}, for: 1h, then: [{flag: info}]}";

#[test]
fn pick_state_survives_reload_and_restart() {
    let went_on = [
        ("another rule", Some(("rules:", OTHER))),
        ("other limits", Some(("per_user_hour: 100", "per_user_hour: 9"))),
        ("a new name", Some(("keep-free", "renamed"))),
        ("a restart", None),
    ];
    for (what, change) in went_on {
        let (policy, mut node) = flagging();
        let begun = ["", "", "slurm:4100 flag, slurm:4100 notify owner", "", ""];
        assert_eq!(node.ticks(5), begun, "{what}");
        match change {
            Some((before, after)) => assert_eq!(node.reload(&policy.replace(before, after)), None),
            None => node.restart(),
        }
        let events = node.ticks(5);
        assert_eq!(events, ["", "", "", "slurm:4100 due terminate", "slurm:4100 terminate"], "{what}");
        let flags: Vec<String> = node.engine.flags().iter().map(|flag| flag.subject.id.to_string()).collect();
        assert_eq!(flags, ["workload:slurm:4100"], "{what}");
    }
}

#[test]
fn pick_countdown_after_a_longer_for_starts_later() {
    let (policy, mut node) = flagging();
    assert_eq!(node.ticks(5)[2], "slurm:4100 flag, slurm:4100 notify owner");
    // The match now begins at the GPU's eighth true sample, which is that of the reload. The step is due six
    // samples later.
    assert_eq!(node.reload(&policy.replace("for: {samples: 2}", "for: {samples: 8}")), None);
    let events = node.ticks(7);
    assert_eq!(events, ["", "", "", "", "", "slurm:4100 due terminate", "slurm:4100 terminate"]);
}

#[test]
fn pick_flag_after_another_interval_is_cleared() {
    let (_, mut node) = flagging();
    assert_eq!(node.ticks(3)[2], "slurm:4100 flag, slurm:4100 notify owner");
    node.interval = 2 * TICK;
    node.wait(TICK);
    assert_eq!(node.tick(), "slurm:4100 clear", "the streak starts again");
}

#[test]
fn picked_workload_is_reported_with_its_countdown() {
    let (_, mut node) = flagging();
    node.process(4200).mib = Some(30_000);
    node.ticks(3);
    let pending = node.engine.pending(10);
    let [one] = pending.as_slice() else { panic!("{pending:?}") };
    assert_eq!(
        (one.target.to_string().as_str(), one.next.as_deref()),
        ("workload:slurm:4100", Some("terminate"))
    );
    for left in [6, 5, 4] {
        let [one] = &node.engine.pending(10)[..] else { panic!() };
        assert_eq!(one.samples_left, left);
        node.tick();
    }
    let about = |pid| {
        let question = Question { pid: Some(pid), ..Question::default() };
        let notifying = node.engine.explain(node.now(0), &question).unwrap();
        notifying.into_iter().find(|notifying| notifying.kind == Kind::Workload).unwrap()
    };
    let victim = about(4100);
    assert_eq!(victim.pending, node.engine.pending(10)[0]);
    assert_eq!(victim.gates.last().unwrap().gate, "from");
    let other = about(4200);
    assert_eq!((other.outcome, other.pending.next), (Truth::True, None), "another workload was picked");
    assert!(other.pick.unwrap().contains("workload:slurm:4100"), "the other workload is named");
}

#[test]
fn removed_rule_keeps_others_with_the_same_condition() {
    let both = flag().replace(
        "rules:",
        "rules:\n  - {name: told, target: process, when: {gpu_util: {max: 1%}}, for: {samples: 3}, then: [{notify: [owner]}]}",
    );
    let mut node = Node::new(&both);
    assert_eq!(node.run("TTT"), ["", "", "4100 notify owner, 4100 flag"]);
    node.reload(&flag());
    assert_eq!(node.run("TTFF"), ["", "", "", "4100 clear"], "the flag was already raised");
}

/// An event on a node.
type Act = Box<dyn Fn(&mut Node)>;

/// Returns the table cell for an event in a state, from docs/rules.md.
fn cell(event: &str, state: usize) -> String {
    let docs = include_str!("../../../../docs/rules.md");
    let rows =
        docs.lines().skip_while(|line| !line.starts_with("| event | decided | confirmed | TERM sent |"));
    let mut rows = rows.take_while(|line| line.starts_with('|')).map(|line| line.split('|').map(str::trim));
    let mut row =
        rows.find(|row| row.clone().nth(1) == Some(event)).unwrap_or_else(|| panic!("no row {event}"));
    row.nth(1 + state).unwrap().to_owned()
}

#[test]
fn decided_action_is_cancelled_as_documented() {
    let hold = |hold| move |node: &mut Node| node.engine.hold(hold, Holds::Yes);
    let events: [(&str, Act, &str); 11] = [
        ("the target is observed busy", Box::new(|_| {}), "F"),
        ("the target is unknown", Box::new(|_| {}), "U"),
        ("no snapshot arrives", Box::new(|_| {}), ".T"),
        ("`pause`", Box::new(|node| assert_eq!(node.pause(), None)), "T"),
        ("the rules change", Box::new(|node| assert_eq!(node.reload(&terminate()), None)), "T"),
        ("the rules become invalid", Box::new(hold(Hold::InvalidFile)), "T"),
        ("the audit log cannot be written", Box::new(hold(Hold::Audit)), "T"),
        ("the state is not on disk", Box::new(hold(Hold::State)), "T"),
        ("the target exits", Box::new(|_| {}), "-"),
        ("the enforcer is stopped", Box::new(Node::restart), "T"),
        ("the enforcer crashes", Box::new(Node::crash), "T"),
    ];
    for (event, act, then) in events {
        let mut node = Node::new(&terminate());
        assert_eq!(node.run("TTT"), ["", "", "4100 due terminate"]);
        act(&mut node);
        let events = if then == "-" {
            node.processes.remove(&4100);
            node.tick()
        } else {
            node.run(then).pop().unwrap()
        };
        let found = match events.as_str() {
            "" => "dropped",
            "4100 due terminate" => "decided again",
            events if events.contains("withheld") => "withheld",
            events => events,
        };
        assert_eq!(found, cell(event, 1), "{event}");
    }
}

#[test]
fn confirmed_action_starts_only_if_newest_snapshot_agrees() {
    let hold = |hold| move |node: &mut Node| node.engine.hold(hold, Holds::Yes);
    let events: [(&str, Act); 5] = [
        ("the target is observed busy", Box::new(|node| drop(node.run("F")))),
        ("the target is unknown", Box::new(|node| drop(node.run("U")))),
        ("the rules become invalid", Box::new(hold(Hold::InvalidFile))),
        ("the state is not on disk", Box::new(hold(Hold::State))),
        (
            "the target exits",
            Box::new(|node| {
                node.processes.remove(&4100);
                node.tick();
            }),
        ),
    ];
    for (event, act) in events {
        let mut node = Node::new(&terminate());
        node.run("TTTT");
        let id = *node.requests.last().unwrap();
        assert_eq!(node.engine.agrees(id), Ok(()));
        node.run("T");
        assert_eq!(node.engine.agrees(id), Ok(()), "a newer snapshot agrees");
        act(&mut node);
        assert!(node.engine.agrees(id).is_err(), "{event}");
        assert!(matches!(cell(event, 2).as_str(), "reprieved" | "gone"), "{event}");
    }
}

#[test]
fn picked_workload_must_stay_idle_and_needed() {
    let mut node = Node::new(&picking("").replace("[{flag: warning}]", "[{terminate: {}}]"));
    node.gpus[0].free_mib = 1;
    node.process(4100);
    let events = node.ticks(12);
    assert!(events.iter().any(|events| events.contains("terminate")), "{events:?}");
    let id = *node.requests.last().unwrap();
    assert_eq!(node.engine.agrees(id), Ok(()));
    node.process(4100).util = Some(50);
    node.tick();
    assert!(node.engine.agrees(id).is_err());
}

#[test]
fn action_without_effect_costs_no_budget() {
    let policy = terminate().replace("per_user_hour: 100", "per_user_hour: 1");
    let mut node = Node::new(&policy);
    node.run("TTTT");
    node.report(Outcome::Reprieved);
    assert_eq!(node.run("TT"), ["4100 due terminate", "4100 terminate"], "the action is due again");
}
