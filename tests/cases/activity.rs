//! Tests the activity of engines (`--gpm`): what the driver reports is published, and what it does not report or cannot be
//! true is absent.
#![allow(
    clippy::disallowed_methods,
    clippy::expect_used,
    clippy::float_cmp,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a case runs programs, compares exact figures and fails loudly"
)]

use std::process::Command;

use end_to_end::exporter::{self, Exporter};
use end_to_end::fake::Scenario;
use end_to_end::node::{Node, TICKS};
use end_to_end::page::Page;
use end_to_end::procfs::{Process, Procfs};
use end_to_end::programs;
use end_to_end::tenant::Tenant;

const ALL: &str = "{1: 64.5, 2: 50, 3: 25, 5: 12.5, 10: 100, 30: 20, 31: 35, 40: 0, 50: not_supported}";

fn page(scenario: &str, flags: &[&str]) -> Page {
    let scenario = Scenario::new(scenario);
    let output = exporter::command(&scenario).arg("--once").args(flags).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Page::read(&String::from_utf8(output.stdout).unwrap())
}

/// Returns the activity of a GPU by engine, and the reason why it is unknown.
fn activity(page: &Page, gpu: &str) -> (Vec<(String, f64)>, Option<String>) {
    let of_gpu = [("gpu", gpu)];
    let found = page.all("bailiff_gpu_activity_ratio", &of_gpu);
    let found = found.map(|(labels, ratio)| (labels["engine"].clone(), ratio)).collect();
    (found, page.label("bailiff_gpu_activity_unknown_info", &of_gpu, "reason"))
}

fn known(ratios: &[(&str, f64)]) -> (Vec<(String, f64)>, Option<String>) {
    (ratios.iter().map(|(engine, ratio)| ((*engine).to_owned(), *ratio)).collect(), None)
}

fn unknown(reason: &str) -> (Vec<(String, f64)>, Option<String>) {
    (vec![], Some(reason.to_owned()))
}

const FLAGS: [&str; 3] = ["--gpm", "--interval", "200ms"];

#[test]
fn each_engine_is_published_and_the_busiest_unit_counts() {
    let expected = [
        ("dram", 1.0),
        ("graphics", 0.645),
        ("jpeg", 0.0),
        ("nvdec", 0.35),
        ("sm", 0.5),
        ("sm_occupancy", 0.25),
        ("tensor", 0.125),
    ];
    let scenario = format!("gpus: [{{gpm: {ALL}}}]");
    assert_eq!(activity(&page(&scenario, &FLAGS), "0"), known(&expected));
    assert_eq!(activity(&page(&scenario, &FLAGS[1..]), "0"), known(&[]), "only with --gpm");
}

#[test]
fn metric_that_cannot_be_true_is_absent() {
    for (metrics, implausible, telemetry) in [
        ("{1: 64.5, 2: nan}", 1.0, 0.0),
        ("{1: 64.5, 2: 1e300}", 1.0, 0.0),
        ("{1: 64.5, 2: 100.5}", 1.0, 0.0),
        ("{1: 64.5, 2: -1}", 1.0, 0.0),
        ("{1: 64.5, 2: timeout}", 0.0, 1.0),
        ("{1: 64.5, 2: no_permission}", 0.0, 0.0),
    ] {
        let page = page(&format!("gpus: [{{gpm: {metrics}}}]"), &FLAGS);
        assert_eq!(activity(&page, "0"), known(&[("graphics", 0.645)]), "{metrics}");
        let gaps = ["implausible", "telemetry"].map(|gap| page.value("bailiff_gaps_total", &[("gap", gap)]));
        assert_eq!(gaps, [Some(implausible), Some(telemetry)], "{metrics}");
    }
}

/// `nvmlGpmMetricsGet_t` grew in CUDA 12.9, 13.2 and 13.4 without a new version.
#[test]
fn driver_that_writes_its_whole_structure_changes_nothing() {
    for metrics in [98, 210, 333, 477] {
        let scenario = format!("gpm_metrics: {metrics}\ngpus: [{{gpm: {{1: 64.5, 2: 50, 10: nan}}}}]");
        let page = page(&scenario, &FLAGS);
        assert_eq!(activity(&page, "0"), known(&[("graphics", 0.645), ("sm", 0.5)]), "{metrics} metrics");
        assert_eq!(page.value("bailiff_gpu_up", &[]), Some(1.0), "{metrics} metrics");
    }
}

#[test]
fn unknown_activity_has_a_reason() {
    let faulty =
        |call: &str, code: &str| format!("gpus: [{{gpm: {ALL}, faults: {{errors: {{{call}: {code}}}}}}}]");
    for (scenario, interval, reason) in [
        ("gpus: [{}]".to_owned(), "200ms", "not_supported"),
        (format!("missing: [nvmlGpmQueryDeviceSupport]\ngpus: [{{gpm: {ALL}}}]"), "200ms", "not_supported"),
        (format!("missing: [nvmlGpmMetricsGet]\ngpus: [{{gpm: {ALL}}}]"), "200ms", "not_supported"),
        (faulty("nvmlGpmSampleGet", "no_permission"), "200ms", "not_supported"),
        (faulty("nvmlGpmSampleGet", "unknown"), "200ms", "failed"),
        (faulty("nvmlGpmQueryDeviceSupport", "timeout"), "200ms", "failed"),
        (format!("gpus: [{{gpm: {ALL}}}]"), "20ms", "interval"),
    ] {
        let page = page(&scenario, &["--gpm", "--interval", interval]);
        assert_eq!(activity(&page, "0"), unknown(reason), "{scenario} {interval}");
    }
}

#[test]
fn instances_have_their_own_activity_until_they_change() {
    let instance = |gi: u32, metrics: &str| {
        format!("{{gi: {gi}, profile: 1g.18gb, memory: {{total: 16GiB}}, gpm: {metrics}}}")
    };
    let with = |instances: &[String]| format!("gpus: [{{gpm: {{1: 30}}, mig: [{}]}}]", instances.join(", "));
    let scenario = Scenario::new(&with(&[instance(1, "{1: 0, 10: 0.0005}"), instance(2, "{1: 90}")]));
    let exporter = Exporter::start(&scenario, &FLAGS);
    let expected = [
        ("0", known(&[("graphics", 0.3)])),
        ("0:0", known(&[("dram", 0.000_005), ("graphics", 0.0)])),
        ("0:1", known(&[("graphics", 0.9)])),
    ];
    let all = |page: &Page| expected.iter().all(|(gpu, expected)| activity(page, gpu) == *expected);
    exporter.until("the activity of the instances", |page| all(page).then_some(()));
    scenario.set(&with(&[instance(1, "{1: 0, 10: 0.0005}"), instance(3, "{1: 90}")]));
    let changed = |page: &Page| {
        let same = ["0", "0:0"].iter().all(|gpu| activity(page, gpu) == unknown("instances_changed"));
        (same && activity(page, "0:1") == unknown("first_sample")).then_some(())
    };
    exporter.until("the change", changed);
    exporter.until("the activity of the new instances", |page| all(page).then_some(()));
}

const CALM: &str = "{1: 0.0065, 2: 0, 10: 0.0005, 30: 0, 40: 0}";
const BUSY: &str = "{1: 70, 2: 34.4, 10: 12, 30: 0, 40: 3}";

/// Returns a GPU with MIG instances, each with its id, compute instance, activity and processes.
fn with_instances(instances: &[(u32, u32, &str, &str)]) -> String {
    let instance = |(gi, ci, gpm, processes): &(u32, u32, &str, &str)| {
        format!(
            "{{gi: {gi}, ci: {ci}, profile: 1g.18gb, memory: {{total: 16GiB}}, gpm: {gpm}, processes: [{processes}]}}"
        )
    };
    let instances = instances.iter().map(instance).collect::<Vec<_>>().join(", ");
    format!("gpus: [{{gpm: {{1: 30}}, mig: [{instances}]}}]")
}

fn exporter_with(scenario: &Scenario, procfs: &Procfs, flags: &[&str]) -> Exporter {
    let procfs = procfs.path().to_str().unwrap();
    Exporter::start(scenario, &[&FLAGS, ["--procfs", procfs].as_slice(), flags].concat())
}

fn procfs(pids: &[u32]) -> Procfs {
    let procfs = Procfs::new();
    procfs.write("self/cgroup", "0::/\n");
    for pid in pids {
        procfs.add(&Process::new(*pid));
    }
    procfs
}

/// Returns the SM utilization of a process in percent, or why it is unknown.
fn utilization(page: &Page, pid: &str) -> Result<f64, String> {
    let engine = [("pid", pid), ("engine", "sm")];
    let known = page.value("bailiff_process_gpu_utilization_ratio", &engine);
    let why = page.label("bailiff_process_gpu_utilization_unknown_info", &[("pid", pid)], "reason");
    known.map(|ratio| (ratio * 100.0).round()).ok_or(why.unwrap_or_default())
}

#[test]
fn activity_of_an_instance_is_that_of_its_only_process() {
    let (one, two) = ("{pid: 4100, used: 1GiB}", "{pid: 4100, used: 1GiB}, {pid: 4101, used: 1GiB}");
    let unknown = |why: &str| Err(why.to_owned());
    for (instances, expected) in [
        (vec![(1, 0, BUSY, one)], Ok(70.0)),
        (vec![(1, 0, CALM, one)], Ok(0.0)),
        (vec![(1, 0, CALM, two)], Ok(0.0)),
        (vec![(1, 0, CALM, "{pid: 4100, used: 1GiB, kind: [compute, mps]}")], Ok(0.0)),
        (vec![(1, 0, BUSY, two)], unknown("shared_instance")),
        (vec![(1, 0, BUSY, "{pid: 4100, used: 1GiB, kind: [compute, mps]}")], unknown("shared_by_mps")),
        (vec![(1, 0, BUSY, "{pid: 4100, used: 1GiB}, {pid: 0, used: 1GiB}")], unknown("unattributed")),
        // Compute instances share the activity of their GPU instance, others do not.
        (vec![(1, 0, BUSY, one), (1, 1, BUSY, "{pid: 4101, used: 1GiB}")], unknown("shared_instance")),
        (vec![(1, 0, BUSY, one), (2, 0, BUSY, "{pid: 4101, used: 1GiB}")], Ok(70.0)),
        (vec![(1, 0, CALM, one), (2, 0, BUSY, "{pid: 4101, used: 1GiB}")], Ok(0.0)),
        // A metric is missing, cannot be true, or failed; there are only copies; or work is too short to tell.
        (vec![(1, 0, "{1: 70, 2: 34.4, 10: 12, 40: 0}", one)], unknown("mig")),
        (vec![(1, 0, "{1: 0, 2: nan, 10: 0, 30: 0, 40: 0}", one)], unknown("mig")),
        (vec![(1, 0, "{1: 0, 2: 0, 10: 0, 30: 101, 40: 0}", one)], unknown("mig")),
        (vec![(1, 0, "{1: 0, 2: 0, 10: timeout, 30: 0, 40: 0}", one)], unknown("mig")),
        (vec![(1, 0, "{1: 0.0065, 2: 0, 10: 1.14, 30: 0, 40: 0}", one)], unknown("mig")),
        (vec![(1, 0, "{1: 0.5, 2: 0.2, 10: 0, 30: 0, 40: 0}", one)], unknown("mig")),
        (vec![(1, 0, "null", one)], unknown("mig")),
    ] {
        let scenario = Scenario::new(&with_instances(&instances));
        let exporter = exporter_with(&scenario, &procfs(&[4100, 4101]), &["--mig-idle"]);
        let is_second = |page: &Page| (page.value("bailiff_snapshots_total", &[])? >= 3.0).then_some(());
        let page = exporter.until("the second sample", |page| is_second(page).map(|()| page.clone()));
        assert_eq!(utilization(&page, "4100"), expected, "{instances:?}");
    }
}

#[test]
fn process_of_an_instance_is_idle_only_on_request() {
    let scenario = Scenario::new(&with_instances(&[(1, 0, CALM, "{pid: 4100, used: 1GiB}")]));
    let procfs = procfs(&[4100, 4101]);
    let exporter = exporter_with(&scenario, &procfs, &[]);
    let ratio = |page: &Page| (!activity(page, "0:0").0.is_empty()).then(|| utilization(page, "4100"));
    assert_eq!(exporter.until("the activity", ratio), Err("mig".to_owned()));
    let exporter = exporter_with(&scenario, &procfs, &["--mig-idle"]);
    exporter.until("idleness", |page| (utilization(page, "4100") == Ok(0.0)).then_some(()));
    let idle = |page: &Page| page.value("bailiff_process_gpu_idle_seconds", &[("pid", "4100")]);
    exporter.until("idle time", |page| (idle(page)? > 0.0).then_some(()));
    // A process that comes is not idle for the time before, and work of one that went belongs to nobody.
    let both = "{pid: 4100, used: 1GiB}, {pid: 4101, used: 1GiB}";
    let mut comes = vec![Err("not_listed_before".to_owned()), Err("shared_instance".to_owned())];
    scenario.set(&with_instances(&[(1, 0, BUSY, both)]));
    exporter.until("the second process", |page| {
        let known = utilization(page, "4101");
        assert!(known == Err(String::new()) || comes.contains(&known), "{known:?}");
        (known == comes[1]).then_some(())
    });
    comes = vec![Err("shared_instance".to_owned()), Ok(70.0)];
    scenario.set(&with_instances(&[(1, 0, BUSY, "{pid: 4100, used: 1GiB}")]));
    exporter.until("the only process", |page| {
        let known = utilization(page, "4100");
        assert!(comes.contains(&known), "{known:?}");
        (known == comes[1]).then_some(())
    });
}

#[test]
fn work_that_accounting_counts_is_not_idleness() {
    let with = |sum: u64| {
        let sums = format!(
            "accounting: {{enabled: true, processes: [{{pid: 4101, running: true, sums: [{sum}, 0]}}]}}"
        );
        format!("gpus: [{{processes: [{{pid: 4100, sm: 90}}, {{pid: 4101}}], {sums}}}]")
    };
    let scenario = Scenario::new(&with(0));
    let exporter = exporter_with(&scenario, &procfs(&[4100, 4101]), &[]);
    exporter.until("idleness", |page| (utilization(page, "4101") == Ok(0.0)).then_some(()));
    let mut sum = 0;
    exporter.until("the contradiction", |page| {
        sum += 1;
        scenario.set(&with(sum));
        (utilization(page, "4101") == Err("accounted".to_owned())).then_some(())
    });
    // The counters of another process do not count, nor those that fell.
    scenario.set(&with(0).replace("pid: 4101, running", "pid: 4100, running"));
    exporter.until("idleness again", |page| (utilization(page, "4101") == Ok(0.0)).then_some(()));
}

#[test]
fn rule_flags_the_process_of_an_idle_instance() {
    let rules = "version: 1
defaults: {startup_grace: 0s, clear_after: 1}
rules:
  - name: idle
    target: process
    when: {gpu_util: {max: 1%}}
    for: {samples: 3}
    then: [{flag: warning}]
";
    let ticks = [&TICKS[..], &["--gpm", "--mig-idle"]].concat();
    let node = Node::with_ticks(rules, &[""], &ticks);
    let [idle, busy] = [(); 2].map(|()| Tenant::ending_on_term(&node.home));
    let process = |tenant: &Tenant| format!("{{pid: {}, used: 1GiB}}", tenant.pid());
    let instances = [(1, 0, CALM, process(&idle)), (2, 0, BUSY, process(&busy))];
    let instances: Vec<_> =
        instances.iter().map(|(gi, ci, gpm, held)| (*gi, *ci, *gpm, held.as_str())).collect();
    let text = with_instances(&instances);
    let text = text.strip_prefix("gpus: [{").and_then(|text| text.strip_suffix("}]")).unwrap();
    let text = text.replace(", mig:", "\n    mig:");
    node.change(|driver| driver.gpus[0].text = text);
    let enforcer = node.home.enforcer(&[]);
    let flagged = |page: &Page| -> Vec<String> {
        page.all("bailiff_flag", &[]).map(|(labels, _)| labels["pid"].clone()).collect()
    };
    enforcer.until("the flag", |page| (flagged(page) == [idle.pid().to_string()]).then_some(()));
    let tick = node.tick();
    enforcer.until("more ticks", |page| {
        assert_eq!(flagged(page), [idle.pid().to_string()]);
        (node.tick() > tick + 5).then_some(())
    });
}

#[test]
fn instance_that_was_created_again_has_no_activity() {
    let instances = with_instances(&[(1, 0, BUSY, "{pid: 4100, used: 1GiB}")]);
    let scenario = Scenario::new(&instances);
    let exporter = exporter_with(&scenario, &procfs(&[4100]), &[]);
    exporter.until("the activity", |page| (utilization(page, "4100") == Ok(70.0)).then_some(()));
    // With the same UUID, only an event shows the change.
    scenario.set(&instances.replace("gpus: [{", "gpus: [{mig_changes: 1, "));
    let mut reasons = Vec::new();
    exporter.until("the activity after the change", |page| {
        let (ratios, why) = activity(page, "0:0");
        assert!(ratios.is_empty() == (utilization(page, "4100") == Err("mig".to_owned())), "{why:?}");
        reasons.extend(why.filter(|why| !reasons.contains(why)));
        (!reasons.is_empty() && !ratios.is_empty()).then_some(())
    });
    let expected = ["instances_changed", "first_sample"];
    assert!(reasons.iter().all(|why| expected.contains(&why.as_str())), "{reasons:?}");
}

#[test]
fn info_shows_the_activity() {
    let scenario = Scenario::new(&format!("gpus: [{{gpm: {ALL}}}]"));
    let stream = scenario.directory().join("stream.sock");
    let exporter =
        Exporter::start(&scenario, &[&FLAGS, ["--stream", stream.to_str().unwrap()].as_slice()].concat());
    exporter.until("the activity", |page| (!activity(page, "0").0.is_empty()).then_some(()));
    let info = |flags: &[&str]| {
        let mut command = Command::new(programs::bailiff());
        command.arg("info").args(flags).env("BAILIFF_STREAM", &stream).env_remove("LEASE_REDIS_URL");
        let output = command.env("LEASE_DIR", scenario.directory().join("pool")).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    let text = info(&["--full"]).split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(text.contains("activity dram 100.0%, graphics 64.5%, jpeg 0.0%, nvdec 35.0%"), "{text}");
    let report: serde_json::Value = serde_json::from_str(&info(&["--json"])).unwrap();
    assert_eq!(report["gpus"][0]["activity"]["tensor"], 0.125, "{report}");
}
