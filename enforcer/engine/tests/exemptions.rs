//! Tests that entries of `protect` and `except` are evaluated for every process of a target: holders, helpers and
//! children.
#![expect(clippy::unwrap_used, clippy::panic, reason = "a test")]

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use bailiff_engine::Kind;
use bailiff_engine::engine::{Engine, Exemptions, GateReport, Now, Question};
use bailiff_engine::guard::RESTORED;
use bailiff_engine::policy::{self, LoadContext, Mode};
use bailiff_engine::process::ProcessInfo;
use bailiff_engine::process::{CommandLine, Program};
use bailiff_engine::view::{TargetId, View};
use bailiff_snapshot::stat::Stat;
use bailiff_snapshot::{GpuState, Place, ProcessKey, State, Truth, wire};
use serde_json::{Value, json};

const CONTEXT: LoadContext = LoadContext::accepting(Duration::ZERO);

const HOLDER: u32 = 4100;
const CHILD: u32 = 4101;
const HELPER: u32 = 4102;

/// A snapshot of a workload with three processes: a holder, its child, and a helper with another parent. One of
/// the processes is changed.
struct Node {
    changed: u32,
    change: Value,
    relatives: bool,
    gpu: Value,
}

impl Node {
    fn of(changed: u32, change: Value) -> Self {
        Self { changed, change, relatives: true, gpu: json!({"index": "0", "uuid": "GPU-0", "listed": 1}) }
    }

    /// Returns the attributes of one process, valid as the facts of a holder and as a relative.
    fn process(&self, pid: u32) -> Value {
        let mut known = json!({
            "comm": "train", "ppid": if pid == CHILD { HOLDER } else { 1 }, "uid": 1000, "user": "bob",
            "groups": ["staff"], "exe": "/opt/train", "command": "train now", "cpu_seconds": 1.0,
            "reaped_cpu_seconds": 0.0, "workload": "slurm:1", "state": "sleeping",
            "place": {"cgroup": "/job"},
        });
        if pid == self.changed {
            merge(&mut known, &self.change);
        }
        known
    }

    fn snapshot(&self) -> wire::Snapshot {
        let mut gpu = json!({"mig": false, "holders": [
            {"pid": HOLDER, "kinds": "C", "memory": 1000, "utilization": 0, "idle_ms": 0},
        ]});
        merge(&mut gpu, &self.gpu);
        let holder = self.process(HOLDER);
        let mut groups = json!({});
        let relatives: Vec<Value> = [CHILD, HELPER]
            .iter()
            .zip([1001, 1002])
            .map(|(pid, uid)| {
                let mut relative = self.process(*pid);
                merge(&mut relative, &json!({"pid": pid, "start_ticks": 100}));
                // Groups are reported per owner, so a process with other groups gets a separate owner.
                if *pid == self.changed && self.change.get("groups").is_some() {
                    merge(&mut relative, &json!({"uid": uid}));
                }
                groups[relative["uid"].to_string()] = relative["groups"].clone();
                relative
            })
            .collect();
        groups.as_object_mut().unwrap().retain(|_, groups| !groups.is_null());
        let snapshot = json!({
            "version": 1, "seq": 1, "boot_id": "b", "wall_ms": 0, "boot_ms": 10_000_000, "interval_ms": 5000,
            "pid_namespace": "host", "sources": {"nvml": {"up": true}, "proc": {"up": true}}, "gpus": [gpu],
            "processes": [{"pid": HOLDER, "start_ticks": 100, "state": holder["state"], "facts": holder}],
            "relatives": if self.relatives { json!(relatives) } else { Value::Null }, "groups": groups,
        });
        serde_json::from_value(snapshot).unwrap()
    }

    /// Returns a gate of a rule about targets of this kind, from `explain`.
    fn gate(&self, policy: (&str, &str, &str), gate: &str) -> GateReport {
        Self::gates(policy, self.snapshot()).into_iter().find(|report| report.gate == gate).unwrap()
    }

    /// Returns the gates of a rule about targets of this kind.
    fn gates((kind, protect, except): (&str, &str, &str), snapshot: wire::Snapshot) -> Vec<GateReport> {
        let text = format!(
            "version: 1\n{protect}\nrules:\n  - name: a\n    target: {kind}\n    {except}\n    when: {{age: {{min: 1s}}}}\n    for: 30m\n    then: [{{flag: info}}]\n"
        );
        let policy =
            policy::load(text.as_bytes(), "rules.yaml", CONTEXT).unwrap_or_else(|faults| panic!("{faults}"));
        let mut engine = Engine::new(Arc::new(policy.policy), Mode::Enforce);
        let view = Arc::new(View::between(None, snapshot));
        let now = Now { boot: view.boot(), wall: view.boot() };
        engine.tick(now, view).unwrap();
        let report = engine.explain(now, &Question::default()).unwrap();
        let [one] = report.as_slice() else { panic!("{report:?}") };
        one.gates.clone()
    }

    fn protected(&self, kind: &str, entry: &str) -> Truth {
        !self.gate((kind, &format!("protect: {entry}"), ""), "protection").passes
    }

    fn excepted(&self, kind: &str, entry: &str) -> Truth {
        let entry = entry.strip_suffix('}').unwrap();
        !self.gate((kind, "", &format!("except: [{entry}, reason: kept}}]")), "except").passes
    }
}

fn merge(into: &mut Value, from: &Value) {
    for (key, value) in from.as_object().unwrap() {
        into[key] = value.clone();
    }
}

fn place(fields: &Value) -> Value {
    let mut place = json!({"cgroup": "/job"});
    merge(&mut place, fields);
    json!({"place": place})
}

/// Returns selectors, each with its expected truth and the change to the process that leads to this truth.
fn table() -> Vec<(&'static str, Truth, Value)> {
    use Truth::{False, True, Unknown};
    let of_pod = |fields: Value| {
        let mut pod = json!({"pod_uid": "u"});
        merge(&mut pod, &fields);
        place(&pod)
    };
    vec![
        ("{users: [alice]}", True, json!({"user": "alice"})),
        ("{users: [alice]}", False, json!({"user": "bob"})),
        ("{users: [alice]}", Unknown, json!({"user": null})),
        ("{users: [1001]}", True, json!({"uid": 1001, "user": null})),
        ("{users: [1001]}", False, json!({"user": null})),
        ("{users: [\"100*\"]}", False, json!({})),
        ("{users: [\"100*\"]}", Unknown, json!({"user": null})),
        ("{groups: [kept]}", True, json!({"groups": ["staff", "kept"]})),
        ("{groups: [kept]}", False, json!({"groups": []})),
        ("{groups: [kept]}", Unknown, json!({"groups": null})),
        ("{comms: [guarded]}", True, json!({"comm": "guarded"})),
        ("{comms: [guarded]}", False, json!({"comm": "keep"})),
        ("{exe: [/opt/keep]}", True, json!({"exe": "/opt/keep"})),
        ("{exe: [/opt/keep]}", True, json!({"exe": "/opt/keep (deleted)"})),
        ("{exe: [/opt/keep]}", False, json!({"exe": "/opt/guarded"})),
        ("{exe: [/opt/keep]}", Unknown, json!({"exe": null})),
        ("{exe: [/opt/keep]}", False, json!({"exe": null, "state": "zombie"})),
        ("{exe: [/opt/keep]}", Unknown, json!({"exe": null, "state": "zombie_leader"})),
        ("{cmdline: [\"keep *\"]}", True, json!({"command": "keep me"})),
        ("{cmdline: [\"keep *\"]}", False, json!({"command": "train me"})),
        ("{cmdline: [\"keep *\"]}", Unknown, json!({"command": null})),
        ("{cmdline: [\"keep *\"]}", False, json!({"command": null, "state": "zombie"})),
        ("{cmdline: [\"keep *\"]}", True, json!({"command": format!("keep {}…", "x".repeat(251))})),
        ("{cmdline: [\"* keep\"]}", Unknown, json!({"command": format!("{}…", "x".repeat(256))})),
        ("{cgroups: [\"/kept/*\"]}", True, place(&json!({"cgroup": "/kept/a"}))),
        ("{cgroups: [\"/kept/*\"]}", False, json!({})),
        ("{cgroups: [\"/kept/*\"]}", Unknown, place(&json!({"cgroup": ""}))),
        ("{namespaces: [kept]}", True, of_pod(json!({"namespace": "kept"}))),
        ("{namespaces: [kept]}", False, of_pod(json!({"namespace": "other"}))),
        ("{namespaces: [kept]}", False, json!({})),
        ("{namespaces: [kept]}", Unknown, of_pod(json!({}))),
        ("{pods: [kept]}", True, of_pod(json!({"pod": "kept"}))),
        ("{pods: [u]}", True, of_pod(json!({}))),
        ("{pods: [kept]}", False, of_pod(json!({"pod": "other"}))),
        ("{pods: [kept]}", False, json!({})),
        ("{pods: [kept]}", Unknown, of_pod(json!({}))),
        ("{containers: [kept]}", True, place(&json!({"container": "kept"}))),
        ("{containers: [kept]}", False, place(&json!({"container": "other"}))),
        ("{containers: [kept]}", False, json!({})),
        ("{containers: [kept]}", Unknown, place(&json!({"cgroup": ""}))),
        ("{slurm_jobs: [77]}", True, place(&json!({"slurm_job": "77"}))),
        ("{slurm_jobs: [77]}", False, place(&json!({"slurm_job": "7"}))),
        ("{slurm_jobs: [77]}", False, json!({})),
        ("{slurm_jobs: [77]}", Unknown, place(&json!({"cgroup": ""}))),
    ]
}

#[test]
fn every_selector_is_evaluated_for_every_member() {
    for (entry, expected, change) in table() {
        for (kind, pid) in [
            ("process", HOLDER),
            ("process", CHILD),
            ("workload", HOLDER),
            ("workload", CHILD),
            ("workload", HELPER),
        ] {
            let node = Node::of(pid, change.clone());
            assert_eq!(node.protected(kind, entry), expected, "protect {entry}: {kind}, {pid} {change}");
            assert_eq!(node.excepted(kind, entry), expected, "except {entry}: {kind}, {pid} {change}");
        }
        // The helper does not belong to a target of kind `process`.
        let node = Node::of(HELPER, change);
        assert_eq!(node.protected("process", entry), Truth::False, "{entry}");
    }
}

#[test]
fn gpus_are_evaluated_for_the_whole_target() {
    let other = json!({"index": "1", "uuid": "GPU-1"});
    let cases = [
        (json!({"index": "0", "uuid": "GPU-0"}), Truth::False),
        (other, Truth::True),
        (json!({"index": "0", "uuid": null}), Truth::Unknown),
    ];
    for (gpu, expected) in cases {
        for pid in [HOLDER, CHILD, HELPER] {
            let node = Node { gpu: gpu.clone(), ..Node::of(pid, json!({"comm": "guarded"})) };
            let mut gpu = gpu.clone();
            merge(&mut gpu, &json!({"listed": 1}));
            let node = Node { gpu, ..node };
            assert_eq!(node.protected("workload", "{gpus: [GPU-1]}"), expected, "{pid}");
            let both = node.excepted("workload", "{gpus: [GPU-1], comms: [guarded]}");
            assert_eq!(both, expected, "one text matches the target, the other process {pid}");
        }
    }
}

#[test]
fn unlisted_member_may_be_exempt() {
    let node = |change: Value| Node { relatives: false, ..Node::of(HOLDER, change) };
    for kind in ["process", "workload"] {
        assert_eq!(node(json!({})).protected(kind, "{exe: [/opt/keep]}"), Truth::Unknown);
        assert_eq!(node(json!({"exe": "/opt/keep"})).protected(kind, "{exe: [/opt/keep]}"), Truth::True);
        assert_eq!(node(json!({})).excepted(kind, "{vram: {max: 1B}, exe: [/opt/keep]}"), Truth::False);
        assert_eq!(node(json!({})).excepted(kind, "{vram: {max: 1GiB}}"), Truth::True);
    }
}

/// The child of a shell is a separate workload, but is terminated with its parent.
#[test]
fn child_in_another_workload_is_evaluated() {
    let change = json!({"exe": "/opt/keep", "workload": "tree:4101@100"});
    for (pid, expected) in [(CHILD, Truth::True), (HELPER, Truth::False)] {
        assert_eq!(
            Node::of(pid, change.clone()).protected("workload", "{exe: [/opt/keep]}"),
            expected,
            "{pid}"
        );
    }
}

/// A single process must match all keys of an entry, but attributes are those of the target.
#[test]
fn entry_must_match_a_single_member() {
    let guarded = json!({"comm": "guarded", "exe": "/opt/keep"});
    let half = json!({"comm": "guarded"});
    let unread = json!({"comm": "guarded", "exe": null});
    let cases = [
        ("{comms: [guarded], exe: [/opt/keep]}", &guarded, Truth::True),
        ("{comms: [guarded], exe: [/opt/keep]}", &half, Truth::False),
        ("{comms: [guarded], exe: [/opt/keep]}", &unread, Truth::Unknown),
        ("{comms: [other], exe: [/opt/keep]}", &unread, Truth::False),
        ("{any: [{comms: [guarded]}, {exe: [/opt/keep]}]}", &unread, Truth::True),
        ("{not: {exe: [/opt/train]}}", &guarded, Truth::True),
        ("{not: {exe: [/opt/train]}}", &half, Truth::False),
        ("{not: {exe: [/opt/train]}}", &unread, Truth::Unknown),
        ("{not: {any: [{comms: [train]}, {exe: [/opt/keep]}]}}", &guarded, Truth::False),
        ("{comms: [guarded], vram: {max: 2000B}}", &half, Truth::True),
        ("{comms: [guarded], vram: {min: 2000B}}", &half, Truth::False),
        ("{comms: [guarded], gpu_util: {max: 1%}}", &half, Truth::True),
    ];
    for (entry, change, expected) in cases {
        for pid in [HOLDER, CHILD, HELPER] {
            assert_eq!(Node::of(pid, change.clone()).excepted("workload", entry), expected, "{entry} {pid}");
        }
    }
}

#[test]
fn explain_names_the_member_and_its_attribute() {
    let report = |change: Value| {
        Node::of(HELPER, change)
            .gate(("workload", "protect: {exe: [/opt/keep], comms: [guarded]}", ""), "protection")
    };
    let exempt = report(json!({"exe": "/opt/keep"}));
    assert_eq!(exempt.why.as_deref(), Some("process 4102 (train) is exempt"));
    let exe = exempt.leaves.iter().find(|leaf| leaf.name == "exe").unwrap();
    assert_eq!((exe.value.as_str(), exe.outcome), ("/opt/keep", Truth::True));
    let unknown = report(json!({"exe": null}));
    assert_eq!(unknown.why.as_deref(), Some("process 4102 (train) may be exempt"));
    assert_eq!(unknown.leaves.iter().find(|leaf| leaf.name == "exe").unwrap().value, "unknown");
    assert_eq!(report(json!({})).why, None);
}

#[test]
fn protect_entries_have_a_reason_and_an_expiry() {
    let node = Node::of(HELPER, json!({"exe": "/opt/keep"}));
    let entry = |more: &str| format!("[{{exe: [/opt/keep], reason: \"paper deadline\"{more}}}]");
    // The snapshot is from 1970-01-01.
    for (more, expected) in [("", Truth::True), (", until: 1970-01-01", Truth::True)] {
        assert_eq!(node.protected("workload", &entry(more)), expected, "{more}");
    }
    let gate = node.gate(("workload", &format!("protect: {}", entry("")), ""), "protection");
    assert_eq!(gate.why.as_deref(), Some("paper deadline; process 4102 (train) is exempt"));
    let both = "[{exe: [/opt/keep], comms: [other], reason: r}, {comms: [third], reason: r}]";
    assert_eq!(node.protected("workload", both), Truth::False, "one process must match all keys of an entry");
    let mut later = node.snapshot();
    later.wall_ms = 2 * 24 * 3600 * 1000;
    let over = Node::gates(("workload", &format!("protect: {}", entry(", until: 1970-01-01")), ""), later);
    assert_eq!(over[0].passes, Truth::True, "the exception has expired");
}

/// Selectors of `select` and `when` match only processes that hold memory.
#[test]
fn select_is_evaluated_for_holders_only() {
    let gate = |pid: u32, change: Value| {
        Node::of(pid, change).gate(("workload", "", "select: {exe: [/opt/keep]}"), "select").passes
    };
    assert_eq!(gate(HOLDER, json!({"exe": "/opt/keep"})), Truth::True);
    assert_eq!(gate(HELPER, json!({"exe": "/opt/keep"})), Truth::False);
    assert_eq!(gate(HELPER, json!({"exe": null})), Truth::False);
}

/// Nothing shows that a process was not restored, so an exception for restored processes exempts all.
#[test]
fn process_that_may_have_been_restored_is_an_exception_but_not_protected() {
    for kind in ["process", "workload"] {
        for change in [json!({}), json!({"restored": false}), json!({"state": "hidden"})] {
            let node = Node::of(HOLDER, change.clone());
            for entry in ["{restored: true}", "{restored: false}", "{not: {restored: true}}"] {
                assert_eq!(node.excepted(kind, entry), Truth::Unknown, "{entry}: {kind} {change}");
            }
            let select = node.gate((kind, "", "select: {restored: true}"), "select");
            assert_eq!(select.passes, Truth::Unknown, "{kind} {change}");
            assert_eq!(node.gate((kind, "", ""), "protection").passes, Truth::True, "{kind} {change}");
        }
        let node = Node::of(HOLDER, json!({"restored": true}));
        let [protection] = Node::gates((kind, "", ""), node.snapshot()).try_into().unwrap();
        assert_eq!((protection.passes, protection.why.as_deref()), (Truth::False, Some(RESTORED)));
    }
}

fn process_info(node: &Node, pid: u32) -> ProcessInfo {
    let relatives = node.snapshot().relatives.unwrap();
    let relative = relatives.iter().find(|relative| relative.pid == pid).unwrap();
    let stat = Stat {
        key: ProcessKey { pid, start_ticks: 100 },
        comm: relative.comm.clone(),
        state: State::Sleeping,
        ppid: 1,
        session: 1,
        cpu_ticks: 0,
        reaped_ticks: None,
        threads: 1,
        kernel_thread: false,
    };
    let place = Place { pod: None, namespace: None, ..Place::clone(&relative.place) };
    let (uid, place) = (relative.uid.unwrap(), place.into());
    ProcessInfo { stat, uid, place, unified: None, exe: None, exe_uid: None }
}

/// A process that is not in the snapshot is evaluated with what `/proc` reports at the time of the action.
#[test]
fn process_found_at_the_action_is_checked_for_exemptions() {
    let text = "version: 1
protect: {exe: [/opt/keep]}
rules:
  - name: a
    target: workload
    except: [{cmdline: [\"keep *\"], reason: kept}, {pods: [kept], until: 2026-01-01, reason: over}]
    when: {age: {min: 1s}}
    for: 30m
    then: [{flag: info}]
  - {name: b, target: workload, when: {age: {min: 1s}}, for: 30m, then: [{flag: info}]}
";
    let policy = Arc::new(policy::load(text.as_bytes(), "rules.yaml", CONTEXT).unwrap().policy);
    let node = Node::of(0, json!({}));
    let view = Arc::new(View::between(None, node.snapshot()));
    let target = TargetId(Arc::from("workload:slurm:1"));
    let exempt = |rule: &str, exe: Option<&str>, command: Option<&str>| {
        let wall = Duration::from_secs(1_790_000_000);
        let of = (Arc::from(rule), target.clone());
        let exemptions = Exemptions::new(Arc::clone(&policy), of, Arc::clone(&view), wall);
        let program = Program { exe: exe.map(str::to_owned), command: command.map(str::to_owned) };
        exemptions.exempt(&process_info(&node, HELPER), &program)
    };
    let train = Some("/opt/train");
    assert_eq!(exempt("a", train, Some("train")), None);
    assert_eq!(exempt("b", train, None), None, "the exceptions of this rule do not need a command line");
    let cases = [
        ("b", Some("/opt/keep"), None, "the policy protects it (exe is /opt/keep)"),
        ("b", None, None, "it is unknown whether the policy protects it (exe is unknown)"),
        ("a", train, Some("keep it"), "it is an exception: kept (cmdline is keep it)"),
        ("a", train, None, "it is unknown whether it is an exception: kept (cmdline is unknown)"),
    ];
    for (rule, exe, command, why) in cases {
        assert_eq!(exempt(rule, exe, command).as_deref(), Some(why));
    }
    let line = |rule: &str| {
        let of = (Arc::from(rule), target.clone());
        Exemptions::new(Arc::clone(&policy), of, Arc::clone(&view), Duration::ZERO).command_line()
    };
    assert_eq!((line("a"), line("b")), (CommandLine::Needed, CommandLine::Ignored));
}

/// `/proc` does not contain the names of pods and users, so the names from the snapshot are used.
#[test]
fn process_found_at_the_action_has_pod_and_owner() {
    let text = |entry: &str| {
        format!(
            "version: 1\nprotect: {entry}\nrules:\n  - {{name: a, target: workload, when: {{age: {{min: 1s}}}}, for: 30m, then: [{{flag: info}}]}}\n"
        )
    };
    let pod = json!({"pod_uid": "u", "pod": "train-0", "namespace": "ml"});
    let node = Node::of(HELPER, place(&pod));
    let view = Arc::new(View::between(None, node.snapshot()));
    for (entry, exempt) in [
        ("{namespaces: [ml]}", true),
        ("{namespaces: [other]}", false),
        ("{pods: [train-0]}", true),
        ("{pods: [train-1]}", false),
        ("{users: [bob]}", true),
        ("{users: [alice]}", false),
        ("{groups: [staff]}", true),
        ("{groups: [other]}", false),
    ] {
        let policy = policy::load(text(entry).as_bytes(), "rules.yaml", CONTEXT).unwrap().policy;
        let of = (Arc::from("a"), TargetId(Arc::from("workload:slurm:1")));
        let exemptions = Exemptions::new(Arc::new(policy), of, Arc::clone(&view), Duration::ZERO);
        let report = exemptions.exempt(&process_info(&node, HELPER), &Program::default());
        assert_eq!(report.is_some(), exempt, "{entry}: {report:?}");
    }
}

#[test]
fn own_processes_are_exempt_by_identity() {
    let ours = |start_ticks| BTreeSet::from([ProcessKey { pid: HELPER, start_ticks }]);
    for (ours, passes) in [(ours(100), Truth::False), (ours(99), Truth::True), (BTreeSet::new(), Truth::True)]
    {
        let text = "version: 1\nrules:\n  - {name: a, target: workload, when: {age: {min: 1s}}, for: 30m, then: [{flag: info}]}\n";
        let policy = Arc::new(policy::load(text.as_bytes(), "rules.yaml", CONTEXT).unwrap().policy);
        let mut engine = Engine::new(Arc::clone(&policy), Mode::Enforce);
        engine.exempt(ours);
        engine.reload(policy, Mode::Enforce);
        let node = Node::of(HELPER, json!({"comm": "bailiff-exporte"}));
        let view = Arc::new(View::between(None, node.snapshot()));
        let now = Now { boot: view.boot(), wall: view.boot() };
        engine.tick(now, view).unwrap();
        assert_eq!(engine.explain(now, &Question::default()).unwrap()[0].gates[0].passes, passes);
    }
}

#[test]
fn all_children_of_a_process_belong_to_it() {
    const CHILDREN: u32 = 64;
    let node = Node::of(CHILD, json!({}));
    let mut snapshot = node.snapshot();
    let relatives = snapshot.relatives.as_mut().unwrap();
    let child = relatives.iter().find(|relative| relative.pid == CHILD).unwrap().clone();
    for pid in 5000..5000 + CHILDREN - 1 {
        // Each tenth has a child of its own instead.
        let ppid = if pid % 10 == 9 { pid - 1 } else { HOLDER };
        relatives.push(wire::Relative { pid, ppid, ..child.clone() });
    }
    let view = View::between(None, snapshot);
    for kind in [Kind::Process, Kind::Workload] {
        let target = view.targets.iter().find(|target| target.kind == kind).unwrap();
        let expected = if kind == Kind::Process { CHILDREN } else { CHILDREN + 1 };
        assert_eq!(u32::try_from(view.relatives(target).count()).unwrap(), expected, "{kind:?}");
    }
}

#[test]
#[expect(clippy::disallowed_methods, reason = "a search for each lease would take minutes")]
fn very_many_leases_are_viewed_at_once() {
    const PROCESSES: u32 = 64;
    let mut snapshot = Node::of(CHILD, json!({})).snapshot();
    let process = snapshot.processes[0].clone();
    let holder = snapshot.gpus[0].holders[0].clone();
    for pid in 6000..6000 + PROCESSES {
        snapshot.processes.push(wire::Process { pid, ..process.clone() });
        snapshot.gpus[0].holders.push(wire::Holder { pid, ..holder.clone() });
    }
    let state = serde_json::to_value(GpuState::Leased).unwrap();
    let junk = |id: u32| json!({"id": format!("x{id}"), "state": state, "lease": "l1"});
    let mut gpus: Vec<Value> = (0..1000).map(junk).collect();
    gpus.push(json!({"id": "0", "uuid": "GPU-0", "state": state, "lease": "l1"}));
    let held = |id: u32| json!({"lease": format!("l{id}"), "token": 1, "gpus": ["0", "x1", "x2"], "left_ms": 1, "alive": "true"});
    let held: Vec<Value> = (0..16_384).map(held).collect();
    let leases =
        json!({"boot_ms": snapshot.boot_ms, "before_ms": 1, "gpus": gpus, "held": held, "queue": []});
    snapshot.leases = Some(serde_json::from_value(leases).unwrap());
    let began = std::time::Instant::now();
    let view = View::between(None, snapshot);
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    assert_eq!(view.targets.iter().filter(|target| target.kind == Kind::Lease).count(), 16_384);
}
