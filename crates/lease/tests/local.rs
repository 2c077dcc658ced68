//! Tests a pool on one machine. A lock belongs to an open file, so two pools in one process behave like pools in
//! two processes. `tests/cases/leases_local.rs` tests the effects of exiting processes.
#![expect(
    clippy::panic,
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "a test reads the directory and waits"
)]

use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant, SystemTime};

use bailiff_lease::audit::Gpu;
use bailiff_lease::holder::LocalHost;
use bailiff_lease::{Grant, Init, LeaseError, Leases, Local, Released, Ticket, TicketStatus};
use rustix::fs::{FlockOperation, flock};
use tempfile::TempDir;

const TTL: Duration = Duration::from_secs(30);
const BY: (i32, u32) = (0, 0);

fn create_pool(gpus: u32) -> (TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("lease");
    let gpus: Vec<_> = (0..gpus).map(|id| (id, Some(format!("GPU-{id}")))).collect();
    assert_eq!(Local::at(&path).init(&gpus, 0, false), Ok(Init::Done(gpus.len() as u64)));
    (directory, path)
}

fn ticket(lease: &str, want: u32) -> Ticket {
    let mut about = LocalHost::read().holder(std::process::id());
    let uid = rustix::process::getuid().as_raw();
    about.extend([("uid", uid.to_string()), ("user", "alice".to_owned()), ("cmd", "train".to_owned())]);
    Ticket { lease: lease.to_owned(), want, priority: 0, ttl: TTL, nonblock: false, about }
}

fn request(path: &Path, lease: &str, want: u32) -> (Local, TicketStatus) {
    let mut pool = Local::at(path);
    let status = pool.request(&ticket(lease, want)).unwrap();
    (pool, status)
}

fn granted_gpus(status: TicketStatus) -> Vec<u32> {
    grant(status).gpus
}

fn grant(status: TicketStatus) -> Grant {
    let TicketStatus::Held(grant) = status else { panic!("{status:?}") };
    grant
}

/// Waits until the queue has this length.
fn wait_for_queue(path: &Path, count: usize) {
    let started = Instant::now();
    while Local::at(path).audit().unwrap().queue.len() != count {
        assert!(started.elapsed() < Duration::from_mins(1), "there are not {count} waiters");
        std::thread::park_timeout(Duration::from_millis(2));
    }
}

fn tickets(path: &Path) -> usize {
    fs::read_dir(path.join("queue")).unwrap().count()
}

fn touch(pool: &mut Local, lease: &str) -> TicketStatus {
    pool.touch(lease, TTL, None).unwrap()
}

#[test]
fn lease_lifecycle_from_ticket_to_release() {
    let nowhere = tempfile::tempdir().unwrap();
    let path = nowhere.path().join("not/begun");
    let absent = Err(LeaseError::Absent(path.display().to_string()));
    assert_eq!(Local::at(&path).request(&ticket("early", 1)), absent, "no pool: the request does not wait");
    let mut pool = Local::at(&path);
    assert_eq!(pool.init(&[(1, None), (0, None), (1, None)], 0, false), Ok(Init::Done(2)));
    assert_eq!(pool.init(&[(0, None)], 0, false), Ok(Init::Already(2)));
    for want in [0, 3] {
        assert_eq!(pool.request(&ticket("greedy", want)), Ok(TicketStatus::Impossible { managed: 2 }));
    }
    let first = grant(pool.request(&ticket("a", 1)).unwrap());
    assert_eq!(first.gpus, [0]);
    assert_eq!(
        pool.request(&ticket("a", 1)),
        Ok(TicketStatus::Held(first.clone())),
        "a repeated request does not get more GPUs"
    );
    assert_eq!(pool.init(&[(0, None)], 0, true), Ok(Init::Held(1)), "a pool with a holder is not replaced");
    let (mut b, status) = request(&path, "b", 2);
    assert_eq!(status, TicketStatus::Waiting { before: 0 });
    let nonblock = Ticket { nonblock: true, ..ticket("c", 1) };
    assert_eq!(
        Local::at(&path).request(&nonblock),
        Ok(TicketStatus::Busy),
        "a later request does not overtake a ticket"
    );
    assert_eq!(pool.touch("a", TTL, Some(first.token)), Ok(TicketStatus::Held(first.clone())));
    assert_eq!(pool.touch("a", TTL, Some(7)), Ok(TicketStatus::Ended("lost".to_owned())));
    assert_eq!(pool.release("a", Some(7), BY), Ok(Released::Lost));
    assert_eq!(touch(&mut b, "b"), TicketStatus::Waiting { before: 0 });
    assert_eq!(pool.release("a", Some(first.token), BY), Ok(Released::Done));
    assert_eq!(pool.release("a", Some(first.token), BY), Ok(Released::Already("released".to_owned())));
    let second = grant(touch(&mut b, "b"));
    assert_eq!(second.gpus, [0, 1]);
    assert_eq!(pool.release("missing", None, BY), Ok(Released::Unknown));
    assert_eq!(pool.touch("missing", TTL, None), Ok(TicketStatus::Ended("unknown".to_owned())));
    drop(b);
    assert_eq!(pool.init(&[(3, None)], 0, true), Ok(Init::Done(1)));
    let third = grant(pool.request(&ticket("d", 1)).unwrap());
    assert_eq!(third.gpus, [3]);
    assert!(first.token < second.token && second.token < third.token);
    assert_eq!(tickets(&path), 0);
    let urgent = Ticket { priority: 1, ..ticket("e", 1) };
    assert!(matches!(pool.request(&urgent), Err(LeaseError::NotLocalHost(_))));
    for name in ["", "a/b", "../x", "a-b", "ä"] {
        assert!(matches!(pool.request(&ticket(name, 1)), Err(LeaseError::NotLocalHost(_))), "{name:?}");
    }
}

#[test]
fn served_waiter_leaves_the_queue_with_its_first_call() {
    let (_directory, path) = create_pool(1);
    let (holder, _) = request(&path, "holder", 1);
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            let mut pool = Local::at(&path);
            let status = pool.wait(&ticket("waiter", 1), (&LocalHost::read(), None), &mut |_| {}).unwrap();
            (pool, grant(status))
        });
        wait_for_queue(&path, 1);
        // Reading the GPUs takes the gate lock, so the waiter's first attempt, under that lock, is over.
        assert_eq!(gpus(&path)[0].owner.as_deref(), Some("holder"));
        drop(holder);
        let (mut pool, first) = waiter.join().unwrap();
        assert_eq!(tickets(&path), 1, "the ticket is still in the queue");
        let (mut next, status) = request(&path, "next", 1);
        assert_eq!(status, TicketStatus::Waiting { before: 1 });
        let status = pool.touch("waiter", TTL, Some(first.token));
        assert_eq!(status, Ok(TicketStatus::Held(first)));
        assert_eq!(gpus(&path)[0].owner.as_deref(), Some("waiter"));
        assert_eq!(touch(&mut next, "next"), TicketStatus::Waiting { before: 0 });
        drop(pool);
        assert_eq!(granted_gpus(touch(&mut next, "next")), [0]);
    });
}

#[test]
fn large_request_is_granted_whole_and_not_overtaken() {
    let (_directory, path) = create_pool(3);
    let (one, status) = request(&path, "one", 1);
    assert_eq!(granted_gpus(status), [0]);
    let (mut three, status) = request(&path, "three", 3);
    assert_eq!(status, TicketStatus::Waiting { before: 0 });
    let (mut late, status) = request(&path, "late", 1);
    assert_eq!(status, TicketStatus::Waiting { before: 1 }, "the ticket waits although two GPUs are idle");
    let idle =
        |path: &Path| Local::at(path).audit().unwrap().gpus.iter().map(|gpu| gpu.idle).collect::<Vec<_>>();
    assert_eq!(idle(&path), [0, 1, 1], "a waiting ticket does not hold any GPU");
    drop(one);
    assert_eq!(touch(&mut late, "late"), TicketStatus::Waiting { before: 1 });
    assert_eq!(granted_gpus(touch(&mut three, "three")), [0, 1, 2]);
    assert_eq!(touch(&mut late, "late"), TicketStatus::Waiting { before: 0 });
    drop(three);
    assert!(matches!(touch(&mut late, "late"), TicketStatus::Held(_)));
}

#[test]
fn least_recently_used_gpu_is_granted_first() {
    let (_directory, path) = create_pool(3);
    let mut last = None;
    let granted: Vec<u32> = (0..6)
        .map(|number| {
            drop(last.take());
            let (pool, status) = request(&path, &format!("l{number}"), 1);
            last = Some(pool);
            let TicketStatus::Held(grant) = status else { return 9 };
            // The clock of the file system advances every few milliseconds.
            std::thread::park_timeout(Duration::from_millis(20));
            grant.gpus[0]
        })
        .collect();
    assert_eq!(granted, [0, 1, 2, 0, 1, 2]);
}

#[test]
fn waiters_are_served_in_order() {
    const WAITERS: usize = 20;
    let (_directory, path) = create_pool(1);
    let (first, _) = request(&path, "first", 1);
    let (sender, served_waiters) = channel();
    std::thread::scope(|scope| {
        for number in 0..WAITERS {
            let (sender, path) = (sender.clone(), &path);
            scope.spawn(move || {
                let mut pool = Local::at(path);
                let status =
                    pool.wait(&ticket(&format!("w{number}"), 1), (&LocalHost::read(), None), &mut |_| {});
                sender.send((number, status)).unwrap();
            });
            wait_for_queue(path, number + 1);
        }
        drop(first);
        for number in 0..WAITERS {
            let (served, status) = served_waiters.recv().unwrap();
            assert_eq!((served, granted_gpus(status.unwrap())), (number, vec![0]));
        }
    });
    assert_eq!(tickets(&path), 0);
}

#[test]
fn concurrent_nonblocking_requests_all_succeed() {
    let (_directory, path) = create_pool(8);
    let done = std::sync::Barrier::new(8);
    std::thread::scope(|scope| {
        for number in 0..8 {
            let (path, done) = (&path, &done);
            scope.spawn(move || {
                let nonblock = Ticket { nonblock: true, ..ticket(&format!("n{number}"), 1) };
                let mut pool = Local::at(path);
                done.wait();
                let status = pool.request(&nonblock);
                done.wait();
                assert!(matches!(status, Ok(TicketStatus::Held(_))), "{number}: {status:?}");
            });
        }
    });
}

#[test]
fn concurrent_leases_never_share_a_gpu() {
    const GPUS: usize = 4;
    let (_directory, path) = create_pool(4);
    let in_use: [AtomicBool; GPUS] = Default::default();
    let served = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for number in 0..12 {
            let (path, in_use, served) = (&path, &in_use, &served);
            scope.spawn(move || {
                for round in 0..25 {
                    let mut pool = Local::at(path);
                    let request = ticket(&format!("t{number}_{round}"), 1 + (number + round) % 3);
                    let until = (round % 5 == 4).then(|| Instant::now() + Duration::from_millis(20));
                    let TicketStatus::Held(grant) =
                        pool.wait(&request, (&LocalHost::read(), until), &mut |_| {}).unwrap()
                    else {
                        continue;
                    };
                    served.fetch_add(1, SeqCst);
                    for gpu in &grant.gpus {
                        assert!(!in_use[*gpu as usize].swap(true, SeqCst), "GPU {gpu} has two holders");
                    }
                    std::thread::yield_now();
                    for gpu in &grant.gpus {
                        in_use[*gpu as usize].store(false, SeqCst);
                    }
                }
            });
        }
    });
    assert!(served.load(SeqCst) >= 12 * 20);
    assert_eq!(tickets(&path), 0);
    assert!(Local::at(&path).audit().unwrap().gpus.iter().all(|gpu| gpu.idle == 1));
}

#[test]
fn wait_past_its_deadline_withdraws_the_ticket() {
    let (_directory, path) = create_pool(1);
    let (holder, _) = request(&path, "holder", 1);
    let mut positions = Vec::new();
    let until = Instant::now() + Duration::from_millis(30);
    let status = Local::at(&path)
        .wait(&ticket("w", 1), (&LocalHost::read(), Some(until)), &mut |before| positions.push(before));
    assert_eq!(status, Ok(TicketStatus::Waiting { before: 0 }));
    assert!(positions.iter().all(|before| *before == 0) && !positions.is_empty());
    assert_eq!(tickets(&path), 0);
    drop(holder);
    assert_eq!(granted_gpus(request(&path, "next", 1).1), [0]);
}

/// Every user can open and close the file of a GPU.
#[test]
fn waiter_reads_the_queue_once_in_a_second_although_files_are_closed() {
    let (_keep, path) = create_pool(1);
    let (holder, _) = request(&path, "holder", 1);
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            let mut pool = Local::at(&path);
            pool.wait(&ticket("waiter", 1), (&LocalHost::read(), None), &mut |_| {}).unwrap()
        });
        wait_for_queue(&path, 1);
        let file = fs::read_dir(path.join("queue")).unwrap().next().unwrap().unwrap().path();
        let (started, mut renewals) = (Instant::now(), std::collections::BTreeSet::new());
        while started.elapsed() < Duration::from_millis(1500) {
            drop(File::open(path.join("gpu/0")).unwrap());
            renewals.insert(fs::metadata(&file).unwrap().modified().unwrap());
        }
        // The waiter renews its ticket when it reads the queue.
        let most = 3 + started.elapsed().as_secs();
        assert!(renewals.len() as u64 <= most, "{} renewals", renewals.len());
        drop(holder);
        assert_eq!(granted_gpus(waiter.join().unwrap()), [0]);
    });
}

#[test]
fn stopped_waiter_is_skipped_and_keeps_its_position() {
    let (_directory, path) = create_pool(1);
    let (holder, _) = request(&path, "holder", 1);
    let (mut sleeper, status) = request(&path, "sleeper", 1);
    assert_eq!(status, TicketStatus::Waiting { before: 0 });
    let (mut next, status) = request(&path, "next", 1);
    assert_eq!(status, TicketStatus::Waiting { before: 1 });
    let mut files = fs::read_dir(path.join("queue")).unwrap().map(|entry| entry.unwrap().path());
    let file = files.find(|path| path.to_string_lossy().ends_with("-sleeper")).unwrap();
    let long_ago = SystemTime::now() - 2 * ticket("sleeper", 1).ttl;
    fs::File::open(file).unwrap().set_modified(long_ago).unwrap();
    drop(holder);
    let status = next.wait(&ticket("next", 1), (&LocalHost::read(), None), &mut |_| {}).unwrap();
    assert_eq!(granted_gpus(status), [0], "the waiter ahead has not been renewed for too long");
    let (mut third, _) = request(&path, "third", 1);
    assert_eq!(touch(&mut sleeper, "sleeper"), TicketStatus::Waiting { before: 0 });
    drop(next);
    assert_eq!(touch(&mut third, "third"), TicketStatus::Waiting { before: 1 });
    assert_eq!(granted_gpus(touch(&mut sleeper, "sleeper")), [0]);
}

#[test]
fn withdrawn_ticket_ends_its_wait() {
    let (_directory, path) = create_pool(1);
    let (_holder, _) = request(&path, "holder", 1);
    let (mut waiter, _) = request(&path, "waiter", 1);
    let mut other = Local::at(&path);
    assert_eq!(other.release("waiter", None, BY), Ok(Released::Done));
    assert_eq!(touch(&mut waiter, "waiter"), TicketStatus::Ended("cancelled".to_owned()));
    let kept = other.release("holder", None, BY);
    assert!(
        matches!(kept, Err(LeaseError::HeldElsewhere(_))),
        "this process does more than hold the lease: {kept:?}"
    );
    assert_eq!(other.release("holder", Some(7), BY), Ok(Released::Lost));
}

#[test]
fn release_of_a_gpu_considers_no_other() {
    let (_directory, path) = create_pool(2);
    let (_holder, status) = request(&path, "holder", 1);
    let gpu = granted_gpus(status)[0];
    let mut other = Local::at(&path);
    let lease = ("holder", None);
    assert_eq!(other.release_gpu(&(1 - gpu).to_string(), lease, BY), Ok(Released::Unknown));
    let held = other.release_gpu(&gpu.to_string(), lease, BY);
    assert!(matches!(held, Err(LeaseError::HeldElsewhere(_))), "{held:?}");
}

#[test]
fn shrunk_pool_refuses_too_large_requests() {
    let (_directory, path) = create_pool(2);
    let (holder, _) = request(&path, "holder", 1);
    let (mut both, _) = request(&path, "both", 2);
    drop(holder);
    assert_eq!(Local::at(&path).init(&[(0, None)], 0, true), Ok(Init::Done(1)));
    assert_eq!(touch(&mut both, "both"), TicketStatus::Ended("refused".to_owned()));
    let (mut pool, _) = request(&path, "one", 1);
    assert_eq!(Local::at(&path).audit().unwrap().gpus.len(), 1);
    fs::remove_file(path.join("pool")).unwrap();
    assert_eq!(granted_gpus(touch(&mut pool, "one")), [0], "a holder does not read the pool file");
}

fn gpus(path: &Path) -> Vec<Gpu> {
    Local::at(path).audit().unwrap().gpus
}

#[test]
fn audit_reports_holders_and_waiters() {
    let (_directory, path) = create_pool(3);
    let (holder, status) = request(&path, "holder", 2);
    let (_waiter, _) = request(&path, "waiter", 2);
    let audit = Local::at(&path).audit().unwrap();
    let owners: Vec<Option<&str>> = audit.gpus.iter().map(|gpu| gpu.owner.as_deref()).collect();
    assert_eq!(owners, [Some("holder"), Some("holder"), None]);
    assert_eq!(audit.gpus.iter().map(|gpu| gpu.idle).collect::<Vec<_>>(), [0, 0, 1]);
    assert_eq!(audit.gpus[2].uuid.as_deref(), Some("GPU-2"));
    assert_eq!(audit.queue, ["waiter"]);
    let [held, waiting] = &audit.leases[..] else { unreachable!("{:?}", audit.leases) };
    let (own_pid, token) = (std::process::id().to_string(), grant(status).token.to_string());
    for (field, value) in [
        ("gpus", "0,1"),
        ("tok", token.as_str()),
        ("user", "alice"),
        ("cmd", "train"),
        ("pid", own_pid.as_str()),
    ] {
        assert_eq!(held.get(field), Some(value), "{field}");
    }
    assert_eq!((held.state.as_str(), waiting.state.as_str()), ("held", "waiting"));
    assert_eq!(waiting.get("want"), Some("2"));
    drop(holder);
    let record = fs::read_to_string(path.join("record/0")).unwrap();
    assert!(record.contains("holder"), "{record}");
    assert_eq!(gpus(&path)[0].owner, None, "a record without a lock is ignored");
}

#[test]
fn lock_without_record_counts_as_held() {
    let (_directory, path) = create_pool(2);
    let (holder, _) = request(&path, "holder", 1);
    drop(holder);
    let foreign = File::open(path.join("gpu/0")).unwrap();
    flock(&foreign, FlockOperation::LockExclusive).unwrap();
    // The record is that of an ended lease, but this process has the lock.
    fs::write(path.join("record/0"), "{\"lease\":\"made_up\",\"about\":{}}").unwrap();
    let own_pid = std::process::id();
    assert_eq!(gpus(&path)[0].owner, Some(format!("pid:{own_pid}")));
    assert_eq!(granted_gpus(request(&path, "a", 1).1), [1]);
    let (mut waiter, status) = request(&path, "b", 2);
    assert_eq!(status, TicketStatus::Waiting { before: 0 });
    drop(foreign);
    assert!(matches!(touch(&mut waiter, "b"), TicketStatus::Held(_)));
}

#[test]
fn invalid_files_do_no_harm() {
    for nonsense in [&b""[..], b"{", b"{}", b"null", b"\xff\x00", &[b'9'; 10_000]] {
        let (directory, path) = create_pool(2);
        let (holder, _) = request(&path, "holder", 1);
        let (mut waiter, _) = request(&path, "waiter", 2);
        let (secret, queue) = (directory.path().join("secret"), path.join("queue"));
        fs::write(&secret, "untouched").unwrap();
        let ticket_files: Vec<PathBuf> =
            fs::read_dir(&queue).unwrap().map(|entry| entry.unwrap().path()).collect();
        for file in ["gate", "gpu/0", "record/0", "record/1"]
            .into_iter()
            .map(|name| path.join(name))
            .chain(ticket_files)
        {
            fs::write(file, nonsense).unwrap();
        }
        fs::write(queue.join("00000000000000000000-dead"), nonsense).unwrap();
        fs::write(queue.join("nonsense"), nonsense).unwrap();
        fs::create_dir(queue.join("00000000000000000000-directory")).unwrap();
        symlink(&secret, queue.join("00000000000000000000-link")).unwrap();
        symlink("/dev/null", path.join("gpu/2")).unwrap();
        let audit = Local::at(&path).audit().unwrap();
        assert_eq!((audit.gpus[0].idle, audit.gpus[1].idle), (0, 1));
        assert_eq!(audit.queue, ["waiter"]);
        assert_eq!(touch(&mut waiter, "waiter"), TicketStatus::Waiting { before: 0 });
        assert!(!queue.join("00000000000000000000-dead").exists(), "a ticket without a waiter is removed");
        drop(holder);
        let status = touch(&mut waiter, "waiter");
        assert!(
            matches!(&status, TicketStatus::Held(grant) if grant.gpus == [0, 1]),
            "{nonsense:?}: {status:?}"
        );
        assert_eq!(fs::read_to_string(&secret).unwrap(), "untouched");
    }
}

#[test]
fn symbolic_links_are_not_used() {
    let (directory, path) = create_pool(2);
    let elsewhere = directory.path().join("elsewhere");
    fs::write(&elsewhere, "untouched").unwrap();
    fs::remove_file(path.join("gpu/0")).unwrap();
    symlink(&elsewhere, path.join("gpu/0")).unwrap();
    let (pool, status) = request(&path, "a", 1);
    assert_eq!(granted_gpus(status), [1]);
    let found = gpus(&path);
    assert_eq!((found[0].idle, &found[0].owner), (0, &None), "the state of this GPU is unknown");
    drop(pool);
    assert_eq!(request(&path, "b", 2).1, TicketStatus::Waiting { before: 0 });
    assert_eq!(fs::read_to_string(&elsewhere).unwrap(), "untouched");
    fs::remove_file(path.join("gate")).unwrap();
    symlink(&elsewhere, path.join("gate")).unwrap();
    assert!(matches!(Local::at(&path).request(&ticket("c", 1)), Err(LeaseError::File { .. })));
    assert_eq!(fs::read_to_string(&elsewhere).unwrap(), "untouched");
}

#[test]
fn lock_on_replaced_file_is_ignored() {
    let (_directory, path) = create_pool(1);
    let (holder, _) = request(&path, "holder", 1);
    let (mut waiter, _) = request(&path, "waiter", 1);
    fs::rename(path.join("gpu/0"), path.join("gpu/old")).unwrap();
    fs::write(path.join("gpu/0"), "").unwrap();
    let new = File::open(path.join("gpu/0")).unwrap();
    flock(&new, FlockOperation::LockExclusive).unwrap();
    drop(holder);
    assert_eq!(
        touch(&mut waiter, "waiter"),
        TicketStatus::Waiting { before: 0 },
        "only a lock on the new file counts"
    );
    drop(new);
    assert_eq!(granted_gpus(touch(&mut waiter, "waiter")), [0]);
}

#[test]
fn client_stopped_with_gate_lock_is_not_waited_for() {
    let (_directory, path) = create_pool(2);
    let stopped = File::options().read(true).write(true).open(path.join("gate")).unwrap();
    flock(&stopped, FlockOperation::LockExclusive).unwrap();
    assert_eq!(granted_gpus(request(&path, "a", 1).1), [0]);
    let (_b, status) = request(&path, "b", 1);
    assert_eq!(granted_gpus(status), [1]);
    assert!(matches!(Local::at(&path).init(&[(0, None)], 0, true), Err(LeaseError::Blocked(_))));
}

#[test]
fn tokens_rise_despite_invalid_records() {
    let (_directory, path) = create_pool(1);
    let mut last = 0;
    // The third token is higher than the time on any clock.
    for written in ["", "5", "6000000000000000", "nonsense", "9007199254740990", "5", "9007199254740991"] {
        if !written.is_empty() {
            let record = format!(r#"{{"lease":"a","about":{{"tok":"{written}"}}}}"#);
            fs::write(path.join("record/0"), record).unwrap();
        }
        let grant = grant(request(&path, "a", 1).1);
        assert!(grant.token > last, "{written:?}: {} after {last}", grant.token);
        assert!(grant.token < 1 << 53, "{written:?}: {}", grant.token);
        last = grant.token;
    }
}

#[test]
fn pool_modes_follow_the_directory() {
    let directory = tempfile::tempdir().unwrap();
    let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o7777;
    for (top, gpu, queue, file, read) in
        [(0o755, 0o755, 0o1777, 0o666, 0o644), (0o750, 0o750, 0o1770, 0o660, 0o640)]
    {
        let path = directory.path().join(format!("{top:o}"));
        fs::create_dir(&path).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(top)).unwrap();
        Local::at(&path).init(&[(0, None)], 0, false).unwrap();
        for (name, expected) in [("gpu", gpu), ("record", gpu), ("queue", queue), ("record/0", file)]
            .into_iter()
            .chain(["gate", "gpu/0", "pool"].map(|name| (name, read)))
        {
            assert_eq!(mode(&path.join(name)), expected, "{name} in {top:o}");
        }
    }
}

#[test]
fn inherited_descriptor_has_a_high_number() {
    let (_directory, path) = create_pool(1);
    let (mut pool, _) = request(&path, "a", 1);
    let inherited = pool.make_inheritable("a").unwrap();
    assert_eq!(pool.make_inheritable("missing"), Ok(vec![]));
    let script = format!(
        "for fd in /proc/self/fd/*; do [ $fd -ef {} ] && echo ${{fd##*/}}; done; true",
        path.join("gpu/0").display()
    );
    let output = std::process::Command::new("bash").args(["-c", &script]).output().unwrap();
    let number: i32 = String::from_utf8(output.stdout).unwrap().trim().parse().unwrap();
    assert!(number >= 100, "{number}");
    assert_eq!(inherited, [number]);
    assert_eq!(gpus(&path)[0].owner.as_deref(), Some("a"));
}
