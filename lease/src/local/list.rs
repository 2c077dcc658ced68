//! Everything in the pool at one moment: whether a GPU is held, the kernel says; who holds it, he says himself, and is
//! believed if he is whom the kernel knows.

use std::collections::BTreeMap;
use std::fs::File;

use bailiff_snapshot::ProcessKey;
use rustix::fs::{FlockOperation, OFlags, flock};

use super::directory::{self, Directory};
use super::processes::{self, Inode, Locks};
use super::queue::{self, Seen};
use super::record::Record;
use crate::LeaseError;
use crate::audit::{Audit, Gpu, Lease};
use crate::holder::LocalHost;
use crate::process::may_live;

/// Tells everything.
pub(super) fn audit(directory: &Directory, local_host: &LocalHost) -> Result<Audit, LeaseError> {
    let managed = directory.managed()?.gpus;
    let gate = directory.enter();
    let held: Vec<Option<Held>> = managed.iter().map(|gpu| held(directory, gpu.id)).collect();
    drop(gate);
    let waiting = waiting(directory)?;
    let now = queue::now().as_millis();
    let locks = Locks::read();
    let mut leases: BTreeMap<String, Lease> = BTreeMap::new();
    let mut gpus = Vec::new();
    for (gpu, held) in managed.into_iter().zip(held) {
        let (idle, holder) = match held {
            Some(Held::Nobody) => (1, None),
            Some(Held::Somebody(inode, record)) => (0, who(inode, record, &locks, local_host)),
            None => (0, None),
        };
        let owner = holder.map(|lease| join(&mut leases, lease, gpu.id));
        gpus.push(told(gpu, idle, owner));
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

fn told(gpu: directory::Gpu, idle: u32, owner: Option<String>) -> Gpu {
    let id = gpu.id.to_string();
    Gpu { id, uuid: gpu.uuid, idle, pot: 0, bar: 0, owner, quarantine: None, record: None }
}

/// What the kernel says of a GPU; nothing where its file cannot be used.
enum Held {
    Nobody,
    Somebody(Inode, Option<Record>),
}

fn held(directory: &Directory, id: u32) -> Option<Held> {
    let (file, _) = directory.gpu(id, OFlags::RDONLY).ok()?;
    if !is_locked(&file) {
        return Some(Held::Nobody);
    }
    Some(Held::Somebody(Inode::of(&file)?, Record::read(&file)))
}

/// Whether somebody has a file's lock. Without the gate this may stand in the way of who takes it.
pub(super) fn is_locked(file: &File) -> bool {
    let locked = flock(file, FlockOperation::NonBlockingLockShared).is_err();
    if !locked {
        let _ = flock(file, FlockOperation::Unlock);
    }
    locked
}

/// Who holds a GPU: whoever wrote the record, if he is who took the lock; otherwise who has it, where we may see that.
fn who(inode: Inode, record: Option<Record>, locks: &Locks, local_host: &LocalHost) -> Option<Lease> {
    let taker = locks.taker(inode);
    if let Some(held) = record.and_then(|record| believed(record, taker, inode, local_host)) {
        return Some(held);
    }
    let pid = processes::having(inode).first().copied().or(taker)?;
    Some(unrecorded(pid, local_host))
}

/// What a record says, unless it is not of whoever has the lock. From another container it can only be believed.
fn believed(record: Record, taker: Option<u32>, inode: Inode, local_host: &LocalHost) -> Option<Lease> {
    if record.get("pidns")? != local_host.pidns {
        return Some(record.told("held"));
    }
    let (keeper, start) = record.keeper()?;
    if taker.is_some_and(|taker| record.number("taker") != Some(taker.into())) {
        return None;
    }
    if may_live(ProcessKey { pid: keeper, start_ticks: start }) {
        let same_user = processes::owner(keeper).map(u64::from) == record.number("uid");
        let has = processes::has(keeper, inode) != Some(false);
        return (same_user && has).then(|| record.told("held"));
    }
    taker.map(|_| left(record, inode, local_host))
}

/// Of one whose keeper has ended: it lives on in those whom he started.
fn left(mut record: Record, inode: Inode, local_host: &LocalHost) -> Lease {
    let heirs = processes::having(inode);
    let pids: Vec<String> = heirs.iter().map(u32::to_string).collect();
    record.about.insert("heirs".to_owned(), pids.join(","));
    // Who of them that is may not be for us to know: then his life is unknown, too.
    record.about.extend([("pid".to_owned(), String::new()), ("start".to_owned(), String::new())]);
    if let Some(heir) = heirs.first() {
        record
            .about
            .extend(local_host.holder(*heir).into_iter().map(|(field, value)| (field.to_owned(), value)));
    }
    record.told("held")
}

/// Of somebody who has the lock and did not say who he is.
fn unrecorded(pid: u32, local_host: &LocalHost) -> Lease {
    let owner = processes::owner(pid).map(|owner| owner.to_string()).unwrap_or_default();
    let command = processes::command(pid).unwrap_or_default().join(" ");
    let mut about = local_host.holder(pid);
    about.extend([("uid", owner.clone()), ("user", owner), ("cmd", command)]);
    let about = about.into_iter().map(|(field, value)| (field.to_owned(), value)).collect();
    Record { lease: format!("pid:{pid}"), about }.told("held")
}

/// Puts a GPU to the others of its lease, and gives the lease's name.
fn join(leases: &mut BTreeMap<String, Lease>, lease: Lease, gpu: u32) -> String {
    let name = lease.lease.clone();
    let known = leases.entry(name.clone()).or_insert_with(|| {
        let mut lease = lease;
        lease.about.insert("gpus".to_owned(), String::new().into());
        lease
    });
    let so_far = known.get("gpus").map(|gpus| format!("{gpus},")).unwrap_or_default();
    known.about.insert("gpus".to_owned(), format!("{so_far}{gpu}").into());
    name
}

/// Those who wait, in their order.
fn waiting(directory: &Directory) -> Result<Vec<Lease>, LeaseError> {
    let mut waiting = Vec::new();
    for name in queue::names(directory)? {
        let (Seen::Waits(file) | Seen::Asleep(file)) = queue::look(directory, &name) else { continue };
        let record = Record::read(&file).filter(|record| record.lease == name.lease);
        let mut record = record.unwrap_or(Record { lease: name.lease, about: BTreeMap::new() });
        let owner = rustix::fs::fstat(&file).ok().map(|found| found.st_uid.to_string());
        // Whose the file is, nobody can say but the kernel.
        if let Some(owner) = owner.filter(|owner| record.get("uid") != Some(owner)) {
            record.about.insert("user".to_owned(), owner.clone());
            record.about.insert("uid".to_owned(), owner);
        }
        waiting.push(record.told("waiting"));
    }
    Ok(waiting)
}
