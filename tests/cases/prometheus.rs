//! Tests that a real Prometheus server, promtool and the parsers of Python's client library can
//! read the pages.
#![allow(
    clippy::disallowed_methods,
    clippy::expect_used,
    clippy::float_cmp,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a case runs programs, reads files, compares exact figures and fails loudly"
)]

use std::fs;
use std::io::Write;
use std::process::{Command, Stdio};

use end_to_end::exporter::Exporter;
use end_to_end::fake::Scenario;
use end_to_end::prometheus::Prometheus;
use end_to_end::wait::until;
use end_to_end::{http, leases, programs};
use rustix::process::Signal;

#[test]
fn prometheus_scrapes_without_an_error() {
    let scenario = Scenario::named("busy");
    let exporter = Exporter::start(&scenario, &["--interval", "500ms"]);
    let prometheus = Prometheus::scraping(exporter.address());
    let count = "count_over_time(up[5m])";
    until("five scrapes", || (prometheus.number(count)? >= 5.0).then_some(()));
    assert_eq!(prometheus.number("min_over_time(up[5m])"), Some(1.0));
    let stored = prometheus.number("min_over_time(scrape_samples_post_metric_relabeling[5m])");
    assert!(stored > Some(100.0), "{stored:?}");
    let busy = "max by (pid) (bailiff_process_gpu_utilization_ratio{engine=\"sm\", pid=\"4100\"})";
    assert_eq!(prometheus.number(busy), Some(0.92));
    let used =
        "sum(bailiff_gpu_memory_parts_bytes{gpu=\"0\"}) == sum(bailiff_gpu_memory_total_bytes{gpu=\"0\"})";
    assert_eq!(
        prometheus.query(used).map(|result| result.len()),
        Some(1),
        "the parts of the memory add up in PromQL too"
    );
}

#[test]
fn killed_holder_is_stale_at_the_next_scrape() {
    let mut holder = end_to_end::holder::Holder::sleeping();
    let text = |process: &str| format!("gpus:\n  - processes: [{process}]\n");
    let scenario = Scenario::new(&text(&format!("{{pid: {}, used: 1GiB}}", holder.pid())));
    let exporter = Exporter::start(&scenario, &[]);
    let prometheus = Prometheus::scraping(exporter.address());
    let query = "bailiff_process_gpu_memory_bytes";
    until("the sample is stored", || (prometheus.query(query)?.len() == 1).then_some(()));
    holder.end();
    scenario.set(&text(""));
    until("the sample is stale", || prometheus.query(query)?.is_empty().then_some(()));
}

fn promtool(page: &[u8]) {
    let mut child = Command::new(programs::tool("promtool"))
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("promtool must be installed: run `tests/setup prometheus`");
    child.stdin.take().unwrap().write_all(page).unwrap();
    let output = child.wait_with_output().unwrap();
    let printed = [output.stdout, output.stderr].concat();
    assert!(output.status.success() && printed.is_empty(), "{}", String::from_utf8_lossy(&printed));
}

/// Parses the page with Python's parsers, and prints the number of samples.
const PARSERS: &str = "
import sys
from prometheus_client.parser import text_string_to_metric_families as text
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
page = sys.stdin.buffer.read().decode()
seen = set()
for family in (openmetrics if '# EOF' in page else text)(page):
    for sample in family.samples:
        key = (sample.name, tuple(sorted(sample.labels.items())))
        assert key not in seen, key
        seen.add(key)
print(len(seen))
";

fn python_samples(page: &[u8]) -> usize {
    let mut child = Command::new(programs::python())
        .args(["-c", PARSERS])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(page).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    String::from_utf8(output.stdout).unwrap().trim().parse().unwrap()
}

const OPENMETRICS: &str = "Accept: application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5";

#[test]
fn every_parser_accepts_pages_of_0_to_8_gpus() {
    for name in ["none", "dead-pid", "busy", "mig", "mps", "lost", "8x4", "r535", "r580", "r615"] {
        let scenario = Scenario::named(name);
        let exporter = Exporter::start(&scenario, &["--interval", "500ms", "--gpm"]);
        let _ = exporter.next();
        if matches!(name, "mig" | "r580") {
            exporter.until("activity", |page| page.all("bailiff_gpu_activity_ratio", &[]).next().map(drop));
        }
        accepted(&exporter, name);
    }
}

fn accepted(exporter: &Exporter, name: &str) {
    // On a busy machine, one of the two pages may be outdated and lack process samples.
    until(&format!("{name}: two pages with the same number of samples"), || {
        let plain = http::get(exporter.address(), "/metrics", &[]).unwrap();
        promtool(&plain.body);
        let text = python_samples(&plain.body);
        let openmetrics = http::get(exporter.address(), "/metrics", &[OPENMETRICS]).unwrap();
        let head = openmetrics.head.to_ascii_lowercase();
        assert!(head.contains("application/openmetrics-text"), "{head}");
        assert!(openmetrics.text().ends_with("# EOF\n"));
        let other = python_samples(&openmetrics.body);
        (text > 20 && text.abs_diff(other) <= 5).then_some(())
    });
}

#[test]
fn every_parser_accepts_a_page_with_leases() {
    let redis = leases::pool("0-1");
    let runner = leases::hold(&redis, &["run"]);
    let scenario = Scenario::named("busy");
    // The interval is so long that both pages show the same sample.
    let ticks = ["--interval", "2s", "--deadline", "10s", "--look-back", "4s"];
    let exporter =
        Exporter::start(&scenario, &[&ticks, ["--lease.redis", &redis.address()].as_slice()].concat());
    exporter.until("a lease has been idle", |page| {
        let idle = page.value("bailiff_lease_idle_seconds", &[("gpu", "0")]);
        (idle.is_some() && page.value("bailiff_lease_wait_seconds_count", &[]) == Some(1.0)).then_some(())
    });
    accepted(&exporter, "leases");
    leases::end(runner, Signal::TERM);
}

#[test]
fn every_parser_accepts_the_enforcer_page() {
    let page = fs::read(programs::root().join("enforcer/tests/golden/full.prom")).unwrap();
    promtool(&page);
    assert!(python_samples(&page) > 20);
}
