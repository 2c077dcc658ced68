//! Tests the enforcer's pages over real sockets, with a made-up status.

#![expect(clippy::expect_used, reason = "a test that cannot continue fails")]

#[path = "made_up/mod.rs"]
mod made_up;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use bailiff_enforcer::clock::now;
use bailiff_enforcer::status::Status;
use bailiff_enforcer::web::{Outcome, Reload, Routes};
use bailiff_http::hosts::Hosts;
use bailiff_http::server::{self, Limits, Site};
use bailiff_http::web::Web;
use bailiff_lifecycle::permissions::FilePermissions;
use made_up::{full, named};
use tokio::sync::{mpsc, oneshot, watch};

const LONG: Duration = Duration::from_mins(10);
const PATIENT: Limits = Limits { connections: 8, header: LONG, write: LONG, drain: LONG };

struct Running {
    address: SocketAddr,
    show: watch::Sender<Arc<Status>>,
    reloads: Option<mpsc::Receiver<Reload>>,
    _stop: oneshot::Sender<()>,
    _server: JoinHandle<std::io::Result<()>>,
}

#[derive(Clone, Copy)]
enum Lifecycle {
    On,
    Off,
}

fn start(lifecycle: Lifecycle) -> Running {
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback has a free port");
    listener.set_nonblocking(true).expect("the listener is a socket");
    let address = listener.local_addr().expect("the listener is bound");
    let (show, status) = watch::channel(Arc::new(Status::default()));
    let (query, reloads) = mpsc::channel(1);
    let on = matches!(lifecycle, Lifecycle::On);
    let routes = Arc::new(Routes { status, reloads: on.then_some(query) });
    let (stop_sender, stop) = oneshot::channel::<()>();
    let server = thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let web = Web::open(None, FilePermissions::Strict).expect("a web config is optional");
        let site = Site { listeners: vec![listener], web, hosts: Hosts::default() };
        runtime.block_on(server::serve(site, routes, PATIENT, async { drop(stop.await) }))
    });
    Running { address, show, reloads: on.then_some(reloads), _stop: stop_sender, _server: server }
}

impl Running {
    fn query(&self, request: &str) -> String {
        query(self.address, request)
    }

    fn show(&self, status: Status) {
        self.show.send_replace(Arc::new(status));
    }

    /// Returns the response to a reload with this outcome.
    fn reload(&mut self, outcome: Outcome) -> String {
        let mut reloads = self.reloads.take().expect("reloads are on");
        let loop_of_ours = thread::spawn(move || {
            let Reload(answer) = reloads.blocking_recv().expect("a reload request");
            answer.send(outcome).expect("the answer is waited for");
            reloads
        });
        let answer = query(self.address, "POST /-/reload");
        self.reloads = Some(loop_of_ours.join().expect("the thread does not panic"));
        answer
    }
}

fn query(address: SocketAddr, request: &str) -> String {
    let mut stream = TcpStream::connect(address).expect("the server listens");

    write!(stream, "{request} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")
        .expect("the connection is open");
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("the server responds");
    text
}

fn code(answer: &str) -> &str {
    answer.split(' ').nth(1).expect("a status line has a code")
}

#[test]
fn only_read_endpoints_are_served() {
    let running = start(Lifecycle::Off);
    let cases = [
        ("GET /", "200"),
        ("HEAD /", "200"),
        ("GET /metrics", "200"),
        ("GET /-/healthy", "200"),
        ("GET /nowhere", "404"),
        ("POST /nowhere", "404"),
        ("POST /metrics", "405"),
        ("DELETE /", "405"),
        ("GET /-/reload", "405"),
        ("PUT /-/reload", "405"),
        ("POST /-/reload", "403"),
    ];
    for (request, expected) in cases {
        assert_eq!(code(&running.query(request)), expected, "{request}");
    }
    assert!(running.query("POST /-/reload").contains("enable it with --web.enable-lifecycle"));
}

#[test]
fn cross_site_request_does_not_reload() {
    let mut running = start(Lifecycle::On);
    for site in ["http://evil", "https://x.evil", "null"] {
        let answer = running.query(&format!("POST /-/reload HTTP/1.1\r\nOrigin: {site}\r\nX-Rest:"));
        assert_eq!(code(&answer), "403", "{answer}");
    }
    drop(running.reloads.take());
    let own = running.query("POST /-/reload HTTP/1.1\r\nOrigin: http://localhost\r\nX-Rest:");
    assert_eq!(code(&own), "503", "the main loop has exited: {own}");
}

#[test]
fn reload_response_has_the_result() {
    let mut running = start(Lifecycle::On);
    let cases = [
        (Outcome::Applied("ab12".into()), "200", "in force: ab12\n"),
        (Outcome::Unchanged, "200", "unchanged\n"),
        (
            Outcome::Refused(vec!["3:9: one".into(), "4:1: two".into()]),
            "400",
            "stay in force\n3:9: one\n4:1: two\n",
        ),
    ];
    for (outcome, expected, text) in cases {
        let answer = running.reload(outcome);
        assert!(code(&answer) == expected && answer.ends_with(text), "{answer}");
    }
    running.reloads = None;
    assert_eq!(code(&running.query("POST /-/reload")), "503", "there is no main loop to reload");
}

#[test]
fn ready_needs_a_policy_and_a_snapshot() {
    let running = start(Lifecycle::Off);
    assert!(running.query("GET /-/ready").ends_with("no policy is in force yet\n"));
    let mut status = full();
    status.stream.seq = None;
    status.stream.error = Some("no such file".into());
    running.show(status);
    assert!(running.query("GET /-/ready").ends_with("no snapshot has been evaluated: no such file\n"));
    let seen = |age: Duration| {
        let mut status = full();
        status.stream.seen_boot_ms = u64::try_from(now().boot.saturating_sub(age).as_millis()).ok();
        status
    };
    running.show(seen(Duration::ZERO));
    assert_eq!(code(&running.query("GET /-/ready")), "200");
    running.show(seen(Duration::from_secs(11)));
    assert!(running.query("GET /-/ready").ends_with("is too old to act on\n"));
}

#[test]
fn ended_loop_is_unhealthy() {
    let Running { address, show, _stop: stop_sender, .. } = start(Lifecycle::Off);
    drop(show);
    assert_eq!(code(&query(address, "GET /-/healthy")), "503");
    drop(stop_sender);
}

#[test]
fn page_lists_holds_with_reasons() {
    let running = start(Lifecycle::Off);
    running.show(full());
    let html = running.query("GET /");
    for shown in [
        "Rules on gpu-7",
        "Dry run for all rules: --dry-run",
        "paused by an administrator (by root: upgrade)",
        "Breaker mass open since",
        "gpu_utill",
        "workload:slurm:77",
        "300/360",
        "5 min 0 s",
        "40.0 GiB",
        "2 of 6",
        "critical",
    ] {
        assert!(html.contains(shown), "{shown}: {html}");
    }
    assert!(html.contains("content-security-policy: default-src 'none'") && !html.contains("<script"));
}

#[test]
fn names_are_never_markup() {
    let running = start(Lifecycle::Off);
    running.show(named("<script>alert(1)</script>", "\u{202e}\u{1b}[2J<b>"));
    let html = running.query("GET /");
    assert!(html.contains("&lt;script&gt;"));
    assert!(!html.contains("<script>") && !html.contains("<b>") && !html.contains('\u{1b}'), "{html}");
}
