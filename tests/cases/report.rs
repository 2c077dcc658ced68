//! Tests `bailiff report` with a real Prometheus server that has the recorded data of several nodes: one has a gap, one is
//! stale, one never responded.
#![allow(
    clippy::cast_precision_loss,
    clippy::disallowed_methods,
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a case runs programs, reads files and clocks, and fails loudly"
)]

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::thread;
use std::time::{SystemTime, UNIX_EPOCH};

use end_to_end::browser::{Browser, Screen};
use end_to_end::programs;
use end_to_end::prometheus::Prometheus;
use end_to_end::wait::until;
use serde_json::{Value, json};

const HOUR: u64 = 3600;
/// Samples are a minute apart, and not at the ends of steps.
const OFFSET: u64 = 7;
/// A user and an account whose names are formulas and markup, as a label in `OpenMetrics`.
const HOSTILE: &str = r#"=cmd|'/c calc'!A1<img src=x onerror=alert(1)>\"\\,\n\u202e"#;

/// The series of a fleet, by metric, as `OpenMetrics` lines.
struct Fleet {
    from: u64,
    hours: u64,
    lines: BTreeMap<(&'static str, &'static str), String>,
}

impl Fleet {
    /// A period that ends now, so that the default of `--until` applies.
    fn new(hours: u64) -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
        Self { from: now / 300 * 300 - hours * HOUR, hours, lines: BTreeMap::new() }
    }

    /// Adds a series: its value at each time in seconds since the start, if there is one. The first sample is before the
    /// start.
    fn add(
        &mut self,
        kind: &'static str,
        (metric, labels): (&'static str, &str),
        value: impl Fn(f64) -> Option<f64>,
    ) {
        let labels = labels.replace("\\u202e", "\u{202e}");
        let lines = self.lines.entry((metric, kind)).or_default();
        for minute in 0..=self.hours * 60 {
            let at = (self.from + minute * 60).checked_sub(60).unwrap() + OFFSET;
            let after = (minute * 60) as f64 - 53.0;
            if let Some(value) = value(after) {
                writeln!(lines, "{metric}{{{labels}}} {value} {at}").unwrap();
            }
        }
    }

    /// Adds an exporter with this many GPUs, which is scraped at times for which `is_up` is true.
    fn node(&mut self, instance: &str, gpus: u32, is_up: fn(f64) -> bool) {
        let target = format!("instance=\"{instance}\",job=\"bailiff\"");
        self.add("counter", ("bailiff_snapshots_total", &target), |at| is_up(at).then_some(100.0 + at / 5.0));
        self.add("gauge", ("up", &target), |at| Some(f64::from(is_up(at))));
        for gpu in 0..gpus {
            let labels = format!("{target},gpu=\"{gpu}\",gpu_uuid=\"GPU-{instance}-{gpu}\"");
            self.add("gauge", ("bailiff_gpu_up", &labels), |at| is_up(at).then_some(1.0));
        }
    }

    /// Adds a user who holds 8 GiB on one GPU, and is idle and unknown for these shares of the time.
    fn user(&mut self, (instance, user): (&str, &str), (idle, unknown): (f64, f64), is_up: fn(f64) -> bool) {
        let labels = format!("instance=\"{instance}\",job=\"bailiff\",user=\"{user}\"");
        for (metric, share) in [
            ("bailiff_held_gpu_seconds_total", 1.0),
            ("bailiff_idle_gpu_seconds_total", idle),
            ("bailiff_unknown_gpu_seconds_total", unknown),
        ] {
            self.add("counter", (metric, &labels), |at| is_up(at).then_some((at + 1000.0) * share));
        }
        let on_gpu = format!("{labels},gpu=\"0\",gpu_uuid=\"GPU-{instance}-0\"");
        self.add("gauge", ("bailiff_user_gpu_processes", &on_gpu), |at| is_up(at).then_some(1.0));
        let memory = f64::from(1 << 30) * 8.0;
        self.add("gauge", ("bailiff_user_gpu_memory_bytes", &on_gpu), |at| is_up(at).then_some(memory));
    }

    fn prometheus(&self) -> Prometheus {
        let mut text = String::new();
        for ((metric, kind), lines) in &self.lines {
            let family = if *kind == "counter" { metric.trim_end_matches("_total") } else { metric };
            writeln!(text, "# TYPE {family} {kind}\n{}", lines.trim_end()).unwrap();
        }
        let prometheus = Prometheus::filled(&(text + "# EOF\n"));
        let query = format!("count(last_over_time(up[{}h]))", self.hours + 1);
        until("Prometheus has the samples", || prometheus.number(&query));
        prometheus
    }
}

fn always(_: f64) -> bool {
    true
}

/// Twelve hours. `n2` was down from hour 4 to 6; its counters show that the exporter was running. `n3` has no data in the
/// last three hours, and `n4` never had any.
fn fleet() -> Fleet {
    let hour = HOUR as f64;
    let mut fleet = Fleet::new(12);
    fleet.node("n1:9836", 2, always);
    fleet.node("n2:9836", 4, |at| !(4.0 * 3600.0..6.0 * 3600.0).contains(&at));
    fleet.node("n3:9836", 1, |at| at < 9.0 * 3600.0);
    fleet.add("gauge", ("up", "instance=\"n4:9836\",job=\"bailiff\""), |_| Some(0.0));
    fleet.user(("n1:9836", "ada"), (0.5, 0.1), always);
    fleet.user(("n2:9836", HOSTILE), (1.0, 0.0), |at| !(4.0 * 3600.0..6.0 * 3600.0).contains(&at));
    fleet.user(("n3:9836", "carol"), (0.0, 0.0), |at| at < 9.0 * 3600.0);
    let energy =
        "instance=\"n1:9836\",job=\"bailiff\",gpu=\"0\",gpu_uuid=\"GPU-n1-0\",part=\"user\",user=\"ada\"";
    fleet.add("counter", ("bailiff_energy_joules_total", energy), |at| Some((at + 60.0) * 400.0));
    let job = |state: &str| {
        format!(
            "instance=\"n1:9836\",job=\"bailiff\",slurm_job=\"7\",uid=\"1000\",user=\"ada\",account=\"{HOSTILE}\",\
             gpu=\"0\",gpu_uuid=\"GPU-n1-0\",state=\"{state}\""
        )
    };
    fleet
        .add("gauge", ("bailiff_slurm_gpu_allocation_info", &job("in_use")), |at| (at < hour).then_some(1.0));
    fleet.add("gauge", ("bailiff_slurm_gpu_allocation_info", &job("never_used")), |at| {
        (at >= hour && at < 3.0 * hour).then_some(1.0)
    });
    enforcer(&mut fleet);
    fleet
}

/// Adds an enforcer. One of three notices has no user.
fn enforcer(fleet: &mut Fleet) {
    let hour = HOUR as f64;
    let enforcer = "instance=\"n1:9837\",job=\"bailiff-enforcer\"";
    fleet.add("gauge", ("up", enforcer), |_| Some(1.0));
    fleet.add("counter", ("bailiff_enforcer_snapshots_total", enforcer), |at| Some(100.0 + at / 5.0));
    // The counters of a user begin with the first event.
    let since = |start: f64, value: f64| move |at: f64| (at >= start).then_some(value);
    fleet.add(
        "counter",
        ("bailiff_user_notices_total", &format!("{enforcer},user=\"ada\"")),
        since(2.0 * hour, 2.0),
    );
    let kills = format!("{enforcer},user=\"ada\",result=\"released\"");
    fleet.add("counter", ("bailiff_user_kills_total", &kills), since(3.0 * hour, 1.0));
    let refused = format!("{enforcer},user=\"ada\",result=\"refused\"");
    fleet.add("counter", ("bailiff_user_kills_total", &refused), since(3.0 * hour, 5.0));
    let released = f64::from(1 << 30);
    fleet.add(
        "counter",
        ("bailiff_user_memory_released_bytes_total", &format!("{enforcer},user=\"ada\"")),
        since(3.0 * hour, released),
    );
    let all = format!("{enforcer},rule=\"idle\",mode=\"enforce\",step=\"notify\",result=\"done\"");
    fleet.add("counter", ("bailiff_steps_total", &all), |at| Some(if at < hour { 0.0 } else { 3.0 }));
    let all = format!("{enforcer},rule=\"idle\",result=\"released\"");
    fleet.add("counter", ("bailiff_kills_total", &all), |at| Some(if at < hour { 0.0 } else { 1.0 }));
    fleet.add("counter", ("bailiff_memory_released_bytes_total", enforcer), |at| {
        Some(if at < hour { 0.0 } else { released })
    });
}

fn report(url: &str, flags: &[&str]) -> Output {
    Command::new(programs::bailiff()).args(["report", "--prometheus", url]).args(flags).output().unwrap()
}

fn printed(output: &Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// Returns the report of the period of the data.
fn report_of(prometheus: &Prometheus, fleet: &Fleet, flags: &[&str]) -> String {
    let (from, to) = (moment(fleet.from), moment(fleet.from + fleet.hours * HOUR));
    let url = format!("http://{}", prometheus.address());
    printed(&report(&url, &[flags, &["--since", &from, "--until", &to]].concat()))
}

/// The same as JSON.
fn json_of(prometheus: &Prometheus, fleet: &Fleet) -> Value {
    serde_json::from_str(&report_of(prometheus, fleet, &["--json"])).unwrap()
}

fn moment(seconds: u64) -> String {
    humantime::format_rfc3339_seconds(UNIX_EPOCH + std::time::Duration::from_secs(seconds)).to_string()
}

#[test]
fn gaps_are_unknown_and_never_idle() {
    let fleet = fleet();
    let prometheus = fleet.prometheus();
    let report = json_of(&prometheus, &fleet);
    let users = report["users"].as_array().unwrap();
    let of = |name: &str| users.iter().find(|user| user["user"].as_str().unwrap().starts_with(name)).unwrap();
    let times = |user: &Value| {
        ["held", "used", "idle", "unknown"].map(|part| user[format!("{part}_gpu_seconds")].as_u64().unwrap())
    };
    for row in users
        .iter()
        .chain(report["timeline"].as_array().unwrap())
        .chain(report["accounts"].as_array().unwrap())
    {
        let [held, used, idle, unknown] = times(row);
        assert_eq!(held, used + idle + unknown, "{row}");
    }
    assert_eq!(times(of("ada")), [43_200, 17_280, 21_600, 4_320]);
    // The first scrape after the gap is in the step that ends at 6 h 5 min.
    assert_eq!(times(of("=cmd")), [43_200, 0, 35_700, 7_500]);
    assert_eq!(times(of("carol"))[1..], [32_400, 0, 0]);
    let ada = of("ada");
    assert_eq!((&ada["memory_gib_hours"], &ada["energy_kwh"]), (&json!(96.0), &json!(4.8)));
    assert_eq!(
        (&ada["notices"], &ada["terminations"], &ada["reclaimed_bytes"]),
        (&json!(2), &json!(1), &json!(1 << 30))
    );
    assert_eq!(of("carol")["energy_kwh"], Value::Null, "energy was not observed");
    assert_eq!(of("carol")["notices"], Value::Null, "n3 has no enforcer");
    assert_eq!(report["not_attributed"], json!({"notices": 1, "terminations": 0, "reclaimed_bytes": 0}));
    let [account] = &report["accounts"].as_array().unwrap()[..] else { panic!("{report:#}") };
    assert_eq!(times(account), [10_800, 3_600, 7_200, 0]);
    let nodes: Vec<_> = report["nodes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|node| {
            (
                node["node"].as_str().unwrap(),
                node["gpu_seconds"].as_u64().unwrap(),
                node["no_data_gpu_seconds"].as_u64().unwrap(),
            )
        })
        .collect();
    assert_eq!(nodes, [("n1:9836", 86_400, 0), ("n2:9836", 172_800, 28_800), ("n3:9836", 43_200, 10_800)]);
    let notes = report["notes"].to_string();
    assert!(notes.contains("no data at all: n4:9836") && notes.contains("is scraped: n2, n3"), "{notes}");
}

#[test]
fn teams_have_the_sums_of_their_users() {
    let fleet = fleet();
    let prometheus = fleet.prometheus();
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("groups");
    fs::write(&file, "physics:x:900:ada,carol,nobody\nastro:x:901:ada\n").unwrap();
    let flags = ["--teams", file.to_str().unwrap()];
    let json = report_of(&prometheus, &fleet, &[&flags[..], &["--json"]].concat());
    let sums: Value = serde_json::from_str(&json).unwrap();
    let row = |kind: &str, key: &str, name: &str| {
        let rows = sums[kind].as_array().unwrap();
        rows.iter()
            .find(|row| row[key].as_str().unwrap().starts_with(name))
            .unwrap_or_else(|| panic!("{name}: {sums:#}"))
            .clone()
    };
    let [ada, carol] = ["ada", "carol"].map(|user| row("users", "user", user));
    let physics = row("teams", "team", "physics");
    for value in ["held_gpu_seconds", "used_gpu_seconds", "idle_gpu_seconds", "unknown_gpu_seconds"] {
        let sum = ada[value].as_u64().unwrap() + carol[value].as_u64().unwrap();
        assert_eq!(physics[value], sum, "{value}");
    }
    let astro = row("teams", "team", "astro");
    for value in ["energy_kwh", "notices"] {
        assert!(physics.get(value).is_none(), "carol's is unknown: {physics}");
        assert_eq!(astro[value], ada[value], "{value}");
    }
    assert_eq!(
        row("teams", "team", "(no team)")["held_gpu_seconds"],
        row("users", "user", "=cmd")["held_gpu_seconds"]
    );
    let text = report_of(&prometheus, &fleet, &flags);
    assert!(text.contains("\nTEAM ") && text.contains("\nphysics "), "{text}");
    let csv = report_of(&prometheus, &fleet, &[&flags[..], &["--csv"]].concat());
    assert!(csv.contains("\r\nteam,\"physics\","), "{csv}");
    fs::write(&file, "physics: ada\n").unwrap();
    let refused = report("http://127.0.0.1:1", &flags);
    assert_eq!(refused.status.code(), Some(64), "{refused:?}");
}

#[test]
fn long_periods_are_queried_in_longer_steps() {
    let fleet = fleet();
    let prometheus = fleet.prometheus();
    let url = format!("http://{}", prometheus.address());
    let report: Value = serde_json::from_str(&printed(&report(&url, &["--json", "--since", "30d"]))).unwrap();
    let ada = report["users"].as_array().unwrap().iter().find(|user| user["user"] == "ada").unwrap();
    // The step in which the first scrape is begins before the data.
    assert!(ada["held_gpu_seconds"].as_u64().unwrap() >= 41_000, "{ada}");
    let parts = ["used", "idle", "unknown"].map(|part| ada[format!("{part}_gpu_seconds")].as_u64().unwrap());
    assert_eq!(ada["held_gpu_seconds"], parts.iter().sum::<u64>());
    assert!(report["nodes"][0]["no_data_gpu_seconds"].as_u64().unwrap() > 29 * 24 * HOUR, "{report:#}");
}

#[test]
fn hostile_names_are_text_in_every_format() {
    let fleet = fleet();
    let prometheus = fleet.prometheus();
    let text = report_of(&prometheus, &fleet, &[]);
    assert!(!text.contains('\u{202e}') && text.lines().count() < 25, "{text}");
    assert!(text.contains("no data at all: n4:9836") && text.contains("ada"), "{text}");
    let csv = report_of(&prometheus, &fleet, &["--csv"]);
    let rows: Vec<&str> = csv.split("\r\n").collect();
    assert!(rows[0].starts_with("kind,name,held_gpu_seconds,"), "{csv}");
    let users: Vec<_> = rows.iter().filter(|row| row.starts_with("user,")).collect();
    assert_eq!(users.len(), 3, "{csv}");
    assert!(
        csv.contains("user,\"'=cmd|'/c calc'!A1<img src=x onerror=alert(1)>\"\"\\,\\n\\u{202e}\","),
        "{csv}"
    );
    let columns = rows[0].split(',').count();
    let ada = users.iter().find(|row| row.contains("\"ada\"")).unwrap();
    assert_eq!(ada.split(',').count(), columns, "{ada}");
}

#[test]
fn page_has_charts_no_scripts_and_fits_every_screen() {
    let fleet = fleet();
    let prometheus = fleet.prometheus();
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("report.html");
    assert_eq!(report_of(&prometheus, &fleet, &["--html", file.to_str().unwrap()]), "");
    let mut browser = Browser::start();
    for screen in [Screen::WIDE, Screen::WIDE.dark(), Screen::PHONE, Screen::PHONE.dark()] {
        browser.visit(&format!("file://{}", file.display()), screen);
        let wide = "document.documentElement.scrollWidth - document.documentElement.clientWidth";
        assert_eq!(browser.query(wide), json!(0), "{screen:?}");
        assert_eq!(browser.console_errors(), [""; 0], "{screen:?}");
        assert_eq!(browser.accessibility_violations(), [""; 0], "{screen:?}");
    }
    let foreign = "[...document.querySelectorAll('*')].filter(one => ['SCRIPT', 'IMG', 'IFRAME', 'LINK'].includes(one.tagName) \
        || [...one.attributes].some(attribute => attribute.name.startsWith('on') || attribute.name == 'style' \
        || /^(https?:|data:|\\/\\/)/.test(attribute.value))).map(one => one.outerHTML)";
    browser.visit(&format!("file://{}", file.display()), Screen::WIDE);
    assert_eq!(browser.query(foreign), json!([]));
    let bars = browser.query(
        "[...document.querySelectorAll('#users-chart .bar')].map(bar => bar.getAttribute('aria-label'))",
    );
    let bars: Vec<String> = serde_json::from_value(bars).unwrap();
    assert_eq!(bars.len(), 3, "{bars:?}");
    assert!(
        bars.iter().any(|bar| bar == "GPU-hours of ada: used 4.8 h, idle 6.0 h, unknown 1.2 h"),
        "{bars:?}"
    );
    assert_eq!(browser.query("document.querySelectorAll('#time svg[role=img] g').length"), json!(48));
    let rects = browser.query("document.querySelectorAll('#time svg[role=img] rect').length");
    assert!(rects.as_u64().unwrap() > 20, "{rects}");
    let carol = browser.text("[...document.querySelectorAll('#users tbody tr')].find(row => row.innerText.includes('carol')).innerText");
    assert!(carol.contains("unknown") && !carol.contains("0.00"), "energy was not observed: {carol}");
}

#[test]
fn period_outside_limits_is_refused() {
    for (flags, why) in [
        (["--since", "5m"], "10 minutes to 366 days"),
        (["--since", "400d"], "10 minutes to 366 days"),
        (["--since", "tomorrow"], "neither an age"),
        (["--until", "8d"], "10 minutes to 366 days"),
        (["--since", "2999-01-01T00:00:00Z"], "in the future"),
    ] {
        let output = report("http://127.0.0.1:1", &flags);
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(64), "{flags:?}: {error}");
        assert!(error.contains(why), "{error}");
    }
    let output = report("ftp://127.0.0.1", &[]);
    assert_eq!(output.status.code(), Some(64), "{output:?}");
    let output = report("http://127.0.0.1:1", &["--csv", "--json"]);
    assert_eq!(output.status.code(), Some(64), "{output:?}");
}

/// Serves the same bytes to every request, and returns the URL. The thread ends with the test's process.
fn server(answer: impl Fn(&mut dyn Write) + Send + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            let mut head = [0; 8192];
            let _ = stream.read(&mut head);
            answer(&mut stream);
        }
    });
    url
}

fn response(status: &str, body: &str) -> String {
    format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}", body.len())
}

#[test]
fn server_that_is_no_prometheus_or_refuses_is_an_error() {
    let html = "<!DOCTYPE html><title>Log in</title>\u{1b}[2J";
    let error = r#"{"status":"error","errorType":"bad_data","error":"unknown function\u001b[2J"}"#;
    let vector = r#"{"status":"success","data":{"resultType":"scalar\u001b[2J","result":[]}}"#;
    let other = r#"{"status":"success","data":{"resultType":"matrix","result":[{"metric":{"instance":"n1"},"values":[["now","x"]]}]}}"#;
    let none = r#"{"status":"success","data":{"resultType":"matrix","result":[]}}"#;
    for (status, body, why) in [
        ("200 OK", html, "which is not a Prometheus API response"),
        ("401 Unauthorized", "", "returned 401"),
        ("400 Bad Request", error, "refused: bad_data: unknown function"),
        ("200 OK", vector, "instead of a matrix"),
        ("200 OK", other, "which is not a Prometheus API response"),
        ("200 OK", none, "has no bailiff_snapshots_total in this period"),
    ] {
        let text = response(status, body);
        let url = server(move |stream| drop(stream.write_all(text.as_bytes())));
        for flags in [&["--json"][..], &["--csv"]] {
            let output = report(&url, flags);
            let error = String::from_utf8(output.stderr).unwrap();
            assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(69), &b""[..]), "{error}");
            assert!(error.contains(why) && !error.contains('\u{1b}'), "{error}");
        }
    }
    let output = report("http://127.0.0.1:1", &[]);
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(69) && error.contains("does not respond"), "{error}");
}

#[test]
fn endless_response_is_an_error() {
    let url = server(|stream| {
        let _ = stream
            .write_all(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n{\"status\":\"success\",\"data\":\"");
        let part = vec![b'x'; 1 << 16];
        while stream.write_all(&part).is_ok() {}
    });
    // The shortest period is not divided.
    let output = report(&url, &["--since", "10m"]);
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(69) && error.contains("more than 256 MiB"), "{error}");
}

/// Run by `make screenshots`.
#[test]
#[ignore = "writes pictures into the documentation"]
fn pictures() {
    let directory =
        PathBuf::from(std::env::var_os("BAILIFF_SCREENSHOTS").expect("BAILIFF_SCREENSHOTS must be set"));
    let (mut fleet, day) = (Fleet::new(7 * 24), 86_400.0);
    let up = |at: f64| !(3.2 * 86_400.0..3.6 * 86_400.0).contains(&at);
    fleet.node("gpu-1:9836", 8, always);
    fleet.node("gpu-2:9836", 8, up);
    fleet.node("gpu-3:9836", 4, |at| at < 6.3 * 86_400.0);
    for (instance, user, shares) in [
        ("gpu-1:9836", "ada", (0.12, 0.01)),
        ("gpu-1:9836", "grace", (0.55, 0.05)),
        ("gpu-1:9836", "edsger", (0.93, 0.0)),
    ] {
        fleet.user((instance, user), shares, always);
    }
    fleet.user(("gpu-2:9836", "barbara"), (0.3, 0.0), up);
    fleet.user(("gpu-2:9836", "ada"), (0.2, 0.0), up);
    fleet.user(("gpu-3:9836", "donald"), (0.4, 0.35), |at| at < 4.5 * 86_400.0);
    for (user, watts) in [("ada", 430.0), ("grace", 260.0), ("edsger", 90.0)] {
        let labels = format!(
            "instance=\"gpu-1:9836\",job=\"bailiff\",gpu=\"0\",gpu_uuid=\"GPU-1\",part=\"user\",user=\"{user}\""
        );
        fleet.add("counter", ("bailiff_energy_joules_total", &labels), |at| Some((at + 60.0) * watts));
    }
    let enforcer = "instance=\"gpu-1:9837\",job=\"bailiff-enforcer\"";
    fleet.add("counter", ("bailiff_enforcer_snapshots_total", enforcer), |at| Some(100.0 + at / 5.0));
    for (user, notices, kills) in [("edsger", 9.0, 4.0), ("grace", 3.0, 0.0)] {
        let labels = format!("{enforcer},user=\"{user}\"");
        let events = [
            ("bailiff_user_notices_total", labels.clone(), notices),
            ("bailiff_user_kills_total", format!("{labels},result=\"released\""), kills),
            ("bailiff_user_memory_released_bytes_total", labels, kills * 40.0 * f64::from(1 << 30)),
        ];
        for (metric, labels, count) in events {
            fleet.add("counter", (metric, &labels), |at| (at > 2.0 * day).then_some(count));
        }
    }
    let prometheus = fleet.prometheus();
    let file = tempfile::tempdir().unwrap();
    let file = file.path().join("report.html");
    report_of(&prometheus, &fleet, &["--html", file.to_str().unwrap()]);
    let mut browser = Browser::start();
    browser.visit(&format!("file://{}", file.display()), Screen { height: 1500, ..Screen::WIDE });
    fs::create_dir_all(&directory).unwrap();
    browser.picture(&directory.join("report.png"));
}
