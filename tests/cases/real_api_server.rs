//! `bailiff-kubernetes` with a real API server, whose answers must be those of the made-up one. Run by `make test-kubernetes`.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "a case runs programs and fails loudly")]

use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command};

use bailiff_lifecycle::control::query;
use end_to_end::api_server::{ApiServer, Reply};
use end_to_end::kube_apiserver::KubeApiServer;
use end_to_end::programs;
use end_to_end::wait::until;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::evict_pod::{Stage, by_budget};
use crate::kubernetes::all_of_component;

/// `bailiff-kubernetes` of node `node-1`.
pub(crate) struct Service {
    program: Child,
    directory: TempDir,
}

impl Service {
    pub(crate) fn start(api: &ApiServer) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let mut command = Command::new(programs::built("bailiff-kubernetes"));
        command.arg("--socket").arg(directory.path().join("api.sock")).args(["--api-server", api.address()]);
        command.arg("--service-account").arg(api.account()).env("BAILIFF_NODE_NAME", "node-1");
        let service = Self { program: command.spawn().unwrap(), directory };
        until("the socket", || UnixStream::connect(service.socket()).ok());
        service
    }

    fn socket(&self) -> PathBuf {
        self.directory.path().join("api.sock")
    }

    /// Returns the answer about a pod, without its text.
    pub(crate) fn answer_to(&self, verb: &str, (name, uid): (&str, &str)) -> Value {
        let pod = json!({"namespace": "team", "name": name, "uid": uid});
        let request = match verb {
            "get" => json!({"get": {"pod": pod}}),
            "event" => json!({"event": {"pod": pod, "reason": "GPUIdle", "note": "idle"}}),
            verb => json!({"evict": {"pod": pod, "dry_run": verb == "test", "until_ms": u64::MAX}}),
        };
        let mut answer = query(&self.socket(), &request).unwrap();
        if let Some(answer) = answer.as_object_mut() {
            answer.remove("message");
            if let Some(pod) = answer.get_mut("pod").and_then(Value::as_object_mut) {
                pod.remove("created");
            }
        }
        answer
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.program.kill().unwrap();
        self.program.wait().unwrap();
    }
}

pub(crate) const PODS: &str = "/api/v1/namespaces/team/pods";
const OTHER: &str = "0b1c2d3e-0000-4000-8000-000000000009";

pub(crate) const OWNERS: &str = "/apis/apps/v1/namespaces/team";
pub(crate) const JOBS: &str = "/apis/batch/v1/namespaces/team/jobs";
pub(crate) const NOTEBOOKS: &str = "/apis/kubeflow.org/v1/namespaces/team/notebooks";

/// A real API server.
pub(crate) struct Real(pub(crate) KubeApiServer);

impl Real {
    /// Creates the pod that a controller would create for an owner.
    fn pod_of(&self, name: &str, node: &str, (api, kind, owner): (&str, &str, &Value)) -> String {
        let metadata = &owner["metadata"];
        let labels = &owner["spec"]["template"]["metadata"]["labels"];
        let reference = json!([{
            "apiVersion": api, "kind": kind, "name": metadata["name"], "uid": metadata["uid"], "controller": true,
        }]);
        let pod = json!({
            "metadata": {"name": name, "labels": labels, "ownerReferences": reference},
            "spec": {"nodeName": node, "containers": [{"name": "main", "image": "none"}]},
        });
        let created = self.0.create(PODS, &pod);
        self.0.patch(&format!("{PODS}/{name}/status"), &json!({"status": {"phase": "Running"}}));
        created["metadata"]["uid"].as_str().unwrap().to_owned()
    }

    /// Creates an owner of pods with the label `app=NAME`, and writes the status that its controller would write.
    fn owner(&self, path: &str, (spec, status): (Value, Value), owner: &Value) -> Value {
        let name = path.rsplit_once('/').unwrap().1;
        let mut object = json!({"metadata": {"name": name, "ownerReferences": owner}, "spec": spec});
        let containers = json!([{"name": "main", "image": "none"}]);
        object["spec"]["template"] = json!({
            "metadata": {"labels": {"app": name}}, "spec": {"containers": containers, "restartPolicy": "Always"},
        });
        if path.starts_with(JOBS) {
            object["spec"]["template"]["spec"]["restartPolicy"] = json!("Never");
        } else {
            object["spec"]["selector"] = json!({"matchLabels": {"app": name}});
            object["metadata"]["labels"] = json!({"app": name});
        }
        self.0.create(path.rsplit_once('/').unwrap().0, &object);
        self.0.patch(&format!("{path}/status"), &json!({"status": status}));
        self.0.get(path)
    }

    /// Creates a notebook, and its resource before the first.
    fn notebook(&self, name: &str) -> Value {
        let names = json!({"plural": "notebooks", "singular": "notebook", "kind": "Notebook"});
        let schema = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
        let version =
            json!({"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}});
        let definition = json!({
            "metadata": {"name": "notebooks.kubeflow.org"},
            "spec": {"group": "kubeflow.org", "names": names, "scope": "Namespaced", "versions": [version]},
        });
        let definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
        if self.0.get(&format!("{definitions}/notebooks.kubeflow.org"))["spec"].is_null() {
            self.0.create(definitions, &definition);
        }
        let object = json!({"metadata": {"name": name}, "spec": {"template": {"x": 1}}, "kind": "Notebook",
            "apiVersion": "kubeflow.org/v1"});
        until("the resource", || {
            self.0.try_create(NOTEBOOKS, &object).ok().or_else(|| {
                Some(self.0.get(&format!("{NOTEBOOKS}/{name}"))).filter(|it| it["spec"].is_object())
            })
        })
    }

    /// Creates a running pod of a node with this label, and returns its UID.
    pub(crate) fn pod(&self, name: &str, node: &str, owner: Option<&str>) -> String {
        let owner = owner.map(|kind| {
            json!([{"apiVersion": "apps/v1", "kind": kind, "name": "x", "uid": OTHER, "controller": true}])
        });
        let pod = json!({
            "metadata": {"name": name, "labels": {"app": name}, "ownerReferences": owner},
            "spec": {
                "nodeName": node, "terminationGracePeriodSeconds": 7,
                "containers": [{"name": "main", "image": "none"}],
            },
        });
        let created = self.0.create(PODS, &pod);
        self.0.patch(
            &format!("{PODS}/{name}/status"),
            &json!({"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}}),
        );
        created["metadata"]["uid"].as_str().unwrap().to_owned()
    }

    /// Creates a disruption budget for these pods that permits so many disruptions.
    fn budget(&self, name: &str, app: &str, permitted: u32) {
        let budget = json!({
            "metadata": {"name": name},
            "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": app}}},
        });
        let version = if self.0.is_current() { "v1" } else { "v1beta1" };
        let budgets = format!("/apis/policy/{version}/namespaces/team/poddisruptionbudgets");
        self.0.create(&budgets, &budget);
        let status = json!({
            "observedGeneration": 1, "disruptionsAllowed": permitted, "currentHealthy": 1, "desiredHealthy": 1,
            "expectedPods": 1,
        });
        self.0.patch(&format!("{budgets}/{name}/status"), &json!({"status": status}));
    }

    fn is_deleted(&self, name: &str) -> bool {
        self.0.get(&format!("{PODS}/{name}"))["metadata"]["deletionTimestamp"].is_string()
    }
}

/// Adds the same pod to the made-up API server.
fn add_made_up((name, uid): (&str, &str), (node, owner): (&str, Option<&str>), api: &ApiServer) {
    api.add_pod(("team", name, uid), |pod| {
        pod["spec"]["nodeName"] = json!(node);
        pod["spec"]["terminationGracePeriodSeconds"] = json!(7);
        if let Some(kind) = owner {
            pod["metadata"]["ownerReferences"] = json!([{"kind": kind, "controller": true}]);
        }
    });
}

#[test]
#[ignore = "needs an API server that takes minutes to build: make test-kubernetes"]
fn real_api_server_answers_as_the_made_up_one() {
    let real = Real(KubeApiServer::start());
    real.0.bind(&all_of_component("eviction/cluster-role.yaml")[0]);
    let clients = real.0.for_clients();
    let service = Service::start(&clients);
    let made_up = ApiServer::start();
    let fake = Service::start(&made_up);
    let add = |name: &str, node: &str, owner: Option<&str>| {
        let uid = real.pod(name, node, owner);
        add_made_up((name, &uid), (node, owner), &made_up);
        uid
    };
    let same = |verb: &str, pod: (&str, &str)| {
        let (found, expected) = (service.answer_to(verb, pod), fake.answer_to(verb, pod));
        assert_eq!(found, expected, "{verb} {pod:?}");
        found
    };
    let plain = add("plain", "node-1", None);
    let away = add("away", "node-2", Some("ReplicaSet"));
    assert_eq!(same("get", ("plain", &plain))["pod"]["uid"], plain.as_str());
    assert_eq!(same("get", ("away", &away))["pod"]["owner"], "ReplicaSet");
    assert_eq!(same("get", ("nothing", OTHER))["status"], 404);
    assert_eq!(same("event", ("plain", &plain))["status"], 201);
    let events = real.0.get("/apis/events.k8s.io/v1/namespaces/team/events");
    assert_eq!(events["items"][0]["regarding"]["uid"], plain.as_str(), "{events}");
    // A wrong UID, and a test, change nothing.
    assert_eq!(same("evict", ("plain", OTHER))["status"], 409);
    assert_eq!(same("test", ("plain", &plain))["status"], 201);
    assert!(!real.is_deleted("plain"));
    // A second eviction of the same UID changes nothing either.
    for _ in 0..2 {
        assert_eq!(same("evict", ("plain", &plain))["status"], 201);
        assert!(real.is_deleted("plain"));
    }
    let found = service.answer_to("get", ("plain", &plain));
    assert_eq!(found["pod"]["deletion"]["grace_seconds"], 7, "{found}");
    // One budget that permits nothing, and two budgets.
    let kept = add("kept", "node-1", None);
    real.budget("first", "kept", 0);
    made_up.reply(&[Reply::With(429, "", by_budget())]);
    assert_eq!(same("evict", ("kept", &kept))["by_budget"], true);
    real.budget("second", "kept", 1);
    assert_eq!(service.answer_to("evict", ("kept", &kept))["status"], 500);
    assert!(!real.is_deleted("kept"));
    // A namespace without the role, and another token.
    let outside = json!({"get": {"pod": {"namespace": "bailiff", "name": "x", "uid": OTHER}}});
    assert_eq!(query(&service.socket(), &outside).unwrap()["status"], 403);
    std::fs::write(clients.account().join("token"), "other").unwrap();
    assert_eq!(service.answer_to("get", ("kept", &kept))["status"], 401);
}

/// Owners of pods, each as the API server has it.
pub(crate) fn owners(real: &Real) -> Vec<(&'static str, String, String)> {
    let none = Value::Null;
    let counted = || (json!({"replicas": 1}), json!({"replicas": 1}));
    let deployment = real.owner(&format!("{OWNERS}/deployments/web"), counted(), &none);
    let metadata = &deployment["metadata"];
    let above = |api: &str, kind: &str, metadata: &Value| {
        json!([{
            "apiVersion": api, "kind": kind, "name": metadata["name"], "uid": metadata["uid"], "controller": true,
            "blockOwnerDeletion": true,
        }])
    };
    let set = real.owner(
        &format!("{OWNERS}/replicasets/web"),
        counted(),
        &above("apps/v1", "Deployment", metadata),
    );
    let web = real.pod_of("web-1", "node-1", ("apps/v1", "ReplicaSet", &set));
    let stateful = real.owner(&format!("{OWNERS}/statefulsets/db"), counted(), &none);
    let db = real.pod_of("db-0", "node-1", ("apps/v1", "StatefulSet", &stateful));
    let job = real.owner(&format!("{JOBS}/train"), (json!({}), json!({"active": 1})), &none);
    let train = real.pod_of("train-x", "node-1", ("batch/v1", "Job", &job));
    let notebook = real.notebook("lab");
    let lab = real.owner(
        &format!("{OWNERS}/statefulsets/lab"),
        counted(),
        &above("kubeflow.org/v1", "Notebook", &notebook["metadata"]),
    );
    let lab = real.pod_of("lab-0", "node-1", ("apps/v1", "StatefulSet", &lab));
    vec![
        ("Deployment", "web-1".to_owned(), web),
        ("StatefulSet", "db-0".to_owned(), db),
        ("Job", "train-x".to_owned(), train),
        ("Notebook", "lab-0".to_owned(), lab),
    ]
}

impl Service {
    fn ask(&self, verb: &str, (name, uid): (&str, &str), more: &Value) -> Value {
        let mut body = json!({"pod": {"namespace": "team", "name": name, "uid": uid}});
        for (key, value) in more.as_object().unwrap() {
            body[key] = value.clone();
        }
        query(&self.socket(), &json!({verb: body})).unwrap()
    }

    /// Returns the owner of a pod.
    pub(crate) fn owner_of(&self, pod: (&str, &str)) -> Value {
        let mut answer = self.ask("owner", pod, &json!({}));
        assert_eq!(answer["status"], 200, "{answer}");
        answer["owner"].take()
    }

    /// Returns the status of the answer to a stop, and its text.
    pub(crate) fn stop(&self, pod: (&str, &str), owner: &Value, dry_run: bool) -> (u64, String) {
        let answer =
            self.ask("stop", pod, &json!({"owner": owner, "dry_run": dry_run, "until_ms": u64::MAX}));
        (answer["status"].as_u64().unwrap_or_default(), answer["message"].as_str().unwrap().to_owned())
    }
}

#[test]
#[ignore = "needs an API server that takes minutes to build: make test-kubernetes"]
fn real_api_server_stops_owners() {
    let real = Real(KubeApiServer::start());
    for component in ["eviction", "stop-owner"] {
        real.0.bind(&all_of_component(&format!("{component}/cluster-role.yaml"))[0]);
    }
    let clients = real.0.for_clients();
    let service = Service::start(&clients);
    let mut owners = owners(&real);
    // Older versions do not know `suspend`.
    owners.retain(|(kind, ..)| *kind != "Job" || real.0.is_current());
    for (kind, name, uid) in owners {
        let pod = (name.as_str(), uid.as_str());
        let owner = service.owner_of(pod);
        let scale = &owner["scale"];
        assert_eq!((&owner["kind"], &scale["pods"]), (&json!(kind), &json!(1)), "{owner}");
        assert_eq!((&scale["own"], &scale["is_stopped"]), (&json!([uid]), &json!(false)), "{owner}");
        // Another UID, another version, and a test change nothing.
        let with = |pointer: &str, value: &str| {
            let mut other = owner.clone();
            *other.pointer_mut(pointer).unwrap() = json!(value);
            service.stop(pod, &other, false)
        };
        // A replaced owner has another version, too.
        let status = with("/object/uid", OTHER).0;
        assert!([409, 422].contains(&status), "{kind}: {status}");
        assert_eq!(with("/scale/version", "1").0, 409, "{kind}");
        assert_eq!(service.stop(pod, &owner, true).0, 200, "{kind}");
        assert_eq!(service.owner_of(pod), owner);
        let stopped = service.stop(pod, &owner, false);
        assert_eq!(stopped.0, 200, "{kind}: {stopped:?}");
        assert_eq!(service.owner_of(pod)["scale"]["is_stopped"], true, "{kind}");
    }
}

#[test]
#[ignore = "needs an API server that takes minutes to build: make test-kubernetes"]
fn enforcer_has_a_real_api_server_evict_a_pod() {
    let real = Real(KubeApiServer::start());
    real.0.bind(&all_of_component("eviction/cluster-role.yaml")[0]);
    let uid = real.pod("web", "node-1", None);
    let mut stage = Stage::new();
    stage.api = real.0.for_clients();
    let mut tenant = stage.holder(("team", "web", &uid), 'a');
    stage.start();
    let path = format!("{PODS}/web");
    until("the pod is being deleted", || {
        real.0.get(&path)["metadata"]["deletionTimestamp"].is_string().then_some(())
    });
    tenant.end();
    let line = stage.node.home.until_line("evict_pod", "released");
    assert_eq!(line["detail"], "pod team/web", "{line}");
}
