//! MPS for people: its daemons and servers, a row each.

use bailiff_exposition::html::{Column, Html};
use bailiff_exposition::human::or_unknown;
use bailiff_snapshot::{Mps, MpsDaemon, MpsServer, Snapshot};

const MPS: [Column; 6] =
    [("directory", ""), ("part", ""), ("pid", "n"), ("uid", "n"), ("state", ""), ("clients", "n")];

/// A table of all parts; none where nothing of MPS runs.
pub(super) fn write(snapshot: &Snapshot, html: &mut Html) {
    let Some(mps) = &snapshot.mps else { return };
    html.table("MPS", &MPS);
    for daemon in &mps.daemons {
        html.row(&MPS, &daemon_cells(daemon));
        let own = mps.servers.iter().filter(|server| server.daemon == Some(daemon.process));
        own.for_each(|server| html.row(&MPS, &server_cells(server)));
    }
    for server in mps.servers.iter().filter(|server| mps.daemon_of(server).is_none()) {
        html.row(&MPS, &server_cells(server));
    }
    html.end_table();
    notes(mps, html);
}

fn daemon_cells(daemon: &MpsDaemon) -> [String; 6] {
    let state = match daemon.answer.as_ref().map(|answer| answer.fault) {
        None => "not asked".to_owned(),
        Some(None) => "answers".to_owned(),
        Some(Some(fault)) => format!("does not answer: {}", fault.name().replace('_', " ")),
    };
    [
        or_unknown(daemon.pipe_directory.as_ref()),
        "control daemon".to_owned(),
        daemon.process.pid.to_string(),
        or_unknown(daemon.uid),
        state,
        String::new(),
    ]
}

fn server_cells(server: &MpsServer) -> [String; 6] {
    let orphan = (server.orphaned == Some(true)).then(|| "its daemon is gone".to_owned());
    [
        or_unknown(server.pipe_directory.as_ref()),
        "server".to_owned(),
        server.process.pid.to_string(),
        or_unknown(server.uid),
        or_unknown(orphan.or_else(|| Some(server.status?.name().to_owned()))),
        or_unknown(server.clients.as_ref().map(Vec::len)),
    ]
}

/// Who waits, and which logs are not read.
fn notes(mps: &Mps, html: &mut Html) {
    for daemon in &mps.daemons {
        let directory = daemon.log_directory.as_deref().unwrap_or_default();
        for (name, state) in
            daemon.files.iter().filter(|(_, state)| **state != bailiff_snapshot::MpsFile::Read)
        {
            html.raw("<p class=\"dim\">");
            html.text(&format!("{directory}/{name}.log is not read: {}", state.name().replace('_', " ")));
            html.raw("</p>");
        }
        for (uid, count) in daemon.log.iter().flat_map(|log| &log.pending) {
            html.raw(&format!("<p class=\"dim\">{count} of user {uid} wait for a server</p>"));
        }
    }
}
