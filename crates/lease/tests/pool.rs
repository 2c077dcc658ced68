//! Tests the client on a real Redis server: its requests, the resulting keys, and its errors.
#![expect(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test starts a server and waits for it"
)]

mod server;

use std::fmt::Write;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Duration;

use bailiff_lease::Leases as _;
use bailiff_lease::holder::LocalHost;
use bailiff_lease::{Extended, Grant, Init, LeaseError, Op, Pool, Released, Ticket, TicketStatus};
use redis::Connection;

use server::Server;

const PATIENCE: Duration = Duration::from_secs(5);
const TTL: Duration = Duration::from_mins(1);

fn pool(server: &Server) -> Pool {
    Pool::open(&server.address(), "GPU", PATIENCE).unwrap()
}

fn ids(numbers: &[u32]) -> Vec<(u32, Option<String>)> {
    numbers.iter().map(|number| (*number, None)).collect()
}

fn raw(server: &Server) -> Connection {
    redis::Client::open(server.address()).unwrap().get_connection().unwrap()
}

fn ticket(lease: &str, want: u32) -> Ticket {
    let about = vec![
        ("pid", "4711".to_owned()),
        ("legacy_pid", "0".to_owned()),
        ("offset", "7200".to_owned()),
        ("user", "alice".to_owned()),
    ];
    Ticket { lease: lease.to_owned(), want, priority: 0, ttl: TTL, nonblock: false, about }
}

fn request<T: redis::FromRedisValue>(connection: &mut Connection, args: &[&str]) -> T {
    let mut command = redis::cmd(args[0]);
    for argument in &args[1..] {
        command.arg(argument);
    }
    command.query(connection).unwrap()
}

#[test]
fn lease_lifecycle_from_ticket_to_release() {
    let server = Server::start(&[]);
    let mut pool = pool(&server);
    assert_eq!(
        pool.request(&ticket("early", 1)),
        Ok(TicketStatus::Uninitialised),
        "without a pool, a request does not wait"
    );
    assert_eq!(pool.init(&ids(&[0, 1]), 7200, false), Ok(Init::Done(2)));
    assert_eq!(pool.init(&ids(&[0, 1, 2]), 7200, false), Ok(Init::Already(2)));
    for want in [0, 3] {
        assert_eq!(pool.request(&ticket("greedy", want)), Ok(TicketStatus::Impossible { managed: 2 }));
    }
    let held = TicketStatus::Held(Grant { token: 1, gpus: vec![0] });
    assert_eq!(
        pool.request(&ticket("a", 1)),
        Ok(held.clone()),
        "the GPU that was pushed first is granted first"
    );
    assert_eq!(pool.request(&ticket("a", 1)), Ok(held.clone()), "the request is repeated after a lost reply");
    assert_eq!(
        pool.init(&ids(&[0, 1]), 7200, true),
        Ok(Init::Held(1)),
        "a pool with a holder is not created again"
    );
    assert_eq!(pool.request(&ticket("b", 2)), Ok(TicketStatus::Waiting { before: 0 }));
    assert_eq!(
        pool.request(&Ticket { nonblock: true, ..ticket("c", 1) }),
        Ok(TicketStatus::Busy),
        "a later request does not overtake a ticket"
    );
    assert_eq!(pool.touch("a", TTL, Some(1)), Ok(held));
    assert_eq!(
        pool.touch("a", TTL, Some(7)),
        Ok(TicketStatus::Ended("lost".to_owned())),
        "an old token is not valid"
    );
    assert_eq!(pool.release("a", Some(1), (7200, 4711)), Ok(Released::Done));
    assert_eq!(pool.release("a", Some(1), (7200, 4711)), Ok(Released::Already("released".to_owned())));
    let both = TicketStatus::Held(Grant { token: 2, gpus: vec![1, 0] });
    assert_eq!(pool.touch("b", TTL, None), Ok(both), "the waiter's own touch serves it");
    assert_eq!(pool.release("missing", None, (0, 1)), Ok(Released::Unknown));
}

#[test]
fn gpu_py_can_read_our_keys() {
    let server = Server::start(&[]);
    let (mut pool, mut redis) = (pool(&server), raw(&server));
    pool.init(&ids(&[0, 1, 2]), 7200, false).unwrap();
    assert_eq!(request::<Vec<String>>(&mut redis, &["LRANGE", "GPU_IDLE", "0", "-1"]), ["2", "1", "0"]);
    assert_eq!(
        request::<Vec<String>>(&mut redis, &["HMGET", "GPU_INIT", "GPUMANAGED", "GPUCOUNT"]),
        ["0,1,2", "3"]
    );
    pool.request(&ticket("a", 1)).unwrap();
    let now: Vec<String> = request(&mut redis, &["TIME"]);
    let record: Vec<String> = request(&mut redis, &["HMGET", "GPU_GPU0", "PID", "TIME", "user"]);
    assert_eq!(
        (record[0].as_str(), record[2].as_str()),
        ("0", "alice"),
        "GPU.py's purge does not end a lease with PID 0"
    );
    let output = Command::new("date")
        .args(["-u", "+%Y-%m-%d %H:%M:%S", "-d", &format!("@{}", now[0].parse::<u64>().unwrap() + 7200)])
        .output()
        .unwrap();
    let expected = String::from_utf8(output.stdout).unwrap();
    // Compared without the seconds, because the clock may advance between the two timestamps.
    assert_eq!(record[1][..16], expected[..16], "the time is two hours ahead of UTC");
    pool.release("a", None, (7200, 42)).unwrap();
    let events: Vec<String> = request(&mut redis, &["LRANGE", "GPU_EVENTS", "0", "-1"]);
    let lines: Vec<&str> = events.iter().map(|event| &event[21..]).collect();
    assert_eq!(
        lines,
        ["GPU 0 released by PID 42.", "GPU 0 acquired by PID 4711.", "Redis initialized, 3 managed GPUs."]
    );
    assert_eq!(
        request::<Vec<String>>(&mut redis, &["LRANGE", "GPU_IDLE", "0", "-1"]),
        ["0", "2", "1"],
        "the GPU is pushed on the left"
    );
    assert!(!request::<bool>(&mut redis, &["EXISTS", "GPU_GPU0"]));
}

#[test]
fn lease_not_renewed_is_granted_to_the_next() {
    let server = Server::start(&[]);
    let mut pool = pool(&server);
    pool.init(&ids(&[0]), 0, false).unwrap();
    let mut short = ticket("short", 1);
    short.about.extend([("ack_ms", "1".to_owned()), ("host", "another".to_owned())]);
    assert!(matches!(pool.request(&short), Ok(TicketStatus::Held(_))));
    pool.request(&ticket("next", 1)).unwrap();
    let started = std::time::Instant::now();
    while pool.reap_local_host(&LocalHost::read(), TTL).unwrap() == 0 {
        assert!(started.elapsed() < Duration::from_mins(1), "nothing expires");
    }
    assert_eq!(pool.touch("short", TTL, None), Ok(TicketStatus::Ended("reaped".to_owned())));
    assert_eq!(pool.touch("next", TTL, None), Ok(TicketStatus::Held(Grant { token: 2, gpus: vec![0] })));
}

#[test]
fn lease_renewed_before_the_reaping_is_kept() {
    let server = Server::start(&[]);
    let (mut pool, mut redis) = (pool(&server), raw(&server));
    pool.init(&ids(&[0]), 0, false).unwrap();
    let held = pool.request(&ticket("a", 1));
    // A client saw that the lease was late, but the lease was renewed before that client ended it.
    let answer: String = request(&mut redis, &["EVAL", Op::Kill.text(), "1", "GPU", "a", "late"]);
    assert_eq!((answer.as_str(), pool.touch("a", TTL, None)), ("held", held));
}

fn wait_until_held(pool: &mut Pool, lease: &str) -> Grant {
    let started = std::time::Instant::now();
    loop {
        if let Ok(TicketStatus::Held(grant)) = pool.touch(lease, TTL, None) {
            return grant;
        }
        assert!(started.elapsed() < Duration::from_mins(1), "the barrier does not end");
    }
}

#[test]
fn restart_barrier_delays_grants() {
    let server = Server::start(&[]);
    let (mut pool, mut redis) = (pool(&server), raw(&server));
    pool.init(&ids(&[0, 1]), 0, false).unwrap();
    pool.request(&ticket("a", 1)).unwrap();
    // The server has another run_id now, as after a restart, but still has all its data.
    request::<u64>(&mut redis, &["HSET", "GPU_V2:META", "run", "another", "barrier_ms", "1"]);
    assert_eq!(
        pool.request(&ticket("b", 1)),
        Ok(TicketStatus::Waiting { before: 0 }),
        "idle GPUs are in the barrier"
    );
    wait_until_held(&mut pool, "b");
}

#[test]
fn invalid_address_error_hides_the_password() {
    for address in ["http://a:secret@host", "redis://a:sec@ret@host:port", "redis+unix:///x?db=y&pass=secret"]
    {
        let message = Pool::open(address, "GPU", PATIENCE).unwrap_err().to_string();
        assert!(message.contains("is not a Redis URL") && !message.contains("ret"), "{message}");
        assert_eq!(bailiff_lease::check(address).unwrap_err().to_string(), message);
    }
    assert_eq!(bailiff_lease::check("redis://a:secret@host:1/2"), Ok(()));
}

#[test]
fn server_errors_are_reported_and_lose_nothing() {
    let server = Server::start(&["--requirepass", "secret"]);
    assert!(matches!(Pool::open("nonsense", "GPU", PATIENCE), Err(LeaseError::Address(_))));
    let unreachable = Pool::open("redis+unix:///nowhere.sock", "GPU", PATIENCE);
    assert!(matches!(unreachable, Err(LeaseError::Unreachable { .. })), "{unreachable:?}");
    let denied = Pool::open(&server.address(), "GPU", PATIENCE).and_then(|mut pool| pool.audit());
    assert!(matches!(denied, Err(LeaseError::Denied(_))), "{denied:?}");
    let wrong = Pool::open(&format!("{}?pass=wrong", server.address()), "GPU", PATIENCE);
    assert!(matches!(wrong, Err(LeaseError::Denied(_))), "{wrong:?}");

    let address = format!("{}?pass=secret", server.address());
    let mut pool = Pool::open(&address, "GPU", PATIENCE).unwrap();
    let mut redis = redis::Client::open(address).unwrap().get_connection().unwrap();
    pool.init(&ids(&[0, 1]), 0, false).unwrap();
    request::<()>(&mut redis, &["SET", "GPU_GPU0", "a string"]);
    request::<u64>(&mut redis, &["RPUSH", "GPU_IDLE", "none"]);
    request::<u64>(&mut redis, &["RPUSH", "GPU_MANAGED", "none"]);
    let Ok(TicketStatus::Held(held)) = pool.request(&ticket("a", 1)) else { panic!("GPU 1 must be idle") };
    assert_eq!(held.gpus, [1], "only ids that are numbers and have no other key are granted");
    let quarantined: Vec<String> = request(&mut redis, &["HKEYS", "GPU_V2:QUAR"]);
    assert_eq!(quarantined.len(), 2, "{quarantined:?}");

    request::<()>(&mut redis, &["CONFIG", "SET", "maxmemory", "1"]);
    assert!(matches!(pool.request(&ticket("b", 1)), Err(LeaseError::Full(_))));
    assert!(matches!(pool.touch("a", TTL, None), Ok(TicketStatus::Held(_))), "a held lease is kept");
    assert_eq!(pool.release("a", None, (0, 1)), Ok(Released::Done), "a full server still accepts releases");
    request::<()>(&mut redis, &["CONFIG", "SET", "maxmemory", "0"]);

    request::<()>(&mut redis, &["DEL", "GPU_EVENTS"]);
    request::<()>(&mut redis, &["SET", "GPU_EVENTS", "a string"]);
    let wrong = pool.request(&ticket("c", 1));
    assert!(matches!(&wrong, Err(LeaseError::WrongType(why)) if why.contains("GPU_EVENTS")), "{wrong:?}");
    assert_eq!(
        request::<Vec<String>>(&mut redis, &["LRANGE", "GPU_IDLE", "0", "-1"]),
        ["1"],
        "the script must not change anything"
    );
}

/// Waits until Redis has this many blocked clients.
fn wait_for_blocked(redis: &mut Connection, count: usize) {
    let started = std::time::Instant::now();
    loop {
        let info: String = request(redis, &["INFO", "clients"]);
        if info.lines().any(|line| line == format!("blocked_clients:{count}")) {
            return;
        }
        assert!(started.elapsed() < Duration::from_mins(1), "there are not {count} blocked clients: {info}");
    }
}

#[test]
fn clients_of_both_kinds_are_served_in_order() {
    let server = Server::start(&[]);
    let (mut first, mut redis) = (pool(&server), raw(&server));
    first.init(&ids(&[0]), 0, false).unwrap();
    first.request(&ticket("holder", 1)).unwrap();
    let (sender, served) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        for number in 0..6 {
            let (server, sender) = (&server, sender.clone());
            scope.spawn(move || {
                if number % 2 == 0 {
                    let mut pool = pool(server);
                    let name = format!("waiter-{number}");
                    let status = pool.wait(&ticket(&name, 1), (&LocalHost::read(), None), |_| {}).unwrap();
                    assert!(matches!(status, TicketStatus::Held(_)), "{status:?}");
                    sender.send(number).unwrap();
                    pool.release(&name, None, (0, 1)).unwrap();
                } else {
                    let popped: (String, String) = request(&mut raw(server), &["BRPOP", "GPU_IDLE", "0"]);
                    sender.send(number).unwrap();
                    request::<u64>(&mut raw(server), &["LPUSH", "GPU_IDLE", &popped.1]);
                }
            });
            // Each of our clients blocks on two connections: one for its wake-up, and one in the queue.
            wait_for_blocked(&mut redis, number + 1 + (number / 2 + 1));
        }
        first.release("holder", None, (0, 1)).unwrap();
    });
    drop(sender);
    assert_eq!(served.iter().collect::<Vec<usize>>(), [0, 1, 2, 3, 4, 5]);
    let idle: Vec<String> = request(&mut redis, &["LRANGE", "GPU_IDLE", "0", "-1"]);
    assert_eq!(idle, ["0"], "GPU 0 is idle at the end");
    wait_for_blocked(&mut redis, 0);
}

#[test]
fn flushed_scripts_do_not_delay_waiters() {
    let server = Server::start(&[]);
    let (mut first, mut redis) = (pool(&server), raw(&server));
    first.init(&ids(&[0]), 0, false).unwrap();
    first.request(&ticket("holder", 1)).unwrap();
    let reports = AtomicU32::new(0);
    let on_position = |_| {
        reports.fetch_add(1, Relaxed);
    };
    std::thread::scope(|scope| {
        let waiter =
            scope.spawn(|| pool(&server).wait(&ticket("waiter", 1), (&LocalHost::read(), None), on_position));
        wait_for_blocked(&mut redis, 2);
        request::<()>(&mut redis, &["SCRIPT", "FLUSH"]);
        let before = reports.load(Relaxed);
        request::<u64>(&mut redis, &["HDEL", "GPU_V2:OWN", "0"]);
        request::<u64>(&mut redis, &["DEL", "GPU_GPU0"]);
        request::<u64>(&mut redis, &["LPUSH", "GPU_IDLE", "0"]);
        assert!(matches!(waiter.join().unwrap(), Ok(TicketStatus::Held(_))));
        assert_eq!(
            reports.load(Relaxed),
            before,
            "the ticket was served by its slot, not by its next renewal"
        );
    });
}

#[test]
fn wait_past_its_deadline_withdraws_the_ticket() {
    let server = Server::start(&[]);
    let (mut pool, mut redis) = (pool(&server), raw(&server));
    pool.init(&ids(&[0, 1]), 0, false).unwrap();
    pool.request(&ticket("holder", 1)).unwrap();
    let mut positions = Vec::new();
    let until = std::time::Instant::now() + Duration::from_millis(200);
    let status = pool
        .wait(&ticket("late", 2), (&LocalHost::read(), Some(until)), |before| positions.push(before))
        .unwrap();
    assert_eq!((status, positions[0]), (TicketStatus::Waiting { before: 0 }, 0));
    let idle: Vec<String> = request(&mut redis, &["LRANGE", "GPU_IDLE", "0", "-1"]);
    assert_eq!(idle, ["1"], "the GPU that was gathered for the ticket is idle again");
    assert_eq!(pool.touch("late", TTL, None), Ok(TicketStatus::Ended("cancelled".to_owned())));
}

#[test]
fn lease_of_exited_local_holder_is_reaped_at_once() {
    let server = Server::start(&[]);
    let mut pool = pool(&server);
    pool.init(&ids(&[0, 1, 2]), 0, false).unwrap();
    let local_host = LocalHost::read();
    let mut child = Command::new("sleep").arg("infinity").spawn().unwrap();
    let mut held_by = |name: &str, pid: u32| {
        let mut ticket = ticket(name, 1);
        ticket.about.retain(|(field, _)| *field != "pid");
        ticket.about.extend(local_host.holder(pid));
        assert!(matches!(pool.request(&ticket), Ok(TicketStatus::Held(_))));
    };
    held_by("dead", child.id());
    held_by("alive", std::process::id());
    child.kill().unwrap();
    child.wait().unwrap();
    let mut ticket = ticket("elsewhere", 1);
    ticket.about.push(("host", "another".to_owned()));
    pool.request(&ticket).unwrap();
    assert_eq!(pool.reap_local_host(&local_host, TTL), Ok(1));
    let held: Vec<String> = pool.audit().unwrap().leases.into_iter().map(|lease| lease.lease).collect();
    assert_eq!(held.len(), 2, "{held:?}");
    assert!(!held.contains(&"dead".to_owned()));
}

#[test]
fn overwritten_record_loses_no_gpu() {
    let server = Server::start(&[]);
    let (mut pool, mut redis) = (pool(&server), raw(&server));
    pool.init(&ids(&[0]), 0, false).unwrap();
    pool.request(&ticket("a", 1)).unwrap();
    request::<()>(&mut redis, &["SET", "GPU_GPU0", "a string"]);
    assert_eq!(pool.release("a", None, (0, 1)), Ok(Released::Done));
    assert!(matches!(pool.request(&ticket("b", 1)), Ok(TicketStatus::Held(_))));
}

#[test]
fn lease_lost_by_the_server_is_reclaimed() {
    let server = Server::start(&[]);
    let (mut pool, mut redis) = (pool(&server), raw(&server));
    pool.init(&ids(&[0, 1, 2]), 0, false).unwrap();
    request::<u64>(&mut redis, &["HSET", "GPU_V2:META", "barrier_ms", "60000"]);
    pool.request(&ticket("first", 1)).unwrap();
    pool.release("first", None, (0, 1)).unwrap();
    let Ok(TicketStatus::Held(other)) = pool.request(&ticket("other", 1)) else {
        panic!("all GPUs must be idle")
    };
    pool.request(&ticket("big", 3)).unwrap();
    // The server is rolled back to a state in which GPU 2 is gathered for `big`, and in which GPU 0 and the lease on
    // GPUs 0 and 2 are unknown.
    request::<u64>(&mut redis, &["HSET", "GPU_V2:META", "run", "another"]);
    pool.release("big", None, (0, 1)).unwrap();
    assert_eq!(
        pool.request(&ticket("next", 1)),
        Ok(TicketStatus::Waiting { before: 0 }),
        "the barrier prevents grants"
    );
    let forgotten = Grant { token: 77, gpus: vec![0, 2] };
    assert_eq!(pool.touch("forgotten", TTL, Some(77)), Ok(TicketStatus::Ended("unknown".to_owned())));
    let held = Ok(TicketStatus::Held(forgotten.clone()));
    let mut lost = ticket("forgotten", 2);
    lost.about.push(("max_ms", "60000".to_owned()));
    assert_eq!(pool.reclaim(&lost, &forgotten, TTL), held);
    assert_eq!(pool.touch("forgotten", TTL, Some(77)), held);
    assert!(matches!(pool.extend("forgotten", TTL), Ok(Extended::Until(_))), "the lease has a time limit");
    let older = Grant { token: 1, ..other.clone() };
    let conflict = Ok(TicketStatus::Conflict(older.clone()));
    assert_eq!(pool.reclaim(&ticket("late", 1), &older, TTL), conflict, "a newer lease was granted the GPU");
    pool.release("other", None, (0, 1)).unwrap();
    assert!(
        matches!(pool.touch("next", TTL, None), Ok(TicketStatus::Waiting { .. })),
        "nothing is granted during the barrier"
    );
    request::<u64>(&mut redis, &["HSET", "GPU_V2:META", "barrier", "1"]);
    let grant = wait_until_held(&mut pool, "next");
    assert_eq!(grant.gpus, other.gpus);
    assert!(grant.token > 77, "tokens are higher than all earlier tokens: {grant:?}");
}

#[test]
fn unservable_ticket_does_not_block_others() {
    let server = Server::start(&[]);
    let (mut pool, mut redis) = (pool(&server), raw(&server));
    assert_eq!(pool.init(&ids(&[0, 1, 1, 2]), 0, false), Ok(Init::Done(3)), "each once");
    pool.request(&ticket("holder", 1)).unwrap();
    pool.request(&ticket("big", 3)).unwrap();
    request::<u64>(&mut redis, &["HSET", "GPU_V2:QUAR", "2", "busy:0"]);
    assert_eq!(pool.request(&ticket("small", 1)), Ok(TicketStatus::Held(Grant { token: 2, gpus: vec![1] })));
    request::<u64>(&mut redis, &["LREM", "GPU_MANAGED", "0", "2"]);
    assert_eq!(
        pool.touch("big", TTL, None),
        Ok(TicketStatus::Ended("refused".to_owned())),
        "the pool has only two GPUs now"
    );
}

#[test]
fn quarantined_gpu_released_by_a_client_returns_once() {
    let server = Server::start(&[]);
    let (mut pool, mut redis) = (pool(&server), raw(&server));
    pool.init(&ids(&[0]), 0, false).unwrap();
    request::<u64>(&mut redis, &["HSET", "GPU_GPU0", "PID", "4711"]);
    assert_eq!(
        pool.request(&ticket("a", 1)),
        Ok(TicketStatus::Waiting { before: 0 }),
        "a client of GPU.py has recorded the GPU"
    );
    let quarantined: Vec<String> = request(&mut redis, &["HKEYS", "GPU_V2:QUAR"]);
    assert_eq!(quarantined, ["0"]);
    request::<u64>(&mut redis, &["LPUSH", "GPU_IDLE", "0"]);
    let resolve = |redis: &mut Connection, pid: &str| -> String {
        request(redis, &["EVAL", Op::Resolve.text(), "1", "GPU", "0", pid, "0"])
    };
    assert_eq!(resolve(&mut redis, "4712"), "changed");
    assert_eq!(resolve(&mut redis, "4711"), "freed");
    assert_eq!(resolve(&mut redis, ""), "placed");
    assert_eq!(request::<Vec<String>>(&mut redis, &["LRANGE", "GPU_IDLE", "0", "-1"]), ["0"]);
    assert_eq!(pool.touch("a", TTL, None), Ok(TicketStatus::Held(Grant { token: 1, gpus: vec![0] })));
}

/// Returns all keys and values on a server, without times (numbers with at least twelve digits, and dates).
fn everything(redis: &mut Connection) -> String {
    let mut keys: Vec<String> = request(redis, &["KEYS", "*"]);
    keys.sort();
    let mut all = String::new();
    for key in keys {
        let kind: String = request(redis, &["TYPE", &key]);
        let args = match kind.as_str() {
            "list" => vec!["LRANGE", &key, "0", "-1"],
            "hash" => vec!["HGETALL", &key],
            "zset" => vec!["ZRANGE", &key, "0", "-1", "WITHSCORES"],
            "stream" => vec!["XRANGE", &key, "-", "+"],
            _ => vec!["GET", &key],
        };
        let value: redis::Value = request(redis, &args);
        let expires = request::<i64>(redis, &["PTTL", &key]) >= 0;
        writeln!(all, "{key}, expires: {expires}: {value:?}").unwrap();
    }
    let digits = |part: &str| part.chars().filter(char::is_ascii_digit).count();
    let parts = all.split_inclusive([' ', ',', '\'', '\n']);
    parts.map(|part| if digits(part) >= 6 { "time " } else { part }).collect()
}

fn run_of(redis: &mut Connection) -> String {
    let info: redis::InfoDict = redis::cmd("INFO").arg("server").query(redis).unwrap();
    info.get("run_id").unwrap()
}

/// Returns a pool with two waiting tickets for one GPU each, in which GPU 0 has just been popped from the list of idle
/// GPUs, but has not been assigned yet.
fn pool_with_popped_gpu(server: &Server) -> Pool {
    let mut redis = raw(server);
    request::<()>(&mut redis, &["FLUSHALL"]);
    let mut pool = pool(server);
    pool.init(&ids(&[0, 1]), 0, false).unwrap();
    pool.request(&ticket("holder", 2)).unwrap();
    for name in ["next", "after"] {
        let mut ticket = ticket(name, 1);
        ticket.about.extend(
            ["host", "boot", "pidns", "start", "uid", "cmd", "mode", "job"]
                .map(|field| (field, format!("its {field}"))),
        );
        assert!(matches!(pool.request(&ticket), Ok(TicketStatus::Waiting { .. })));
    }
    pool.release("holder", None, (0, 1)).unwrap();
    request::<u64>(&mut redis, &["DEL", "GPU_IDLE"]);
    request::<u64>(&mut redis, &["LPUSH", "GPU_V2:POT", "0"]);
    pool
}

#[test]
fn slot_fast_path_is_skipped_in_special_cases() {
    let server = Server::start(&[]);
    let mut redis = raw(&server);
    let run = run_of(&mut redis);
    let mut slot = |unusual: &str| {
        pool_with_popped_gpu(&server);
        let args: Vec<&str> = unusual.split(' ').collect();
        if args != [""] {
            request::<redis::Value>(&mut redis, &args);
        }
        request::<String>(&mut redis, &["EVAL", Op::Assign.text(), "1", "GPU", &run])
    };
    assert_eq!(slot(""), "SERVED");
    for unusual in [
        "HSET GPU_V2:QUAR 0 busy:1",
        "LPUSH GPU_IDLE 0",
        "LPUSH GPU_V2:POT 1",
        "LREM GPU_MANAGED 0 0",
        "HSET GPU_GPU0 PID 7",
        "SET GPU_GPU0 nonsense",
        "HSET GPU_V2:OWN 0 another",
        "RPUSH GPU_V2:WAKE:next 1:0",
        "HSET GPU_V2:LEASE:next want 2",
        "HSET GPU_V2:LEASE:next among 1",
        "HSET GPU_V2:LEASE:next mode compat",
        "HSET GPU_V2:LEASE:next state held",
        "ZADD GPU_V2:EXP 1 next",
        "LSET GPU_V2:POT 0 x",
        "HSET GPU_V2:META run another",
        "HSET GPU_V2:META barrier 1",
    ] {
        assert_ne!(slot(unusual), "SERVED", "{unusual}");
    }
}

#[test]
fn slot_fast_path_equals_the_full_script() {
    let server = Server::start(&[]);
    let mut redis = raw(&server);
    let run = run_of(&mut redis);
    let mut outcome = |arguments: &[&str]| {
        let mut pool = pool_with_popped_gpu(&server);
        let mut args = vec!["EVAL", Op::Assign.text(), "1", "GPU"];
        args.extend(arguments);
        let how: String = request(&mut redis, &args);
        // This call writes the pending logs.
        assert!(matches!(pool.touch("next", TTL, None), Ok(TicketStatus::Held(_))));
        // The waiting times differ between runs.
        for wait in ["waited", "wait:10", "wait:100", "wait:1000"] {
            request::<u64>(&mut redis, &["HDEL", "GPU_V2:COUNTS", wait]);
        }
        (how, everything(&mut redis))
    };
    let (full, by_full) = outcome(&[]);
    let (fast, by_fast) = outcome(&[&run]);
    assert_eq!((full.as_str(), fast.as_str()), ("OK", "SERVED"));
    assert_eq!(by_fast, by_full);
    assert!(by_fast.contains("GPU_V2:WAKE:next"), "{by_fast}");
    let (another, by_another) = outcome(&["another server's"]);
    assert_eq!((another.as_str(), by_another), ("OK", by_full), "an outdated run_id skips the fast path");
}

#[test]
fn long_log_is_read_in_parts() {
    let server = Server::start(&[]);
    let (mut pool, mut redis) = (pool(&server), raw(&server));
    let fill = "for at = 1, 2500 do redis.call('XADD', KEYS[1], '1-' .. at, 'event', 'grant') end";
    request::<()>(&mut redis, &["EVAL", fill, "1", "GPU_V2:LOG"]);
    for (lines, oldest) in [(1, 2500), (1000, 1501), (2200, 301), (2500, 1), (3000, 1)] {
        let ids: Vec<String> = pool.events(lines).unwrap().into_iter().map(|event| event.id).collect();
        assert_eq!(ids, (oldest..=2500).map(|at| format!("1-{at}")).collect::<Vec<_>>(), "{lines} lines");
    }
    let next = pool.events_after("1-1400", TTL).unwrap();
    assert_eq!((next.len(), next[0].id.as_str()), (1000, "1-1401"));
}
