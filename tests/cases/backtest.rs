//! Tests `backtest` with metrics that a real Prometheus server scraped from the real exporter, and with the
//! recorded stream.
#![allow(
    clippy::disallowed_methods,
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a case runs programs, reads files and clocks, and fails loudly"
)]

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bailiff_enforcer::commands::backtest::{self, Backtest};
use bailiff_enforcer::commands::replay;
use bailiff_enforcer::flags;
use end_to_end::exporter::{Exporter, TICKS, command};
use end_to_end::fake::Scenario;
use end_to_end::holder::Holder;
use end_to_end::prometheus::Prometheus;
use end_to_end::wait::until;
use serde_json::Value;

/// 60 ticks of 100 ms correspond to 12 scrapes every 500 ms.
const RULES: &str = "version: 1
allow_root: true
defaults: {startup_grace: 0s}
rules:
  - {name: idle, target: process, when: {gpu_util: {max: 1%}}, for: {samples: 60}, then: [{flag: info}, {terminate: {}}]}
  - {name: fully-idle, target: process, when: {gpu_util: {max: 1%}, cpu_util: {max: 5%}}, for: {samples: 60}, then: [{terminate: {}}]}
";
const NEEDED: usize = 12;

/// Returns a scenario whose driver samples its devices several times per tick, so that every tick has
/// samples.
fn held_by(holder: &Holder) -> Scenario {
    let pid = holder.pid();
    Scenario::new(&format!("sampling_period: 20ms\ngpus:\n  - processes: [{{pid: {pid}, used: 1GiB}}]\n"))
}

fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap()
}

fn rules(directory: &Path) -> PathBuf {
    let path = directory.join("rules.yaml");
    fs::write(&path, RULES).unwrap();
    path
}

fn backtest(prometheus: &Prometheus, rules: &Path, from: Duration) -> Backtest {
    let flags = flags::Backtest {
        rules: rules.to_owned(),
        prometheus: format!("http://{}", prometheus.address()),
        from: humantime::format_rfc3339_nanos(UNIX_EPOCH + from).to_string(),
        to: "0s".to_owned(),
        instance: None,
        assume_children_idle: false,
        token_file: None,
        interval: None,
        // The range spans several chunks, so that the test covers joining them.
        chunk: "4s".to_owned(),
        resume_after: None,
        json: false,
    };
    backtest::rehearse(&flags, now()).unwrap_or_else(|failure| panic!("{failure}"))
}

/// Returns the times in milliseconds and the values of a metric's raw samples.
fn samples(prometheus: &Prometheus, selector: &str) -> Vec<(u64, f64)> {
    let series = prometheus.query(&format!("{selector}[10m]")).unwrap();
    let values = series.iter().flat_map(|series| series["values"].as_array().unwrap().clone());
    let sample = |value: Value| {
        let at = (value[0].as_f64().unwrap() * 1000.0).round();
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "milliseconds of today")]
        (at as u64, value[1].as_str().unwrap().parse().unwrap())
    };
    values.map(sample).collect()
}

#[test]
fn idle_process_is_a_hit_and_gaps_are_skipped() {
    let holder = Holder::sleeping();
    let scenario = held_by(&holder);
    let rules = rules(scenario.directory());
    let from = now().saturating_sub(Duration::from_secs(1));
    let exporter = Exporter::start(&scenario, &[]);
    let address = exporter.address();
    let prometheus = Prometheus::scraping_each(address, "500ms");
    let scraped = "count_over_time(bailiff_process_gpu_utilization_ratio{engine=\"sm\"}[10m])";
    until("some scrapes, fewer than are needed", || (prometheus.number(scraped)? >= 7.0).then_some(()));
    drop(exporter);
    until("scrapes that failed", || {
        (prometheus.number("sum_over_time((1 - up)[10m:500ms])")? >= 6.0).then_some(())
    });
    let mut again = command(&scenario);
    again.args(TICKS);
    let exporter = Exporter::spawn_at(again, address);
    let before = samples(&prometheus, "bailiff_snapshots_total").len();
    until("as many scrapes as are needed, and more", || {
        let seen = samples(&prometheus, "bailiff_process_gpu_utilization_ratio{engine=\"sm\"}").len();
        (seen >= before + NEEDED + 4).then_some(())
    });
    drop(exporter);

    let idle = samples(&prometheus, "bailiff_process_gpu_utilization_ratio{engine=\"sm\"}");
    assert!(idle.iter().all(|(_, value)| *value <= 0.01), "{idle:?}");
    let gap = idle.windows(2).position(|pair| pair[1].0 - pair[0].0 > 2000).expect("a gap");
    assert!(gap + 1 < NEEDED, "the machine is too slow for this case: {idle:?}");
    let taken = samples(&prometheus, "bailiff_snapshot_timestamp_seconds");
    let taken_at = |at: u64| taken.iter().find(|(scrape, _)| *scrape == at).unwrap().1;

    let backtest = backtest(&prometheus, &rules, from);
    let [report] = &backtest.exporters[..] else { panic!("one exporter: {backtest:#?}") };
    let [idle_rule, fully_idle] = &report.rules[..] else { panic!("two rules: {report:#?}") };
    let [action] = &idle_rule.actions[..] else { panic!("one action: {report:#?}") };
    // The action becomes due once the streak after the gap is long enough, and is confirmed one scrape
    // later.
    let due = idle[gap + 1 + NEEDED].0;
    let reported_at = action.at.since_epoch().as_secs_f64();
    assert!(
        (reported_at - taken_at(due)).abs() < 0.002,
        "{reported_at} is not {}: {report:#?}",
        taken_at(due)
    );
    assert_eq!((action.needed as usize, action.again, action.vram), (NEEDED, false, Some(1 << 30)));
    assert_eq!(action.comms, ["sleep"]);
    assert!(action.target.starts_with(&format!("process:{}@", holder.pid())), "{}", action.target);
    assert!(report.period.missed_intervals >= 4, "{:?}", report.period);
    assert!(report.freed.gpu_hours > 0.0);
    assert_eq!((fully_idle.matches, fully_idle.actions.len()), (0, 0));
    let why = fully_idle.never.as_deref();
    assert_eq!(why, Some("cpu_util was unknown throughout"), "{report:#?}");
    assert!(report.notes.iter().any(|note| note.contains("--assume-children-idle")), "{:?}", report.notes);
}

#[test]
fn record_with_a_torn_end_is_replayed() {
    let holder = Holder::sleeping();
    let scenario = held_by(&holder);
    let rules = rules(scenario.directory());
    let record = scenario.directory().join("record.ndjson");
    let exporter = Exporter::start(&scenario, &["--record", record.to_str().unwrap()]);
    let replay = || {
        let (rules, record) = (rules.clone(), record.clone());
        let flags = flags::Replay { record, rules, resume_after: None, json: true };
        let mut out = Vec::new();
        replay::run(&flags, now(), &mut out).unwrap_or_else(|failure| panic!("{failure}"));
        serde_json::from_slice::<Value>(&out).unwrap()
    };
    // The number of ticks depends on how many ticks this machine misses.
    until("a streak in the record", || {
        fs::metadata(&record).ok().filter(|about| about.len() > 0)?;
        (replay()["rules"][0]["kills"] == 1).then_some(())
    });
    drop(exporter);
    let mut text = fs::read(&record).unwrap();
    text.extend_from_slice(b"{\"version\":1,\"seq\":9");
    fs::write(&record, text).unwrap();
    let report = replay();
    assert_eq!(report["period"]["bad_lines"], 1);
    let idle = &report["rules"][0];
    assert_eq!(idle["kills"], 1, "{report:#}");
    assert_eq!(idle["actions"][0]["needed"], 60, "{report:#}");
    assert_eq!(idle["actions"][0]["comms"][0], "sleep");
}
