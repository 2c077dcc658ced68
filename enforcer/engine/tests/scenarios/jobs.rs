//! Slurm jobs as targets, and the back-off while Slurm does not respond.

use bailiff_engine::verdict::Outcome;
use bailiff_snapshot::AllocationState::{self, Idle, InUse, NeverUsed, Unknown};

use crate::node::{Gpu, Job, Node, TICK};

/// A policy that cancels jobs whose GPUs were not used in any of three samples. `more` is inserted before the rules.
fn never_used(more: &str) -> String {
    format!(
        "version: 1
defaults: {{max_gap: 1, startup_grace: 0s, clear_after: 1, cooldown: 0s}}
limits: {{per_gpu_hour: 100, per_user_hour: 100, per_node_hour: 100}}
notify: {{owner: {{tty: true}}}}
{more}
rules:
  - name: never-used
    mode: enforce
    target: slurm_job
    when: {{never_used_gpus: {{min: 1}}, used_gpus: {{max: 0}}, gpu_util: {{max: 1%}}}}
    for: {{samples: 3}}
    then: [{{notify: [owner]}}, {{cancel_job: {{}}}}]
"
    )
}

fn job(id: u32, state: AllocationState) -> Job {
    Job { id, uid: 1000, boot_ms: 1000, gpu: 0, state: Some(state) }
}

fn node_with(more: &str, jobs: Vec<Job>) -> Node {
    let mut node = Node::new(&never_used(more));
    node.jobs = Some(jobs);
    node
}

/// Runs a tick for each state of job 7.
fn run(node: &mut Node, states: &[AllocationState]) -> Vec<String> {
    let tick = |state: &AllocationState| {
        node.jobs = Some(vec![job(7, *state)]);
        node.tick()
    };
    states.iter().map(tick).collect()
}

#[test]
fn job_that_never_used_its_gpu_is_cancelled() {
    let events = ["", "", "7 notify owner, 7 due cancel_job", "7 cancel_job"];
    assert_eq!(run(&mut node_with("", Vec::new()), &[NeverUsed; 4]), events);
}

#[test]
fn jobs_without_memory_do_not_use_up_the_budget_for_a_large_process() {
    let idle =
        "  - {name: idle, mode: enforce, target: process, when: {gpu_util: {max: 1%}}, for: {samples: 3},
     then: [{terminate: {}}]}
";
    let mut node = Node::new(&(never_used("").replace("per_gpu_hour: 100", "per_gpu_hour: 1") + idle));
    node.jobs = Some(vec![job(7, NeverUsed)]);
    assert!(node.ticks(4).concat().ends_with("7 cancel_job"));
    node.report(Outcome::Released);
    node.jobs = Some(Vec::new());
    node.process(4100).mib = Some(40_000);
    assert!(node.ticks(5).concat().ends_with("4100 terminate"));
}

#[test]
fn unknown_or_used_gpu_is_not_unused() {
    for state in [Unknown, Idle, InUse] {
        assert_eq!(run(&mut node_with("", Vec::new()), &[state; 6]).concat(), "", "{state:?}");
        let states = [NeverUsed, NeverUsed, state, state, NeverUsed, NeverUsed];
        assert_eq!(run(&mut node_with("", Vec::new()), &states).concat(), "", "{state:?}");
        let mut node = node_with("", Vec::new());
        run(&mut node, &[NeverUsed, NeverUsed, NeverUsed]);
        assert!(!run(&mut node, &[state])[0].contains("7 cancel_job"), "{state:?}");
    }
    let hidden = Job { state: None, ..job(7, Unknown) };
    assert_eq!(node_with("", vec![hidden]).ticks(6).concat(), "", "the driver does not report the GPU");
}

#[test]
fn later_run_of_a_job_is_another_target() {
    let mut node = node_with("", vec![job(7, NeverUsed)]);
    assert_eq!(node.ticks(2), ["", ""]);
    node.jobs = Some(vec![Job { boot_ms: node.boot_ms, ..job(7, NeverUsed) }]);
    assert_eq!(node.ticks(2), ["", ""]);
    assert_eq!(node.tick(), "7 notify owner, 7 due cancel_job");
    node.jobs = Some(vec![Job { boot_ms: node.boot_ms, ..job(7, NeverUsed) }]);
    assert_eq!(node.ticks(2), ["", ""], "the requeued job is not cancelled");
}

#[test]
fn job_without_a_record_is_gone_only_if_the_records_were_read() {
    let mut node = node_with("", vec![job(7, NeverUsed)]);
    let records = node.jobs.clone();
    assert_eq!(node.ticks(2), ["", ""]);
    node.jobs = None;
    assert_eq!(node.tick(), "");
    node.jobs.clone_from(&records);
    assert_eq!(node.tick(), "7 notify owner, 7 due cancel_job", "one unknown sample is within max_gap");
    node.jobs = Some(Vec::new());
    assert_eq!(node.tick(), "");
    node.jobs = records;
    assert_eq!(node.ticks(2), ["", ""]);
}

#[test]
fn process_that_may_belong_to_a_job_makes_its_utilization_unknown() {
    let foreign = |change: fn(&mut Node)| {
        let mut node = node_with("", vec![job(7, NeverUsed)]);
        node.process(4100).gpus = vec![1];
        change(&mut node);
        node.ticks(4).concat()
    };
    assert_eq!(foreign(|_| {}), "", "a process of the owner on another GPU");
    assert_eq!(foreign(|node| node.process(4100).uid = None), "", "a process of an unknown user");
    assert!(foreign(|node| node.process(4100).uid = Some(1001)).contains("7 cancel_job"));
    let lost = |node: &mut Node| {
        node.process(4100).uid = Some(1001);
        node.gpus[1] = Gpu { fault: Some("lost"), ..node.gpus[1].clone() };
    };
    assert_eq!(foreign(lost), "", "a process of the job may hold a lost GPU");
}

#[test]
fn protection_considers_the_job_itself() {
    let spared = |more: &str, uid: u32| {
        let mut node = node_with(more, vec![Job { uid, ..job(7, NeverUsed) }]);
        node.ticks(4).concat().is_empty()
    };
    for (more, uid) in [
        ("", 0),
        ("protect: {users: [user-1000]}", 1000),
        ("protect: {users: [\"1000\"]}", 1000),
        ("protect: {slurm_jobs: [\"7\"]}", 1000),
        ("protect: {gpus: [\"0\"]}", 1000),
        ("protect: {groups: [staff]}", 1000),
    ] {
        assert!(spared(more, uid), "{more} {uid}");
    }
    for (more, uid) in [
        ("allow_root: true", 0),
        ("protect: {users: [user-1001], slurm_jobs: [\"8\"], gpus: [\"1\"]}", 1000),
        ("protect: {comms: [\"jupyter*\"], namespaces: [kube-system]}", 1000),
    ] {
        assert!(!spared(more, uid), "{more} {uid}: processes are checked before the action");
    }
}

#[test]
fn all_jobs_unused_at_once_open_the_mass_breaker() {
    let jobs = |state: AllocationState| -> Vec<Job> {
        (1..=4).map(|id| Job { uid: 1000 + id, ..job(id, state) }).collect()
    };
    let mut node = node_with("", jobs(NeverUsed));
    let events = node.ticks(4).concat();
    assert!(events.contains("1 withheld cancel_job: mass_breaker") && !events.contains("due"), "{events}");
    let mut jobs = jobs(NeverUsed);
    jobs[0].state = Some(InUse);
    let events = node_with("", jobs).ticks(4).concat();
    assert!(events.contains("2 cancel_job"), "three of four are less than 90 %: {events}");
}

#[test]
fn unknown_jobs_do_not_open_the_unknown_breaker() {
    let jobs = (1..=8).map(|id| job(id, if id == 1 { NeverUsed } else { Unknown })).collect();
    let mut node = node_with("", jobs);
    node.ticks(3);
    assert_eq!(node.tick(), "1 cancel_job");
    node.report(Outcome::Cancelled);
    let events = node.ticks(12).concat();
    assert!(!events.contains("unknown_breaker"), "{events}");
}

#[test]
fn slurm_that_does_not_respond_is_queried_again_later_and_later() {
    let mut node = node_with("", vec![job(7, NeverUsed)]);
    assert_eq!(node.ticks(4)[3], "7 cancel_job");
    for wait in [10, 20, 40] {
        node.report(Outcome::NoAnswer);
        let ticks = wait * 1000 / TICK;
        let held = node.ticks(usize::try_from(ticks).unwrap() - 1);
        assert_eq!(held.concat(), "7 withheld cancel_job: no_answer", "{wait} s");
        assert_eq!(node.ticks(2), ["7 due cancel_job", "7 cancel_job"], "after {wait} s");
    }
    node.jobs.as_mut().unwrap().push(Job { gpu: 1, ..job(8, NeverUsed) });
    node.report(Outcome::NoAnswer);
    let held = node.ticks(4).concat();
    assert!(held.contains("8 withheld cancel_job: no_answer"), "all jobs have one slurmctld: {held}");
    node.wait(TICK * 20);
    node.feed(0).unwrap();
}
