//! Input from a peer, over a socket: requests to the HTTP server, and responses of Redis and Prometheus. Web configs are
//! here too, because the server reads them.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, LazyLock, Mutex};
use std::time::Duration;

use bailiff_enforcer::commands::backtest;
use bailiff_enforcer::flags;
use bailiff_http::hosts::Hosts;
use bailiff_http::server::{self, Limits, Site};
use bailiff_http::web::Web;
use bailiff_http::{Body, Handler, Request, Response, negotiate};
use bailiff_lease::{Leases, Pool, TicketStatus, compat::Force};
use bailiff_lifecycle::permissions::FilePermissions;

use crate::texts::has_number;
use crate::trees::HOME;

const LONG: Duration = Duration::from_mins(1);

pub(crate) fn web(data: &[u8]) {
    // A request begins with its method, and a web config is YAML with keys in lower case.
    if data.first().is_some_and(u8::is_ascii_uppercase) { request(data) } else { config(data) }
}

/// Ends of keys whose values are not secret. Errors quote them, such as the name of a file that does not exist.
const QUOTED: [&str; 6] = ["_file", "_type", "_version", "_sans", "_suites", "_preferences"];

/// An error is one line, and does not contain a password or a key.
fn config(data: &[u8]) {
    let file = HOME.path().join("web.yml");
    std::fs::write(&file, data).expect("the directory is writable");
    if let Err(error) = Web::open(Some(&file), FilePermissions::Any) {
        let error = error.to_string();
        assert!(!error.contains('\n'), "the error has several lines: {error}");
        let text = String::from_utf8_lossy(data);
        let secret = |line: &str| {
            let (before, secret) = line.split_once("secret-")?;
            (!QUOTED.iter().any(|key| before.contains(key))).then(|| secret.to_owned())
        };
        let secrets: Vec<String> =
            text.lines().filter_map(secret).filter(|secret| secret.len() > 8).collect();
        assert!(!secrets.iter().any(|secret| error.contains(&format!("secret-{secret}"))), "{error}");
    }
}

const PASSWORD: &str = "dTpw";

struct Pages;

impl Handler for Pages {
    async fn answer(&self, request: &Request<()>) -> Response<Body> {
        let credentials =
            request.headers().get("authorization").expect("only authorized requests are served");
        assert!(credentials.to_str().is_ok_and(|text| text.trim_end().ends_with(PASSWORD)));
        let open = negotiate::wants_open_metrics(request.headers());
        let named = |value: &bailiff_http::header::HeaderValue| {
            value.to_str().is_ok_and(|text| text.to_ascii_lowercase().contains("openmetrics"))
        };
        assert!(!open || request.headers().get_all("accept").iter().any(named));
        let gzip = negotiate::encoding(request.headers()) == negotiate::Encoding::Gzip;
        assert!(!gzip || request.headers().contains_key("accept-encoding"));
        Response::new(Body::from(request.uri().path().to_owned()))
    }
}

/// Starts the server. Only user `u` with password `p` is authorized.
fn serve() -> SocketAddr {
    let file = HOME.path().join("users.yml");
    let hash = bcrypt::hash("p", 4).expect("a hash");
    std::fs::write(&file, format!("basic_auth_users: {{u: '{hash}'}}\n")).expect("the directory is writable");
    let web = Web::open(Some(&file), FilePermissions::Any).expect("the web config is valid");
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.set_nonblocking(true).expect("a socket");
    let address = listener.local_addr().expect("an address");
    let limits = Limits { connections: 64, header: Duration::from_millis(200), write: LONG, drain: LONG };
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let site = Site { listeners: vec![listener], web, hosts: Hosts::default() };
        runtime.block_on(server::serve(site, Arc::new(Pages), limits, std::future::pending::<()>()))
    });
    address
}

/// The response to a request is whole HTTP, and is not 200 without the password.
fn request(data: &[u8]) {
    static SERVER: LazyLock<SocketAddr> = LazyLock::new(serve);
    // The timer of libFuzzer interrupts system calls.
    let Ok(mut stream) = TcpStream::connect(*SERVER) else { return };
    stream.set_read_timeout(Some(Duration::from_millis(20))).expect("a socket");
    let _ = stream.write_all(data);
    if !data.windows(2).any(|pair| pair == b"\n\n") && !data.windows(4).any(|four| four == b"\r\n\r\n") {
        let _ = stream.shutdown(Shutdown::Write);
    }
    let mut answer = [0; 4096];
    let read = stream.read(&mut answer).unwrap_or_default();
    assert!(read == 0 || answer.starts_with(b"HTTP/1."), "{:?}", answer[..read].escape_ascii().to_string());
    let text = String::from_utf8_lossy(data);
    assert!(!answer.starts_with(b"HTTP/1.1 200") || text.contains(PASSWORD));
}

/// Answers every connection in a thread of its own, with a response that the current input determines.
fn peer(answer: fn(BufReader<TcpStream>)) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            std::thread::spawn(move || answer(BufReader::new(stream)));
        }
    });
    address
}

/// The input that peers respond with.
static INPUT: Mutex<Vec<u8>> = Mutex::new(Vec::new());

fn input() -> Vec<u8> {
    INPUT.lock().expect("no target panics with the lock").clone()
}

/// Answers the commands that set up a connection, and then sends the input and closes the connection.
fn redis_server(stream: BufReader<TcpStream>) {
    let (mut stream, mut command) = (stream.into_inner(), [0; 16 << 10]);
    while let Ok(read @ 1..) = stream.read(&mut command) {
        let setup = command[..read].windows(7).filter(|word| *word == b"SETINFO").count();
        if setup == 0 {
            let _ = stream.write_all(&input()).and_then(|()| stream.shutdown(Shutdown::Write));
        } else if stream.write_all(&b"+OK\r\n".repeat(setup)).is_err() {
            return;
        }
    }
}

/// The first byte selects the operation. What it returns is from the response.
pub(crate) fn redis(data: &[u8]) {
    static SERVER: LazyLock<String> = LazyLock::new(|| format!("redis://{}", peer(redis_server)));
    let Some((operation, data)) = data.split_first() else { return };
    data.clone_into(&mut INPUT.lock().expect("no target panics with the lock"));
    let text = String::from_utf8_lossy(data);
    let Ok(mut pool) = Pool::open(&SERVER, "GPU", LONG) else { return };
    let number = |number: u64| assert!(has_number(&text, number), "{number} is not in the response");
    match operation % 9 {
        0 => drop(pool.audit()),
        1 => drop(pool.view().map(|view| view.count.map(u64::from).map(number))),
        2 => drop(pool.lines()),
        3 => drop(pool.records(&["0".to_owned(), "1".to_owned()])),
        4 => {
            for event in pool.events(10).into_iter().flatten() {
                assert!(text.contains(&event.id) && text.contains(&event.what));
                event.at().map(number);
            }
        }
        5 => drop(pool.events_after("0-0", Duration::from_millis(1))),
        6 => match pool.touch("lease", LONG, None) {
            Ok(TicketStatus::Held(grant) | TicketStatus::Conflict(grant)) => {
                number(grant.token);
                grant.gpus.into_iter().map(u64::from).for_each(number);
            }
            Ok(TicketStatus::Impossible { managed }) => number(managed),
            Ok(_) | Err(_) => {}
        },
        7 => drop(pool.release("lease", Some(1), (0, 1))),
        _ => drop(pool.begin((&[(0, None)], 1), 0, Force::Over)),
    }
}

/// Answers `series` requests with the first line of the input, and all other requests with the rest.
fn prometheus_server(mut stream: BufReader<TcpStream>) {
    let mut head = String::new();
    while stream.read_line(&mut head).is_ok_and(|read| read > 0) {
        if !head.ends_with("\r\n\r\n") {
            continue;
        }
        let data = input();
        let end = data.iter().position(|byte| *byte == b'\n').unwrap_or(data.len());
        let (series, samples) = data.split_at(end);
        let body = if head.starts_with("GET /api/v1/series") { series } else { samples };
        let length = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len());
        let stream = stream.get_mut();
        if stream.write_all(&[length.as_bytes(), body].concat()).is_err() {
            return;
        }
        head.clear();
    }
}

pub(crate) fn prometheus(data: &[u8]) {
    static SERVER: LazyLock<String> = LazyLock::new(|| format!("http://{}", peer(prometheus_server)));
    data.clone_into(&mut INPUT.lock().expect("no target panics with the lock"));
    let flags = flags::Backtest {
        rules: concat!(env!("CARGO_MANIFEST_DIR"), "/../../config/rules/idle-workload.yaml").into(),
        prometheus: SERVER.clone(),
        from: "2026-01-01T00:00:00Z".to_owned(),
        to: "2026-01-01T00:10:00Z".to_owned(),
        instance: None,
        assume_children_idle: data.len().is_multiple_of(2),
        token_file: None,
        interval: None,
        chunk: "1h".to_owned(),
        resume_after: None,
        json: true,
    };
    let _ = backtest::run(&flags, Duration::from_secs(1_767_229_200), &mut std::io::sink());
}
