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

use crate::evict_pod::by_budget;

/// `bailiff-kubernetes` of node `node-1`.
struct Service {
    program: Child,
    directory: TempDir,
}

impl Service {
    fn start(api: &ApiServer) -> Self {
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
    fn answer_to(&self, verb: &str, (name, uid): (&str, &str)) -> Value {
        let pod = json!({"namespace": "team", "name": name, "uid": uid});
        let request = match verb {
            "get" => json!({"get": {"pod": pod}}),
            "event" => json!({"event": {"pod": pod, "reason": "GPUIdle", "note": "idle"}}),
            verb => json!({"evict": {"pod": pod, "dry_run": verb == "test"}}),
        };
        let mut answer = query(&self.socket(), &request).unwrap();
        if let Some(answer) = answer.as_object_mut() {
            answer.remove("message");
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

const PODS: &str = "/api/v1/namespaces/team/pods";
const BUDGETS: &str = "/apis/policy/v1beta1/namespaces/team/poddisruptionbudgets";
const OTHER: &str = "0b1c2d3e-0000-4000-8000-000000000009";

/// A real API server.
struct Real(KubeApiServer);

impl Real {
    /// Creates a running pod of a node with this label, and returns its UID.
    fn pod(&self, name: &str, node: &str, owner: Option<&str>) -> String {
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
        self.0.create(BUDGETS, &budget);
        let status = json!({
            "observedGeneration": 1, "disruptionsAllowed": permitted, "currentHealthy": 1, "desiredHealthy": 1,
            "expectedPods": 1,
        });
        self.0.patch(&format!("{BUDGETS}/{name}/status"), &json!({"status": status}));
    }

    fn is_deleted(&self, name: &str) -> bool {
        self.0.get(&format!("{PODS}/{name}"))["metadata"]["deletionTimestamp"].is_string()
    }
}

#[test]
#[ignore = "needs an API server that takes minutes to build: make test-kubernetes"]
fn real_api_server_answers_as_the_made_up_one() {
    let real = Real(KubeApiServer::start());
    let clients = real.0.for_clients();
    let service = Service::start(&clients);
    let made_up = ApiServer::start();
    let fake = Service::start(&made_up);
    let add = |name: &str, node: &str, owner: Option<&str>| {
        let uid = real.pod(name, node, owner);
        made_up.add_pod(("team", name, &uid), |pod| {
            pod["spec"]["nodeName"] = json!(node);
            pod["spec"]["terminationGracePeriodSeconds"] = json!(7);
            if let Some(kind) = owner {
                pod["metadata"]["ownerReferences"] = json!([{"kind": kind, "controller": true}]);
            }
        });
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
