//! Tests actions and notifications through programs, control daemons, terminals and chat servers.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::time::{Duration, SystemTime};

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

use super::*;
use crate::actions::notices::{self, Delivered, Delivery, Notice, Notices};
use bailiff_engine::policy::webhook::{Format, Webhook};
use bailiff_engine::policy::{Address, Channel};
use bailiff_engine::verdict::Outcome;

pub(super) fn script(home: &Home, name: &str, text: &str) -> String {
    let path = home.0.path().join(name);
    fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
    std::process::Command::new("chmod").arg("755").arg(&path).status().unwrap();
    path.display().to_string()
}

#[test]
fn exec_program_receives_the_finding_and_nothing_else() {
    let home = Home::new();
    let holder = Holder::shell(&home, "echo ready; exec sleep 1000");
    let out = home.0.path().join("out").display().to_string();
    let program =
        script(&home, "program", &format!("cat > {out}.json; env > {out}.env; echo \"$@\" > {out}.args"));
    let action = Action::Exec(vec![program, "one".into()]);
    let report = home.executor().act(request(of_process(&holder), action), &mut Machine::default());
    assert_eq!(report.outcome, Outcome::Done, "{}", report.detail);
    let delivered: Value = serde_json::from_str(&fs::read_to_string(format!("{out}.json")).unwrap()).unwrap();
    assert_eq!(
        (&delivered["rule"], &delivered["target"]["members"][0]["pid"]),
        (&"idle".into(), &holder.pid().into())
    );
    assert_eq!(fs::read_to_string(format!("{out}.args")).unwrap(), "one\n");
    let env = fs::read_to_string(format!("{out}.env")).unwrap();
    let names: Vec<&str> =
        env.lines().filter_map(|line| line.split_once('=').map(|(name, _)| name)).collect();
    assert!(names.iter().all(|name| matches!(*name, "PATH" | "PWD" | "_" | "SHLVL" | "OLDPWD")), "{names:?}");
    assert_eq!(home.results(), ["begun", "done"]);
}

#[test]
fn a_program_that_fails_or_hangs_is_a_failure_and_is_ended_with_its_children() {
    let home = Home::new();
    let holder = Holder::shell(&home, "echo ready; exec sleep 1000");
    let pid = home.0.path().join("pid").display().to_string();
    let hanging = script(&home, "hangs", &format!("sleep 1000 & echo $! > {pid}; wait"));
    for (argv, why) in [
        (vec!["false".into()], "exit status"),
        (vec!["/nowhere".into()], "cannot run"),
        (vec![hanging], "within"),
    ] {
        let settings = ExecutorSettings { program: Duration::from_millis(300), ..home.settings() };
        let request = request(of_process(&holder), Action::Exec(argv));
        let report = home.executor_with(settings).act(request, &mut Machine::default());
        assert_eq!(report.outcome, Outcome::Failed);
        assert!(report.detail.contains(why), "{}", report.detail);
    }
    let child = fs::read_to_string(pid).unwrap().trim().parse().unwrap();
    until("the end of its child", || (!lives(child)).then_some(()));
}

/// Starts a process with the name of an MPS server, and creates a script as its control program.
fn mps(home: &Home, clients: &str) -> (Holder, ExecutorSettings) {
    let server = home.0.path().join("nvidia-cuda-mps-server");
    fs::copy("/bin/sleep", &server).unwrap();
    let mut command = Command::new("setsid");
    command.args([server.as_os_str(), "1000".as_ref()]).env("CUDA_MPS_PIPE_DIRECTORY", "/tmp/pipes");
    let holder = Holder(command.spawn().unwrap());
    until("its name", || {
        (proc_table().person(holder.pid()).unwrap()?.stat.comm == "nvidia-cuda-mps").then_some(())
    });
    let text = home.0.path().join("said").display().to_string();
    let text = format!(
        "read word pid; echo \"$word $pid $CUDA_MPS_PIPE_DIRECTORY\" >> {text}
case $word in get_client_list) {clients};; shutdown_server) kill $pid;; esac"
    );
    let control = script(home, "control", &text);
    (holder, ExecutorSettings { mps_control: control.into(), ..home.settings() })
}

fn shut_down(home: &Home, clients: &str) -> (ActionReport, bool) {
    let (mut server, settings) = mps(home, clients);
    let key = server.key();
    let server_subject =
        subject(Kind::MpsServer, &format!("mps_server:{}@{}", key.pid, key.start_ticks), &[key]);
    let report = home
        .executor_with(settings)
        .act(request(server_subject, Action::ShutdownMps), &mut Machine::default());
    (report, server.0.try_wait().unwrap().is_none())
}

#[test]
fn a_server_without_clients_is_shut_down_by_its_daemon() {
    let home = Home::new();
    let (report, lives) = shut_down(&home, ":");
    assert_eq!((report.outcome, lives), (Outcome::Done, false), "{}", report.detail);
    let text = fs::read_to_string(home.0.path().join("said")).unwrap();
    let words: Vec<&str> = text.split_ascii_whitespace().collect();
    assert_eq!(
        (words[0], words[2], words[3], words[5]),
        ("get_client_list", "/tmp/pipes", "shutdown_server", "/tmp/pipes")
    );
}

#[test]
fn a_server_with_clients_or_without_an_answer_lives() {
    for (clients, why) in [
        ("echo 4100", "has 1 clients"),
        ("echo 'Server not found'", "no such server"),
        ("echo 4100 and more", "invalid reply"),
        ("exec sleep 1000", "within 2s"),
        ("exit 1", "exit status: 1"),
    ] {
        let home = Home::new();
        let (report, lives) = shut_down(&home, clients);
        assert_eq!((report.outcome, lives), (Outcome::Refused, true), "{clients}: {}", report.detail);
        assert!(report.detail.contains(why), "{}", report.detail);
    }
}

#[test]
fn a_daemon_that_says_it_did_and_did_not_is_a_failure() {
    let home = Home::new();
    let (server, settings) = mps(&home, "exit 0");
    let control = script(&home, "liar", "exit 0");
    let settings =
        ExecutorSettings { mps_control: control.into(), verify: Duration::from_millis(200), ..settings };
    let subject = subject(Kind::MpsServer, "mps_server:1@2", &[server.key()]);
    let report =
        home.executor_with(settings).act(request(subject, Action::ShutdownMps), &mut Machine::default());
    assert_eq!(report.outcome, Outcome::Failed, "{}", report.detail);
    assert!(server.lives());
}

fn notice(uid: Option<u32>, text: &str) -> Arc<Notice> {
    Arc::new(Notice {
        text: text.into(),
        node: "n1".into(),
        rule: "idle".into(),
        step: "notify".into(),
        target: "process:4100@7".into(),
        user: Some("alice".into()),
        uid,
        gpus: vec!["GPU-1".into()],
        members: Vec::new(),
        evidence: None,
        when: SystemTime::UNIX_EPOCH,
        part: notices::Part::default(),
        outcome: None,
        about: (Arc::new(subject(Kind::Process, "process:4100@7", &[])), Mode::Enforce),
    })
}

/// Returns the outcome of the next notification on this channel; drops the outcomes of other channels.
fn delivered(deliveries: &mut UnboundedReceiver<Delivery>, channel: &str) -> Delivered {
    let next = |deliveries: &mut UnboundedReceiver<Delivery>| {
        deliveries.try_recv().ok().filter(|delivery| delivery.channel == channel)
    };
    until("a delivery", || next(deliveries)).outcome()
}

/// Creates a terminal of a user; the mode determines whether it accepts messages.
fn terminal(uid: u32, mode: u32) -> OwnedFd {
    let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&ours).unwrap();
    unlockpt(&ours).unwrap();
    let path = PathBuf::from(ptsname(&ours, Vec::new()).unwrap().into_string().unwrap());
    std::os::unix::fs::chown(&path, Some(uid), None).unwrap();
    fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(mode)).unwrap();
    ours
}

#[test]
fn the_owner_reads_it_on_a_terminal_and_no_name_drives_it() {
    let (mut notices, mut deliveries) = Notices::new(notices::NoticeSettings::default());
    let open = terminal(54321, 0o620);
    let text = "\u{1b}[2J\u{9b}31m\u{7}\u{202e}evil will be ended in about 25 min";
    notices.notify(&notice(Some(54321), text), [("owner", &Channel::Tty)]);
    assert_eq!(delivered(&mut deliveries, "owner"), Delivered::Ok);
    let mut text = vec![0; 4096];
    let length = rustix::io::read(&open, &mut text).unwrap();
    let text = String::from_utf8(text[..length].to_vec()).unwrap();
    assert!(
        text.contains("\\u{1b}[2J\\u{9b}31m\\u{7}\\u{202e}evil will be ended in about 25 min"),
        "{text:?}"
    );
    assert!(text.bytes().all(|byte| matches!(byte, b' '..=b'~' | b'\r' | b'\n')), "{text:?}");
}

/// Runs as the user in the first argument, and writes the name of a terminal that does not finish opening.
const HANGING_TERMINAL: &str = "import ctypes, fcntl, mmap, os, struct, sys
uid, libc = int(sys.argv[1]), ctypes.CDLL(None)
USERFAULTFD, UFFDIO_API, UFFDIO_REGISTER, TIOCSETD = 323, 0xc018aa3f, 0xc020aa00, 0x5423
faults = libc.syscall(USERFAULTFD, os.O_CLOEXEC)
os.setgid(uid)
os.setuid(uid)
near, far = os.openpty()
os.fchmod(far, 0o620)
for _ in range(20):
    if os.fork() == 0:
        libc.prctl(1, 9)
        while True:
            try: fcntl.ioctl(far, TIOCSETD, struct.pack('i', 0))
            except OSError: pass
page = mmap.mmap(-1, 4096)
at = ctypes.addressof(ctypes.c_char.from_buffer(page))
fcntl.ioctl(faults, UFFDIO_API, struct.pack('QQQ', 0xaa, 0, 0))
fcntl.ioctl(faults, UFFDIO_REGISTER, struct.pack('QQQQ', at, 4096, 1, 0))
print('ready', flush=True)
os.write(far, page)";

#[test]
fn terminal_that_does_not_open_delays_no_notification_of_another_user() {
    let mut python = std::process::Command::new("python3");
    python.args(["-c", HANGING_TERMINAL, "54325"]).stdout(std::process::Stdio::piped());
    let mut hanging = python.spawn().unwrap();
    hanging.stdout.as_mut().unwrap().read_exact(&mut [0; 5]).unwrap();
    let pid = hanging.id();
    let blocks = |pid: &str| fs::read_to_string(format!("/proc/{pid}/wchan")).unwrap_or_default();
    let children = || fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
    let waits = || children().split_whitespace().any(|child| blocks(child).contains("tty_ldisc_lock"));
    let is_blocked = || blocks(&pid.to_string()).contains("userfault") && waits();
    until("the terminal does not open", || is_blocked().then_some(()));
    let open = terminal(54326, 0o620);
    let (mut notices, mut deliveries) = Notices::new(notices::NoticeSettings::default());
    for uid in [54325, 54325, 54326] {
        notices.notify(&notice(Some(uid), "x"), [("owner", &Channel::Tty)]);
    }
    let results = [(); 3].map(|()| until("a delivery", || deliveries.try_recv().ok()).result);
    hanging.kill().unwrap();
    hanging.wait().unwrap();
    let late = Err((Delivered::Failed, "the owner's terminals do not respond".to_owned()));
    assert_eq!(results, [late.clone(), late, Ok(())]);
    drop(open);
}

#[test]
fn user_without_terminal_or_with_mesg_n_is_not_notified() {
    let closed = terminal(54322, 0o600);
    for uid in [Some(54322), Some(54323), None] {
        let (mut notices, mut deliveries) = Notices::new(notices::NoticeSettings::default());
        notices.notify(&notice(uid, "x"), [("owner", &Channel::Tty)]);
        let delivery = until("what came of it", || deliveries.try_recv().ok());
        assert_eq!((delivery.channel.as_str(), delivery.outcome()), ("owner", Delivered::Failed), "{uid:?}");
    }
    drop(closed);
}

/// Sends these responses, one per connection; the thread returns the requests.
fn serve(answers: Vec<&'static str>) -> (String, std::thread::JoinHandle<Vec<String>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/secret-path", listener.local_addr().unwrap());
    let served = std::thread::spawn(move || {
        let each = answers.into_iter().map(|answer| answer_one(listener.accept().unwrap().0, answer));
        each.collect()
    });
    (url, served)
}

fn answer_one(mut stream: TcpStream, answer: &str) -> String {
    let mut request = Vec::new();
    let mut piece = [0; 4096];
    loop {
        let read = stream.read(&mut piece).unwrap();
        request.extend_from_slice(&piece[..read]);
        let text = String::from_utf8_lossy(&request).into_owned();
        let wanted = text
            .to_ascii_lowercase()
            .split_once("content-length: ")
            .and_then(|(_, rest)| rest.lines().next()?.parse::<usize>().ok());
        let body = text.split_once("\r\n\r\n").map(|(_, body)| body.len());
        if read == 0 || (wanted.is_some() && body >= wanted) {
            write!(stream, "HTTP/1.1 {answer}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n").unwrap();
            return text;
        }
    }
}

fn webhook(url: &str) -> Channel {
    webhook_at(Address::Url(url.into()))
}

fn webhook_at(address: Address) -> Channel {
    Channel::Webhook(Webhook { address, format: Format::Json, body: None, routing_key_file: None })
}

#[test]
fn webhook_receives_json_that_mentions_no_user() {
    let (url, served) = serve(vec!["200 OK"]);
    let home = Home::new();
    let file = home.0.path().join("url");
    fs::write(&file, format!("{url}\nanother line\n")).unwrap();
    let (mut notices, mut deliveries) = Notices::new(notices::NoticeSettings::default());
    let channel = webhook_at(Address::File(file));
    notices.notify(&notice(Some(1), "<!channel> @here \u{202e}\nit will be ended"), [("ops", &channel)]);
    assert_eq!(delivered(&mut deliveries, "ops"), Delivered::Ok);
    let request = served.join().unwrap().pop().unwrap();
    assert!(request.starts_with("POST /secret-path HTTP/1.1\r\n"), "{request}");
    let body: Value = serde_json::from_str(request.split_once("\r\n\r\n").unwrap().1).unwrap();
    assert_eq!(body["text"], "‹!channel› ＠here \\u{202e}\\nit will be ended");
    assert_eq!(
        (&body["rule"], &body["user"], &body["when"]),
        (&"idle".into(), &"alice".into(), &"1970-01-01T00:00:00.000Z".into())
    );
}

#[test]
fn a_webhook_is_tried_again_where_that_may_help() {
    let cases = [
        (vec!["500 Oops", "503 Later", "200 OK"], Delivered::Ok),
        (vec!["500 Oops", "500 Oops", "500 Oops"], Delivered::Failed),
        (vec!["404 Not Found"], Delivered::Failed),
        (vec!["302 Found\r\nlocation: http://127.0.0.1:1/"], Delivered::Failed),
    ];
    for (answers, expected) in cases {
        let (url, served) = serve(answers.clone());
        let (mut notices, mut deliveries) = Notices::new(notices::NoticeSettings::default());
        notices.notify(&notice(None, "x"), [("ops", &webhook(&url))]);
        assert_eq!(delivered(&mut deliveries, "ops"), expected, "{answers:?}");
        assert_eq!(served.join().unwrap().len(), answers.len());
    }
}

#[test]
fn silent_webhook_server_delays_nothing_and_its_queue_is_bounded() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    let settings =
        notices::NoticeSettings { webhook: Duration::from_secs(1), ..notices::NoticeSettings::default() };
    let (mut notices, mut deliveries) = Notices::new(settings);
    let began = Instant::now();
    for _ in 0..100 {
        notices.notify(&notice(None, "x"), [("ops", &webhook(&url))]);
    }
    notices.notify(&notice(Some(7), "x"), [("ops", &webhook(&url))]);
    assert!(began.elapsed() < Duration::from_millis(200), "notifying does not wait");
    let dropped = std::iter::from_fn(|| deliveries.try_recv().ok());
    let dropped: Vec<_> = dropped.filter(|delivery| delivery.outcome() == Delivered::Dropped).collect();
    assert!(dropped.len() >= 35, "{}", dropped.len());
    assert!(dropped.iter().all(|delivery| delivery.notice.uid.is_none()), "another user has own places");
    let program = Channel::Exec(vec!["/bin/true".to_owned()]);
    notices.notify(&notice(None, "x"), [("pager", &program)]);
    assert_eq!(delivered(&mut deliveries, "pager"), Delivered::Ok, "nor any other channel");
    assert_eq!(delivered(&mut deliveries, "ops"), Delivered::Failed);
    drop(notices);
}

#[test]
fn a_webhook_without_an_address_or_with_a_false_certificate_fails() {
    let home = Home::new();
    let plain = TcpListener::bind("127.0.0.1:0").unwrap();
    let tls = format!("https://{}/", plain.local_addr().unwrap());
    let served = std::thread::spawn(move || {
        let mut stream = plain.accept().unwrap().0;
        let _ = stream.read(&mut [0; 64]);
        let _ = stream.write_all(b"this is no TLS");
    });
    let channels =
        [webhook_at(Address::File(home.0.path().join("none"))), webhook("file:///etc/passwd"), webhook(&tls)];
    for channel in channels {
        let (mut notices, mut deliveries) = Notices::new(notices::NoticeSettings::default());
        notices.notify(&notice(None, "x"), [("ops", &channel)]);
        assert_eq!(delivered(&mut deliveries, "ops"), Delivered::Failed, "{channel:?}");
    }
    served.join().unwrap();
}

#[test]
fn exec_channel_receives_the_notice() {
    let home = Home::new();
    let out = home.0.path().join("told").display().to_string();
    let channel = Channel::Exec(vec![script(&home, "tell", &format!("cat > {out}"))]);
    let (mut notices, mut deliveries) = Notices::new(notices::NoticeSettings::default());
    notices.notify(&notice(None, "$(touch /tmp/x) `x`"), [("pager", &channel)]);
    assert_eq!(delivered(&mut deliveries, "pager"), Delivered::Ok);
    let body: Value = serde_json::from_str(&fs::read_to_string(out).unwrap()).unwrap();
    assert_eq!(body["text"], "$(touch /tmp/x) `x`");
}

/// Creates a private certificate authority, and a server certificate that it signs.
const CERTIFY: &str =
    "new() { openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 \"$@\"; }
    new -subj /CN=ours -keyout ca.key -out ca.pem &&
    new -subj /CN=localhost -CA ca.pem -CAkey ca.key -addext basicConstraints=critical,CA:FALSE \
        -addext subjectAltName=IP:127.0.0.1 -keyout key.pem -out cert.pem";

/// Answers POST requests, and prints its port.
const TLS_SERVER: &str = "import http.server, ssl
class Answer(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        self.rfile.read(int(self.headers['content-length']))
        self.send_response(200)
        self.end_headers()
server = http.server.HTTPServer(('127.0.0.1', 0), Answer)
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain('cert.pem', 'key.pem')
server.socket = context.wrap_socket(server.socket, server_side=True)
print(server.server_port, flush=True)
while True:
    server.handle_request()";

#[test]
fn a_certificate_is_believed_where_the_system_trusts_it_and_nowhere_else() {
    let home = Home::new();
    let certified =
        Command::new("/bin/sh").args(["-c", CERTIFY]).current_dir(home.0.path()).output().unwrap();
    assert!(certified.status.success(), "{}", String::from_utf8_lossy(&certified.stderr));
    let mut command = Command::new("/usr/bin/python3");
    let command = command.args(["-c", TLS_SERVER]).current_dir(home.0.path()).stderr(Stdio::null());
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut port = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut port).unwrap();
    let server = Holder(child);
    let url = format!("https://127.0.0.1:{}/", port.trim());
    for (trusted, expected) in [(home.0.path().join("ca.pem"), "Ok"), (home.device(), "Failed")] {
        let test = format!("{}::what_a_webhook_of_tls_gives", module_path!().split_once("::").unwrap().1);
        let output = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "--ignored", "--nocapture", &test])
            .env("SSL_CERT_FILE", trusted)
            .env("BAILIFF_TEST_URL", &url)
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(text.contains(&format!("delivery: {expected}")), "{text}");
    }
    drop(server);
}

#[test]
#[ignore = "run with the system's trust set by another"]
fn what_a_webhook_of_tls_gives() {
    let url = std::env::var("BAILIFF_TEST_URL").unwrap();
    let (mut notices, mut deliveries) = Notices::new(notices::NoticeSettings::default());
    notices.notify(&notice(None, "x"), [("ops", &webhook(&url))]);
    println!("delivery: {:?}", delivered(&mut deliveries, "ops"));
}
