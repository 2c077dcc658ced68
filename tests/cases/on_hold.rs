//! Tests that stopped or frozen targets are exempt from rules about idleness, and that they are sent TERM if a
//! rule matches their state.
#![allow(
    clippy::disallowed_methods,
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a case runs programs, reads files and fails loudly"
)]

use std::fs;
use std::path::{Path, PathBuf};

use end_to_end::node::Node;
use end_to_end::tenant::Tenant;
use end_to_end::wait::until;
use rustix::process::{Pid, Signal, kill_process_group};

fn rules(when: &str) -> String {
    format!(
        "version: 1
mode: enforce
defaults: {{startup_grace: 0s, clear_after: 1, grace: 30s}}
rules:
  - name: idle
    target: process
    when: {when}
    for: {{samples: 4}}
    then: [{{terminate: {{}}}}]
"
    )
}

const IDLE: &str = "{gpu_util: {max: 1%}}";
const HELD: &str = "{state: [stopped, frozen], gpu_util: {max: 1%}}";

fn signal(tenant: &Tenant, signal: Signal) {
    kill_process_group(Pid::from_raw(tenant.pid().cast_signed()).unwrap(), signal).unwrap();
}

/// A frozen cgroup for this test, of version 1 or 2, whichever is mounted.
struct Cgroup(PathBuf);

impl Cgroup {
    fn all() -> Vec<Self> {
        let roots = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified", "/sys/fs/cgroup/freezer"];
        let has = |root: &&&str| Path::new(root).join("cgroup.procs").exists();
        let made = roots.iter().filter(has).filter_map(|root| {
            let path = Path::new(root).join(format!("bailiff-on-hold-{}", std::process::id()));
            fs::create_dir(&path).ok().map(|()| Self(path))
        });
        made.collect()
    }

    fn enter(&self, pid: u32) {
        fs::write(self.0.join("cgroup.procs"), pid.to_string()).unwrap();
    }

    fn freeze(&self, freeze: bool) {
        let (file, text) = if self.0.join("freezer.state").exists() {
            ("freezer.state", if freeze { "FROZEN" } else { "THAWED" })
        } else {
            ("cgroup.freeze", if freeze { "1" } else { "0" })
        };
        fs::write(self.0.join(file), text).unwrap();
    }

    fn is_frozen(&self) -> bool {
        let text = |file: &str| fs::read_to_string(self.0.join(file)).unwrap_or_default();
        text("freezer.state").trim() == "FROZEN" || text("cgroup.events").contains("frozen 1")
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        self.freeze(false);
        let root = self.0.parent().unwrap().join("cgroup.procs");
        for pid in fs::read_to_string(self.0.join("cgroup.procs")).unwrap_or_default().lines() {
            let _ = fs::write(&root, pid);
        }
        // A process leaves its cgroup a moment after it exits.
        until("the cgroup is empty", || fs::remove_dir(&self.0).ok());
    }
}

/// Thaws the cgroup before its processes are waited for, because in version 1 frozen processes cannot exit.
struct Thaw<'a>(&'a Cgroup);

impl Drop for Thaw<'_> {
    fn drop(&mut self) {
        self.0.freeze(false);
    }
}

#[test]
fn stopped_target_is_exempt_from_idle_rules() {
    let node = Node::new(&rules(IDLE));
    let tenant = Tenant::ending_on_term(&node.home);
    signal(&tenant, Signal::STOP);
    node.hold(&tenant, 0, "used: 1GiB");
    let enforcer = node.home.enforcer(&[]);
    enforcer.ticks(10);
    assert!(node.home.results("terminate").is_empty());
    let printed = enforcer.run(&["explain", "--pid", &tenant.pid().to_string()]);
    let printed = String::from_utf8_lossy(&printed.stdout).into_owned();
    assert!(printed.contains("on_hold") && printed.contains("stopped, traced or frozen"), "{printed}");
    signal(&tenant, Signal::CONT);
    tenant.gone();
    assert_eq!(tenant.terms_received(), 1);
}

#[test]
fn stopped_target_of_a_matching_rule_receives_term() {
    let node = Node::new(&rules(HELD));
    let tenant = Tenant::ending_on_term(&node.home);
    signal(&tenant, Signal::STOP);
    node.hold(&tenant, 0, "used: 1GiB");
    let _enforcer = node.home.enforcer(&[]);
    tenant.gone();
    assert_eq!(tenant.terms_received(), 1, "the tenant handled TERM");
    let line = node.home.until_line("terminate", "released");
    let sent = line["sent"].as_array().unwrap();
    let names: Vec<&str> = sent.iter().map(|sent| sent["signal"].as_str().unwrap()).collect();
    assert_eq!(names, ["SIGTERM", "SIGCONT"], "{line}");
}

#[test]
fn frozen_target_is_thawed_only_by_a_matching_rule() {
    let cgroups = Cgroup::all();
    assert!(!cgroups.is_empty(), "these tests need a cgroup file system that root can write to");
    for cgroup in cgroups {
        let node = Node::new(&rules(IDLE));
        let tenant = Tenant::ending_on_term(&node.home);
        cgroup.enter(tenant.pid());
        let _thaw = Thaw(&cgroup);
        cgroup.freeze(true);
        until("the cgroup is frozen", || cgroup.is_frozen().then_some(()));
        node.hold(&tenant, 0, "used: 1GiB");
        let pid = tenant.pid().to_string();
        node.exporter.until("the process's state", |page| {
            page.value("bailiff_process_state", &[("pid", &pid), ("state", "frozen")])
        });
        let enforcer = node.home.enforcer(&[]);
        enforcer.ticks(10);
        assert!(node.home.results("terminate").is_empty() && cgroup.is_frozen());
        node.home.write(&rules(HELD));
        tenant.gone();
        assert_eq!(tenant.terms_received(), 1, "the tenant handled TERM");
        assert!(!cgroup.is_frozen());
        node.home.until_line("terminate", "released");
    }
}

#[test]
fn shared_frozen_cgroup_is_not_thawed() {
    for cgroup in Cgroup::all() {
        let node = Node::new(&rules(HELD));
        let (tenant, other) = (Tenant::ending_on_term(&node.home), Tenant::ending_on_term(&node.home));
        cgroup.enter(tenant.pid());
        cgroup.enter(other.pid());
        let _thaw = Thaw(&cgroup);
        cgroup.freeze(true);
        until("the cgroup is frozen", || cgroup.is_frozen().then_some(()));
        node.hold(&tenant, 0, "used: 1GiB");
        let _enforcer = node.home.enforcer(&[]);
        let line = node.home.until_line("terminate", "refused");
        assert!(line["detail"].as_str().unwrap().contains("is not part of the target"), "{line}");
        assert!(cgroup.is_frozen() && tenant.is_running() && other.is_running());
    }
}
