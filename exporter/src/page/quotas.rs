//! Metrics of shared quotas.

use std::collections::BTreeSet;

use bailiff_exposition::{Family, Labels, Number, PRESENT, Writer};
use bailiff_snapshot::{Process, ProcessId, Quota, QuotaGpu, Snapshot, Truth, users::user_label};

use super::gpus;
use crate::metrics;
use crate::selection::Selection;

/// A GPU of a quota, with its position in the quota and its labels.
struct Row<'a> {
    quota: &'a Quota,
    place: usize,
    gpu: &'a QuotaGpu,
    labels: Labels,
}

/// A metric and its value for a quota.
type Whole = (&'static Family, fn(&Quota) -> Number);
/// A metric and its value for a GPU of a quota.
type Column = (&'static Family, fn(&Row<'_>) -> Option<Number>);

const COLUMNS: [Column; 6] = [
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

const WHOLES: [Whole; 5] = [
    (&metrics::QUOTA_PROCESSES, |quota| processes(quota, |alive| alive != Truth::False)),
    (&metrics::QUOTA_DEAD, |quota| processes(quota, |alive| alive == Truth::False)),
    (&metrics::QUOTA_FAULTS, |quota| quota.faults.into()),
    (&metrics::QUOTA_UNCOUNTED, |quota| quota.uncounted.into()),
    (&metrics::QUOTA_HOOKS_MISSING, |quota| quota.hooks_missing.into()),
];

/// Writes all metrics of quotas; nothing without a directory of quotas.
pub(super) fn write(snapshot: &Snapshot, selection: &Selection, page: &mut Writer<'_>) {
    let Some(quotas) = &snapshot.quotas else { return };
    let label = |quota: &Quota| Labels::default().with("quota", &quota.name);
    for quota in quotas {
        page.put(&metrics::QUOTA_VALID, &label(quota), quota.invalid.is_none());
    }
    for quota in quotas {
        if let Some(invalid) = quota.invalid {
            page.put_as((&metrics::QUOTA_FAULT, "reason", invalid.name()), &label(quota), PRESENT);
        }
    }
    let valid: Vec<(Labels, &Quota)> =
        quotas.iter().filter(|quota| quota.invalid.is_none()).map(|quota| (label(quota), quota)).collect();
    for (labels, quota) in &valid {
        for place in places(snapshot, quota, labels) {
            page.put(&metrics::QUOTA_INFO, &place, PRESENT);
        }
    }
    let rows: Vec<Row<'_>> = valid.iter().flat_map(|(_, quota)| rows(snapshot, quota)).collect();
    for (family, number) in COLUMNS {
        for row in &rows {
            if let Some(number) = number(row) {
                page.put(family, &row.labels, number);
            }
        }
    }
    for row in &rows {
        for process in &row.quota.processes {
            let shown = process.process.map(ProcessId::Live);
            let shown = shown.filter(|id| snapshot.processes.contains_key(id) && selection.shows(*id));
            if let (Some(id), Some(used)) = (shown, process.used.get(row.place)) {
                page.put(&metrics::QUOTA_PROCESS_USED, &row.labels.clone().with_pid(id.pid()), *used);
            }
        }
    }
    for (family, number) in WHOLES {
        for (labels, quota) in &valid {
            page.put(family, labels, number(quota));
        }
    }
}

/// Returns a row for each GPU of this node. Other UUIDs in the file are ignored, because users write the
/// file.
fn rows<'a>(snapshot: &'a Snapshot, quota: &'a Quota) -> impl Iterator<Item = Row<'a>> {
    quota.gpus.iter().enumerate().filter_map(move |(place, row)| {
        let labels = gpus::put(Labels::default().with("quota", &quota.name), row.among(&snapshot.gpus)?);
        Some(Row { quota, place, gpu: row, labels })
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
