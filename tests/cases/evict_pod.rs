//! The step `evict_pod` with `bailiff-kubernetes`, an API server, and processes in the cgroups of pods.
#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "a case runs programs, reads files and fails loudly"
)]

use std::fs;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::LazyLock;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::spawn;
use std::time::{Duration, Instant};

use bailiff_lifecycle::control::query;
use end_to_end::api_server::{ApiServer, Reply, failure};
use end_to_end::cgroups::Slice;
use end_to_end::enforcer::{self, Enforcer};
use end_to_end::node::{Node, TICKS};
use end_to_end::programs;
use end_to_end::tenant::{NOBODY_UID, Tenant};
use end_to_end::wait::until;
use serde_json::{Value, json};
use tempfile::TempDir;

/// UIDs of two pods. Other tests have other pods on the same machine.
static UID: LazyLock<String> = LazyLock::new(|| uid(1));
static OTHER_UID: LazyLock<String> = LazyLock::new(|| uid(2));

pub(crate) fn uid(pod: u8) -> String {
    format!("0b1c2d3e-0000-4000-800{pod}-{:012}", std::process::id())
}

/// Namespace, name and UID of the pod.
fn pod() -> (&'static str, &'static str, &'static str) {
    ("team", "web", &UID)
}

/// The next pod of this name.
fn other() -> (&'static str, &'static str, &'static str) {
    ("team", "web", &OTHER_UID)
}

/// A node whose enforcer evicts idle pods.
pub(crate) struct Stage {
    // The enforcer ends first, so that it does not wait for processes.
    pub(crate) enforcer: Option<Enforcer>,
    kubernetes: Option<Child>,
    pub(crate) node: Node,
    pub(crate) api: ApiServer,
    /// Directory of the pods' logs.
    pods: TempDir,
    slice: Slice,
}

impl Stage {
    pub(crate) fn new() -> Self {
        Self::with(&[])
    }

    pub(crate) fn with(exporter_flags: &[&str]) -> Self {
        let pods = tempfile::tempdir().unwrap();
        let flag = format!("--pods={}", pods.path().display());
        let ticks: Vec<&str> =
            TICKS.into_iter().chain([flag.as_str()]).chain(exporter_flags.iter().copied()).collect();
        let node = Node::with_ticks("version: 1\nrules: []", &[""], &ticks);
        let api = ApiServer::start();
        let stage = Self { enforcer: None, kubernetes: None, node, api, pods, slice: Slice::new() };
        stage.rules("enforce", "{}", "");
        stage
    }

    fn socket(&self) -> String {
        self.node.home.path().join("api.sock").display().to_string()
    }

    fn rules(&self, mode: &str, step: &str, more: &str) {
        self.rules_with(mode, &format!("{{evict_pod: {step}}}"), more);
    }

    /// Writes rules with these steps.
    pub(crate) fn rules_with(&self, mode: &str, steps: &str, more: &str) {
        self.node.home.write(&format!(
            "version: 1
mode: {mode}
allow_root: true
defaults: {{startup_grace: 0s, clear_after: 1, cooldown: 0s}}
limits: {{per_gpu_hour: 100, per_user_hour: 100, per_node_hour: 100, per_namespace_hour: 100, mass_min: 9}}
kubernetes: {{socket: {}}}
{more}
rules:
  - name: idle-pod
    target: pod
    when: {{gpu_util: {{max: 1%}}, cpu_util: {{max: 50%}}}}
    for: {{samples: 3}}
    then: [{steps}]
",
            self.socket()
        ));
    }

    /// Adds a channel, and replaces the steps.
    pub(crate) fn channel(&self, channels: &str, steps: &str) {
        let rules = fs::read_to_string(self.node.home.rules()).unwrap();
        let rules =
            rules.replace("{evict_pod: {}}", steps).replace("rules:", &format!("notify: {channels}\nrules:"));
        self.node.home.write(&rules);
    }

    fn command(&self) -> Command {
        self.command_for(self.api.address())
    }

    /// Returns the command of `bailiff-kubernetes` with this API server.
    fn command_for(&self, address: &str) -> Command {
        let mut command = Command::new(programs::built("bailiff-kubernetes"));
        command.args(["--socket", &self.socket(), "--api-server", address]);
        command.arg("--service-account").arg(self.api.account()).env("BAILIFF_NODE_NAME", "node-1");
        // It uses no proxy.
        command.env("HTTPS_PROXY", "http://127.0.0.1:1").env("ALL_PROXY", "http://127.0.0.1:1");
        command
    }

    /// Starts `bailiff-kubernetes` and the enforcer.
    pub(crate) fn start(&mut self) {
        self.start_kubernetes();
        self.enforcer = Some(self.node.home.enforcer(&[]));
    }

    pub(crate) fn start_kubernetes(&mut self) {
        let address = self.api.address().to_owned();
        self.start_kubernetes_for(&address);
    }

    fn start_kubernetes_for(&mut self, address: &str) {
        self.kubernetes = Some(self.command_for(address).stderr(Stdio::null()).spawn().unwrap());
        until("the socket", || UnixStream::connect(self.socket()).ok());
    }

    /// Starts a process in a container of a pod.
    pub(crate) fn process(&self, pod: (&str, &str, &str), container: char) -> Tenant {
        self.contain(pod, container, Tenant::ending_on_term(&self.node.home))
    }

    /// Starts a process of this name in a container of a pod.
    pub(crate) fn named_process(&self, pod: (&str, &str, &str), container: char, name: &str) -> Tenant {
        self.contain(pod, container, self.outside(name))
    }

    /// Starts a process of this name outside pods.
    fn outside(&self, name: &str) -> Tenant {
        let program = format!("printf {name} > /proc/$$/comm; echo ready; while :; do read nothing; done");
        Tenant::shell(&self.node.home, &program)
    }

    /// Requires more samples.
    fn for_longer(&self) {
        let rules = fs::read_to_string(self.node.home.rules()).unwrap();
        self.node.home.write(&rules.replace("for: {samples: 3}", "for: {samples: 8}"));
    }

    /// Moves a process into a container of a pod.
    fn contain(&self, (namespace, name, uid): (&str, &str, &str), container: char, tenant: Tenant) -> Tenant {
        let _ = fs::create_dir(self.pods.path().join(format!("{namespace}_{name}_{uid}")));
        let (pod, id) = (uid.replace('-', "_"), container.to_string().repeat(64));
        self.slice.take(&format!("kubepods-pod{pod}.slice/cri-containerd-{id}.scope"), tenant.pid());
        tenant
    }

    /// Starts such a process with GPU memory.
    pub(crate) fn holder(&self, pod: (&str, &str, &str), container: char) -> Tenant {
        let tenant = self.process(pod, container);
        self.node.hold(&tenant, 0, "used: 1GiB");
        tenant
    }

    /// Adds the pod to the API server, starts a process that holds memory in it, and starts the programs.
    fn with_pod(&mut self, change: impl FnOnce(&mut Value)) -> Tenant {
        self.api.add_pod(pod(), change);
        let tenant = self.holder(pod(), 'a');
        self.start();
        tenant
    }

    /// Waits for an eviction, and ends the processes of the pod as the kubelet does.
    fn until_evicted(&self, tenants: &mut [&mut Tenant]) {
        until("an eviction", || (!self.api.evictions().is_empty()).then_some(()));
        for tenant in tenants.iter_mut() {
            tenant.end();
        }
    }

    /// Waits for a result in the metric of results.
    fn until_counted(&self, result: &str) {
        let labels = [("rule", "idle-pod"), ("result", result)];
        let enforcer = self.enforcer.as_ref().unwrap();
        enforcer.until(result, |page| page.happened("bailiff_kills_total", &labels).then_some(()));
    }

    /// Sends a request to `bailiff-kubernetes`.
    pub(crate) fn query(&self, request: &Value) -> Value {
        query(&self.node.home.path().join("api.sock"), request).unwrap()
    }

    fn until_result(&self, result: &str) -> Value {
        self.node.home.until_line("evict_pod", result)
    }

    pub(crate) fn until_ticks(&self, ticks: u64) {
        self.enforcer.as_ref().unwrap().ticks(ticks);
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        drop(self.enforcer.take());
        if let Some(mut kubernetes) = self.kubernetes.take() {
            kubernetes.kill().unwrap();
            kubernetes.wait().unwrap();
        }
    }
}

fn owned_by(kind: &str) -> impl FnOnce(&mut Value) {
    let owners = json!([{"kind": "Other"}, {"kind": kind, "controller": true}]);
    move |pod| pod["metadata"]["ownerReferences"] = owners
}

#[test]
fn idle_pod_is_evicted_by_its_uid_and_no_process_is_signalled() {
    let mut stage = Stage::new();
    let mut tenant = stage.with_pod(|_| {});
    stage.until_evicted(&mut [&mut tenant]);
    let line = stage.until_result("released");
    assert_eq!(line["detail"], "pod team/web", "{line}");
    assert_eq!(line["target"]["pod"], json!({"namespace": "team", "name": "web", "uid": *UID}), "{line}");
    assert!(line["sent"].as_array().is_none_or(Vec::is_empty), "{line}");
    let evictions = stage.api.evictions();
    assert_eq!(evictions.len(), 1);
    assert_eq!(evictions[0].what, "POST /api/v1/namespaces/team/pods/web/eviction");
    let body = json!({
        "apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"namespace": "team", "name": "web"},
        "deleteOptions": {"preconditions": {"uid": *UID}},
    });
    assert_eq!(evictions[0].body, body);
    stage.until_counted("released");
    let labels = [("verb", "evict"), ("code", "201")];
    assert!(stage.enforcer.as_ref().unwrap().page().happened("bailiff_kubernetes_requests_total", &labels));
}

#[test]
fn dry_run_tests_the_eviction() {
    let mut stage = Stage::new();
    stage.rules("dry-run", "{}", "");
    let tenant = stage.with_pod(|_| {});
    let line = stage.until_result("dry_run");
    assert_eq!(line["detail"], "dry run: would evict pod team/web: the API server would accept it", "{line}");
    assert!(stage.api.requests().iter().any(|request| request.what.ends_with("/web/eviction?dryRun=All")));
    assert!(stage.api.evictions().is_empty() && tenant.is_running());
    let pid = tenant.pid().to_string();
    until("the explanation", || {
        let output = stage.enforcer.as_ref().unwrap().run(&["explain", "--pid", &pid]).stdout;
        String::from_utf8_lossy(&output).contains("the API server would accept it").then_some(())
    });
}

#[test]
fn dry_run_says_what_would_prevent_the_eviction() {
    let forbidden = failure(403, "Forbidden", "not this pod, or not on this node", &Value::Null);
    for (reply, why) in [
        (Reply::With(429, "", by_budget()), "the API server answered 429: Cannot evict pod"),
        (Reply::With(403, "", forbidden), "the API server answered 403: not this pod"),
    ] {
        let mut stage = Stage::new();
        stage.rules("dry-run", "{}", "");
        stage.api.reply(&[reply]);
        let _tenant = stage.with_pod(|_| {});
        let line = stage.until_result("dry_run");
        let expected = format!("dry run: would evict pod team/web: {why}");
        assert!(line["detail"].as_str().unwrap().starts_with(&expected), "{line}");
    }
}

#[test]
fn busy_process_in_another_container_keeps_the_pod() {
    let mut stage = Stage::new();
    // On a busy machine, it gets only a part of a core.
    let rules = fs::read_to_string(stage.node.home.rules()).unwrap();
    stage.node.home.write(&rules.replace("cpu_util: {max: 50%}", "cpu_util: {max: 5%}"));
    stage.api.add_pod(pod(), |_| {});
    let _idle = stage.holder(pod(), 'a');
    let mut shell = Command::new("/bin/sh");
    shell.args(["-c", "while :; do :; done"]);
    let mut busy = Tenant::spawn(&stage.node.home, shell);
    let uid = UID.replace('-', "_");
    let id = "b".repeat(64);
    stage.slice.take(&format!("kubepods-pod{uid}.slice/cri-containerd-{id}.scope"), busy.pid());
    stage.start();
    stage.until_ticks(8);
    assert!(stage.api.evictions().is_empty());
    busy.end();
    until("an eviction", || (!stage.api.evictions().is_empty()).then_some(()));
}

#[test]
fn pods_that_would_come_back_are_skipped() {
    for kind in ["Job", "ReplicaSet", "StatefulSet", "RayCluster", "DaemonSet", "Node"] {
        let mut stage = Stage::new();
        let tenant = stage.with_pod(owned_by(kind));
        let line = stage.until_result("not_evictable");
        assert!(line["detail"].as_str().unwrap().contains(kind), "{line}");
        assert!(stage.api.evictions().is_empty() && tenant.is_running(), "{kind}");
        if kind == "Job" {
            stage.until_counted("not_evictable");
            stage.node.home.until_line("flag", "raised");
        }
    }
    // The admission policy also refuses a pod that names a DaemonSet beside its controller.
    let mut stage = Stage::new();
    let _tenant = stage.with_pod(|pod| pod["metadata"]["ownerReferences"] = json!([{"kind": "DaemonSet"}]));
    stage.until_result("not_evictable");
}

#[test]
fn pod_in_the_own_namespace_is_kept() {
    let mut stage = Stage::new();
    fs::write(stage.api.account().join("namespace"), "team").unwrap();
    let _tenant = stage.with_pod(|_| {});
    let line = stage.until_result("not_evictable");
    assert!(line["detail"].as_str().unwrap().contains("namespace belongs to"), "{line}");
}

/// Directories of logs have names of pods.
#[test]
fn pod_with_an_invalid_name_is_not_sent_to_the_api_server() {
    let mut stage = Stage::new();
    let _tenant = stage.holder(("team", "web%2feviction", &UID), 'a');
    stage.start();
    let line = stage.until_result("refused");
    assert!(line["detail"].as_str().unwrap().contains("the name of the pod is not known"), "{line}");
    assert!(stage.api.requests().is_empty());
}

#[test]
fn recreated_pods_are_evicted_if_the_rule_permits_it() {
    let mut stage = Stage::new();
    stage.rules("enforce", "{recreated: allow}", "");
    let mut tenant = stage.with_pod(owned_by("StatefulSet"));
    stage.until_evicted(&mut [&mut tenant]);
    stage.until_result("released");
}

#[test]
fn pod_that_differs_from_the_evaluated_one_is_kept() {
    type Change = fn(&mut Value);
    let cases: [(&str, &str, Change); 8] = [
        ("identity_changed", "another node", |pod| pod["spec"]["nodeName"] = json!("node-2")),
        ("identity_changed", &OTHER_UID, |pod| pod["metadata"]["uid"] = json!(*OTHER_UID)),
        ("refused", "phase", |pod| pod["status"]["phase"] = json!("Pending")),
        ("terminating", "is being deleted", |pod| {
            pod["metadata"]["deletionTimestamp"] = json!("2100-01-01T00:00:00Z");
        }),
        ("not_terminated", "was deleted", |pod| {
            pod["metadata"]["deletionTimestamp"] = json!("2020-01-01T00:00:00Z");
        }),
        ("refused", "cannot be read", |pod| {
            pod["metadata"]["annotations"] = json!({"x": "<".repeat(11 << 20)});
        }),
        ("not_evictable", "system-node-critical", |pod| {
            pod["spec"]["priorityClassName"] = json!("system-node-critical");
        }),
        ("not_evictable", "static", |pod| {
            pod["metadata"]["annotations"] = json!({"kubernetes.io/config.mirror": "x"});
        }),
    ];
    for (result, why, change) in cases {
        let mut stage = Stage::new();
        let tenant = stage.with_pod(change);
        let line = stage.until_result(result);
        assert!(line["detail"].as_str().unwrap().contains(why), "{line}");
        assert!(stage.api.evictions().is_empty() && tenant.is_running(), "{why}");
    }
}

#[test]
fn pod_without_an_object_is_gone() {
    let mut stage = Stage::new();
    let tenant = stage.with_pod(|_| {});
    stage.api.remove_pod(("team", "web"));
    let line = stage.until_result("gone");
    assert!(line["detail"].as_str().unwrap().contains("404"), "{line}");
    assert!(tenant.is_running());
}

/// Returns the answer of an API server if a disruption budget does not permit the eviction.
pub(crate) fn by_budget() -> Value {
    let causes =
        json!({"causes": [{"reason": "DisruptionBudget", "message": "needs 1 healthy pods and has 1"}]});
    failure(
        429,
        "TooManyRequests",
        "Cannot evict pod as it would violate the pod's disruption budget.",
        &causes,
    )
}

#[test]
fn every_refusal_of_an_eviction_has_its_result() {
    let refused = |code, reason, message| Reply::With(code, "", failure(code, reason, message, &Value::Null));
    let two = "This pod has more than one PodDisruptionBudget";
    for (reply, result) in [
        (Reply::With(429, "Retry-After: 600\r\n", by_budget()), "blocked_by_pdb"),
        (refused(429, "TooManyRequests", "slow down"), "no_answer"),
        (refused(401, "Unauthorized", "Unauthorized"), "no_answer"),
        (refused(403, "Forbidden", "not this pod, or not on this node"), "forbidden"),
        (refused(422, "Invalid", "not valid"), "invalid"),
        (refused(500, "InternalError", two), "api_error"),
        (refused(503, "ServiceUnavailable", "not now"), "unknown"),
        (Reply::With(302, "Location: /elsewhere\r\n", json!("moved")), "unknown"),
        (Reply::With(200, "", json!("<html>")), "unknown"),
        (Reply::Lost, "unknown"),
    ] {
        let is_by_budget = result == "blocked_by_pdb";
        let hold = if is_by_budget { "a disruption budget" } else { "the API server of Kubernetes" };
        let mut stage = Stage::new();
        stage.api.reply(&[reply.clone(), reply.clone()]);
        let tenant = stage.with_pod(|_| {});
        let line = stage.until_result(result);
        assert!(tenant.is_running(), "{reply:?}: {line}");
        let withheld = stage.node.home.until_line("evict_pod", "withheld");
        let detail = withheld["detail"].as_str().unwrap();
        assert!(detail.contains(hold), "{reply:?}: {withheld}");
        let asked = stage.api.requests();
        assert!(!asked.iter().any(|request| request.what.contains("elsewhere")), "{asked:?}");
    }
}

#[test]
fn time_to_wait_is_read_from_each_form_of_an_answer() {
    let mut stage = Stage::new();
    stage.api.add_pod(pod(), |_| {});
    stage.start_kubernetes();
    let details = |seconds: u32| failure(429, "TooManyRequests", "", &json!({"retryAfterSeconds": seconds}));
    let plain = failure(429, "TooManyRequests", "", &Value::Null);
    for (header, body, expected) in [
        ("Retry-After: 600\r\n", plain.clone(), json!(600)),
        ("", details(7), json!(7)),
        ("Retry-After: Wed, 21 Oct 2015 07:28:00 GMT\r\n", plain, Value::Null),
    ] {
        stage.api.reply(&[Reply::With(429, header, body)]);
        let answer = stage.query(
            &json!({"evict": {"pod": {"namespace": "team", "name": "web", "uid": *UID}, "dry_run": false, "until_ms": u64::MAX}}),
        );
        assert_eq!((&answer["status"], &answer["retry_after"]), (&json!(429), &expected), "{answer}");
    }
}

/// An API server answers after 10 s if another pod of the name is pending. After 20 s, it is not waited for any longer.
#[test]
fn late_answer_is_waited_for_but_not_for_ever() {
    for (seconds, result) in [(11, "released"), (90, "unknown")] {
        let mut stage = Stage::new();
        stage.api.reply(&[Reply::Late(Duration::from_secs(seconds))]);
        let mut tenant = stage.with_pod(|_| {});
        stage.until_evicted(&mut [&mut tenant]);
        stage.until_result(result);
    }
}

/// Forwards connections to the API server. From the second one on, it waits until the test says that it may.
fn slow_proxy(stage: &Stage) -> (String, Sender<()>, Receiver<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("https://{}", listener.local_addr().unwrap());
    let to = stage.api.address().strip_prefix("https://").unwrap().to_owned();
    let ((go, may_go), (begin, has_begun)) = (channel(), channel());
    spawn(move || {
        for (number, client) in listener.incoming().map_while(Result::ok).enumerate() {
            if number > 0 {
                let _ = begin.send(());
                if may_go.recv().is_err() {
                    return;
                }
            }
            let server = TcpStream::connect(&to).unwrap();
            let (mut from, mut into) = (client.try_clone().unwrap(), server.try_clone().unwrap());
            let (mut back, mut out) = (server, client);
            spawn(move || {
                let _ = std::io::copy(&mut from, &mut into);
                let _ = into.shutdown(Shutdown::Write);
            });
            spawn(move || {
                let _ = std::io::copy(&mut back, &mut out);
                let _ = out.shutdown(Shutdown::Write);
            });
        }
    });
    (address, go, has_begun)
}

#[test]
fn eviction_that_could_not_be_sent_in_time_is_not_sent_later() {
    let mut stage = Stage::new();
    stage.api.add_pod(pod(), |_| {});
    let tenant = stage.holder(pod(), 'a');
    let (address, go, has_begun) = slow_proxy(&stage);
    stage.start_kubernetes_for(&address);
    stage.enforcer = Some(stage.node.home.enforcer(&[]));
    has_begun.recv().unwrap();
    let began = Instant::now();
    stage.node.hold(&tenant, 0, "used: 1GiB, sm: 90");
    stage.until_result("unknown");
    // It could be sent for 5 s; without that limit, for 20 s.
    assert!(began.elapsed() < Duration::from_secs(15), "{:?}", began.elapsed());
    go.send(()).unwrap();
    // A request that is answered shows that the earlier connection was used, if it was.
    go.send(()).unwrap();
    let get = json!({"get": {"pod": {"namespace": "team", "name": "web", "uid": *UID}}});
    assert_eq!(stage.query(&get)["status"], 200);
    let evict = |until_ms: u64| {
        let pod = json!({"namespace": "team", "name": "web", "uid": *UID});
        json!({"evict": {"pod": pod, "dry_run": false, "until_ms": until_ms}})
    };
    let answer = stage.query(&evict(1));
    assert!(answer["message"].as_str().unwrap().starts_with("not sent"), "{answer}");
    assert!(stage.api.evictions().is_empty() && tenant.is_running());
}

#[test]
fn pod_with_a_negative_grace_period_is_evicted() {
    let mut stage = Stage::new();
    let mut tenant = stage.with_pod(|pod| pod["spec"]["terminationGracePeriodSeconds"] = json!(-1));
    stage.until_evicted(&mut [&mut tenant]);
    stage.until_result("released");
}

#[test]
fn pod_is_read_again_after_an_eviction_without_an_answer() {
    let mut stage = Stage::new();
    stage.api.reply(&[Reply::Lost]);
    let _tenant = stage.with_pod(|_| {});
    stage.until_result("unknown");
    let line = stage.until_result("terminating");
    assert!(line["detail"].as_str().unwrap().contains("it is being deleted"), "{line}");
    assert_eq!(stage.api.evictions().len(), 1);
}

#[test]
fn memory_that_the_driver_still_lists_is_not_released() {
    let mut stage = Stage::new();
    stage.api.add_pod(pod(), |_| {});
    let mut tenant = stage.process(pod(), 'a');
    stage.node.hold_pid(tenant.pid(), "used: 1GiB");
    stage.start();
    stage.until_evicted(&mut [&mut tenant]);
    let line = stage.until_result("gone_not_released");
    assert!(line["detail"].as_str().unwrap().contains("the driver still lists process"), "{line}");
}

#[test]
fn eviction_is_tried_again_after_a_lost_answer_and_verified() {
    let mut stage = Stage::new();
    stage.api.reply(&[Reply::With(
        429,
        "Retry-After: 1\r\n",
        failure(429, "TooManyRequests", "", &Value::Null),
    )]);
    let mut tenant = stage.with_pod(|_| {});
    stage.until_result("no_answer");
    until("a second eviction", || (stage.api.evictions().len() == 2).then_some(()));
    tenant.end();
    stage.until_result("released");
}

#[test]
fn processes_that_still_run_after_the_grace_period_are_not_signalled() {
    let mut stage = Stage::new();
    stage.channel("{pod: {event: true}}", "{notify: [pod]}, {evict_pod: {}}");
    let tenant = stage.with_pod(|pod| pod["spec"]["terminationGracePeriodSeconds"] = json!(0));
    let line = stage.until_result("not_terminated");
    assert!(line["detail"].as_str().unwrap().contains(&tenant.pid().to_string()), "{line}");
    assert!(tenant.is_running() && tenant.terms_received() == 0);
    assert_eq!(stage.api.evictions().len(), 1);
    let is_failed = |event: &Value| event["reason"] == "EvictionFailed" && event["type"] == "Warning";
    until("the Event", || stage.api.events().iter().any(is_failed).then_some(()));
}

#[test]
fn long_grace_period_delays_no_other_action() {
    let mut stage = Stage::new();
    let tenant = stage.with_pod(|pod| pod["spec"]["terminationGracePeriodSeconds"] = json!(1_000_000_000));
    // The enforcer looks at it again later.
    let line = stage.until_result("terminating");
    assert!(line["detail"].as_str().unwrap().contains("processes still run"), "{line}");
    assert!(tenant.is_running() && stage.api.evictions().len() == 1);
}

#[test]
fn protected_process_in_any_container_keeps_the_pod() {
    let mut stage = Stage::new();
    stage.api.add_pod(pod(), |_| {});
    let _idle = stage.holder(pod(), 'a');
    // The enforcer reads processes without GPU memory again before the action.
    let _sidecar = stage.named_process(pod(), 'b', "guarded");
    let unprotected = ("team", "lab", OTHER_UID.as_str());
    stage.api.add_pod(unprotected, |_| {});
    let mut evicted = stage.holder(unprotected, 'c');
    stage.rules("enforce", "{}", "protect: {comms: [guarded]}");
    // The exporter reads names of new pods once in a second.
    stage.for_longer();
    stage.start();
    stage.until_evicted(&mut [&mut evicted]);
    stage.until_ticks(4);
    let evictions = stage.api.evictions();
    assert!(evictions.iter().all(|it| it.what.contains("/pods/lab/")), "{evictions:?}");
}

#[test]
fn dead_service_holds_the_step_and_nothing_else() {
    let mut stage = Stage::new();
    let rules = fs::read_to_string(stage.node.home.rules()).unwrap();
    let other = "  - {name: other, target: workload, select: {comms: [outside]}, when: {gpu_util: {max: 1%}},
    for: {samples: 3}, then: [{after: {samples: 8}, terminate: {}}]}";
    stage.node.home.write(&format!("{rules}{other}\n"));
    stage.api.add_pod(pod(), |_| {});
    let tenant = stage.holder(pod(), 'a');
    let outside = stage.outside("outside");
    stage.node.hold(&outside, 0, "used: 1GiB");
    stage.enforcer = Some(stage.node.home.enforcer(&[]));
    let line = stage.until_result("no_answer");
    assert!(line["detail"].as_str().unwrap().contains("api.sock"), "{line}");
    let withheld = stage.node.home.until_line("evict_pod", "withheld");
    assert!(withheld["detail"].as_str().unwrap().contains("the API server of Kubernetes"), "{withheld}");
    outside.gone();
    assert!(tenant.is_running());
    let enforcer = stage.enforcer.as_ref().unwrap();
    let labels = [("verb", "get"), ("code", "none")];
    assert!(enforcer.page().happened("bailiff_kubernetes_requests_total", &labels));
    stage.start_kubernetes();
    // It is asked again after 10 s.
    until("an eviction", || (!stage.api.evictions().is_empty()).then_some(()));
}

/// A moment at which a program is killed.
struct Moment {
    name: &'static str,
    reply: Option<Reply>,
    /// Whether it has come.
    has_come: fn(&ApiServer) -> bool,
    /// Whether `bailiff-kubernetes` is killed in place of the enforcer.
    kills_client: bool,
}

/// Kills a program while it evicts a pod, which is then replaced by one of the same name with a busy container.
fn interrupt(moment: &Moment) {
    let mut stage = Stage::new();
    stage.api.reply(moment.reply.as_slice());
    let mut tenant = stage.with_pod(|_| {});
    until(moment.name, || (moment.has_come)(&stage.api).then_some(()));
    let begun = stage.node.home.line("evict_pod", "begun");
    assert!(stage.api.evictions().is_empty() || begun.is_some(), "{}: it is recorded first", moment.name);
    if moment.kills_client {
        let mut client = stage.kubernetes.take().unwrap();
        client.kill().unwrap();
        client.wait().unwrap();
    } else {
        stage.enforcer.as_ref().unwrap().signal(rustix::process::Signal::KILL);
        drop(stage.enforcer.take());
    }
    tenant.end();
    stage.api.add_pod(other(), |_| {});
    let _new = stage.holder(other(), 'c');
    let busy = stage.process(other(), 'd');
    stage.node.hold(&busy, 0, "used: 1GiB, sm: 90");
    if moment.kills_client {
        stage.start_kubernetes();
    } else {
        stage.enforcer = Some(stage.node.home.enforcer(&[]));
    }
    stage.until_ticks(8);
    for eviction in stage.api.evictions() {
        let uid = &eviction.body["deleteOptions"]["preconditions"]["uid"];
        assert_eq!(uid, &json!(*UID), "{}", moment.name);
    }
}

#[test]
fn eviction_that_was_interrupted_never_evicts_another_pod() {
    let is_read = |api: &ApiServer| !api.requests().is_empty();
    let is_evicted = |api: &ApiServer| !api.evictions().is_empty();
    let late = || Some(Reply::Late(Duration::from_secs(2)));
    for moment in [
        Moment { name: "the pod is read", reply: None, has_come: is_read, kills_client: false },
        Moment { name: "no answer yet", reply: late(), has_come: is_evicted, kills_client: false },
        Moment { name: "answered", reply: None, has_come: is_evicted, kills_client: false },
        Moment {
            name: "connection lost",
            reply: Some(Reply::Lost),
            has_come: is_evicted,
            kills_client: false,
        },
        Moment { name: "the client", reply: late(), has_come: is_evicted, kills_client: true },
    ] {
        interrupt(&moment);
    }
}

#[test]
fn events_say_what_happens_to_the_pod() {
    let mut stage = Stage::new();
    stage.channel(
        "{pod: {event: true}}",
        "{notify: [pod]}, {after: {samples: 2}, evict_pod: {requires_notice: true}}",
    );
    stage.for_longer();
    let mut tenant = stage.with_pod(|_| {});
    stage.until_evicted(&mut [&mut tenant]);
    stage.until_result("released");
    let events = until("the Events", || Some(stage.api.events()).filter(|events| events.len() == 2));
    let of_pod = json!({"apiVersion": "v1", "kind": "Pod", "namespace": "team", "name": "web", "uid": *UID});
    for (event, reason) in events.iter().zip(["GPUIdle", "EvictedByRule"]) {
        assert_eq!((&event["reason"], &event["regarding"]), (&json!(reason), &of_pod), "{event}");
        assert_eq!(
            (&event["reportingController"], &event["reportingInstance"]),
            (&json!("gpu-bailiff"), &json!("node-1"))
        );
        assert!(
            event["note"].as_str().unwrap().contains("idle-pod") && event["eventTime"].is_string(),
            "{event}"
        );
        assert_eq!(event["metadata"], json!({"namespace": "team", "generateName": "web-"}));
    }
    // Since when, and until when.
    let note = events[0]["note"].as_str().unwrap();
    let (_, times) = note.split_once("cpu_util is ").unwrap();
    assert!(times.contains(", since 20") && times.contains("It will be evicted at about 20"), "{note}");
}

#[test]
fn refused_event_is_counted_and_the_pod_is_evicted() {
    let mut stage = Stage::new();
    stage.channel("{pod: {event: true}}", "{notify: [pod]}, {evict_pod: {}}");
    stage.api.refuse_events();
    let mut tenant = stage.with_pod(|_| {});
    stage.until_evicted(&mut [&mut tenant]);
    stage.until_result("released");
    let line = stage.node.home.until_line("notify", "failed");
    assert!(line["detail"].as_str().unwrap().contains("403: no role for Events"), "{line}");
    let labels = [("channel", "pod"), ("result", "failed")];
    let enforcer = stage.enforcer.as_ref().unwrap();
    enforcer.until("the metric", |page| page.happened("bailiff_notifications_total", &labels).then_some(()));
}

#[test]
fn blocked_eviction_is_an_event_once_in_an_hour() {
    let mut stage = Stage::new();
    stage.channel("{pod: {event: true}}", "{notify: [pod]}, {evict_pod: {}}");
    let blocked = Reply::With(429, "Retry-After: 1\r\n", by_budget());
    stage.api.reply(&[blocked.clone(), blocked]);
    let mut tenant = stage.with_pod(|_| {});
    until("an eviction after two that were blocked", || (stage.api.evictions().len() == 3).then_some(()));
    tenant.end();
    stage.until_result("released");
    let events = until("the Events", || Some(stage.api.events()).filter(|events| events.len() >= 3));
    let reasons: Vec<&str> = events.iter().map(|event| event["reason"].as_str().unwrap()).collect();
    assert_eq!(reasons, ["GPUIdle", "EvictionBlocked", "EvictedByRule"]);
    assert!(events[1]["note"].as_str().unwrap().contains("a disruption budget"), "{}", events[1]);
}

/// Returns a node with a pod that its annotation keeps for at most this time.
fn kept(keep_max: &str) -> (Stage, Tenant) {
    let mut stage = Stage::new();
    let socket = stage.socket();
    let keep = format!("{{socket: {socket}, keep_annotation: example.org/keep, keep_max: {keep_max}}}");
    let rules = fs::read_to_string(stage.node.home.rules()).unwrap();
    stage.node.home.write(&rules.replace(&format!("{{socket: {socket}}}"), &keep));
    let value = json!({"example.org/keep": "for ever"});
    let tenant = stage.with_pod(|pod| pod["metadata"]["annotations"] = value);
    (stage, tenant)
}

#[test]
fn annotation_of_the_pod_delays_its_eviction() {
    let (stage, tenant) = kept("24h");
    let line = stage.until_result("kept");
    assert!(line["detail"].as_str().unwrap().contains("example.org/keep is for ever"), "{line}");
    let withheld = stage.node.home.until_line("evict_pod", "withheld");
    assert!(withheld["detail"].as_str().unwrap().contains("annotation"), "{withheld}");
    assert!(stage.api.evictions().is_empty() && tenant.is_running());
    stage.until_counted("kept");
}

#[test]
fn annotation_delays_no_longer_than_permitted_after_the_match() {
    let (stage, mut tenant) = kept("3s");
    stage.until_result("kept");
    stage.until_evicted(&mut [&mut tenant]);
    stage.until_result("released");
}

/// A mount namespace has the socket at its default path.
#[test]
fn the_socket_is_used_only_if_the_rules_file_says_so() {
    for steps in ["flag: info", "evict_pod: {}"] {
        let mut stage = Stage::new();
        stage.rules_with("enforce", &format!("{{{steps}}}"), "");
        let rules = fs::read_to_string(stage.node.home.rules()).unwrap();
        let path = format!("kubernetes: {{socket: {}}}", stage.socket());
        let is_used = steps.starts_with("evict");
        stage.node.home.write(&rules.replace(&path, if is_used { "kubernetes: {}" } else { "" }));
        let directory = tempfile::tempdir().unwrap();
        let socket = UnixListener::bind(directory.path().join("api.sock")).unwrap();
        socket.set_nonblocking(true).unwrap();
        let _tenant = stage.holder(pod(), 'a');
        let prepare = "mount -t tmpfs none /run && mkdir /run/bailiff-kubernetes \
            && mount --bind \"$0\" /run/bailiff-kubernetes && exec \"$@\"";
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", prepare]).arg(directory.path()).arg(programs::enforcer());
        command.args(enforcer::arguments(&stage.node.home));
        stage.enforcer = Some(Enforcer::spawn(&stage.node.home, command));
        if is_used {
            until("a connection", || socket.accept().ok());
        } else {
            stage.node.home.until_line("flag", "raised");
            stage.until_ticks(8);
            assert!(socket.accept().is_err());
        }
    }
}

#[test]
fn only_root_may_ask_and_names_are_checked() {
    let mut stage = Stage::new();
    stage.api.add_pod(pod(), |_| {});
    stage.start_kubernetes();
    let socket = stage.node.home.path().join("api.sock");
    let answer_to = |request: Value| query(&socket, &request).unwrap();
    let get = |namespace: &str, name: &str| {
        answer_to(json!({"get": {"pod": {"namespace": namespace, "name": name, "uid": *UID}}}))
    };
    let found = get("team", "web");
    assert_eq!((&found["status"], &found["pod"]["on_this_node"]), (&json!(200), &json!(true)), "{found}");
    let before = stage.api.requests().len();
    for (namespace, name) in [("team", "web/eviction"), ("../..", "web"), ("team", "web?x"), ("team", "")] {
        let refused = get(namespace, name);
        assert_eq!(refused["ok"], json!(false), "{namespace} {name}: {refused}");
    }
    assert_eq!(stage.api.requests().len(), before, "nothing was sent to the API server");
    // Another user, even one who can open the socket.
    fs::set_permissions(&socket, fs::Permissions::from_mode(0o666)).unwrap();
    let mut python = Command::new("/usr/bin/python3");
    let script = "import socket,sys; s=socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]); s.sendall(b'{}\\n'); print(s.recv(999).decode())";
    let output = python.args(["-c", script]).arg(&socket).uid(NOBODY_UID).gid(NOBODY_UID).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.contains("only root may ask"), "{text} {}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn token_is_read_for_each_request() {
    let mut stage = Stage::new();
    stage.api.add_pod(pod(), |_| {});
    stage.start_kubernetes();
    let socket = stage.node.home.path().join("api.sock");
    let get = || {
        query(&socket, &json!({"get": {"pod": {"namespace": "team", "name": "web", "uid": *UID}}})).unwrap()
    };
    assert_eq!(get()["status"], 200);
    stage.api.accept("next-token");
    let before = stage.api.requests().len();
    assert_eq!(get()["status"], 401);
    assert_eq!(stage.api.requests().len(), before + 2, "the token may have been replaced just now");
    fs::write(stage.api.account().join("token"), "next-token\n").unwrap();
    assert_eq!(get()["status"], 200);
    // Another authority is not trusted.
    let other = ApiServer::start();
    fs::copy(other.account().join("ca.crt"), stage.api.account().join("ca.crt")).unwrap();
    let refused = get();
    assert!(refused.get("status").is_none() && !refused["message"].as_str().unwrap().is_empty(), "{refused}");
}

#[test]
fn missing_node_token_or_certificate_is_exit_code_64() {
    let stage = Stage::new();
    let code = |command: &mut Command| {
        let output = command.output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let (status, why) = code(stage.command().env_remove("BAILIFF_NODE_NAME"));
    assert!(status == Some(64) && why.contains("spec.nodeName"), "{why}");
    for file in ["token", "ca.crt", "namespace"] {
        let path = stage.api.account().join(file);
        let text = fs::read(&path).unwrap();
        fs::remove_file(&path).unwrap();
        let (status, why) = code(&mut stage.command());
        assert!(status == Some(64) && why.contains(file), "{file}: {why}");
        fs::write(&path, text).unwrap();
    }
    let (status, why) = code(&mut stage.command_for("http://127.0.0.1:1"));
    assert!(status == Some(64) && why.contains("https://"), "{why}");
}
