//! Tests rules about a whole GPU: `pick` frees memory by terminating one holder, and an MPS server without clients is
//! shut down.
#![allow(
    clippy::disallowed_methods,
    clippy::expect_used,
    clippy::float_cmp,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a case runs programs, reads files, compares exact figures and fails loudly"
)]

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::Command;

use end_to_end::enforcer::{self, Enforcer};
use end_to_end::node::Node;
use end_to_end::tenant::{NOBODY_UID, Tenant};
use end_to_end::wait::until;
use serde_json::json;

const GIB: f64 = 1_073_741_824.0;

#[test]
fn smallest_sufficient_idle_holder_is_ended_alone() {
    let rules = "version: 1
mode: enforce
defaults: {startup_grace: 0s, clear_after: 1, grace: 30s}
rules:
  - name: keep-free
    target: gpu
    when: {vram_free: {below: 8GiB}}
    for: {samples: 3}
    pick:
      from: {gpu_util: {max: 1%}, cpu_util: {max: 5%}, vram: {min: 1GiB}}
      idle_for: {samples: 4}
    then: [{flag: warning}, {after: {samples: 2}, terminate: {}}]
";
    // Four GiB are free and eight are required, so freeing three would not be enough, but freeing six is.
    let node = Node::of(rules, &["memory: {total: 40GiB, reserved: 0MiB}"]);
    let [large, enough, small] = [(); 3].map(|()| Tenant::running(&node.home, &["sleep", "infinity"]));
    node.hold_together(&[(&large, "used: 27GiB"), (&enough, "used: 6GiB"), (&small, "used: 3GiB")]);
    let enforcer = node.home.enforcer(&[]);
    enough.gone();
    let end = node.home.until_line("terminate", "released");
    let holder = &end["target"]["members"][0];
    assert_eq!((&holder["pid"], &holder["vram"]), (&json!(enough.pid()), &json!(6_u64 << 30)));
    assert_eq!(end["target"]["kind"], "workload");
    enforcer.until_status("what was done", |status| status["actions"].get(0).map(|_| ()));
    let status = String::from_utf8(enforcer.run(&["status"]).stdout).unwrap();
    let name = end["target"]["id"].as_str().unwrap();
    let done = status.split("\nDONE").nth(1).unwrap_or_else(|| panic!("{status}"));
    assert!(done.contains(&format!(" {name} ")), "{name} is not truncated in a pipe: {status}");
    let leaves: Vec<&str> = end["evidence"]["leaves"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|leaf| leaf["name"].as_str())
        .collect();
    assert_eq!(
        leaves,
        ["vram_free", "gpu_util", "cpu_util", "vram"],
        "the reasons cover the GPU and the holder"
    );
    // Wait longer than a second action would have taken.
    enforcer.ticks(10);
    assert!(large.is_running() && small.is_running());
    assert_eq!(node.home.effects("terminate"), ["released"]);
    assert_eq!(enforcer.page().value("bailiff_rule_matches", &[("rule", "keep-free")]), Some(0.0));
    assert_eq!(enforcer.page().value("bailiff_memory_released_bytes_total", &[]), Some(6.0 * GIB));
}

const COUNTDOWN: &str = "version: 1
mode: enforce
defaults: {startup_grace: 0s, clear_after: 1}
rules:
  - name: keep-free
    target: gpu
    when: {vram_free: {below: 8GiB}}
    for: {samples: 3}
    pick: {from: {gpu_util: {max: 1%}, cpu_util: {max: 50%}}, idle_for: {samples: 3}}
    then: [{flag: warning}, {after: {samples: 1000}, terminate: {}}]
";

#[test]
fn picked_holder_is_reported_with_its_countdown() {
    let node = Node::of(COUNTDOWN, &["memory: {total: 40GiB, reserved: 0MiB}"]);
    let victim = Tenant::running(&node.home, &["sleep", "infinity"]);
    node.hold(&victim, 0, "used: 35GiB");
    let enforcer = node.home.enforcer(&[]);
    let pid = victim.pid().to_string();
    let flagged = node.home.until_line("flag", "raised");
    let name = flagged["target"]["id"].as_str().unwrap().to_owned();
    let run = |arguments: &[&str]| String::from_utf8(enforcer.run(arguments).stdout).unwrap();
    let status = run(&["status"]);
    let coming =
        status.split("\nCOMING").nth(1).unwrap_or_else(|| panic!("the section COMING is missing: {status}"));
    let row = coming.lines().find(|line| line.starts_with(&name));
    let row = row.unwrap_or_else(|| panic!("{name} is not listed: {status}"));
    assert!(row.contains(&pid) && row.contains("terminate") && row.contains("sleep"), "{row}");
    assert!(["3m", "2m"].iter().any(|left| row.ends_with(left)), "1,000 samples of 0.2 s: {row}");
    let printed = run(&["explain", "--pid", &pid]);
    let title = format!("keep-free enforce: {name} (sleep) of nobody");
    for part in [&title, "from: true", "picked on gpu:", "next: terminate, after ", "more true samples (3m "]
    {
        assert!(printed.contains(part), "no {part} in\n{printed}");
    }
    // An unrelated reload does not reset the countdown, the flag or the notification.
    let before = left(&enforcer, &name);
    node.home.write(&format!("{COUNTDOWN}limits: {{per_user_hour: 2}}\n"));
    until("the rules are read again", || (node.home.results("reload") == ["done"]).then_some(()));
    enforcer.ticks(2);
    assert!(left(&enforcer, &name) < before, "the countdown continues");
    assert_eq!(node.home.results("flag"), ["raised"]);
    assert!(victim.is_running());
}

/// Returns the seconds until the next step against a target.
fn left(enforcer: &Enforcer, target: &str) -> f64 {
    let status = enforcer.status();
    let coming = status["pending"].as_array().unwrap().iter().find(|coming| coming["target"] == target);
    coming.unwrap_or_else(|| panic!("{status:#}"))["due_in"].as_f64().unwrap()
}

/// Replaces the control daemon that queries and shuts down an MPS server. Records its input.
const CONTROL: &str = "#!/bin/sh
while read -r line; do
  echo \"$line in $CUDA_MPS_PIPE_DIRECTORY\" >> \"${0%/*}/commands\"
  case $line in shutdown_server\\ *) kill -TERM \"${line#shutdown_server }\" ;; esac
done
";

#[test]
fn mps_server_without_clients_is_shut_down() {
    let rules = "version: 1
mode: enforce
defaults: {startup_grace: 0s, clear_after: 1}
rules:
  - name: mps-idle
    target: mps_server
    when: {mps_clients: {max: 0}, gpu_util: {max: 0%}}
    for: {samples: 3}
    then: [{flag: info}, {after: {samples: 2}, shutdown_mps: {}}]
";
    let node = Node::new(rules);
    let directory = node.home.path().join("bin");
    fs::create_dir(&directory).unwrap();
    let daemon = directory.join("nvidia-cuda-mps-control");
    fs::write(&daemon, CONTROL).unwrap();
    fs::set_permissions(&daemon, Permissions::from_mode(0o755)).unwrap();
    let server = directory.join("nvidia-cuda-mps-server");
    fs::copy("/bin/sleep", &server).unwrap();
    let mut command = Command::new("setsid");
    command
        .arg(&server)
        .arg("infinity")
        .env("CUDA_MPS_PIPE_DIRECTORY", "/tmp/pipes")
        .uid(NOBODY_UID)
        .gid(NOBODY_UID);
    let server = Tenant::spawn(&node.home, command);
    let comm = format!("/proc/{}/comm", server.pid());
    until("the process's name", || (fs::read_to_string(&comm).ok()? == "nvidia-cuda-mps\n").then_some(()));
    node.hold(&server, 0, "used: 30MiB");
    let path = format!("{}:{}", directory.display(), std::env::var("PATH").unwrap());
    let mut command = enforcer::command(&node.home);
    command.env("PATH", path);
    let enforcer = Enforcer::spawn(&node.home, command);
    server.gone();
    let end = node.home.until_line("shutdown_mps", "done");
    assert_eq!((&end["detail"], &end["sent"]), (&json!("the server has exited"), &json!([])));
    assert_eq!(node.home.effects("shutdown_mps"), ["done"]);
    let printed = fs::read_to_string(directory.join("commands")).unwrap();
    let pid = server.pid();
    let expected = format!("get_client_list {pid} in /tmp/pipes\nshutdown_server {pid} in /tmp/pipes\n");
    assert_eq!(printed, expected);
    enforcer.until("the kill is counted", |page| {
        page.happened("bailiff_steps_total", &[("step", "shutdown_mps"), ("result", "done")]).then_some(())
    });
}
