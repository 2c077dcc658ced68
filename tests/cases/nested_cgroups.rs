//! Tests cgroups with misleading names that a container's processes create: they do not affect other containers,
//! and moving between them does not prevent an action. Exporter, enforcer, processes and cgroups are real.
#![allow(
    clippy::disallowed_methods,
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a case runs programs, reads files and fails loudly"
)]

use std::process::Command;

use end_to_end::cgroups::Slice;
use end_to_end::node::Node;
use end_to_end::tenant::Tenant;
use end_to_end::wait::until;
use serde_json::Value;

const RULES: &str = "version: 1
mode: enforce
defaults: {startup_grace: 0s, clear_after: 1, grace: 30s}
rules:
  - name: idle
    target: workload
    when: {gpu_util: {max: 1%}}
    for: {samples: 3}
    then: [{terminate: {}}]
";

/// Logs and ignores each signal that a shell can trap.
const LOGGING: &str = "for signal in HUP INT QUIT USR1 USR2 CONT; do trap \"echo $signal\" $signal; done; \
    trap 'echo TERM; exit' TERM; echo ready; while :; do read nothing; done";

/// Returns a container id that is unique to this test, since tests run concurrently.
fn id(digit: char) -> String {
    format!("{digit}{:063x}", std::process::id())
}

fn scope(digit: char) -> String {
    format!("docker-{}.scope", id(digit))
}

/// Starts a process of this user in this cgroup. The process logs each signal.
fn tenant(node: &Node, uid: u32, (slice, below): (&Slice, &str)) -> Tenant {
    let mut command = Command::new("setpriv");
    let owner = uid.to_string();
    command.args([
        "--reuid",
        &owner,
        "--regid",
        &owner,
        "--clear-groups",
        "setsid",
        "/bin/sh",
        "-c",
        LOGGING,
    ]);
    let tenant = Tenant::spawn(&node.home, command);
    until("the tenant's word", || (!tenant.output_lines().is_empty()).then_some(()));
    slice.take(below, tenant.pid());
    tenant
}

fn label(node: &Node, pid: u32, name: &str) -> Option<String> {
    node.exporter.page().label("bailiff_process_info", &[("pid", &pid.to_string())], name)
}

#[test]
fn nested_cgroup_name_affects_no_other_container() {
    for uid in [0, 1000] {
        let node = Node::new(RULES);
        let slice = Slice::new();
        let (own, other) = (scope('a'), scope('b'));
        let idle = tenant(&node, uid, (&slice, &format!("{own}/{other}")));
        let sibling = tenant(&node, uid, (&slice, &own));
        let busy = tenant(&node, uid, (&slice, &other));
        let outside = tenant(&node, uid, (&slice, "."));
        node.hold(&idle, 0, "used: 2GiB");
        let _enforcer = node.home.enforcer(&[]);
        idle.gone();
        sibling.gone();
        let line = node.home.until_line("terminate", "released");
        let target = format!("workload:container:{}", slice.path(&own));
        assert_eq!(line["target"]["id"], Value::from(target), "uid {uid}");
        for other in [&busy, &outside] {
            assert_eq!(
                other.output_lines(),
                ["ready"],
                "uid {uid}: the other container must not receive a signal"
            );
            assert!(other.is_running(), "uid {uid}");
        }
    }
}

#[test]
fn memory_of_a_nested_cgroup_belongs_to_the_outer_container() {
    let node = Node::new(RULES);
    let slice = Slice::new();
    let idle = tenant(&node, 1000, (&slice, &format!("{}/{}", scope('a'), scope('b'))));
    node.hold(&idle, 0, "used: 2GiB");
    let container = until("the process's labels", || label(&node, idle.pid(), "container"));
    assert_eq!(container, id('a'));
}

#[test]
fn holder_that_moved_between_its_own_cgroups_is_ended() {
    for own in [scope('c'), "notebook.service".to_owned()] {
        let node = Node::new(RULES);
        let slice = Slice::new();
        let idle = tenant(&node, 1000, (&slice, &format!("{own}/one")));
        node.hold(&idle, 0, "used: 2GiB");
        until("the process's labels", || label(&node, idle.pid(), "comm"));
        slice.take(&format!("{own}/two"), idle.pid());
        let _enforcer = node.home.enforcer(&[]);
        let results = until("a result", || {
            let results = node.home.results("terminate");
            results.iter().any(|result| !matches!(result.as_str(), "due" | "begun")).then_some(results)
        });
        assert!(!results.contains(&"identity_changed".to_owned()), "{own}: {results:?}");
        idle.gone();
    }
}

#[test]
fn container_name_in_a_directory_of_a_user_affects_no_container() {
    // LXC, nspawn, rootless Podman, and libpam-cgfs.
    let layouts = [
        "lxc.payload.a",
        "machine-a.scope/payload",
        "user.slice/user-4002.slice/user@4002.service",
        "user/a/0",
    ];
    let node = Node::new(&format!("{RULES}limits: {{per_user_hour: 9, per_gpu_hour: 9, mass_min: 9}}\n"));
    let slice = Slice::new();
    let other = scope('b');
    let victim = tenant(&node, 1000, (&slice, &other));
    let attackers = layouts.map(|layout| tenant(&node, 4002, (&slice, &format!("{layout}/{other}"))));
    for attacker in &attackers {
        node.hold(attacker, 0, "used: 2GiB");
    }
    for attacker in &attackers {
        until("the process's labels", || label(&node, attacker.pid(), "comm"));
        assert_eq!(label(&node, attacker.pid(), "container").unwrap_or_default(), "");
    }
    let _enforcer = node.home.enforcer(&[]);
    attackers.iter().for_each(Tenant::gone);
    assert_eq!(victim.output_lines(), ["ready"], "the container must not receive a signal");
    assert!(victim.is_running());
}
