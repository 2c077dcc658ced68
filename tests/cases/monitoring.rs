//! Tests the Prometheus and Grafana files against the real programs: every dashboard query returns data, every alert
//! is tested and documented, and no file refers to a metric that does not exist.
#![allow(
    clippy::disallowed_methods,
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a case runs programs, reads files and fails loudly"
)]

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use end_to_end::cuda::{Machine, Running, uuid};
use end_to_end::enforcer::Enforcer;
use end_to_end::exporter::{self, Exporter};
use end_to_end::fake::Scenario;
use end_to_end::kubelet::{self, Kubelet};
use end_to_end::leases;
use end_to_end::node::{Node, TICKS};
use end_to_end::procfs::{Process, Procfs};
use end_to_end::programs;
use end_to_end::prometheus::Prometheus;
use end_to_end::redis::Redis;
use end_to_end::tenant::Tenant;
use end_to_end::wait::until;
use rustix::process::Signal;
use serde_json::Value;

/// UUID of the fake driver's first GPU.
const UUID: &str = "GPU-00000000-0000-4000-8000-000000000001";

const BOARDS: [&str; 3] = ["node", "cluster", "enforcement"];

/// Rules with which an idle target is notified and terminated by one rule, and only flagged by another.
const RULES: &str = "version: 1
mode: enforce
defaults: {startup_grace: 0s, clear_after: 1, grace: 30s}
leases: {redis: 'REDIS'}
notify: {nowhere: {webhook: {url: 'http://127.0.0.1:1/'}}}
rules:
  - name: idle
    target: process
    select: {vram: {below: 2GiB}}
    when: {gpu_util: {max: 1%}}
    for: {samples: 3}
    then: [{notify: nowhere}, {after: {samples: 2}, terminate: {}}]
  - {name: large, target: process, when: {vram: {min: 4GiB}}, for: {samples: 1}, then: [{flag: warning}]}
";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Checks files in `alerts/` with promtool or amtool.
fn check(tool: &str, arguments: &[&str]) {
    let directory = root().join("alerts");
    let output = Command::new(programs::tool(tool)).args(arguments).current_dir(directory).output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {output:?}");
}

/// Returns the panels in a dashboard, row by row.
fn panels(board: &str) -> Vec<Value> {
    let board: Value = serde_json::from_str(&read(&format!("grafana/dashboards/{board}.json"))).unwrap();
    board["panels"].as_array().unwrap().clone()
}

/// Returns every query in a dashboard, with the panel that contains it.
fn queries(board: &str) -> Vec<(String, String)> {
    let of = |panel: &Value| {
        let title = panel["title"].as_str().unwrap().to_owned();
        let targets = panel["targets"].as_array().cloned().unwrap_or_default();
        targets.into_iter().map(move |target| (title.clone(), target["expr"].as_str().unwrap().to_owned()))
    };
    panels(board).iter().flat_map(of).collect()
}

/// Returns the metric names in a query: our own, and those defined by the recording rules.
fn names(query: &str) -> BTreeSet<String> {
    let is_of_a_name = |letter: char| letter.is_ascii_alphanumeric() || letter == '_' || letter == ':';
    let words = query.split(|letter| !is_of_a_name(letter));
    words.filter(|word| word.contains("bailiff_")).map(str::to_owned).collect()
}

/// Returns the names in the metrics tables, and for histograms also the names of their series.
fn known_metrics() -> BTreeSet<String> {
    let tables = read("docs/metrics.md") + &read("docs/enforcer-metrics.md");
    let rows = tables.lines().filter_map(|line| line.strip_prefix("| `")?.split_once("` | "));
    let mut known_metrics = BTreeSet::new();
    for (name, rest) in rows {
        known_metrics.insert(name.to_owned());
        if rest.starts_with("histogram") {
            known_metrics.extend(["bucket", "sum", "count"].map(|series| format!("{name}_{series}")));
        }
    }
    known_metrics
}

/// Returns the rules as a real server has loaded them, each with its health.
fn rules(prometheus: &Prometheus) -> Vec<Value> {
    let rules = || {
        let groups = prometheus.get("rules")?["groups"].as_array()?.clone();
        let rules: Vec<Value> =
            groups.iter().flat_map(|group| group["rules"].as_array().unwrap()).cloned().collect();
        rules.iter().all(|rule| rule["health"] != "unknown").then_some(rules)
    };
    until("the rules to be evaluated", || rules().filter(|rules| !rules.is_empty()))
}

fn server(targets: &str) -> Prometheus {
    let directory = root().join("alerts");
    Prometheus::of(&format!(
        "global: {{scrape_interval: 500ms, scrape_timeout: 500ms, evaluation_interval: 500ms}}
rule_files: [{directory}/alerts.yaml, {directory}/recording.yaml]
scrape_configs: [{targets}]
",
        directory = directory.display()
    ))
}

#[test]
fn every_alert_is_valid_tested_and_documented() {
    check("promtool", &["check", "rules", "alerts.yaml", "recording.yaml"]);
    check("promtool", &["test", "rules", "tests/alerts.yaml", "tests/recording.yaml"]);
    check("amtool", &["check-config", "alertmanager.yaml"]);
    let (tests, mut pages) = (read("alerts/tests/alerts.yaml"), BTreeSet::new());
    let recorded = read("alerts/tests/recording.yaml");
    let known_metrics = known_metrics();
    for rule in rules(&server("")) {
        let (name, query) = (rule["name"].as_str().unwrap(), rule["query"].as_str().unwrap());
        assert_eq!(rule["health"], "ok", "{rule}");
        let strange: Vec<String> = names(query).difference(&known_metrics).cloned().collect();
        assert_eq!(strange, Vec::<String>::new(), "{name} refers to metrics that do not exist");
        if rule["type"] == "alerting" {
            let text = |key: &str| rule["annotations"][key].as_str().unwrap_or_default().to_owned();
            assert!(["critical", "warning", "info"].contains(&rule["labels"]["severity"].as_str().unwrap()));
            assert!(!text("summary").is_empty() && !text("description").is_empty(), "{name}");
            assert_eq!(text("runbook_url"), format!("https://bailiff.example/runbooks/{name}.md"));
            let page = read(&format!("alerts/runbooks/{name}.md"));
            let heads: Vec<&str> = page.lines().filter_map(|line| line.strip_prefix("## ")).collect();
            assert_eq!(heads, ["Meaning", "Impact", "Diagnosis", "Mitigation"], "{name}");
            pages.insert(format!("{name}.md"));
            let fires = format!("alertname: {name}\n        exp_alerts:\n          - exp_labels:");
            assert!(tests.contains(&fires), "no test in which {name} fires");
            let silent = format!("alertname: {name}, exp_alerts: []");
            assert!(tests.contains(&silent), "no test in which {name} does not fire");
        } else {
            assert!(recorded.contains(&format!("- expr: {name}\n")), "no test of {name}");
        }
    }
    let written = fs::read_dir(root().join("alerts/runbooks")).unwrap();
    let written = written.map(|page| page.unwrap().file_name().into_string().unwrap());
    assert_eq!(written.collect::<BTreeSet<_>>(), pages, "there must be exactly one page for each alert");
}

#[test]
fn dashboards_use_only_exported_metrics() {
    let mut known_metrics = known_metrics();
    let recorded = rules(&server("")).into_iter().filter(|rule| rule["type"] == "recording");
    known_metrics.extend(recorded.map(|rule| rule["name"].as_str().unwrap().to_owned()));
    for board in BOARDS {
        for (panel, query) in queries(board) {
            let strange: Vec<String> = names(&query).difference(&known_metrics).cloned().collect();
            assert_eq!(strange, Vec::<String>::new(), "{board}: {panel}");
        }
    }
}

#[test]
fn every_panel_has_a_description_and_unit() {
    for board in BOARDS {
        for panel in panels(board).iter().filter(|panel| panel["type"] != "row") {
            let title = panel["title"].as_str().unwrap();
            assert!(!panel["description"].as_str().unwrap_or_default().is_empty(), "{board}: {title}");
            let unit = panel["fieldConfig"]["defaults"]["unit"].as_str().unwrap_or_default();
            assert!(!unit.is_empty(), "{board}: {title}");
        }
    }
}

/// Two nodes: an active node with an enforcer, leases and a quota, and a made-up node.
struct Fixture {
    node: Node,
    enforcer: Enforcer,
    other: Exporter,
    /// A tenant that is busy until its action is due.
    due: Tenant,
    _running: (Vec<Running>, Tenant, Holder),
    /// Directory of Slurm's hooks.
    slurm: tempfile::TempDir,
    _kept: (Scenario, Procfs, Redis, Machine, tempfile::TempDir, Kubelet),
}

/// A lease holder, which is terminated with its descendants on drop.
struct Holder(Option<Child>);

impl Drop for Holder {
    fn drop(&mut self) {
        self.0.take().into_iter().for_each(|child| leases::end(child, Signal::TERM));
    }
}

impl Fixture {
    fn new() -> Self {
        let (redis, machine) = (leases::pool("0"), Machine::new());
        let quotas = tempfile::tempdir().unwrap();
        let quota = quotas.path().join("a");
        bailiff_ledger::create(&quota, &[(uuid(0), 100 << 20)]).unwrap();
        let (address, directory) = (redis.address(), quotas.path().display().to_string());
        let mut ticks = TICKS.to_vec();
        let slurm = tempfile::tempdir().unwrap();
        let hooks = slurm.path().display().to_string();
        ticks.extend(["--lease.redis", &address, "--quota.dir", &directory, "--slurm.dir", &hooks]);
        let node =
            Node::with_ticks(&RULES.replace("REDIS", &address), &["memory: {unaccounted: 2GiB}"], &ticks);
        let holder = Holder(Some(leases::hold(&redis, &["run"])));
        let running =
            vec![Running(quiet(leases::bailiff(&redis, &["run", "true"]))), limited(&machine, &quota, &node)];
        let (due, flagged) = (Tenant::ending_on_term(&node.home), Tenant::ending_on_term(&node.home));
        node.hold_together(&[(&due, "used: 1GiB, sm: 50"), (&flagged, "used: 8GiB, sm: 50")]);
        let enforcer = node.home.enforcer(&[]);
        let (scenario, procfs) = (Scenario::named("busy"), others());
        let mut other = exporter::command(&scenario);
        let kubelet = Kubelet::start(&kubelet::answers(&[kubelet::pod("trainer", &[UUID])], &[UUID]));
        kubelet.add_pod("trainer", "9c5b4a5e-7d1f-4f0e-9a3b-0a1b2c3d4e5f", &"0123456789abcdef".repeat(4));
        other.args(exporter::TICKS).arg("--procfs").arg(procfs.path()).args(kubelet.flags());
        let other = Exporter::spawn(other);
        let kept = (scenario, procfs, redis, machine, quotas, kubelet);
        Self { node, enforcer, other, due, _running: (running, flagged, holder), slurm, _kept: kept }
    }

    /// Saves the record of a job that starts now, as the prolog does.
    fn allocate(&self, job: usize) {
        let boot_id = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
        let gpu = serde_json::json!({"position": 0, "minor": 0, "uuid": UUID});
        let since_boot = bailiff_proc::clock::since_boot().as_millis();
        let record = serde_json::json!({
            "boot_id": boot_id.trim(), "job": job.to_string(), "sluid": null, "uid": 4002, "user": "alice",
            "node": "gpu0", "gpus": [gpu], "boot_ms": u64::try_from(since_boot).unwrap(),
        });
        let jobs = self.slurm.path().join("jobs");
        fs::create_dir_all(&jobs).unwrap();
        drop(fs::remove_file(jobs.join(format!("{}.json", job - 1))));
        fs::write(jobs.join("next"), record.to_string()).unwrap();
        fs::rename(jobs.join("next"), jobs.join(format!("{job}.json"))).unwrap();
    }

    fn targets(&self) -> String {
        let (node, other, enforcer) =
            (self.node.exporter.address(), self.other.address(), self.enforcer.address());
        format!(
            "{{job_name: bailiff, static_configs: [{{targets: ['{node}', '{other}']}}]}}, \
             {{job_name: bailiff-enforcer, static_configs: [{{targets: ['{enforcer}']}}]}}"
        )
    }
}

/// Returns a process in a Kubernetes container, and a process in uninterruptible sleep.
fn others() -> Procfs {
    let pod = "0::/kubepods.slice/kubepods-pod9c5b4a5e_7d1f_4f0e_9a3b_0a1b2c3d4e5f.slice/cri-containerd-\
               0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef.scope\n";
    Procfs::new()
        .with(&Process { cgroup: pod.into(), ..Process::new(4100) })
        .with(&Process { state: 'D', ..Process::new(4101) })
}

fn quiet(mut command: Command) -> Child {
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

/// Starts a program that has requested more than its shared quota and that holds memory on the GPU.
fn limited(machine: &Machine, quota: &Path, node: &Node) -> Running {
    let (some, much) = (format!("alloc {}", 40 << 20), format!("alloc {}", 90 << 20));
    let mut command = machine.client("dl", &["init 0", &some, &much, "wait"]);
    command.env("WRAPPER_SHARED", quota).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut running = Running(command.spawn().unwrap());
    let mut lines = BufReader::new(running.0.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap() == "waiting"));
    node.hold_pid(running.0.id(), "used: 3GiB, sm: 5");
    running
}

/// Returns a query whose variables are replaced as Grafana does, with all values selected and with this test's
/// steps.
fn interpolate(query: &str) -> String {
    let mut query = query.replace("$__range:1m", "1m:1s").replace("$__rate_interval", "10s");
    for variable in ["cluster", "node", "gpu", "user", "rule"] {
        query = query.replace(&format!("${variable}"), ".*");
    }
    assert!(!query.contains('$'), "{query}");
    query
}

#[test]
fn every_dashboard_query_returns_data() {
    let fixture = Fixture::new();
    let prometheus = server(&fixture.targets());
    // An Xid error is exported once the driver has reported it.
    fixture
        .node
        .change(|driver| driver.gpus[0].text = "memory: {unaccounted: 2GiB}\n    xid: [79]".to_owned());
    // Waits until Prometheus has scraped the counters at 0.
    until("the counter is scraped", || {
        prometheus.query("bailiff_kills_total").filter(|found| !found.is_empty())
    });
    fixture.node.hold(&fixture.due, 0, "used: 1GiB");
    let mut left: Vec<(String, String)> = BOARDS.iter().flat_map(|board| queries(board)).collect();
    assert!(left.len() > 60, "{}", left.len());
    let mut jobs = 0;
    until("every query to have data", || {
        let before = left.len();
        // Whether a job has never used a GPU is known only if the exporter sees its record soon.
        jobs += 1;
        fixture.allocate(jobs);
        left.retain(|(_, query)| {
            prometheus.query(&interpolate(query)).is_none_or(|result| result.is_empty())
        });
        if left.len() != before {
            eprintln!("without data yet: {left:#?}");
        }
        left.is_empty().then_some(())
    });
    let bad: Vec<Value> = rules(&prometheus).into_iter().filter(|rule| rule["health"] != "ok").collect();
    assert_eq!(bad, Vec::<Value>::new(), "the rules must be valid with data as well");
}
