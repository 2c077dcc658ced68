//! Tests real holders that are stuck or orphaned: how they are reported, which rules flag them, what frees them, and
//! whether their memory is released. Only the driver is fake. Needs root, to start processes as other users and to
//! mount file systems.
#![allow(
    clippy::disallowed_methods,
    clippy::expect_used,
    clippy::float_cmp,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a case runs programs, reads files, compares exact figures and fails loudly"
)]

use std::fs;
use std::os::unix::process::CommandExt;
use std::process::Command;

use end_to_end::enforcer::Enforcer;
use end_to_end::holder::children;
use end_to_end::http;
use end_to_end::node::Node;
use end_to_end::orphan::Orphan;
use end_to_end::page::Page;
use end_to_end::programs;
use end_to_end::tenant::{NOBODY_UID, Tenant};
use end_to_end::wait::until;

const GIB: f64 = 1_073_741_824.0;
const UNRELEASED: &str = "bailiff_gpu_memory_unreleased_bytes";

/// The first thread exits, and another thread continues.
const ZOMBIE_LEADER: &str = "import ctypes, threading\n\
    threading.Thread(target=lambda: threading.Event().wait()).start()\n\
    print('ready')\n\
    ctypes.CDLL(None).pthread_exit(None)";
/// A program that does not wait for a child that has exited.
const ZOMBIES_PARENT: &str =
    "import os, signal\npid = os.fork() or os._exit(0)\nprint('ready')\nsignal.pause()";
/// During a vfork, the parent waits in the kernel, in state D, until its child executes a program or exits. This
/// child does neither, and is killed with its parent.
const WAITING_IN_THE_KERNEL: &str = "import ctypes, signal\n\
    libc = ctypes.CDLL(None)\nprint('ready')\n\
    if libc.vfork() == 0:\n    libc.prctl(1, 9)\n    signal.pause()";

/// Starts a program as user nobody that has the device open.
fn tenant(node: &Node, program: &str) -> Tenant {
    let tenant = Tenant::running(&node.home, &["python3", "-u", "-c", program]);
    until("the tenant's first line", || (!tenant.output_lines().is_empty()).then_some(()));
    tenant
}

/// Starts an orphaned process as user nobody that has the device open.
fn orphan(node: &Node) -> Orphan {
    let mut command = Command::new("setsid");
    command.uid(NOBODY_UID).gid(NOBODY_UID).current_dir("/").stdin(node.home.open_device());
    Orphan::under(command)
}

/// Returns the rules in these examples, with three samples, enforced and without notifications.
fn examples(names: &[&str]) -> String {
    let mut rules = "version: 1\ndefaults: {startup_grace: 0s, clear_after: 1, grace: 30s}\n".to_owned();
    rules.push_str("limits: {per_gpu_hour: 9, per_user_hour: 9, per_node_hour: 9}\nrules:\n");
    for name in names {
        let path = programs::root().join(format!("config/rules/{name}.yaml"));
        let text = fs::read_to_string(path).unwrap();
        let (_, body) = text.split_once("\nrules:\n").unwrap();
        let telling = |line: &&str| !line.trim_start().starts_with("- {notify: [");
        let short = |line: &str| match line.trim_start() {
            words if words.starts_with("for: ") => "    for: {samples: 3}\n".to_owned(),
            "mode: dry-run" => "    mode: enforce\n".to_owned(),
            _ => line.replace("{after: 10m,", "{after: {samples: 2},") + "\n",
        };
        rules.extend(body.lines().filter(telling).map(short));
    }
    rules
}

fn state(page: &Page, pid: u32) -> Option<String> {
    page.label("bailiff_process_state", &[("pid", &pid.to_string())], "state")
}

fn flagged(enforcer: &Enforcer, rule: &str, pid: Option<u32>) {
    let pid = pid.map(|pid| pid.to_string());
    let labels: Vec<(&str, &str)> =
        std::iter::once(("rule", rule)).chain(pid.as_deref().map(|pid| ("pid", pid))).collect();
    enforcer.until(&format!("{rule} {pid:?}"), |page| {
        page.all("bailiff_flag", &labels).next().is_some().then_some(())
    });
}

fn status_page(node: &Node) -> String {
    http::get(node.exporter.address(), "/", &[]).unwrap().text()
}

/// Returns the rows in the status page's table of stuck holders that contain this text in a cell.
fn rows(html: &str, cell: &str) -> Vec<String> {
    let table = html.split("id=\"stuck-table-caption\"").nth(1).unwrap_or_default();
    let table = table.split("</table>").next().unwrap_or_default();
    table.lines().filter(|row| row.contains(&format!(">{cell}</td>"))).map(str::to_owned).collect()
}

fn info(node: &Node, flags: &[&str]) -> String {
    let mut command = Command::new(programs::bailiff());
    command.arg("info").args(flags).env("BAILIFF_STREAM", node.home.stream());
    command.env("XDG_STATE_HOME", node.home.path()).env("LEASE_DIR", node.home.path().join("pool"));
    command.env_remove("LEASE_REDIS_URL").env_remove("COLUMNS");
    let output = command.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    // Sentences are wrapped at 80 columns.
    String::from_utf8(output.stdout).unwrap().split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn each_kind_is_flagged_with_its_fix() {
    let node = Node::new(&examples(&["stuck-context", "unlisted-processes", "unaccounted-vram"]));
    let (leader, waiting) = (tenant(&node, ZOMBIE_LEADER), tenant(&node, WAITING_IN_THE_KERNEL));
    let parent = tenant(&node, ZOMBIES_PARENT);
    let zombie = until("the child", || children(parent.pid()).first().copied());
    let left = orphan(&node);
    let device_process = Orphan::with_device(0);
    let mut gone = tenant(&node, "print('ready')\nimport signal\nsignal.pause()");
    gone.end();
    for pid in [leader.pid(), waiting.pid(), zombie, left.pid(), gone.pid()] {
        node.hold_pid(pid, "used: 1GiB");
    }
    node.change(|driver| driver.gpus[0].text = "memory: {total: 80GiB, unaccounted: 2GiB}".to_owned());
    let expected = [
        (leader.pid(), "zombie_leader", "zombie_leader", "SIGKILL; its parent does not have to reap it"),
        (waiting.pid(), "disk_sleep", "disk_sleep", "the end of its wait"),
        (zombie, "zombie", "zombie", "the process that inherited its files"),
        (left.pid(), "sleeping", "left_behind", "terminating it (SIGTERM, then SIGKILL)"),
        (gone.pid(), "gone", "gone", "otherwise only the driver"),
    ];
    let page = node.exporter.until("all processes have started their programs", |page| {
        let stuck = expected.iter().all(|(pid, name, kind, _)| {
            let count = page.value("bailiff_gpu_stuck_processes", &[("kind", kind)]);
            state(page, *pid).as_deref() == Some(*name) && count == Some(1.0)
        });
        stuck.then(|| page.clone())
    });
    let of = |name: &str, pid: u32| page.value(name, &[("pid", &pid.to_string())]);
    assert_eq!(of("bailiff_process_orphaned", left.pid()), Some(1.0));
    let parents: Vec<_> = page.all("bailiff_process_parent_info", &[]).map(|(labels, _)| labels).collect();
    assert_eq!(parents.len(), 1, "only the exited process has a parent metric");
    assert_eq!(parents[0]["parent"], parent.pid().to_string());
    node.exporter.until("the process that inherited the device", |page| {
        (page.value("bailiff_gpu_unlisted_processes", &[])? >= 1.0).then_some(())
    });
    assert_reported(&node, &expected.map(|(pid, _, _, freed_by)| (pid, freed_by)), device_process.pid());
    let enforcer = node.home.enforcer(&[]);
    for (pid, ..) in expected {
        flagged(&enforcer, "stuck-context", Some(pid));
    }
    flagged(&enforcer, "unlisted-processes", None);
    enforcer.ticks(3);
    let unaccounted = enforcer.page().all("bailiff_flag", &[("rule", "unaccounted-vram")]).count();
    assert_eq!(unaccounted, 0, "a listed process may hold the memory");
    assert!(!enforcer.page().happened("bailiff_kills_total", &[]));
}

/// Asserts that the status page and the report list each process together with what frees it, and that both name the
/// device process.
fn assert_reported(node: &Node, stuck: &[(u32, &str)], device_process: u32) {
    let html = status_page(node);
    let text = info(node, &["--who"]);
    for (pid, freed_by) in stuck {
        let rows = rows(&html, &pid.to_string());
        assert!(rows.len() == 1 && rows[0].contains(freed_by), "{pid}: {rows:?}");
        assert!(text.contains(&format!("stuck {pid}")) && text.contains(freed_by), "{pid}: {text}");
    }
    assert_eq!(rows(&html, "not held by any listed process").len(), 1, "{html}");
    assert_eq!(rows(&html, &device_process.to_string()).len(), 1, "{html}");
    assert!(text.contains("2.0GiB, not held by any listed process; see below"), "{text}");
    let (_, device_processes) = text.split_once("processes with the device open:").unwrap();
    assert!(device_processes.contains(&format!("{device_process} root python3 not listed")), "{text}");
}

#[test]
fn many_of_one_kind_are_all_counted() {
    let node = Node::new(&examples(&["stuck-context"]));
    // These pids are just below the highest possible pid, so no machine reaches them soon.
    for pid in (4_190_001..).take(40) {
        node.hold_pid(pid, "used: 1GiB");
    }
    node.exporter.until("all are gone", |page| {
        (page.value("bailiff_gpu_stuck_processes", &[("kind", "gone")])? == 40.0).then_some(())
    });
    assert_eq!(rows(&status_page(&node), "4190040").len(), 1);
    let enforcer = node.home.enforcer(&[]);
    until("the target is explained", || {
        let printed = String::from_utf8(enforcer.run(&["explain", "--pid", "4190001"]).stdout).unwrap();
        (printed.matches("a pid for which no process exists, so there is nothing to exempt").count() == 2)
            .then_some(())
    });
    let of = |kind| node.exporter.page().value("bailiff_gpu_stuck_processes", &[("kind", kind)]);
    assert_eq!(of("disk_sleep"), Some(0.0), "all processes were checked");
}

#[test]
fn killable_holders_are_ended_and_memory_is_freed() {
    let node = Node::new(&examples(&["left-behind"]));
    let (left, leader, busy) = (orphan(&node), tenant(&node, ZOMBIE_LEADER), orphan(&node));
    node.hold_process(left.pid(), "used: 2GiB");
    node.hold(&leader, 0, "used: 1GiB");
    node.hold_process(busy.pid(), "used: 1GiB, sm: 80");
    let enforcer = node.home.enforcer(&[]);
    left.gone();
    leader.gone();
    until("both targets are released", || {
        (node.home.results("terminate").iter().filter(|result| *result == "released").count() == 2)
            .then_some(())
    });
    enforcer.until("both kills are counted", |page| {
        (page.value("bailiff_memory_released_bytes_total", &[])? == 3.0 * GIB).then_some(())
    });
    node.exporter.until("the exporter saw its release", |page| {
        let used = page.value("bailiff_gpu_memory_used_bytes", &[])?;
        (page.value(UNRELEASED, &[])? == 0.0 && used == GIB).then_some(())
    });
    assert_eq!(
        state(&node.exporter.page(), busy.pid()).as_deref(),
        Some("sleeping"),
        "a busy process is exempt"
    );
}

/// `kill -9 69938` in the original's documentation: an old Python process that holds memory and is nearly idle.
#[test]
fn old_python_process_is_ended_and_memory_is_freed() {
    let rules = "version: 1
mode: enforce
defaults: {startup_grace: 0s, clear_after: 1, grace: 30s}
rules:
  - name: forgotten
    target: process
    select: {comms: ['python*'], vram: {min: 128MiB}}
    when: {age: {min: 1s}, gpu_util: {max: 1%}, cpu_util: {max: 5%}}
    for: {samples: 4}
    then: [{flag: warning}, {after: {samples: 3}, terminate: {}}]
";
    let node = Node::of(rules, &["memory: {total: 4GiB, unaccounted: 128MiB}"]);
    let old = tenant(&node, "import time\nprint('ready')\ntime.sleep(10**9)");
    let other = Tenant::ignoring_term(&node.home);
    node.hold_together(&[(&old, "used: 1GiB"), (&other, "used: 512MiB")]);
    let used = |page: &Page| page.value("bailiff_gpu_memory_used_bytes", &[]);
    let before =
        node.exporter.until("the process holds memory", |page| used(page).filter(|bytes| *bytes > GIB));
    assert!(info(&node, &["--tag", "before"]).contains("python3"));
    let enforcer = node.home.enforcer(&[]);
    flagged(&enforcer, "forgotten", Some(old.pid()));
    old.gone();
    node.home.until_line("terminate", "released");
    let page = node.exporter.until("the memory is released", |page| {
        (page.value(UNRELEASED, &[])? == 0.0 && used(page)? == before - GIB).then(|| page.clone())
    });
    assert_eq!(page.value("bailiff_gaps_total", &[("gap", "unreleased")]), Some(0.0));
    let compared = info(&node, &["--since", "before"]);
    assert!(compared.contains("ended") && compared.contains("1.0GiB released"), "{compared}");
    assert!(other.is_running());
}

#[test]
fn memory_kept_by_the_driver_is_reported_until_freed() {
    let node = Node::new(&examples(&["unreleased-vram"]));
    let other = Tenant::ignoring_term(&node.home);
    let mut leaking = Tenant::ignoring_term(&node.home);
    node.hold(&other, 0, "used: 1GiB");
    node.hold_pid(leaking.pid(), "used: 2GiB");
    let unreleased = |page: &Page| page.value(UNRELEASED, &[]);
    let pid = leaking.pid();
    node.exporter.until("both processes are reported and no memory is unreleased", |page| {
        (state(page, pid)? == "sleeping" && unreleased(page)? == 0.0).then_some(())
    });
    // Waits for two samples without a new holder, because the later samples are compared with them.
    node.exporter.next();
    let enforcer = node.home.enforcer(&[]);
    leaking.end();
    let missing = |page: &Page| (unreleased(page)? == 2.0 * GIB).then_some(());
    node.exporter.until("the driver lists an exited process", missing);
    // The memory becomes unattributed within one tick.
    node.change(|driver| {
        driver.unlist(pid);
        driver.gpus[0].text = "memory: {unaccounted: 2GiB}".to_owned();
    });
    node.exporter.until("the process is unlisted", |page| {
        (page.value("bailiff_gpu_processes", &[])? == 1.0).then_some(())
    });
    node.exporter.until("the memory is still unreleased", missing);
    flagged(&enforcer, "unreleased-vram", None);
    let row = rows(&status_page(&node), "not released after its holders exited");
    assert!(row.len() == 1 && row[0].contains("2.0 GiB"), "{row:?}");
    assert!(info(&node, &[]).contains("GPU 0 2.0GiB not released after its holders exited"));
    assert!(
        info(&node, &["--full"]).contains("memory unreleased 2.0GiB, not released after its holders exited")
    );
    // Another holder allocates some memory. The value is absent for a tick, and then the same as before.
    let third = Tenant::ignoring_term(&node.home);
    node.hold(&third, 0, "used: 3GiB");
    node.exporter.until("the other holder is listed", |page| {
        (page.value("bailiff_gpu_processes", &[])? == 2.0).then_some(())
    });
    node.exporter.until("the memory is still unreleased", missing);
    node.change(|driver| driver.gpus[0].text = "memory: {unaccounted: 512MiB}".to_owned());
    node.exporter.until("a part is released", |page| (unreleased(page)? == 0.5 * GIB).then_some(()));
    node.change(|driver| driver.gpus[0].text = String::new());
    node.exporter.until("all memory is released", |page| (unreleased(page)? == 0.0).then_some(()));
    enforcer
        .until("the flag is cleared", |page| page.all("bailiff_flag", &[]).next().is_none().then_some(()));
}
