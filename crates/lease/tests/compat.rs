//! Tests operations under GPU.py's rules on a real Redis server: releasing a GPU by its number, recreating a pool
//! while leases are held, and holding a lease without a running process.
#![expect(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test starts a server and fails loudly"
)]

mod server;

use std::process::Command;
use std::time::Duration;

use bailiff_lease::Leases as _;
use bailiff_lease::compat::{Force, NumberedRelease};
use bailiff_lease::holder::{Life, LocalHost};
use bailiff_lease::{Grant, Init, LeaseError, Pool, Ticket, TicketStatus};
use redis::Connection;

use server::Server;

const TTL: Duration = Duration::from_mins(1);

fn pool(server: &Server) -> Pool {
    Pool::open(&server.address(), "GPU", Duration::from_secs(5)).unwrap()
}

fn create_pool(server: &Server, count: u32) -> (Pool, Connection) {
    let mut pool = pool(server);
    let gpus: Vec<(u32, Option<String>)> = (0..count).map(|number| (number, None)).collect();
    assert_eq!(pool.begin((&gpus, 8), 0, Force::No), Ok(Init::Done(u64::from(count))));
    (pool, redis::Client::open(server.address()).unwrap().get_connection().unwrap())
}

/// Returns a ticket under GPU.py's rules (`compat`) or for a command (`run`).
fn ticket(lease: &str, mode: &'static str) -> Ticket {
    let mut about =
        vec![("pid", "4711".to_owned()), ("legacy_pid", "4711".to_owned()), ("mode", mode.to_owned())];
    if mode == "compat" {
        about.extend(LocalHost::read().taker(std::process::id()));
        about.extend(LocalHost::read().holder(std::process::id()));
    }
    Ticket { lease: lease.to_owned(), want: 1, priority: 0, ttl: TTL, nonblock: false, about }
}

fn acknowledge(pool: &mut Pool, lease: &str) -> Grant {
    let Ok(TicketStatus::Held(grant)) = pool.request(&ticket(lease, "compat")) else {
        panic!("no GPU was idle")
    };
    assert_eq!(pool.touch(lease, TTL, Some(grant.token)), Ok(TicketStatus::Held(grant.clone())));
    grant
}

fn request<T: redis::FromRedisValue>(connection: &mut Connection, args: &[&str]) -> T {
    let mut command = redis::cmd(args[0]);
    command.arg(&args[1..]).query(connection).unwrap()
}

fn idle(redis: &mut Connection) -> Vec<String> {
    request(redis, &["LRANGE", "GPU_IDLE", "0", "-1"])
}

/// Releases a GPU as GPU.py does.
fn release_as_original(redis: &mut Connection, id: &str) {
    request::<u64>(redis, &["DEL", &format!("GPU_GPU{id}")]);
    request::<u64>(redis, &["LPUSH", "GPU_IDLE", id]);
}

#[test]
fn gpu_is_released_by_its_number() {
    let server = Server::start(&[]);
    let (mut pool, mut redis) = create_pool(&server, 6);
    let caller = (0, 42);
    assert_eq!(pool.release_by_number("9", caller), Ok(NumberedRelease::Unmanaged));
    assert_eq!(pool.release_by_number("0", caller), Ok(NumberedRelease::Idle));
    // One GPU of each kind: 0 is held by a compat lease, 1 by a command, 2 by an original client, and 3 is not in
    // any list.
    assert_eq!(acknowledge(&mut pool, "compat").gpus, [0]);
    pool.request(&ticket("modern", "run")).unwrap();
    for id in ["2", "3", "4", "5"] {
        request::<Vec<String>>(&mut redis, &["BRPOP", "GPU_IDLE", "0"]);
        if id != "3" {
            request::<u64>(&mut redis, &["HSET", &format!("GPU_GPU{id}"), "PID", "77"]);
        }
    }
    assert_eq!(pool.release_by_number("0", caller), Ok(NumberedRelease::Released));
    assert_eq!(pool.release_by_number("0", caller), Ok(NumberedRelease::Idle), "once");
    assert_eq!(pool.release_by_number("1", caller), Ok(NumberedRelease::Held("modern".to_owned())));
    assert_eq!(pool.release_by_number("2", caller), Ok(NumberedRelease::Released));
    assert_eq!(
        pool.release_by_number("3", caller),
        Ok(NumberedRelease::Released),
        "--release of GPU.py also finds lost GPUs"
    );
    assert_eq!(idle(&mut redis), ["3", "2", "0"]);
    // GPU 4 is quarantined because of its GPU.py record, which the release deletes. GPU 5 is quarantined for
    // another reason.
    request::<u64>(&mut redis, &["HSET", "GPU_V2:QUAR", "4", "legacy_record:1", "5", "busy:1"]);
    assert_eq!(pool.release_by_number("4", caller), Ok(NumberedRelease::Released));
    assert_eq!(pool.release_by_number("5", caller), Ok(NumberedRelease::Quarantined("busy:1".to_owned())));
    assert_eq!(idle(&mut redis), ["4", "3", "2", "0"]);
    request::<u64>(&mut redis, &["LREM", "GPU_IDLE", "0", "3"]);
    request::<u64>(&mut redis, &["LPUSH", "GPU_V2:POT", "3"]);
    assert_eq!(
        pool.release_by_number("3", caller),
        Ok(NumberedRelease::Idle),
        "the GPU is gathered for a waiting ticket"
    );
    let events = pool.lines().unwrap();
    assert!(events[3].ends_with(": GPU 0 released by PID 42."), "{events:?}");
}

#[test]
fn release_by_original_serves_waiting_ticket() {
    let server = Server::start(&[]);
    let (mut first, mut redis) = create_pool(&server, 1);
    for waiter in ["compat", "run"] {
        acknowledge(&mut first, &format!("first before {waiter}"));
        std::thread::scope(|scope| {
            let next = scope
                .spawn(|| pool(&server).wait(&ticket(waiter, waiter), (&LocalHost::read(), None), |_| {}));
            let started = std::time::Instant::now();
            while !request::<String>(&mut redis, &["INFO", "clients"]).contains("blocked_clients:2\r") {
                assert!(started.elapsed() < Duration::from_mins(1), "no client is waiting");
            }
            release_as_original(&mut redis, "0");
            assert!(
                matches!(next.join().unwrap(), Ok(TicketStatus::Held(_))),
                "the ticket's slot pops the GPU"
            );
        });
        assert_eq!(
            first.touch(&format!("first before {waiter}"), TTL, None),
            Ok(TicketStatus::Ended("released".to_owned()))
        );
        first.release(waiter, None, (0, 1)).unwrap();
        assert_eq!(idle(&mut redis), ["0"]);
    }
    acknowledge(&mut first, "again");
    release_as_original(&mut redis, "0");
    assert_eq!(
        first.touch("again", TTL, None),
        Ok(TicketStatus::Ended("released".to_owned())),
        "the holder is told that the lease was released"
    );
    assert_eq!(idle(&mut redis), ["0"]);
}

#[test]
fn acknowledged_compat_lease_outlives_its_taker() {
    let server = Server::start(&[]);
    let (mut pool, mut redis) = create_pool(&server, 3);
    let local_host = LocalHost::read();
    let mut child = Command::new("true").spawn().unwrap();
    child.wait().unwrap();
    let dead = |name: &str| {
        let mut ticket = ticket(name, "compat");
        ticket.about.retain(|(field, _)| *field != "taker" && *field != "chain");
        ticket.about.extend([("taker", format!("{}:1", child.id())), ("chain", format!("{}:1", child.id()))]);
        ticket.about.push(("ack_ms", "1".to_owned()));
        ticket
    };
    let Ok(TicketStatus::Held(grant)) = pool.request(&dead("unknown")) else { panic!("no GPU was idle") };
    assert_eq!(grant.gpus, [0]);
    let Ok(TicketStatus::Held(grant)) = pool.request(&dead("known")) else { panic!("no GPU was idle") };
    pool.touch("known", Duration::from_millis(1), Some(grant.token)).unwrap();
    assert_eq!(pool.reap_local_host(&local_host, TTL), Ok(1), "only the unacknowledged lease is freed");
    let audit = pool.audit().unwrap();
    assert_eq!(audit.leases.len(), 1);
    let lease = &audit.leases[0];
    assert!(
        lease.lease == "known"
            && local_host.life(lease) == Life::Unknown
            && local_host.chain_life(lease) == Life::Dead
    );
    assert!(lease.expires > f64::from(u32::MAX) * 1000.0, "the lease must not expire: {}", lease.expires);
    assert_eq!(idle(&mut redis), ["0", "2"]);
}

#[test]
fn id_that_is_idle_before_it_is_managed_is_kept() {
    let server = Server::start(&[]);
    let (mut pool, mut redis) = create_pool(&server, 1);
    assert_eq!(pool.forget(Force::No), Ok(Ok(())));
    assert_eq!(pool.view().unwrap(), bailiff_lease::compat::View::default());
    assert_eq!(pool.request(&ticket("early", "compat")), Ok(TicketStatus::Waiting { before: 0 }));
    assert_eq!(pool.touch("early", TTL, None), Ok(TicketStatus::Waiting { before: 0 }));
    request::<u64>(&mut redis, &["LPUSH", "GPU_V2:POT", "7"]);
    assert_eq!(pool.touch("early", TTL, None), Ok(TicketStatus::Waiting { before: 0 }));
    request::<u64>(&mut redis, &["LPUSH", "GPU_IDLE", "8"]);
    request::<u64>(&mut redis, &["LPUSH", "GPU_MANAGED", "8"]);
    assert!(matches!(pool.touch("early", TTL, None), Ok(TicketStatus::Held(grant)) if grant.gpus == [8]));
    request::<u64>(&mut redis, &["LPUSH", "GPU_MANAGED", "7"]);
    assert!(
        matches!(pool.request(&ticket("next", "compat")), Ok(TicketStatus::Held(grant)) if grant.gpus == [7])
    );
}

#[test]
fn held_leases_prevent_init_and_delete_unless_forced() {
    let server = Server::start(&[]);
    let (mut pool, mut redis) = create_pool(&server, 2);
    let gpus = [(3, Some("GPU-3".to_owned())), (1, None)];
    let held = acknowledge(&mut pool, "a");
    assert_eq!(pool.begin((&gpus, 8), 0, Force::No), Ok(Init::Already(2)));
    assert_eq!(pool.begin((&gpus, 8), 0, Force::Over), Ok(Init::Held(1)));
    assert_eq!(pool.forget(Force::Over), Ok(Err(1)));
    // A waiting ticket is kept when the pool is recreated.
    acknowledge(&mut pool, "b");
    assert_eq!(pool.request(&ticket("waits", "run")), Ok(TicketStatus::Waiting { before: 0 }));
    assert_eq!(pool.begin((&gpus, 8), 0, Force::Under), Ok(Init::Done(2)));
    assert_eq!(pool.touch("a", TTL, None), Ok(TicketStatus::Ended("revoked".to_owned())));
    assert_eq!(idle(&mut redis), ["1", "3"], "GPU 3 was pushed first");
    let Ok(TicketStatus::Held(grant)) = pool.touch("waits", TTL, None) else {
        panic!("the ticket was not served")
    };
    assert!(grant.gpus == [3] && grant.token > held.token, "{grant:?}");
    let view = pool.view().unwrap();
    assert_eq!((view.begun, view.count, view.managed), (true, Some(8), vec!["1".to_owned(), "3".to_owned()]));
    assert_eq!(pool.forget(Force::Under), Ok(Ok(())));
    let left: Vec<String> = request(&mut redis, &["KEYS", "GPU*"]);
    assert_eq!(left, ["GPU_V2:LEASE:waits"], "the runner has not renewed the lease yet");
    assert_eq!(pool.touch("waits", TTL, None), Ok(TicketStatus::Ended("revoked".to_owned())));
}

#[test]
fn deleted_pool_keeps_ended_leases_and_rising_tokens() {
    let server = Server::start(&[]);
    let (mut pool, mut redis) = create_pool(&server, 2);
    let before = acknowledge(&mut pool, "compat");
    assert_eq!(pool.release_by_number("0", (0, 42)), Ok(NumberedRelease::Released));
    let Ok(TicketStatus::Held(grant)) = pool.request(&ticket("run", "run")) else {
        panic!("no GPU was idle")
    };
    pool.release("run", Some(grant.token), (0, 42)).unwrap();
    pool.request(&ticket("late", "run")).unwrap();
    for lease in ["more", "late waiter"] {
        pool.request(&Ticket { ttl: Duration::ZERO, ..ticket(lease, "run") }).unwrap();
    }
    for lease in ["late", "more"] {
        pool.release(lease, None, (0, 42)).unwrap();
    }
    assert_eq!(pool.forget(Force::No), Ok(Ok(())));
    // Leases that a runner may reclaim stay recorded as ended for one hour.
    let ended = ["late", "more", "run"].map(|lease| format!("GPU_V2:LEASE:{lease}"));
    for _ in 0..2 {
        let mut left: Vec<String> = request(&mut redis, &["KEYS", "*"]);
        left.sort();
        assert_eq!(left, ended);
        assert!(left.iter().all(|key| request::<i64>(&mut redis, &["PTTL", key]) > 0));
        pool.audit().unwrap();
        pool.view().unwrap();
        pool.reap_local_host(&LocalHost::read(), TTL).unwrap();
    }
    assert_eq!(pool.begin((&[(0, None)], 8), 0, Force::No), Ok(Init::Done(1)));
    let after = acknowledge(&mut pool, "compat");
    assert!(before.token < grant.token && grant.token < after.token, "{before:?} {grant:?} {after:?}");
    // The server was restarted: its earlier run_id was stored before the first grant.
    request::<u64>(&mut redis, &["HSET", "GPU_V2:META", "run", "another"]);
    assert!(pool.audit().unwrap().barrier.is_some());
}

#[test]
fn lease_ended_before_pool_deletion_is_not_restored() {
    let server = Server::start(&[]);
    let (mut pool, _) = create_pool(&server, 1);
    let Ok(TicketStatus::Held(first)) = pool.request(&ticket("first", "run")) else {
        panic!("no GPU was idle")
    };
    // An administrator releases the lease, and its runner does not know that yet.
    pool.release("first", None, (0, 42)).unwrap();
    assert_eq!(pool.forget(Force::No), Ok(Ok(())));
    assert_eq!(pool.begin((&[(0, None)], 8), 0, Force::No), Ok(Init::Done(1)));
    let Ok(TicketStatus::Held(second)) = pool.request(&ticket("second", "run")) else {
        panic!("no GPU was idle")
    };
    assert_eq!(
        pool.reclaim(&ticket("first", "run"), &first, TTL),
        Ok(TicketStatus::Ended("released".to_owned()))
    );
    assert_eq!(pool.touch("second", TTL, Some(second.token)), Ok(TicketStatus::Held(second)));
}

#[test]
fn deleted_pool_keeps_waiting_tickets_in_order() {
    let server = Server::start(&[]);
    let (mut pool, mut redis) = create_pool(&server, 1);
    let prefix = "GPU[1]*";
    let mut other = Pool::open(&server.address(), prefix, Duration::from_secs(5)).unwrap();
    assert_eq!(other.begin((&[(0, None)], 8), 0, Force::No), Ok(Init::Done(1)));
    for waiter in ["first", "second"] {
        for pool in [&mut pool, &mut other] {
            pool.request(&ticket(&format!("holder before {waiter}"), "compat")).unwrap();
            pool.request(&ticket(waiter, "run")).unwrap();
        }
    }
    assert_eq!(other.forget(Force::Under), Ok(Ok(())));
    let mut left: Vec<String> = request(&mut redis, &["KEYS", "GPU\\[1*"]);
    left.sort();
    let kept = ["EXP", "LEASE:first", "LEASE:holder before second", "LEASE:second", "META", "Q"];
    assert_eq!(left, kept.map(|key| format!("{prefix}_V2:{key}")));
    assert!(
        matches!(pool.touch("holder before first", TTL, None), Ok(TicketStatus::Held(_))),
        "the release does not affect the other pool"
    );
    assert_eq!(other.begin((&[(0, None)], 8), 0, Force::No), Ok(Init::Done(1)));
    assert_eq!(other.touch("second", TTL, None), Ok(TicketStatus::Waiting { before: 1 }));
    assert!(matches!(other.touch("first", TTL, None), Ok(TicketStatus::Held(_))));
}

#[test]
fn lease_lost_by_server_is_restored_over_newer_grant() {
    let server = Server::start(&[]);
    let (mut pool, mut redis) = create_pool(&server, 1);
    let lost = ticket("theirs", "run");
    let Ok(TicketStatus::Held(grant)) = pool.request(&lost) else { panic!("no GPU was idle") };
    request::<()>(&mut redis, &["FLUSHALL"]);
    assert_eq!(pool.begin((&[(0, None)], 8), 0, Force::No), Ok(Init::Done(1)));
    assert!(matches!(pool.request(&ticket("hurried", "run")), Ok(TicketStatus::Held(_))));
    assert_eq!(pool.reclaim(&lost, &grant, TTL), Ok(TicketStatus::Held(grant.clone())));
    assert_eq!(pool.touch("hurried", TTL, None), Ok(TicketStatus::Ended("lost".to_owned())));
    let older = Grant { token: grant.token - 1, ..grant };
    assert_eq!(pool.reclaim(&ticket("older", "run"), &older, TTL), Ok(TicketStatus::Conflict(older.clone())));
}

#[test]
fn lists_of_wrong_type_are_replaced_like_the_original() {
    let server = Server::start(&[]);
    let (mut pool, mut redis) =
        (pool(&server), redis::Client::open(server.address()).unwrap().get_connection().unwrap());
    let gpus = [(0, None), (1, None)];
    let set_wrong_type = |redis: &mut Connection| {
        for key in ["GPU_IDLE", "GPU_MANAGED", "GPU_EVENTS"] {
            request::<()>(redis, &["SET", key, "a string"]);
        }
    };
    let assert_wrong_type = |result: Result<Init, LeaseError>, key: &str| {
        assert!(matches!(&result, Err(LeaseError::WrongType(why)) if why.contains(key)), "{result:?}");
    };
    set_wrong_type(&mut redis);
    assert_wrong_type(pool.init(&gpus, 0, true), "GPU_");
    assert_eq!(pool.begin((&gpus, 8), 0, Force::No), Ok(Init::Done(2)));
    assert_eq!(idle(&mut redis), ["1", "0"]);
    set_wrong_type(&mut redis);
    assert_eq!(pool.begin((&gpus, 8), 0, Force::No), Ok(Init::Already(0)));
    assert_eq!(request::<String>(&mut redis, &["GET", "GPU_IDLE"]), "a string");
    assert_eq!(pool.begin((&gpus, 8), 0, Force::Over), Ok(Init::Done(2)));
    acknowledge(&mut pool, "a");
    set_wrong_type(&mut redis);
    assert_eq!(pool.begin((&gpus, 8), 0, Force::Over), Ok(Init::Held(1)));
    assert_eq!(pool.forget(Force::No), Ok(Err(1)));
    assert_eq!(request::<String>(&mut redis, &["GET", "GPU_IDLE"]), "a string");
    assert_eq!(pool.begin((&gpus, 8), 0, Force::Under), Ok(Init::Done(2)));
    set_wrong_type(&mut redis);
    assert_eq!(pool.forget(Force::No), Ok(Ok(())));
    assert_eq!(request::<Vec<String>>(&mut redis, &["KEYS", "*"]), Vec::<String>::new());
    // GPU.py replaces neither its own INIT key nor keys that it does not know.
    for key in ["GPU_INIT", "GPU_V2:OWN", "GPU_V2:LOG"] {
        request::<()>(&mut redis, &["SET", key, "a string"]);
        assert_wrong_type(pool.begin((&gpus, 8), 0, Force::Under), key);
        if key != "GPU_V2:LOG" {
            set_wrong_type(&mut redis);
            assert_wrong_type(pool.begin((&gpus, 8), 0, Force::Under), "GPU_");
            assert_eq!(request::<String>(&mut redis, &["GET", "GPU_IDLE"]), "a string");
        }
        request::<()>(&mut redis, &["FLUSHALL"]);
    }
}

#[test]
fn lease_released_by_original_does_not_block_init() {
    let server = Server::start(&[]);
    let (mut pool, mut redis) = create_pool(&server, 2);
    acknowledge(&mut pool, "a");
    release_as_original(&mut redis, "0");
    let audit = pool.audit().unwrap();
    assert!(audit.leases.is_empty() && audit.gpus.iter().all(|gpu| gpu.owner.is_none() && gpu.idle == 1));
    acknowledge(&mut pool, "b");
    release_as_original(&mut redis, "1");
    assert_eq!(pool.begin((&[(0, None)], 8), 0, Force::Over), Ok(Init::Done(1)));
}
