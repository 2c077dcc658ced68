//! Metrics of MPS. A daemon is identified by its pipe directory, because only one daemon can work in a
//! directory.

use std::collections::BTreeSet;
use std::time::Duration;

use bailiff_exposition::{Column, Labels, Number, PRESENT, Writer};
use bailiff_snapshot::{Mps, MpsDaemon, MpsFault, MpsLog, MpsServer, ProcessId, Snapshot, Truth};

use crate::metrics;
use crate::selection::Selection;

const COLUMNS: [Column<MpsDaemon>; 4] = [
    (&metrics::MPS_START_TIME, |daemon| daemon.started.map(Number::from)),
    (&metrics::MPS_RESPONSIVE, |daemon| daemon.responsive().map(Number::from)),
    (&metrics::MPS_QUERY, |daemon| {
        Some(Duration::from_micros(daemon.answer.as_ref()?.took_us?).as_secs_f64().into())
    }),
    (&metrics::MPS_THREADS, |daemon| Some((daemon.answer.as_ref()?.thread_percentage? / 100.0).into())),
];

const SERVER_COLUMNS: [Column<MpsServer>; 2] = [
    (&metrics::MPS_CLIENTS, |server| Some((server.clients.as_ref()?.len() as u64).into())),
    (&metrics::MPS_SERVER_THREADS, |server| Some((server.thread_percentage? / 100.0).into())),
];

const LOG_COLUMNS: [Column<MpsLog>; 4] = [
    (&metrics::MPS_STARTS, |log| Some(log.server_starts.into())),
    (&metrics::MPS_CLIENT_FAULTS, |log| Some(log.client_faults.into())),
    (&metrics::MPS_UNPARSED, |log| Some(log.unparsed.into())),
    (&metrics::MPS_SKIPPED, |log| Some(log.skipped_bytes.into())),
];

/// Writes all metrics of MPS; nothing if no part of MPS was seen.
pub(super) fn write(snapshot: &Snapshot, selection: &Selection, page: &mut Writer<'_>) {
    let Some(mps) = &snapshot.mps else { return };
    let all = daemons(mps);
    let mut daemons = all.clone();
    daemons.retain(|(_, daemon)| daemon.is_of_its_directory());
    up(mps, (&all, &daemons), page);
    page.columns(&COLUMNS, &daemons);
    page.rows(&metrics::MPS_ASKED, &daemons, |daemon| {
        let asked = Duration::from_millis(daemon.answer.as_ref()?.boot_ms);
        let age = snapshot.at.boot.saturating_sub(asked);
        Some(snapshot.at.wall.saturating_sub(age).as_secs_f64())
    });
    page.rows_as((&metrics::MPS_PINNED_LIMIT, "device"), &daemons, |daemon| {
        let limits = daemon.answer.iter().flat_map(|answer| &answer.pinned_limits);
        limits.map(|(device, bytes)| (device.to_string(), *bytes))
    });
    servers(mps, page);
    clients(snapshot, mps, selection, page);
    logs(&daemons, page);
}

/// Returns one daemon for each pipe directory: root's daemon, otherwise preferably a daemon that responds.
fn daemons(mps: &Mps) -> Vec<(Labels, &MpsDaemon)> {
    let mut seen = BTreeSet::new();
    let mut ranked: Vec<&MpsDaemon> = mps.daemons.iter().collect();
    // A process can name a directory of which it is not the daemon. Then a daemon that responds comes first, and a daemon
    // in whose directory another process listens comes last.
    let rank = |daemon: &MpsDaemon| match daemon.answer.as_ref().map(|answer| answer.fault) {
        Some(None) => 0,
        Some(Some(MpsFault::Foreign)) => 2,
        _ => 1,
    };
    ranked.sort_by_key(|daemon| (daemon.uid != Some(0), !daemon.is_of_its_directory(), rank(daemon)));
    let labelled = ranked.into_iter().map(|daemon| (directory(daemon.pipe_directory.as_deref()), daemon));
    labelled.filter(|(labels, _)| seen.insert(labels.clone())).collect()
}

fn directory(directory: Option<&str>) -> Labels {
    Labels::default().maybe("pipe_directory", directory)
}

/// A daemon for each pipe directory.
type Daemons<'a> = [(Labels, &'a MpsDaemon)];

/// Writes which daemons run. Those that only claim their directory have only a reason why they did not respond.
fn up(mps: &Mps, (all, daemons): (&Daemons<'_>, &Daemons<'_>), page: &mut Writer<'_>) {
    for daemon in &mps.daemons {
        let labels = directory(daemon.pipe_directory.as_deref())
            .maybe("log_directory", daemon.log_directory.as_deref())
            .with_pid(daemon.process.pid)
            .maybe("uid", daemon.uid.map(|uid| uid.to_string()).as_deref());
        page.put(&metrics::MPS_CONTROL_INFO, &labels, PRESENT);
    }
    page.rows(&metrics::MPS_UP, daemons, |_| Some(true));
    let orphans = mps.servers.iter().filter(|server| server.orphaned == Some(true));
    let gone: BTreeSet<Labels> =
        orphans.filter_map(|server| Some(directory(Some(server.pipe_directory.as_deref()?)))).collect();
    for labels in gone.iter().filter(|gone| daemons.iter().all(|(labels, _)| labels != *gone)) {
        page.put(&metrics::MPS_UP, labels, false);
    }
    page.rows_as((&metrics::MPS_FAULT, "reason"), all, |daemon| {
        Some((daemon.answer.as_ref()?.fault?.name(), PRESENT))
    });
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
    page.rows_as((&metrics::MPS_SERVER_STATUS, "status"), &all, |server| {
        Some((server.status?.name(), PRESENT))
    });
    page.columns(&SERVER_COLUMNS, &all);
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
    page.columns(&LOG_COLUMNS, &logs);
    page.rows_as((&metrics::MPS_EXITS, "status"), &logs, |log| {
        log.server_exits.iter().map(|(status, count)| (status.to_string(), *count))
    });
    page.rows_as((&metrics::MPS_REJECTED, "reason"), &logs, |log| {
        log.rejected.iter().map(|(reason, count)| (reason, *count))
    });
    page.rows_as((&metrics::MPS_PENDING, "uid"), &logs, |log| {
        log.pending.iter().map(|(uid, count)| (uid.to_string(), *count))
    });
}
