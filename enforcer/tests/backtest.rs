//! Tests `backtest` with a made-up Prometheus server that lacks data or fails.
#![allow(
    clippy::disallowed_methods,
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test"
)]

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bailiff_enforcer::commands::Failure;
use bailiff_enforcer::commands::backtest::{self, Backtest};
use bailiff_enforcer::flags;
use bailiff_lifecycle::exit::Exit;

const START: u64 = 1_767_225_600;
const SERIES: &str = r#"{"status":"success","data":[{"__name__":"bailiff_snapshots_total","instance":"node1:9400","job":"b"}]}"#;
const NOTHING: &str = r#"{"status":"success","data":{"resultType":"matrix","result":[]}}"#;
const RULES: &str = "version: 1\nrules:\n  - {name: idle, target: process, when: {gpu_util: {max: 1%}}, for: {samples: 60}, then: [{flag: info}]}\n";

/// Serves `answer` for each path. Returns the server's address and the requests that it has
/// received.
fn serve(answer: impl Fn(&str) -> (u16, String) + Send + 'static) -> (SocketAddr, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let requests = Arc::new(Mutex::new(Vec::new()));
    let recorded = Arc::clone(&requests);
    std::thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            let mut lines = BufReader::new(stream.try_clone().unwrap()).lines().map_while(Result::ok);
            let Some(first) = lines.next() else { continue };
            while lines.next().is_some_and(|line| !line.is_empty()) {}
            let path = first.split(' ').nth(1).unwrap_or_default().to_owned();
            let (status, body) = answer(&path);
            recorded.lock().unwrap().push(path);
            let head =
                format!("HTTP/1.1 {status} X\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", body.len());
            let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body.as_bytes()));
        }
    });
    (address, requests)
}

fn query(address: &str, change: impl FnOnce(&mut flags::Backtest)) -> Result<Backtest, Failure> {
    let directory = tempfile::tempdir().unwrap();
    let rules = directory.path().join("rules.yaml");
    fs::write(&rules, RULES).unwrap();
    let mut flags = flags::Backtest {
        rules,
        prometheus: address.to_owned(),
        from: "2h".to_owned(),
        to: "0s".to_owned(),
        instance: None,
        assume_children_idle: false,
        token_file: None,
        interval: None,
        chunk: "1h".to_owned(),
        resume_after: None,
        json: false,
    };
    change(&mut flags);
    backtest::rehearse(&flags, Duration::from_secs(START + 7200))
}

fn refused(answer: impl Fn(&str) -> (u16, String) + Send + 'static) -> String {
    let (address, _) = serve(answer);
    let failure = query(&format!("http://{address}"), |_| ()).unwrap_err();
    assert_eq!(failure.exit(), Exit::Failed);
    failure.to_string()
}

#[test]
fn server_other_than_prometheus_is_reported() {
    let page = "<html>\n\t<body class=\"x\">It works, and this page goes on for more than a line</body>\r\n</html>\n";
    for status in [200, 404] {
        let message = refused(move |_| (status, page.to_owned()));
        assert!(!message.contains(['\u{a0}', '\u{fffd}']), "{message:?}");
        assert!(message.contains("not a Prometheus API response"), "{message}");
    }
    let message = refused(move |_| (404, page.to_owned()));
    assert!(
        message.contains("404") && message.contains("<html> <body class=\"x\">It works, and"),
        "{message}"
    );
}

#[test]
fn unreachable_server_is_named() {
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let failure = query(&format!("http://{free}"), |_| ()).unwrap_err();
    assert!(
        failure.to_string().starts_with(&format!("Prometheus at http://{free} does not respond: ")),
        "{failure}"
    );
}

#[test]
fn server_error_is_reported() {
    let error = r#"{"status":"error","errorType":"bad_data","error":"parse error: \u001b[2J unexpected"}"#;
    let text = refused(move |_| (400, error.to_owned()));
    assert!(text.ends_with("refused: bad_data: parse error: \u{fffd}[2J unexpected"), "{text}");
    let text = refused(|_| (502, "<html>Bad Gateway</html>".to_owned()));
    assert!(text.contains("returned 502, which is not a Prometheus API response"), "{text}");
    assert!(text.ends_with(": <html>Bad Gateway</html>"), "{text}");
    let text = refused(|_| (200, "not JSON".to_owned()));
    assert!(
        text.ends_with("not a Prometheus API response (expected ident at line 1 column 2): not JSON"),
        "{text}"
    );
    let text = refused(|_| (200, r#"{"status":"success","data":[]}"#.to_owned()));
    assert!(
        text.starts_with("Prometheus has no bailiff_snapshots_total between 2026-01-01T00:00:00Z"),
        "{text}"
    );
}

#[test]
fn invalid_settings_are_refused() {
    for address in ["prometheus:9090", "http://user:secret@prometheus:9090", "http://prometheus:9090/?x"] {
        let failure = query(address, |_| ()).unwrap_err();
        assert_eq!(failure.exit(), Exit::Usage, "{address}");
        assert!(!failure.to_string().contains("secret"), "{failure}");
    }
    let failure = query("http://localhost", |flags| flags.to.clone_from(&flags.from)).unwrap_err();
    assert_eq!(failure.exit(), Exit::Usage);
}

#[test]
fn server_warnings_are_in_the_report() {
    let (address, requests) = serve(|path| {
        let warned = NOTHING.replace('}', "").replace("[]", "[]}") + r#","warnings":["a store is\ndown"]}"#;
        (200, if path.contains("/series") { SERIES.to_owned() } else { warned })
    });
    let backtest = query(&format!("http://{address}/"), |flags| {
        flags.instance = Some("a\"b".to_owned());
    });
    let backtest = backtest.unwrap();
    let [report] = &backtest.exporters[..] else { panic!("{backtest:#?}") };
    assert!(report.notes.contains(&"Prometheus warns: a store is down".to_owned()), "{:?}", report.notes);
    assert_eq!(report.period.snapshots, 0);
    let requests = requests.lock().unwrap();
    assert!(requests.iter().all(|path| !path.contains("query_range")));
    assert!(requests[0].contains("instance%3D%22a%5C%22b%22"), "{}", requests[0]);
}

#[test]
fn large_range_is_queried_in_parts() {
    let refusal = r#"{"status":"error","errorType":"execution","error":"query processing would load too many samples into memory in query execution"}"#;
    let (address, requests) = serve(move |path| {
        // Only ranges of at most 15 minutes are small enough.
        let small = path.contains("900000ms") || path.contains("450000ms");
        match path.contains("/series") {
            true => (200, SERIES.to_owned()),
            false if small || path.contains("snapshots_total") || path.contains("timestamp") => {
                (200, two_scrapes(path))
            }
            false => (422, refusal.to_owned()),
        }
    });
    let backtest = query(&format!("http://{address}"), |flags| flags.to = "1h".to_owned());
    assert_eq!(backtest.unwrap().exporters.len(), 1);
    let requests = requests.lock().unwrap();
    let long = |long: &str| requests.iter().filter(|path| path.contains(long)).count();
    assert!(long("1800000ms") > 0 && long("900000ms") > 8, "{requests:#?}");
}

/// Returns samples for the anchor series only.
fn two_scrapes(path: &str) -> String {
    if !path.contains("bailiff_snapshots_total") {
        return NOTHING.to_owned();
    }
    let values: Vec<String> =
        (0..240).map(|place| format!(r#"[{}.5,"{}"]"#, START + place * 15, 100 + place * 3)).collect();
    format!(
        r#"{{"status":"success","data":{{"resultType":"matrix","result":[{{"metric":{{"__name__":"x"}},"values":[{}]}}]}}}}"#,
        values.join(",")
    )
}
