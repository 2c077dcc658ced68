//! Tests the channel `mail` with a real mail server: over each encryption, with a login, and for servers that refuse or do
//! not respond.
#![allow(
    clippy::disallowed_methods,
    clippy::expect_used,
    clippy::float_cmp,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a case runs programs, reads files and fails loudly"
)]

use std::fs::{self, Permissions};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use end_to_end::certificates::Authority;
use end_to_end::enforcer::{self, Enforcer};
use end_to_end::node::Node;
use end_to_end::page::Page;
use end_to_end::programs;
use end_to_end::tenant::Tenant;
use end_to_end::wait::until;

/// A mail server on the loopback interface.
struct MailServer {
    directory: tempfile::TempDir,
    child: Child,
    port: u16,
}

impl MailServer {
    fn start(encryption: &str, login: Option<&str>) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        let authority = Authority::new("test");
        let pair = authority.signs(&["127.0.0.1"]);
        for (name, text) in [
            ("mode", "accept"),
            ("ca.crt", &authority.pem()),
            ("tls.crt", &pair.certificate),
            ("tls.key", &pair.key),
            ("password", "secret\n"),
        ] {
            fs::write(path(name), text).unwrap();
        }
        let mut command = Command::new(programs::python());
        command.arg(programs::root().join("tests/fixtures/mail_server.py")).arg(directory.path());
        command.args(["--encryption", encryption]);
        if encryption != "none" {
            command.arg("--certificate").arg(path("tls.crt")).arg("--key").arg(path("tls.key"));
        }
        command.args(login.map(|login| format!("--login={login}")));
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        Self { directory, child, port: line.trim().parse().unwrap() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn set(&self, mode: &str) {
        fs::write(self.path("next"), mode).unwrap();
        fs::rename(self.path("next"), self.path("mode")).unwrap();
    }

    /// Waits for a message, and returns it without line breaks within sentences.
    fn message(&self, number: usize) -> String {
        let path = self.path(&format!("{number}.eml"));
        let text = until("a message", || fs::read_to_string(&path).ok());
        text.replace("=\r\n", "").replace("\r\n", "\n")
    }

    /// Returns the rules, with these additional keys of the channel.
    fn rules(&self, keys: &str) -> String {
        format!(
            "version: 1
mode: enforce
defaults: {{startup_grace: 0s, clear_after: 1, grace: 30s}}
notify:
  owner:
    mail:
      server: 127.0.0.1:{}
      from: GPU Bailiff <gpu@example.org>
      to: \"{{user}}@example.org\"
      {keys}
rules:
  - name: idle
    target: process
    when: {{gpu_util: {{max: 1%}}}}
    for: {{samples: 3}}
    then: [{{notify: owner}}, {{after: {{samples: 2}}, terminate: {{requires_notice: true}}}}]
",
            self.port
        )
    }

    /// Starts an enforcer that trusts the server's certificate.
    fn enforcer(&self, node: &Node) -> Enforcer {
        let mut command = enforcer::command(&node.home);
        command.args(["--node.name", "gpu-07"]).env("SSL_CERT_FILE", self.path("ca.crt"));
        Enforcer::spawn(&node.home, command)
    }
}

impl Drop for MailServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn holder(node: &Node) -> Tenant {
    let tenant = Tenant::ending_on_term(&node.home);
    node.hold(&tenant, 0, "used: 2GiB");
    tenant
}

fn notifications(page: &Page, result: &str) -> f64 {
    page.value("bailiff_notifications_total", &[("channel", "owner"), ("result", result)]).unwrap_or_default()
}

#[test]
fn owner_gets_mail_before_and_after() {
    let server = MailServer::start("starttls", Some("bailiff:secret"));
    let login = format!("user: bailiff\n      password_file: {}", server.path("password").display());
    let node = Node::new(&server.rules(&format!("every: 1s\n      {login}")));
    let tenant = holder(&node);
    let enforcer = server.enforcer(&node);
    let warning = server.message(1);
    println!("{warning}");
    let pid = format!("pid {}", tenant.pid());
    for expected in [
        "To-envelope: ['nobody@example.org']\n",
        "From: \"GPU Bailiff\" <gpu@example.org>\n",
        "To: nobody@example.org\n",
        "Auto-Submitted: auto-generated\n",
        "Subject: Your process (",
        &pid,
        "on gpu-07",
        "it holds 2.0GiB of GPU memory; gpu_util is 0%",
        "It will be terminated at about 20",
    ] {
        assert!(warning.contains(expected), "{expected}: {warning}");
    }
    tenant.gone();
    let end = server.message(2);
    assert!(end.contains("Was terminated; 2.0GiB of GPU memory was released."), "{end}");
    enforcer.until("both are counted", |page| (notifications(page, "ok") == 2.0).then_some(()));
    assert_eq!(node.home.line("notify", "delivered").unwrap()["detail"], "owner");
}

#[test]
fn each_encryption_is_supported_and_required() {
    for (encryption, key, is_sent) in [
        ("tls", "tls", true),
        ("none", "none", true),
        ("none", "starttls", false),
        ("starttls", "none", false),
    ] {
        let server = MailServer::start(encryption, None);
        let node = Node::new(&server.rules(&format!("encryption: {key}")));
        let tenant = holder(&node);
        let enforcer = server.enforcer(&node);
        if is_sent {
            assert!(server.message(1).contains("will be terminated"), "{encryption}");
            continue;
        }
        let is_deferred = |page: &Page| {
            (notifications(page, "deferred") + notifications(page, "failed") > 0.0).then_some(())
        };
        enforcer.until("the attempt", is_deferred);
        assert!(tenant.is_running(), "the step requires a delivered notification");
        assert!(!server.path("1.eml").exists());
    }
}

#[test]
fn replies_in_plain_text_after_starttls_are_not_believed() {
    let server = MailServer::start("starttls", None);
    server.set("append");
    let node = Node::new(&server.rules("encryption: starttls\n      every: 1s"));
    let tenant = holder(&node);
    let enforcer = server.enforcer(&node);
    let results = ["ok", "deferred", "failed"];
    let counted = |page: &Page| {
        let counts = results.map(|result| notifications(page, result));
        (counts != [0.0; 3]).then_some(counts)
    };
    assert_eq!(enforcer.until("an attempt", counted)[0], 0.0, "nothing was delivered");
    assert!(tenant.is_running(), "the step requires a delivered notification");
}

#[test]
fn refused_recipient_is_not_delivered_and_a_hanging_server_delays_nothing() {
    let server = MailServer::start("none", None);
    server.set("refuse");
    let node = Node::new(&server.rules("encryption: none"));
    let tenant = holder(&node);
    let enforcer = server.enforcer(&node);
    enforcer.until("the refusal", |page| (notifications(page, "failed") >= 1.0).then_some(()));
    let why = node.home.until_line("notify", "failed")["detail"].as_str().unwrap().to_owned();
    assert!(why.starts_with("owner: the server refused it: ") && why.contains("550"), "{why}");
    assert!(tenant.is_running(), "the step requires a delivered notification");
    drop(enforcer);
    server.set("hang");
    let rules = server.rules("encryption: none").replace("{requires_notice: true}", "{}");
    node.home.write(&rules);
    let enforcer = server.enforcer(&node);
    tenant.gone();
    until("the hanging server", || log(server.directory.path()).contains("hang nobody@").then_some(()));
    let other = holder(&node);
    other.gone();
    // The enforcer does not wait for the server when it stops, and what was not sent is kept.
    let began = Instant::now();
    drop(enforcer);
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    let kept = fs::read_to_string(node.home.state().join("mail-owner.json")).unwrap();
    assert!(kept.contains("was terminated"), "{kept}");
}

#[test]
fn notices_that_come_together_are_one_message() {
    let server = MailServer::start("none", None);
    let node = Node::new(&server.rules("encryption: none"));
    let tenants = [holder(&node), holder(&node)];
    let _enforcer = server.enforcer(&node);
    let message = server.message(1);
    assert!(message.contains("Subject: 2 notices about your GPU memory on gpu-07\n"), "{message}");
    for tenant in &tenants {
        assert!(message.contains(&format!("pid {}", tenant.pid())), "{message}");
    }
}

#[test]
fn recipient_comes_from_the_gecos_field_or_a_program() {
    let server = MailServer::start("none", None);
    let (passwd, program) = (server.path("passwd"), server.path("recipient"));
    let users = fs::read_to_string("/etc/passwd").unwrap();
    let others = users.lines().filter(|line| !line.starts_with("nobody:"));
    let nobody = "nobody:x:65534:65534:Any One <any.one@example.net>,room 7:/nonexistent:/bin/false";
    fs::write(&passwd, others.chain([nobody, ""]).collect::<Vec<_>>().join("\n")).unwrap();
    fs::write(&program, "#!/bin/sh\necho \"$1@staff.example.org\"\n").unwrap();
    fs::set_permissions(&program, Permissions::from_mode(0o755)).unwrap();
    let by_program = format!("to_program: [{}]", program.display());
    let cases = [("to_gecos: true", "any.one@example.net"), (&by_program, "nobody@staff.example.org")];
    for (number, (key, recipient)) in (1..).zip(cases) {
        let rules = server.rules("encryption: none").replace("to: \"{user}@example.org\"", key);
        let node = Node::new(&rules);
        let _tenant = holder(&node);
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", "mount --bind \"$0\" /etc/passwd && exec \"$@\""]).arg(&passwd);
        command.arg(programs::enforcer()).args(enforcer::arguments(&node.home));
        let _enforcer = Enforcer::spawn(&node.home, command);
        let message = server.message(number);
        assert!(message.contains(&format!("To-envelope: ['{recipient}']\n")), "{key}: {message}");
    }
}

fn log(directory: &Path) -> String {
    fs::read_to_string(directory.join("log")).unwrap_or_default()
}
