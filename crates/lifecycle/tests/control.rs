//! Tests the control protocol on a real socket: identity of clients, refusals, and timeouts.

#![expect(clippy::expect_used, reason = "a test that cannot continue fails")]

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use bailiff_lifecycle::control::{self, Answers, Limits, Peer, query};
use bailiff_lifecycle::socket::Socket;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::sync::oneshot;

const SHORT: Duration = Duration::from_millis(50);
const LONG: Duration = Duration::from_mins(10);
const PATIENT: Limits = Limits { clients: 16, clients_of_user: 16, client: LONG, answer: LONG };

/// Responds with the user and the request. The request `hang` gets no response.
struct Echo;

impl Answers for Echo {
    async fn answer(&self, peer: &Peer, question: Value) -> Value {
        if question.get("hang").is_some() {
            std::future::pending::<()>().await;
        }
        json!({"ok": true, "uid": peer.uid, "gid": peer.gid, "pid": peer.pid, "asked": question})
    }
}

struct Running {
    path: PathBuf,
    shutdown: oneshot::Sender<()>,
    server: JoinHandle<()>,
    _directory: TempDir,
}

fn start(limits: Limits) -> Running {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let path = directory.path().join("control.sock");
    let socket = Socket::open(&path, "control").expect("the path is free");
    let (shutdown, receiver) = oneshot::channel::<()>();
    let server = thread::spawn(move || {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().build().expect("the runtime starts");
        runtime.block_on(async move {
            tokio::select! {
                () = control::serve(socket, Arc::new(Echo), limits) => {}
                _ = receiver => {}
            }
        });
    });
    Running { path, shutdown, server, _directory: directory }
}

impl Running {
    fn connect(&self) -> UnixStream {
        UnixStream::connect(&self.path).expect("the server listens")
    }

    /// Returns the responses to these bytes, until the server closes the connection or the client
    /// has sent everything.
    fn say(&self, bytes: &[u8]) -> Vec<Value> {
        let mut stream = self.connect();
        // The server may close the connection before it has read everything.
        let _ = stream.write_all(bytes);
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let lines = BufReader::new(stream).lines().map_while(Result::ok);
        lines.map(|line| serde_json::from_str(&line).expect("a response is JSON")).collect()
    }
}

#[test]
fn client_is_identified_by_the_kernel() {
    let running = start(PATIENT);
    let answer = query(&running.path, &json!({"command": "status"})).expect("the server responds");
    let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    assert_eq!(answer["uid"], uid);
    assert_eq!(answer["gid"], gid);
    assert_eq!(answer["pid"], std::process::id());
    assert_eq!(answer["asked"], json!({"command": "status"}));
    running.shutdown.send(()).expect("the server is running");
    running.server.join().expect("the thread does not panic");
    assert!(!running.path.exists(), "the file is removed with its server");
}

#[test]
fn several_questions_on_one_connection() {
    let running = start(PATIENT);
    let answers = running.say(b"{\"a\":1}\nnonsense\n[]\n{\"b\":\"\\n\"}");
    let allowed: Vec<&Value> = answers.iter().map(|answer| &answer["ok"]).collect();
    assert_eq!(allowed, [true, false, false, true], "{answers:?}");
    assert_eq!(answers[3]["asked"]["b"], "\n", "a line break in a value is escaped");
}

#[test]
fn too_much_is_refused() {
    let running = start(PATIENT);
    let answers = running.say(&vec![b' '; 70 * 1024]);
    assert!(answers.is_empty() || answers[0]["error"] == "the request exceeds 64 KiB", "{answers:?}");
    let long = format!("{{\"a\":\"{}\"}}", "x".repeat(60 * 1024));
    assert_eq!(running.say(long.as_bytes())[0]["ok"], true);
}

#[test]
fn clients_that_all_wait_for_answers_leave_no_place() {
    let running = start(Limits { clients: 1, ..PATIENT });
    let refused = loop {
        // The first client can be replaced until its request has been read.
        let mut first = running.connect();
        first.write_all(b"{\"hang\":1}\n").expect("the connection is open");
        if let Some(answer) = running.say(b"{}").pop().filter(|answer| answer["ok"] == false) {
            break answer;
        }
    };
    assert_eq!(refused["error"], "too many clients; try again");
}

#[test]
fn clients_that_say_nothing_give_way() {
    let running = start(Limits { clients: 2, ..PATIENT });
    let mut silent: Vec<UnixStream> = (0..5).map(|_| running.connect()).collect();
    assert_eq!(running.say(b"{}")[0]["ok"], true);
    assert_eq!(silent[0].read(&mut [0; 8]).expect("the connection is closed, not reset"), 0);
}

#[test]
fn every_client_has_a_deadline() {
    let running = start(Limits { client: SHORT, answer: SHORT, ..PATIENT });
    let mut silent = running.connect();
    assert_eq!(silent.read(&mut [0; 8]).expect("the connection is closed, not reset"), 0);
    let answer = query(&running.path, &json!({"hang": true})).expect("the server responds");
    assert_eq!(answer, json!({"ok": false, "error": "the request was not handled in time"}));
}
