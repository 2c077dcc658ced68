//! The step `stop_owner` with `bailiff-kubernetes`, an API server with owners of pods, and processes in the cgroups of pods.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "a case runs programs and fails loudly")]

use std::time::{Duration, SystemTime};

use end_to_end::api_server::{ApiRequest, Reply, failure};
use end_to_end::tenant::Tenant;
use end_to_end::wait::until;
use serde_json::{Value, json};

use crate::evict_pod::{Stage, uid};

const APPS: &str = "/apis/apps/v1/namespaces/team";
const JOB: &str = "/apis/batch/v1/namespaces/team/jobs/train";
const NOTEBOOK: &str = "/apis/kubeflow.org/v1/namespaces/team/notebooks/lab";

/// Returns the UID of an owner.
fn owner_uid(number: u8) -> String {
    format!("0b1c2d3e-0000-4000-9000-{number:012}")
}

fn reference((api, kind, name): (&str, &str, &str), number: u8) -> Value {
    json!([{"apiVersion": api, "kind": kind, "name": name, "uid": owner_uid(number), "controller": true}])
}

/// Returns an owner whose pods have the label `app=web`.
fn owner(name: &str, number: u8, (spec, status): (Value, Value)) -> Value {
    let mut owner = json!({
        "metadata": {
            "name": name, "namespace": "team", "uid": owner_uid(number), "resourceVersion": "7",
            "labels": {"app": "web"},
        },
        "spec": {"selector": {"matchLabels": {"app": "web"}}},
        "status": status,
    });
    for (key, value) in spec.as_object().unwrap() {
        owner["spec"][key] = value.clone();
    }
    owner
}

fn replicas(count: u8) -> (Value, Value) {
    (json!({"replicas": count}), json!({"replicas": count}))
}

const REPLICA_SET: (&str, &str, &str) = ("apps/v1", "ReplicaSet", "web-5d9c");
const STATEFUL_SET: (&str, &str, &str) = ("apps/v1", "StatefulSet", "lab");

/// A node with idle pods of an owner.
struct Owned {
    // They end before the cgroups of the stage are removed.
    tenants: Vec<Tenant>,
    stage: Stage,
}

impl Owned {
    /// Adds one pod, number 1, of this owner.
    fn new(owner: (&str, &str, &str)) -> Self {
        let mut this = Self::empty();
        this.add_pod(1, owner);
        this
    }

    fn empty() -> Self {
        // An owner is read with several requests, which must not take longer than an interval.
        let stage = Stage::with(&["--interval", "600ms", "--look-back", "1200ms"]);
        stage.rules_with("enforce", "{stop_owner: {}}", "");
        Self { tenants: Vec::new(), stage }
    }

    fn add_pod(&mut self, number: u8, owner: (&str, &str, &str)) {
        let set = if owner.1 == "StatefulSet" { owner.2 } else { "web" };
        self.add_named_pod((&format!("{set}-{number}"), number), owner);
    }

    fn add_named_pod(&mut self, (name, number): (&str, u8), owner: (&str, &str, &str)) {
        let uid = uid(number);
        self.stage.api.add_pod(("team", name, &uid), |pod| {
            pod["metadata"]["ownerReferences"] = reference(owner, 1);
            pod["metadata"]["labels"] = json!({"app": "web"});
            pod["metadata"]["creationTimestamp"] = json!(ago(Duration::from_hours(3)));
        });
        self.tenants.push(self.stage.holder(("team", name, &uid), 'a'));
    }

    /// Adds a Deployment with so many pods.
    fn with_deployment(self, pods: u8) -> Self {
        let mut set = owner("web-5d9c", 1, replicas(pods));
        set["metadata"]["ownerReferences"] = reference(("apps/v1", "Deployment", "web"), 2);
        self.stage.api.add(&format!("{APPS}/replicasets/web-5d9c"), set);
        self.stage.api.add(&format!("{APPS}/deployments/web"), owner("web", 2, replicas(pods)));
        self
    }

    fn with(self, path: &str, object: Value) -> Self {
        self.stage.api.add(path, object);
        self
    }

    fn start(mut self) -> Self {
        self.stage.start();
        self
    }

    /// Waits until the owner is stopped, and ends its processes as controller and kubelet do. Returns the request.
    fn until_stopped(&mut self) -> ApiRequest {
        let requests = until("the owner is stopped", || {
            Some(self.stage.api.patches()).filter(|patches| !patches.is_empty())
        });
        self.tenants.iter_mut().for_each(Tenant::end);
        requests.into_iter().next().unwrap()
    }

    fn until_result(&self, result: &str) -> Value {
        self.stage.node.home.until_line("stop_owner", result)
    }

    /// Waits until the owner is kept for the second time. It is read twice.
    fn until_kept_again(&self) -> String {
        let is_kept = |line: &Value| line["step"] == "stop_owner" && line["result"] == "other_pods";
        let second = || self.stage.node.home.lines().into_iter().filter(is_kept).nth(1);
        let line = until("it is read again", second);
        assert!(self.stage.api.patches().is_empty(), "{line}");
        assert!(self.tenants.iter().all(Tenant::is_running), "{line}");
        line["detail"].as_str().unwrap().to_owned()
    }

    /// Waits for a result without an effect.
    fn until_kept(&self, result: &str) -> String {
        let line = self.until_result(result);
        assert!(self.stage.api.patches().is_empty(), "{line}");
        assert!(self.tenants.iter().all(Tenant::is_running), "{line}");
        line["detail"].as_str().unwrap().to_owned()
    }
}

/// Returns a past time in the API server's form.
fn ago(age: Duration) -> String {
    humantime::format_rfc3339_seconds(SystemTime::now() - age).to_string()
}

#[test]
fn deployment_is_scaled_to_zero_and_no_process_is_signalled() {
    let mut owned = Owned::new(REPLICA_SET).with_deployment(1).start();
    let request = owned.until_stopped();
    assert_eq!(request.what, format!("PATCH {APPS}/deployments/web/scale"));
    let expected = json!({
        "metadata": {"uid": owner_uid(2), "resourceVersion": "7"}, "spec": {"replicas": 0},
    });
    assert_eq!(request.body, expected);
    let line = owned.until_result("released");
    assert_eq!(line["detail"], "Deployment team/web", "{line}");
    assert!(line["sent"].as_array().is_none_or(Vec::is_empty), "{line}");
    assert!(owned.stage.api.evictions().is_empty());
    let enforcer = owned.stage.enforcer.as_ref().unwrap();
    for (metric, labels) in [
        ("bailiff_kills_total", [("rule", "idle-pod"), ("result", "released")]),
        ("bailiff_kubernetes_requests_total", [("verb", "stop"), ("code", "200")]),
        ("bailiff_kubernetes_requests_total", [("verb", "get_owner"), ("code", "200")]),
    ] {
        enforcer.until(metric, |page| page.value(metric, &labels).filter(|count| *count > 0.0));
    }
}

#[test]
fn each_kind_of_owner_is_stopped_in_its_way() {
    let scale = json!({"replicas": 0});
    let suspend = json!({"suspend": true});
    let job = owner("train", 1, (json!({"suspend": false}), json!({"active": 1})));
    for (reference, path, object, target, spec) in [
        (STATEFUL_SET, format!("{APPS}/statefulsets/lab"), owner("lab", 1, replicas(1)), "/scale", scale),
        (("batch/v1", "Job", "train"), JOB.to_owned(), job, "", suspend),
    ] {
        let mut owned = Owned::new(reference).with(&path, object).start();
        let request = owned.until_stopped();
        assert_eq!(request.what, format!("PATCH {path}{target}"));
        assert_eq!((&request.body["spec"], &request.body["metadata"]["uid"]), (&spec, &json!(owner_uid(1))));
        owned.until_result("released");
    }
}

/// Returns a node with the pod of a notebook; its `StatefulSet` has this name.
fn notebook(set: &'static str) -> Owned {
    let mut object = owner(set, 1, replicas(1));
    object["metadata"]["ownerReferences"] = reference(("kubeflow.org/v1beta1", "Notebook", "lab"), 3);
    let lab = json!({"metadata": {"name": "lab", "namespace": "team", "uid": owner_uid(3), "resourceVersion": "9"}});
    Owned::new(("apps/v1", "StatefulSet", set))
        .with(&format!("{APPS}/statefulsets/{set}"), object)
        .with(NOTEBOOK, lab)
}

#[test]
fn notebook_is_stopped_by_its_annotation() {
    let mut owned = notebook("lab").start();
    let request = owned.until_stopped();
    assert_eq!(request.what, format!("PATCH {NOTEBOOK}"));
    let stopped = request.body["metadata"]["annotations"]["kubeflow-resource-stopped"].as_str().unwrap();
    assert!(humantime::parse_rfc3339(stopped).is_ok() && request.body.get("spec").is_none(), "{stopped}");
    owned.until_result("released");
}

#[test]
fn all_pods_of_an_owner_are_stopped_together() {
    let mut owned = Owned::new(REPLICA_SET).with_deployment(2);
    owned.add_pod(2, REPLICA_SET);
    // Pods that have finished remain until they are collected.
    for (number, phase) in [(3, "Succeeded"), (4, "Failed")] {
        owned.stage.api.add_pod(("team", &format!("web-{number}"), &uid(number)), |pod| {
            pod["metadata"]["ownerReferences"] = reference(REPLICA_SET, 1);
            pod["metadata"]["labels"] = json!({"app": "web"});
            pod["status"]["phase"] = json!(phase);
        });
    }
    let mut owned = owned.start();
    owned.until_stopped();
    owned.until_result("released");
    assert_eq!(owned.stage.api.patches().len(), 1);
}

/// Anyone who may change a pod can name an owner in it. Its controller counts the pod a moment later.
#[test]
fn owner_whose_pods_have_just_changed_is_kept() {
    let owned = Owned::new(REPLICA_SET).with_deployment(1).start();
    let seen_first = owned.until_kept("other_pods");
    assert!(seen_first.contains("team/web is read again"), "{seen_first}");
    // The controller writes that there are two pods.
    let mut deployment = owner("web", 2, replicas(1));
    deployment["metadata"]["resourceVersion"] = json!("8");
    deployment["status"]["replicas"] = json!(2);
    owned.stage.api.add(&format!("{APPS}/deployments/web"), deployment);
    assert_eq!(owned.until_kept_again(), "team/web has 2 pods, of which 1 match on this node");
}

#[test]
fn another_pod_that_must_not_be_evicted_keeps_the_owner() {
    let mut owned = Owned::new(REPLICA_SET).with_deployment(2);
    owned.add_pod(2, REPLICA_SET);
    let path = "/api/v1/namespaces/team/pods/web-2";
    let mut second = owned.stage.api.object(path);
    second["spec"]["priorityClassName"] = json!("system-node-critical");
    let owned = owned.with(path, second).start();
    // Which pod is the first depends on their order.
    let why = until("the owner is kept", || {
        let of_step = owned.stage.node.home.lines().into_iter().filter(|line| line["step"] == "stop_owner");
        let mut details = of_step.filter_map(|line| Some(line["detail"].as_str()?.to_owned()));
        details.find(|why| why.contains("system-node-critical"))
    });
    assert!(why.starts_with("another pod of the owner: ") || why.starts_with("pod team/web-2"), "{why}");
    assert!(owned.stage.api.patches().is_empty() && owned.tenants.iter().all(Tenant::is_running));
}

#[test]
fn daemon_sets_and_static_pods_are_kept() {
    let daemon_set = Owned::new(("apps/v1", "DaemonSet", "web"));
    let mirror = Owned::new(REPLICA_SET).with_deployment(1);
    let path = "/api/v1/namespaces/team/pods/web-1";
    let mut pod = mirror.stage.api.object(path);
    pod["metadata"]["annotations"] = json!({"kubernetes.io/config.mirror": "x"});
    for (owned, why) in [(daemon_set, "DaemonSet"), (mirror.with(path, pod), "static pod")] {
        let found = owned.start().until_kept("not_evictable");
        assert!(found.contains(why), "{found}");
    }
}

#[test]
fn owner_with_a_pod_that_does_not_match_is_kept() {
    // The second pod is busy, also if the controller is kept from counting it, or is not on this node.
    let busy = |counted| {
        let mut owned = Owned::new(REPLICA_SET).with_deployment(counted);
        owned.add_pod(2, REPLICA_SET);
        owned.stage.node.hold(&owned.tenants[1], 0, "used: 1GiB, sm: 90");
        owned
    };
    let away = Owned::new(REPLICA_SET).with_deployment(2);
    for owned in [busy(2), busy(1), away] {
        let why = owned.start().until_kept("other_pods");
        assert_eq!(why, "team/web has 2 pods, of which 1 match on this node");
    }
}

#[test]
fn protected_process_in_another_pod_keeps_the_owner() {
    let mut owned = Owned::new(REPLICA_SET).with_deployment(2);
    owned.add_pod(2, REPLICA_SET);
    // The enforcer reads processes without GPU memory again before the action.
    let sidecar = owned.stage.named_process(("team", "web-2", &uid(2)), 'b', "guarded");
    owned.tenants.push(sidecar);
    owned.stage.rules_with("enforce", "{stop_owner: {}}", "protect: {comms: [guarded]}");
    let why = owned.start().until_kept("other_pods");
    assert_eq!(why, "team/web has 2 pods, of which 1 match on this node");
}

/// A reason why an owner is not stopped, and how to get a node with it.
type Case = (&'static str, fn() -> Owned);

/// Checks that none of these owners is stopped.
fn are_kept(cases: &[Case]) {
    for (expected, case) in cases {
        let why = case().start().until_kept("not_stoppable");
        assert!(why.contains(expected), "{expected}: {why}");
    }
}

#[test]
fn owners_that_cannot_be_stopped_are_kept() {
    let bare = || {
        let owned = Owned::new(REPLICA_SET);
        owned.stage.api.add_pod(("team", "web-1", &uid(1)), |_| {});
        owned
    };
    let set_alone = || {
        let set = owner("web-5d9c", 1, replicas(1));
        Owned::new(REPLICA_SET).with(&format!("{APPS}/replicasets/web-5d9c"), set)
    };
    let of_cron_job = || {
        let mut job = owner("train", 1, (json!({}), json!({"active": 1})));
        job["metadata"]["ownerReferences"] = reference(("batch/v1", "CronJob", "nightly"), 4);
        Owned::new(("batch/v1", "Job", "train")).with(JOB, job)
    };
    let of_operator = || {
        let owned = Owned::new(REPLICA_SET).with_deployment(1);
        let mut deployment = owner("web", 2, replicas(1));
        deployment["metadata"]["ownerReferences"] = reference(("x.org/v1", "Service", "x"), 4);
        owned.with(&format!("{APPS}/deployments/web"), deployment)
    };
    are_kept(&[
        ("RayCluster.ray.io", || Owned::new(("ray.io/v1", "RayCluster", "ray"))),
        ("Job.batch.volcano.sh", || Owned::new(("batch.volcano.sh/v1alpha1", "Job", "train"))),
        ("it has no owner", bare),
        ("ReplicaSet", set_alone),
        ("CronJob.batch", of_cron_job),
        ("Service.x.org", of_operator),
    ]);
}

/// The authors of other pods choose how long the list of a namespace is.
#[test]
fn long_list_of_pods_is_read() {
    let mut owned = Owned::new(REPLICA_SET).with_deployment(1);
    for number in 0..50 {
        let (name, uid) = (format!("fat-{number}"), format!("0b1c2d3e-0000-4000-9001-{number:012}"));
        owned.stage.api.add_pod(("team", &name, &uid), |pod| {
            pod["metadata"]["annotations"] = json!({"x": "x".repeat(250 << 10)});
            pod["status"]["phase"] = json!("Pending");
        });
    }
    owned.stage.start_kubernetes();
    let pod = json!({"namespace": "team", "name": "web-1", "uid": uid(1)});
    let answer = owned.stage.query(&json!({"owner": {"pod": pod}}));
    assert_eq!(answer["owner"]["scale"]["own"], json!([uid(1)]), "{answer}");
}

/// Anyone can write a reference: the owner does not select the pod, or does not own what owns the pod.
#[test]
fn owner_that_a_pod_only_names_is_kept() {
    let foreign_pod = || {
        let owned = Owned::new(REPLICA_SET).with_deployment(1);
        owned.stage.api.add_pod(("team", "web-1", &uid(1)), |pod| {
            pod["metadata"]["ownerReferences"] = reference(REPLICA_SET, 1);
            pod["metadata"]["labels"] = json!({"app": "other"});
        });
        owned
    };
    let foreign_set = || {
        let owned = Owned::new(REPLICA_SET).with_deployment(1);
        let path = format!("{APPS}/replicasets/web-5d9c");
        let mut set = owned.stage.api.object(&path);
        set["metadata"]["labels"] = json!({"app": "other"});
        owned.with(&path, set)
    };
    let foreign_name = || {
        let set = owner("lab", 1, replicas(1));
        let mut owned = Owned::empty().with(&format!("{APPS}/statefulsets/lab"), set);
        owned.add_named_pod(("lab-x", 1), STATEFUL_SET);
        owned
    };
    let foreign_notebook = || notebook("lab-2");
    let expected = "does not select it";
    are_kept(&[
        (expected, foreign_pod),
        (expected, foreign_set),
        (expected, foreign_name),
        (expected, foreign_notebook),
    ]);
}

#[test]
fn replaced_or_changed_owner_is_kept() {
    let mut other = owner("lab", 1, replicas(1));
    other["metadata"]["uid"] = json!(owner_uid(9));
    let owned = Owned::new(STATEFUL_SET).with(&format!("{APPS}/statefulsets/lab"), other).start();
    let why = owned.until_kept("identity_changed");
    assert!(why.contains("team/lab is another object by now"), "{why}");
    // The second owner is of a kind that this API server does not know.
    for named in [STATEFUL_SET, ("kubeflow.org/v1", "Notebook", "lab")] {
        let why = Owned::new(named).start().until_kept("identity_changed");
        assert!(why.contains("no longer exists"), "{why}");
    }
}

#[test]
fn dry_run_tests_the_stop() {
    let owned = Owned::new(REPLICA_SET).with_deployment(1);
    owned.stage.rules_with("dry-run", "{stop_owner: {}}", "");
    let owned = owned.start();
    let why = owned.until_kept("dry_run");
    assert_eq!(why, "dry run: would stop Deployment team/web: the API server would accept it");
    let asked = owned.stage.api.requests();
    assert!(
        asked.iter().any(|request| request.what.ends_with("/deployments/web/scale?dryRun=All")),
        "{asked:?}"
    );
}

#[test]
fn refusals_have_the_results_of_an_eviction() {
    let conflict = failure(409, "Conflict", "the object has been modified", &Value::Null);
    let forbidden = failure(403, "Forbidden", "not all pods are on this node", &Value::Null);
    for (reply, result) in [
        (Reply::With(409, "", conflict), "identity_changed"),
        (Reply::With(403, "", forbidden), "forbidden"),
        (Reply::Lost, "unknown"),
    ] {
        let owned = Owned::new(REPLICA_SET).with_deployment(1);
        owned.stage.api.reply(&[reply]);
        let owned = owned.start();
        owned.until_result(result);
        assert!(owned.tenants[0].is_running(), "{result}");
    }
}

#[test]
fn stop_that_was_interrupted_is_not_repeated() {
    let mut owned = Owned::new(REPLICA_SET).with_deployment(1).start();
    until("the owner is stopped", || (!owned.stage.api.patches().is_empty()).then_some(()));
    // SIGKILL between the request and the verification.
    owned.stage.enforcer.as_ref().unwrap().signal(rustix::process::Signal::KILL);
    drop(owned.stage.enforcer.take());
    owned.stage.enforcer = Some(owned.stage.node.home.enforcer(&[]));
    let line = owned.until_result("terminating");
    assert!(line["detail"].as_str().unwrap().contains("its owner is stopped already"), "{line}");
    assert_eq!(owned.stage.api.patches().len(), 1);
}

#[test]
fn owner_that_is_started_again_is_not_stopped_again() {
    let owned = Owned::new(REPLICA_SET).with_deployment(1);
    owned.stage.rules_with("enforce", "{notify: [pod]}, {stop_owner: {}}", "notify: {pod: {event: true}}");
    let rules = std::fs::read_to_string(owned.stage.node.home.rules()).unwrap();
    let rules = rules.replace("    for: {samples: 3}", "    for: {samples: 3}\n    cooldown: 1h");
    owned.stage.node.home.write(&rules);
    let mut owned = owned.start();
    owned.until_stopped();
    owned.until_result("released");
    // The executor writes this line before the daemon takes note of the result.
    let labels = [("rule", "idle-pod"), ("result", "released")];
    let enforcer = owned.stage.enforcer.as_ref().unwrap();
    enforcer
        .until("the result", |page| page.value("bailiff_kills_total", &labels).filter(|count| *count > 0.0));
    // An autoscaler starts another pod. What was stopped is known over a restart.
    owned.stage.enforcer.take().unwrap().stop();
    owned.tenants.clear();
    owned.stage.api.remove_pod(("team", "web-1"));
    let mut owned = owned.with_deployment(1);
    owned.add_pod(2, REPLICA_SET);
    owned.stage.api.add_pod(("team", "web-2", &uid(2)), |pod| {
        pod["metadata"]["ownerReferences"] = reference(REPLICA_SET, 1);
        pod["metadata"]["labels"] = json!({"app": "web"});
        pod["metadata"]["creationTimestamp"] = json!(ago(Duration::ZERO));
    });
    owned.stage.enforcer = Some(owned.stage.node.home.enforcer(&[]));
    let line = owned.until_result("undone");
    assert!(line["detail"].as_str().unwrap().contains("has created the pod within 1h"), "{line}");
    assert_eq!(owned.stage.api.patches().len(), 1);
    let reasons = |events: Vec<Value>| events.into_iter().map(|it| it["reason"].clone()).collect::<Vec<_>>();
    until("the Events", || {
        Some(reasons(owned.stage.api.events())).filter(|reasons| reasons.contains(&json!("StoppedByRule")))
    });
}
