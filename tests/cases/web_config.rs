//! Tests the web config (`--web.config.file`): a real Prometheus server over TLS, with valid and invalid client
//! certificates and passwords; changes to the file while the exporter runs; and clients that use up connections.
#![allow(
    clippy::disallowed_methods,
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a case runs programs, reads files and fails loudly"
)]

use std::collections::VecDeque;
use std::fs::{self, Permissions};
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use end_to_end::certificates::{Authority, Pair};
use end_to_end::enforcer::{self, Enforcer};
use end_to_end::exporter::{self, Exporter};
use end_to_end::fake::Scenario;
use end_to_end::home::Home;
use end_to_end::http::{self, Answer};
use end_to_end::programs;
use end_to_end::prometheus::Prometheus;
use end_to_end::tls::{Client, Stream};
use end_to_end::wait::until;
use serde_json::Value;

const TLS: &str = "tls_server_config:\n  cert_file: server.crt\n  key_file: server.key\n";
const CLIENTS: &str = "  client_auth_type: RequireAndVerifyClientCert\n  client_ca_file: ca.crt\n  \
                       client_allowed_sans: [prometheus.example, 'spiffe://example/scraper']\n";
/// `alice:correct horse` and `alice:wrong`, encoded as in RFC 7617.
const RIGHT: &str = "Authorization: Basic YWxpY2U6Y29ycmVjdCBob3JzZQ==";
const WRONG: &str = "Authorization: Basic YWxpY2U6d3Jvbmc=";

const RULES: &str = "version: 1
rules:
  - {name: none, target: gpu, when: {process_count: {min: 1000}}, for: 1h, then: [{flag: info}]}
";

/// A directory with a web config and the files that it references.
struct Site {
    directory: tempfile::TempDir,
    authority: Authority,
    scenario: Scenario,
}

impl Site {
    /// Creates a site with a certificate from its own authority.
    fn new(config: &str) -> Self {
        let authority = Authority::new("ours");
        let site =
            Self { directory: tempfile::tempdir().unwrap(), authority, scenario: Scenario::named("busy") };
        site.write("ca.crt", &site.authority.pem());
        site.show("server", &site.authority.signs(&["127.0.0.1"]));
        site.write("web.yml", config);
        site
    }

    fn path(&self, name: &str) -> String {
        self.directory.path().join(name).display().to_string()
    }

    /// Replaces a file atomically.
    fn write(&self, name: &str, text: &str) {
        fs::write(self.directory.path().join("next"), text).unwrap();
        fs::rename(self.directory.path().join("next"), self.directory.path().join(name)).unwrap();
    }

    fn show(&self, name: &str, pair: &Pair) {
        self.write(&format!("{name}.crt"), &pair.certificate);
        self.write(&format!("{name}.key"), &pair.key);
    }

    fn exporter(&self, arguments: &[&str]) -> Exporter {
        let flag = ["--web.config.file", &self.path("web.yml")];
        Exporter::start(&self.scenario, &[&flag, arguments].concat())
    }

    fn client(&self) -> Client {
        Client::new(&self.authority, None)
    }
}

fn users(password: &str, cost: u32) -> String {
    format!("basic_auth_users:\n  alice: {}\n", bcrypt::hash(password, cost).unwrap())
}

/// Returns a job in the Prometheus configuration.
fn job(name: &str, target: SocketAddr, rest: &str) -> String {
    format!("  - {{job_name: {name}, static_configs: [{{targets: ['{target}']}}], {rest}}}\n")
}

fn prometheus(jobs: &[String]) -> Prometheus {
    let jobs = jobs.concat();
    Prometheus::of(&format!("global: {{scrape_interval: 2s, scrape_timeout: 2s}}\nscrape_configs:\n{jobs}"))
}

/// Returns the status of a job's last scrape as Prometheus reports it, once there was a scrape.
fn scraped(prometheus: &Prometheus, job: &str) -> (String, String) {
    until(job, || {
        let targets = prometheus.get("targets")?;
        let all: Vec<Value> = targets["activeTargets"].as_array()?.clone();
        let target = all.into_iter().find(|target| target["labels"]["job"] == job)?;
        let field = |key: &str| target[key].as_str().map(str::to_owned);
        (field("health")? != "unknown").then_some((field("health")?, field("lastError")?))
    })
}

#[test]
fn prometheus_is_authenticated_by_the_file() {
    let [open, closed, old] =
        [TLS.to_owned(), format!("{TLS}{CLIENTS}{}", users("correct horse", 4)), TLS.into()];
    let (open, closed, old) = (Site::new(&open), Site::new(&closed), Site::new(&old));
    old.show("server", &old.authority.signs_until(2020, &["127.0.0.1"]));
    closed.show("good", &closed.authority.signs(&["prometheus.example"]));
    closed.show("other", &closed.authority.signs(&["other.example"]));
    closed.show("expired", &closed.authority.signs_until(2020, &["prometheus.example"]));
    closed.show("foreign", &Authority::new("theirs").signs(&["prometheus.example"]));
    let exporters = [&open, &closed, &old].map(|site| site.exporter(&[]));
    let [at_open, at_closed, at_old] = [&exporters[0], &exporters[1], &exporters[2]].map(|one| one.address());

    let tls = |site: &Site, shows: &str| {
        let ca = site.path("ca.crt");
        let shown = match shows {
            "" => String::new(),
            name => {
                let [crt, key] = ["crt", "key"].map(|kind| site.path(&format!("{name}.{kind}")));
                format!(", cert_file: {crt}, key_file: {key}")
            }
        };
        format!("scheme: https, tls_config: {{ca_file: {ca}{shown}}}")
    };
    let password = |password: &str| format!("basic_auth: {{username: alice, password: {password}}}");
    let right = password("correct horse");
    let cases = [
        ("tls", at_open, tls(&open, ""), ""),
        ("plain", at_open, "scheme: http".into(), "malformed HTTP"),
        ("untrusted", at_open, tls(&closed, ""), "unknown authority"),
        ("old", at_old, tls(&old, ""), "expired"),
        ("all", at_closed, format!("{}, {right}", tls(&closed, "good")), ""),
        ("wrong-password", at_closed, format!("{}, {}", tls(&closed, "good"), password("wrong")), "401"),
        ("no-password", at_closed, tls(&closed, "good"), "401"),
        ("no-certificate", at_closed, format!("{}, {right}", tls(&closed, "")), "certificate required"),
        ("other-name", at_closed, format!("{}, {right}", tls(&closed, "other")), "bad certificate"),
        ("expired", at_closed, format!("{}, {right}", tls(&closed, "expired")), "expired certificate"),
        ("foreign", at_closed, format!("{}, {right}", tls(&closed, "foreign")), "certificate"),
    ];
    let prometheus = prometheus(&cases.each_ref().map(|(name, at, rest, _)| job(name, *at, rest)));
    for (name, _, _, why) in &cases {
        let (health, error) = scraped(&prometheus, name);
        assert_eq!(health, if why.is_empty() { "up" } else { "down" }, "{name}: {error}");
        assert!(error.contains(why), "{name}: {error}");
    }
    assert_eq!(prometheus.number("sum(up)"), Some(2.0));
}

/// Sends a request on a kept-alive connection, and returns the first line of the response.
fn request_again(stream: &mut Stream) -> io::Result<String> {
    stream.write_all(b"GET /-/healthy HTTP/1.1\r\nHost: localhost\r\n\r\n")?;
    let mut response = Vec::new();
    while !response.ends_with(b"healthy\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte)?;
        response.push(byte[0]);
    }
    Ok(String::from_utf8_lossy(&response).lines().next().unwrap_or_default().to_owned())
}

#[test]
fn new_certificate_applies_without_a_failed_scrape() {
    let site = Site::new(TLS);
    let exporter = site.exporter(&[]);
    let next = Authority::new("next");
    site.write("both.crt", &format!("{}{}", site.authority.pem(), next.pem()));
    let rest = format!("scheme: https, tls_config: {{ca_file: {}}}", site.path("both.crt"));
    let prometheus = prometheus(&[job("bailiff", exporter.address(), &rest)]);
    until("a scrape", || (prometheus.number("count_over_time(up[5m])")? >= 1.0).then_some(()));
    let mut kept = site.client().connect(exporter.address()).unwrap();
    assert_eq!(request_again(&mut kept).unwrap(), "HTTP/1.1 200 OK");

    // Both are written in one step, because otherwise the key and the certificate would not match for a moment.
    let pair = next.signs(&["127.0.0.1"]);
    let inline = |text: &str| text.lines().map(|line| format!("    {line}\n")).collect::<Vec<_>>().concat();
    let (certificate, key) = (inline(&pair.certificate), inline(&pair.key));
    site.write("web.yml", &format!("tls_server_config:\n  cert: |\n{certificate}  key: |\n{key}"));
    assert_eq!(Client::new(&next, None).get(exporter.address(), "/-/healthy", &[]).unwrap().status, 200);
    assert!(
        site.client().get(exporter.address(), "/-/healthy", &[]).is_err(),
        "the old certificate is no longer used"
    );
    request_again(&mut kept).expect_err("connections from before the change are closed");
    let before = prometheus.number("count_over_time(up[5m])").unwrap();
    until("more scrapes", || (prometheus.number("count_over_time(up[5m])")? >= before + 2.0).then_some(()));
    assert_eq!(prometheus.number("min_over_time(up[5m])"), Some(1.0));
}

#[test]
fn new_password_applies_at_once() {
    let site = Site::new(&users("correct horse", 4));
    let exporter = site.exporter(&[]);
    let status = |header: &[&str]| http::get(exporter.address(), "/metrics", header).unwrap().status;
    assert_eq!((status(&[RIGHT]), status(&[WRONG]), status(&[])), (200, 401, 401));
    site.write("web.yml", &users("wrong", 4));
    assert_eq!((status(&[RIGHT]), status(&[WRONG]), status(&[])), (401, 200, 401));
    for odd in
        ["Basic", "Basic !", "Basic YWxpY2U=", "Bearer YWxpY2U6d3Jvbmc=", "Basic Ym9iOndyb25n", "Basic //8="]
    {
        assert_eq!(status(&[&format!("Authorization: {odd}")]), 401, "{odd}");
    }
    let page = http::get(exporter.address(), "/metrics", &[WRONG]).unwrap().text();
    let counted = page.lines().find(|line| line.contains("path=\"/metrics\",code=\"401\"")).unwrap();
    assert!(counted.ends_with(" 10"), "{counted}");
}

#[test]
fn password_removed_during_its_check_is_rejected() {
    // A check with bcrypt cost 12 takes half a second on this machine.
    let site = Site::new(&users("correct horse", 12));
    let exporter = site.exporter(&[]);
    let query = |header: &str| {
        let mut stream = http::connect(exporter.address()).unwrap();
        write!(stream, "GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{header}\r\n\r\n")
            .unwrap();
        stream
    };
    let request = |mut stream: TcpStream| {
        let mut answer = String::new();
        let _ = stream.read_to_string(&mut answer);
        answer
    };
    // The wrong password is checked first. The check of the right password starts when the wrong one has been
    // refused.
    let wrong = query(WRONG);
    assert!(request(query("X: y")).contains(" 401 "), "the exporter has read the earlier request");
    let right = query(RIGHT);
    assert!(request(wrong).contains(" 401 "));
    site.write("web.yml", &users("another", 4));
    let answer = request(right);
    assert!(!answer.contains(" 200 "), "{answer}");
}

#[test]
fn password_guessing_delays_no_other_client() {
    // At most as many as requests may wait.
    const GUESSES: usize = 8;
    let site = Site::new(&users("correct horse", 10));
    let exporter = site.exporter(&[]);
    let refused = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..GUESSES {
            scope.spawn(|| {
                let stream = http::connect_from([127, 0, 0, 2].into(), exporter.address()).unwrap();
                assert_eq!(http::exchange(stream, ("GET", "/metrics"), &[WRONG]).unwrap().status, 401);
                refused.fetch_add(1, Relaxed);
            });
        }
        until("the first to be refused", || (refused.load(Relaxed) > 0).then_some(()));
        assert_eq!(http::get(exporter.address(), "/metrics", &[RIGHT]).unwrap().status, 200);
        let before = refused.load(Relaxed);
        assert!(
            before <= GUESSES / 2,
            "{before} of {GUESSES} guesses were checked before the right password"
        );
    });
}

#[test]
fn headers_are_on_every_response() {
    let headers = [
        ("Content-Security-Policy", "default-src 'self'"),
        ("X-Frame-Options", "deny"),
        ("X-Content-Type-Options", "nosniff"),
        ("X-XSS-Protection", "1; mode=block"),
        ("Strict-Transport-Security", "max-age=31536000"),
    ];
    let lines = headers.map(|(name, value)| format!("    {name}: \"{value}\"\n")).concat();
    let site = Site::new(&format!("http_server_config:\n  headers:\n{lines}{}", users("correct horse", 4)));
    let exporter = site.exporter(&[]);
    let get = |path: &str, header: &[&str]| http::get(exporter.address(), path, header).unwrap();
    for (path, header, status) in
        [("/metrics", RIGHT, 200), ("/", RIGHT, 200), ("/none", RIGHT, 404), ("/metrics", WRONG, 401)]
    {
        let answer = get(path, &[header]);
        let head = format!("{}\r\n", answer.head.to_ascii_lowercase());
        assert_eq!(answer.status, status);
        for (name, value) in headers {
            let line = format!("\r\n{}: {value}\r\n", name.to_ascii_lowercase());
            assert_eq!(head.matches(&line).count(), 1, "{path} {status}: {head}");
        }
        assert_eq!(
            head.matches("content-security-policy").count(),
            1,
            "the exporter's own header must be replaced: {head}"
        );
    }
    let Answer { head, body, .. } = get("/metrics", &[]);
    assert!(head.to_ascii_lowercase().contains("\r\nwww-authenticate: basic realm="), "{head}");
    assert_eq!(body, b"unauthorized\n");
}

#[test]
fn page_of_another_site_can_read_neither_daemon() {
    let home = Home::with(RULES);
    let flags = ["--node.name=node-7", "--web.allowed-host=gpu.example.org", "--web.enable-lifecycle"];
    let exporter = Exporter::start(&Scenario::named("busy"), &flags[..2]);
    let enforcer = Enforcer::start(&home, &flags);
    let status = |address: SocketAddr, what: (&str, &str), headers: &[&str]| {
        let headers = [headers, &["Content-Length: 0"]].concat();
        http::exchange(http::connect(address).unwrap(), what, &headers).unwrap().status
    };
    let rebound = "Host: evil.example:9836";
    for address in [exporter.address(), enforcer.address()] {
        for known in ["127.0.0.1:9836", "localhost", "node-7:9836", "gpu.example.org"] {
            assert_eq!(status(address, ("GET", "/"), &[&format!("Host: {known}")]), 200, "{known}");
        }
        assert_eq!(status(address, ("GET", "/"), &[rebound]), 421);
        for path in ["/metrics", "/-/healthy"] {
            assert_eq!(status(address, ("GET", path), &[rebound]), 200, "programs may use any name");
            assert_eq!(status(address, ("GET", path), &[rebound, "Accept-Language: en"]), 421, "{path}");
        }
    }
    let reload = |headers: &[&str]| status(enforcer.address(), ("POST", "/-/reload"), headers);
    assert_eq!((reload(&["Host: node-7"]), reload(&[rebound])), (200, 421));
    assert_eq!(reload(&[rebound, "Origin: http://evil.example:9836"]), 421, "the names agree");
    let page = http::get(exporter.address(), "/metrics", &[]).unwrap().text();
    assert!(page.contains("bailiff_http_requests_total{path=\"/\",code=\"421\"} 1\n"), "{page}");
}

#[test]
fn excess_requests_get_429() {
    let site = Site::new("rate_limit: {interval: 1h, burst: 2}\n");
    let exporter = site.exporter(&[]);
    let status = || http::get(exporter.address(), "/-/healthy", &[]).unwrap().status;
    assert_eq!([status(), status(), status()], [200, 200, 429]);
    site.write("web.yml", "rate_limit: {interval: 0}\n");
    assert_eq!([status(), status(), status()], [200, 200, 200]);
}

#[test]
fn invalid_file_rejects_every_request() {
    let good = format!("{TLS}{}", users("correct horse", 4));
    let site = Site::new(&good);
    let exporter = site.exporter(&[]);
    let get = || site.client().get(exporter.address(), "/-/healthy", &[RIGHT]);
    for (bad, why) in [
        ("tls_server_confg: {}\n", "web.yml:1: unknown field"),
        ("", "to reduce the protection, restart the program"),
        (TLS, "basic_auth_users was removed"),
        (&good.replace("server.key", "none.key"), "web.yml:3: tls_server_config.key_file: "),
    ] {
        assert_eq!(get().unwrap().status, 200);
        let mut kept = site.client().connect(exporter.address()).unwrap();
        site.write("web.yml", bad);
        assert!(get().is_err(), "{bad}");
        let answer = http::exchange(&mut kept, ("GET", "/-/healthy"), &[RIGHT]).unwrap();
        assert_eq!((answer.status, answer.text().contains("web.yml")), (500, false), "{bad}");
        assert!(
            http::get(exporter.address(), "/-/healthy", &[RIGHT]).is_err(),
            "plain HTTP must be refused too: {bad}"
        );
        exporter.until_logged(why);
        site.write("web.yml", &good);
    }
    assert_eq!(get().unwrap().status, 200);
    fs::remove_file(site.path("server.crt")).unwrap();
    assert!(get().is_err());
    exporter.until_logged("server.crt: no such file");
}

/// An exporter with a certificate and a user, and a Prometheus server that scrapes it all the time.
struct LoadedExporter {
    site: Site,
    exporter: Exporter,
    prometheus: Prometheus,
}

impl LoadedExporter {
    fn new() -> Self {
        let site = Site::new(&format!("{TLS}{}", users("correct horse", 8)));
        // All clients of these tests are on loopback, and so share one half of the connections.
        let exporter = site.exporter(&["--web.max-connections=128"]);
        let user =
            "basic_auth: {username: alice, password: correct horse}, scrape_interval: 1s, scrape_timeout: 1s";
        let rest = format!("scheme: https, tls_config: {{ca_file: {}}}, {user}", site.path("ca.crt"));
        let prometheus = prometheus(&[job("bailiff", exporter.address(), &rest)]);
        let loaded = Self { site, exporter, prometheus };
        until("a scrape", || (loaded.scrapes() >= 1.0).then_some(()));
        loaded
    }

    fn scrapes(&self) -> f64 {
        self.prometheus.number("count_over_time(up[5m])").unwrap_or_default()
    }

    /// Asserts that at least one scrape starts after this call, and that all scrapes so far succeeded.
    fn assert_scrapes_continue(&self) {
        let before = self.scrapes();
        until("two more scrapes", || (self.scrapes() >= before + 2.0).then_some(()));
        assert_eq!(self.prometheus.number("min_over_time(up[5m])"), Some(1.0));
    }

    fn connect(&self) -> Stream {
        until("a connection", || self.site.client().connect(self.exporter.address()).ok())
    }

    /// Sends the beginning of a TLS handshake. Fails after 200 ms if the kernel's queue is full, because the
    /// connection would be retried only after a second.
    fn begin_handshake(&self) -> io::Result<TcpStream> {
        let mut stream = TcpStream::connect_timeout(&self.exporter.address(), Duration::from_millis(200))?;
        stream.write_all(&[22, 3, 1, 2, 0, 1, 0, 1])?;
        Ok(stream)
    }
}

#[test]
fn scrapes_continue_beside_unfinished_requests() {
    let loaded = LoadedExporter::new();
    let _handshakes: Vec<_> =
        (0..20).map(|_| until("a connection", || loaded.begin_handshake().ok())).collect();
    let mut headers: Vec<Stream> = (0..20).map(|_| loaded.connect()).collect();
    for stream in &mut headers {
        stream.write_all(b"GET /metrics HTTP/1.1\r\nX: ").unwrap();
    }
    loaded.assert_scrapes_continue();
    let mut endless = loaded.connect();
    let megabyte = vec![b'x'; 1 << 20];
    let mut sent = endless.write_all(b"GET /metrics HTTP/1.1\r\nX: ");
    for _ in 0..100 {
        sent = sent.and_then(|()| endless.write_all(&megabyte));
    }
    sent.expect_err("100 MB of headers are refused");
    loaded.assert_scrapes_continue();
}

#[test]
fn scrapes_continue_beside_clients_that_do_not_read() {
    let loaded = LoadedExporter::new();
    let request = format!("GET /metrics HTTP/1.1\r\nHost: localhost\r\n{RIGHT}\r\n\r\n");
    let mut stuck: Vec<Stream> = (0..20).map(|_| loaded.connect()).collect();
    for stream in &mut stuck {
        stream.sock.set_write_timeout(Some(Duration::from_millis(100))).unwrap();
        // Writes until the buffers are full, since the client does not read.
        while stream.write_all(request.as_bytes()).is_ok() {}
    }
    loaded.assert_scrapes_continue();
}

#[test]
fn scrapes_continue_beside_password_guessing() {
    let loaded = LoadedExporter::new();
    let (address, over) = (loaded.exporter.address(), AtomicBool::new(false));
    let client = loaded.site.client();
    std::thread::scope(|scope| {
        let guess = || {
            let refused =
                || client.get(address, "/metrics", &[WRONG]).is_ok_and(|answer| answer.status == 401);
            let mut count = 0;
            while !over.load(Relaxed) {
                count += usize::from(refused());
            }
            count
        };
        let guessing: Vec<_> = (0..8).map(|_| scope.spawn(guess)).collect();
        loaded.assert_scrapes_continue();
        over.store(true, Relaxed);
        let guesses: usize = guessing.into_iter().map(|guessing| guessing.join().unwrap()).sum();
        assert!(guesses > 8, "{guesses}");
    });
}

#[test]
fn scrapes_continue_beside_10000_connections() {
    let loaded = LoadedExporter::new();
    std::thread::scope(|scope| {
        for _ in 0..20 {
            scope.spawn(|| {
                let mut open = VecDeque::new();
                for _ in 0..500 {
                    open.extend(loaded.begin_handshake().ok());
                    // A process's limit on open files ends the loop.
                    if open.len() > 25 {
                        open.pop_front();
                    }
                }
            });
        }
    });
    loaded.assert_scrapes_continue();
    let page = loaded.prometheus.number("bailiff_http_connections_refused_total");
    assert!(page.is_some_and(|refused| refused > 1000.0), "{page:?}");
}

#[test]
fn enforcer_supports_the_web_config() {
    let home = Home::with(RULES);
    let site = Site::new(TLS);
    let enforcer = Enforcer::start(&home, &["--web.config.file", &site.path("web.yml")]);
    let url = format!("https://{}", enforcer.address());
    let check = |login: &[&str]| {
        let output = Command::new(programs::enforcer())
            .args(["check", &home.rules().display().to_string(), "--against", &url])
            .args(login)
            .env("SSL_CERT_FILE", site.path("ca.crt"))
            .output()
            .unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    assert!(check(&[]).contains("runs this policy"), "{}", check(&[]));
    site.write("web.yml", &format!("{TLS}{}", users("correct horse", 4)));
    let get = |header: &[&str]| site.client().get(enforcer.address(), "/metrics", header).unwrap();
    assert_eq!((get(&[RIGHT]).status, get(&[WRONG]).status), (200, 401));
    assert!(get(&[RIGHT]).text().contains("bailiff_enforcer_"));
    site.write("password", "correct horse\n");
    let printed = check(&["--user", "alice", "--password-file", &site.path("password")]);
    assert!(printed.contains("runs this policy"), "{printed}");
    assert!(check(&[]).contains("requires a user and a password"), "{}", check(&[]));
    assert!(http::get(enforcer.address(), "/metrics", &[RIGHT]).is_err());
}

#[test]
fn file_that_another_user_can_change_is_refused() {
    let site = Site::new(TLS);
    let chmod = |name: &str, mode: u32| {
        fs::set_permissions(site.path(name), Permissions::from_mode(mode)).unwrap();
    };
    let flags = ["--web.listen-address", "127.0.0.1:0", "--web.config.file", &site.path("web.yml")];
    for (name, key) in [("web.yml", ":"), ("server.key", ":3: tls_server_config.key_file:")] {
        chmod(name, 0o602);
        let output = exporter::run(&flags);
        let printed = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(64), "{printed}");
        let why = format!(" {} is writable for other users, mode 0602 (chmod go-w", site.path(name));
        assert!(printed.contains(&format!("web.yml{key}")) && printed.contains(&why), "{printed}");
        chmod(name, 0o600);
    }
    chmod("web.yml", 0o602);
    drop(site.exporter(&["--no-strict-permissions"]));
    chmod("web.yml", 0o600);
    let exporter = site.exporter(&[]);
    let get = || site.client().get(exporter.address(), "/-/healthy", &[]);
    assert_eq!(get().unwrap().status, 200);
    chmod("server.key", 0o620);
    std::os::unix::fs::chown(site.path("server.key"), None, Some(4002)).unwrap();
    assert!(get().is_err(), "the file is refused at once");
    exporter.until_logged("server.key is writable for other users, mode 0620");
}

#[test]
fn invalid_file_prevents_the_start() {
    let site = Site::new(
        "tls_server_config:\n  cert_file: server.crt\n  key_file: server.key\n  min_version: TLS11\n",
    );
    let path = site.path("web.yml");
    let home = Home::with(RULES);
    let mut commands = [exporter::command(&site.scenario), enforcer::command(&home)];
    commands[0].args(["--web.listen-address", "127.0.0.1:0"]);
    for mut command in commands {
        let output = command.args(["--web.config.file", &path]).output().unwrap();
        let printed = String::from_utf8_lossy(&output.stderr).into_owned();
        let line = printed.lines().last().unwrap_or_default();
        let why = format!(
            ": {path}:4: tls_server_config.min_version: TLS11 is insecure and not supported; use TLS12 or TLS13"
        );
        assert_eq!((output.status.code(), line.ends_with(&why)), (Some(64), true), "{printed}");
    }
    let none = PathBuf::from(&path).with_extension("none").display().to_string();
    let output = exporter::run(&["--web.listen-address", "127.0.0.1:0", "--web.config.file", &none]);
    let printed = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(64), "{printed}");
    assert!(printed.ends_with(&format!("{none}: no such file or directory\n")), "{printed}");
}
