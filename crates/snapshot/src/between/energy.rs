//! Adds the energy of each GPU between two samples to the energy of the users that worked on it.
//!
#![doc = include_str!("../energy.md")]

use std::collections::{BTreeMap, BTreeSet};

use super::users::UserInput;
use crate::energy::{Counter, Usage, Weights};
use crate::snapshot::user_label;
use crate::utilization::IDLE_AT_MOST_PERCENT;
use crate::{
    DeviceSampler, Energy, Engines, Gpu, GpuId, Holder, Process, ProcessId, Snapshot, Utilization, Why,
};

type Processes = BTreeMap<ProcessId, Process>;

/// Returns the energy of each GPU. A GPU that is not in this sample keeps its energy.
pub(crate) fn totals(previous: Option<&Snapshot>, now: &UserInput<'_>) -> BTreeMap<GpuId, Energy> {
    let mut energy = previous.map(|previous| previous.energy.clone()).unwrap_or_default();
    let window_start = previous.map(|previous| previous.at.boot);
    for gpu in now.gpus.iter().filter(|gpu| gpu.about.mig.is_none()) {
        let (Some(id), Some(millijoules)) = (&gpu.about.id, gpu.telemetry.energy) else { continue };
        let counter = Counter { at: now.at.boot, millijoules };
        let usage = previous.and_then(|previous| usage(previous, now, gpu)).unwrap_or(Usage::Unknown);
        energy.entry(id.clone()).or_default().add(counter, window_start, usage);
    }
    energy
}

/// Returns what used the GPU in the window; `None` if that is unknown.
fn usage(previous: &Snapshot, now: &UserInput<'_>, gpu: &Gpu) -> Option<Usage> {
    let before = previous.gpu(&gpu.about)?;
    let maximum = gpu.used_since(Some(before));
    let is_unclear = gpu.mig() || before.mig() || gpu.reading.strangers || maximum == Err(Why::ClockStepped);
    if is_unclear || !all_named(gpu) || !all_named(before) {
        return None;
    }
    let (ids, ids_before) = (ids(gpu), ids(before));
    let holders: Vec<(&Holder, Engines)> =
        gpu.holders.iter().map(|holder| Some((holder, observed(holder)?))).collect::<Option<_>>()?;
    if holders.iter().all(|(_, engines)| busiest(*engines) <= IDLE_AT_MOST_PERCENT) {
        let is_sampled = matches!(gpu.reading.sampler, DeviceSampler::Stamped { .. });
        let is_calm = is_sampled && maximum.is_ok_and(|maximum| maximum <= IDLE_AT_MOST_PERCENT);
        return (is_calm && ids.is_superset(&ids_before)).then_some(Usage::Idle);
    }
    let (users, users_before) = (users(gpu, now.processes), users(before, &previous.processes));
    let is_only_user = users.len() == 1 && users.is_superset(&users_before);
    if ids != ids_before && !is_only_user {
        return None;
    }
    weights(&holders, now.processes).map(Usage::Shared)
}

/// Returns the SM utilization by user; `None` if there is none, or if a user's other engines were busy without it.
fn weights(holders: &[(&Holder, Engines)], processes: &Processes) -> Option<Weights> {
    let mut all: BTreeMap<Option<String>, Engines> = BTreeMap::new();
    for (holder, engines) in holders {
        let of_user = all.entry(user(holder, processes)).or_default();
        *of_user = Engines { sm: of_user.sm + engines.sm, ..of_user.or_busier(*engines) };
    }
    let is_plain = all.values().all(|engines| engines.sm > 0 || busiest(*engines) <= IDLE_AT_MOST_PERCENT);
    let weights: Weights = all.into_iter().map(|(user, engines)| (user, engines.sm.into())).collect();
    (is_plain && weights.values().any(|weight| *weight > 0)).then_some(weights)
}

fn users(gpu: &Gpu, processes: &Processes) -> BTreeSet<Option<String>> {
    gpu.holders.iter().map(|holder| user(holder, processes)).collect()
}

/// Returns the user of a process; `None` if it is unknown, or for an MPS server, which works for its clients.
fn user(holder: &Holder, processes: &Processes) -> Option<String> {
    let facts = processes.get(&holder.process)?.facts.as_ref()?;
    if facts.role.is_some() { None } else { user_label(facts) }
}

/// Returns whether the driver listed the GPU's processes, and all in a visible PID namespace.
fn all_named(gpu: &Gpu) -> bool {
    gpu.fault.is_none() && gpu.listed == Some(gpu.holders.len() as u64)
}

fn ids(gpu: &Gpu) -> BTreeSet<ProcessId> {
    gpu.holders.iter().map(|holder| holder.process).collect()
}

fn observed(holder: &Holder) -> Option<Engines> {
    match holder.utilization {
        Utilization::Observed(engines) => Some(engines),
        Utilization::Unknown(_) => None,
    }
}

/// Returns the utilization of the busiest engine, including memory bandwidth.
fn busiest(engines: Engines) -> u32 {
    engines.each().into_iter().fold(0, u32::max)
}
