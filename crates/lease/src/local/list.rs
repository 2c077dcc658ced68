//! The whole state of the pool at one moment. The kernel decides whether a GPU is held. The holder is taken from the
//! holder's own record, which is used only if it is consistent with the kernel's lock.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;

use bailiff_proc::may_live;
use bailiff_snapshot::ProcessKey;
use rustix::fs::{FlockOperation, flock};

use super::directory::{self, Directory, Gate};
use super::processes::{self, Inode, Locks};
use super::queue::{self, TicketState};
use super::record::Record;
use super::stalled::Stalled;
use crate::LeaseError;
use crate::audit::{Audit, Blocker, Gpu, Lease};
use crate::holder::LocalHost;

/// Maximum number of tickets that are read.
const MOST_TICKETS: usize = 1024;

/// Reads the whole state.
pub(super) fn audit(directory: &Directory, local_host: &LocalHost) -> Result<Audit, LeaseError> {
    let managed = directory.managed()?.gpus;
    let gate = directory.enter();
    let held: Vec<Option<LockState>> =
        managed.iter().map(|gpu| lock_state(directory, gpu.id, &gate)).collect();
    drop(gate);
    let (waiting, unread) = waiting(directory)?;
    let now = queue::now().as_millis();
    let locks = Locks::read();
    let mut leases: BTreeMap<String, Lease> = BTreeMap::new();
    let mut gpus = Vec::new();
    for (gpu, held) in managed.into_iter().zip(held) {
        let (idle, (holder, blockers)) = match held {
            Some(LockState::Free) => (1, (None, Vec::new())),
            Some(LockState::Locked(inode, record)) => (0, holder_of(inode, record, &locks, local_host)),
            None => (0, (None, Vec::new())),
        };
        let owner = holder.map(|lease| join(&mut leases, lease, gpu.id));
        gpus.push(Gpu { blockers, ..audited(gpu, idle, owner) });
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
        unread,
    })
}

/// Returns the GPUs that are not locked. The queue, in which users can have very many tickets, is not read.
pub(super) fn idle(directory: &Directory) -> Result<Vec<Gpu>, LeaseError> {
    let managed = directory.managed()?.gpus;
    let gate = directory.enter();
    // Without the gate lock, an exclusive lock could prevent the grant to another client.
    let lock = if gate.alone {
        FlockOperation::NonBlockingLockExclusive
    } else {
        FlockOperation::NonBlockingLockShared
    };
    let is_idle =
        |gpu: &directory::ManagedGpu| directory.gpu(gpu.id).is_ok_and(|(file, _)| flock(file, lock).is_ok());
    Ok(managed.into_iter().filter(is_idle).map(|gpu| audited(gpu, 1, None)).collect())
}

fn audited(gpu: directory::ManagedGpu, idle: u32, owner: Option<String>) -> Gpu {
    let id = gpu.id.to_string();
    Gpu {
        id,
        uuid: gpu.uuid,
        idle,
        pot: 0,
        bar: 0,
        owner,
        quarantine: None,
        record: None,
        blockers: Vec::new(),
    }
}

/// The lock of a GPU's file.
enum LockState {
    Free,
    /// The record is read only if the lock is exclusive, because leases use exclusive locks.
    Locked(Inode, Option<Record>),
}

/// The lock state of a GPU; `None` if its file cannot be used.
fn lock_state(directory: &Directory, id: u32, gate: &Gate<'_>) -> Option<LockState> {
    let (file, _) = directory.gpu(id).ok()?;
    Some(match lock(&file, gate) {
        Lock::Free => LockState::Free,
        Lock::Shared => LockState::Locked(Inode::of(&file)?, None),
        Lock::Exclusive => LockState::Locked(Inode::of(&file)?, Record::of_gpu(directory, id)),
    })
}

/// The lock on a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Lock {
    Free,
    Shared,
    Exclusive,
}

/// Tests a file's lock by trying the exclusive lock that a client takes, because a shared lock also prevents a
/// grant. Meanwhile, the gate lock excludes other clients. Without the gate lock, two concurrent tests would see
/// each other's locks, so shared locks are read from `/proc/locks`.
pub(super) fn lock(file: &File, gate: &Gate<'_>) -> Lock {
    let try_lock = |operation| {
        let locked = flock(file, operation).is_ok();
        if locked {
            let _ = flock(file, FlockOperation::Unlock);
        }
        locked
    };
    if gate.alone && try_lock(FlockOperation::NonBlockingLockExclusive) {
        Lock::Free
    } else if !try_lock(FlockOperation::NonBlockingLockShared) {
        Lock::Exclusive
    } else if !gate.alone && Inode::of(file).is_some_and(|inode| Locks::read().shows_none(inode)) {
        Lock::Free
    } else {
        Lock::Shared
    }
}

/// Returns the holder of a GPU: from the record if it is consistent with the lock, otherwise the visible processes
/// that have the lock, of which the first counts as the holder.
fn holder_of(
    inode: Inode,
    record: Option<Record>,
    locks: &Locks,
    local_host: &LocalHost,
) -> (Option<Lease>, Vec<Blocker>) {
    if let Some(held) = record.and_then(|record| verified(record, locks, inode, local_host)) {
        return (Some(held), Vec::new());
    }
    let pids = locks.lockers(inode);
    let holder = pids.first().map(|pid| unrecorded(*pid, local_host));
    let blocker = |pid| Blocker { pid, uid: processes::owner(pid) };
    (holder, pids.into_iter().map(blocker).collect())
}

/// Returns the lease in a record, unless another process has the lock. Only a waiting request has no token.
pub(super) fn verified(record: Record, locks: &Locks, inode: Inode, local_host: &LocalHost) -> Option<Lease> {
    record.number("tok")?;
    let taker = locks.taker(inode);
    if record.get("pidns")? != local_host.pidns {
        return taker.and_then(|_| elsewhere(record, &locks.lockers(inode)));
    }
    let (lock_holder, start) = record.lock_holder()?;
    if taker.is_some_and(|taker| record.number("taker") != Some(taker.into())) {
        return None;
    }
    if may_live(ProcessKey { pid: lock_holder, start_ticks: start }) {
        let same_user = processes::owner(lock_holder).map(u64::from) == record.number("uid");
        // If the process cannot be inspected, only the kernel's list could contradict the record.
        let holds = processes::holds(lock_holder, inode).unwrap_or_else(|| locks.is_known());
        return (same_user && holds).then(|| record.into_lease("held"));
    }
    taker.and_then(|_| inherited(record, inode, local_host))
}

/// Returns the lease in a record from another container. The record's pid cannot be compared, but the kernel lists
/// the process that took the lock. If the PID namespaces of processes that have the lock can be read, the recorded
/// namespace must be among them. The owner of the first process that has the lock replaces the recorded owner.
fn elsewhere(mut record: Record, lockers: &BTreeSet<u32>) -> Option<Lease> {
    if lockers.is_empty() && processes::reads_all() {
        return None;
    }
    let namespaces: Vec<String> =
        lockers.iter().filter_map(|pid| Some(processes::namespace(*pid)?.to_string())).collect();
    let matches = |namespace: &String| record.get("pidns") == Some(namespace);
    if !namespaces.is_empty() && !namespaces.iter().any(matches) {
        return None;
    }
    set_owner(&mut record, lockers.first().and_then(|pid| processes::owner(*pid)));
    Some(record.into_lease("held"))
}

/// Replaces the owner in a record, if it is another user, and removes an owner that is unknown, because any user can write a
/// record.
fn set_owner(record: &mut Record, owner: Option<u32>) {
    let owner = owner.map(|owner| owner.to_string());
    if owner.is_some() && record.get("uid") == owner.as_deref() {
        return;
    }
    for field in ["user", "uid"] {
        record.about.remove(field);
        record.about.extend(owner.clone().map(|owner| (field.to_owned(), owner)));
    }
}

/// Returns a lease whose lock holder has exited, but which is still held by processes that it started. Without such a process,
/// the lock's open file is only in a socket, and any user can have written the record.
fn inherited(mut record: Record, inode: Inode, local_host: &LocalHost) -> Option<Lease> {
    let heirs = processes::holding(inode);
    if heirs.is_empty() && processes::reads_all() {
        return None;
    }
    set_owner(&mut record, heirs.first().and_then(|pid| processes::owner(*pid)));
    let pids: Vec<String> = heirs.iter().map(u32::to_string).collect();
    record.about.insert("heirs".to_owned(), pids.join(","));
    // If these processes are not visible, their state is unknown.
    record.about.extend([("pid".to_owned(), String::new()), ("start".to_owned(), String::new())]);
    if let Some(heir) = heirs.first() {
        record
            .about
            .extend(local_host.holder(*heir).into_iter().map(|(field, value)| (field.to_owned(), value)));
    }
    Some(record.into_lease("held"))
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

/// Adds a GPU to its lease, and returns the lease's name. Any user can write the name of another user's lease into a record.
fn join(leases: &mut BTreeMap<String, Lease>, mut lease: Lease, gpu: u32) -> String {
    let mut others = (0..).map(|number: u32| format!("gpu:{gpu}{}", "+".repeat(number as usize)));
    while leases.get(&lease.lease).is_some_and(|known| known.get("uid") != lease.get("uid")) {
        lease.lease = others.next().unwrap_or_default();
    }
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

/// The waiting tickets, in order, and the number of those that were not read, because their users have very many.
fn waiting(directory: &Directory) -> Result<(Vec<Lease>, u64), LeaseError> {
    let last = queue::last(directory)?;
    let (all, names) = (last.all, last.in_order());
    let mut read = Stalled::limit(directory, &names);
    read.truncate(MOST_TICKETS);
    let unread = all.saturating_sub(read.len() as u64);
    let mut waiting = Vec::new();
    for name in read {
        let (TicketState::Waiting(file) | TicketState::Asleep(file)) = queue::read_ticket(directory, name)
        else {
            continue;
        };
        let record = Record::read(&file).filter(|record| record.lease == name.lease);
        let mut record =
            record.unwrap_or_else(|| Record { lease: name.lease.clone(), about: BTreeMap::new() });
        // The owner of the file is authoritative.
        set_owner(&mut record, rustix::fs::fstat(&file).ok().map(|found| found.st_uid));
        waiting.push(record.into_lease("waiting"));
    }
    Ok((waiting, unread))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gpu_of_another_user_is_not_joined_with_a_lease_of_the_same_name() {
        let lease = |uid: &str| {
            let about = BTreeMap::from([("uid".to_owned(), uid.to_owned())]);
            Record { lease: "ours".to_owned(), about }.into_lease("held")
        };
        let mut leases = BTreeMap::new();
        let names = [(1000, 0), (4002, 1), (1000, 2)]
            .map(|(uid, gpu): (u32, u32)| join(&mut leases, lease(&uid.to_string()), gpu));
        assert_eq!(names, ["ours", "gpu:1", "ours"]);
        let named = |name: &str, uid: &str| Lease { lease: name.to_owned(), ..lease(uid) };
        assert_eq!(join(&mut leases, named("gpu:4", "4002"), 3), "gpu:4");
        assert_eq!(
            join(&mut leases, named("gpu:4", "1000"), 4),
            "gpu:4+",
            "also if it has the name of this GPU"
        );
        assert_eq!(leases["ours"].get("gpus"), Some("0,2"));
    }

    #[test]
    fn owner_in_a_record_is_replaced_by_the_one_that_was_observed() {
        let owner = |observed: Option<u32>| {
            let about = [("uid", "1000"), ("user", "alice"), ("cmd", "x")];
            let about = about.map(|(field, value)| (field.to_owned(), value.to_owned())).into();
            let mut record = Record { lease: "ours".to_owned(), about };
            set_owner(&mut record, observed);
            ["uid", "user"].map(|field| record.get(field).map(str::to_owned))
        };
        assert_eq!(owner(Some(1000)), ["1000", "alice"].map(|text| Some(text.to_owned())));
        assert_eq!(owner(Some(4002)), ["4002", "4002"].map(|text| Some(text.to_owned())));
        assert_eq!(owner(None), [None, None]);
    }
}
