//! Tests `bailiff free --prometheus` with real exporters that a real Prometheus server scrapes: a node without recent data
//! is unknown, and never free.
#![allow(
    clippy::disallowed_methods,
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a case runs programs, reads clocks and fails loudly"
)]

use std::fmt::Write as _;
use std::process::{Command, Output, Stdio};
use std::thread::park_timeout;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use end_to_end::exporter::Exporter;
use end_to_end::fake::Scenario;
use end_to_end::programs;
use end_to_end::prometheus::Prometheus;
use end_to_end::wait::until;
use serde_json::Value;

const BUSY: &str = "gpus:
- {memory: {total: 80GiB}, processes: [{pid: 4100, used: 70GiB}]}
- {memory: {total: 80GiB}, processes: [{pid: 4101, used: 20GiB}]}
- {faults: {lost: true}}
- {mig: [{gi: 1, profile: 1g.18gb, memory: {total: 16GiB}}, {gi: 2, profile: 1g.18gb, memory: {total: 16GiB}, processes: [{pid: 4102, used: 1GiB}]}]}
";

fn free(prometheus: &Prometheus, flags: &[&str]) -> Command {
    let mut command = Command::new(programs::bailiff());
    command.arg("free").arg("--prometheus").arg(format!("http://{}", prometheus.address())).args(flags);
    command
}

fn run(prometheus: &Prometheus, flags: &[&str]) -> (String, Option<i32>) {
    let Output { stdout, status, .. } = free(prometheus, flags).output().unwrap();
    (String::from_utf8(stdout).unwrap(), status.code())
}

/// Returns the listed GPUs: node, index, whether it is free, and why not.
fn listed(prometheus: &Prometheus, flags: &[&str]) -> Vec<(String, String, Option<bool>, String)> {
    let (text, _) = run(prometheus, &[flags, &["--json"]].concat());
    let gpus: Vec<Value> = serde_json::from_str(&text).unwrap_or_default();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    gpus.iter()
        .map(|gpu| (text(&gpu["node"]), text(&gpu["index"]), gpu["free"].as_bool(), text(&gpu["why"])))
        .collect()
}

fn scraping(targets: &[&Exporter]) -> Prometheus {
    let targets: Vec<String> = targets.iter().map(|exporter| format!("'{}'", exporter.address())).collect();
    Prometheus::of(&format!(
        "global: {{scrape_interval: 500ms, scrape_timeout: 500ms}}\n\
         scrape_configs:\n  - job_name: bailiff\n    static_configs: [{{targets: [{}]}}]\n",
        targets.join(", ")
    ))
}

#[test]
fn best_gpu_of_all_nodes_comes_first_and_a_node_that_is_down_is_unknown() {
    let (busy, idle) = (Scenario::new(BUSY), Scenario::new("gpus: [{memory: {total: 40GiB}}]"));
    let (first, second) = (Exporter::start(&busy, &[]), Exporter::start(&idle, &[]));
    let names = [first.address().to_string(), second.address().to_string()];
    let prometheus = scraping(&[&first, &second]);
    let rows = |flags: &[&str]| -> Vec<(usize, String, Option<bool>)> {
        let place = |node: &str| names.iter().position(|name| name == node).unwrap();
        listed(&prometheus, flags)
            .into_iter()
            .map(|(node, index, free, _)| (place(&node), index, free))
            .collect()
    };
    let gpu = |node: usize, index: &str, free: Option<bool>| (node, index.to_owned(), free);
    let (yes, no) = (Some(true), Some(false));
    let all = [
        gpu(1, "0", yes),
        gpu(0, "3:0", yes),
        gpu(0, "1", no),
        gpu(0, "3:1", no),
        gpu(0, "0", no),
        gpu(0, "2", None),
    ];
    until("both nodes are scraped", || (rows(&["--all"]) == all).then_some(()));
    assert_eq!(rows(&["--vram", "30GiB"]), [gpu(0, "1", yes), gpu(1, "0", yes)]);
    let (text, code) = run(&prometheus, &["--all"]);
    let lines: Vec<&str> = text.lines().collect();
    assert!(
        lines[0].starts_with("NODE") && lines[1].starts_with(&names[1]) && lines[1].ends_with("free"),
        "{text}"
    );
    assert!(lines[6].contains("unknown: lost") && code == Some(0), "{text}");
    assert_eq!(run(&prometheus, &["--vram", "100GiB"]), (String::new(), Some(75)));

    drop(second);
    until("the node is unknown", || (rows(&[]) == [gpu(0, "3:0", yes)]).then_some(()));
    let all = listed(&prometheus, &["--all"]);
    let down = all.iter().find(|gpu| gpu.0 == names[1]).unwrap();
    assert_eq!((down.2, down.3.as_str()), (None, "no data of the node"));
    // The exporter still responds, but the limit is shorter than the time between two samples.
    until("the data is too old", || {
        let all = listed(&prometheus, &["--all", "--max-age", "0s"]);
        (!all.is_empty() && all.iter().all(|gpu| gpu.2.is_none())).then_some(())
    });
}

#[test]
fn waiting_ends_when_a_gpu_of_the_cluster_is_free() {
    let scenario = Scenario::new("gpus: [{processes: [{pid: 4100, used: 1GiB}]}]");
    let exporter = Exporter::start(&scenario, &[]);
    let prometheus = scraping(&[&exporter]);
    until("the node is scraped", || {
        (listed(&prometheus, &["--all"]).first()?.2 == Some(false)).then_some(())
    });
    let mut waiting = free(&prometheus, &["--wait"]).stdout(Stdio::piped()).spawn().unwrap();
    park_timeout(Duration::from_millis(500));
    assert!(waiting.try_wait().unwrap().is_none());
    scenario.set("gpus: [{}]");
    let output = waiting.wait_with_output().unwrap();
    assert!(
        output.status.success() && String::from_utf8_lossy(&output.stdout).contains("free"),
        "{output:?}"
    );
}

/// Values of a node whose samples end before now, or whose GPU is reserved.
#[test]
#[expect(clippy::too_many_lines, reason = "the values of one cluster")]
fn stale_leased_and_allocated_gpus_are_not_free() {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let mut lines: Vec<(&str, String)> = Vec::new();
    for (node, snapshot) in [
        ("stale", now - 1000),
        ("ahead", now + 1000),
        ("pool", now),
        ("held-back", now),
        ("slurm", now),
        ("redis", now),
        ("ok\u{202e}", now),
    ] {
        let gpu = format!("instance=\"{node}\",job=\"bailiff\",gpu=\"0\",gpu_uuid=\"GPU-{node}\"");
        let node_labels = format!("instance=\"{node}\",job=\"bailiff\"");
        for (metric, value) in [
            ("bailiff_gpu_info", 1_u64),
            ("bailiff_gpu_up", 1),
            ("bailiff_gpu_memory_total_bytes", 80 << 30),
            ("bailiff_gpu_memory_free_bytes", 80 << 30),
            ("bailiff_gpu_processes", 0),
        ] {
            lines.push((metric, format!("{{{gpu}}} {value}")));
        }
        lines.push(("bailiff_snapshot_timestamp_seconds", format!("{{{node_labels}}} {snapshot}")));
        match node {
            "pool" => lines.push(("bailiff_lease_held", format!("{{{gpu},user=\"ada\",mode=\"run\"}} 1"))),
            "held-back" => {
                lines.push(("bailiff_lease_gpus", format!("{{{node_labels},state=\"quarantined\"}} 1")));
            }
            "slurm" => lines.push((
                "bailiff_slurm_gpu_allocation_info",
                format!("{{{gpu},slurm_job=\"7\",state=\"never_used\"}} 1"),
            )),
            "redis" => lines.push(("bailiff_source_up", format!("{{{node_labels},source=\"redis\"}} 0"))),
            _ => {}
        }
    }
    lines.sort();
    let mut text = String::new();
    let mut last = "";
    for (metric, line) in &lines {
        if *metric != last {
            writeln!(text, "# TYPE {metric} gauge").unwrap();
        }
        last = metric;
        // Within the five minutes for which Prometheus returns a sample.
        writeln!(text, "{metric}{line} {}", now - 30).unwrap();
        writeln!(text, "{metric}{line} {now}").unwrap();
    }
    let prometheus = Prometheus::filled(&(text + "# EOF\n"));
    until("Prometheus has the samples", || prometheus.number("count(bailiff_gpu_info)"));
    let all = listed(&prometheus, &["--all", "--vram", "1GiB"]);
    let of = |node: &str| {
        all.iter().find(|gpu| gpu.0.starts_with(node)).map(|gpu| (gpu.2, gpu.3.clone())).unwrap()
    };
    assert!(of("stale").0.is_none() && of("stale").1.contains("16 min"), "{all:?}");
    assert!(of("ahead").0.is_none() && of("ahead").1.contains("clocks"), "{all:?}");
    assert_eq!(of("pool"), (Some(false), "lease: leased".to_owned()));
    assert!(of("held-back").0.is_none() && of("held-back").1.contains("quarantined"), "{all:?}");
    assert_eq!(of("slurm"), (Some(false), "job 7".to_owned()));
    assert!(of("redis").0.is_none() && of("redis").1.contains("pool cannot be read"), "{all:?}");
    assert_eq!(of("ok").0, Some(true));
    let (text, code) = run(&prometheus, &[]);
    assert!(code == Some(0) && text.lines().count() == 2 && !text.contains('\u{202e}'), "{text}");
}

#[test]
fn no_prometheus_is_an_error_and_not_an_empty_list() {
    let mut command = Command::new(programs::bailiff());
    let output = command.args(["free", "--prometheus", "http://127.0.0.1:1"]).output().unwrap();
    assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(69), &b""[..]));
    let prometheus = Prometheus::of("global: {scrape_interval: 1s}\n");
    until("Prometheus responds", || prometheus.query("vector(1)"));
    let Output { stderr, status, .. } = free(&prometheus, &["--all"]).output().unwrap();
    let error = String::from_utf8(stderr).unwrap();
    assert!(status.code() == Some(69) && error.contains("no bailiff_gpu_info for a day"), "{error}");
}
