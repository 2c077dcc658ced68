//! The tables of a report: who holds a GPU, who has it open, and what each user holds.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::figures::{UNKNOWN, Units, or_unknown, span};
use super::report::{Gpu, Holder};
use super::text::Style;
use crate::table::{Cell, Column, Table, Tone};

const HOLDERS: [(&str, Column); 10] = [
    ("PID", Column::Right),
    ("USER", Column::Gives),
    ("KIND", Column::Left),
    ("MEMORY", Column::Right),
    ("USE", Column::Right),
    ("IDLE", Column::Right),
    ("STATE", Column::Left),
    ("LEASE", Column::Left),
    ("NAME", Column::Gives),
    ("WHERE", Column::Gives),
];
const DEVICE_PROCESSES: [(&str, Column); 4] =
    [("PID", Column::Right), ("USER", Column::Gives), ("NAME", Column::Gives), ("HOLDS", Column::Left)];
const USERS: [(&str, Column); 5] = [
    ("USER", Column::Gives),
    ("GPUS", Column::Right),
    ("PROCESSES", Column::Right),
    ("MEMORY", Column::Right),
    ("OF IT IDLE", Column::Right),
];

/// Letters of a container's id that tell it apart.
const SHORT_ID: usize = 12;

/// Who holds a GPU.
pub(super) fn holders(gpu: &Gpu, style: &Style) -> Vec<String> {
    let Some(holders) = &gpu.holders else {
        let silent = gpu.fault.is_none() && gpu.instances.is_none();
        return if silent { vec!["the driver does not tell who holds it".to_owned()] } else { Vec::new() };
    };
    let mut table = Table::new(&HOLDERS);
    for holder in holders.iter().take(style.most) {
        table.row(row(holder, style.units));
    }
    let mut lines = table.lines(style.width, style.colors);
    let rest = holders.get(style.most..).unwrap_or_default();
    if !rest.is_empty() {
        let sum = rest.iter().map(|holder| holder.memory).sum::<Option<u64>>();
        let sum = sum.map(|bytes| format!(" with {}", style.units.size(bytes))).unwrap_or_default();
        lines.push(format!("and {} more{sum}; --top {} shows all", rest.len(), holders.len()));
    }
    if lines.is_empty() {
        lines.push("nobody holds it".to_owned());
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

/// Whether it has the GPU by a lease.
pub(super) fn lease(holder: &Holder) -> Cell {
    match holder.leased {
        None => UNKNOWN.into(),
        Some(true) => "yes".into(),
        Some(false) => Cell::of("no", Tone::ReplyError),
    }
}

/// What it does; that it was left behind says more than that it sleeps.
pub(super) fn state(holder: &Holder) -> Cell {
    let quiet = matches!(holder.state.as_str(), "running" | "sleeping" | "idle");
    match holder.state.as_str() {
        _ if quiet && holder.orphaned == Some(true) => Cell::of("orphaned", Tone::ReplyError),
        "gone" | "zombie" | "zombie_leader" | "dead" => Cell::of(&holder.state, Tone::Bad),
        "disk_sleep" | "stopped" | "traced" | "frozen" => Cell::of(&holder.state, Tone::ReplyError),
        "unknown" => UNKNOWN.into(),
        other => other.into(),
    }
}

/// Its name, where `/proc` tells it.
pub(super) fn name(holder: &Holder) -> Option<String> {
    match holder.role.as_deref() {
        Some("mps_server") => Some("MPS server".to_owned()),
        Some("mps_control") => Some("MPS daemon".to_owned()),
        _ => holder.comm.clone(),
    }
}

/// The container, job or unit that people know it by.
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

/// Who has a GPU's device file open.
pub(super) fn device_processes(gpu: &Gpu, style: &Style) -> Vec<String> {
    let Some(device_processes) = &gpu.device_processes else { return Vec::new() };
    let holders: BTreeMap<u32, &Holder> =
        gpu.holders.iter().flatten().map(|holder| (holder.pid, holder)).collect();
    let mut table = Table::new(&DEVICE_PROCESSES);
    for device_process in device_processes {
        let (held, tone) = match holders.get(&device_process.pid) {
            Some(holder) => (or_unknown(holder.memory, |bytes| style.units.size(bytes)), Tone::Plain),
            None => ("nothing that is listed".to_owned(), Tone::ReplyError),
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
    let said =
        if lines.is_empty() { "nobody is seen to have the device open" } else { "has the device open:" };
    std::iter::once(said.to_owned()).chain(lines).collect()
}

fn user(uid: u32) -> String {
    let user = nix::unistd::User::from_uid(uid.into()).ok().flatten();
    user.map_or_else(|| uid.to_string(), |user| user.name)
}

/// What one user holds.
#[derive(Debug, Default)]
pub(super) struct User {
    gpus: BTreeSet<String>,
    processes: BTreeSet<u32>,
    /// None once a part is not known.
    memory: Sum,
    idle: Sum,
}

/// A sum that knows whether something is missing in it.
#[derive(Debug, Default)]
struct Sum {
    bytes: u64,
    part: bool,
}

impl Sum {
    fn add(&mut self, bytes: Option<u64>) {
        self.bytes = self.bytes.saturating_add(bytes.unwrap_or_default());
        self.part |= bytes.is_none();
    }

    /// What is not known of a part makes it "at least".
    fn text(&self, units: Units) -> String {
        format!("{}{}", if self.part { ">=" } else { "" }, units.size(self.bytes))
    }
}

impl User {
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

/// What each user holds, those who hold the most first.
pub(super) fn users(users: BTreeMap<String, User>, style: &Style) -> Vec<String> {
    let mut users: Vec<(String, User)> = users.into_iter().collect();
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
