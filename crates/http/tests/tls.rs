//! Tests the limits that the server sets for TLS clients, with real sockets and short limits.

#![expect(clippy::disallowed_methods, reason = "the test writes the files that are read")]
#![expect(clippy::expect_used, reason = "a test that cannot continue fails")]

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use bailiff_http::Handler;
use bailiff_http::hosts::Hosts;
use bailiff_http::server::{self, Limits, Site};
use bailiff_http::web::Web;
use bailiff_http::{Body, Bytes, Request, Response};
use bailiff_lifecycle::permissions::FilePermissions;
use rcgen::{CertificateParams, KeyPair};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

/// Far more than the buffers of two sockets can hold.
const LARGE: usize = 64 << 20;
const SHORT: Duration = Duration::from_millis(300);
const LONG: Duration = Duration::from_mins(10);
const ONE: Limits = Limits { connections: 1, header: LONG, write: LONG, drain: LONG };

struct Pages;

impl Handler for Pages {
    async fn answer(&self, request: &Request<()>) -> Response<Body> {
        let piece = Bytes::from(vec![b'x'; 1 << 20]);
        let pieces = if request.uri().path() == "/large" { LARGE >> 20 } else { 1 };
        Response::new(Body::from_iter(vec![piece; pieces]))
    }
}

struct Running {
    address: SocketAddr,
    client: Arc<ClientConfig>,
}

fn start(limits: Limits) -> Running {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let key = KeyPair::generate().expect("a key");
    let params = CertificateParams::new(["127.0.0.1".to_owned()]).expect("a name");
    let certificate = params.self_signed(&key).expect("a certificate");
    let file = directory.path().join("web.yml");
    for (name, text) in [
        ("web.yml", "tls_server_config: {cert_file: a.crt, key_file: a.key}\n".to_owned()),
        ("a.crt", certificate.pem()),
        ("a.key", key.serialize_pem()),
    ] {
        fs::write(directory.path().join(name), text).expect("the directory is writable");
    }
    let web = Web::open(Some(&file), FilePermissions::Strict).expect("the file is valid");
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback has a free port");
    listener.set_nonblocking(true).expect("the listener is a socket");
    let address = listener.local_addr().expect("the listener is bound");
    thread::spawn(move || {
        let _directory = directory;
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().build().expect("the runtime starts");
        let site = Site { listeners: vec![listener], web, hosts: Hosts::default() };
        runtime.block_on(server::serve(site, Arc::new(Pages), limits, std::future::pending::<()>()))
    });
    let mut roots = RootCertStore::empty();
    roots.add(certificate.der().clone()).expect("a certificate");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let builder = builder.expect("there are versions").with_root_certificates(roots);
    Running { address, client: Arc::new(builder.with_no_client_auth()) }
}

impl Running {
    fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).expect("the server listens")
    }

    fn query(&self, path: &str) -> std::io::Result<StreamOwned<ClientConnection, TcpStream>> {
        let name = ServerName::from(self.address.ip());
        let connection = ClientConnection::new(Arc::clone(&self.client), name).expect("a client");
        let mut stream = StreamOwned::new(connection, self.connect());
        write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
        Ok(stream)
    }

    fn is_served(&self) -> bool {
        let mut begun = [0; 12];
        self.query("/")
            .is_ok_and(|mut stream| stream.read_exact(&mut begun).is_ok() && &begun == b"HTTP/1.1 200")
    }
}

/// Reads until the other side closes the connection. A reset counts as the end.
fn read(mut stream: impl Read) -> usize {
    let mut bytes = Vec::new();
    let _ = stream.read_to_end(&mut bytes);
    bytes.len()
}

#[test]
fn client_without_handshake_is_disconnected() {
    let running = start(Limits { header: SHORT, ..ONE });
    // The second client sends the start of a 512-byte TLS record.
    for beginning in [&[] as &[u8], &[22, 3, 1, 2, 0, 1]] {
        let mut stream = running.connect();
        stream.write_all(beginning).expect("the connection is open");
        assert_eq!(read(stream), 0);
        while !running.is_served() {}
    }
}

#[test]
fn a_handshake_counts_as_a_connection_and_one_too_many_is_hung_up_on() {
    let running = start(ONE);
    let first = running.connect();
    while running.is_served() {}
    assert_eq!(read(running.connect()), 0, "the connection is closed without a response");
    drop(first);
    while !running.is_served() {}
}

#[test]
fn tls_client_without_request_or_reading_is_disconnected() {
    let running = start(Limits { header: SHORT, write: SHORT, ..ONE });
    let stuck = running.query("/large").expect("the connection is open");
    while !running.is_served() {}
    assert!(read(stuck) < LARGE);
    let mut slow = running.query("/").expect("the connection is open");
    slow.sock.set_nodelay(true).expect("a socket");
    assert!(read(&mut slow) > 1 << 20, "more than the headers");
}

#[test]
fn client_without_tls_is_disconnected() {
    let running = start(ONE);
    let mut plain = running.connect();
    plain.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n").expect("the connection is open");
    assert!(read(plain) < 16, "at most an alert is sent");
    while !running.is_served() {}
}
