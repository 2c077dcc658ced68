//! Pods of Kubernetes as targets, and the waits while the API server refuses.

use bailiff_engine::verdict::Outcome;
use bailiff_snapshot::pod_resources::PodGpuState::{self, Busy, Idle, NoProcess, Unknown};

use crate::node::{Node, PodGpu, TICK, uid};

const MINUTE: u64 = 60_000;

/// A policy that evicts pods that meet a condition in three samples. `more` is inserted before the rules.
fn evicting(more: &str, when: &str) -> String {
    format!(
        "version: 1
defaults: {{max_gap: 1, startup_grace: 0s, clear_after: 1, cooldown: 0s}}
notify: {{owner: {{tty: true}}}}
kubernetes: {{pdb_max_wait: 5m}}
{more}
rules:
  - name: idle-pod
    mode: enforce
    target: pod
    when: {when}
    for: {{samples: 3}}
    then: [{{notify: [owner]}}, {{evict_pod: {{}}}}]
"
    )
}

const LIMITS: &str =
    "limits: {per_gpu_hour: 100, per_user_hour: 100, per_node_hour: 100, per_namespace_hour: 100}";
const IDLE: &str = "{gpu_util: {max: 1%}}";
const UNUSED: &str = "{allocation_unused_for: {min: 10m}}";

/// Returns a node with two idle processes in containers of pod 1.
fn idle(more: &str) -> Node {
    let mut node = Node::new(&evicting(more, IDLE));
    for pid in [4100, 4200] {
        node.process(pid).pod = Some(1);
    }
    node
}

/// Returns a node on which a GPU is allocated to pod 1.
fn allocated(more: &str, state: PodGpuState, unused_ms: Option<u64>) -> Node {
    let mut node = Node::new(&evicting(more, UNUSED));
    node.pod_gpus = Some(vec![PodGpu { pod: 1, gpu: 0, state, unused_ms }]);
    node
}

/// Returns the events of one tick about pod 1, with its number in place of its UID.
fn events(node: &mut Node, ticks: usize) -> Vec<String> {
    node.ticks(ticks).into_iter().map(|events| events.replace(&uid(1), "1").replace(&uid(2), "2")).collect()
}

#[test]
fn idle_pod_is_evicted() {
    assert_eq!(events(&mut idle(LIMITS), 4), ["", "", "1 notify owner, 1 due evict_pod", "1 evict_pod"]);
}

#[test]
fn one_busy_or_unknown_container_keeps_the_pod() {
    for util in [Some(90), None] {
        let mut node = idle(LIMITS);
        node.process(4200).util = util;
        assert_eq!(events(&mut node, 6).concat(), "", "{util:?}");
        let mut node = idle(LIMITS);
        events(&mut node, 3);
        node.process(4200).util = util;
        assert!(!events(&mut node, 1).concat().contains("1 evict_pod"), "{util:?}");
    }
}

#[test]
fn pod_of_the_same_name_with_another_uid_is_another_target() {
    let mut node = idle(LIMITS);
    assert_eq!(events(&mut node, 2).concat(), "");
    for pid in [4100, 4200] {
        node.process(pid).pod = Some(2);
    }
    assert_eq!(events(&mut node, 2).concat(), "");
    assert_eq!(events(&mut node, 2), ["2 notify owner, 2 due evict_pod", "2 evict_pod"]);
}

#[test]
fn pod_that_does_not_use_its_gpu_is_evicted() {
    let mut node = allocated(LIMITS, NoProcess, Some(9 * MINUTE + 50_000));
    let unused = |node: &mut Node| {
        node.pod_gpus.as_mut().unwrap()[0].unused_ms = Some(11 * MINUTE);
    };
    assert_eq!(events(&mut node, 4).concat(), "", "less than 10 minutes");
    unused(&mut node);
    assert_eq!(events(&mut node, 4), ["", "", "1 notify owner, 1 due evict_pod", "1 evict_pod"]);
}

#[test]
fn gpu_that_is_used_or_unknown_is_not_unused() {
    for (state, unused_ms) in [(Busy, None), (Idle, None), (Unknown, None), (NoProcess, None)] {
        assert_eq!(events(&mut allocated(LIMITS, state, unused_ms), 6).concat(), "", "{state:?}");
    }
    // One of two GPUs is used.
    let mut node = allocated(LIMITS, NoProcess, Some(20 * MINUTE));
    node.pod_gpus.as_mut().unwrap().push(PodGpu { pod: 1, gpu: 1, state: Idle, unused_ms: None });
    assert_eq!(events(&mut node, 6).concat(), "");
}

#[test]
fn pod_is_gone_only_if_the_kubelet_answered() {
    let mut node = allocated(LIMITS, NoProcess, Some(20 * MINUTE));
    let allocations = node.pod_gpus.clone();
    assert_eq!(events(&mut node, 2).concat(), "");
    node.pod_gpus = None;
    assert_eq!(events(&mut node, 1).concat(), "");
    node.pod_gpus.clone_from(&allocations);
    assert_eq!(events(&mut node, 1).concat(), "1 notify owner, 1 due evict_pod", "one gap is within max_gap");
    node.pod_gpus = Some(Vec::new());
    assert_eq!(events(&mut node, 1).concat(), "");
    node.pod_gpus = allocations;
    assert_eq!(events(&mut node, 2).concat(), "");
}

#[test]
fn protection_considers_the_pod_itself() {
    let spared = |more: &str, mut node: Node| {
        let events = events(&mut node, 4).concat();
        assert!(events.is_empty() || events.contains("1 evict_pod"), "{more}: {events}");
        events.is_empty()
    };
    for (protect, of_idle, of_unused) in [
        ("{namespaces: [team]}", true, true),
        ("{pods: [pod-1]}", true, true),
        ("{pods: [\"0b1c2d3e-*\"]}", true, true),
        ("{gpus: [\"0\"]}", true, true),
        ("{users: [user-1000]}", true, true),
        ("{namespaces: [kube-system], pods: [pod-2], slurm_jobs: [\"7\"]}", false, false),
        // The processes of a pod without GPU memory are not read before the action.
        ("{users: [user-1001]}", false, true),
        ("{comms: [\"jupyter*\"]}", false, true),
    ] {
        let more = format!("{LIMITS}\nprotect: {protect}");
        assert_eq!(spared(&more, idle(&more)), of_idle, "idle, {protect}");
        let unused = allocated(&more, NoProcess, Some(20 * MINUTE));
        assert_eq!(spared(&more, unused), of_unused, "unused, {protect}");
    }
}

#[test]
fn namespace_has_a_budget() {
    let mut node = idle(
        "limits: {per_gpu_hour: 100, per_user_hour: 100, per_node_hour: 100, per_namespace_hour: 1, mass_min: 9}",
    );
    for pod in 2..=3 {
        let process = node.process(4100 + u32::from(pod));
        (process.pod, process.gpus, process.mib) = (Some(pod), vec![1], Some(100));
    }
    events(&mut node, 4);
    node.report(Outcome::Released);
    let held = events(&mut node, 3).concat();
    assert!(held.contains("withheld evict_pod: namespace_budget"), "{held}");
}

#[test]
fn all_pods_idle_at_once_open_the_mass_breaker() {
    let mut node = Node::new(&evicting(LIMITS, IDLE));
    for pod in 1..=4 {
        let process = node.process(4100 + u32::from(pod));
        (process.pod, process.uid) = (Some(pod), Some(1000 + u32::from(pod)));
    }
    let events = events(&mut node, 4).concat();
    assert!(events.contains("withheld evict_pod: mass_breaker") && !events.contains("due"), "{events}");
}

#[test]
fn refusals_of_the_api_server_hold_the_step() {
    for (outcome, hold, seconds) in [
        (Outcome::NoAnswer, "kubernetes_api", 10),
        (Outcome::Unknown, "kubernetes_api", 10),
        (Outcome::Forbidden, "kubernetes_api", 600),
        (Outcome::Invalid, "kubernetes_api", 600),
        (Outcome::ApiError, "kubernetes_api", 600),
        (Outcome::BlockedByPdb, "disruption_budget", 60),
        (Outcome::Kept, "annotation", 600),
    ] {
        let mut node = idle(LIMITS);
        assert_eq!(events(&mut node, 4)[3], "1 evict_pod");
        node.report(outcome);
        let ticks = usize::try_from(seconds * 1000 / TICK).unwrap();
        let held = events(&mut node, ticks - 1).concat();
        assert_eq!(held, format!("1 withheld evict_pod: {hold}"), "{outcome:?}");
        assert_eq!(events(&mut node, 2), ["1 due evict_pod", "1 evict_pod"], "{outcome:?}");
    }
}

#[test]
fn eviction_that_a_budget_blocks_for_too_long_is_not_tried_again() {
    let mut node = idle(LIMITS);
    events(&mut node, 4);
    // The waits are 1, 2 and 4 minutes; after them, the limit of 5 minutes is exceeded.
    for minutes in [1, 2, 4] {
        node.report(Outcome::BlockedByPdb);
        let ticks = usize::try_from(minutes * MINUTE / TICK).unwrap();
        assert!(
            events(&mut node, ticks + 1).concat().ends_with("1 due evict_pod, 1 evict_pod") || {
                node.requests.len() > 1
            }
        );
    }
    let tried = node.requests.len();
    node.report(Outcome::BlockedByPdb);
    events(&mut node, 500);
    assert_eq!(node.requests.len(), tried, "it has failed");
}

#[test]
fn pods_that_cannot_be_evicted_are_not_tried_again() {
    for outcome in [Outcome::NotEvictable, Outcome::NotTerminated] {
        let mut node = idle(LIMITS);
        events(&mut node, 4);
        node.report(outcome);
        events(&mut node, 200);
        assert_eq!(node.requests.len(), 1, "{outcome:?}");
    }
}
