//! A made-up MPS: a daemon that responds, with a server; a stopped daemon; and a server whose daemon has
//! exited.

use std::collections::BTreeMap;

use bailiff_snapshot::{
    Mps, MpsAnswer, MpsDaemon, MpsFault, MpsFile, MpsLog, MpsServer, MpsStatus, ProcessKey, State, Truth,
};

use super::GIB;

/// Returns MPS at interval `seq`. Carol's process 43 is the only client.
pub(crate) fn mps(seq: u64) -> Mps {
    let answer = MpsAnswer {
        boot_ms: seq * 5000 - 1000,
        took_us: Some(3400),
        fault: None,
        thread_percentage: Some(50.0),
        pinned_limits: [(0, 4 * GIB)].into(),
    };
    let silent = MpsAnswer {
        boot_ms: seq * 5000,
        took_us: None,
        fault: Some(MpsFault::Stopped),
        thread_percentage: None,
        pinned_limits: BTreeMap::new(),
    };
    let log = MpsLog {
        server_starts: seq,
        server_exits: [(0, 1), (1, 2)].into(),
        client_faults: 3,
        rejected: [("clients".to_owned(), 4)].into(),
        pending: [(1001, 1)].into(),
        unparsed: 5,
        skipped_bytes: 6,
    };
    let files = [("control", MpsFile::Read), ("server", MpsFile::Unreadable)];
    let files = files.map(|(name, state)| (name.to_owned(), state)).into();
    let well = MpsDaemon { answer: Some(answer), log: Some(log), files, ..daemon(80, "/tmp/nvidia-mps") };
    let still = MpsDaemon { state: State::Stopped, answer: Some(silent), ..daemon(81, "/run/a \"b\"\n") };
    let serving = MpsServer {
        daemon: Some(well.process),
        orphaned: Some(false),
        status: Some(MpsStatus::Fault),
        clients: Some(vec![43, 4_000_000]),
        thread_percentage: Some(25.0),
        ..server(90, "/tmp/nvidia-mps")
    };
    Mps { daemons: vec![well, still], servers: vec![serving, server(91, "/run/gone")] }
}

pub(crate) fn daemon(pid: u32, directory: &str) -> MpsDaemon {
    MpsDaemon {
        process: ProcessKey { pid, start_ticks: 5 },
        uid: Some(0),
        state: State::Sleeping,
        started: Some(1_699_998_000.5),
        pipe_directory: Some(directory.to_owned()),
        owns_directory: true,
        log_directory: Some("/var/log/nvidia-mps".to_owned()),
        own_pids: Truth::True,
        answer: None,
        log: None,
        files: BTreeMap::new(),
    }
}

fn server(pid: u32, directory: &str) -> MpsServer {
    MpsServer {
        process: ProcessKey { pid, start_ticks: 6 },
        inside: Some(pid),
        uid: Some(1000),
        pipe_directory: Some(directory.to_owned()),
        daemon: None,
        orphaned: Some(true),
        status: None,
        clients: None,
        thread_percentage: None,
    }
}
