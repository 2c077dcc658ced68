//! What GPU.py's rules allow, against a real Redis: to give back what somebody has by its number, to begin again under
//! holders, to hold without being there.
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

use bailiff_lease::compat::{Force, Given};
use bailiff_lease::holder::{Life, LocalHost};
use bailiff_lease::{Grant, Init, LeaseError, Pool, Ticket, TicketStatus};
use redis::Connection;

use server::Server;

const TTL: Duration = Duration::from_mins(1);

fn pool(server: &Server) -> Pool {
    Pool::open(&server.address(), "GPU", Duration::from_secs(5)).unwrap()
}

fn begun(server: &Server, count: u32) -> (Pool, Connection) {
    let mut pool = pool(server);
    let gpus: Vec<(u32, Option<String>)> = (0..count).map(|number| (number, None)).collect();
    assert_eq!(pool.begin((&gpus, 8), 0, Force::No), Ok(Init::Done(u64::from(count))));
    (pool, redis::Client::open(server.address()).unwrap().get_connection().unwrap())
}

/// By GPU.py's rules, or for a command.
fn ticket(lease: &str, mode: &'static str) -> Ticket {
    let mut about =
        vec![("pid", "4711".to_owned()), ("legacy_pid", "4711".to_owned()), ("mode", mode.to_owned())];
    if mode == "compat" {
        about.extend(LocalHost::read().taker(std::process::id()));
        about.extend(LocalHost::read().holder(std::process::id()));
    }
    Ticket { lease: lease.to_owned(), want: 1, priority: 0, ttl: TTL, nonblock: false, about }
}

fn known(pool: &mut Pool, lease: &str) -> Grant {
    let Ok(TicketStatus::Held(grant)) = pool.request(&ticket(lease, "compat")) else {
        panic!("nothing was idle")
    };
    assert_eq!(pool.touch(lease, TTL, Some(grant.token)), Ok(TicketStatus::Held(grant.clone())));
    grant
}

fn request<T: redis::FromRedisValue>(connection: &mut Connection, words: &[&str]) -> T {
    let mut command = redis::cmd(words[0]);
    command.arg(&words[1..]).query(connection).unwrap()
}

fn idle(redis: &mut Connection) -> Vec<String> {
    request(redis, &["LRANGE", "GPU_IDLE", "0", "-1"])
}

/// As GPU.py gives back.
fn released_by_original(redis: &mut Connection, id: &str) {
    request::<u64>(redis, &["DEL", &format!("GPU_GPU{id}")]);
    request::<u64>(redis, &["LPUSH", "GPU_IDLE", id]);
}

#[test]
fn a_gpu_is_given_back_by_its_number() {
    let server = Server::start(&[]);
    let (mut pool, mut redis) = begun(&server, 6);
    let who = (0, 42);
    assert_eq!(pool.give("9", who), Ok(Given::Unmanaged));
    assert_eq!(pool.give("0", who), Ok(Given::Idle));
    // Each in a place of its own: 0 by GPU.py's rules, 1 a command's, 2 a client's of the original, 3 in nobody's hands.
    assert_eq!(known(&mut pool, "compat").gpus, [0]);
    pool.request(&ticket("modern", "run")).unwrap();
    for id in ["2", "3", "4", "5"] {
        request::<Vec<String>>(&mut redis, &["BRPOP", "GPU_IDLE", "0"]);
        if id != "3" {
            request::<u64>(&mut redis, &["HSET", &format!("GPU_GPU{id}"), "PID", "77"]);
        }
    }
    assert_eq!(pool.give("0", who), Ok(Given::Released));
    assert_eq!(pool.give("0", who), Ok(Given::Idle), "once");
    assert_eq!(pool.give("1", who), Ok(Given::Held("modern".to_owned())));
    assert_eq!(pool.give("2", who), Ok(Given::Released));
    assert_eq!(pool.give("3", who), Ok(Given::Released), "GPU.py lost it, and its --release finds it");
    assert_eq!(idle(&mut redis), ["3", "2", "0"]);
    // Withheld for the sake of the record that now goes, and for another reason.
    request::<u64>(&mut redis, &["HSET", "GPU_V2:QUAR", "4", "legacy_record:1", "5", "busy:1"]);
    assert_eq!(pool.give("4", who), Ok(Given::Released));
    assert_eq!(pool.give("5", who), Ok(Given::Quarantined("busy:1".to_owned())));
    assert_eq!(idle(&mut redis), ["4", "3", "2", "0"]);
    request::<u64>(&mut redis, &["LREM", "GPU_IDLE", "0", "3"]);
    request::<u64>(&mut redis, &["LPUSH", "GPU_V2:POT", "3"]);
    assert_eq!(pool.give("3", who), Ok(Given::Idle), "it is gathered for somebody");
    let events = pool.lines().unwrap();
    assert!(events[3].ends_with(": GPU 0 released by PID 42."), "{events:?}");
}

#[test]
fn a_release_of_the_originals_is_honoured_for_whoever_waits() {
    let server = Server::start(&[]);
    let (mut first, mut redis) = begun(&server, 1);
    for waiter in ["compat", "run"] {
        known(&mut first, &format!("first before {waiter}"));
        std::thread::scope(|scope| {
            let next = scope
                .spawn(|| pool(&server).wait(&ticket(waiter, waiter), (&LocalHost::read(), None), |_| {}));
            let began = std::time::Instant::now();
            while !request::<String>(&mut redis, &["INFO", "clients"]).contains("blocked_clients:2\r") {
                assert!(began.elapsed() < Duration::from_mins(1), "nobody waits");
            }
            released_by_original(&mut redis, "0");
            assert!(matches!(next.join().unwrap(), Ok(TicketStatus::Held(_))), "its slot finds it");
        });
        assert_eq!(
            first.touch(&format!("first before {waiter}"), TTL, None),
            Ok(TicketStatus::Ended("released".to_owned()))
        );
        first.release(waiter, None, (0, 1)).unwrap();
        assert_eq!(idle(&mut redis), ["0"]);
    }
    known(&mut first, "again");
    released_by_original(&mut redis, "0");
    assert_eq!(
        first.touch("again", TTL, None),
        Ok(TicketStatus::Ended("released".to_owned())),
        "it is told so"
    );
    assert_eq!(idle(&mut redis), ["0"]);
}

#[test]
fn a_lease_by_the_originals_rules_outlives_whoever_took_it_once_he_knows_of_it() {
    let server = Server::start(&[]);
    let (mut pool, mut redis) = begun(&server, 3);
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
    let Ok(TicketStatus::Held(grant)) = pool.request(&dead("unknown")) else { panic!("nothing was idle") };
    assert_eq!(grant.gpus, [0]);
    let Ok(TicketStatus::Held(grant)) = pool.request(&dead("known")) else { panic!("nothing was idle") };
    pool.touch("known", Duration::from_millis(1), Some(grant.token)).unwrap();
    assert_eq!(pool.reap_local_host(&local_host, TTL), Ok(1), "of whoever took it without knowing");
    let audit = pool.audit().unwrap();
    assert_eq!(audit.leases.len(), 1);
    let lease = &audit.leases[0];
    assert!(
        lease.lease == "known"
            && local_host.life(lease) == Life::Unknown
            && local_host.chained(lease) == Life::Dead
    );
    assert!(lease.expires > f64::from(u32::MAX) * 1000.0, "it is never late: {}", lease.expires);
    assert_eq!(idle(&mut redis), ["0", "2"]);
}

#[test]
fn an_id_that_is_idle_before_it_is_managed_is_kept_for_whoever_waits() {
    let server = Server::start(&[]);
    let (mut pool, mut redis) = begun(&server, 1);
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
fn a_pool_is_begun_and_forgotten_under_holders_only_where_that_is_forced() {
    let server = Server::start(&[]);
    let (mut pool, mut redis) = begun(&server, 2);
    let gpus = [(3, Some("GPU-3".to_owned())), (1, None)];
    let held = known(&mut pool, "a");
    assert_eq!(pool.begin((&gpus, 8), 0, Force::No), Ok(Init::Already(2)));
    assert_eq!(pool.begin((&gpus, 8), 0, Force::Over), Ok(Init::Held(1)));
    assert_eq!(pool.forget(Force::Over), Ok(Err(1)));
    // One of the rest waits, and goes on waiting.
    known(&mut pool, "b");
    assert_eq!(pool.request(&ticket("waits", "run")), Ok(TicketStatus::Waiting { before: 0 }));
    assert_eq!(pool.begin((&gpus, 8), 0, Force::Under), Ok(Init::Done(2)));
    assert_eq!(pool.touch("a", TTL, None), Ok(TicketStatus::Ended("revoked".to_owned())));
    assert_eq!(idle(&mut redis), ["1", "3"], "3 was pushed first");
    let Ok(TicketStatus::Held(grant)) = pool.touch("waits", TTL, None) else { panic!("it is not served") };
    assert!(grant.gpus == [3] && grant.token > held.token, "{grant:?}");
    let view = pool.view().unwrap();
    assert_eq!((view.begun, view.count, view.managed), (true, Some(8), vec!["1".to_owned(), "3".to_owned()]));
    assert_eq!(pool.forget(Force::Under), Ok(Ok(())));
    let left: Vec<String> = request(&mut redis, &["KEYS", "GPU*"]);
    assert_eq!(left, ["GPU_V2:LEASE:waits"], "its runner is yet to renew it");
    assert_eq!(pool.touch("waits", TTL, None), Ok(TicketStatus::Ended("revoked".to_owned())));
}

#[test]
fn deleted_pool_leaves_only_ended_leases_of_runners_and_its_tokens_are_below_those_of_the_next() {
    let server = Server::start(&[]);
    let (mut pool, mut redis) = begun(&server, 2);
    let before = known(&mut pool, "compat");
    assert_eq!(pool.give("0", (0, 42)), Ok(Given::Released));
    let Ok(TicketStatus::Held(grant)) = pool.request(&ticket("run", "run")) else {
        panic!("nothing was idle")
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
    // What a runner may ask back is known to have ended, for its hour.
    let remembered = ["late", "more", "run"].map(|lease| format!("GPU_V2:LEASE:{lease}"));
    for _ in 0..2 {
        let mut left: Vec<String> = request(&mut redis, &["KEYS", "*"]);
        left.sort();
        assert_eq!(left, remembered);
        assert!(left.iter().all(|key| request::<i64>(&mut redis, &["PTTL", key]) > 0));
        pool.audit().unwrap();
        pool.view().unwrap();
        pool.reap_local_host(&LocalHost::read(), TTL).unwrap();
    }
    assert_eq!(pool.begin((&[(0, None)], 8), 0, Force::No), Ok(Init::Done(1)));
    let after = known(&mut pool, "compat");
    assert!(before.token < grant.token && grant.token < after.token, "{before:?} {grant:?} {after:?}");
    // The server was restarted: it is known who it was before anything was granted.
    request::<u64>(&mut redis, &["HSET", "GPU_V2:META", "run", "another"]);
    assert!(pool.audit().unwrap().barrier.is_some());
}

#[test]
fn lease_that_ended_before_the_pool_was_deleted_is_not_given_back() {
    let server = Server::start(&[]);
    let (mut pool, _) = begun(&server, 1);
    let Ok(TicketStatus::Held(first)) = pool.request(&ticket("first", "run")) else {
        panic!("nothing was idle")
    };
    // An administrator takes it away; its runner does not know of that yet.
    pool.release("first", None, (0, 42)).unwrap();
    assert_eq!(pool.forget(Force::No), Ok(Ok(())));
    assert_eq!(pool.begin((&[(0, None)], 8), 0, Force::No), Ok(Init::Done(1)));
    let Ok(TicketStatus::Held(second)) = pool.request(&ticket("second", "run")) else {
        panic!("nothing was idle")
    };
    assert_eq!(
        pool.reclaim(&ticket("first", "run"), &first, TTL),
        Ok(TicketStatus::Ended("released".to_owned()))
    );
    assert_eq!(pool.touch("second", TTL, Some(second.token)), Ok(TicketStatus::Held(second)));
}

#[test]
fn deleted_pool_keeps_those_who_wait_in_their_order() {
    let server = Server::start(&[]);
    let (mut pool, mut redis) = begun(&server, 1);
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
        "not the other pool"
    );
    assert_eq!(other.begin((&[(0, None)], 8), 0, Force::No), Ok(Init::Done(1)));
    assert_eq!(other.touch("second", TTL, None), Ok(TicketStatus::Waiting { before: 1 }));
    assert!(matches!(other.touch("first", TTL, None), Ok(TicketStatus::Held(_))));
}

#[test]
fn lease_that_a_server_lost_is_given_back_though_another_was_granted_it_since() {
    let server = Server::start(&[]);
    let (mut pool, mut redis) = begun(&server, 1);
    let theirs = ticket("theirs", "run");
    let Ok(TicketStatus::Held(grant)) = pool.request(&theirs) else { panic!("nothing was idle") };
    request::<()>(&mut redis, &["FLUSHALL"]);
    assert_eq!(pool.begin((&[(0, None)], 8), 0, Force::No), Ok(Init::Done(1)));
    assert!(matches!(pool.request(&ticket("hurried", "run")), Ok(TicketStatus::Held(_))));
    assert_eq!(pool.reclaim(&theirs, &grant, TTL), Ok(TicketStatus::Held(grant.clone())));
    assert_eq!(pool.touch("hurried", TTL, None), Ok(TicketStatus::Ended("lost".to_owned())));
    let older = Grant { token: grant.token - 1, ..grant };
    assert_eq!(pool.reclaim(&ticket("older", "run"), &older, TTL), Ok(TicketStatus::Conflict(older.clone())));
}

#[test]
fn lists_of_a_wrong_type_are_replaced_as_far_as_the_original_does() {
    let server = Server::start(&[]);
    let (mut pool, mut redis) =
        (pool(&server), redis::Client::open(server.address()).unwrap().get_connection().unwrap());
    let gpus = [(0, None), (1, None)];
    let spoil = |redis: &mut Connection| {
        for key in ["GPU_IDLE", "GPU_MANAGED", "GPU_EVENTS"] {
            request::<()>(redis, &["SET", key, "what is this"]);
        }
    };
    let wrong = |how: Result<Init, LeaseError>, key: &str| {
        assert!(matches!(&how, Err(LeaseError::WrongType(why)) if why.contains(key)), "{how:?}");
    };
    spoil(&mut redis);
    wrong(pool.init(&gpus, 0, true), "GPU_");
    assert_eq!(pool.begin((&gpus, 8), 0, Force::No), Ok(Init::Done(2)));
    assert_eq!(idle(&mut redis), ["1", "0"]);
    spoil(&mut redis);
    assert_eq!(pool.begin((&gpus, 8), 0, Force::No), Ok(Init::Already(0)));
    assert_eq!(request::<String>(&mut redis, &["GET", "GPU_IDLE"]), "what is this");
    assert_eq!(pool.begin((&gpus, 8), 0, Force::Over), Ok(Init::Done(2)));
    known(&mut pool, "a");
    spoil(&mut redis);
    assert_eq!(pool.begin((&gpus, 8), 0, Force::Over), Ok(Init::Held(1)));
    assert_eq!(pool.forget(Force::No), Ok(Err(1)));
    assert_eq!(request::<String>(&mut redis, &["GET", "GPU_IDLE"]), "what is this");
    assert_eq!(pool.begin((&gpus, 8), 0, Force::Under), Ok(Init::Done(2)));
    spoil(&mut redis);
    assert_eq!(pool.forget(Force::No), Ok(Ok(())));
    assert_eq!(request::<Vec<String>>(&mut redis, &["KEYS", "*"]), Vec::<String>::new());
    // Not what the original does not replace: its own INIT, and what it knows nothing of.
    for key in ["GPU_INIT", "GPU_V2:OWN", "GPU_V2:LOG"] {
        request::<()>(&mut redis, &["SET", key, "what is this"]);
        wrong(pool.begin((&gpus, 8), 0, Force::Under), key);
        if key != "GPU_V2:LOG" {
            spoil(&mut redis);
            wrong(pool.begin((&gpus, 8), 0, Force::Under), "GPU_");
            assert_eq!(request::<String>(&mut redis, &["GET", "GPU_IDLE"]), "what is this");
        }
        request::<()>(&mut redis, &["FLUSHALL"]);
    }
}

#[test]
fn a_lease_that_was_released_meanwhile_keeps_nobody_from_beginning() {
    let server = Server::start(&[]);
    let (mut pool, mut redis) = begun(&server, 2);
    known(&mut pool, "a");
    released_by_original(&mut redis, "0");
    let audit = pool.audit().unwrap();
    assert!(audit.leases.is_empty() && audit.gpus.iter().all(|gpu| gpu.owner.is_none() && gpu.idle == 1));
    known(&mut pool, "b");
    released_by_original(&mut redis, "1");
    assert_eq!(pool.begin((&[(0, None)], 8), 0, Force::Over), Ok(Init::Done(1)));
}
