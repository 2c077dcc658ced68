//! Tests the exporter over real sockets, with samples from the tests.

#![expect(clippy::expect_used, clippy::panic, reason = "a test that cannot continue fails")]

#[path = "made_up/mod.rs"]
mod made_up;
#[path = "made_up/parse.rs"]
mod parse;
#[path = "made_up/running.rs"]
mod running;

use std::io::{BufRead, BufReader, Read};
use std::os::unix::net::UnixStream;
use std::path::Path;

use bailiff_exporter::Exporter;
use bailiff_snapshot::wire;
use flate2::read::GzDecoder;
use made_up::{large, motley, small};
use parse::parse;
use running::{recorded, settings, start};

const OPEN: &str =
    "Accept: application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5,*/*;q=0.1\r\n";
const GZIP: &str = "Accept-Encoding: gzip\r\n";

/// Returns the lines that do not change from request to request.
fn fixed(page: &str) -> Vec<&str> {
    let end = page.find("# HELP bailiff_snapshot_age_seconds").expect("a page has a tail");
    page[..end].lines().collect()
}

#[test]
fn the_client_chooses_the_format() {
    let running = start(&[]);
    running.show(motley(1));
    for headers in ["", "Accept: text/html,*/*;q=0.8\r\n", "Accept: application/openmetrics-text;q=0,*/*\r\n"]
    {
        let answer = running.get("/metrics", headers);
        assert!(
            answer.has("content-type: text/plain; version=0.0.4; charset=utf-8"),
            "{headers}{}",
            answer.head
        );
        assert!(answer.has("vary: accept, accept-encoding"), "{}", answer.head);
        assert!(!answer.text().contains("# EOF"));
        parse(&answer.text());
    }
    let open = running.get("/metrics", OPEN);
    assert!(
        open.has("content-type: application/openmetrics-text; version=1.0.0; charset=utf-8"),
        "{}",
        open.head
    );
    assert!(open.text().ends_with("# EOF\n"));
    parse(&open.text());
}

#[test]
fn gzip_is_one_member_and_the_same_page() {
    let running = start(&[]);
    for seq in 1..=3 {
        // From the second sample on, the page is rendered before it is requested.
        running.show(motley(seq));
        for headers in ["", OPEN] {
            let plain = running.get("/metrics", headers);
            let packed = running.get("/metrics", &format!("{headers}{GZIP}"));
            assert!(packed.has("content-encoding: gzip") && packed.body.len() < plain.body.len() / 2);
            let mut rest = packed.body.as_slice();
            let mut text = String::new();
            GzDecoder::new(&mut rest)
                .read_to_string(&mut text)
                .expect("the body is one complete gzip member");
            assert!(rest.is_empty(), "there must be no data after the member");
            assert_eq!(fixed(&text), fixed(&plain.text()));
            parse(&text);
        }
    }
    let refused = running.get("/metrics", "Accept-Encoding: gzip;q=0\r\n");
    assert!(!refused.head.contains("content-encoding"));
}

#[test]
fn head_has_headers_only() {
    let running = start(&[]);
    running.show(small(1));
    for path in ["/metrics", "/", "/-/healthy", "/-/ready"] {
        let answer = running.query(&format!("HEAD {path}"), "");
        assert_eq!((answer.code(), answer.body.len()), ("200", 0), "{path}");
        assert!(
            answer.head.contains("content-length: ") && !answer.has("content-length: 0"),
            "{}",
            answer.head
        );
    }
}

#[test]
fn other_paths_and_methods_are_refused_and_counted() {
    let running = start(&["--web.telemetry-path=/gpu"]);
    assert_eq!(running.get("/metrics", "").code(), "404");
    assert_eq!(running.query("POST /metrics?x", "Content-Length: 0\r\n").code(), "404");
    let refused = running.query("POST /gpu", "Content-Length: 4\r\n");
    assert!(refused.code() == "405" && refused.has("allow: get, head"), "{}", refused.head);
    assert_eq!(running.get("/gpu?x=y", "").code(), "200");
    let page = parse(&running.get("/gpu", "").text());
    let counted = |path, code| page.value("bailiff_http_requests_total", &[("path", path), ("code", code)]);
    assert_eq!(counted("other", "404"), Some(2.0));
    assert_eq!((counted("/gpu", "405"), counted("/gpu", "200")), (Some(1.0), Some(1.0)));
}

#[test]
fn ready_needs_the_first_sample_and_healthy_does_not() {
    let running = start(&[]);
    assert_eq!(running.get("/-/ready", "").code(), "503");
    assert_eq!(running.get("/-/healthy", "").code(), "200");
    let early = parse(&running.get("/metrics", OPEN).text());
    assert_eq!(early.value("bailiff_build_info", &[]), Some(1.0));
    assert_eq!(early.value("bailiff_snapshot_age_seconds", &[]), None);
    running.show(small(1));
    assert_eq!(running.get("/-/ready", "").text(), "ready\n");
}

#[test]
fn a_interval_that_hangs_is_unhealthy_and_says_why() {
    let running = start(&["--deadline=10ms"]);
    running.show(small(1));
    let sick = loop {
        let answer = running.get("/-/healthy", "");
        if answer.code() == "503" {
            break answer.text();
        }
    };
    assert!(sick.starts_with("no new snapshot for "), "{sick}");
    assert_eq!(running.get("/metrics", "").code(), "200", "the page is still served, with its age");
    let html = running.get("/", "").text();
    assert!(html.contains("<p class=\"alarm\">Out of date: no new snapshot for "), "{html}");
}

#[test]
fn the_status_page_shows_names_as_text() {
    let running = start(&[]);
    let mut sample = motley(1);
    sample.gpus[0].about.name = Some("<b>H200</b>".into());
    running.show(sample);
    let answer = running.get("/", "");
    assert!(answer.has("content-type: text/html; charset=utf-8"));
    assert!(answer.head.contains("content-security-policy: default-src 'none'"));
    let html = answer.text();
    for shown in [
        "&lt;b&gt;H200&lt;/b&gt;",
        "alice",
        "trainer-1",
        "job 4711",
        "unknown: the GPU has fallen off the bus",
        "down: permission denied, or a password is missing",
    ] {
        assert!(html.contains(shown), "{shown}");
    }
    assert!(!html.contains("<b>"));
    assert!(
        html.contains("http-equiv=\"refresh\"") && !running.get("/?still", "").text().contains("refresh\"")
    );
}

#[test]
fn a_client_of_the_stream_gets_the_latest_and_then_each_new_one() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let path = directory.path().join("stream.sock");
    let running = start(&[&format!("--stream={}", path.display())]);
    running.show(small(1));
    let mut client = BufReader::new(UnixStream::connect(&path).expect("the server listens"));
    let mut seq = || {
        let mut line = Vec::new();
        client.read_until(b'\n', &mut line).expect("a line arrives");
        wire::parse(&line).expect("the line is a snapshot").seq
    };
    assert_eq!(seq(), 1);
    running.show(small(2));
    assert_eq!(seq(), 2);
    let clients = || parse(&running.get("/metrics", "").text()).value("bailiff_stream_clients", &[]);
    assert_eq!(clients(), Some(1.0));
    drop(client);
    while clients() != Some(0.0) {}
    running.end().expect("the server exits without an error");
    assert!(!path.exists());
}

#[test]
fn stream_client_before_the_first_sample_receives_it() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let path = directory.path().join("stream.sock");
    let running = start(&[&format!("--stream={}", path.display())]);
    let mut client = BufReader::new(UnixStream::connect(&path).expect("the server listens"));
    running.show(small(1));
    let mut line = Vec::new();
    client.read_until(b'\n', &mut line).expect("a line arrives");
    assert_eq!(wire::parse(&line).expect("the line is a snapshot").seq, 1);
}

#[test]
fn a_slow_client_misses_lines_and_gets_the_newest() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let path = directory.path().join("stream.sock");
    let running = start(&[&format!("--stream={}", path.display())]);
    let mut client = BufReader::new(UnixStream::connect(&path).expect("the server listens"));
    let last = 20;
    for seq in 1..=last {
        // A line is longer than the socket's buffer.
        running.show(large(seq, 8, 100));
    }
    let mut seqs = Vec::new();
    while seqs.last() != Some(&last) {
        let mut line = Vec::new();
        client.read_until(b'\n', &mut line).expect("a line arrives");
        seqs.push(wire::parse(&line).expect("lines are complete").seq);
    }
    assert!(seqs.is_sorted() && seqs.len() < 10, "{seqs:?}");
}

#[test]
fn the_65th_client_of_the_stream_is_turned_away() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let path = directory.path().join("stream.sock");
    let running = start(&[&format!("--stream={}", path.display())]);
    running.show(small(1));
    let client = || BufReader::new(UnixStream::connect(&path).expect("the server listens"));
    let gets_a_line = |client: &mut BufReader<UnixStream>| {
        let mut line = String::new();
        client.read_line(&mut line).expect("the client is served or disconnected") > 0
    };
    let mut clients: Vec<_> = (0..64).map(|_| client()).collect();
    assert!(clients.iter_mut().all(gets_a_line));
    assert!(!gets_a_line(&mut client()));
    drop(clients);
    while !gets_a_line(&mut client()) {}
}

#[test]
fn the_record_grows_by_a_line_a_snapshot() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let path = directory.path().join("record.ndjson");
    let running = start(&[&format!("--record={}", path.display())]);
    for seq in 1..=2 {
        running.show(small(seq));
        while (recorded(&path).lines().count() as u64) < seq {}
    }
    let lines = recorded(&path);
    let seqs: Vec<u64> =
        lines.lines().map(|line| wire::parse(line.as_bytes()).expect("a snapshot").seq).collect();
    assert_eq!(seqs, [1, 2]);
}

#[test]
fn a_full_disk_is_counted_and_nothing_else() {
    let running = start(&["--record=/dev/full"]);
    running.show(small(1));
    let failures =
        || parse(&running.get("/metrics", "").text()).value("bailiff_record_write_failures_total", &[]);
    while failures() != Some(1.0) {}
    running.end().expect("the server exits without an error");
}

#[test]
fn panic_while_sampling_ends_the_exporter() {
    let running = start(&[]);
    running.show.send(None).expect("the exporter accepts samples");
    let error = running.ended().expect_err("sampling has ended");
    assert!(error.to_string().starts_with("the sampling thread stopped"), "{error}");
}

#[test]
fn what_cannot_be_opened_is_named() {
    let first = start(&[]);
    let taken = first.address.to_string();
    let cases = [
        (
            format!("--web.listen-address={taken}"),
            format!("cannot listen on {taken}: address already in use"),
        ),
        (
            "--stream=/nonexistent/x.sock".into(),
            "cannot open the stream socket /nonexistent/x.sock: no such file".into(),
        ),
        ("--record=/nonexistent/x".into(), "cannot open the recording /nonexistent/x: no such file".into()),
    ];
    for (flag, why) in cases {
        let error = Exporter::open(settings(&[&flag])).expect_err(&flag);
        assert!(error.to_string().starts_with(&why), "{error}");
    }
    assert!(!Path::new("/nonexistent").exists());
}
