//! MPS on the status page: one row for each daemon and server.

use bailiff_exposition::html::{Cell, Html, Table};
use bailiff_snapshot::{Mps, MpsDaemon, MpsFile, MpsServer, MpsStatus, Snapshot};

const TABLE: Table<6> = Table {
    id: "mps-table",
    caption: "MPS control daemons and their servers.",
    columns: [("directory", ""), ("part", ""), ("pid", "n"), ("uid", "n"), ("state", ""), ("clients", "n")],
    most: 64,
    rest: "bailiff mps status shows them.",
};
const MOST_NOTES: usize = 16;
const ENVIRONMENT: &str = "no permission to read its environment";

/// Writes the table; nothing if no part of MPS is running.
pub(super) fn write(snapshot: &Snapshot, html: &mut Html) {
    let Some(mps) = &snapshot.mps else { return };
    let mut rows = Vec::new();
    for daemon in &mps.daemons {
        rows.push(daemon_cells(daemon));
        let own = mps.servers.iter().filter(|server| server.daemon == Some(daemon.process));
        rows.extend(own.map(server_cells));
    }
    rows.extend(mps.servers.iter().filter(|server| mps.daemon_of(server).is_none()).map(server_cells));
    html.section("mps", "MPS", |html| {
        TABLE.write(html, &rows, Clone::clone);
        let notes = notes(mps);
        notes.iter().take(MOST_NOTES).for_each(|note| html.paragraph("dim", note));
        if let Some(more @ 1..) = notes.len().checked_sub(MOST_NOTES) {
            html.paragraph("dim", &format!("and {more} more; bailiff mps status shows them"));
        }
    });
}

fn daemon_cells(daemon: &MpsDaemon) -> [Cell; 6] {
    let state = match daemon.answer.as_ref().map(|answer| answer.fault) {
        None => Cell::Unknown("not queried yet".into()),
        Some(None) => "answers".into(),
        Some(Some(fault)) => Cell::Bad(format!("does not respond: {}", fault.name().replace('_', " "))),
    };
    [
        Cell::of(daemon.pipe_directory.as_ref(), ENVIRONMENT),
        "control daemon".into(),
        daemon.process.pid.to_string().into(),
        Cell::of(daemon.uid, "not readable in /proc"),
        state,
        Cell::Nothing,
    ]
}

fn server_cells(server: &MpsServer) -> [Cell; 6] {
    let state = if server.orphaned == Some(true) {
        Cell::Bad("its daemon has exited".to_owned())
    } else {
        Cell::of(server.status.map(MpsStatus::name), "not reported by the daemon")
    };
    [
        Cell::of(server.pipe_directory.as_ref(), ENVIRONMENT),
        "server".into(),
        server.process.pid.to_string().into(),
        Cell::of(server.uid, "not readable in /proc"),
        state,
        Cell::of(server.clients.as_ref().map(Vec::len), "not reported by the daemon"),
    ]
}

/// Returns notes on waiting clients and on logs that cannot be read.
fn notes(mps: &Mps) -> Vec<String> {
    let mut notes = Vec::new();
    for daemon in &mps.daemons {
        let directory = daemon.log_directory.as_deref().unwrap_or_default();
        for (name, state) in daemon.files.iter().filter(|(_, state)| **state != MpsFile::Read) {
            notes.push(format!("{directory}/{name}.log is not read: {}", state.name().replace('_', " ")));
        }
        for (uid, count) in daemon.log.iter().flat_map(|log| &log.pending) {
            notes.push(format!("{count} clients of user {uid} are waiting for a server"));
        }
    }
    notes
}
