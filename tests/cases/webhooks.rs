//! Tests the bodies of webhooks with a server that records requests, and with a real Alertmanager.
#![allow(
    clippy::disallowed_methods,
    clippy::expect_used,
    clippy::float_cmp,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a case runs programs, reads files and fails loudly"
)]

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};

use end_to_end::enforcer::{self, Enforcer};
use end_to_end::http;
use end_to_end::node::Node;
use end_to_end::page::Page;
use end_to_end::programs;
use end_to_end::tenant::Tenant;
use end_to_end::wait::until;
use serde_json::Value;

/// A server that accepts every POST, and records paths and bodies.
struct Receiver {
    address: SocketAddr,
    requests: Arc<Mutex<Vec<(String, Value)>>>,
}

impl Receiver {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let requests: Arc<Mutex<Vec<_>>> = Arc::default();
        let recorded = Arc::clone(&requests);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                recorded.lock().unwrap().extend(received(stream));
            }
        });
        Self { address, requests }
    }

    /// Waits for a request with this path, and returns its body.
    fn body(&self, path: &str) -> Value {
        let find = || self.requests.lock().unwrap().iter().find(|(to, _)| to == path).cloned();
        until("a request", find).1
    }
}

/// Returns the path and the body of a request, and accepts it.
fn received(mut stream: TcpStream) -> Option<(String, Value)> {
    let mut request = Vec::new();
    let (path, length, start) = loop {
        let mut piece = [0; 4096];
        let read = stream.read(&mut piece).ok().filter(|read| *read > 0)?;
        request.extend_from_slice(&piece[..read]);
        let text = String::from_utf8_lossy(&request).into_owned();
        let Some((head, _)) = text.split_once("\r\n\r\n") else { continue };
        let lower = head.to_ascii_lowercase();
        let length: usize = lower.split_once("content-length: ")?.1.lines().next()?.parse().ok()?;
        break (head.split(' ').nth(1)?.to_owned(), length, head.len() + 4);
    };
    while request.len() < start + length {
        let mut piece = [0; 4096];
        let read = stream.read(&mut piece).ok().filter(|read| *read > 0)?;
        request.extend_from_slice(&piece[..read]);
    }
    stream.write_all(b"HTTP/1.1 202 Accepted\r\ncontent-length: 0\r\nconnection: close\r\n\r\n").ok()?;
    Some((path, serde_json::from_slice(&request[start..]).expect("JSON")))
}

/// A process whose name is a mention and ends a JSON string.
fn holder(node: &Node) -> Tenant {
    let program = "printf '<!here>\"}@all\\\\' > /proc/$$/comm; trap 'exit' TERM; echo ready; \
                   while :; do read nothing; done";
    let tenant = Tenant::shell(&node.home, program);
    node.hold(&tenant, 0, "used: 2GiB");
    tenant
}

/// Rules that notify these channels, and then end an idle process.
fn rules(channels: &[(&str, String)]) -> String {
    let lines = channels.iter().map(|(name, keys)| format!("  {name}: {{webhook: {keys}}}\n"));
    let lines = lines.collect::<Vec<_>>().concat();
    let names: Vec<&str> = channels.iter().map(|(name, _)| *name).collect();
    format!(
        "version: 1
mode: enforce
defaults: {{startup_grace: 0s, clear_after: 1, grace: 30s}}
notify:
{lines}rules:
  - name: idle
    target: process
    when: {{gpu_util: {{max: 1%}}}}
    for: {{samples: 3}}
    then: [{{notify: [{}]}}, {{after: {{samples: 2}}, terminate: {{}}}}]
",
        names.join(", ")
    )
}

fn enforcer(node: &Node) -> Enforcer {
    let mut command = enforcer::command(&node.home);
    command.args(["--node.name", "gpu-07"]);
    Enforcer::spawn(&node.home, command)
}

fn notifications(page: &Page, channel: &str, result: &str) -> f64 {
    page.value("bailiff_notifications_total", &[("channel", channel), ("result", result)]).unwrap_or_default()
}

#[test]
fn hostile_name_reaches_each_server_as_text() {
    let receiver = Receiver::start();
    let files = tempfile::tempdir().unwrap();
    let key = files.path().join("key");
    fs::write(&key, "0123456789abcdef0123456789abcdef\n").unwrap();
    let url = |path: &str| format!("url: 'http://{}/{path}'", receiver.address);
    let node = Node::new(&rules(&[
        ("slack", format!("{{{}, format: slack}}", url("slack"))),
        ("teams", format!("{{{}, format: teams}}", url("teams"))),
        ("pager", format!("{{{}, format: pagerduty, routing_key_file: {}}}", url("pager"), key.display())),
        (
            "own",
            format!(
                "{{{}, format: mattermost, body: '{{\"text\": \"{{{{ node }}}}: {{{{ notice.what }}}}\"}}'}}",
                url("own")
            ),
        ),
        (
            "broken",
            format!(
                "{{{}, body: '{{\"gpu\": \"{{{{ notice.gpus[9].x if notice.gpus else 1 }}}}\"}}'}}",
                url("broken")
            ),
        ),
    ]));
    let tenant = holder(&node);
    let enforcer = enforcer(&node);
    let pid = tenant.pid();
    let slack = receiver.body("/slack");
    let title = format!(
        "GPU Bailiff on gpu-07: your process (&lt;!here&gt;\"}}＠all\\, pid {pid}): will be terminated in about "
    );
    assert!(slack["text"].as_str().unwrap().starts_with(&title), "{slack:#}");
    let teams = receiver.body("/teams");
    let card = &teams["attachments"][0]["content"];
    assert!(card["body"][0]["text"].as_str().unwrap().contains("(‹!here›\"}＠all＼, pid "), "{teams:#}");
    let pager = receiver.body("/pager");
    assert_eq!(pager["routing_key"], "0123456789abcdef0123456789abcdef");
    assert_eq!(pager["payload"]["source"], "gpu-07");
    let own = receiver.body("/own");
    assert_eq!(own["text"], format!("gpu-07: your process (‹!here›\"}}＠all＼, pid {pid})"));
    enforcer.until("the failure", |page| (notifications(page, "broken", "failed") >= 1.0).then_some(()));
    let why = node.home.until_line("notify", "failed")["detail"].as_str().unwrap().to_owned();
    assert!(why.starts_with("broken: undefined value"), "{why}");
    tenant.gone();
}

/// Starts a program with a directory at the path from which Debian's Alertmanager reads its templates. `tests/setup` unpacks
/// the package without installing it.
const WITH_TEMPLATES: &str = "[ -e /usr/share/prometheus ] || { mount -t tmpfs none /usr/share && \
     mkdir /usr/share/prometheus && ln -s \"$0\" /usr/share/prometheus/alertmanager; }; exec \"$@\"";

/// A real Alertmanager that sends nothing.
struct Alertmanager {
    child: Child,
    address: SocketAddr,
    _directory: tempfile::TempDir,
}

impl Alertmanager {
    fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let config = directory.path().join("alertmanager.yml");
        fs::write(&config, "route: {receiver: none}\nreceivers: [{name: none}]\n").unwrap();
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let program = programs::tool("prometheus-alertmanager");
        let unpacked = fs::canonicalize(&program).unwrap_or_default();
        let templates =
            unpacked.ancestors().nth(2).unwrap_or(&unpacked).join("share/prometheus/alertmanager");
        let child = Command::new("unshare")
            .args(["--mount", "sh", "-c", WITH_TEMPLATES])
            .arg(templates)
            .arg(program)
            .arg(format!("--config.file={}", config.display()))
            .arg(format!("--storage.path={}", directory.path().join("data").display()))
            .arg(format!("--web.listen-address={address}"))
            .arg("--cluster.listen-address=")
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("alertmanager must be installed: run `tests/setup prometheus`");
        Self { child, address, _directory: directory }
    }

    /// Returns the alerts, or `None` if there are none yet.
    fn alerts(&self) -> Option<Vec<Value>> {
        let answer = http::get(self.address, "/api/v2/alerts", &["Connection: close"]).ok()?;
        let text = String::from_utf8(answer.body).ok()?;
        let json = text.get(text.find('[')?..=text.rfind(']')?)?;
        let alerts: Vec<Value> = serde_json::from_str(json).ok()?;
        (!alerts.is_empty()).then_some(alerts)
    }
}

impl Drop for Alertmanager {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn alertmanager_accepts_notifications() {
    let alertmanager = Alertmanager::start();
    until("alertmanager", || {
        http::get(alertmanager.address, "/-/ready", &[]).ok().filter(|it| it.status == 200)
    });
    let url = format!("url: 'http://{}/api/v2/alerts'", alertmanager.address);
    let node = Node::new(&rules(&[("alerts", format!("{{{url}, format: alertmanager}}"))]));
    let tenant = holder(&node);
    let enforcer = enforcer(&node);
    let alert = until("an alert", || alertmanager.alerts()).remove(0);
    let labels = &alert["labels"];
    assert_eq!((&labels["alertname"], &labels["node"]), (&"BailiffNotification".into(), &"gpu-07".into()));
    assert_eq!((&labels["rule"], &labels["step"]), (&"idle".into(), &"notify".into()));
    assert_eq!(labels["user"], "nobody");
    let summary = alert["annotations"]["summary"].as_str().unwrap();
    assert!(summary.starts_with("gpu-07: your process (‹!here›\"}＠all\\, pid "), "{summary}");
    tenant.gone();
    let result = || alertmanager.alerts()?.into_iter().find(|alert| alert["labels"]["step"] == "terminate");
    let summary = until("the result", result)["annotations"]["summary"].as_str().unwrap().to_owned();
    assert!(summary.contains("was terminated; 2.0GiB of GPU memory was released"), "{summary}");
    enforcer.until("both are counted", |page| (notifications(page, "alerts", "ok") == 2.0).then_some(()));
}
