//! Tests recorded replies, and texts that could be mistaken for them.

use proptest::prelude::*;

use super::*;

#[test]
fn lists_of_pids_are_whole_or_odd() {
    let set = |pids: &[u32]| Ok(pids.iter().copied().collect::<BTreeSet<u32>>());
    let cases = [
        ("", set(&[])),
        ("\n", set(&[])),
        ("4200\n4100\n4100\n", set(&[4100, 4200])),
        ("Server 1 not found\n", Err(ReplyError::NoServer)),
        ("Server not found\n", Err(ReplyError::NoServer)),
        ("4100\nServer 1 not found\n", Err(ReplyError::Strange("4100\nServer 1 not found".into()))),
        ("-1\n", Err(ReplyError::Strange("-1".into()))),
        (
            "4100\nInsufficient privileges for UID 65534\n",
            Err(ReplyError::Refused("Insufficient privileges for UID 65534".into())),
        ),
    ];
    for (reply, expected) in cases {
        assert_eq!(clients(reply), expected, "{reply:?}");
        assert_eq!(servers(reply), expected, "{reply:?}");
    }
}

#[test]
fn a_status_is_one_word() {
    let cases = [
        ("ACTIVE\n", Some(MpsStatus::Active)),
        ("INITIALIZING\n", Some(MpsStatus::Initializing)),
        ("FAULT\n", Some(MpsStatus::Fault)),
        ("Unrecognized command\n", None),
        ("Server 1 not found\n", None),
        ("INACTIVE\n", None),
        ("", None),
    ];
    for (reply, expected) in cases {
        assert_eq!(status(reply), expected, "{reply:?}");
    }
}

const PS: &str = "\
PID       ID    SERVER    DEVICE             NAMESPACE        COMMAND
9741      0     6472      GPU-cb1213a3-d6a4-be7f   4026531836   ./nbody
9743      0     6472      GPU-cb1213a3-d6a4-be7f   4026531999   ./nbody -n 4096
0         0     6473      GPU-ffff0000-d6a4-be7f   4026531836
";

#[test]
fn processes_are_read_by_title() {
    let clients = processes(PS).unwrap();
    let rows: Vec<_> = clients
        .iter()
        .map(|client| (client.pid, client.server, client.namespace, client.command.as_deref()))
        .collect();
    assert_eq!(
        rows,
        [
            (9741, 6472, Some(4_026_531_836), Some("./nbody")),
            (9743, 6472, Some(4_026_531_999), Some("./nbody -n 4096")),
            (0, 6473, Some(4_026_531_836), None),
        ]
    );
    assert_eq!(clients[0].device.as_deref(), Some("GPU-cb1213a3-d6a4-be7f"));
    assert_eq!(processes("PID ID SERVER DEVICE NAMESPACE COMMAND\n"), Ok(Vec::new()));
    assert_eq!(processes(""), Ok(Vec::new()));
}

#[test]
fn columns_of_other_releases_are_no_error() {
    let reply = "PID  SERVER  PARTITION  COMMAND  PRIORITY\n7  8  a1  ./x -y  0\n";
    let clients = processes(reply).unwrap();
    assert_eq!((clients[0].pid, clients[0].server, clients[0].command.as_deref()), (7, 8, Some("./x -y")));
    assert_eq!((clients[0].device.as_deref(), clients[0].namespace), (None, None));
}

#[test]
fn what_is_no_list_of_processes_is_odd() {
    assert_eq!(processes("Server not found\n"), Err(ReplyError::NoServer));
    for reply in ["PID SERVER COMMAND\nseven 8 x\n", "PID COMMAND\n7 x\n", "PID SERVER COMMAND\n7\n", "7\n"] {
        assert!(matches!(processes(reply), Err(ReplyError::Strange(_))), "{reply:?}");
    }
}

#[test]
fn amounts_have_units() {
    let cases = [
        ("100.0\n", Some(100.0)),
        ("25", Some(25.0)),
        ("101", None),
        ("NaN", None),
        ("", None),
        ("Server not found", None),
    ];
    for (reply, expected) in cases {
        assert_eq!(percentage(reply).ok(), expected, "{reply:?}");
    }
    let cases = [
        ("3G\n", Some(Some(3 << 30))),
        ("1024M\n", Some(Some(1 << 30))),
        ("0x140000000 bytes", Some(Some(5 << 30))),
        ("", Some(None)),
        ("5", None),
        ("G", None),
        ("99999999999999999G", None),
        ("Server 1 not found", None),
    ];
    for (reply, expected) in cases {
        assert_eq!(memory_limit(reply).ok(), expected, "{reply:?}");
    }
}

#[test]
fn only_success_is_success() {
    for reply in ["0\n", "CUDA_SUCCESS\n", "Client termination succeeded.\n"] {
        assert_eq!(terminated(reply), Ok(()), "{reply:?}");
    }
    assert_eq!(terminated("Server 7 not found\n"), Err(ReplyError::NoServer));
    for reply in ["", "1\n", "Client termination failed with 999\n", "00\n0\n"] {
        assert!(matches!(terminated(reply), Err(ReplyError::Strange(_))), "{reply:?}");
    }
}

#[test]
fn protocol_3_pids_are_read_from_table_and_plain_list() {
    for reply in ["NAME     PID   UID\ndefault  6472  1000\n", "6472\n"] {
        assert_eq!(servers_v3(reply), Ok(BTreeSet::from([6472])), "{reply:?}");
    }
    assert!(servers_v3("NAME UID\ndefault 1000\n").is_err());
    let clients = processes("PID  NAMESPACE  SERVER  COMMAND\n9741  default  6472  ./nbody -x\n").unwrap();
    assert_eq!((clients[0].pid, clients[0].server, clients[0].namespace), (9741, 6472, None));
}

#[test]
fn refusals_and_absence_are_heard() {
    assert_eq!(
        refusal("Not enough privilege to execute quit command\n"),
        Some("Not enough privilege to execute quit command")
    );
    assert_eq!(refusal("ACTIVE\n"), None);
    assert!(is_no_daemon("Cannot find MPS control daemon process\n"));
    assert!(is_running("An instance of this daemon is already running\n"));
}

proptest! {
    #[test]
    fn arbitrary_reply_never_panics(reply in "(PID|SERVER|COMMAND|NAMESPACE|[0-9GMx]{1,22}|[ \n]|\\PC){0,40}") {
        let _ = (servers(&reply), status(&reply), processes(&reply), percentage(&reply));
        let _ = (memory_limit(&reply), terminated(&reply), servers_v3(&reply));
    }
}

#[test]
fn columns_are_found_by_title_and_commands_may_have_blanks() {
    let text = "PID  COMMAND  PRIORITY\n 7  a b  c 1\n8 x 0\n9 0\n";
    let rows = rows(text).unwrap();
    let cells: Vec<_> =
        rows.iter().map(|row| (row.cell("pid"), row.cell("COMMAND"), row.cell("PRIORITY"))).collect();
    let expected = [
        (Some("7"), Some("a b c"), Some("1")),
        (Some("8"), Some("x"), Some("0")),
        (Some("9"), Some(""), Some("0")),
    ];
    assert_eq!(cells, expected);
    assert_eq!(rows[0].cell("SERVER"), None);
}

#[test]
fn what_is_no_table_has_no_rows() {
    for text in ["", "Server not found\n", "PID SERVER\n1\n", "PID SERVER\n1 2 3\n", "PID ID COMMAND\n1\n"] {
        assert_eq!(rows(text), None, "{text:?}");
    }
}
