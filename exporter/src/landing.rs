//! The status page for people: the newest snapshot as tables. It works without scripts.

mod mps;
mod stuck;

use std::cmp::Reverse;
use std::time::Duration;

use bailiff_exposition::html::{Column, Html};
use bailiff_exposition::human::{Bytes, Span, or_unknown};
use bailiff_snapshot::lease::Names;
use bailiff_snapshot::{
    Fault, Gpu, Holder, Leases, PoolGpu, Process, QuotaGpu, Snapshot, Truth, Utilization, users::user_label,
};

use crate::published::Published;

/// What is shown.
#[derive(Debug)]
pub struct View<'a> {
    /// The newest snapshot.
    pub published: Option<&'a Published>,
    /// Its age.
    pub age: Option<Duration>,
    /// Where the page of metrics is.
    pub telemetry: &'a str,
}

impl View<'_> {
    /// The page.
    #[must_use]
    pub fn html(&self) -> String {
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let mut html = Html::begin(&host, &format!("GPUs of {host}"));
        html.raw("<p class=\"dim\">GPU Bailiff exporter ");
        html.raw(env!("CARGO_PKG_VERSION"));
        html.raw(" · <a href=\"");
        html.text(self.telemetry);
        html.raw("\">metrics</a> · <a href=\"/-/healthy\">health</a> · ");
        html.raw(&self.age.map_or_else(|| "no snapshot yet".to_owned(), |age| format!("{} ago", Span(age))));
        html.raw("</p>");
        if let Some(published) = self.published {
            sources(&published.snapshot, &mut html);
            gpus(&published.snapshot, &mut html);
            holders(published, &mut html);
            stuck::write(published, &mut html);
            leases(&published.snapshot, &mut html);
            quotas(&published.snapshot, &mut html);
            mps::write(&published.snapshot, &mut html);
        }
        html.end()
    }
}

const SOURCES: [Column; 3] = [("source", ""), ("state", ""), ("took", "n")];
const GPUS: [Column; 9] = [
    ("GPU", ""),
    ("name", ""),
    ("used", "n"),
    ("of", "n"),
    ("unaccounted", "n"),
    ("in use", "n"),
    ("°C", "n"),
    ("processes", "n"),
    ("UUID", "dim"),
];
const HOLDERS: [Column; 9] = [
    ("GPU", ""),
    ("pid", "n"),
    ("user", ""),
    ("process", ""),
    ("where", ""),
    ("memory", "n"),
    ("busy", "n"),
    ("idle for", "n"),
    ("state", ""),
];

const LEASES: [Column; 6] =
    [("GPU", ""), ("state", ""), ("user", ""), ("mode", ""), ("leased for", "n"), ("idle for", "n")];
const QUOTAS: [Column; 6] =
    [("quota", ""), ("GPU", ""), ("used", "n"), ("of", "n"), ("by the driver", "n"), ("refused", "n")];

fn sources(snapshot: &Snapshot, html: &mut Html) {
    html.table("Sources", &SOURCES);
    for (source, state) in &snapshot.sources {
        let took = state.took.map(|took| format!("{:.1} ms", took.as_secs_f64() * 1e3));
        html.row(&SOURCES, &[source.name().to_owned(), up_or_why(state.fault), or_unknown(took)]);
    }
    html.end_table();
}

fn up_or_why(fault: Option<Fault>) -> String {
    fault.map_or_else(|| "up".to_owned(), |fault| format!("down: {}", fault.name().replace('_', " ")))
}

fn gpus(snapshot: &Snapshot, html: &mut Html) {
    html.table("GPUs", &GPUS);
    for gpu in &snapshot.gpus {
        html.row(&GPUS, &gpu_cells(gpu));
    }
    html.end_table();
}

fn gpu_cells(gpu: &Gpu) -> [String; 9] {
    let name = gpu.about.name.clone();
    [
        gpu.about.index.clone(),
        gpu.fault.map_or_else(|| or_unknown(name), |fault| up_or_why(Some(fault))),
        or_unknown(gpu.memory.map(|memory| Bytes(memory.used.into()))),
        or_unknown(gpu.memory.map(|memory| Bytes(memory.total.into()))),
        or_unknown(gpu.parts.map(|parts| Bytes(parts.unaccounted.into()))),
        or_unknown(gpu.telemetry.utilization.map(|percent| format!("{percent} %"))),
        or_unknown(gpu.telemetry.temperature),
        or_unknown(gpu.listed),
        or_unknown(gpu.about.id.as_ref().map(|id| &id.0)),
    ]
}

fn holders(published: &Published, html: &mut Html) {
    let snapshot = &published.snapshot;
    html.table("Who holds them", &HOLDERS);
    let mut left_out = 0_u64;
    for gpu in &snapshot.gpus {
        let mut holders: Vec<&Holder> = gpu.holders.iter().collect();
        // The largest first, and before them those of which the driver does not say.
        holders.sort_by_key(|holder| Reverse(holder.memory.unwrap_or(u64::MAX)));
        for holder in holders {
            if published.selection.shows(holder.process) {
                html.row(&HOLDERS, &holder_cells(gpu, holder, snapshot.processes.get(&holder.process)));
            } else {
                left_out += 1;
            }
        }
    }
    html.end_table();
    if left_out > 0 {
        html.raw(&format!("<p class=\"dim\">and {left_out} more, which hold less</p>"));
    }
}

fn holder_cells(gpu: &Gpu, holder: &Holder, process: Option<&Process>) -> [String; 9] {
    let facts = process.and_then(|process| process.facts.as_ref());
    let state = process.map(|process| process.state.name().replace('_', " "));
    let place = facts.map(|facts| &facts.place);
    let pod = place.and_then(|place| place.pod.clone().or_else(|| place.pod_uid.clone()));
    let job = || place?.slurm_job.as_ref().map(|job| format!("job {job}"));
    let other = || place.and_then(|place| place.container.clone().or_else(|| place.unit.clone()));
    let idle = holder.utilization.percent().map(|_| Span(holder.idle));
    [
        gpu.about.index.clone(),
        holder.process.pid().to_string(),
        or_unknown(facts.and_then(user_label)),
        or_unknown(facts.map(|facts| facts.comm.clone())),
        or_unknown(pod.or_else(job).or_else(other)),
        or_unknown(holder.memory.map(|bytes| Bytes(bytes.into()))),
        match holder.utilization {
            Utilization::Observed(engines) => format!("{} %", engines.busiest()),
            Utilization::Unknown(_) => "unknown".to_owned(),
        },
        or_unknown(idle),
        or_unknown(state),
    ]
}

fn leases(snapshot: &Snapshot, html: &mut Html) {
    let Some(leases) = &snapshot.leases else { return };
    html.table("Leases", &LEASES);
    for gpu in &leases.gpus {
        let seen = snapshot.gpus.iter().find(|seen| gpu.is(Names::from(*seen)));
        let index = seen.map_or(&gpu.id, |seen| &seen.about.index);
        html.row(&LEASES, &lease_cells(index, gpu, leases));
    }
    html.end_table();
    if let Some(oldest) = leases.queue.iter().filter_map(|ticket| ticket.age_ms).max() {
        let (count, oldest) = (leases.queue.len(), Span(Duration::from_millis(oldest)));
        html.raw(&format!("<p class=\"dim\">{count} wait for GPUs, the first for {oldest}</p>"));
    }
}

/// Quotas on the node's GPUs.
fn quotas(snapshot: &Snapshot, html: &mut Html) {
    let quotas = snapshot.quotas.as_deref().unwrap_or_default();
    if quotas.is_empty() {
        return;
    }
    html.table("Quotas", &QUOTAS);
    for quota in quotas {
        for row in &quota.gpus {
            if let Some(gpu) = row.among(&snapshot.gpus) {
                html.row(&QUOTAS, &quota_cells(&quota.name, row, gpu));
            }
        }
    }
    html.end_table();
    for quota in quotas {
        if let Some(invalid) = quota.invalid {
            html.raw("<p class=\"dim\">");
            html.text(&format!("{} says nothing: {}", quota.name, invalid.name()));
            html.raw("</p>");
        }
    }
}

fn quota_cells(name: &str, row: &QuotaGpu, gpu: &Gpu) -> [String; 6] {
    [
        name.to_owned(),
        gpu.about.index.clone(),
        Bytes(row.used.into()).to_string(),
        row.limit.map_or_else(|| "no limit".to_owned(), |limit| Bytes(limit.into()).to_string()),
        or_unknown(row.held.map(|held| Bytes(held.into()))),
        row.denied.to_string(),
    ]
}

fn lease_cells(index: &str, gpu: &PoolGpu, leases: &Leases) -> [String; 6] {
    let held = leases.holding(gpu);
    let span = |millis| Span(Duration::from_millis(millis));
    [
        index.to_owned(),
        gpu.spot.name().to_owned(),
        or_unknown(held.and_then(|held| held.user.as_ref())),
        or_unknown(held.and_then(|held| held.mode.as_ref())),
        or_unknown(held.and_then(|held| held.age_ms).map(span)),
        or_unknown(Some(gpu.idle_ms).filter(|_| gpu.idle != Truth::Unknown).map(span)),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn before_the_first_snapshot_there_is_a_page_as_well() {
        let html = View { published: None, age: None, telemetry: "/metrics" }.html();
        assert!(html.contains("no snapshot yet") && html.contains("href=\"/metrics\""));
    }
}
