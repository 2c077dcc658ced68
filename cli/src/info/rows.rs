//! The tables of the long report: holders, processes with an open device file, and memory per user.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::figures::{Style, UNKNOWN, Units, or_unknown, span};
use super::report::{GpuReport, Holder};
use crate::table::{Cell, Column, Table, Tone};

const HOLDERS: [(&str, Column); 10] = [
    ("PID", Column::Right),
    ("USER", Column::Shrink),
    ("KIND", Column::Left),
    ("MEMORY", Column::Right),
    ("USE", Column::Right),
    ("IDLE", Column::Right),
    ("STATE", Column::Left),
    ("LEASE", Column::Left),
    ("NAME", Column::Shrink),
    ("WHERE", Column::Shrink),
];
const DEVICE_PROCESSES: [(&str, Column); 4] =
    [("PID", Column::Right), ("USER", Column::Shrink), ("NAME", Column::Shrink), ("HOLDS", Column::Left)];
const USERS: [(&str, Column); 5] = [
    ("USER", Column::Shrink),
    ("GPUS", Column::Right),
    ("PROCESSES", Column::Right),
    ("MEMORY", Column::Right),
    ("IDLE MEMORY", Column::Right),
];

/// The length of a short container id.
const SHORT_ID: usize = 12;

/// Returns the table of a GPU's holders.
pub(super) fn holders(gpu: &GpuReport, style: &Style) -> Vec<String> {
    let Some(holders) = &gpu.holders else {
        let unlisted = gpu.fault.is_none() && gpu.instances.is_none();
        return if unlisted { vec!["the driver does not list its processes".to_owned()] } else { Vec::new() };
    };
    let mut table = Table::new(&HOLDERS);
    for holder in holders.iter().take(style.max_holders) {
        table.row(row(holder, style.units));
    }
    let mut lines = table.lines(style.width, style.colors);
    let rest = holders.get(style.max_holders..).unwrap_or_default();
    if !rest.is_empty() {
        let sum = rest.iter().map(|holder| holder.memory).sum::<Option<u64>>();
        let sum = sum.map(|bytes| format!(" with {}", style.units.size(bytes))).unwrap_or_default();
        lines.push(format!("and {} more{sum}; use --top {} to show all", rest.len(), holders.len()));
    }
    if lines.is_empty() {
        lines.push("no processes hold GPU memory".to_owned());
    }
    lines
}

fn row(holder: &Holder, units: Units) -> Vec<Cell> {
    let busy = holder.utilization.is_some() && !holder.is_idle();
    let idle = match holder.idle_ms {
        Some(_) if busy => UNKNOWN.to_owned(),
        idle => or_unknown(idle, |ms| span(Duration::from_millis(ms))),
    };
    vec![
        holder.pid.to_string().into(),
        or_unknown(holder.owner(), |owner| owner).into(),
        (&holder.kinds).into(),
        or_unknown(holder.memory, |bytes| units.size(bytes)).into(),
        or_unknown(holder.utilization, |percent| format!("{percent}%")).into(),
        idle.into(),
        state(holder),
        lease(holder),
        or_unknown(name(holder), |name| name).into(),
        or_unknown(place(holder), |place| place).into(),
    ]
}

/// Returns whether a holder has a lease of the GPU.
pub(super) fn lease(holder: &Holder) -> Cell {
    match holder.leased {
        None => UNKNOWN.into(),
        Some(true) => "yes".into(),
        Some(false) => Cell::of("no", Tone::Warn),
    }
}

/// Returns the state of a holder; `orphaned` takes precedence over running and sleeping.
pub(super) fn state(holder: &Holder) -> Cell {
    let is_normal = matches!(&*holder.state, "running" | "sleeping" | "idle");
    match &*holder.state {
        _ if is_normal && holder.orphaned == Some(true) => Cell::of("orphaned", Tone::Warn),
        "gone" | "zombie" | "zombie_leader" | "dead" => Cell::of(&*holder.state, Tone::Bad),
        "disk_sleep" | "stopped" | "traced" | "frozen" => Cell::of(&*holder.state, Tone::Warn),
        "unknown" => UNKNOWN.into(),
        other => other.into(),
    }
}

/// Returns the name of a holder, if known.
pub(super) fn name(holder: &Holder) -> Option<String> {
    match holder.role.as_deref() {
        Some("mps_server") => Some("MPS server".to_owned()),
        Some("mps_control") => Some("MPS daemon".to_owned()),
        _ => holder.comm.clone(),
    }
}

/// Returns the pod, job, container or unit of a holder.
pub(super) fn place(holder: &Holder) -> Option<String> {
    if let Some(pod) = &holder.pod {
        let namespace =
            holder.namespace.as_ref().map(|namespace| format!("{namespace}/")).unwrap_or_default();
        return Some(format!("pod {namespace}{pod}"));
    }
    if let Some(job) = &holder.slurm_job {
        return Some(format!("job {job}"));
    }
    if let Some(container) = &holder.container {
        return Some(container.chars().take(SHORT_ID).collect());
    }
    holder.unit.clone()
}

/// Returns the table of the processes that have a GPU's device file open.
pub(super) fn device_processes(gpu: &GpuReport, style: &Style) -> Vec<String> {
    let Some(device_processes) = &gpu.device_processes else { return Vec::new() };
    let holders: BTreeMap<u32, &Holder> =
        gpu.holders.iter().flatten().map(|holder| (holder.pid, holder)).collect();
    let mut table = Table::new(&DEVICE_PROCESSES);
    for device_process in device_processes {
        let (held, tone) = match holders.get(&device_process.pid) {
            Some(holder) => (or_unknown(holder.memory, |bytes| style.units.size(bytes)), Tone::Plain),
            None => ("not listed".to_owned(), Tone::Warn),
        };
        let user = or_unknown(device_process.uid, user);
        table.row(vec![
            device_process.pid.to_string().into(),
            user.into(),
            (&device_process.comm).into(),
            Cell::of(held, tone),
        ]);
    }
    let lines = table.lines(style.width, style.colors);
    let title = if lines.is_empty() {
        "no processes have the device open"
    } else {
        "processes with the device open:"
    };
    std::iter::once(title.to_owned()).chain(lines).collect()
}

fn user(uid: u32) -> String {
    let user = nix::unistd::User::from_uid(uid.into()).ok().flatten();
    user.map_or_else(|| uid.to_string(), |user| user.name)
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
    let mut table = Table::new(&USERS);
    for (name, user) in users {
        table.row(vec![
            name.into(),
            user.gpus.len().to_string().into(),
            user.processes.len().to_string().into(),
            user.memory.text(style.units).into(),
            user.idle.text(style.units).into(),
        ]);
    }
    table.lines(style.width, style.colors)
}
