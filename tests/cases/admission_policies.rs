//! The admission policies of the components, on an API server that has them: Kubernetes 1.30 or newer. There is no kubelet and no
//! controller, so the tests write what they would write.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "a case runs programs and fails loudly")]

use end_to_end::api_server::ApiServer;
use end_to_end::kube_apiserver::KubeApiServer;
use end_to_end::wait::until;
use serde_json::{Value, json};

use crate::kubernetes::all_of_component;
use crate::real_api_server::{JOBS, NOTEBOOKS, OWNERS, PODS, Real, Service, owners};

/// An API server with the components, and `bailiff-kubernetes` of node `node-1`.
struct Policed {
    service: Service,
    clients: ApiServer,
    token: String,
    real: Real,
    /// UID of a pod on the node.
    plain: String,
}

impl Policed {
    fn new() -> Self {
        let real = Real(KubeApiServer::start());
        assert!(real.0.is_current(), "admission policies need Kubernetes 1.30");
        let path = "/apis/admissionregistration.k8s.io/v1";
        for component in ["eviction", "stop-owner"] {
            real.0.bind(&all_of_component(&format!("{component}/cluster-role.yaml"))[0]);
            let manifests = all_of_component(&format!("{component}/admission-policy.yaml"));
            real.0.create(&format!("{path}/validatingadmissionpolicies"), &manifests[0]);
            real.0.create(&format!("{path}/validatingadmissionpolicybindings"), &manifests[1]);
        }
        let clients = real.0.for_clients();
        let service = Service::start(&clients);
        let plain = real.pod("plain", "node-1", None);
        let mut this = Self { service, clients, token: String::new(), real, plain };
        // The token of the test has no node. The policies are in force some time after they were created.
        until("the policy is in force", || (this.evict("plain", &this.plain) == 403).then_some(()));
        this.use_token_of("node-1");
        this
    }

    /// Writes the token of a pod of `bailiff-kubernetes` on a node, as the kubelet does.
    fn use_token_of(&mut self, node: &str) {
        let account = "/api/v1/namespaces/bailiff/serviceaccounts";
        let _ = self.real.0.try_create(account, &json!({"metadata": {"name": "bailiff"}}));
        let containers = json!([{"name": "main", "image": "none"}]);
        let pod = json!({
            "metadata": {"name": format!("bailiff-{node}")},
            "spec": {"nodeName": node, "serviceAccountName": "bailiff", "containers": containers},
        });
        let pod = self.real.0.create("/api/v1/namespaces/bailiff/pods", &pod);
        let metadata = &pod["metadata"];
        let bound =
            json!({"kind": "Pod", "apiVersion": "v1", "name": metadata["name"], "uid": metadata["uid"]});
        let request = json!({"spec": {"boundObjectRef": bound, "expirationSeconds": 600}});
        let created = self.real.0.create(&format!("{account}/bailiff/token"), &request);
        created["status"]["token"].as_str().unwrap().clone_into(&mut self.token);
        std::fs::write(self.clients.account().join("token"), &self.token).unwrap();
    }

    /// Returns the status of the answer to a test of an eviction.
    fn evict(&self, name: &str, uid: &str) -> u64 {
        self.service.answer_to("test", (name, uid))["status"].as_u64().unwrap_or_default()
    }

    /// Sends a request with the token, and returns the status and the body.
    fn send(&self, what: (&str, &str), body: &Value) -> (u16, Value) {
        self.real.0.as_client(&self.token, what, body)
    }
}

#[test]
#[ignore = "needs an API server of version 1.30 or newer: make test-kubernetes KUBE_APISERVER=PATH"]
fn only_pods_of_the_own_node_are_evicted() {
    let mut policed = Policed::new();
    let away = policed.real.pod("away", "node-2", None);
    let of_daemon_set = policed.real.pod("agent", "node-1", Some("DaemonSet"));
    let statuses = |policed: &Policed| {
        [("plain", &policed.plain), ("away", &away), ("agent", &of_daemon_set)]
            .map(|(name, uid)| policed.evict(name, uid))
    };
    assert_eq!(statuses(&policed), [201, 403, 403]);
    for options in [json!({}), json!({"gracePeriodSeconds": 0, "preconditions": {"uid": policed.plain}})] {
        let metadata = json!({"name": "plain", "namespace": "team"});
        let body = json!({
            "apiVersion": "policy/v1", "kind": "Eviction", "metadata": metadata, "deleteOptions": options,
        });
        assert_eq!(policed.send(("POST", &format!("{PODS}/plain/eviction")), &body).0, 403, "{options}");
    }
    policed.use_token_of("node-2");
    assert_eq!(statuses(&policed), [403, 201, 403]);
}

#[test]
#[ignore = "needs an API server of version 1.30 or newer: make test-kubernetes KUBE_APISERVER=PATH"]
fn owners_are_only_stopped() {
    let policed = Policed::new();
    owners(&policed.real);
    let (db, job) = (format!("{OWNERS}/statefulsets/db/scale"), format!("{JOBS}/train"));
    let lab = format!("{NOTEBOOKS}/lab");
    let stops = json!({"kubeflow-resource-stopped": "x"});
    let change = |path: &str, change: &Value| policed.send(("PATCH", path), change);
    until("the policy is in force", || {
        (change(&db, &json!({"spec": {"replicas": 5}})).0 == 403).then_some(())
    });
    for (path, other) in [
        (&db, json!({"spec": {"replicas": 2}})),
        (&job, json!({"spec": {"parallelism": 0}})),
        (&job, json!({"spec": {"suspend": true, "backoffLimit": 0}})),
        (&job, json!({"spec": {"suspend": true}, "metadata": {"labels": {"x": "y"}}})),
        (&job, json!({"spec": {"suspend": true}, "metadata": {"annotations": {"x": "y"}}})),
        (&lab, json!({"spec": {"template": {"x": 2}}})),
        (&lab, json!({"metadata": {"annotations": {"x": "y"}}})),
        (&lab, json!({"metadata": {"annotations": stops, "labels": {"x": "y"}}})),
    ] {
        let (status, answer) = change(path, &other);
        assert_eq!(status, 403, "{path} {other}: {answer}");
    }
}

#[test]
#[ignore = "needs an API server of version 1.30 or newer: make test-kubernetes KUBE_APISERVER=PATH"]
fn owner_with_a_running_pod_on_another_node_is_not_stopped() {
    let policed = Policed::new();
    let real = &policed.real.0;
    for (kind, name, uid) in owners(&policed.real) {
        let pod = (name.as_str(), uid.as_str());
        let owner = policed.service.owner_of(pod);
        let stop = |dry_run| policed.service.stop(pod, &owner, dry_run);
        let second = format!("{PODS}/second");
        let mut object = real.get(&format!("{PODS}/{name}"));
        let metadata = object["metadata"].take();
        object["metadata"] = json!({
            "name": "second", "labels": metadata["labels"], "ownerReferences": metadata["ownerReferences"],
        });
        object["spec"] = json!({"nodeName": "node-2", "containers": [{"name": "main", "image": "none"}]});
        real.create(PODS, &object);
        until("the policy sees the pod", || {
            let (status, message) = stop(true);
            (status == 403 && message.contains("not all running pods")).then_some(())
        });
        real.patch(&format!("{second}/status"), &json!({"status": {"phase": "Succeeded"}}));
        until("the policy sees that it has finished", || (stop(true).0 == 200).then_some(()));
        assert_eq!(stop(false).0, 200, "{kind}");
        real.delete(&second);
        until("it is deleted", || real.get(&second)["metadata"]["uid"].is_null().then_some(()));
    }
}
