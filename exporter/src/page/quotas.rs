//! Metrics of shared quotas.

use std::collections::BTreeSet;

use bailiff_exposition::{Column, Family, Labels, Number, PRESENT, Writer};
use bailiff_snapshot::{Process, ProcessId, Quota, QuotaGpu, Snapshot, Truth, user_label};

use super::gpus;
use crate::metrics;
use crate::selection::Selection;

/// A GPU of a quota, with its position in the quota.
struct Row<'a> {
    quota: &'a Quota,
    place: usize,
    gpu: &'a QuotaGpu,
}

/// A metric and its value for a GPU of a quota.
type RowColumn = (&'static Family, fn(&Row<'_>) -> Option<Number>);

const COLUMNS: [RowColumn; 6] = [
    (&metrics::QUOTA_LIMIT, |row| row.gpu.limit.map(Number::from)),
    (&metrics::QUOTA_USED, |row| Some(row.gpu.used.into())),
    (&metrics::QUOTA_PEAK, |row| Some(row.gpu.peak.into())),
    (&metrics::QUOTA_DENIED, |row| Some(row.gpu.denied.into())),
    (&metrics::QUOTA_DENIED_BYTES, |row| Some(row.gpu.denied_bytes.into())),
    (&metrics::QUOTA_UNACCOUNTED, |row| {
        let counted = i128::from(row.quota.used_by_the_living(row.place));
        // Users write the quota file, so its values may be too large for the result.
        i64::try_from(i128::from(row.gpu.held_around?) - counted).ok().map(Number::from)
    }),
];

const WHOLES: [Column<Quota>; 5] = [
    (&metrics::QUOTA_PROCESSES, |quota| Some(processes(quota, |alive| alive != Truth::False))),
    (&metrics::QUOTA_DEAD, |quota| Some(processes(quota, |alive| alive == Truth::False))),
    (&metrics::QUOTA_FAULTS, |quota| Some(quota.faults.into())),
    (&metrics::QUOTA_UNCOUNTED, |quota| Some(quota.uncounted.into())),
    (&metrics::QUOTA_HOOKS_MISSING, |quota| Some(quota.hooks_missing.into())),
];

/// Writes all metrics of quotas; nothing if there is no quota directory or it could not be read.
pub(super) fn write(snapshot: &Snapshot, selection: &Selection, page: &mut Writer<'_>) {
    let Some(quotas) = &snapshot.quotas else { return };
    let label = |quota: &Quota| Labels::default().with("quota", &quota.name);
    let all: Vec<(Labels, &Quota)> = quotas.iter().map(|quota| (label(quota), quota)).collect();
    page.rows(&metrics::QUOTA_VALID, &all, |quota| Some(quota.invalid.is_none()));
    page.rows_as((&metrics::QUOTA_FAULT, "reason"), &all, |quota| Some((quota.invalid?.name(), PRESENT)));
    let valid: Vec<(Labels, &Quota)> = all.into_iter().filter(|(_, quota)| quota.invalid.is_none()).collect();
    for (labels, quota) in &valid {
        for place in places(snapshot, quota, labels) {
            page.put(&metrics::QUOTA_INFO, &place, PRESENT);
        }
    }
    let gpus: Vec<(Labels, Row<'_>)> = valid.iter().flat_map(|(_, quota)| rows(snapshot, quota)).collect();
    let gpus: Vec<(&Labels, &Row<'_>)> = gpus.iter().map(|(labels, row)| (labels, row)).collect();
    page.columns(&COLUMNS, &gpus);
    for (labels, row) in &gpus {
        for process in &row.quota.processes {
            let shown = process.process.map(ProcessId::Live);
            let shown = shown.filter(|id| snapshot.processes.contains_key(id) && selection.shows(*id));
            if let (Some(id), Some(used)) = (shown, process.used.get(row.place)) {
                page.put(&metrics::QUOTA_PROCESS_USED, &(*labels).clone().with_pid(id.pid()), *used);
            }
        }
    }
    page.columns(&WHOLES, &valid);
}

/// Returns a row for each GPU of this node. Other UUIDs in the file are ignored, because users write the
/// file.
fn rows<'a>(snapshot: &'a Snapshot, quota: &'a Quota) -> impl Iterator<Item = (Labels, Row<'a>)> {
    quota.gpus.iter().enumerate().filter_map(move |(place, row)| {
        let labels = gpus::put(Labels::default().with("quota", &quota.name), row.among(&snapshot.gpus)?);
        Some((labels, Row { quota, place, gpu: row }))
    })
}

fn processes(quota: &Quota, are: fn(Truth) -> bool) -> Number {
    (quota.processes.iter().filter(|process| are(process.alive)).count() as u64).into()
}

/// Returns the labels of the containers, pods, jobs and users whose processes use the quota.
fn places(snapshot: &Snapshot, quota: &Quota, labels: &Labels) -> BTreeSet<Labels> {
    let found = quota.processes.iter().filter_map(|process| process.process);
    let found = found.filter_map(|key| snapshot.processes.get(&ProcessId::Live(key)));
    found.map(|process| place(process, labels.clone())).collect()
}

fn place(process: &Process, labels: Labels) -> Labels {
    let facts = process.facts.as_ref();
    let place = facts.map(|facts| &facts.place);
    labels
        .even_empty("container", place.and_then(|place| place.container.as_deref()))
        .even_empty("pod", place.and_then(|place| place.pod.as_deref()))
        .maybe("pod_uid", place.and_then(|place| place.pod_uid.as_deref()))
        .even_empty("namespace", place.and_then(|place| place.namespace.as_deref()))
        .maybe("slurm_job", place.and_then(|place| place.slurm_job.as_deref()))
        .maybe("user", facts.and_then(user_label).as_deref())
}
