//! The tables of the long report: holders, processes with an open device file, and memory per user.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bailiff_exposition::terminal::{Cell, Column, Table, Tone};
use bailiff_snapshot::DeviceProcess;

use super::figures::{NONE, Style, UNKNOWN, Units, or_unknown, span};
use super::report::{GpuReport, Holder};
use crate::lease::request::user_name;

/// A column of a table of holders.
pub(super) type HolderColumn = (&'static str, Column, fn(&HolderRow<'_>) -> Cell);

const GPU: HolderColumn = ("GPU", Column::Never, |row| (&row.gpu.index).into());
const PID: HolderColumn = ("PID", Column::Right, |row| row.holder.pid.to_string().into());
const USER: HolderColumn = ("USER", Column::To(6), |row| row.known(row.holder.owner()));
const KIND: HolderColumn = ("KIND", Column::Never, |row| (&row.holder.kinds).into());
const MEMORY: HolderColumn = ("MEMORY", Column::Right, |row| row.known(row.memory()));
const USE: HolderColumn = ("USE", Column::Right, |row| row.known(row.utilization()));
const UTIL: HolderColumn = ("UTIL", Column::Right, |row| row.known(row.utilization()));
const IDLE: HolderColumn = ("IDLE", Column::Right, |row| row.idle());
const STATE: HolderColumn = ("STATE", Column::Never, |row| row.state());
const LEASE: HolderColumn = ("LEASE", Column::Never, |row| row.lease());
const NAME: HolderColumn = ("NAME", Column::To(6), |row| row.known(row.name()));
const WHERE: HolderColumn = ("WHERE", Column::To(6), |row| row.place());

const LONG: [HolderColumn; 10] = [PID, USER, KIND, MEMORY, USE, IDLE, STATE, LEASE, NAME, WHERE];
/// The columns of the compact report.
pub(super) const COMPACT: [HolderColumn; 10] =
    [GPU, PID, USER, MEMORY, UTIL, IDLE, STATE, NAME, WHERE, LEASE];

type DeviceProcessRow<'a> = (&'a DeviceProcess, Option<&'a Holder>, Units);
type DeviceProcessColumn = (&'static str, Column, fn(&DeviceProcessRow<'_>) -> Cell);
const DEVICE_PROCESSES: [DeviceProcessColumn; 4] = [
    ("PID", Column::Right, |(process, ..)| process.pid.to_string().into()),
    ("USER", Column::To(6), |(process, ..)| or_unknown(process.uid, user_name).into()),
    ("NAME", Column::To(6), |(process, ..)| (&process.comm).into()),
    ("HOLDS", Column::Never, |(_, holder, units)| match holder {
        Some(holder) => or_unknown(holder.memory, |bytes| units.size(bytes)).into(),
        None => Cell::of("not listed", Tone::Warn),
    }),
];

type UserRow = (String, UserUsage, Units);
type UserColumn = (&'static str, Column, fn(&UserRow) -> Cell);
const USERS: [UserColumn; 5] = [
    ("USER", Column::To(6), |(name, ..)| name.into()),
    ("GPUS", Column::Right, |(_, user, _)| user.gpus.len().to_string().into()),
    ("PROCESSES", Column::Right, |(_, user, _)| user.processes.len().to_string().into()),
    ("MEMORY", Column::Right, |(_, user, units)| user.memory.text(*units).into()),
    ("IDLE MEMORY", Column::Right, |(_, user, units)| user.idle.text(*units).into()),
];

/// The length of a short container id.
const SHORT_ID: usize = 12;

/// Returns the table of a GPU's holders.
pub(super) fn holders(gpu: &GpuReport, style: &Style) -> Vec<String> {
    let Some(holders) = &gpu.holders else {
        let unlisted = gpu.fault.is_none() && gpu.instances.is_none();
        return if unlisted { vec!["the driver does not list its processes".to_owned()] } else { Vec::new() };
    };
    let (first, rest) = holders.split_at(style.max_holders.min(holders.len()));
    let first = first.iter().map(|holder| HolderRow { gpu, holder, style, unknown: UNKNOWN });
    let mut lines = Table::of(&LONG, first).lines(style.width, style.colors);
    lines.extend(omitted(rest.iter(), holders.len(), style));
    if lines.is_empty() {
        lines.push("no processes hold GPU memory".to_owned());
    }
    lines
}

/// Describes the holders that are not listed; `all` is the value of `--top` that lists them.
pub(super) fn omitted<'a>(
    rest: impl ExactSizeIterator<Item = &'a Holder>,
    all: usize,
    style: &Style,
) -> Option<String> {
    let count = rest.len();
    let sum = rest.map(|holder| holder.memory).sum::<Option<u64>>();
    let sum = sum.map(|bytes| format!(" with {}", style.units.size(bytes))).unwrap_or_default();
    (count > 0).then(|| format!("and {count} more{sum}; use --top {all} to show all"))
}

/// A row of a table of holders.
pub(super) struct HolderRow<'a> {
    pub(super) gpu: &'a GpuReport,
    pub(super) holder: &'a Holder,
    pub(super) style: &'a Style,
    /// The placeholder of an unknown value.
    pub(super) unknown: &'static str,
}

impl HolderRow<'_> {
    fn known(&self, value: Option<String>) -> Cell {
        value.unwrap_or_else(|| self.unknown.to_owned()).into()
    }

    fn memory(&self) -> Option<String> {
        self.holder.memory.map(|bytes| self.style.units.size(bytes))
    }

    fn utilization(&self) -> Option<String> {
        self.holder.utilization.map(|percent| format!("{percent}%"))
    }

    fn idle(&self) -> Cell {
        if self.holder.utilization.is_some() && !self.holder.is_idle() {
            return NONE.into();
        }
        self.known(self.holder.idle_ms.map(|ms| span(Duration::from_millis(ms))))
    }

    /// Returns whether the holder has a lease on the GPU.
    fn lease(&self) -> Cell {
        match self.holder.leased {
            None => self.unknown.into(),
            Some(true) => "yes".into(),
            Some(false) => Cell::of("no", Tone::Warn),
        }
    }

    /// Returns the state; `orphaned` takes precedence over running and sleeping.
    fn state(&self) -> Cell {
        match &*self.holder.state {
            "running" | "sleeping" | "idle" if self.holder.orphaned == Some(true) => {
                Cell::of("orphaned", Tone::Warn)
            }
            state @ ("gone" | "zombie" | "zombie_leader" | "dead") => Cell::of(state, Tone::Bad),
            state @ ("disk_sleep" | "stopped" | "traced" | "frozen") => Cell::of(state, Tone::Warn),
            "unknown" => self.unknown.into(),
            other => other.into(),
        }
    }

    fn name(&self) -> Option<String> {
        match self.holder.role.as_deref() {
            Some("mps_server") => Some("MPS server".to_owned()),
            Some("mps_control") => Some("MPS daemon".to_owned()),
            _ => self.holder.comm.clone(),
        }
    }

    /// Returns the pod, job, container or unit.
    fn place(&self) -> Cell {
        let Holder { pod, namespace, slurm_job, container, unit, comm, .. } = self.holder;
        match (pod, slurm_job, container, unit) {
            (Some(pod), ..) => {
                let namespace = namespace.as_ref().map(|namespace| format!("{namespace}/"));
                format!("pod {}{pod}", namespace.unwrap_or_default()).into()
            }
            (_, Some(job), ..) => format!("job {job}").into(),
            (_, _, Some(container), _) => container.chars().take(SHORT_ID).collect::<String>().into(),
            (.., Some(unit)) => unit.into(),
            // If /proc does not show the process, its unit is unknown.
            _ => if comm.is_some() { NONE } else { self.unknown }.into(),
        }
    }
}

/// Returns the table of the processes that have a GPU's device file open.
pub(super) fn device_processes(gpu: &GpuReport, style: &Style) -> Vec<String> {
    let Some(device_processes) = &gpu.device_processes else { return Vec::new() };
    let holders: BTreeMap<u32, &Holder> =
        gpu.holders.iter().flatten().map(|holder| (holder.pid, holder)).collect();
    let rows =
        device_processes.iter().map(|process| (process, holders.get(&process.pid).copied(), style.units));
    let lines = Table::of(&DEVICE_PROCESSES, rows).lines(style.width, style.colors);
    let title = if lines.is_empty() {
        "no processes have the device open"
    } else {
        "processes with the device open:"
    };
    std::iter::once(title.to_owned()).chain(lines).collect()
}

#[derive(Debug, Default)]
pub(super) struct UserUsage {
    gpus: BTreeSet<String>,
    processes: BTreeSet<u32>,
    /// GPU memory.
    memory: Sum,
    /// GPU memory of idle processes.
    idle: Sum,
}

/// A sum that may lack unknown parts.
#[derive(Debug, Default)]
struct Sum {
    bytes: u64,
    incomplete: bool,
}

impl Sum {
    fn add(&mut self, bytes: Option<u64>) {
        self.bytes = self.bytes.saturating_add(bytes.unwrap_or_default());
        self.incomplete |= bytes.is_none();
    }

    /// Formats the sum; an incomplete sum is marked with `>=`.
    fn text(&self, units: Units) -> String {
        format!("{}{}", if self.incomplete { ">=" } else { "" }, units.size(self.bytes))
    }
}

impl UserUsage {
    pub(super) fn add(&mut self, gpu: &str, holder: &Holder) {
        self.gpus.insert(gpu.to_owned());
        self.processes.insert(holder.pid);
        self.memory.add(holder.memory);
        match holder.utilization {
            None => self.idle.add(None),
            Some(_) if holder.is_idle() => self.idle.add(holder.memory),
            Some(_) => {}
        }
    }
}

/// Returns the table of users, by descending memory.
pub(super) fn users(users: BTreeMap<String, UserUsage>, style: &Style) -> Vec<String> {
    let mut users: Vec<(String, UserUsage)> = users.into_iter().collect();
    users.sort_by_key(|(_, user)| std::cmp::Reverse(user.memory.bytes));
    let rows = users.into_iter().map(|(name, user)| (name, user, style.units));
    Table::of(&USERS, rows).lines(style.width, style.colors)
}
