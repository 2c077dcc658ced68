//! The text of `bailiff info --energy`: the energy of each GPU by part.

use std::collections::BTreeMap;

use bailiff_exposition::human::UNKNOWN;
use bailiff_exposition::terminal::{Cell, Column, Table, Tone, line};
use bailiff_snapshot::EnergyParts;

use super::collect::SeenBy;
use super::figures::Style;
use super::report::{GpuReport, InfoReport};
use super::text::{notes, wrapped_pair};

/// Millijoules of a watt-hour.
const MILLIJOULES_PER_WATT_HOUR: f64 = 3_600_000.0;

/// Energy of one part of a GPU, or of all GPUs.
struct EnergyRow<'a> {
    gpu: &'a str,
    part: &'static str,
    user: Option<&'a str>,
    millijoules: u64,
    /// Sum of the parts.
    all: u64,
}

type EnergyColumn = (&'static str, Column, fn(&EnergyRow<'_>) -> Cell);
const ENERGY: [EnergyColumn; 5] = [
    ("GPU", Column::Never, |row| row.gpu.into()),
    ("PART", Column::Never, |row| row.part.into()),
    ("USER", Column::To(6), |row| row.user.unwrap_or_default().into()),
    ("ENERGY (Wh)", Column::Right, |row| format!("{:.3}", watt_hours(row.millijoules)).into()),
    ("SHARE", Column::Right, |row| {
        row.share().map_or_else(|| UNKNOWN.to_owned(), |share| format!("{share:.1}%")).into()
    }),
];

impl EnergyRow<'_> {
    #[expect(clippy::cast_precision_loss, reason = "one digit is shown")]
    fn share(&self) -> Option<f64> {
        (self.all > 0).then(|| self.millijoules as f64 / self.all as f64 * 100.0)
    }
}

#[expect(clippy::cast_precision_loss, reason = "three digits are shown")]
fn watt_hours(millijoules: u64) -> f64 {
    millijoules as f64 / MILLIJOULES_PER_WATT_HOUR
}

pub(super) fn render(report: &InfoReport, style: &Style) -> Vec<String> {
    let since = match report.seen_by {
        SeenBy::Exporter => "Energy since bailiff-exporter started",
        SeenBy::Itself => "Energy since this command started",
    };
    let mut lines = vec![style.colors.title(since)];
    let known: Vec<(&str, &EnergyParts)> = report
        .gpus
        .iter()
        .filter_map(|gpu| Some((gpu.index.as_str(), gpu.energy_parts_mj.as_ref()?)))
        .collect();
    let sum = sum(known.iter().map(|(_, parts)| *parts));
    let all = (known.len() > 1).then_some(("all", &sum));
    let rows = known.into_iter().chain(all).flat_map(|(gpu, parts)| rows(gpu, parts));
    lines.extend(Table::of(&ENERGY, rows).lines(style.width, style.colors));
    lines.push(String::new());
    for gpu in report.gpus.iter().filter(|gpu| gpu.parent_uuid.is_none() && gpu.energy_parts_mj.is_none()) {
        let name = format!("GPU {}", line(&gpu.index));
        lines.extend(wrapped_pair(&name, why_unknown(gpu), style, Tone::Warn));
    }
    lines.extend(notes(report, style));
    lines
}

fn why_unknown(gpu: &GpuReport) -> &'static str {
    match (&gpu.fault, gpu.energy_mj) {
        (Some(_), _) => "energy unknown: the GPU cannot be read; see `bailiff doctor`",
        (None, None) => "energy unknown: the driver does not report it",
        (None, Some(_)) => "energy unknown: no increase of the driver's counter was observed yet",
    }
}

/// Returns the rows of users by descending energy, then the other parts.
fn rows<'a>(gpu: &'a str, parts: &'a EnergyParts) -> Vec<EnergyRow<'a>> {
    let all = parts.sum();
    let row = |part, user, millijoules| EnergyRow { gpu, part, user, millijoules, all };
    let users = parts.users.iter();
    let mut rows: Vec<EnergyRow<'a>> =
        users.map(|(user, energy)| row("user", Some(user.as_str()), *energy)).collect();
    rows.sort_by_key(|row| std::cmp::Reverse(row.millijoules));
    rows.extend([row("idle", None, parts.idle), row("unattributed", None, parts.unattributed)]);
    rows
}

fn sum<'a>(all: impl Iterator<Item = &'a EnergyParts>) -> EnergyParts {
    let mut sum = EnergyParts { users: BTreeMap::new(), idle: 0, unattributed: 0 };
    for parts in all {
        sum.idle += parts.idle;
        sum.unattributed += parts.unattributed;
        for (user, energy) in &parts.users {
            *sum.users.entry(user.clone()).or_default() += energy;
        }
    }
    sum
}
