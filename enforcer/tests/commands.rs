//! Tests the output of the commands that query a daemon, over a real socket.

#![expect(
    clippy::disallowed_methods,
    clippy::expect_used,
    clippy::panic,
    reason = "a test writes files, and ends where it cannot go on"
)]

#[path = "made_up/mod.rs"]
mod made_up;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use bailiff_enforcer::commands::{Failure, pause, replay, status};
use bailiff_enforcer::control::{Question, may_change};
use bailiff_enforcer::flags::{Command, Flags, Replay};
use bailiff_enforcer::status::Status;
use bailiff_engine::engine::Now;
use bailiff_exposition::terminal::Colors;
use bailiff_lifecycle::control::{self, Answers, Limits, Peer, refusal};
use bailiff_lifecycle::exit::{Exit, Stop};
use bailiff_lifecycle::socket::Socket;
use clap::Parser;
use made_up::{full, named};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::sync::oneshot;

const NOW: Now = Now { wall: Duration::from_secs(1_700_000_000), boot: Duration::from_secs(3602) };

/// A fake daemon whose socket belongs to this group.
struct Daemon(u32);

impl Answers for Daemon {
    async fn answer(&self, peer: &Peer, question: Value) -> Value {
        let Ok(question) = serde_json::from_value::<Question>(question) else { return refusal("no such") };
        if question.changes() && !may_change(peer, self.0) {
            return refusal("root only");
        }
        match question {
            Question::Status => json!({"ok": true, "status": full()}),
            Question::Reload => json!({"ok": false, "error": "refused", "faults": ["rules.yaml:3:9: one"]}),
            Question::Pause { for_seconds: Some(7200), reason } if reason == "upgrade" => json!({"ok": true}),
            Question::Resume => json!({"ok": true}),
            other => refusal(&format!("{other:?}")),
        }
    }
}

struct Running {
    control: PathBuf,
    _stop: oneshot::Sender<()>,
    _directory: TempDir,
}

fn start() -> Running {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let control = directory.path().join("enforcer.sock");
    let socket = Socket::open(&control, "control").expect("the path is free");
    let group = socket.group().expect("the group exists");
    let (stop_sender, stop) = oneshot::channel::<()>();
    thread::spawn(move || {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().build().expect("the runtime starts");
        runtime.block_on(async move {
            tokio::select! {
                () = control::serve(socket, Arc::new(Daemon(group)), Limits::default()) => {}
                _ = stop => {}
            }
        });
    });
    Running { control, _stop: stop_sender, _directory: directory }
}

impl Running {
    fn flags(&self, flags: &[&str]) -> Command {
        let path = self.control.to_str().expect("the text is UTF-8");
        let all = [&["bailiff-enforcer"], flags, &["--control", path]].concat();
        Flags::try_parse_from(all).expect("the flags are valid").command
    }

    fn status(&self, flags: &[&str], columns: Option<usize>) -> String {
        let Command::Status(flags) = self.flags(&[&["status"], flags].concat()) else {
            panic!("the command must be `status`")
        };
        let mut out = Vec::new();
        status::run(&flags, NOW, (Colors::Plain, columns), &mut out).expect("the daemon responds");
        String::from_utf8(out).expect("the text is UTF-8")
    }

    fn pause(&self, flags: &[&str]) -> Result<String, Stop> {
        let Command::Pause(flags) = self.flags(&[&["pause"], flags].concat()) else {
            panic!("the command must be `pause`")
        };
        let mut out = Vec::new();
        pause::pause(&flags, &mut out)?;
        Ok(String::from_utf8(out).expect("the text is UTF-8"))
    }
}

#[test]
fn status_on_a_terminal_has_80_columns() {
    let text = start().status(&[], Some(80));
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    for part in [
        "gpu-7  bailiff-enforcer 0.1.0\n",
        "policy   /etc/bailiff/rules.yaml, abababababab, loaded 16 min 40 s ago\n",
        "         rules.yaml:3:9: no attribute is called \"gpu_utill\"; gpu_util is\n",
        "stream   /run/bailiff/exporter/stream.sock, snapshot 720, 2 s ago\n",
        "dry run  for all rules: --dry-run\n",
        "held     paused by an administrator, for 1 h 0 min more (by root: upgrade)\n",
        "breaker  mass, opened 0 s ago: 5 of 8 matched; resume closes it\n",
        "action   terminate by rule idle against workload:slurm:77, begun 0 s ago\n",
        "budget   actions in the last hour: 2 of 6 (the node), 2 of 3 (alice)\n",
        "\nidle  enforce workload   1     2    0    flag warning, terminate after 25m\n",
        "\nstuck enforce mps_server ?     ?    ?    ",
        "\nworkload:slurm:77 python3 alice idle terminate 300/360 held\n",
        "SINCE\ncritical idle process:41@98765 python3  alice 1 min 0 s ago\n",
        "\n10s ago idle terminate process:40@1234 released 40.0GiB\n",
    ] {
        assert!(text.contains(part), "{part}{text}");
    }
}

#[test]
fn status_of_a_daemon_without_data_is_complete() {
    let text = status::text(&Status::default(), NOW, (Colors::Plain, None));
    assert!(
        text.contains("none in force") && text.contains("no snapshot yet; down: not connected"),
        "{text}"
    );
}

#[test]
fn targets_are_never_truncated() {
    let mut status = named("a-user-with-a-long-name", "a-long-command");
    let name = "workload:tree:4194303@123456789012";
    status.actions[0].target = name.into();
    status.pending[0].target = name.into();
    status.flags[0].target = name.into();
    status.pending[0].rule = "a-rule-that-has-a-very-long-name-indeed".into();
    let rows = |columns| {
        let text = status::text(&status, NOW, (Colors::Plain, columns));
        let rows: Vec<String> = text.lines().filter(|row| row.contains(name)).map(str::to_owned).collect();
        assert_eq!(rows.len(), 3, "the tables must be pending, flags and actions: {text}");
        rows
    };
    assert!(rows(Some(80)).iter().all(|row| row.chars().count() <= 80));
    let whole = rows(None);
    assert!(whole.iter().all(|row| !row.contains('…')), "{whole:?}");
    assert!(whole[0].contains("a-rule-that-has-a-very-long-name-indeed"), "{whole:?}");
}

#[test]
fn names_are_escaped_on_a_terminal() {
    let status = named("\u{1b}[2J\u{202e}", "a\nb\r\u{7}");
    for colors in [Colors::Plain, Colors::Colour] {
        let text =
            status::text(&status, NOW, (colors, Some(80))).replace("\u{1b}[31m", "").replace("\u{1b}[1m", "");
        let text = text.replace("\u{1b}[0m", "");
        assert!(!text.contains(['\u{1b}', '\u{202e}', '\r', '\u{7}']), "{text}");
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    }
}

#[test]
fn json_has_every_field() {
    let text = start().status(&["--json"], None);
    assert_eq!(serde_json::from_str::<Status>(&text).expect("the text is JSON"), full());
}

#[test]
fn pause_and_resume_are_sent() {
    let running = start();
    let printed = running.pause(&["--for", "2h", "--reason", "upgrade"]).expect("root may");
    assert!(printed.starts_with("paused for 2 h 0 min: "), "{printed}");
    let refused = running.pause(&["--reason", "x"]).expect_err("the daemon refuses");
    assert!(matches!(&refused, Stop::Failed(error) if error.to_string().contains("for_seconds: None")));
    for time in ["soon", "0s"] {
        let refused = running.pause(&["--for", time]).expect_err("the duration is invalid");
        assert!(matches!(&refused, Stop::Usage(why) if why.starts_with(&format!("--for={time}"))));
    }
    let mut out = Vec::new();
    pause::resume(&running.control, &mut out).expect("root may");
    assert!(out.starts_with(b"resumed"));
}

/// Runs `replay` on a record.
fn replayed(record: &str) -> Result<Exit, Failure> {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let (rules, path) = (directory.path().join("rules.yaml"), directory.path().join("record"));
    let text = "version: 1\nrules:\n  - {name: idle, target: process, when: {gpu_util: {max: 1%}}, for: 5m, then: [{flag: info}]}\n";
    std::fs::write(&rules, text).expect("the file is writable");
    std::fs::write(&path, record).expect("the file is writable");
    let flags = Replay { record: path, rules, resume_after: None, json: false };
    replay::run(&flags, NOW.wall, &mut Vec::new())
}

#[test]
fn replay_without_snapshots_names_the_first_line() {
    for (record, why) in [
        ("\n{\"level\":\"info\"}\nversion: 1\n", "line 2: not a snapshot: missing field `version`"),
        ("version: 1\nrules: []\n", "line 1: not a snapshot: expected value"),
        ("", "the file is empty"),
    ] {
        let failure = replayed(record).expect_err("there is nothing to replay");
        assert_eq!(failure.exit(), Exit::Failed);
        assert!(failure.to_string().contains(why), "{failure}");
    }
}

#[test]
fn refused_file_exits_with_64() {
    let running = start();
    let mut out = Vec::new();
    assert_eq!(
        pause::reload(&running.control, Colors::Plain, &mut out).expect("the daemon responds"),
        Exit::Usage
    );
    assert!(String::from_utf8(out).expect("the text is UTF-8").ends_with("rules.yaml:3:9: one\n"));
    let error = pause::reload(Path::new("/nonexistent/x.sock"), Colors::Plain, &mut Vec::new())
        .expect_err("no daemon is running");
    assert!(error.to_string().contains("check that the daemon is running"), "{error}");
}

#[test]
fn check_prints_faults_as_data() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let file = directory.path().join("rules.yaml");
    std::fs::write(&file, "version: 1\nrules: [{name: a, target: procces, when: {orphaned: true}, for: 9m, then: [{flag: info}]}]\n")
        .expect("the file is writable");
    let flags = Flags::parse_from([Path::new("x"), "check".as_ref(), "--json".as_ref(), &file]);
    let Command::Check(flags) = flags.command else { panic!("{flags:?}") };
    let mut out = Vec::new();
    let exit = bailiff_enforcer::commands::check::run(&flags, Colors::Plain, &mut out)
        .expect("the output is writable");
    assert_eq!(exit, Exit::Usage);
    let report: Value = serde_json::from_slice(&out).expect("JSON");
    assert_eq!((&report[0]["file"], &report[0]["valid"]), (&json!(file), &json!(false)));
    let fault = &report[0]["faults"][0];
    assert_eq!(
        (&fault["severity"], &fault["line"], &fault["column"]),
        (&json!("error"), &json!(2), &json!(27))
    );
    assert_eq!(fault["help"], "did you mean `process`?");
}
