//! The whole state of the pool at one moment. The kernel decides whether a GPU is held. The holder is taken from the
//! holder's own record, which is used only if it is consistent with the kernel's lock.

use std::collections::BTreeMap;
use std::fs::File;

use bailiff_proc::may_live;
use bailiff_snapshot::ProcessKey;
use rustix::fs::{FlockOperation, OFlags, flock};

use super::directory::{self, Directory};
use super::processes::{self, Inode, Locks};
use super::queue::{self, TicketState};
use super::record::Record;
use crate::LeaseError;
use crate::audit::{Audit, Gpu, Lease};
use crate::holder::LocalHost;

/// Reads the whole state.
pub(super) fn audit(directory: &Directory, local_host: &LocalHost) -> Result<Audit, LeaseError> {
    let managed = directory.managed()?.gpus;
    let gate = directory.enter();
    let held: Vec<Option<LockState>> = managed.iter().map(|gpu| lock_state(directory, gpu.id)).collect();
    drop(gate);
    let waiting = waiting(directory)?;
    let now = queue::now().as_millis();
    let locks = Locks::read();
    let mut leases: BTreeMap<String, Lease> = BTreeMap::new();
    let mut gpus = Vec::new();
    for (gpu, held) in managed.into_iter().zip(held) {
        let (idle, holder) = match held {
            Some(LockState::Free) => (1, None),
            Some(LockState::Locked(inode, record)) => (0, holder_of(inode, record, &locks, local_host)),
            None => (0, None),
        };
        let owner = holder.map(|lease| join(&mut leases, lease, gpu.id));
        gpus.push(audited(gpu, idle, owner));
    }
    let queue: Vec<String> = waiting.iter().map(|ticket| ticket.lease.clone()).collect();
    let leases = leases.into_values().chain(waiting).collect();
    Ok(Audit {
        now: u64::try_from(now).unwrap_or_default(),
        barrier: None,
        gpus,
        leases,
        queue,
        agents: Vec::new(),
        counts: BTreeMap::new(),
        waits_ms: Vec::new(),
        append_only: None,
    })
}

fn audited(gpu: directory::ManagedGpu, idle: u32, owner: Option<String>) -> Gpu {
    let id = gpu.id.to_string();
    Gpu { id, uuid: gpu.uuid, idle, pot: 0, bar: 0, owner, quarantine: None, record: None }
}

/// The lock of a GPU's file.
enum LockState {
    Free,
    Locked(Inode, Option<Record>),
}

/// The lock state of a GPU; `None` if its file cannot be used.
fn lock_state(directory: &Directory, id: u32) -> Option<LockState> {
    let (file, _) = directory.gpu(id, OFlags::RDONLY).ok()?;
    if !is_locked(&file) {
        return Some(LockState::Free);
    }
    Some(LockState::Locked(Inode::of(&file)?, Record::read(&file)))
}

/// Whether a file is locked. Without the gate lock this can briefly block a client that takes the lock.
pub(super) fn is_locked(file: &File) -> bool {
    let locked = flock(file, FlockOperation::NonBlockingLockShared).is_err();
    if !locked {
        let _ = flock(file, FlockOperation::Unlock);
    }
    locked
}

/// Returns the holder of a GPU: from the record if it is consistent with the lock, otherwise a visible process that
/// has the lock.
fn holder_of(inode: Inode, record: Option<Record>, locks: &Locks, local_host: &LocalHost) -> Option<Lease> {
    let taker = locks.taker(inode);
    if let Some(held) = record.and_then(|record| verified(record, taker, inode, local_host)) {
        return Some(held);
    }
    let pid = processes::holding(inode).first().copied().or(taker)?;
    Some(unrecorded(pid, local_host))
}

/// Returns the lease in a record, unless another process has the lock. A record from another container cannot be
/// verified and is used as it is.
fn verified(record: Record, taker: Option<u32>, inode: Inode, local_host: &LocalHost) -> Option<Lease> {
    if record.get("pidns")? != local_host.pidns {
        return Some(record.into_lease("held"));
    }
    let (lock_holder, start) = record.lock_holder()?;
    if taker.is_some_and(|taker| record.number("taker") != Some(taker.into())) {
        return None;
    }
    if may_live(ProcessKey { pid: lock_holder, start_ticks: start }) {
        let same_user = processes::owner(lock_holder).map(u64::from) == record.number("uid");
        let holds = processes::holds(lock_holder, inode) != Some(false);
        return (same_user && holds).then(|| record.into_lease("held"));
    }
    taker.map(|_| inherited(record, inode, local_host))
}

/// Returns a lease whose lock holder has exited, but which is still held by processes that it started.
fn inherited(mut record: Record, inode: Inode, local_host: &LocalHost) -> Lease {
    let heirs = processes::holding(inode);
    let pids: Vec<String> = heirs.iter().map(u32::to_string).collect();
    record.about.insert("heirs".to_owned(), pids.join(","));
    // If these processes are not visible, their state is unknown.
    record.about.extend([("pid".to_owned(), String::new()), ("start".to_owned(), String::new())]);
    if let Some(heir) = heirs.first() {
        record
            .about
            .extend(local_host.holder(*heir).into_iter().map(|(field, value)| (field.to_owned(), value)));
    }
    record.into_lease("held")
}

/// Returns a lease for a process that has the lock without a record.
fn unrecorded(pid: u32, local_host: &LocalHost) -> Lease {
    let owner = processes::owner(pid).map(|owner| owner.to_string()).unwrap_or_default();
    let command = processes::command(pid).unwrap_or_default().join(" ");
    let mut about = local_host.holder(pid);
    about.extend([("uid", owner.clone()), ("user", owner), ("cmd", command)]);
    let about = about.into_iter().map(|(field, value)| (field.to_owned(), value)).collect();
    Record { lease: format!("pid:{pid}"), about }.into_lease("held")
}

/// Adds a GPU to its lease, and returns the lease's name.
fn join(leases: &mut BTreeMap<String, Lease>, lease: Lease, gpu: u32) -> String {
    let name = lease.lease.clone();
    let known = leases.entry(name.clone()).or_insert_with(|| {
        let mut lease = lease;
        lease.about.insert("gpus".to_owned(), String::new().into());
        lease
    });
    let before = known.get("gpus").map(|gpus| format!("{gpus},")).unwrap_or_default();
    known.about.insert("gpus".to_owned(), format!("{before}{gpu}").into());
    name
}

/// The waiting tickets, in order.
fn waiting(directory: &Directory) -> Result<Vec<Lease>, LeaseError> {
    let mut waiting = Vec::new();
    for name in queue::names(directory)? {
        let (TicketState::Waiting(file) | TicketState::Asleep(file)) = queue::read_ticket(directory, &name)
        else {
            continue;
        };
        let record = Record::read(&file).filter(|record| record.lease == name.lease);
        let mut record = record.unwrap_or(Record { lease: name.lease, about: BTreeMap::new() });
        let owner = rustix::fs::fstat(&file).ok().map(|found| found.st_uid.to_string());
        // The owner of the file is authoritative.
        if let Some(owner) = owner.filter(|owner| record.get("uid") != Some(owner)) {
            record.about.insert("user".to_owned(), owner.clone());
            record.about.insert("uid".to_owned(), owner);
        }
        waiting.push(record.into_lease("waiting"));
    }
    Ok(waiting)
}
