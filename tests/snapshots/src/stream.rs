//! Snapshots as a reader of the stream has them.

use bailiff_snapshot::wire::{Facts, Gpu, Holder, Process, Snapshot, Source, VERSION};
use bailiff_snapshot::{Fault, PidNamespace, State};

/// Returns snapshot `seq` of a host whose driver and `/proc` respond. Snapshots are five seconds apart.
pub fn snapshot(seq: u64, gpus: Vec<Gpu>, processes: Vec<Process>) -> Snapshot {
    Snapshot {
        version: VERSION,
        seq,
        boot_id: Some("boot".into()),
        boot_ms: 10_000_000 + 5000 * seq,
        interval_ms: 5000,
        pid_namespace: PidNamespace::Host.into(),
        sources: ["nvml", "proc"].map(|name| (name.to_owned(), source(true))).into(),
        gpus,
        processes,
        ..Snapshot::default()
    }
}

/// Returns a source that responded, or one that did not respond in time.
pub fn source(up: bool) -> Source {
    Source { up, fault: (!up).then_some(Fault::Timeout.into()) }
}

/// Returns a GPU that lists these holders.
pub fn gpu(index: &str, holders: Vec<Holder>) -> Gpu {
    let (uuid, listed) = (Some(format!("GPU-{index}")), Some(holders.len() as u64));
    Gpu { index: index.to_owned(), uuid, listed, holders, ..Gpu::default() }
}

/// Returns a process that computes on a GPU, with its memory and utilization.
pub fn holder(pid: u32, memory: Option<u64>, utilization: Option<u32>) -> Holder {
    Holder { pid, kinds: "C".into(), memory, utilization, ..Holder::default() }
}

/// Returns a sleeping process that `/proc` shows.
pub fn process(pid: u32, start_ticks: u64, facts: Facts) -> Process {
    let (start_ticks, state) = (Some(start_ticks), State::Sleeping.into());
    Process { pid, start_ticks, state, facts: Some(facts), ..Process::default() }
}

/// Returns a process that has been listed since snapshot `first_seq`, but only by the driver.
pub fn unconfirmed(pid: u32, first_seq: u64, state: State) -> Process {
    Process { pid, first_seq: Some(first_seq), state: state.into(), ..Process::default() }
}

/// Returns the facts of a program of user 1000 that was started by pid 1.
pub fn facts(comm: &str) -> Facts {
    Facts { comm: comm.into(), ppid: 1, uid: Some(1000), ..Facts::default() }
}
