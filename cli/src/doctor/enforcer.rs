//! The enforcer: whether it answers, what it withholds, and whether its rules make sense.

use std::io::ErrorKind;
use std::os::unix::net::UnixStream;

use bailiff_lifecycle::control::query_within;
use serde_json::{Value, json};

use super::check::Check;
use super::child;
use super::flags::Doctor;

const NAME: &str = "enforcer";
const RULES: &str = "rules";
/// Of a file's faults so many lines are told.
const MOST_LINES: usize = 3;

/// What its control socket answers.
pub(super) fn checks(flags: &Doctor) -> Vec<Check> {
    let path = flags.control.display();
    if let Err(error) = UnixStream::connect(&flags.control) {
        return vec![match error.kind() {
            ErrorKind::NotFound | ErrorKind::ConnectionRefused => {
                let hint = "bailiff-enforcer run, if anything should be ended by rules";
                Check::skip(NAME, format!("nobody listens on {path}"), Some(hint))
            }
            ErrorKind::PermissionDenied => {
                let hint = format!("sudo; or be in the socket's group: ls -l {path}");
                Check::skip(NAME, format!("{path} is not for us to ask"), Some(&hint))
            }
            _ => Check::fail(NAME, format!("{path}: {error}"), "journalctl -u bailiff-enforcer"),
        }];
    }
    match query_within(&flags.control, &json!({"command": "status"}), flags.deadline) {
        Ok(answer) if answer["ok"] == true => of_status(&answer["status"]),
        Ok(answer) => {
            let why = answer["error"].as_str().unwrap_or("and not told why").to_owned();
            vec![Check::fail(
                NAME,
                format!("it refuses to answer: {why}"),
                "sudo; or be in the socket's group",
            )]
        }
        Err(error) => {
            vec![Check::fail(NAME, format!("{error:#}"), "journalctl -u bailiff-enforcer; restart it")]
        }
    }
}

/// `status` is what `bailiff-enforcer status --json` prints.
fn of_status(status: &Value) -> Vec<Check> {
    let text = |value: &Value| value.as_str().unwrap_or("unknown").to_owned();
    let empty = Vec::new();
    let list = |name: &str| status[name].as_array().unwrap_or(&empty);
    let mut checks = Vec::new();
    if status["stream"]["connected"] == true {
        let enforcing = list("rules").iter().filter(|rule| rule["mode"] == "enforce").count();
        let (version, rules) = (text(&status["version"]), list("rules").len());
        checks.push(Check::ok(NAME, format!("{version}, {rules} rules, of which {enforcing} may act")));
    } else {
        let why = text(&status["stream"]["trouble"]);
        let hint =
            "bailiff-exporter --stream=PATH, and bailiff-enforcer run --stream=PATH --stream.user=WHOSE";
        checks.push(Check::fail(NAME, format!("it reads no stream, and so judges nothing: {why}"), hint));
    }
    if status["policy"]["last"] == "refused" {
        let fault = status["policy"]["faults"].get(0).map(&text).unwrap_or_default();
        let hint = format!("bailiff-enforcer check {}", text(&status["policy"]["path"]));
        checks.push(Check::fail(NAME, format!("its rules file was not loaded: {fault}"), hint));
    }
    if status["cap"]["mode"] == "dry-run" {
        let why = text(&status["cap"]["why"]);
        checks.push(Check::warn(
            NAME,
            format!("it only watches, whatever its rules say: {why}"),
            "bailiff-enforcer status",
        ));
    }
    // What passes by itself, a few intervals after a start or a reload, is nothing to look at.
    let passes = |held: &&Value| held["hold"] == "started" || held["hold"] == "reloaded";
    for held in list("holds").iter().filter(|held| !passes(held)) {
        let detail = held["detail"].as_str().filter(|detail| !detail.is_empty());
        let detail = detail.map(|detail| format!(": {detail}")).unwrap_or_default();
        let what =
            format!("it does nothing that harms now ({}{detail})", text(&held["hold"]).replace('_', " "));
        checks.push(Check::warn(NAME, what, "bailiff-enforcer status; bailiff-enforcer resume ends a pause"));
    }
    for open in list("breakers") {
        let what = format!("the breaker {} is open: {}", text(&open["breaker"]), text(&open["detail"]));
        checks.push(Check::warn(NAME, what, "look into it, then bailiff-enforcer resume"));
    }
    checks
}

/// Whether its file of rules makes sense, by the program that would read it.
pub(super) fn rules(flags: &Doctor) -> Check {
    let path = flags.rules.display();
    if !flags.rules.exists() {
        return Check::skip(RULES, format!("there is no {path}"), None);
    }
    let Some(program) = child::ours("bailiff-enforcer") else {
        return Check::skip(RULES, "no bailiff-enforcer is installed that could check them", None);
    };
    let name = flags.rules.display().to_string();
    match child::said(&program, &["check", &name], flags.deadline) {
        Ok(output) if output.status.success() => Check::ok(RULES, format!("{path} makes sense")),
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stdout).into_owned();
            let lines: Vec<&str> =
                said.lines().filter(|line| !line.trim().is_empty()).take(MOST_LINES).collect();
            let said = lines.iter().map(|line| line.trim()).collect::<Vec<_>>().join(" ");
            Check::fail(RULES, format!("{path}: {said}"), format!("bailiff-enforcer check {path}"))
        }
        Err(why) => {
            Check::fail(RULES, format!("bailiff-enforcer check: {why}"), "reinstall bailiff-enforcer")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::check::State;
    use super::*;

    #[test]
    fn what_it_withholds_is_told() {
        let sound = json!({
            "version": "0.1.0", "stream": {"connected": true}, "policy": {"last": "applied", "path": "r.yaml"},
            "cap": {"mode": "none"}, "rules": [{"mode": "enforce"}, {"mode": "dry-run"}], "holds": [], "breakers": [],
        });
        assert_eq!(of_status(&sound), [Check::ok(NAME, "0.1.0, 2 rules, of which 1 may act")]);
        let mut fresh = sound.clone();
        fresh["holds"] = json!([{"hold": "started", "detail": ""}]);
        assert_eq!(of_status(&fresh), of_status(&sound));
        let cases: [(&str, Value, State, &str); 5] = [
            (
                "stream",
                json!({"connected": false, "trouble": "nobody listens"}),
                State::Fail,
                "nobody listens",
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
        for (part, value, state, words) in cases {
            let mut status = sound.clone();
            status[part] = value;
            let found = of_status(&status).into_iter().find(|check| check.state != State::Ok).expect(part);
            assert!(found.state == state && found.text.contains(words), "{part}: {found:?}");
        }
    }
}
