//! Tests that an MPS client is signalled only after its server has terminated it, and the exceptions.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use super::*;
use bailiff_engine::policy;
use bailiff_engine::process::ProcessInfo;
use bailiff_engine::verdict::Outcome;

/// Starts a process with the name of an MPS server and its own pipe directory.
fn server(home: &Home, owner: u32, program: &str) -> Holder {
    let (copy, name) = (home.0.path().join(program), home.0.path().join("nvidia-cuda-mps-server"));
    fs::copy("/bin/sleep", &copy).unwrap();
    let _ = std::os::unix::fs::symlink(&copy, &name);
    let mut command = Command::new("setsid");
    command.args([name.as_os_str(), "1000".as_ref()]).env("CUDA_MPS_PIPE_DIRECTORY", home.0.path());
    let holder = Holder(command.uid(owner).spawn().unwrap());
    until("its name", || {
        (proc_table().person(holder.pid()).unwrap()?.stat.comm == "nvidia-cuda-mps").then_some(())
    });
    holder
}

/// A client, its server, and the control daemon's replies to `get_client_list`, `get_server_status` and
/// `terminate_client`.
struct Says<'a> {
    /// Shell program of the client.
    client: &'a str,
    /// Owner of the server, and the name of its program.
    server: (u32, &'a str),
    clients: &'a str,
    status: &'a str,
    terminated: &'a str,
}

/// Result of an action on a client.
struct Came {
    report: ActionReport,
    signals: Vec<String>,
    /// The last line of the audit log.
    line: String,
    /// Commands that the daemon received, except `get_server_list`.
    asked: String,
    /// The user as whom the daemon was queried.
    user: Option<String>,
    lives: bool,
}

/// Performs an action on a client of a server.
fn act(says: &Says<'_>, action: &dyn Fn(Subject) -> ActionRequest) -> Came {
    act_while(says, action, &|_, _| {})
}

/// Performs an action on a client, and calls `meanwhile` during it, with the executor and the path of the file that
/// lists the commands that the daemon received.
fn act_while(
    says: &Says<'_>,
    action: &dyn Fn(Subject) -> ActionRequest,
    meanwhile: &dyn Fn(&Executor, &Path),
) -> Came {
    let home = Home::new();
    let client = Holder::shell(&home, says.client);
    let server = server(&home, says.server.0, says.server.1);
    let (pid, asked, uids) = (client.pid(), home.0.path().join("asked"), home.0.path().join("uids"));
    // The script may run as another user.
    for (path, mode) in [(home.0.path(), 0o755), (&asked, 0o666), (&uids, 0o666)] {
        drop(File::options().append(true).create(true).open(path));
        fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }
    // For the pipe directories of other tests, the script exits at once.
    let text = format!(
        "[ \"$CUDA_MPS_PIPE_DIRECTORY\" = {} ] || exit 0
id -u >> {}
read word rest; echo \"$word $rest\" | sed 's/{}/SERVER/; s/{pid}/CLIENT/' >> {}
case $word in get_server_list) echo {};; get_client_list) {};; get_server_status) {};; terminate_client) {};; esac",
        home.0.path().display(),
        uids.display(),
        server.pid(),
        asked.display(),
        server.pid(),
        says.clients.replace("CLIENT", &pid.to_string()),
        says.status,
        says.terminated,
    );
    let control = outside::script(&home, "control", &text);
    let settings = ExecutorSettings { mps_control: control.into(), ..home.settings() };
    let mut machine = Machine { clients: true, ..Machine::with(&[client.key()]) };
    let mut hands = home.executor_with(settings);
    hands.see(&machine);
    hands.executor().act(action(of_process(&client))).unwrap();
    meanwhile(hands.executor(), &asked);
    let report = hands.report(&mut machine);
    let signals = if home.lines().last().unwrap()["sent"].is_array() { home.signals() } else { Vec::new() };
    let asked = fs::read_to_string(asked).unwrap_or_default();
    let asked: Vec<&str> = asked.lines().filter(|line| !line.starts_with("get_server_list")).collect();
    let line = home.lines().last().unwrap().to_string();
    let user = fs::read_to_string(uids).unwrap().lines().next().map(str::to_owned);
    Came { report, signals, line, asked: asked.join(", "), user, lives: client.lives() }
}

/// Shell programs of two clients: SIGUSR1 terminates the first, and the second catches it.
const ENDS: &str = "echo ready; exec sleep 1000";
const CATCHES: &str = "trap : USR1; echo ready; while :; do sleep 1000 & wait; done";
const SERVER: &str = "nvidia-cuda-mps-server";
const WELL: Says<'_> = Says {
    client: ENDS,
    server: (0, SERVER),
    clients: "echo CLIENT",
    status: "echo ACTIVE",
    terminated: "echo 0",
};

fn in_a_minute(subject: Subject) -> ActionRequest {
    terminate(subject, Duration::from_mins(1))
}

#[test]
fn its_server_lets_it_go_before_it_is_signalled() {
    let Came { report, signals, asked, user, lives, .. } = act(&WELL, &in_a_minute);
    assert_eq!((report.outcome, lives), (Outcome::Released, false), "{}", report.detail);
    assert_eq!((signals, user.as_deref()), (vec!["SIGTERM".to_owned()], Some("0")));
    let list = "get_client_list SERVER";
    assert_eq!(asked, format!("{list}, {list}, get_server_status SERVER, terminate_client SERVER CLIENT"));
}

#[test]
fn in_fault_it_is_signalled_at_once() {
    let Came { report, signals, asked, lives, .. } =
        act(&Says { status: "echo FAULT", ..WELL }, &in_a_minute);
    assert_eq!((report.outcome, lives), (Outcome::Released, false), "{}", report.detail);
    assert_eq!(signals, ["SIGTERM"]);
    assert!(!asked.contains("terminate_client"), "{asked}");
}

#[test]
fn without_an_answer_it_is_not_signalled() {
    let cases = [
        (Says { clients: "exec sleep 1000", ..WELL }, "did not respond within 2s", false),
        (Says { clients: "echo 1", ..WELL }, "no MPS server lists it", false),
        (Says { clients: "echo 'Server not found'", ..WELL }, "no such server", false),
        (Says { terminated: "echo 'Client termination failed with 999'", ..WELL }, "failed with 999", true),
        (Says { terminated: ":", ..WELL }, "invalid reply", true),
    ];
    for (says, why, terminated) in cases {
        let Came { report, signals, asked, lives, .. } = act(&says, &in_a_minute);
        assert_eq!((report.outcome, lives), (Outcome::Refused, true), "{why}: {}", report.detail);
        assert!(report.detail.contains(why), "{}", report.detail);
        assert_eq!((signals.len(), asked.contains("terminate_client")), (0, terminated), "{asked}");
    }
}

/// Otherwise users could protect a process with an unresponsive daemon of their own.
#[test]
fn silent_daemon_of_its_own_user_does_not_protect_it() {
    let others = NOBODY - 1;
    let hung = Says { clients: "exec sleep 1000", ..WELL };
    let cases = [
        (Says { server: (NOBODY, SERVER), ..hung }, "its MPS server was not found", ""),
        (
            Says { server: (NOBODY, SERVER), terminated: ":", ..WELL },
            "the daemon belongs to the client's user",
            "terminate_client",
        ),
        (Says { server: (others, SERVER), ..hung }, "its MPS server was not found", ""),
        // Through a symlink, users can start a setuid-root program under any name.
        (Says { server: (0, "su"), ..hung }, "its MPS server was not found", ""),
    ];
    for (says, note, asked_for) in cases {
        let Came { report, signals, line, asked, user, lives } = act(&says, &in_a_minute);
        assert_eq!((report.outcome, lives), (Outcome::Released, false), "{note}: {}", report.detail);
        assert_eq!(signals, ["SIGTERM"]);
        assert!(line.contains(note), "{line}");
        assert!(asked.contains(asked_for) && (says.server.0 == NOBODY || asked.is_empty()), "{asked}");
        // With root's rights, the user could have a daemon of another PID namespace end a process with another pid.
        assert!(user.is_none_or(|user| user == NOBODY.to_string()));
    }
}

#[test]
fn what_is_called_off_while_a_daemon_is_silent_is_not_done() {
    // An unresponsive daemon alone would not protect the client.
    let says = Says { server: (NOBODY, SERVER), clients: "exec sleep 1000", ..WELL };
    let came = act_while(&says, &in_a_minute, &|executor, asked| {
        until("a question", || fs::read_to_string(asked).ok()?.contains("get_client_list").then_some(()));
        executor.cancel(7);
    });
    assert_eq!((came.report.outcome, came.lives), (Outcome::Cancelled, true), "{}", came.line);
    assert!(came.signals.is_empty(), "{}", came.line);
}

/// Kills the client, waits until it has exited, and lists it.
const KILLS: &str = "kill -9 CLIENT; until grep -qs 'State:.Z' /proc/CLIENT/status || [ ! -e /proc/CLIENT ]; do :; done; echo CLIENT";

#[test]
fn one_that_ends_while_daemons_are_asked_is_not_asked_of() {
    let says = Says { clients: KILLS, ..WELL };
    let Came { report, asked, line, .. } = act(&says, &in_a_minute);
    assert_eq!(report.outcome, Outcome::Gone, "{}", report.detail);
    assert!(!asked.contains("terminate_client") && line.contains("exited before"), "{asked}: {line}");
}

#[test]
fn terminating_signal_asks_the_server_and_other_signals_do_not() {
    let signal = |name: &'static str, number: i32| {
        move |subject: Subject| request(subject, Action::Signal(policy::Signal { number, name }))
    };
    let Came { report, signals, .. } = act(&Says { clients: "echo 1", ..WELL }, &signal("SIGTERM", 15));
    assert_eq!((report.outcome, signals.len()), (Outcome::Refused, 0), "{}", report.detail);
    for (client, ends) in [(CATCHES, false), (ENDS, true)] {
        let Came { report, signals, asked, lives, .. } =
            act(&Says { client, ..WELL }, &signal("SIGUSR1", 10));
        assert_eq!(
            (report.outcome, signals),
            (Outcome::Done, vec!["SIGUSR1".to_owned()]),
            "{}",
            report.detail
        );
        assert_eq!(asked.contains("terminate_client"), ends, "{asked}");
        assert!(lives || ends, "it takes it for news");
    }
}

/// Users can start a setuid program under any name, and leave it as a zombie with root's effective uid.
#[test]
fn zombie_of_a_setuid_program_is_no_mps_daemon() {
    let home = Home::new();
    let client = Holder::shell(&home, "echo ready; exec sleep 1000");
    let name = home.0.path().join("nvidia-cuda-mps");
    std::os::unix::fs::symlink("/bin/su", &name).unwrap();
    let mut command = Command::new("setsid");
    let start = "\"$0\" < /dev/null > /dev/null 2>&1 & exec sleep 1000";
    let parent = Holder(command.args(["sh", "-c", start]).arg(&name).uid(65534).spawn().unwrap());
    until("a zombie", || {
        let table = proc_table().everybody().unwrap();
        let is_zombie = |person: &ProcessInfo| {
            person.stat.ppid == parent.pid() && is_over(person.stat.state) && person.uid == 65534
        };
        table
            .people
            .values()
            .any(|person| person.stat.comm == "nvidia-cuda-mps" && is_zombie(person))
            .then_some(())
    });
    let control = outside::script(&home, "control", "echo no daemon; exit 1");
    let settings = ExecutorSettings { mps_control: control.into(), ..home.settings() };
    let mut machine = Machine { clients: true, ..Machine::with(&[client.key()]) };
    let report = home
        .executor_with(settings)
        .act(terminate(of_process(&client), Duration::from_secs(30)), &mut machine);
    assert_eq!(report.outcome, Outcome::Released, "{}", report.detail);
}
