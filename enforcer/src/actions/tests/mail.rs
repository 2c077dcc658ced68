//! Tests mail with a small mail server: limits, retries, restarts and hostile texts. The cases with a real one are in
//! `tests/cases/mail.rs`.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use tokio::sync::mpsc::UnboundedReceiver;

use super::{subject, until};
use crate::actions::mail::Outbox;
use crate::actions::message;
use crate::actions::notices::{Delivered, Delivery, Notice, NoticeSettings, Notices, Part};
use crate::clock::now;
use bailiff_engine::Kind;
use bailiff_engine::policy::mail::{Encryption, Mail, Recipient};
use bailiff_engine::policy::{Channel, Mode};

/// What the server received: messages by recipient, and how it responds to further recipients.
#[derive(Clone)]
struct Server {
    port: u16,
    received: Arc<Mutex<BTreeMap<String, Vec<String>>>>,
    response: Arc<Mutex<&'static str>>,
    /// A recipient that gets another response. If it is empty, the server ends the connection.
    refused: Arc<Mutex<Option<(&'static str, &'static str)>>>,
}

impl Server {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let server = Self {
            port,
            received: Arc::default(),
            response: Arc::new(Mutex::new("250 OK")),
            refused: Arc::default(),
        };
        let own = server.clone();
        std::thread::spawn(move || listener.incoming().flatten().for_each(|stream| drop(own.serve(&stream))));
        server
    }

    fn serve(&self, stream: &TcpStream) -> std::io::Result<()> {
        let (mut lines, mut out) = (BufReader::new(stream), stream);
        let mut recipient = String::new();
        out.write_all(b"220 test\r\n")?;
        loop {
            let mut line = String::new();
            if lines.read_line(&mut line)? == 0 {
                return Ok(());
            }
            let response = match line.split([' ', ':']).next().unwrap_or_default() {
                "RCPT" => {
                    recipient = line.trim().to_owned();
                    let refused = self.refused.lock().unwrap().filter(|(user, _)| recipient.contains(user));
                    refused.map_or(*self.response.lock().unwrap(), |(_, response)| response)
                }
                "DATA\r\n" => {
                    out.write_all(b"354 go on\r\n")?;
                    let mut message = String::new();
                    while !message.ends_with("\r\n.\r\n") {
                        lines.read_line(&mut message)?;
                    }
                    let mut received = self.received.lock().unwrap();
                    received.entry(recipient.clone()).or_default().push(message);
                    "250 OK"
                }
                _ => "250 OK",
            };
            if response.is_empty() {
                return Ok(());
            }
            write!(out, "{response}\r\n")?;
        }
    }

    fn channel(&self, every: Duration) -> Channel {
        Channel::Mail(Box::new(Mail {
            host: "127.0.0.1".into(),
            port: self.port,
            encryption: Encryption::None,
            login: None,
            from: "gpu@example.org".into(),
            to: Recipient::Address("{user}@example.org".into()),
            subject: None,
            body: None,
            every,
        }))
    }

    /// Returns the messages to a user.
    fn messages(&self, user: &str) -> Vec<String> {
        let recipient = format!("RCPT TO:<{user}@example.org>");
        self.received.lock().unwrap().get(&recipient).cloned().unwrap_or_default()
    }
}

fn settings(directory: &Path) -> NoticeSettings {
    NoticeSettings {
        mail: Some(directory.to_owned()),
        node: "n1".into(),
        mail_pause: Duration::from_millis(200),
        ..NoticeSettings::default()
    }
}

fn notice(uid: u32, user: &str, target: &str) -> Arc<Notice> {
    let mut subject = subject(Kind::Process, target, &[]);
    (subject.uid, subject.user) = (Some(uid), Some(user.to_owned()));
    Arc::new(Notice {
        text: format!("{target} will be ended"),
        node: "n1".into(),
        rule: "idle".into(),
        step: "notify".into(),
        target: target.into(),
        user: Some(user.into()),
        uid: Some(uid),
        gpus: vec!["GPU-1".into()],
        members: Vec::new(),
        evidence: None,
        when: SystemTime::UNIX_EPOCH + now().wall,
        part: Part { what: format!("your {target}"), short: "will be ended".into(), ..Part::default() },
        outcome: None,
        about: (Arc::new(subject), Mode::Enforce),
    })
}

/// Waits for this number of results, and counts them.
fn results(deliveries: &mut UnboundedReceiver<Delivery>, count: usize) -> BTreeMap<&'static str, usize> {
    let mut counts = BTreeMap::new();
    for _ in 0..count {
        let next = until("a delivery", || deliveries.try_recv().ok());
        *counts.entry(next.outcome().name()).or_default() += 1;
    }
    counts
}

#[test]
fn notifications_that_come_together_share_a_message() {
    let (server, directory) = (Server::start(), tempfile::tempdir().unwrap());
    let (mut notices, mut deliveries) = Notices::new(settings(directory.path()));
    let channel = server.channel(Duration::from_hours(1));
    let began = std::time::Instant::now();
    for n in 0..10_000_u32 {
        let user = n % 20;
        notices.notify(
            &notice(1000 + user, &format!("user{user}"), &format!("process:{n}@7")),
            [("owner", &channel)],
        );
    }
    assert!(began.elapsed() < Duration::from_secs(5), "notifying does not wait for the server");
    assert_eq!(results(&mut deliveries, 10_000), BTreeMap::from([("ok", 10_000)]));
    for user in 0..20 {
        let messages = server.messages(&format!("user{user}"));
        assert_eq!(messages.len(), 1, "user{user}");
        assert!(
            messages[0].contains("Subject: 500 notices about your GPU memory on n1\r\n"),
            "{}",
            messages[0]
        );
        assert!(messages[0].contains("450 further notices are not listed."));
    }
    // Within `every`, further notifications wait, and those of others do not.
    notices.notify(&notice(1000, "user0", "process:1@7"), [("owner", &channel)]);
    for uid in [1020, 1021] {
        notices.notify(&notice(uid, "other", "process:2@7"), [("owner", &channel)]);
        assert_eq!(until("the mail of another", || deliveries.try_recv().ok()).notice.uid, Some(uid));
    }
    assert_eq!(server.messages("user0").len(), 1);
}

#[test]
fn what_was_not_delivered_is_sent_after_a_restart_and_only_once() {
    let (server, directory) = (Server::start(), tempfile::tempdir().unwrap());
    *server.response.lock().unwrap() = "451 4.3.0 later";
    let channel = server.channel(Duration::from_hours(1));
    let (mut notices, mut deliveries) = Notices::new(settings(directory.path()));
    for target in ["process:1@7", "process:2@7", "process:1@7"] {
        notices.notify(&notice(1000, "alice", target), [("owner", &channel)]);
    }
    let counts = results(&mut deliveries, 2);
    assert_eq!(counts, BTreeMap::from([("deferred", 2)]), "one of them replaced another");
    drop(notices);
    *server.response.lock().unwrap() = "250 OK";
    let channels = BTreeMap::from([("owner".to_owned(), channel.clone())]);
    let (mut notices, mut deliveries) = Notices::new(settings(directory.path()));
    notices.keep(&channels);
    let delivered =
        until("a delivery", || deliveries.try_recv().ok().filter(|it| it.outcome() == Delivered::Ok));
    assert_eq!((&*delivered.notice.about.0.id.0, &*delivered.notice.rule), ("process:2@7", "idle"));
    assert_eq!(until("the other", || deliveries.try_recv().ok()).outcome(), Delivered::Ok);
    drop(notices);
    let (mut notices, mut deliveries) = Notices::new(settings(directory.path()));
    notices.keep(&channels);
    notices.notify(&notice(1000, "alice", "process:3@7"), [("owner", &channel)]);
    notices.notify(&notice(1001, "bob", "process:3@7"), [("owner", &channel)]);
    let first = until("the mail of another", || deliveries.try_recv().ok());
    assert_eq!(first.notice.uid, Some(1001), "the time of the last message survives a restart");
    assert_eq!(server.messages("alice").len(), 1);
}

#[test]
fn latest_settings_of_a_channel_are_used() {
    let (old, new, directory) = (Server::start(), Server::start(), tempfile::tempdir().unwrap());
    let (mut notices, mut deliveries) = Notices::new(settings(directory.path()));
    let hour = Duration::from_hours(1);
    notices.notify(&notice(1000, "alice", "process:1@7"), [("owner", &old.channel(hour))]);
    notices.keep(&BTreeMap::from([("owner".to_owned(), new.channel(hour))]));
    assert_eq!(results(&mut deliveries, 1), BTreeMap::from([("ok", 1)]));
    assert_eq!([&old, &new].map(|server| server.messages("alice").len()), [0, 1]);
    // A channel of another kind has a thread of its own.
    let program = Channel::Exec(vec!["/bin/false".into()]);
    notices.keep(&BTreeMap::from([("owner".to_owned(), program.clone())]));
    notices.notify(&notice(1001, "bob", "process:1@7"), [("owner", &program)]);
    assert_eq!(results(&mut deliveries, 1), BTreeMap::from([("failed", 1)]));
    assert_eq!(new.messages("bob").len(), 0);
}

#[test]
fn server_is_tried_again_and_a_refusal_is_final() {
    let (server, directory) = (Server::start(), tempfile::tempdir().unwrap());
    let channel = server.channel(Duration::from_millis(100));
    let (mut notices, mut deliveries) = Notices::new(settings(directory.path()));
    *server.response.lock().unwrap() = "451 4.3.0 later";
    notices.notify(&notice(1000, "alice", "process:1@7"), [("owner", &channel)]);
    assert_eq!(results(&mut deliveries, 2), BTreeMap::from([("deferred", 2)]));
    *server.response.lock().unwrap() = "250 OK";
    until("the delivery", || deliveries.try_recv().ok().filter(|it| it.outcome() == Delivered::Ok));
    *server.response.lock().unwrap() = "550 5.1.1 nobody here";
    notices.notify(&notice(1000, "alice", "process:1@7"), [("owner", &channel)]);
    assert_eq!(results(&mut deliveries, 1), BTreeMap::from([("failed", 1)]));
    let mut unknown = Arc::unwrap_or_clone(notice(1000, "alice", "process:1@7"));
    unknown.uid = None;
    notices.notify(&Arc::new(unknown), [("owner", &channel)]);
    assert_eq!(results(&mut deliveries, 1), BTreeMap::from([("failed", 1)]), "nobody owns it");
}

/// What happens to the mail of a user must not depend on that of another.
#[test]
fn user_whose_mail_is_not_accepted_delays_nobody() {
    for response in ["451 4.2.2 mailbox full", "421 4.3.0 error", "nonsense", ""] {
        user_whose_recipient_gets_a_response_delays_nobody(response);
    }
}

fn user_whose_recipient_gets_a_response_delays_nobody(response: &'static str) {
    let (server, directory) = (Server::start(), tempfile::tempdir().unwrap());
    *server.refused.lock().unwrap() = Some(("alice", response));
    let channel = server.channel(Duration::from_hours(1));
    let (mut notices, mut deliveries) = Notices::new(settings(directory.path()));
    for n in 0..3 {
        notices.notify(&notice(1000, "alice", &format!("process:{n}@7")), [("owner", &channel)]);
        notices.notify(&notice(1001, "bob", &format!("process:{n}@7")), [("owner", &channel)]);
        notices.notify(&notice(999, "carol", &format!("process:{n}@7")), [("owner", &channel)]);
    }
    let mut ok = 0;
    until("the mail of the others", || {
        let next = deliveries.try_recv().ok()?;
        assert_eq!(next.outcome() == Delivered::Ok, next.notice.uid != Some(1000), "{response}");
        ok += usize::from(next.outcome() == Delivered::Ok);
        (ok == 6).then_some(())
    });
    assert_eq!(["alice", "bob", "carol"].map(|user| server.messages(user).len()), [0, 1, 1]);
}

#[test]
fn waiting_mail_is_limited() {
    let (server, directory) = (Server::start(), tempfile::tempdir().unwrap());
    *server.response.lock().unwrap() = "451 4.3.0 later";
    let (mut notices, mut deliveries) = Notices::new(settings(directory.path()));
    let channel = server.channel(Duration::from_hours(1));
    for n in 0..1200 {
        notices.notify(&notice(1000, "alice", &format!("process:{n}@7")), [("owner", &channel)]);
    }
    let dropped = |deliveries: &mut UnboundedReceiver<Delivery>| {
        deliveries.try_recv().ok().filter(|it| it.outcome() == Delivered::Dropped)
    };
    for _ in 0..200 {
        until("a dropped one", || dropped(&mut deliveries));
    }
}

/// The limit for all users is reached first by those with the most mail.
#[test]
fn mail_of_many_users_does_not_displace_that_of_another() {
    let mut outbox = Outbox::open(None);
    let mut dropped = Vec::new();
    let mut add = |uid, n: u32| {
        let mut report = |notice: Arc<Notice>, result: Result<(), (Delivered, String)>| {
            dropped.push((notice.uid, result.unwrap_err().0));
        };
        outbox.add(notice(uid, "user", &format!("process:{n}@7")), &mut report);
        std::mem::take(&mut dropped)
    };
    for n in 0..20_000 {
        assert!(add(1000 + n / 1000, n).is_empty());
    }
    assert_eq!(add(1019, 20_000), [(Some(1019), Delivered::Dropped)]);
    for n in 0..100 {
        let dropped = add(2000, n);
        assert!(matches!(dropped[..], [(Some(1000..1020), Delivered::Dropped)]), "{n}: {dropped:?}");
    }
}

/// A mail server that sends an endless line, and returns how much of it was read.
fn endless() -> (Server, Arc<Mutex<Option<usize>>>) {
    const MOST: usize = 256 << 20;
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let server = Server { port, received: Arc::default(), response: Arc::default(), refused: Arc::default() };
    let sent = Arc::new(Mutex::new(None));
    let shown = Arc::clone(&sent);
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let (piece, mut bytes) = ([b'2'; 4096], 0);
        while bytes < MOST && stream.write_all(&piece).is_ok() {
            bytes += piece.len();
        }
        *shown.lock().unwrap() = Some(bytes);
    });
    (server, sent)
}

#[test]
fn endless_line_of_a_hostile_server_is_not_read_to_its_end() {
    let ((server, sent), directory) = (endless(), tempfile::tempdir().unwrap());
    let (mut notices, mut deliveries) = Notices::new(settings(directory.path()));
    let channel = server.channel(Duration::from_hours(1));
    notices.notify(&notice(1000, "alice", "process:1@7"), [("owner", &channel)]);
    assert_eq!(results(&mut deliveries, 1), BTreeMap::from([("deferred", 1)]));
    let sent = until("the end of the connection", || *sent.lock().unwrap());
    // Buffers of the kernel hold some of it.
    assert!(sent < 64 << 20, "{sent}");
}

#[test]
fn hostile_names_add_no_header_and_no_recipient() {
    let (server, directory) = (Server::start(), tempfile::tempdir().unwrap());
    let channel = server.channel(Duration::from_millis(100));
    let (mut notices, mut deliveries) = Notices::new(settings(directory.path()));
    let target = "x\r\nBcc: eve@example.org\r\n\r\n\u{202e}\u{1b}[2J\r\n.\r\nMAIL FROM:<eve@example.org>";
    notices.notify(&notice(1000, "alice", target), [("owner", &channel)]);
    assert_eq!(results(&mut deliveries, 1), BTreeMap::from([("ok", 1)]));
    let message = &server.messages("alice")[0];
    let (head, body) = message.split_once("\r\n\r\n").unwrap();
    assert!(!head.lines().any(|line| line.starts_with("Bcc")), "{head}");
    assert!(!body.contains(['\u{202e}', '\u{1b}']), "{body}");
    assert_eq!(server.received.lock().unwrap().len(), 1);
    for user in ["alice>\r\nRCPT TO:<eve", "a b", "alice@example.org,eve", "", "\u{202e}"] {
        notices.notify(&notice(1001, user, "process:1@7"), [("owner", &channel)]);
        assert_eq!(results(&mut deliveries, 1), BTreeMap::from([("failed", 1)]), "{user:?}");
    }
    assert_eq!(server.received.lock().unwrap().len(), 1);
}

#[test]
fn templates_are_checked() {
    for (template, is_valid) in [
        ("GPU memory on {{ node }}", true),
        ("{% for notice in notices %}{{ notice.what }}: {{ notice.next }}{% endfor %}{{ omitted }}", true),
        ("{{ nodes }}", false),
        ("{{ notices[0].nothing }}", false),
        ("{% for %}", false),
        ("{{ node", false),
    ] {
        assert_eq!(message::check(template).is_ok(), is_valid, "{template}: {:?}", message::check(template));
    }
}

#[test]
fn documentation_shows_the_default_message() {
    let text = |text: &str| Some(text.to_owned());
    let part = Part {
        what: "your process (python3, pid 4711)".into(),
        short: "will be terminated in about 10m".into(),
        found: "it holds 40.0GiB of GPU memory; gpu_util is 0% (max 1%)".into(),
        since: text("2026-11-27T10:43:39Z (3h)"),
        next: "It will be terminated at about 2026-11-27T13:53:39Z".into(),
        keep: text("Use it again, so that what was observed changes."),
        rule: "idle".into(),
        ..Part::default()
    };
    let documentation = include_str!("../../../tests/reference/head.md");
    let variables = message::Variables::of(("gpu-07", "alice"), [&part].into_iter());
    let subject = message::subject(None, &variables).unwrap();
    let body = message::body(None, &variables).unwrap().replace("\r\n", "\n");
    for shown in [format!("Subject: {subject}\n\n"), body.trim_start().to_owned()] {
        assert!(documentation.contains(&shown), "{shown}");
    }
    let two = message::Variables::of(("gpu-07", "alice"), [&part, &part].into_iter());
    assert!(documentation.contains(&format!("`{}`", message::subject(None, &two).unwrap())));
}
