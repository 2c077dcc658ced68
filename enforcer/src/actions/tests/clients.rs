//! Clients of MPS: their server lets them go before they are signalled, or they are not.

use super::*;
use crate::policy;
use crate::verdict::Outcome;

/// A server of MPS by its name, with a pipe directory of its own.
fn server(home: &Home) -> Holder {
    let program = home.0.path().join("nvidia-cuda-mps-server");
    fs::copy("/bin/sleep", &program).unwrap();
    let mut command = Command::new("setsid");
    command.args([program.as_os_str(), "1000".as_ref()]).env("CUDA_MPS_PIPE_DIRECTORY", home.0.path());
    let holder = Holder(command.spawn().unwrap());
    until("its name", || {
        (census().person(holder.pid()).unwrap()?.stat.comm == "nvidia-cuda-mps").then_some(())
    });
    holder
}

/// What a daemon says: to `get_client_list`, to `get_server_status` and to `terminate_client`.
struct Says<'a> {
    clients: &'a str,
    status: &'a str,
    terminated: &'a str,
}

/// Deals with a client of a server; tells what came of it, what was noted, what the daemon was asked, and whether it lives.
fn act(says: &Says<'_>, action: &dyn Fn(Subject) -> Deed) -> (Report, Vec<String>, String, bool) {
    let home = Home::new();
    let client = Holder::shell(&home, "echo ready; exec sleep 1000");
    let server = server(&home);
    let (pid, asked) = (client.pid(), home.0.path().join("asked"));
    // Daemons of other tests have nothing to do with it.
    let text = format!(
        "[ \"$CUDA_MPS_PIPE_DIRECTORY\" = {} ] || exit 0
read word rest; echo \"$word $rest\" | sed 's/{}/SERVER/; s/{pid}/CLIENT/' >> {}
case $word in get_server_list) echo {};; get_client_list) {};; get_server_status) {};; terminate_client) {};; esac",
        home.0.path().display(),
        server.pid(),
        asked.display(),
        server.pid(),
        says.clients.replace("CLIENT", &pid.to_string()),
        says.status,
        says.terminated,
    );
    let control = outside::script(&home, "control", &text);
    let settings = Settings { mps_control: control.into(), ..home.settings() };
    let mut machine = Machine { clients: true, ..Machine::with(&[client.key()]) };
    let report = home.hand_with(settings).act(action(of_process(&client)), &mut machine);
    let signals = if home.lines().last().unwrap()["sent"].is_array() { home.signals() } else { Vec::new() };
    let asked = fs::read_to_string(asked).unwrap_or_default();
    let asked: Vec<&str> = asked.lines().filter(|line| !line.starts_with("get_server_list")).collect();
    (report, signals, asked.join(", "), client.lives())
}

const WELL: Says<'_> = Says { clients: "echo CLIENT", status: "echo ACTIVE", terminated: "echo 0" };

fn in_a_minute(subject: Subject) -> Deed {
    terminate(subject, Duration::from_mins(1))
}

#[test]
fn its_server_lets_it_go_before_it_is_signalled() {
    let (report, signals, asked, lives) = act(&WELL, &in_a_minute);
    assert_eq!((report.outcome, lives), (Outcome::Released, false), "{}", report.detail);
    assert_eq!(signals, ["SIGTERM"]);
    assert_eq!(asked, "get_client_list SERVER, get_server_status SERVER, terminate_client SERVER CLIENT");
}

#[test]
fn in_fault_it_is_signalled_at_once() {
    let (report, signals, asked, lives) = act(&Says { status: "echo FAULT", ..WELL }, &in_a_minute);
    assert_eq!((report.outcome, lives), (Outcome::Released, false), "{}", report.detail);
    assert_eq!(signals, ["SIGTERM"]);
    assert!(!asked.contains("terminate_client"), "{asked}");
}

#[test]
fn without_an_answer_it_is_not_signalled() {
    let cases = [
        (Says { clients: "exec sleep 1000", ..WELL }, "did not answer within 2s", false),
        (Says { clients: "echo 1", ..WELL }, "no server lists it", false),
        (Says { clients: "echo 'Server not found'", ..WELL }, "no such server", false),
        (Says { terminated: "echo 'Client termination failed with 999'", ..WELL }, "failed with 999", true),
        (Says { terminated: ":", ..WELL }, "not understood", true),
    ];
    for (says, why, terminated) in cases {
        let (report, signals, asked, lives) = act(&says, &in_a_minute);
        assert_eq!((report.outcome, lives), (Outcome::Refused, true), "{why}: {}", report.detail);
        assert!(report.detail.contains(why), "{}", report.detail);
        assert_eq!((signals.len(), asked.contains("terminate_client")), (0, terminated), "{asked}");
    }
}

#[test]
fn a_signal_that_ends_asks_too_and_one_that_tells_does_not() {
    let signal = |name: &'static str, number: i32| {
        move |subject: Subject| deed(subject, Action::Signal(policy::Signal { number, name }))
    };
    let (report, signals, ..) = act(&Says { clients: "echo 1", ..WELL }, &signal("SIGTERM", 15));
    assert_eq!((report.outcome, signals.len()), (Outcome::Refused, 0), "{}", report.detail);
    let (report, signals, asked, _) = act(&WELL, &signal("SIGUSR1", 10));
    assert_eq!((report.outcome, signals), (Outcome::Done, vec!["SIGUSR1".to_owned()]), "{}", report.detail);
    assert_eq!(asked, "");
}
