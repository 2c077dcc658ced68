//! Tests the operations of a node's agent on a pool in a real Redis server.
#![expect(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test starts a server and waits for it"
)]

mod server;

use std::process::Command;
use std::time::{Duration, Instant};

use bailiff_lease::Leases as _;
use bailiff_lease::holder::LocalHost;
use bailiff_lease::legacy::{Found, WriterEvidence};
use bailiff_lease::{End, Ended, Grant, Pool, Released, ReturnOutcome, Ticket, TicketStatus};
use redis::Connection;

use server::Server;

const PATIENCE: Duration = Duration::from_secs(5);
const TTL: Duration = Duration::from_mins(1);

/// The end of a lease from [`ticket`] whose holder has exited.
const DEAD: End<'static> = End::Dead { pid: "4711", start: "", known: false };

fn pool(server: &Server) -> Pool {
    Pool::open(&server.address(), "GPU", PATIENCE).unwrap()
}

fn create_pool(server: &Server, gpus: u32) -> Pool {
    let mut pool = pool(server);
    pool.init(&(0..gpus).map(|id| (id, None)).collect::<Vec<_>>(), 0, false).unwrap();
    pool
}

fn raw(server: &Server) -> Connection {
    redis::Client::open(server.address()).unwrap().get_connection().unwrap()
}

fn request<T: redis::FromRedisValue>(redis: &mut Connection, args: &[&str]) -> T {
    let mut command = redis::cmd(args[0]);
    command.arg(&args[1..]);
    command.query(redis).unwrap()
}

fn ticket(lease: &str, want: u32) -> Ticket {
    let about = vec![("pid", "4711".to_owned()), ("legacy_pid", "0".to_owned())];
    Ticket { lease: lease.to_owned(), want, priority: 0, ttl: TTL, nonblock: false, about }
}

/// Returns the ticket of a process on this host that has exited.
fn ticket_of_exited(lease: &str, want: u32) -> Ticket {
    let mut child = Command::new("sleep").arg("infinity").spawn().unwrap();
    let about = LocalHost::read().holder(child.id());
    child.kill().unwrap();
    child.wait().unwrap();
    Ticket { about, ..ticket(lease, want) }
}

fn quarantine(pool: &mut Pool, id: &str) -> Option<String> {
    let audit = pool.audit().unwrap();
    audit.gpus.iter().find(|gpu| gpu.id == id).unwrap().quarantine.clone()
}

fn held(token: u64, gpus: &[u32]) -> TicketStatus {
    TicketStatus::Held(Grant { token, gpus: gpus.to_vec() })
}

#[test]
fn gpu_in_use_is_quarantined_until_quiet() {
    let server = Server::start(&[]);
    let mut pool = create_pool(&server, 2);
    pool.request(&ticket("dead", 2)).unwrap();
    pool.request(&ticket("next", 1)).unwrap();
    pool.request(&ticket("last", 1)).unwrap();
    assert_eq!(pool.end("dead", DEAD, &["1".to_owned()]), Ok(Ended::Done));
    assert_eq!(pool.touch("next", TTL, None), Ok(held(2, &[0])));
    assert_eq!(pool.touch("last", TTL, None), Ok(TicketStatus::Waiting { before: 0 }));
    let why = quarantine(&mut pool, "1").expect("the GPU is quarantined");
    assert!(why.starts_with("busy:"), "{why}");
    assert_eq!(
        pool.clear("1", "busy:0"),
        Ok(ReturnOutcome::Not("changed".to_owned())),
        "the quarantine has another reason"
    );
    assert_eq!(quarantine(&mut pool, "1").as_ref(), Some(&why));
    assert_eq!(pool.clear("1", &why), Ok(ReturnOutcome::Freed));
    assert_eq!(pool.touch("last", TTL, None), Ok(held(3, &[1])));
    assert_eq!(pool.clear("1", &why), Ok(ReturnOutcome::Not("changed".to_owned())), "once");
}

#[test]
fn lease_transferred_to_another_process_is_kept() {
    let server = Server::start(&[]);
    let mut pool = create_pool(&server, 1);
    let held = pool.request(&ticket("a", 1));
    for (pid, start) in [("4712", ""), ("4711", "7")] {
        assert_eq!(
            pool.end("a", End::Dead { pid, start, known: false }, &[]),
            Ok(Ended::Kept),
            "{pid} {start}"
        );
    }
    assert_eq!(pool.touch("a", TTL, None), held);
    assert_eq!(pool.end("a", DEAD, &[]), Ok(Ended::Done));
}

#[test]
fn reclaimed_gpu_leaves_quarantine() {
    let server = Server::start(&[]);
    let mut pool = create_pool(&server, 1);
    pool.request(&ticket("dead", 1)).unwrap();
    pool.end("dead", DEAD, &["0".to_owned()]).unwrap();
    // The server is in an older state. Since that state, the quarantine had ended, and another lease was granted
    // the GPU.
    let grant = Grant { token: 9, gpus: vec![0] };
    assert_eq!(pool.reclaim(&ticket("later", 1), &grant, TTL), Ok(TicketStatus::Held(grant)));
    assert_eq!(quarantine(&mut pool, "0"), None);
}

#[test]
fn quarantine_ends_for_gpu_taken_by_gpu_py() {
    let server = Server::start(&[]);
    let (mut pool, mut redis) = (create_pool(&server, 1), raw(&server));
    pool.request(&ticket("dead", 1)).unwrap();
    pool.end("dead", DEAD, &["0".to_owned()]).unwrap();
    let why = quarantine(&mut pool, "0").unwrap();
    // One client released a GPU that it did not hold, and another client took it.
    request::<u64>(&mut redis, &["HSET", "GPU_GPU0", "PID", "99", "TIME", "2026-11-21 06:29:57"]);
    assert_eq!(pool.clear("0", &why), Ok(ReturnOutcome::Not("held".to_owned())));
    assert_eq!(quarantine(&mut pool, "0"), None, "the new holder releases the GPU");
    assert!(!request::<bool>(&mut redis, &["EXISTS", "GPU_IDLE"]));
}

#[test]
fn gpu_released_by_another_client_is_quarantined_if_busy() {
    let server = Server::start(&[]);
    let (mut pool, mut redis) = (create_pool(&server, 1), raw(&server));
    pool.request(&ticket("dead", 1)).unwrap();
    request::<u64>(&mut redis, &["DEL", "GPU_GPU0"]);
    request::<u64>(&mut redis, &["LPUSH", "GPU_IDLE", "0"]);
    pool.end("dead", DEAD, &["0".to_owned()]).unwrap();
    assert!(quarantine(&mut pool, "0").is_some());
    assert!(!request::<bool>(&mut redis, &["EXISTS", "GPU_IDLE"]));
}

#[test]
fn rule_revokes_only_the_evaluated_token() {
    let server = Server::start(&[]);
    let (mut pool, mut redis) = (create_pool(&server, 1), raw(&server));
    pool.request(&ticket("idle", 1)).unwrap();
    let revoked = |token| End::Revoked { token, pid: 77 };
    assert_eq!(pool.end("idle", revoked(2), &[]), Ok(Ended::Lost));
    assert_eq!(pool.touch("idle", TTL, Some(1)), Ok(held(1, &[0])));
    assert_eq!(pool.end("idle", revoked(1), &[]), Ok(Ended::Done));
    assert_eq!(pool.touch("idle", TTL, Some(1)), Ok(TicketStatus::Ended("revoked".to_owned())));
    assert_eq!(pool.release("idle", Some(1), (0, 1)), Ok(Released::Already("revoked".to_owned())));
    assert_eq!(pool.end("idle", revoked(1), &[]), Ok(Ended::Already("revoked".to_owned())));
    assert_eq!(pool.end("missing", revoked(1), &[]), Ok(Ended::Already("unknown".to_owned())));
    let events: Vec<String> = request(&mut redis, &["LRANGE", "GPU_EVENTS", "0", "0"]);
    assert!(events[0].ends_with(": GPU 0 released by PID 77."), "{events:?}");
}

#[test]
fn registered_agent_reaps_instead_of_clients() {
    let server = Server::start(&[]);
    let (mut pool, local_host) = (create_pool(&server, 2), LocalHost::read());
    pool.request(&ticket_of_exited("dead", 1)).unwrap();
    pool.register_agent(&local_host, TTL).unwrap();
    assert_eq!(pool.reap_local_host(&local_host, TTL), Ok(0));
    let elsewhere = LocalHost { pidns: "1".to_owned(), ..local_host.clone() };
    pool.register_agent(&elsewhere, TTL).unwrap();
    assert_eq!(pool.reap_local_host(&local_host, TTL), Ok(1), "the agent is in another PID namespace");
    pool.register_agent(&local_host, Duration::ZERO).unwrap();
    let pod = LocalHost { host: "pod".to_owned(), ..local_host.clone() };
    pool.register_agent(&pod, TTL).unwrap();
    pool.request(&ticket_of_exited("of pods", 1)).unwrap();
    assert_eq!(pool.reap_local_host(&local_host, TTL), Ok(0), "the agent's host name does not matter");
    pool.register_agent(&pod, Duration::ZERO).unwrap();
    assert_eq!(pool.reap_local_host(&local_host, TTL), Ok(1));

    let host = LocalHost { host: "another".to_owned(), boot: "another".to_owned(), ..local_host.clone() };
    let mut remote = ticket("theirs", 1);
    remote.about = host.holder(1);
    remote.about.push(("ack_ms", "1".to_owned()));
    pool.request(&remote).unwrap();
    pool.register_agent(&host, TTL).unwrap();
    while pool.audit().unwrap().late().count() == 0 {
        std::thread::yield_now();
    }
    assert_eq!(
        pool.reap_local_host(&local_host, TTL),
        Ok(0),
        "the lease is late, but its agent is registered"
    );
    pool.register_agent(&host, Duration::ZERO).unwrap();
    assert_eq!(pool.reap_local_host(&local_host, TTL), Ok(1));
}

#[test]
fn changed_record_is_not_resolved() {
    let server = Server::start(&[]);
    let (mut pool, mut redis) = (create_pool(&server, 1), raw(&server));
    request::<(String, String)>(&mut redis, &["BRPOP", "GPU_IDLE", "0"]);
    request::<u64>(&mut redis, &["HSET", "GPU_GPU0", "PID", "99", "TIME", "now"]);
    let changed = Ok(ReturnOutcome::Not("changed".to_owned()));
    for (pid, time) in [("99", "then"), ("98", "now")] {
        assert_eq!(pool.resolve("0", Some((pid, time)), 0), changed);
    }
    assert_eq!(pool.resolve("0", None, 0), changed);
    assert_eq!(pool.resolve("0", Some(("99", "now")), 0), Ok(ReturnOutcome::Freed));
    let events: Vec<String> = request(&mut redis, &["LRANGE", "GPU_EVENTS", "0", "0"]);
    let text = ": GPU 0 acquired by process with PID 99, was released by redis purge as the process with given PID does no longer exist.";
    assert!(events[0].ends_with(text), "{events:?}");
    assert_eq!(pool.resolve("0", None, 0), Ok(ReturnOutcome::Not("placed".to_owned())));
}

#[test]
fn long_values_of_other_clients_are_not_read() {
    let server = Server::start(&[]);
    let (mut pool, mut redis) = (create_pool(&server, 1), raw(&server));
    let mut changes = pool.changes().unwrap();
    for (key, field) in [("GPU_GPU0", "PID"), ("GPU_V2:LEASE:long", "state")] {
        let fill = "redis.call('HSET', KEYS[1], ARGV[1], string.rep('x', 60 * 1024 * 1024))";
        request::<()>(&mut redis, &["EVAL", fill, "1", key, field]);
    }
    assert_eq!(changes.read("0"), Ok(None));
    let shortened = "x".repeat(64);
    assert_eq!(pool.end("long", DEAD, &[]), Ok(Ended::Already(shortened.clone())));
    assert_eq!(pool.touch("long", TTL, None), Ok(TicketStatus::Ended(shortened)));
    let record = pool.audit().unwrap().gpus.remove(0).record.unwrap();
    assert_eq!(record.pid, "x".repeat(256), "the value of the record is cut");
    let agent =
        "redis.call('HSET', KEYS[1], 'host', '9000000000000 ' .. string.rep('x', 60 * 1024 * 1024) .. ' 1')";
    request::<()>(&mut redis, &["EVAL", agent, "1", "GPU_V2:AGENTS"]);
    assert!(pool.audit().unwrap_err().to_string().contains("larger than 8 MiB"));
    request::<u64>(&mut redis, &["DEL", "GPU_V2:AGENTS"]);
    assert_eq!(pool.audit().unwrap().gpus.len(), 1, "the state can be read again");
}

#[test]
fn record_changes_are_pushed() {
    let server = Server::start(&[]);
    let (mut pool, mut redis) = (create_pool(&server, 2), raw(&server));
    let all = ["0".to_owned(), "1".to_owned()];
    let mut changes = pool.changes().unwrap();
    let mut next = |what: &str| {
        let started = Instant::now();
        loop {
            if let Some(gpus) = changes.next(Duration::from_millis(50), &all).unwrap() {
                let records: Vec<_> =
                    gpus.iter().map(|gpu| (gpu.clone(), changes.read(gpu).unwrap())).collect();
                return records;
            }
            assert!(started.elapsed() < PATIENCE, "{what} is not reported");
        }
    };
    let pid = std::process::id().to_string();
    request::<u64>(&mut redis, &["HSET", "GPU_GPU12345678901", "PID", &pid]);
    assert_eq!(next("a key with a longer number than GPUs have"), []);
    request::<u64>(&mut redis, &["HSET", "GPU_GPU1", "PID", &pid, "TIME", "now"]);
    let changed = next("a record");
    let record = changed[0].1.clone().expect("the record must exist");
    assert_eq!(
        (changed.len(), changed[0].0.as_str(), &record.pid, record.time.as_str()),
        (1, "1", &pid, "now")
    );

    let local_host = LocalHost::read();
    let seen = WriterEvidence::collect(&local_host, &record, Found::Written);
    assert_eq!(pool.store("1", &seen), Ok(true));
    let audit = pool.audit().unwrap();
    let kept = audit.gpus.iter().find(|gpu| gpu.id == "1").unwrap().record.clone().unwrap();
    assert_eq!(WriterEvidence::of(&kept), Some(seen.clone()));
    request::<u64>(&mut redis, &["HSET", "GPU_GPU1", "TIME", "later"]);
    next("a change");
    assert_eq!(pool.store("1", &seen), Ok(false), "the record has changed");

    request::<u64>(&mut redis, &["DEL", "GPU_GPU1"]);
    assert_eq!(next("an end"), [("1".to_owned(), None)]);
    pool.request(&ticket("ours", 1)).unwrap();
    assert_eq!(next("a lease"), [("0".to_owned(), None)], "the record was not written by GPU.py");
    request::<()>(&mut redis, &["FLUSHALL"]);
    assert_eq!(next("a flush").len(), 2, "any record may have changed");
}

#[test]
fn acknowledged_lease_is_not_ended_by_its_takers_exit() {
    let server = Server::start(&[]);
    let mut pool = create_pool(&server, 1);
    let mut compat = ticket("a", 1);
    compat.about.push(("mode", "compat".to_owned()));
    let Ok(TicketStatus::Held(grant)) = pool.request(&compat) else { panic!("the GPU must be idle") };
    // The agent checked the taker. After that, the lease was acknowledged, and the taker exited as usual.
    pool.touch("a", TTL, Some(grant.token)).unwrap();
    assert_eq!(pool.end("a", DEAD, &[]), Ok(Ended::Kept));
    let known = End::Dead { pid: "4711", start: "", known: true };
    assert_eq!(pool.end("a", known, &[]), Ok(Ended::Done));
}

#[test]
fn quarantine_for_a_record_ends_with_its_release() {
    let server = Server::start(&[]);
    let (mut pool, mut redis) = (create_pool(&server, 1), raw(&server));
    request::<()>(&mut redis, &["LPOP", "GPU_IDLE"]);
    request::<u64>(&mut redis, &["HSET", "GPU_GPU0", "PID", "99", "TIME", "2026-11-21 06:29:57"]);
    request::<u64>(&mut redis, &["LPUSH", "GPU_IDLE", "0"]);
    assert!(
        matches!(pool.request(&ticket("a", 1)), Ok(TicketStatus::Waiting { .. })),
        "another client has the GPU"
    );
    assert!(quarantine(&mut pool, "0").unwrap().starts_with("legacy_record:"));
    // The other client releases the GPU as GPU.py does.
    request::<u64>(&mut redis, &["DEL", "GPU_GPU0"]);
    request::<u64>(&mut redis, &["LPUSH", "GPU_IDLE", "0"]);
    assert_eq!(pool.touch("a", TTL, None), Ok(held(1, &[0])));
    assert_eq!(quarantine(&mut pool, "0"), None);
}

/// Waits until all leases and tickets have expired.
fn wait_until_late(pool: &mut Pool) {
    let started = Instant::now();
    loop {
        let audit = pool.audit().unwrap();
        if audit.late().count() == audit.leases.len() {
            return;
        }
        assert!(started.elapsed() < PATIENCE, "{audit:?}");
    }
}

#[test]
fn repeated_request_keeps_its_position() {
    let server = Server::start(&[]);
    let mut pool = create_pool(&server, 1);
    let mut first = Ticket { ttl: Duration::from_millis(1), ..ticket("first", 1) };
    pool.request(&ticket("holder", 1)).unwrap();
    pool.request(&first).unwrap();
    std::thread::park_timeout(Duration::from_millis(5));
    first.ttl = TTL;
    assert!(matches!(pool.request(&first), Ok(TicketStatus::Waiting { before: 0 })));
    pool.request(&ticket("second", 1)).unwrap();
    pool.release("holder", None, (0, 1)).unwrap();
    assert_eq!(pool.touch("first", TTL, None), Ok(held(2, &[0])));
}

#[test]
fn stopped_holder_loses_unacknowledged_grant() {
    let server = Server::start(&[]);
    let mut pool = create_pool(&server, 1);
    let local_host = LocalHost::read();
    let mut stopped = ticket("stopped", 1);
    // The holder is this process, which is running but does not acknowledge the lease.
    stopped.about = local_host.holder(std::process::id());
    stopped.about.push(("ack_ms", "1".to_owned()));
    stopped.ttl = Duration::from_millis(1);
    pool.request(&stopped).unwrap();
    wait_until_late(&mut pool);
    pool.request(&ticket("next", 1)).unwrap();
    assert_eq!(
        pool.reap_local_host(&local_host, TTL),
        Ok(1),
        "an unacknowledged grant goes to the next ticket"
    );
    assert_eq!(pool.touch("next", TTL, None), Ok(held(2, &[0])));
    stopped.lease = "again".to_owned();
    pool.request(&stopped).unwrap();
    std::thread::park_timeout(Duration::from_millis(5));
    assert_eq!(pool.reap_local_host(&local_host, TTL), Ok(0));
    let audit = pool.audit().unwrap();
    assert!(audit.late().any(|lease| lease.lease == "again"), "a ticket is renewed only by its own client");
}

/// Returns the ticket of a process in another boot of a machine with this name.
fn of_another_boot(lease: &str, host: &str) -> Ticket {
    let there = LocalHost { host: host.to_owned(), boot: "another".to_owned(), ..LocalHost::read() };
    Ticket { about: there.holder(1), ..ticket(lease, 1) }
}

#[test]
fn lease_of_earlier_boot_is_reaped_once_late() {
    let server = Server::start(&[]);
    let (mut pool, mut redis) = (create_pool(&server, 1), raw(&server));
    for host in ["0123456789abcdef0123456789abcdef", "worker-0", "uninitialized"] {
        let local_host = LocalHost { host: host.to_owned(), ..LocalHost::read() };
        pool.request(&of_another_boot(host, host)).unwrap();
        pool.touch(host, TTL, None).unwrap();
        assert_eq!(pool.reap_local_host(&local_host, TTL), Ok(0), "{host}: a clone may be running");
        request::<u64>(&mut redis, &["ZADD", "GPU_V2:EXP", "1", host]);
        let there = LocalHost { boot: "another".to_owned(), ..local_host.clone() };
        pool.register_agent(&there, TTL).unwrap();
        assert_eq!(
            pool.reap_local_host(&local_host, TTL),
            Ok(0),
            "{host}: the agent there can check the holder"
        );
        pool.register_agent(&there, Duration::ZERO).unwrap();
        if local_host.is_machine(Some(host), Some("another")) {
            pool.register_agent(&local_host, TTL).unwrap();
            assert_eq!(
                pool.reap_local_host(&local_host, TTL),
                Ok(0),
                "{host}: the agent there sees the processes on the GPU"
            );
            assert_eq!(pool.audit().unwrap().to_reap(&local_host), [], "{host}");
            pool.register_agent(&local_host, Duration::ZERO).unwrap();
        }
        assert_eq!(pool.audit().unwrap().to_reap(&local_host).len(), 1, "{host}");
        assert_eq!(pool.reap_local_host(&local_host, TTL), Ok(1), "{host}: this machine was restarted");
    }
}

#[test]
fn timed_lease_is_reaped_only_by_the_agent() {
    let server = Server::start(&[]);
    let (mut pool, local_host) = (create_pool(&server, 1), LocalHost::read());
    let mut timed = Ticket { ttl: Duration::from_millis(1), ..ticket("timed", 1) };
    timed.about = local_host.holder(1);
    timed.about.extend([("mode", "timed".to_owned()), ("ack_ms", "1".to_owned())]);
    pool.request(&timed).unwrap();
    wait_until_late(&mut pool);
    pool.register_agent(&local_host, TTL).unwrap();
    let pod = LocalHost { host: "pod".to_owned(), pidns: "1".to_owned(), ..local_host.clone() };
    let another = LocalHost { boot: "another".to_owned(), ..pod.clone() };
    assert_eq!((pool.reap_local_host(&local_host, TTL), pool.reap_local_host(&pod, TTL)), (Ok(0), Ok(0)));
    assert_eq!(pool.reap_local_host(&another, TTL), Ok(1), "no agent is running on that machine");
}
