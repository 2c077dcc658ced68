//! Tests two real Jupyter kernels: their owner is told which notebooks they belong to, holds one, and learns why the other
//! was terminated.
#![allow(
    clippy::disallowed_methods,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a case runs programs, reads files and fails loudly"
)]

use std::fs::{self, Permissions, set_permissions};
use std::os::unix::fs::{PermissionsExt, chown};
use std::process::Command;

use end_to_end::node::{Node, TICKS};
use end_to_end::programs;
use end_to_end::tenant::{NOBODY_UID, Tenant};
use end_to_end::user::as_user;
use end_to_end::wait::until;
use serde_json::Value;

/// Another user.
const OTHER_UID: u32 = 4002;

const RULES: &str = "version: 1
mode: enforce
defaults: {startup_grace: 0s, clear_after: 1, grace: 30s}
notify: {owner: {exec: [/bin/sh, -c, \"cat >> NOTICES\"]}}
rules:
  - name: idle-kernel
    target: process
    when: {gpu_util: {max: 1%}}
    for: {samples: 4}
    hold: {max: 1h}
    then: [{notify: [owner]}, {after: {samples: 4}, terminate: {}}]
";

/// Starts a Jupyter server with two kernels, which hold GPU memory. Returns their pids.
fn kernels(node: &Node) -> (Tenant, [u32; 2]) {
    let directory = node.home.path().join("jupyter");
    fs::create_dir(&directory).unwrap();
    chown(&directory, Some(NOBODY_UID), Some(NOBODY_UID)).unwrap();
    let python = programs::root().join("target/tools/jupyter/bin/python");
    // Python and the packages can be in a directory that only root can read.
    let mut command = Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]);
    command.args(["--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search", "setsid"]);
    command.arg(python).arg(programs::root().join("tests/fixtures/jupyter.py")).arg(&directory);
    let server = Tenant::spawn(&node.home, {
        command.arg(node.home.device()).args(["train model.ipynb", "plots.ipynb"]);
        command
    });
    let lines = until("two kernels", || Some(server.output_lines()).filter(|lines| lines.len() == 2));
    let pids = [0, 1].map(|at| {
        let kernel: Value = serde_json::from_str(&lines[at]).unwrap();
        u32::try_from(kernel["pid"].as_u64().unwrap()).unwrap()
    });
    for pid in pids {
        node.hold_process(pid, "used: 1GiB");
    }
    (server, pids)
}

#[test]
fn owner_of_kernels_is_told_and_keeps_one() {
    let node = Node::with_ticks("", &[""], &[&TICKS[..], &["--process.notebook"]].concat());
    let notices = node.home.path().join("notices");
    node.home.write(&RULES.replace("NOTICES", notices.to_str().unwrap()));
    set_permissions(node.home.path(), Permissions::from_mode(0o755)).unwrap();
    let (_server, [kept, ended]) = kernels(&node);
    let enforcer = node.home.enforcer(&[]);
    assert!(enforcer.run(&["pause"]).status.success());
    // Both are named and warned.
    let text = until("notices about both notebooks", || {
        let text = fs::read_to_string(&notices).ok()?;
        (text.contains("train model.ipynb") && text.contains("plots.ipynb")).then_some(text)
    });
    assert!(text.contains(&format!("bailiff hold 1h {kept}")), "{text}");
    let mut info = Command::new(programs::bailiff());
    let info = info.args(["info", "--json", "--stream"]).arg(node.home.stream()).output().unwrap();
    assert!(String::from_utf8_lossy(&info.stdout).contains("/train model.ipynb"), "{info:?}");
    // One is held, the other is terminated.
    let (kept_pid, ended_pid) = (kept.to_string(), ended.to_string());
    let hold = |uid| as_user(uid, &node.home, &["hold", "1h", &kept_pid, "--reason", "not saved"]);
    assert_eq!(hold(OTHER_UID).0, Some(1));
    let (code, text) = hold(NOBODY_UID);
    assert_eq!(code, Some(0), "{text}");
    assert!(enforcer.run(&["resume"]).status.success());
    let line = node.home.until_line("terminate", "released");
    assert_eq!(line["target"]["members"][0]["pid"], ended, "{line}");
    enforcer.until_waits(kept, "owner");
    // The owner learns why, and nobody else does.
    let (code, why) = as_user(NOBODY_UID, &node.home, &["why", &ended_pid]);
    assert!(code == Some(0) && why.contains("terminate released by rule idle-kernel"), "{why}");
    let (code, why) = as_user(OTHER_UID, &node.home, &["why", &ended_pid]);
    assert!(code == Some(1) && why.starts_with("not known\n"), "{why}");
}
