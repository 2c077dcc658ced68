//! Memory that is not in use: stuck holders, unattributed and unreleased memory, and what frees each.

use bailiff_exposition::html::{Cell, Html, Table};
use bailiff_exposition::human::Bytes;
use bailiff_snapshot::stuck::{REPORTED_UNATTRIBUTED, UNATTRIBUTED_FREED_BY, UNRELEASED_FREED_BY};
use bailiff_snapshot::unlisted::unlisted;
use bailiff_snapshot::{DeviceProcess, Gpu, Holder, Snapshot, Stuck};

use super::reasons;

const TABLE: Table<6> = Table {
    id: "stuck-table",
    caption: "Memory that is held but cannot be used, and what frees it.",
    columns: [
        ("process", ""),
        ("pid", "n"),
        ("GPU", ""),
        ("memory", "n"),
        ("state", "wide"),
        ("freed by", "wide"),
    ],
    most: 100,
    rest: "bailiff info shows them.",
};

/// Writes the table, if it has rows.
pub(super) fn write(snapshot: &Snapshot, html: &mut Html) {
    let rows: Vec<[Cell; 6]> = snapshot.gpus.iter().flat_map(|gpu| rows(gpu, snapshot)).collect();
    let unreadable = unreadable(snapshot);
    if rows.is_empty() && unreadable.is_none() {
        return;
    }
    html.section("stuck", "Stuck", |html| {
        if !rows.is_empty() {
            TABLE.write(html, &rows, Clone::clone);
        }
        if let Some(unreadable) = unreadable {
            let of = if unreadable == 1 { "1 process".to_owned() } else { format!("{unreadable} processes") };
            html.unknown_paragraph(&format!(
                "which other processes have a GPU open, because the open files of {of} could not be read"
            ));
        }
    });
}

/// Returns the memory of a GPU that no listed process holds, if it is large.
pub(super) fn unattributed(gpu: &Gpu) -> Option<i128> {
    Some(i128::from(gpu.parts?.unaccounted)).filter(|bytes| *bytes >= i128::from(REPORTED_UNATTRIBUTED))
}

/// Returns the number of processes whose open device files could not be read; `None` if there are none or no
/// scan was made.
fn unreadable(snapshot: &Snapshot) -> Option<u64> {
    snapshot
        .device_processes
        .as_ref()
        .map(|device_processes| device_processes.unreadable)
        .filter(|unreadable| *unreadable > 0)
}

fn rows(gpu: &Gpu, snapshot: &Snapshot) -> Vec<[Cell; 6]> {
    let stuck = gpu.holders.iter().filter_map(|holder| Some((holder, snapshot.stuck(holder)?)));
    let stuck: Vec<(&Holder, Stuck)> = stuck.collect();
    let mut rows: Vec<_> =
        stuck.iter().map(|(holder, stuck)| of_holder(gpu, holder, *stuck, snapshot)).collect();
    let has_ended = stuck.iter().any(|(_, stuck)| matches!(stuck, Stuck::Gone | Stuck::Zombie));
    let unattributed = unattributed(gpu);
    if let Some(bytes) = unattributed {
        rows.push(of_gpu(gpu, Bytes(bytes), ["not held by any listed process", UNATTRIBUTED_FREED_BY]));
    }
    if unattributed.is_some() || has_ended {
        let device_processes = unlisted(snapshot, gpu).unwrap_or_default();
        rows.extend(
            device_processes.into_iter().map(|device_process| of_device_process(gpu, device_process)),
        );
    }
    if let Ok(bytes @ 1..) = gpu.unreleased.bytes() {
        let reasons = ["not released after its holders exited", UNRELEASED_FREED_BY];
        rows.push(of_gpu(gpu, Bytes(bytes.into()), reasons));
    }
    rows
}

fn of_holder(gpu: &Gpu, holder: &Holder, stuck: Stuck, snapshot: &Snapshot) -> [Cell; 6] {
    let process = snapshot.processes.get(&holder.process);
    let facts = process.and_then(|process| process.facts.as_ref());
    let parent = facts.filter(|_| stuck == Stuck::Zombie).map(|facts| format!(": {}", facts.ppid));
    [
        Cell::of(facts.map(|facts| &facts.comm), reasons::nameless(process)),
        holder.process.pid().to_string().into(),
        gpu.about.index.as_str().into(),
        Cell::of(holder.memory.map(|bytes| Bytes(bytes.into())), "not reported by the driver"),
        format!("{}{}", stuck.words(), parent.unwrap_or_default()).into(),
        stuck.freed_by().into(),
    ]
}

fn of_gpu(gpu: &Gpu, bytes: Bytes, [how, freed_by]: [&str; 2]) -> [Cell; 6] {
    let index = gpu.about.index.as_str().into();
    [Cell::Nothing, Cell::Nothing, index, bytes.to_string().into(), how.into(), freed_by.into()]
}

fn of_device_process(gpu: &Gpu, device_process: &DeviceProcess) -> [Cell; 6] {
    [
        device_process.comm.as_str().into(),
        device_process.pid.to_string().into(),
        gpu.about.index.as_str().into(),
        Cell::Unknown("the driver does not list it".into()),
        "it has the device open, but the driver does not list it".into(),
        "its exit".into(),
    ]
}
