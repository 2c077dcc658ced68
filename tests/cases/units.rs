//! Tests the systemd units: they are valid, grant few privileges, and both daemons send the expected
//! notifications.
#![allow(
    clippy::disallowed_methods,
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a case runs programs, reads files and fails loudly"
)]

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use end_to_end::daemon::Daemon;
use end_to_end::enforcer::{self, Enforcer};
use end_to_end::exporter::{self, Exporter};
use end_to_end::fake::Scenario;
use end_to_end::home::Home;
use end_to_end::{programs, wait};
use rustix::process::Signal;

/// Documented upper bound for each unit's score in `systemd-analyze security`, in tenths: from 0 (best) to 100.
const MOST: [(&str, &str); 2] = [("bailiff-exporter", "29"), ("bailiff-enforcer", "30")];

/// The mount of the `/proc` that the daemons have.
const PROC_MOUNT: &str = "run-bailiff-private-proc.mount";

const RULES: &str = "version: 1
rules:
  - {name: none, target: gpu, when: {process_count: {min: 1000}}, for: 1h, then: [{flag: info}]}
";

/// Returns the units, with the programs from this build in place of the installed programs.
fn units(directory: &Path) -> Vec<PathBuf> {
    let directory_of_units = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join("config/systemd");
    let programs = programs::bailiff().parent().unwrap().display().to_string();
    let unit = |(name, _): &(&str, &str)| {
        let text = fs::read_to_string(directory_of_units.join(format!("{name}.service"))).unwrap();
        let path = directory.join(format!("{name}.service"));
        fs::write(&path, text.replace("/usr/bin", &programs)).unwrap();
        path
    };
    fs::copy(directory_of_units.join(PROC_MOUNT), directory.join(PROC_MOUNT)).unwrap();
    MOST.iter().map(unit).collect()
}

fn analyze(arguments: &[&str], units: &[&PathBuf]) {
    let output = Command::new("systemd-analyze").args(arguments).args(units).output().unwrap();
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {output:?}");
    // The command only warns about unknown settings.
    assert!(!message.contains("bailiff"), "{message}");
}

#[test]
fn units_pass_systemd_verify_and_security() {
    let directory = tempfile::tempdir().unwrap();
    let units = units(directory.path());
    analyze(&["verify", "--man=no"], &units.iter().collect::<Vec<_>>());
    for (unit, (_, most)) in units.iter().zip(MOST) {
        analyze(&["security", "--offline=yes", "--threshold", most], &[unit]);
    }
}

/// Returns the values of a setting of a unit.
fn setting<'a>(unit: &'a str, name: &str) -> Vec<&'a str> {
    let values = unit.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix('='));
    values.flat_map(str::split_whitespace).collect()
}

/// Returns the system calls of a set such as `@system-service`, or the call itself.
fn system_calls(name: &str) -> BTreeSet<String> {
    if !name.starts_with('@') {
        return BTreeSet::from([name.to_owned()]);
    }
    let output = Command::new("systemd-analyze").args(["syscall-filter", name]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let members =
        text.lines().skip(1).map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    members.flat_map(system_calls).collect()
}

#[test]
fn enforcer_cannot_access_the_memory_of_processes_by_system_calls() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .unwrap()
        .join("config/systemd/bailiff-enforcer.service");
    let unit = fs::read_to_string(path).unwrap();
    let mut permitted = BTreeSet::new();
    for line in unit.lines().filter_map(|line| line.strip_prefix("SystemCallFilter=")) {
        let denied = line.strip_prefix('~');
        for call in denied.unwrap_or(line).split_whitespace().flat_map(system_calls) {
            if denied.is_some() {
                permitted.remove(&call)
            } else {
                permitted.insert(call)
            };
        }
    }
    for needed in ["pidfd_open", "pidfd_send_signal", "capset"] {
        assert!(permitted.contains(needed), "{needed}");
    }
    for call in ["ptrace", "process_vm_readv", "process_vm_writev", "process_madvise", "pidfd_getfd", "kcmp"]
    {
        assert!(!permitted.contains(call), "{call}");
    }
}

#[test]
fn exporter_can_neither_signal_nor_pause_the_enforcer() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join("config/systemd");
    let read = |name: &str| fs::read_to_string(directory.join(name)).unwrap();
    let [exporter, enforcer] = ["bailiff-exporter.service", "bailiff-enforcer.service"].map(read);
    let users = [&exporter, &enforcer].map(|unit| setting(unit, "User"));
    assert_eq!(users, [["bailiff-exporter"], ["bailiff-enforcer"]]);
    assert_eq!(setting(&enforcer, "Group"), ["bailiff"], "the group of the enforcer's socket");
    let groups = ["Group", "SupplementaryGroups"].map(|name| setting(&exporter, name)).concat();
    assert_eq!(groups, ["bailiff-exporter"]);
    assert!(!setting(&exporter, "AmbientCapabilities").contains(&"CAP_KILL"));
    let directories = [&exporter, &enforcer].map(|unit| setting(unit, "RuntimeDirectory"));
    assert_eq!(directories, [["bailiff/exporter"], ["bailiff/enforcer"]]);
    let shared = read("bailiff.tmpfiles");
    assert!(
        shared.contains("d /run/bailiff 0755 root root"),
        "no other user creates files beside them: {shared}"
    );
    assert!(shared.contains("d /run/bailiff/lease 0755 root root"), "{shared}");
}

/// A user who can list a directory can lock it, so that nobody else can list it.
#[test]
fn daemons_have_a_proc_that_users_cannot_open() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join("config/systemd");
    let read = |name: &str| fs::read_to_string(directory.join(name)).unwrap();
    for unit in ["bailiff-exporter.service", "bailiff-enforcer.service"].map(read) {
        assert_eq!(setting(&unit, "BindPaths"), ["-/run/bailiff/private/proc:/proc"]);
        assert!(
            setting(&unit, "Requires").contains(&PROC_MOUNT) && setting(&unit, "After").contains(&PROC_MOUNT)
        );
    }
    let mount = read(PROC_MOUNT);
    let values = ["What", "Type", "Where", "DirectoryMode"].map(|name| setting(&mount, name)).concat();
    assert_eq!(values, ["proc", "proc", "/run/bailiff/private/proc", "0700"]);
    assert!(read("bailiff.tmpfiles").contains("d /run/bailiff/private 0700 root root"));
}

/// The notification socket of systemd.
struct Manager(UnixDatagram, tempfile::TempDir);

impl Manager {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let socket = UnixDatagram::bind(directory.path().join("notify")).unwrap();
        socket.set_read_timeout(Some(wait::LONG)).unwrap();
        Self(socket, directory)
    }

    /// Returns a command line with this socket and this watchdog interval.
    fn watch(&self, mut command: Command, often: Duration) -> Command {
        command.env("NOTIFY_SOCKET", self.1.path().join("notify"));
        command.env("WATCHDOG_USEC", often.as_micros().to_string());
        command
    }

    /// Waits for a notification.
    fn expect(&self, word: &str) {
        let mut message = [0; 256];
        loop {
            let length =
                self.0.recv(&mut message).unwrap_or_else(|error| panic!("waits for {word}: {error}"));
            if String::from_utf8_lossy(&message[..length]).lines().any(|line| line == word) {
                return;
            }
        }
    }

    fn expect_lifecycle(&self, daemon: &Daemon) {
        for word in ["READY=1", "WATCHDOG=1", "WATCHDOG=1"] {
            self.expect(word);
        }
        daemon.signal(Signal::TERM);
        self.expect("STOPPING=1");
    }
}

#[test]
fn exporter_notifies_the_systemd_watchdog() {
    let (manager, scenario) = (Manager::new(), Scenario::named("idle"));
    let mut command = exporter::command(&scenario);
    command.args(exporter::TICKS);
    let exporter = Exporter::spawn(manager.watch(command, Duration::from_millis(200)));
    manager.expect_lifecycle(&exporter);
}

#[test]
fn enforcer_notifies_the_systemd_watchdog() {
    let (manager, home) = (Manager::new(), Home::with(RULES));
    let command = manager.watch(enforcer::command(&home), Duration::from_secs(30));
    let enforcer = Enforcer::spawn(&home, command);
    manager.expect_lifecycle(&enforcer);
}
