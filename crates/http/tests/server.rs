//! Tests the limits that the server sets for clients, with real sockets and short limits.

#![expect(clippy::expect_used, reason = "a test that cannot continue fails")]

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use bailiff_http::Handler;
use bailiff_http::hosts::Hosts;
use bailiff_http::server::{self, Limits, Site};
use bailiff_http::web::Web;
use bailiff_http::{Body, Bytes, Request, Response};
use bailiff_lifecycle::permissions::FilePermissions;
use tokio::sync::oneshot;

/// Far more than the buffers of two sockets can hold.
const LARGE: usize = 64 << 20;
const SHORT: Duration = Duration::from_millis(50);
const LONG: Duration = Duration::from_mins(10);
const PATIENT: Limits = Limits { connections: 8, header: LONG, write: LONG, drain: LONG };

#[derive(Default)]
struct Pages {
    refused: AtomicUsize,
}

impl Handler for Pages {
    async fn answer(&self, request: &Request<()>) -> Response<Body> {
        let piece = Bytes::from(vec![b'x'; 1 << 20]);
        let body = match request.uri().path() {
            "/large" => Body::from_iter(vec![piece; LARGE >> 20]),
            // A response that is not available at once.
            "/later" => tokio::task::spawn_blocking(|| Body::from("at last".to_owned()))
                .await
                .expect("the handler returns"),
            path => Body::from(path.to_owned()),
        };
        Response::new(body)
    }

    fn refused(&self) {
        self.refused.fetch_add(1, Ordering::SeqCst);
    }
}

struct Running {
    address: SocketAddr,
    pages: Arc<Pages>,
    shutdown: oneshot::Sender<()>,
    server: JoinHandle<io::Result<()>>,
}

fn start(limits: Limits) -> Running {
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback has a free port");
    listener.set_nonblocking(true).expect("the listener is a socket");
    let address = listener.local_addr().expect("the listener is bound");
    let pages = Arc::new(Pages::default());
    let (sender, receiver) = oneshot::channel();
    let handler = Arc::clone(&pages);
    let web = Web::open(None, FilePermissions::Strict).expect("a web config is optional");
    let server = thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let shutdown = async { drop(receiver.await) };
        let site = Site { listeners: vec![listener], web, hosts: Hosts::default() };
        runtime.block_on(server::serve(site, handler, limits, shutdown))
    });
    Running { address, pages, shutdown: sender, server }
}

impl Running {
    fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).expect("the server listens")
    }

    fn query(&self, path: &str) -> TcpStream {
        let mut stream = self.connect();
        write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            .expect("the connection is open");
        stream
    }

    fn get(&self, path: &str) -> String {
        read(self.query(path))
    }
}

/// Reads until the other side closes the connection. A reset counts as the end.
fn read(mut stream: TcpStream) -> String {
    let mut text = Vec::new();
    let _ = stream.read_to_end(&mut text);
    String::from_utf8_lossy(&text).into_owned()
}

#[test]
fn connection_above_the_limit_is_refused_with_503() {
    let running = start(Limits { connections: 1, ..PATIENT });
    let mut first = running.connect();
    first.write_all(b"GET /a HTTP/1.1\r\nHost: localhost\r\n\r\n").expect("the connection is open");
    let mut begun = [0; 12];
    first.read_exact(&mut begun).expect("the request is served");
    assert_eq!(&begun, b"HTTP/1.1 200");
    let refused = running.get("/b");
    assert!(refused.starts_with("HTTP/1.1 503 ") && refused.ends_with("too many connections\n"), "{refused}");
    assert_eq!(running.pages.refused.load(Ordering::SeqCst), 1);
    drop(first);
    while running.get("/c").starts_with("HTTP/1.1 503") {}
}

#[test]
fn client_gets_at_most_half_of_the_connections() {
    let running = start(PATIENT);
    let served = |mut stream: TcpStream| {
        stream.write_all(b"GET /a HTTP/1.1\r\nHost: localhost\r\n\r\n").expect("the connection is open");
        let mut begun = [0; 12];
        stream.read_exact(&mut begun).expect("there is a response");
        (stream, &begun == b"HTTP/1.1 200")
    };
    let kept: Vec<_> = (0..4).map(|_| served(running.connect())).collect();
    assert!(kept.iter().all(|(_, served)| *served));
    assert!(running.get("/b").starts_with("HTTP/1.1 503 "));
    drop(kept);
    while running.get("/c").starts_with("HTTP/1.1 503") {}
}

#[test]
fn client_without_request_is_disconnected() {
    let running = start(Limits { header: SHORT, ..PATIENT });
    for beginning in ["", "GET / HTTP/1.1\r\nHost:"] {
        let mut stream = running.connect();
        stream.write_all(beginning.as_bytes()).expect("the connection is open");
        assert!(!read(stream).contains(" 200 "), "{beginning:?}");
    }
    let mut kept_alive = running.connect();
    kept_alive.write_all(b"GET /a HTTP/1.1\r\nHost: localhost\r\n\r\n").expect("the connection is open");
    assert!(
        read(kept_alive).ends_with("\r\n\r\n/a"),
        "the request is served, and the idle connection is closed"
    );
}

#[test]
fn client_that_does_not_read_is_disconnected() {
    let running = start(Limits { write: SHORT, connections: 1, ..PATIENT });
    let stuck = running.query("/large");
    while running.get("/b").starts_with("HTTP/1.1 503") {}
    assert!(read(stuck).len() < LARGE);
}

#[test]
fn too_much_of_a_header_is_refused() {
    let running = start(PATIENT);
    let mut stream = running.connect();
    // The server may close the connection before it has read everything.
    let _ = write!(stream, "GET / HTTP/1.1\r\nHost: {}\r\n\r\n", "x".repeat(20 * 1024));
    let _ = stream.shutdown(Shutdown::Write);
    assert!(read(stream).starts_with("HTTP/1.1 431 "));
}

#[test]
fn head_has_the_length_and_no_body() {
    let running = start(PATIENT);
    let mut stream = running.connect();
    stream
        .write_all(b"HEAD /four HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        .expect("the connection is open");
    let answer = read(stream).to_lowercase();
    assert!(answer.contains("content-length: 5\r\n") && answer.ends_with("\r\n\r\n"), "{answer}");
}

#[test]
fn an_answer_may_be_waited_for() {
    assert!(start(PATIENT).get("/later").ends_with("\r\n\r\nat last"));
}

#[test]
fn what_was_begun_is_finished_before_the_end() {
    let running = start(PATIENT);
    let mut slow = running.query("/large");
    slow.read_exact(&mut [0; 12]).expect("the response has started");
    running.shutdown.send(()).expect("the server is running");
    while TcpStream::connect(running.address).is_ok() {}
    assert!(read(slow).len() > LARGE, "the headers and the whole body");
    running.server.join().expect("the thread does not panic").expect("the server exits without an error");
}

#[test]
fn the_end_does_not_wait_for_ever() {
    let running = start(Limits { drain: SHORT, ..PATIENT });
    let mut stuck = running.query("/large");
    stuck.read_exact(&mut [0; 12]).expect("the response has started");
    running.shutdown.send(()).expect("the server is running");
    running.server.join().expect("the thread does not panic").expect("the server exits without an error");
}
