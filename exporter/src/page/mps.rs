//! Metrics of MPS. A daemon is identified by its pipe directory, because only one daemon can work in a
//! directory.

use std::collections::BTreeSet;
use std::time::Duration;

use bailiff_exposition::{Family, Labels, Number, PRESENT, Writer};
use bailiff_snapshot::{Mps, MpsDaemon, MpsFault, MpsLog, MpsServer, ProcessId, Snapshot, Truth};

use crate::metrics;
use crate::selection::Selection;

/// A metric and its value for a daemon.
type Column = (&'static Family, fn(&MpsDaemon) -> Option<Number>);
/// A metric and its value from a daemon's logs.
type Figure = (&'static Family, fn(&MpsLog) -> Number);

const COLUMNS: [Column; 4] = [
    (&metrics::MPS_START_TIME, |daemon| daemon.started.map(Number::from)),
    (&metrics::MPS_RESPONSIVE, |daemon| daemon.responsive().map(Number::from)),
    (&metrics::MPS_QUERY, |daemon| {
        Some(Duration::from_micros(daemon.answer.as_ref()?.took_us?).as_secs_f64().into())
    }),
    (&metrics::MPS_THREADS, |daemon| Some((daemon.answer.as_ref()?.thread_percentage? / 100.0).into())),
];

const FIGURES: [Figure; 4] = [
    (&metrics::MPS_STARTS, |log| log.server_starts.into()),
    (&metrics::MPS_CLIENT_FAULTS, |log| log.client_faults.into()),
    (&metrics::MPS_UNPARSED, |log| log.unparsed.into()),
    (&metrics::MPS_SKIPPED, |log| log.skipped_bytes.into()),
];

/// Writes all metrics of MPS; nothing if no part of MPS was seen.
pub(super) fn write(snapshot: &Snapshot, selection: &Selection, page: &mut Writer<'_>) {
    let Some(mps) = &snapshot.mps else { return };
    let daemons = daemons(mps);
    up(mps, &daemons, page);
    for (family, number) in COLUMNS {
        for (labels, daemon) in &daemons {
            if let Some(number) = number(daemon) {
                page.put(family, labels, number);
            }
        }
    }
    for (labels, daemon) in &daemons {
        if let Some(answer) = &daemon.answer {
            let age = snapshot.at.boot.saturating_sub(Duration::from_millis(answer.boot_ms));
            page.put(&metrics::MPS_ASKED, labels, snapshot.at.wall.saturating_sub(age).as_secs_f64());
        }
    }
    for (labels, daemon) in &daemons {
        for (device, bytes) in daemon.answer.iter().flat_map(|answer| &answer.pinned_limits) {
            let labels = labels.clone().with("device", &device.to_string());
            page.put(&metrics::MPS_PINNED_LIMIT, &labels, *bytes);
        }
    }
    servers(mps, page);
    clients(snapshot, mps, selection, page);
    logs(&daemons, page);
}

/// Returns one daemon for each pipe directory: root's, otherwise one that answers.
fn daemons(mps: &Mps) -> Vec<(Labels, &MpsDaemon)> {
    let mut seen = BTreeSet::new();
    let mut ranked: Vec<&MpsDaemon> = mps.daemons.iter().collect();
    // A process can name a directory that it does not own, so a daemon that answers comes first and a foreign
    // one last.
    let rank = |daemon: &MpsDaemon| match daemon.answer.as_ref().map(|answer| answer.fault) {
        Some(None) => 0,
        Some(Some(MpsFault::Foreign)) => 2,
        _ => 1,
    };
    ranked.sort_by_key(|daemon| (daemon.uid != Some(0), rank(daemon)));
    let labelled = ranked.into_iter().map(|daemon| (directory(daemon.pipe_directory.as_deref()), daemon));
    labelled.filter(|(labels, _)| seen.insert(labels.clone())).collect()
}

fn directory(directory: Option<&str>) -> Labels {
    Labels::default().maybe("pipe_directory", directory)
}

fn up(mps: &Mps, daemons: &[(Labels, &MpsDaemon)], page: &mut Writer<'_>) {
    for daemon in &mps.daemons {
        let labels = directory(daemon.pipe_directory.as_deref())
            .maybe("log_directory", daemon.log_directory.as_deref())
            .with_pid(daemon.process.pid)
            .maybe("uid", daemon.uid.map(|uid| uid.to_string()).as_deref());
        page.put(&metrics::MPS_CONTROL_INFO, &labels, PRESENT);
    }
    for (labels, _) in daemons {
        page.put(&metrics::MPS_UP, labels, true);
    }
    let orphans = mps.servers.iter().filter(|server| server.orphaned == Some(true));
    let gone: BTreeSet<Labels> =
        orphans.filter_map(|server| Some(directory(Some(server.pipe_directory.as_deref()?)))).collect();
    for labels in gone.iter().filter(|gone| daemons.iter().all(|(labels, _)| labels != *gone)) {
        page.put(&metrics::MPS_UP, labels, false);
    }
    for (labels, daemon) in daemons {
        if let Some(fault) = daemon.answer.as_ref().and_then(|answer| answer.fault) {
            page.put_as((&metrics::MPS_FAULT, "reason", fault.name()), labels, PRESENT);
        }
    }
}

fn servers(mps: &Mps, page: &mut Writer<'_>) {
    let all: Vec<(Labels, &MpsServer)> = mps
        .servers
        .iter()
        .map(|server| {
            let labels = directory(server.pipe_directory.as_deref());
            (labels.with("server", &server.process.pid.to_string()), server)
        })
        .collect();
    for (labels, server) in &all {
        let labels = labels.clone().maybe("uid", server.uid.map(|uid| uid.to_string()).as_deref());
        page.put(&metrics::MPS_SERVER_INFO, &labels, PRESENT);
    }
    for (labels, server) in &all {
        if let Some(status) = server.status {
            page.put_as((&metrics::MPS_SERVER_STATUS, "status", status.name()), labels, PRESENT);
        }
    }
    for (labels, server) in &all {
        if let Some(clients) = &server.clients {
            page.put(&metrics::MPS_CLIENTS, labels, clients.len() as u64);
        }
    }
    for (labels, server) in &all {
        if let Some(percentage) = server.thread_percentage {
            page.put(&metrics::MPS_SERVER_THREADS, labels, percentage / 100.0);
        }
    }
    if mps.servers.iter().all(|server| server.orphaned.is_some()) {
        let orphans = mps.servers.iter().filter(|server| server.orphaned == Some(true)).count();
        page.put(&metrics::MPS_ORPHANS, &Labels::default(), orphans as u64);
    }
}

/// Writes the clients that have pids of this node, hold GPU memory and have series of their own.
fn clients(snapshot: &Snapshot, mps: &Mps, selection: &Selection, page: &mut Writer<'_>) {
    let shown = snapshot.processes.keys().filter(|id| selection.shows(**id));
    let shown: BTreeSet<u32> = shown.map(|id: &ProcessId| id.pid()).collect();
    let mut seen = BTreeSet::new();
    for server in &mps.servers {
        if mps.daemon_of(server).is_none_or(|daemon| daemon.own_pids != Truth::True) {
            continue;
        }
        let labels = directory(server.pipe_directory.as_deref());
        let labels = labels.with("server", &server.process.pid.to_string());
        let own = server.clients.iter().flatten().filter(|pid| shown.contains(pid));
        seen.extend(own.map(|pid| labels.clone().with_pid(*pid)));
    }
    for labels in &seen {
        page.put(&metrics::MPS_CLIENT_INFO, labels, PRESENT);
    }
}

fn logs(daemons: &[(Labels, &MpsDaemon)], page: &mut Writer<'_>) {
    for (labels, daemon) in daemons {
        for (name, state) in &daemon.files {
            let labels = labels.clone().with("log", name);
            page.put_as((&metrics::MPS_LOG, "state", state.name()), &labels, PRESENT);
        }
    }
    let logs: Vec<(&Labels, &MpsLog)> =
        daemons.iter().filter_map(|(labels, daemon)| Some((labels, daemon.log.as_ref()?))).collect();
    for (family, number) in FIGURES {
        for (labels, log) in &logs {
            page.put(family, labels, number(log));
        }
    }
    for (labels, log) in &logs {
        for (status, count) in &log.server_exits {
            page.put(&metrics::MPS_EXITS, &(*labels).clone().with("status", &status.to_string()), *count);
        }
    }
    for (labels, log) in &logs {
        for (reason, count) in &log.rejected {
            page.put(&metrics::MPS_REJECTED, &(*labels).clone().with("reason", reason), *count);
        }
    }
    for (labels, log) in &logs {
        for (uid, count) in &log.pending {
            page.put(&metrics::MPS_PENDING, &(*labels).clone().with("uid", &uid.to_string()), *count);
        }
    }
}
