//! Pods of Kubernetes as targets, and the waits while the API server refuses.

use std::sync::Arc;

use bailiff_engine::verdict::{ActionReport, Outcome};
use bailiff_snapshot::pod_resources::PodGpuState::{self, Busy, Idle, NoProcess, Unknown};
use bailiff_snapshot::text_limit::limit_relatives;
use bailiff_snapshot::{Place, ProcessKey, Relative, State, wire};

use crate::node::{Gpu, Node, PodGpu, TICK, uid};

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
    // Another container of the pod uses the GPU, or one uses another GPU than the allocated.
    for gpu in [0, 1] {
        let mut node = allocated(LIMITS, NoProcess, Some(20 * MINUTE));
        let process = node.process(4100);
        (process.pod, process.gpus) = (Some(1), vec![gpu]);
        assert_eq!(events(&mut node, 6).concat(), "");
    }
    // One of two GPUs is used.
    let mut node = allocated(LIMITS, NoProcess, Some(20 * MINUTE));
    node.pod_gpus.as_mut().unwrap().push(PodGpu { pod: 1, gpu: 1, state: Idle, unused_ms: None });
    assert_eq!(events(&mut node, 6).concat(), "");
}

#[test]
fn allocated_gpus_are_counted_if_the_kubelet_answered() {
    for (gpus, expected) in [(Some(1), ""), (Some(2), "1 notify owner, 1 due evict_pod"), (None, "")] {
        let mut node = Node::new(&evicting(LIMITS, "{allocated_gpus: {min: 2}}"));
        node.process(4100).pod = Some(1);
        let allocated = |gpu| PodGpu { pod: 1, gpu, state: Idle, unused_ms: None };
        node.pod_gpus = gpus.map(|gpus| (0..gpus).map(allocated).collect());
        assert_eq!(events(&mut node, 3).concat(), expected, "{gpus:?}");
    }
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
fn budget_of_the_node_counts_pods_of_one_uid() {
    for (per_namespace, expected) in [(100, 6), (2, 4)] {
        let mut node = Node::new(&evicting(
            &format!(
                "limits: {{per_gpu_hour: 100, per_user_hour: 3, per_node_hour: 6, per_namespace_hour: {per_namespace}, mass_min: 99}}"
            ),
            IDLE,
        ));
        node.gpus = gpus(10);
        for pod in 1_u8..=9 {
            let process = node.process(4000 + u32::from(pod));
            (process.pod, process.gpus, process.uid) = (Some(pod), vec![usize::from(pod)], Some(0));
            process.namespace = if pod % 2 == 0 { "team" } else { "other" };
        }
        for pod in 1..=9 {
            if node.ticks(4).concat().contains("_budget") {
                break;
            }
            node.report(Outcome::Released);
            node.processes.remove(&(4000 + pod));
        }
        assert_eq!(node.requests.len(), expected, "{per_namespace}");
    }
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

/// Returns the names of what is flagged.
fn flagged(node: &Node) -> Vec<String> {
    node.engine.flags().iter().map(|flag| flag.subject.id.to_string().replace(&uid(1), "1")).collect()
}

#[test]
fn eviction_that_a_budget_blocks_for_too_long_is_not_tried_again() {
    let mut node = idle(LIMITS);
    events(&mut node, 4);
    // After waits of 1, 2 and 4 minutes, the limit of 5 minutes is exceeded.
    for (minutes, tried) in [(1, 2), (2, 3), (4, 4)] {
        node.report(Outcome::BlockedByPdb);
        let ticks = usize::try_from(minutes * MINUTE / TICK).unwrap();
        events(&mut node, ticks - 1);
        assert_eq!(node.requests.len(), tried - 1, "before {minutes} min");
        events(&mut node, 2);
        assert_eq!(node.requests.len(), tried, "after {minutes} min");
    }
    assert!(flagged(&node).is_empty());
    node.report(Outcome::BlockedByPdb);
    events(&mut node, 500);
    assert_eq!((node.requests.len(), flagged(&node)), (4, vec!["pod:1".to_owned()]));
}

#[test]
fn pods_that_cannot_be_evicted_are_flagged_and_not_tried_again() {
    for outcome in [Outcome::NotEvictable, Outcome::NotStoppable, Outcome::Undone, Outcome::NotTerminated] {
        let mut node = idle(LIMITS);
        events(&mut node, 4);
        node.report(outcome);
        let raised = if outcome == Outcome::NotTerminated { "" } else { "1 flag, " };
        let seen = events(&mut node, 200);
        assert_eq!(seen[0], format!("{raised}1 withheld evict_pod: failed"), "{outcome:?}");
        assert!(seen[1..].iter().all(String::is_empty), "{outcome:?}: {seen:?}");
        assert_eq!((node.requests.len(), flagged(&node)), (1, vec!["pod:1".to_owned()]), "{outcome:?}");
        if outcome != Outcome::NotTerminated {
            node.process(4200).util = Some(90);
            events(&mut node, 2);
            assert!(flagged(&node).is_empty(), "{outcome:?}: it no longer matches");
        }
    }
}

#[test]
fn pod_that_has_changed_is_evaluated_again() {
    for outcome in [Outcome::IdentityChanged, Outcome::Refused, Outcome::Gone] {
        let mut node = idle(LIMITS);
        events(&mut node, 4);
        node.report(outcome);
        events(&mut node, 4);
        assert_eq!(node.requests.len(), 2, "{outcome:?}");
        assert!(flagged(&node).is_empty(), "{outcome:?}");
    }
}

/// Returns a process without GPU memory in a container of a pod.
fn relative((pid, seconds): (u32, f64), (pod, container): (u8, u32), exe: usize) -> Relative {
    let container = format!("{container:064x}");
    let slice = format!("/kubepods.slice/kubepods-pod{}.slice", uid(pod).replace('-', "_"));
    let cgroup = format!("{slice}/cri-containerd-{container}.scope");
    let place = Place {
        boundary: Some(cgroup.clone()),
        container: Some(container),
        pod_uid: Some(uid(pod)),
        cgroup: cgroup.clone(),
        ..Place::default()
    };
    Relative {
        key: ProcessKey { pid, start_ticks: 50 },
        ppid: 1,
        uid: Some(1000),
        user: None,
        comm: "worker".to_owned(),
        state: State::Running,
        place: Arc::new(place),
        exe: Some(format!("/{}", "x".repeat(exe))),
        exe_uid: None,
        command: None,
        workload: format!("container:{cgroup}"),
        cpu_seconds: seconds,
        reaped_cpu_seconds: 0.0,
    }
}

/// An author has so many processes with so much text that those of other containers lose their cgroup.
#[test]
fn busy_sidecar_keeps_the_pod_whatever_text_others_have() {
    for (containers, each) in [(0, 0), (150, 110)] {
        let mut node = Node::new(&evicting(LIMITS, "{gpu_util: {max: 1%}, cpu_util: {max: 5%}}"));
        node.process(4100).pod = Some(1);
        for tick in 1..=8 {
            let busy = f64::from(tick) * 5.0;
            let mut all: Vec<Relative> = (0..300).map(|n| relative((10_000 + n, busy), (1, 1), 30)).collect();
            let others =
                (0..containers * each).map(|n| relative((20_000 + n, 1.0), (2, 100 + n / each), 1000));
            all.extend(others);
            limit_relatives(&mut all);
            node.relatives = all.iter().map(wire::Relative::from).collect();
            assert_eq!(events(&mut node, 1).concat(), "", "{containers} containers");
        }
    }
}

fn gpus(count: usize) -> Vec<Gpu> {
    vec![Gpu { free_mib: 1000, fault: None, remembered: true, since_ms: None }; count]
}

/// Each pod has a process of another user, which waits for its containers.
fn pause(pod: u8) -> wire::Relative {
    let process = relative((3000 + u32::from(pod), 0.0), (pod, 7), 5);
    wire::Relative::from(&Relative { uid: Some(65535), state: State::Sleeping, ..process })
}

#[test]
fn unknown_pods_of_one_author_do_not_stop_actions_against_others() {
    for namespaces in [["team", "other"], ["team", "team"]] {
        let mut node = Node::new(&evicting(LIMITS, IDLE));
        node.gpus = gpus(8);
        for pod in 1_u8..=5 {
            let process = node.process(4000 + u32::from(pod) * 10);
            (process.pod, process.gpus) = (Some(pod), vec![usize::from(pod)]);
            process.namespace = namespaces[usize::from(pod > 3)];
            process.util = if pod <= 3 { None } else { Some(90) };
        }
        node.relatives = (1..=5).map(pause).collect();
        events(&mut node, 14);
        node.process(4050).util = Some(0);
        let found = events(&mut node, 6).concat();
        let is_stopped = found.contains("withheld evict_pod: unknown_breaker");
        assert_eq!(is_stopped, namespaces[0] == namespaces[1], "{namespaces:?}: {found}");
        assert_ne!(is_stopped, found.ends_with(" evict_pod"), "{found}");
    }
}

#[test]
fn pods_that_do_not_use_their_gpus_do_not_stop_actions() {
    let mut node = Node::new(&evicting(LIMITS, IDLE));
    node.gpus = gpus(8);
    for pod in 1_u8..=3 {
        let process = node.process(4000 + u32::from(pod));
        (process.pod, process.gpus, process.util) = (Some(pod), vec![usize::from(pod)], Some(90));
        process.uid = Some(2000 + u32::from(pod));
    }
    let unused = |pod| PodGpu { pod, gpu: usize::from(pod), state: NoProcess, unused_ms: Some(MINUTE) };
    node.pod_gpus = Some((4_u8..=7).map(unused).collect());
    events(&mut node, 14);
    node.process(4001).util = Some(0);
    let found = events(&mut node, 6).concat();
    assert!(found.ends_with("1 evict_pod"), "{found}");
}

/// Users in pods choose their uids, so the pods of other namespaces may have the same.
#[test]
fn failures_of_one_namespace_do_not_stop_actions_against_others() {
    for (victim, namespace, expected) in [
        (1500, "team", "4 due evict_pod, 4 evict_pod"),
        (1000, "team", "4 due evict_pod, 4 evict_pod"),
        (1500, "other", "4 withheld evict_pod: user_failure_breaker"),
    ] {
        let mut node = Node::new(&evicting(LIMITS, IDLE));
        node.gpus = gpus(8);
        for pod in 1_u8..=4 {
            let process = node.process(4000 + u32::from(pod));
            (process.pod, process.gpus) = (Some(pod), vec![usize::from(pod)]);
            (process.namespace, process.uid) = ("other", Some(1000 + u32::from(pod % 2)));
        }
        node.process(4004).util = Some(90);
        for pod in 1..=3 {
            assert!(events(&mut node, 4).concat().ends_with(" evict_pod"));
            node.report(Outcome::NotTerminated);
            node.processes.remove(&(4000 + pod));
        }
        let process = node.process(4004);
        (process.util, process.uid, process.namespace) = (Some(0), Some(victim), namespace);
        let found = events(&mut node, 5).concat().replace(&uid(4), "4");
        assert!(found.ends_with(expected.rsplit(", ").next().unwrap()), "{victim} {namespace}: {found}");
    }
}

/// Both pods are in the same namespace, which may have several authors.
#[test]
fn pod_whose_attempts_have_no_answer_comes_last() {
    let mut node = Node::new(&evicting(LIMITS, IDLE));
    for (pod, mib) in [(1_u8, 9000), (2, 100)] {
        let process = node.process(4100 + u32::from(pod));
        (process.pod, process.mib) = (Some(pod), Some(mib));
    }
    assert!(events(&mut node, 4).concat().ends_with("1 evict_pod"));
    node.report(Outcome::NoAnswer);
    assert!(events(&mut node, 12).concat().ends_with("2 evict_pod"));
}

/// Returns a node with an idle process in each of these pods, which a rule stops with their owners.
fn stopping(pods: &[(u8, &'static str)]) -> Node {
    let mut node = Node::new(&evicting(
        "limits: {per_gpu_hour: 100, per_user_hour: 100, per_node_hour: 100, per_namespace_hour: 100, mass_min: 99}",
        IDLE,
    ).replace("evict_pod", "stop_owner"));
    for (pod, namespace) in pods {
        let process = node.process(4100 + u32::from(*pod));
        (process.pod, process.namespace) = (Some(*pod), namespace);
    }
    node
}

/// Returns the pods on which the last action may act beside its own.
fn peers(node: &Node) -> Vec<String> {
    let peers = node.engine.peers_in_flight(*node.requests.last().unwrap());
    peers.iter().map(|peer| peer.subject.id.to_string()).collect()
}

#[test]
fn owner_is_stopped_only_with_pods_that_matched_twice() {
    let mut node = stopping(&[(1, "team"), (2, "team"), (3, "other"), (4, "team"), (5, "team")]);
    // It begins to match when the step of the others is confirmed.
    node.process(4104).util = Some(90);
    events(&mut node, 1);
    node.process(4104).util = Some(0);
    // It matches when the step is decided, and no longer when it is confirmed.
    events(&mut node, 2);
    node.process(4105).util = Some(90);
    events(&mut node, 1);
    assert_eq!(peers(&node), [format!("pod:{}", uid(2))]);
    let id = *node.requests.last().unwrap();
    assert_eq!(node.engine.agrees(id), Ok(()));
    // One of them no longer matches.
    node.process(4102).util = Some(90);
    events(&mut node, 1);
    assert!(node.engine.agrees(id).is_err());
}

#[test]
fn many_pods_of_one_owner_do_not_displace_those_of_another() {
    let many: Vec<(u8, &str)> = (1..=30).map(|pod| (pod, "team")).collect();
    let mut node = stopping(&many);
    node.gpus = gpus(2);
    for pod in 1..=28 {
        node.process(4100 + pod).mib = Some(2000);
    }
    let mut is_found = false;
    for _ in 0..200 {
        events(&mut node, 2);
        let own = node.engine.view().is_some() && !node.requests.is_empty();
        is_found |= own && peers(&node).contains(&format!("pod:{}", uid(30)));
        if own {
            node.report(Outcome::OtherPods);
        }
        events(&mut node, usize::try_from(MINUTE / TICK).unwrap());
    }
    assert!(is_found);
}

#[test]
fn pods_of_an_owner_wait_for_each_other() {
    let mut node = stopping(&[(1, "team")]);
    events(&mut node, 4);
    node.report(Outcome::OtherPods);
    assert_eq!(events(&mut node, 1).concat(), "1 withheld stop_owner: other_pods");
    let process = node.process(4102);
    (process.pod, process.namespace) = (Some(2), "team");
    events(&mut node, 4);
    assert_eq!(node.requests.len(), 2);
    assert_eq!(peers(&node), [format!("pod:{}", uid(1))]);
}

#[test]
fn stopped_owners_are_remembered_over_a_restart() {
    let mut node = stopping(&[(1, "team")]);
    events(&mut node, 4);
    let id = *node.requests.last().unwrap();
    let stopped = Some("0a".to_owned());
    node.engine.report(&ActionReport {
        acted: true,
        stopped,
        ..ActionReport::new(id, Outcome::Released, "")
    });
    let known: Vec<String> = node.engine.stopped_owners().into_keys().collect();
    assert_eq!(known, ["0a"]);
    node.restart();
    assert_eq!(node.engine.stopped_owners().into_keys().collect::<Vec<_>>(), ["0a"]);
}

#[test]
fn waits_and_their_beginning_are_kept_over_a_restart() {
    let mut node = idle(LIMITS);
    events(&mut node, 4);
    node.report(Outcome::BlockedByPdb);
    node.restart();
    let withheld = events(&mut node, 5).concat();
    assert_eq!(withheld, "1 withheld evict_pod: disruption_budget");
    // The limit of 5 minutes counts from before the restart.
    for minutes in [1, 2, 4] {
        events(&mut node, usize::try_from(minutes * MINUTE / TICK).unwrap() + 1);
        node.report(Outcome::BlockedByPdb);
    }
    let tried = node.requests.len();
    events(&mut node, 500);
    assert_eq!(node.requests.len(), tried, "it has failed");
}
