//! Converts the internal types into the types of the stream.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::{Facts, Gpu, Holder, Memory, Process, Relative, Snapshot, Source, VERSION};
use crate::identity::millis;
use crate::{ProcessId, Word, unlisted};

impl From<&crate::Snapshot> for Snapshot {
    fn from(snapshot: &crate::Snapshot) -> Self {
        let source = |(source, state): (&crate::Source, &crate::SourceState)| {
            let fault = state.fault.map(Word::Known);
            (source.name().to_owned(), Source { up: fault.is_none(), fault })
        };
        Self {
            version: VERSION,
            seq: snapshot.seq,
            boot_id: snapshot.boot_id.as_ref().map(|id| id.0.clone()),
            wall_ms: millis(snapshot.at.wall),
            boot_ms: millis(snapshot.at.boot),
            interval_ms: millis(snapshot.interval),
            pid_namespace: snapshot.namespace.into(),
            sources: snapshot.sources.iter().map(source).collect(),
            gpus: snapshot.gpus.iter().map(|gpu| Gpu::of(gpu, snapshot)).collect(),
            lost: snapshot.lost.clone(),
            processes: snapshot
                .processes
                .iter()
                .map(|(id, process)| Process::of(*id, process, snapshot))
                .collect(),
            device_processes: snapshot.device_processes.clone(),
            relatives: snapshot.relatives.as_ref().map(|all| all.iter().map(Relative::from).collect()),
            groups: groups(snapshot),
            leases: snapshot.leases.clone(),
            quotas: snapshot.quotas.clone(),
            mps: snapshot.mps.clone(),
            slurm: snapshot.slurm.clone(),
            pods: snapshot.pods.clone(),
        }
    }
}

impl Gpu {
    fn of(gpu: &crate::Gpu, snapshot: &crate::Snapshot) -> Self {
        let (about, health) = (&gpu.about, &gpu.telemetry.health);
        let stuck = |holder: &crate::Holder| Some((holder.process.pid(), snapshot.stuck(holder)?.into()));
        let parent = about.mig.as_ref().and_then(|mig| mig.parent.as_ref());
        Self {
            index: about.index.clone(),
            uuid: about.id.as_ref().map(|id| id.0.clone()),
            name: about.name.clone(),
            parent_uuid: parent.map(|id| id.0.clone()),
            minor: about.minor,
            compute_capability: about.compute_capability,
            fault: gpu.fault.map(Word::Known),
            mig: gpu.mig(),
            memory: gpu.memory.map(|memory| Memory {
                total: memory.total,
                free: memory.free,
                used: memory.used,
                reserved: memory.reserved,
                dead_pids: gpu.parts.map(|parts| parts.dead_pids),
                other_namespaces: gpu.parts.map(|parts| parts.other_namespaces),
                unaccounted: gpu.parts.map(|parts| parts.unaccounted),
                unreleased: gpu.unreleased.bytes().ok(),
            }),
            memory_unknown: gpu.memory_unknown.map(Word::Known),
            utilization: gpu.telemetry.utilization,
            activity: gpu.telemetry.activity.by_name(),
            compute_mode: gpu.telemetry.compute_mode.map(Word::Known),
            recovery_action: health.recovery_action.map(Word::Known),
            row_remap_pending: health.memory.remap_pending,
            row_remap_failed: health.memory.remap_failed,
            ecc_uncorrected: health.ecc.uncorrected,
            clock_events: health
                .clock_events
                .as_ref()
                .map(|all| all.iter().copied().map(Word::Known).collect()),
            xids: gpu.xids.clone(),
            cgroups: gpu.cgroups.clone(),
            energy_mj: gpu.telemetry.energy,
            energy_parts_mj: snapshot.energy_parts(gpu).cloned(),
            listed: gpu.listed,
            instances: gpu.instances,
            unlisted_processes: unlisted::unlisted(snapshot, gpu).map(|who| who.len() as u64),
            holders: gpu.holders.iter().map(Holder::from).collect(),
            stuck: gpu.holders.iter().filter_map(stuck).collect(),
        }
    }
}

impl From<&crate::Holder> for Holder {
    fn from(holder: &crate::Holder) -> Self {
        Self {
            pid: holder.process.pid(),
            kinds: holder.kinds.letters().to_owned(),
            memory: holder.memory,
            utilization: holder.utilization.percent(),
            unknown: match holder.utilization {
                crate::Utilization::Unknown(why) => Some(why),
                crate::Utilization::Observed(_) => None,
            },
            idle_ms: millis(holder.idle),
            xids: holder.xids.clone(),
        }
    }
}

impl Process {
    fn of(id: ProcessId, process: &crate::Process, snapshot: &crate::Snapshot) -> Self {
        let facts = process.facts.as_ref().map(|facts| Facts {
            groups: facts.uid.and_then(|uid| snapshot.groups.get(&uid).cloned()),
            ..Facts::from(facts)
        });
        let (start_ticks, first_seq) = match id {
            ProcessId::Live(key) => (Some(key.start_ticks), None),
            ProcessId::Unconfirmed { first_seq, .. } => (None, Some(first_seq)),
        };
        Self { pid: id.pid(), start_ticks, first_seq, state: process.state.into(), facts }
    }
}

impl From<&crate::Facts> for Facts {
    fn from(facts: &crate::Facts) -> Self {
        Self {
            comm: facts.comm.clone(),
            ppid: facts.ppid,
            uid: facts.uid,
            user: facts.user.clone(),
            place: facts.place.clone().into(),
            command: facts.command.clone(),
            cpu_seconds: facts.cpu_seconds,
            io_bytes: facts.io.map(|io| io.read_bytes.saturating_add(io.write_bytes)),
            orphaned: facts.orphaned,
            reaped_cpu_seconds: facts.reaped_cpu_seconds,
            workload: facts.workload.clone(),
            exe: facts.exe.clone(),
            exe_uid: facts.exe_uid,
            groups: None,
            role: facts.role.map(Word::Known),
            claim: facts.claim.clone(),
            notebook: facts.notebook.clone(),
            ancestors: facts.ancestors.clone(),
            restored: facts.restored,
            reused_pid: facts.reused_pid,
            unread_relatives: facts.unread_relatives,
        }
    }
}

impl From<&crate::Relative> for Relative {
    fn from(relative: &crate::Relative) -> Self {
        Self {
            pid: relative.key.pid,
            start_ticks: relative.key.start_ticks,
            ppid: relative.ppid,
            uid: relative.uid,
            user: relative.user.clone(),
            comm: relative.comm.clone(),
            state: relative.state.into(),
            workload: relative.workload.clone(),
            place: Arc::clone(&relative.place),
            exe: relative.exe.clone(),
            exe_uid: relative.exe_uid,
            command: relative.command.clone(),
            cpu_seconds: relative.cpu_seconds,
            reaped_cpu_seconds: relative.reaped_cpu_seconds,
        }
    }
}

/// Returns the group names of the owners of processes without GPU memory, by uid.
fn groups(snapshot: &crate::Snapshot) -> BTreeMap<u32, Vec<String>> {
    let relatives = snapshot.relatives.iter().flatten();
    let owners: BTreeSet<u32> = relatives.filter_map(|relative| relative.uid).collect();
    owners.into_iter().filter_map(|uid| Some((uid, snapshot.groups.get(&uid)?.clone()))).collect()
}
