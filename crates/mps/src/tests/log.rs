//! Tests lines from real logs, and texts that the drivers' programs contain.

use proptest::prelude::*;

use super::*;

fn event_of(line: &str) -> Event {
    Event::of(line)
}

const RECORDED: &[(&str, Event)] = &[
    (
        "[2026-11-21 06:27:24.009 Control 18763] Starting control daemon using socket /tmp/nvidia-mps/control",
        Event::DaemonStarting,
    ),
    ("[2026-11-21 06:27:48.525 Control 18763] User did not send valid credentials", Event::Routine),
    ("[2026-11-22 18:07:14.750 Control 20951] Unable to accept connection", Event::Routine),
    (
        "[2026-11-22 17:39:31.117 Control  9907] To connect CUDA applications to this daemon, set env CUDA_MPS_PIPE_DIRECTORY=/run/mps0",
        Event::Routine,
    ),
    ("[2026-11-22 18:07:15.257 Control 20951] Exit with status 0", Event::Routine),
    (
        "[2026-11-21 06:27:48.525 Control 18763] NEW CLIENT 19917 from user 0: Server is not ready, push client to pending list",
        Event::ClientNew { client: 19917, uid: Some(0), pending: true },
    ),
    (
        "[2026-11-21 06:27:48.525 Control 19960] Starting new server 19960 for user 0",
        Event::ServerStarting { server: 19960, uid: Some(0) },
    ),
    (
        "[2026-11-21 06:27:48.537 Control 18763] Server encountered a fatal exception. Shutting down",
        Event::Routine,
    ),
    (
        "[2026-11-21 06:27:48.541 Control 18763] Server 19960 exited with status 1",
        Event::ServerExited { server: 19960, status: Some(1) },
    ),
    ("[2026-05-31 23:48:21.748 Control 11107] NEW SERVER 11803: Ready", Event::ServerReady { server: 11803 }),
    (
        "[2021-06-27 07:30:26.838 Control     6] NEW CLIENT 0 from user 0: Server already exists",
        Event::ClientNew { client: 0, uid: Some(0), pending: false },
    ),
    (
        "[2026-11-21 06:27:46.290 Other 19731] Driver initialization failed with: no CUDA-capable device is detected",
        Event::Routine,
    ),
    (
        "[2021-06-27 07:30:58.151 Other    17] Volta MPS: Client disconnected. Number of active client contexts is 2",
        Event::Routine,
    ),
    ("[2026-04-28 18:20:41.855 Server 4428] Creating server context on device 0 (Tesla T4)", Event::Routine),
    (
        "[2026-04-28 18:20:41.986 Server 4428] Device pinned memory limit for device 0 set to 0x140000000 bytes",
        Event::Routine,
    ),
    ("[2026-04-28 18:20:41.986 Server 4428] Client {PID: 4267, Context ID: 0} connected", Event::Routine),
];

#[test]
fn recorded_lines_are_understood() {
    for (line, expected) in RECORDED {
        assert_eq!(event_of(line), *expected, "{line}");
    }
}

const STRINGS: &[(&str, Event)] = &[
    ("Received new client request", Event::Routine),
    ("Cmd:get_server_list", Event::Routine),
    ("Volta MPS: Creating worker thread", Event::Routine),
    ("Receive command failed, assuming client exit", Event::Routine),
    ("Status of client {4267, 0} is ACTIVE", Event::Routine),
    ("Volta MPS: Status of client {4267, 0} is INACTIVE", Event::Routine),
    ("Client {4267, 0} exit", Event::Routine),
    ("Client process disconnected", Event::Routine),
    ("Client process 4267 encountered a fatal GPU error.", Event::ClientFault),
    ("Server is handling a fatal GPU error.", Event::Routine),
    ("The following clients have a sticky error set:", Event::Routine),
    ("The following devices will be reset:", Event::Routine),
    (
        "Failed to accept new client. Maximum number of clients (48) reached.",
        Event::ClientRejected { reason: MpsRejection::Clients },
    ),
    (
        "Failed to accept new client. Reached maximum number of device connections.",
        Event::ClientRejected { reason: MpsRejection::DeviceConnections },
    ),
    (
        "Teardown in progress, client creation denied",
        Event::ClientRejected { reason: MpsRejection::Teardown },
    ),
    ("Failed to accept new client", Event::ClientRejected { reason: MpsRejection::Other }),
    ("Forcefully terminating client 4267", Event::Routine),
    ("Client termination succeeded.", Event::Routine),
    ("Client termination failed with 999", Event::Routine),
    ("Server was unable to shutdown due to 3 active workers threads", Event::Routine),
    ("A sentence of a release to come", Event::Unknown),
    ("", Event::Unknown),
];

#[test]
fn the_strings_of_the_drivers_are_understood() {
    for (text, expected) in STRINGS {
        assert_eq!(
            event_of(&format!("[2026-11-21 06:27:24.009 Server 4428] {text}\n")),
            *expected,
            "{text:?}"
        );
    }
}

const OF_THE_DAEMON: &[(&str, Event)] = &[
    ("Server 5 exited with status -9", Event::ServerExited { server: 5, status: Some(-9) }),
    ("Server 5 exited with status", Event::ServerExited { server: 5, status: None }),
    ("NEW SERVER 5: Gone", Event::Unknown),
    ("NEW SERVER 5: Ready", Event::ServerReady { server: 5 }),
];

#[test]
fn daemon_events_are_ignored_from_other_writers() {
    for (text, expected) in OF_THE_DAEMON {
        assert_eq!(event_of(&format!("[2026-11-21 06:27:24.009 Control 7] {text}")), *expected, "{text}");
        for head in ["", "[2026-11-21 06:27:24.009 Server 7] ", "[2026-11-21 06:27:24.009 Client 7] "] {
            assert_eq!(event_of(&format!("{head}{text}")), Event::Unknown, "{head}{text}");
        }
    }
    let fault = "Client process 4267 encountered a fatal GPU error.";
    for head in ["", "[2026-11-21 06:27:24.009 Control 7] ", "[2026-11-21 06:27:24.009 Client 7] "] {
        assert_eq!(event_of(&format!("{head}{fault}")), Event::Unknown, "{head}{fault}");
    }
}

/// Any user can write to the daemon's socket, and the daemon logs the text.
#[test]
fn text_sent_by_a_user_is_no_event() {
    let events = RECORDED.iter().map(|(line, _)| line.split_once("] ").expect("a head").1);
    let strings = STRINGS.iter().chain(OF_THE_DAEMON).map(|(text, _)| *text);
    for text in events.chain(strings) {
        for line in [format!("Cmd:{text}"), format!("Cmd:foo {text}"), format!("Unknown command \"{text}\"")]
        {
            let line = format!("[2026-11-21 06:27:24.009 Control 18763] {line}");
            assert_eq!(event_of(&line), Event::Routine, "{line}");
        }
    }
}

#[test]
fn line_heads_have_a_writer() {
    let cases = [
        ("2026-11-21 06:27:24.009 Control 18763", "Control"),
        ("2021-06-27 07:30:26.838 Control     6", "Control"),
        ("2021-06-27 07:30:26.838 Legacy Server    17", "Legacy Server"),
        ("2021-06-27 07:30:26.838 Broker 17", "Broker"),
        ("", ""),
    ];
    for (head, expected) in cases {
        assert_eq!(writer(head), expected, "{head}");
    }
    for line in ["[half a head", "[] NEW SERVER 5: Ready", "4100"] {
        assert_eq!(event_of(line), Event::Unknown, "{line}");
    }
}

proptest! {
    #[test]
    fn no_line_is_a_fault(line in "(\\[[0-9: .a-zA-Z-]{0,40}\\])?.{0,80}") {
        let _ = Event::of(&line);
    }
}
