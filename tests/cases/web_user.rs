//! The exporter, started as root with `--web.user`: the process that serves HTTP runs as another user than the launcher
//! and the workers.
#![allow(
    clippy::disallowed_methods,
    clippy::expect_used,
    clippy::float_cmp,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a case runs programs, reads files, compares exact figures and fails loudly"
)]

use std::fs::{self, Permissions};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::net::UnixStream;
use std::process::{Command, Output};

use end_to_end::exporter::{Exporter, TICKS, command};
use end_to_end::fake::Scenario;
use end_to_end::home::Home;
use end_to_end::http;
use end_to_end::page::Page;
use end_to_end::wait::until;

/// Capabilities of the exporter's container in Kubernetes.
pub(crate) const CAPABILITIES: [&str; 4] = ["SYS_PTRACE", "DAC_READ_SEARCH", "SETUID", "SETGID"];
/// Their bits in `/proc/PID/status`.
const BITS: &str = "00000000000800c4";
const USER: u32 = 65532;
const GPUS: &str = "sampling_period: 20ms\ngpus:\n  - processes: [{pid: 4100, used: 1GiB}]\n";

/// Returns the exporter's command, as root with these capabilities.
fn with_capabilities(scenario: &Scenario, names: &[&str], user: &str) -> Command {
    let rights = names.join(",+").to_lowercase();
    let exporter = command(scenario);
    let mut command = Command::new("setpriv");
    command
        .arg(format!("--bounding-set=-all,+{rights}"))
        .arg(exporter.get_program())
        .args(exporter.get_args());
    command.envs(exporter.get_envs().filter_map(|(name, value)| Some((name, value?))));
    command.arg(format!("--web.user={user}"));
    command
}

/// Starts the exporter as in Kubernetes.
fn started(scenario: &Scenario, home: &Home, arguments: &[&str]) -> Exporter {
    let mut command = with_capabilities(scenario, &CAPABILITIES, "65532");
    command.args(TICKS).arg("--stream").arg(home.stream()).args(arguments);
    Exporter::spawn(command)
}

fn is_up(page: &Page) -> Option<()> {
    (page.value("bailiff_source_up", &[("source", "nvml")])? == 1.0).then_some(())
}

/// Returns the words of a line of `/proc/PID/status`.
fn status(pid: u32, name: &str) -> Vec<String> {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).unwrap();
    line.split_whitespace().map(str::to_owned).collect()
}

/// Returns whether a process of the user may send a signal to this process.
fn may_signal(pid: u32) -> bool {
    let mut kill = Command::new("setpriv");
    kill.args([format!("--reuid={USER}"), format!("--regid={USER}"), "--clear-groups".to_owned()]);
    kill.args(["sh", "-c", &format!("kill -0 {pid}")]).output().unwrap().status.success()
}

fn first_line(home: &Home) -> String {
    let mut line = String::new();
    BufReader::new(UnixStream::connect(home.stream()).unwrap()).read_line(&mut line).unwrap();
    line
}

fn refused(output: &Output, code: i32, why: &str) {
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(code) && text.contains(why), "{code}, {why}: {output:?}");
}

#[test]
fn http_process_is_another_user_without_rights() {
    let (scenario, home) = (Scenario::new(GPUS), Home::new());
    let record = home.path().join("record");
    let exporter = started(&scenario, &home, &["--record", record.to_str().unwrap()]);
    exporter.until("the driver is up", is_up);
    for ids in ["Uid", "Gid"] {
        assert_eq!(status(exporter.pid(), ids), ["65532"; 4], "{ids}");
    }
    assert_eq!(status(exporter.pid(), "Groups"), [""; 0]);
    assert_eq!(status(exporter.pid(), "NoNewPrivs"), ["1"]);
    for set in ["CapInh", "CapPrm", "CapEff", "CapAmb"] {
        assert_eq!(status(exporter.pid(), set), ["0000000000000000"], "{set}");
    }
    assert!(may_signal(exporter.pid()), "otherwise the next check proves nothing");
    for role in ["sampling-launcher", "sampling-worker"] {
        let pid = exporter.children(role)[0];
        assert_eq!(
            (status(pid, "Uid"), status(pid, "CapEff")),
            (vec!["0".to_owned(); 4], vec![BITS.to_owned()])
        );
        assert!(!may_signal(pid), "{role}");
    }
    assert!(
        exporter.page().value("process_open_fds", &[]).is_some(),
        "the process can read its own files in /proc"
    );
    assert!(first_line(&home).contains("\"seq\":"));
    until("the record", || fs::read_to_string(&record).ok().filter(|lines| lines.contains('\n')));
    for file in [&home.stream(), &record] {
        assert_eq!(fs::metadata(file).unwrap().uid(), 0, "opened before the change: {}", file.display());
    }
}

#[test]
fn socket_that_remains_is_replaced_at_the_next_start() {
    let (scenario, home) = (Scenario::new(GPUS), Home::new());
    for _ in 0..2 {
        let mut exporter = started(&scenario, &home, &[]);
        exporter.until("the driver is up", is_up);
        assert!(first_line(&home).contains("\"seq\":"));
        assert_eq!(exporter.stop(), Some(0));
        assert!(UnixStream::connect(home.stream()).is_err());
        assert!(!exporter.log().contains("cannot remove"), "{}", exporter.log());
    }
}

#[test]
fn hung_worker_of_root_is_killed() {
    let (scenario, home) = (Scenario::new(GPUS), Home::new());
    let exporter = started(&scenario, &home, &[]);
    exporter.until("the driver is up", is_up);
    let worker = exporter.children("sampling-worker")[0];
    scenario.set(&format!("faults: {{hang: true}}\n{GPUS}"));
    until("the hung worker is gone", || {
        (!exporter.children("sampling-worker").contains(&worker)).then_some(())
    });
    scenario.set(GPUS);
    exporter.until("the exporter has recovered", is_up);
    exporter.until("no worker hangs", |page| {
        (page.value("bailiff_sampling_workers_hung", &[])? == 0.0).then_some(())
    });
}

#[test]
fn enforcer_recognizes_the_exporter_after_the_change() {
    let rules = "version: 1\nrules:\n  - {name: none, target: gpu, when: {process_count: {min: 1000}}, for: 1h, \
                 then: [{flag: info}]}\n";
    let (scenario, home) = (Scenario::new(GPUS), Home::with(rules));
    let exporter = started(&scenario, &home, &[]);
    let enforcer = home.enforcer(&[]);
    // Only an exporter that is recognized is exempt from actions.
    enforcer.until_logged(&format!("pid={}", exporter.pid()));
}

#[test]
fn web_config_is_read_as_the_user() {
    let (scenario, home) = (Scenario::new(GPUS), Home::new());
    let config = home.path().join("web.yml");
    fs::write(&config, "http_server_config: {http2: false}\n").unwrap();
    let flag = format!("--web.config.file={}", config.display());
    chown(&config, None, Some(USER)).unwrap();
    fs::set_permissions(&config, Permissions::from_mode(0o640)).unwrap();
    let exporter = started(&scenario, &home, &[&flag]);
    until("the page is served", || {
        let response = http::get(exporter.address(), "/metrics", &[]).ok()?;
        (response.status == 200).then_some(())
    });
    chown(&config, None, Some(0)).unwrap();
    let mut command = with_capabilities(&scenario, &CAPABILITIES, "65532");
    refused(
        &command.args(["--web.listen-address=127.0.0.1:0", &flag]).output().unwrap(),
        64,
        "permission denied",
    );
}

#[test]
fn user_that_cannot_be_assumed_is_refused() {
    let scenario = Scenario::new(GPUS);
    let output = |mut command: Command| command.arg("--web.listen-address=127.0.0.1:0").output().unwrap();
    let without = output(with_capabilities(&scenario, &CAPABILITIES[..2], "65532"));
    refused(&without, 1, "cannot change to the user of --web.user: CAP_SETUID and CAP_SETGID are needed");
    for user in ["0", "0:0", "nobody"] {
        let invalid = output(with_capabilities(&scenario, &CAPABILITIES, user));
        refused(&invalid, 64, "not UID or UID:GID, such as 65532; root is not accepted");
    }
    // The user may not be allowed to traverse the directories on the path to the program.
    let mut other = Command::new("sh");
    other.args(["-c", "exec setpriv --reuid=4002 --clear-groups /proc/self/fd/9 \"$@\" 9<\"$0\""]);
    other.arg(end_to_end::programs::exporter()).arg("--web.user=65532");
    refused(&output(other), 64, "--web.user needs root");
}
