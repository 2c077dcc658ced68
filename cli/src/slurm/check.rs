//! `bailiff slurm check`: shows the GPU map and checks Slurm's settings.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::Duration;

use bailiff_snapshot::slurm::JobRecord;

use super::config::Config;
use super::flags::Check as Flags;
use super::gpus::{Inspector, Scope};
use super::hook::map;
use super::job::node_name;
use super::{programs, state};
use crate::doctor::{Check, report};
use crate::exit::Failure;
use crate::output::joined;

/// Time limit of Slurm's programs.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Time that Slurm needs for a hook besides the hook's own `wait`.
const MARGIN: Duration = Duration::from_secs(10);
/// Slurm's value for a time limit that is not set (`INFINITE16` or `NO_VAL16` of slurm.h).
const NO_LIMIT: u64 = 65_534;

/// Runs the checks.
pub(super) fn check(flags: &Flags) -> Result<ExitCode, Failure> {
    let common = &flags.common;
    let node = node_name()?;
    let config = match Config::read(&common.config) {
        Ok(config) => config,
        Err(why) => {
            let hint = "correct the file; until then, the hooks succeed without a check";
            return report(&[Check::fail("slurm.yaml", why, hint)], common.json);
        }
    };
    let mut checks = vec![Check::ok("slurm.yaml", format!("{} is valid", common.config.display()))];
    checks.push(gpus(flags, &config, &node));
    match programs::output("scontrol", &["show", "config"], TIMEOUT) {
        Ok(text) => checks.extend(settings(&parse(&text), &config)),
        Err(why) => {
            checks.push(Check::fail("slurmctld", why, "check slurm.conf and that slurmctld responds"));
        }
    }
    checks.push(records(&state::records(&common.state_dir)?));
    report(&checks, common.json)
}

fn gpus(flags: &Flags, config: &Config, node: &str) -> Check {
    let hint = "name the files in slurm.yaml, in the order of gres.conf: `gpus: /dev/nvidia[0-3]`";
    let minors = match map(&flags.common, config, node, TIMEOUT) {
        Ok(minors) => minors,
        Err(why) => return Check::fail("gpus", why, hint),
    };
    let scope = Scope { gpus: minors.into_iter().enumerate().collect(), ..Scope::default() };
    let found = Inspector::start(&flags.common.machine, config, TIMEOUT);
    let inspection = match found {
        Ok(mut inspector) => inspector.inspect(&scope),
        Err(error) => return Check::fail("gpus", error.to_string(), "see `bailiff doctor`"),
    };
    let named = scope.gpus.iter().map(|(position, minor)| {
        let uuid = inspection.uuids.get(minor).map_or("not reported by the driver", String::as_str);
        format!("{position}: /dev/nvidia{minor} ({uuid})")
    });
    let text = joined(named, "; ");
    if inspection.unknown.is_empty() {
        Check::ok("gpus", text)
    } else {
        Check::fail("gpus", format!("{text}; {}", inspection.unknown.join("; ")), "see `bailiff doctor`")
    }
}

/// Parses the lines `Key = Value` of `scontrol show config`.
fn parse(text: &str) -> BTreeMap<&str, &str> {
    text.lines()
        .filter_map(|line| line.split_once('='))
        .map(|(key, value)| (key.trim(), value.trim()))
        .collect()
}

fn settings(slurm: &BTreeMap<&str, &str>, config: &Config) -> Vec<Check> {
    let value = |key: &str| slurm.get(key).copied().filter(|value| *value != "(null)");
    let mut checks = vec![
        program("Prolog", value("Prolog"), "prolog"),
        program("Epilog", value("Epilog"), "epilog"),
        program("HealthCheckProgram", value("HealthCheckProgram"), "health"),
        limit("Prolog", first(slurm, ["PrologTimeout", "PrologEpilogTimeout"]), config.prolog.wait),
        limit("Epilog", first(slurm, ["EpilogTimeout", "PrologEpilogTimeout"]), config.epilog.wait),
    ];
    let flags = value("PrologFlags").unwrap_or_default();
    let has = |flag: &str| flags.split(',').any(|set| set.eq_ignore_ascii_case(flag));
    checks.push(required(
        "PrologFlags=Alloc",
        has("Alloc") || has("Contain"),
        "without it, the prolog runs only at a job's first step",
    ));
    checks.push(required(
        "PrologFlags=Contain",
        has("Contain"),
        "without it, a job of salloc without steps has no cgroup",
    ));
    let confined = value("ConstrainDevices") == Some("yes");
    checks.push(required(
        "ConstrainDevices=yes",
        confined,
        "without it in cgroup.conf, a job can use GPUs of other jobs",
    ));
    checks
}

/// Returns the first of these keys that Slurm shows.
fn first<'a>(slurm: &BTreeMap<&str, &'a str>, keys: [&str; 2]) -> Option<&'a str> {
    keys.into_iter().find_map(|key| slurm.get(key).copied())
}

fn program(key: &'static str, value: Option<&str>, hook: &str) -> Check {
    match value {
        Some(value) if value.contains("bailiff") => Check::ok(key, value),
        Some(value) => {
            Check::skip(key, format!("{value}: whether it runs `bailiff slurm {hook}` was not checked"), None)
        }
        None => Check::warn(key, "not set", format!("in slurm.conf: {key}=/usr/lib/bailiff/slurm/{hook}")),
    }
}

fn limit(key: &'static str, value: Option<&str>, wait: Duration) -> Check {
    let needed = wait + MARGIN;
    let seconds = value
        .and_then(|value| value.split(' ').next()?.parse::<u64>().ok())
        .filter(|limit| *limit < NO_LIMIT);
    match seconds {
        None => Check::ok(key, "Slurm has no time limit for it"),
        Some(limit) if Duration::from_secs(limit) >= needed => {
            Check::ok(key, format!("Slurm's time limit of {limit} s is longer than it takes"))
        }
        Some(limit) => Check::fail(
            key,
            format!(
                "Slurm's time limit of {limit} s is shorter than {} s: `wait` in slurm.yaml and a margin",
                needed.as_secs()
            ),
            "shorten `wait`, or raise PrologEpilogTimeout",
        ),
    }
}

fn required(key: &'static str, is_set: bool, otherwise: &str) -> Check {
    if is_set {
        Check::ok(key, "set")
    } else {
        Check::warn(key, format!("not set: {otherwise}"), format!("set {key}"))
    }
}

fn records(records: &[JobRecord]) -> Check {
    Check::ok("records", format!("{} jobs have a record of their GPUs", records.len()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::State;

    fn state_of(text: &str, name: &str) -> Vec<State> {
        let checks = settings(&parse(text), &Config::default());
        checks.iter().filter(|check| check.name == name).map(|check| check.state).collect()
    }

    #[test]
    fn time_limits_of_slurm_must_exceed_those_of_the_hooks() {
        for (line, expected) in [
            ("PrologEpilogTimeout = 65534", State::Ok),
            ("PrologEpilogTimeout = 30 sec", State::Ok),
            ("PrologEpilogTimeout = 29 sec", State::Fail),
            ("PrologTimeout = 5 sec\nPrologEpilogTimeout = 65534", State::Fail),
        ] {
            assert_eq!(state_of(line, "Prolog").last(), Some(&expected), "{line}");
        }
    }

    #[test]
    fn missing_settings_are_warnings() {
        let good =
            "Prolog = /usr/lib/bailiff/slurm/prolog\nPrologFlags = Alloc,Contain\nConstrainDevices = yes";
        for (text, name, expected) in [
            (good, "Prolog", State::Ok),
            ("Prolog = (null)", "Prolog", State::Warn),
            ("Prolog = /etc/slurm/prolog.sh", "Prolog", State::Skip),
            (good, "PrologFlags=Contain", State::Ok),
            ("PrologFlags = Alloc", "PrologFlags=Contain", State::Warn),
            (good, "ConstrainDevices=yes", State::Ok),
            ("ConstrainDevices = no", "ConstrainDevices=yes", State::Warn),
        ] {
            assert_eq!(state_of(text, name).first(), Some(&expected), "{text} {name}");
        }
    }
}
