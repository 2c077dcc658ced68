//! The lease pool: the state of each GPU, its holder, and the queue.

use std::time::Duration;

use bailiff_exposition::html::{Cell, Html, Table};
use bailiff_exposition::human::Span;
use bailiff_snapshot::lease::{Names, Ticket};
use bailiff_snapshot::{GpuState, Leases, PoolGpu, Snapshot, Source, Truth};

use super::{index, reasons};

const REST: &str = "bailiff lease list shows them.";

const GPUS: Table<8> = Table {
    id: "leases-table",
    caption: "The GPUs of the pool and their holders. A lease that was not renewed in time is overdue.",
    columns: [
        ("GPU", ""),
        ("state", ""),
        ("user", ""),
        ("lease", ""),
        ("mode", ""),
        ("leased for", "n"),
        ("idle for", "n"),
        ("overdue in", "n"),
    ],
    most: 128,
    rest: REST,
};

const QUEUE: Table<5> = Table {
    id: "queue-table",
    caption: "Requests that are waiting for GPUs, in the order in which they will be granted.",
    columns: [("user", ""), ("GPUs", "n"), ("priority", "n"), ("waiting for", "n"), ("lease", "")],
    most: 16,
    rest: REST,
};

/// Writes the pool, if one is configured.
pub(super) fn write(snapshot: &Snapshot, html: &mut Html) {
    match (&snapshot.leases, Source::Redis.fault(&snapshot.sources)) {
        (Some(leases), _) => html.section("leases", "Leases", |html| pool(leases, snapshot, html)),
        (None, Some(fault)) => {
            html.section("leases", "Leases", |html| html.unknown_paragraph(reasons::fault(fault)));
        }
        (None, None) => {}
    }
}

fn pool(leases: &Leases, snapshot: &Snapshot, html: &mut Html) {
    if leases.gpus.is_empty() {
        html.paragraph("dim", "The pool has no GPUs yet. Create it with bailiff lease init.");
    } else {
        let mut gpus: Vec<&PoolGpu> = leases.gpus.iter().collect();
        gpus.sort_by_key(|gpu| (gpu.id.len(), &gpu.id));
        GPUS.write(html, &gpus, |gpu| gpu_cells(gpu, leases, snapshot));
    }
    if leases.queue.is_empty() {
        html.paragraph("dim", "No requests are waiting.");
    } else {
        QUEUE.write(html, &leases.queue, ticket_cells);
    }
}

fn gpu_cells(gpu: &PoolGpu, leases: &Leases, snapshot: &Snapshot) -> [Cell; 8] {
    let seen = index(snapshot, |seen| gpu.is(Names::from(seen)));
    let first = seen.map_or_else(|| Cell::Named(gpu.id.clone(), "not seen".to_owned()), Into::into);
    if gpu.gpu_state == GpuState::Leased {
        return leased(first, gpu, leases);
    }
    let mut cells = [const { Cell::Nothing }; 8];
    (cells[0], cells[1]) = (first, gpu.gpu_state.name().into());
    if gpu.gpu_state == GpuState::Legacy {
        let pid = gpu.record.as_ref().and_then(|record| record.pid);
        let name = pid.map(|pid| format!("taken by GPU.py, for pid {pid}"));
        cells[2] = Cell::Unknown("GPU.py records no user".into());
        cells[3] = Cell::of(name, "its record has no pid");
    }
    cells
}

fn leased(first: Cell, gpu: &PoolGpu, leases: &Leases) -> [Cell; 8] {
    let held = leases.holding(gpu);
    let left = held.map(|held| match u64::try_from(held.left_ms) {
        Ok(left) => Cell::from(span(left).to_string()),
        Err(_) => Cell::Bad("overdue".to_owned()),
    });
    let idle = (gpu.idle != Truth::Unknown).then(|| span(gpu.idle_ms));
    [
        first,
        gpu.gpu_state.name().into(),
        Cell::of(held.and_then(|held| held.user.as_ref()), "not given by the holder"),
        Cell::of(gpu.lease.as_ref(), "no lease ID"),
        Cell::of(held.and_then(|held| held.mode.as_ref()), "not given by the holder"),
        Cell::of(held.and_then(|held| held.age_ms).map(span), "not recorded in Redis"),
        Cell::of(idle, "its use was not observed"),
        left.unwrap_or(Cell::Unknown("no lease with this ID is held".into())),
    ]
}

fn ticket_cells(ticket: &Ticket) -> [Cell; 5] {
    [
        Cell::of(ticket.user.as_ref(), "not given"),
        format!("{} GPU{}", ticket.want, if ticket.want == 1 { "" } else { "s" }).into(),
        ticket.priority.to_string().into(),
        Cell::of(ticket.age_ms.map(span), "not recorded in Redis"),
        ticket.lease.as_str().into(),
    ]
}

fn span(millis: u64) -> Span {
    Span(Duration::from_millis(millis))
}
