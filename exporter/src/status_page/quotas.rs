//! Quotas on the status page: memory used by each, as counted in its file and as reported by the driver.

use bailiff_exposition::html::{Cell, Html, Table};
use bailiff_exposition::human::Bytes;
use bailiff_snapshot::{Gpu, InvalidQuota, Quota, QuotaGpu, Snapshot};

use super::reasons;

const TABLE: Table<6> = Table {
    id: "quotas-table",
    caption: "Shared quotas on the GPUs of this node.",
    columns: [
        ("quota", ""),
        ("GPU", ""),
        ("used", "n"),
        ("limit", "n"),
        ("held (driver)", "n"),
        ("refused", "n"),
    ],
    most: 64,
    rest: "see bailiff_quota_… on the metrics page.",
};
const MOST_INVALID: usize = 8;

/// Writes the quotas, if there are any.
pub(super) fn write(snapshot: &Snapshot, html: &mut Html) {
    let quotas = snapshot.quotas.as_deref().unwrap_or_default();
    if quotas.is_empty() {
        return;
    }
    let row = |quota, row: &'_ QuotaGpu| Some((quota, row.clone(), row.among(&snapshot.gpus)?));
    let rows: Vec<(&Quota, QuotaGpu, &Gpu)> =
        quotas.iter().flat_map(|quota| quota.gpus.iter().filter_map(move |gpu| row(quota, gpu))).collect();
    html.section("quotas", "Quotas", |html| {
        if !rows.is_empty() {
            TABLE.write(html, &rows, |(quota, row, gpu)| cells(quota, row, gpu));
        } else if quotas.iter().any(|quota| quota.invalid.is_none()) {
            html.paragraph("dim", "There is no readable quota file for a GPU on this node.");
        }
        invalid(quotas, html);
    });
}

/// Writes the files that are not valid quotas, with the reason.
fn invalid(quotas: &[Quota], html: &mut Html) {
    let invalid = quotas.iter().filter_map(|quota| Some((quota, quota.invalid?)));
    let invalid: Vec<(&Quota, InvalidQuota)> = invalid.collect();
    for (quota, why) in invalid.iter().take(MOST_INVALID) {
        html.unknown_paragraph(&format!("the content of {}, because {}", quota.name, reasons::invalid(*why)));
    }
    if let Some(more @ 1..) = invalid.len().checked_sub(MOST_INVALID) {
        html.unknown_paragraph(&format!("the content of {more} more quota files"));
    }
}

fn cells(quota: &Quota, row: &QuotaGpu, gpu: &Gpu) -> [Cell; 6] {
    [
        quota.name.as_str().into(),
        gpu.about.index.as_str().into(),
        Bytes(row.used.into()).to_string().into(),
        row.limit.map_or_else(|| "no limit".to_owned(), |limit| Bytes(limit.into()).to_string()).into(),
        Cell::of(row.held.map(|held| Bytes(held.into())), "not reported for every process"),
        row.denied.to_string().into(),
    ]
}
