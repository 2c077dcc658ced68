//! Tests that the notebooks of Jupyter kernels are published on request, and shown by `bailiff info` and in notifications.
#![allow(
    clippy::disallowed_methods,
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a case runs programs, reads files and fails loudly"
)]

use std::fs;
use std::os::unix::process::CommandExt;
use std::process::Command;

use bailiff_snapshot::wire::Snapshot;
use end_to_end::enforcer;
use end_to_end::enforcer::Enforcer;
use end_to_end::exporter::Exporter;
use end_to_end::fake::Scenario;
use end_to_end::http;
use end_to_end::node::{Node, TICKS};
use end_to_end::procfs::{Process, Procfs};
use end_to_end::programs;
use end_to_end::tenant::{NOBODY_UID, Tenant};
use end_to_end::ticks::Ticks;
use end_to_end::wait::until;
use serde_json::Value;

const PATH: &str = "/home/alice/training.ipynb";
/// A name that writes to terminals, ends strings and mentions users.
const HOSTILE: &str = "/tmp/\u{1b}[2J\u{202e}\n\"<!channel>\u{e4}.ipynb";

/// Processes with these environments, from pid 4100 on.
fn procfs(environments: &[&[u8]]) -> Procfs {
    let procfs = Procfs::new();
    for (pid, environment) in (4100..).zip(environments) {
        procfs.add(&Process::new(pid));
        fs::write(procfs.path().join(format!("{pid}/environ")), environment).unwrap();
    }
    procfs
}

fn scenario(count: usize) -> Scenario {
    Scenario::new(&format!(
        "sampling_period: 20ms\ngpus:\n  - processes: [{{pid: 4100, count: {count}, used: 1GiB}}]\n"
    ))
}

/// Returns the notebooks in a snapshot, in the order of pids.
fn notebooks(snapshot: &Snapshot) -> Vec<Option<&str>> {
    let facts = snapshot.processes.iter().map(|process| process.facts.as_ref().unwrap());
    facts.map(|facts| facts.notebook.as_deref()).collect()
}

/// Starts an exporter with a stream, and returns its first snapshot with these holders.
fn published(procfs: &Procfs, scenario: &Scenario, flags: &[&str]) -> (Exporter, Snapshot) {
    let path = scenario.directory().join("stream.sock");
    let arguments = [format!("--stream={}", path.display()), format!("--procfs={}", procfs.path().display())];
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).chain(flags.iter().copied()).collect();
    let exporter = Exporter::start(scenario, &arguments);
    let snapshot = Ticks::of(&path).find(|snapshot| !snapshot.processes.is_empty());
    (exporter, snapshot)
}

fn of_variable(value: &[u8]) -> Vec<u8> {
    [b"HOME=/home/alice\0JPY_SESSION_NAME=".as_slice(), value, b"\0LANG=C\0"].concat()
}

fn info(scenario: &Scenario, procfs: &Procfs, flags: &[&str]) -> String {
    let mut command = Command::new(programs::bailiff());
    command.args(["info", "--interval", "700ms"]).args(flags);
    command.arg("--nvml-library").arg(programs::fake_nvml()).arg("--procfs").arg(procfs.path());
    command.env("FAKE_NVML_SCENARIO", scenario.path()).env("XDG_STATE_HOME", scenario.directory());
    command.env_remove("LEASE_REDIS_URL").env("LEASE_DIR", scenario.directory().join("pool"));
    command.env("BAILIFF_STREAM", scenario.directory().join("stream.sock"));
    let output = command.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn notebooks_are_published_on_request_and_if_they_are_certain() {
    let environments = [
        of_variable(PATH.as_bytes()),
        of_variable(HOSTILE.as_bytes()),
        of_variable(b"/home/\xff.ipynb"),
        of_variable("x".repeat(2000).as_bytes()),
        b"HOME=/home/alice\0".to_vec(),
        b"python3: kernel\0JPY_SESSION_NAME=/home/alice/x.ipynb\0".to_vec(),
        [of_variable(PATH.as_bytes()), b"X=".to_vec(), vec![b'x'; 200 << 10], b"\0".to_vec()].concat(),
    ];
    let procfs = procfs(&environments.each_ref().map(Vec::as_slice));
    let (scenario, count) = (scenario(environments.len()), environments.len());
    let (exporter, snapshot) = published(&procfs, &scenario, &["--process.notebook"]);
    let expected = [Some(PATH), Some(HOSTILE), None, None, None, None, None];
    assert_eq!(notebooks(&snapshot), expected);
    for path in ["/metrics", "/"] {
        let page = http::get(exporter.address(), path, &[]).unwrap();
        assert!(
            page.status == 200 && !page.text().contains("ipynb"),
            "paths are private, so no page has them"
        );
    }
    drop(exporter);
    let (_exporter, snapshot) = published(&procfs, &scenario, &[]);
    assert_eq!(notebooks(&snapshot), vec![None; count]);
}

#[test]
fn info_shows_notebooks_without_control_characters() {
    let environments = [of_variable(PATH.as_bytes()), of_variable(HOSTILE.as_bytes())];
    let procfs = procfs(&environments.each_ref().map(Vec::as_slice));
    let scenario = scenario(2);
    let (exporter, _) = published(&procfs, &scenario, &["--process.notebook", "--interval=700ms"]);
    let text = info(&scenario, &procfs, &[]);
    assert!(text.contains(&format!("notebook                 4100: {PATH}\n")), "{text}");
    assert!(text.contains("notebook                 4101: /tmp/"), "{text}");
    assert!(
        !text.contains(|letter: char| letter != '\n' && letter.is_control() || letter == '\u{202e}'),
        "{text:?}"
    );
    let report: Value = serde_json::from_str(&info(&scenario, &procfs, &["--json"])).unwrap();
    let holders = report["gpus"][0]["holders"].as_array().unwrap();
    let of = |pid: u64| holders.iter().find(|holder| holder["pid"] == pid).unwrap()["notebook"].clone();
    assert_eq!((of(4100), of(4101)), (PATH.into(), HOSTILE.into()));
    drop(exporter);
    // Without an exporter, `info` reads the environments that its user may read.
    assert!(info(&scenario, &procfs, &["--alone"]).contains(PATH));
    let (_exporter, _) = published(&procfs, &scenario, &["--interval=700ms"]);
    assert!(!info(&scenario, &procfs, &[]).contains("notebook"));
}

/// Rules with a program that appends the notification of a match to a file.
fn rules(program: &str) -> String {
    format!(
        "version: 1
mode: dry-run
defaults: {{startup_grace: 0s}}
notify: {{file: {{exec: [{program}]}}}}
rules:
  - {{name: idle, target: process, when: {{gpu_util: {{max: 1%}}}}, for: {{samples: 3}}, then: [{{notify: file}}]}}
"
    )
}

#[test]
fn notification_names_the_notebook() {
    for (flags, is_named) in [(&["--process.notebook"][..], true), (&[], false)] {
        let files = tempfile::tempdir().unwrap();
        let (program, out) = (files.path().join("program"), files.path().join("out"));
        fs::write(&program, format!("#!/bin/sh\ncat >> {}\n", out.display())).unwrap();
        fs::set_permissions(&program, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        let node =
            Node::with_ticks(&rules(&program.display().to_string()), &[""], &[&TICKS[..], flags].concat());
        let mut command = Command::new("setsid");
        command.args(["sleep", "infinity"]).uid(NOBODY_UID).gid(NOBODY_UID);
        let tenant = Tenant::spawn(&node.home, {
            command.env("JPY_SESSION_NAME", HOSTILE);
            command
        });
        node.hold(&tenant, 0, "used: 2GiB");
        let _enforcer = Enforcer::spawn(&node.home, enforcer::command(&node.home));
        let notice: Value = until("a notification", || serde_json::from_slice(&fs::read(&out).ok()?).ok());
        let text = notice["text"].as_str().unwrap();
        let (pid, end) = (tenant.pid(), "\\u{1b}[2J\\u{202e}\\n\"‹!channel›ä.ipynb)");
        let expected =
            if is_named { format!("pid {pid}; notebook /tmp/{end}") } else { format!("pid {pid})") };
        assert!(text.contains(&expected), "{expected}: {text}");
    }
}
