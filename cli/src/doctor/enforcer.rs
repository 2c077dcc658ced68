//! The enforcer: whether it responds, whether it withholds actions, and whether its rules are valid.

use std::io::ErrorKind;

use bailiff_lifecycle::control::query_within;
use bailiff_lifecycle::file;
use bailiff_lifecycle::socket::connect;
use serde_json::{Value, json};

use super::Doctor;
use super::check::Check;
use super::child;
use crate::output::joined;

const NAME: &str = "enforcer";
const RULES: &str = "rules";
/// Maximum number of error lines of a rules file that are shown.
const MAX_LINES: usize = 3;
/// The limit of nested cgroups of users' sessions, and its highest recommended value.
const MAX_DEPTH: &str = "/sys/fs/cgroup/user.slice/cgroup.max.depth";
const MOST_LEVELS: u32 = 64;

/// Checks the status that the control socket reports.
pub(super) fn checks(flags: &Doctor) -> Vec<Check> {
    let path = flags.control.display();
    let fail = |text: String, hint: &str| vec![Check::fail(NAME, text, hint)];
    if let Err(error) = connect(&flags.control, flags.deadline) {
        return match error.kind() {
            ErrorKind::NotFound | ErrorKind::ConnectionRefused => {
                let hint = "to enforce rules, start it: systemctl start bailiff-enforcer";
                vec![Check::skip(NAME, format!("not running: no process listens on {path}"), Some(hint))]
            }
            ErrorKind::PermissionDenied => {
                let hint = format!("use sudo, or join the socket's group: ls -l {path}");
                vec![Check::skip(NAME, format!("this user has no permission to use {path}"), Some(&hint))]
            }
            ErrorKind::WouldBlock => {
                let hint = "check journalctl -u bailiff-enforcer, and restart it";
                fail(format!("{path} does not accept connections"), hint)
            }
            _ => fail(format!("{path}: {error}"), "check journalctl -u bailiff-enforcer"),
        };
    }
    match query_within(&flags.control, &json!({"command": "status"}), flags.deadline) {
        Ok(answer) if answer["ok"] == true => {
            // The file of the host, also in a container that sees the host's processes.
            let file_of_host = flags.machine.procfs.join("1/root").join(MAX_DEPTH.trim_start_matches('/'));
            let depth = file::first_line(&file_of_host, 16).ok().flatten();
            of_status(&answer["status"]).into_iter().chain(of_depth(depth.as_deref())).collect()
        }
        Ok(answer) => {
            let why = answer["error"].as_str().unwrap_or("unknown error").to_owned();
            fail(format!("the enforcer refused the request: {why}"), "use sudo, or join the socket's group")
        }
        Err(error) => fail(format!("{error:#}"), "check journalctl -u bailiff-enforcer, and restart it"),
    }
}

/// Checks a status, as printed by `bailiff-enforcer status --json`.
fn of_status(status: &Value) -> Vec<Check> {
    let mut checks = vec![stream(status)];
    if status["policy"]["last"] == "refused" {
        let fault = status["policy"]["faults"].get(0).map(text).unwrap_or_default();
        let hint = format!("run bailiff-enforcer check {}", text(&status["policy"]["path"]));
        checks.push(Check::fail(NAME, format!("the rules file was not loaded: {fault}"), hint));
    }
    if status["cap"]["mode"] == "dry-run" {
        let why = text(&status["cap"]["why"]);
        checks.push(Check::warn(
            NAME,
            format!("dry run for all rules, including rules in enforce mode: {why}"),
            "run bailiff-enforcer status",
        ));
    }
    // These holds end by themselves a few intervals after a start or a reload.
    let is_transient = |hold: &&Value| hold["hold"] == "started" || hold["hold"] == "reloaded";
    for hold in list(status, "holds").iter().filter(|hold| !is_transient(hold)) {
        let detail = hold["detail"].as_str().filter(|detail| !detail.is_empty());
        let detail = detail.map(|detail| format!(": {detail}")).unwrap_or_default();
        let text =
            format!("destructive steps are withheld ({}{detail})", text(&hold["hold"]).replace('_', " "));
        checks.push(Check::warn(
            NAME,
            text,
            "run bailiff-enforcer status; to end a pause, run bailiff-enforcer resume",
        ));
    }
    for open in list(status, "breakers") {
        let text = format!("the breaker {} is open: {}", text(&open["breaker"]), text(&open["detail"]));
        checks.push(Check::warn(NAME, text, "find the cause, then run bailiff-enforcer resume"));
    }
    checks
}

/// Warns if users can nest cgroups very deeply, because reads of `/proc/PID/cgroup` then delay scans and actions.
fn of_depth(limit: Option<&str>) -> Option<Check> {
    let is_deep = |limit: &&str| !limit.parse().is_ok_and(|limit: u32| limit <= MOST_LEVELS);
    limit.filter(is_deep).map(|limit| {
        Check::warn(
            NAME,
            format!("users can nest cgroups so deeply that they delay or prevent actions ({MAX_DEPTH}: {limit})"),
            format!("add to a file in /etc/tmpfiles.d: w {MAX_DEPTH} - - - - {MOST_LEVELS}; then systemd-tmpfiles --create"),
        )
    })
}

/// Checks that rules are evaluated.
fn stream(status: &Value) -> Check {
    let stream = &status["stream"];
    if stream["connected"] != true {
        let why = text(&stream["trouble"]);
        let hint =
            "start bailiff-exporter --stream=PATH, and bailiff-enforcer run --stream=PATH --stream.user=USER";
        return Check::fail(NAME, format!("no exporter stream, so rules are not evaluated: {why}"), hint);
    }
    let rules = list(status, "rules");
    let enforcing = rules.iter().filter(|rule| rule["mode"] == "enforce").count();
    let (version, rules) = (text(&status["version"]), rules.len());
    Check::ok(NAME, format!("{version}, {rules} rules, {enforcing} of them in enforce mode"))
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or("unknown").to_owned()
}

fn list<'a>(status: &'a Value, name: &str) -> &'a [Value] {
    status[name].as_array().map(Vec::as_slice).unwrap_or_default()
}

/// Checks the rules file with `bailiff-enforcer check`.
pub(super) fn rules(flags: &Doctor) -> Check {
    let path = flags.rules.display();
    if !flags.rules.exists() {
        return Check::skip(RULES, format!("{path} does not exist"), None);
    }
    let Some(program) = child::find_program("bailiff-enforcer") else {
        return Check::skip(RULES, "not checked, because bailiff-enforcer is not installed", None);
    };
    let name = flags.rules.display().to_string();
    match child::output(&program, &["check", &name], flags.deadline) {
        Ok(output) if output.status.success() => Check::ok(RULES, format!("{path} is valid")),
        Ok(output) => {
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
            let text = joined(lines.take(MAX_LINES), " ");
            Check::fail(RULES, format!("{path}: {text}"), format!("run bailiff-enforcer check {path}"))
        }
        Err(why) => {
            Check::fail(RULES, format!("bailiff-enforcer check: {why}"), "reinstall bailiff-enforcer")
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;
    use std::time::Duration;

    use clap::Parser;

    use super::super::check::State;
    use super::*;

    #[derive(Parser)]
    struct Flags {
        #[command(flatten)]
        doctor: Doctor,
    }

    #[test]
    fn enforcer_that_accepts_no_connection_is_not_waited_for() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("control.sock");
        let _listener = UnixListener::bind(&path).unwrap();
        let short = Duration::from_millis(20);
        let mut clients = Vec::new();
        while let Ok(client) = connect(&path, short) {
            clients.push(client);
        }
        let control = path.to_str().unwrap();
        let flags = Flags::parse_from(["doctor", "--deadline", "20ms", "--control", control]).doctor;
        let found = checks(&flags).remove(0);
        let text = format!("{control} does not accept connections");
        assert_eq!((found.state, found.text), (State::Fail, text));
    }

    #[test]
    fn deeply_nested_cgroups_of_users_are_reported() {
        let is_reported = |limit| of_depth(limit).is_some();
        assert_eq!([None, Some("64"), Some("65"), Some("max")].map(is_reported), [false, false, true, true]);
    }

    #[test]
    fn status_with_holds_and_breakers_is_reported() {
        let healthy = json!({
            "version": "0.1.0", "stream": {"connected": true}, "policy": {"last": "applied", "path": "r.yaml"},
            "cap": {"mode": "none"}, "rules": [{"mode": "enforce"}, {"mode": "dry-run"}], "holds": [], "breakers": [],
        });
        assert_eq!(of_status(&healthy), [Check::ok(NAME, "0.1.0, 2 rules, 1 of them in enforce mode")]);
        let mut fresh = healthy.clone();
        fresh["holds"] = json!([{"hold": "started", "detail": ""}]);
        assert_eq!(of_status(&fresh), of_status(&healthy));
        let cases: [(&str, Value, State, &str); 5] = [
            (
                "stream",
                json!({"connected": false, "trouble": "connection refused"}),
                State::Fail,
                "connection refused",
            ),
            (
                "policy",
                json!({"last": "refused", "faults": ["3:1: no"], "path": "r"}),
                State::Fail,
                "3:1: no",
            ),
            ("cap", json!({"mode": "dry-run", "why": "--dry-run"}), State::Warn, "--dry-run"),
            ("holds", json!([{"hold": "paused", "detail": "by root"}]), State::Warn, "(paused: by root)"),
            (
                "breakers",
                json!([{"breaker": "mass", "detail": "5 of 6"}]),
                State::Warn,
                "mass is open: 5 of 6",
            ),
        ];
        for (part, value, state, expected) in cases {
            let mut status = healthy.clone();
            status[part] = value;
            let found = of_status(&status).into_iter().find(|check| check.state != State::Ok).expect(part);
            assert!(found.state == state && found.text.contains(expected), "{part}: {found:?}");
        }
    }
}
