//! The client, against a real Redis: what it asks, what Redis then holds, and how it tells what goes wrong.
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

fn request<T: redis::FromRedisValue>(connection: &mut Connection, words: &[&str]) -> T {
    let mut command = redis::cmd(words[0]);
    for word in &words[1..] {
        command.arg(word);
    }
    command.query(connection).unwrap()
}

#[test]
fn a_lease_from_its_ticket_to_its_end() {
    let server = Server::start(&[]);
    let mut pool = pool(&server);
    assert_eq!(
        pool.request(&ticket("early", 1)),
        Ok(TicketStatus::Uninitialised),
        "nothing is waited for that nobody will give"
    );
    assert_eq!(pool.init(&ids(&[0, 1]), 7200, false), Ok(Init::Done(2)));
    assert_eq!(pool.init(&ids(&[0, 1, 2]), 7200, false), Ok(Init::Already(2)));
    for want in [0, 3] {
        assert_eq!(pool.request(&ticket("greedy", want)), Ok(TicketStatus::Impossible { managed: 2 }));
    }
    let held = TicketStatus::Held(Grant { token: 1, gpus: vec![0] });
    assert_eq!(pool.request(&ticket("a", 1)), Ok(held.clone()), "the first pushed is handed out first");
    assert_eq!(pool.request(&ticket("a", 1)), Ok(held.clone()), "asked again after a reply was lost");
    assert_eq!(
        pool.init(&ids(&[0, 1]), 7200, true),
        Ok(Init::Held(1)),
        "nothing is created again under a holder"
    );
    assert_eq!(pool.request(&ticket("b", 2)), Ok(TicketStatus::Waiting { before: 0 }));
    assert_eq!(
        pool.request(&Ticket { nonblock: true, ..ticket("c", 1) }),
        Ok(TicketStatus::Busy),
        "nobody overtakes"
    );
    assert_eq!(pool.touch("a", TTL, Some(1)), Ok(held));
    assert_eq!(
        pool.touch("a", TTL, Some(7)),
        Ok(TicketStatus::Ended("lost".to_owned())),
        "an old token is worth nothing"
    );
    assert_eq!(pool.release("a", Some(1), (7200, 4711)), Ok(Released::Done));
    assert_eq!(pool.release("a", Some(1), (7200, 4711)), Ok(Released::Already("released".to_owned())));
    let both = TicketStatus::Held(Grant { token: 2, gpus: vec![1, 0] });
    assert_eq!(pool.touch("b", TTL, None), Ok(both), "its own touch serves it");
    assert_eq!(pool.release("nobody", None, (0, 1)), Ok(Released::Unknown));
}

#[test]
fn the_original_reads_what_ours_write() {
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
    assert_eq!((record[0].as_str(), record[2].as_str()), ("0", "alice"), "no purge of anybody's ends it");
    let told = Command::new("date")
        .args(["-u", "+%Y-%m-%d %H:%M:%S", "-d", &format!("@{}", now[0].parse::<u64>().unwrap() + 7200)])
        .output()
        .unwrap();
    let told = String::from_utf8(told.stdout).unwrap();
    // The clock may have struck between the two.
    assert_eq!(record[1][..16], told[..16], "two hours east of Greenwich");
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
        "released to the left"
    );
    assert!(!request::<bool>(&mut redis, &["EXISTS", "GPU_GPU0"]));
}

#[test]
fn what_was_not_renewed_is_given_to_the_next() {
    let server = Server::start(&[]);
    let mut pool = pool(&server);
    pool.init(&ids(&[0]), 0, false).unwrap();
    let mut short = ticket("short", 1);
    short.about.extend([("ack_ms", "1".to_owned()), ("host", "another".to_owned())]);
    assert!(matches!(pool.request(&short), Ok(TicketStatus::Held(_))));
    pool.request(&ticket("next", 1)).unwrap();
    let began = std::time::Instant::now();
    while pool.reap_local_host(&LocalHost::read(), TTL).unwrap() == 0 {
        assert!(began.elapsed() < Duration::from_mins(1), "nothing expires");
    }
    assert_eq!(pool.touch("short", TTL, None), Ok(TicketStatus::Ended("reaped".to_owned())));
    assert_eq!(pool.touch("next", TTL, None), Ok(TicketStatus::Held(Grant { token: 2, gpus: vec![0] })));
}

#[test]
fn whoever_speaks_in_the_last_moment_keeps_his_lease() {
    let server = Server::start(&[]);
    let (mut pool, mut redis) = (pool(&server), raw(&server));
    pool.init(&ids(&[0]), 0, false).unwrap();
    let held = pool.request(&ticket("a", 1));
    // Somebody saw that it was late, and before he could say so it was renewed.
    let told: String = request(&mut redis, &["EVAL", Op::Kill.text(), "1", "GPU", "a", "late"]);
    assert_eq!((told.as_str(), pool.touch("a", TTL, None)), ("held", held));
}

fn until_held(pool: &mut Pool, lease: &str) -> Grant {
    let began = std::time::Instant::now();
    loop {
        if let Ok(TicketStatus::Held(grant)) = pool.touch(lease, TTL, None) {
            return grant;
        }
        assert!(began.elapsed() < Duration::from_mins(1), "the barrier stays");
    }
}

#[test]
fn after_a_restart_holders_speak_first() {
    let server = Server::start(&[]);
    let (mut pool, mut redis) = (pool(&server), raw(&server));
    pool.init(&ids(&[0, 1]), 0, false).unwrap();
    pool.request(&ticket("a", 1)).unwrap();
    // The server was another, and forgets nothing here but who it was.
    request::<u64>(&mut redis, &["HSET", "GPU_V2:META", "run", "another", "barrier_ms", "1"]);
    assert_eq!(
        pool.request(&ticket("b", 1)),
        Ok(TicketStatus::Waiting { before: 0 }),
        "idle ids are withheld"
    );
    until_held(&mut pool, "b");
}

#[test]
fn an_address_that_makes_no_sense_is_told_without_its_password() {
    for address in ["http://a:secret@host", "redis://a:sec@ret@host:port", "redis+unix:///x?db=y&pass=secret"]
    {
        let told = Pool::open(address, "GPU", PATIENCE).unwrap_err().to_string();
        assert!(told.contains("is no address") && !told.contains("ret"), "{told}");
        assert_eq!(bailiff_lease::check(address).unwrap_err().to_string(), told);
    }
    assert_eq!(bailiff_lease::check("redis://a:secret@host:1/2"), Ok(()));
}

#[test]
fn what_goes_wrong_is_told_and_nothing_is_lost() {
    let server = Server::start(&["--requirepass", "secret"]);
    assert!(matches!(Pool::open("nonsense", "GPU", PATIENCE), Err(LeaseError::Address(_))));
    let nobody = Pool::open("redis+unix:///nowhere.sock", "GPU", PATIENCE);
    assert!(matches!(nobody, Err(LeaseError::Unreachable { .. })), "{nobody:?}");
    let denied = Pool::open(&server.address(), "GPU", PATIENCE).and_then(|mut pool| pool.audit());
    assert!(matches!(denied, Err(LeaseError::Denied(_))), "{denied:?}");
    let wrong = Pool::open(&format!("{}?pass=wrong", server.address()), "GPU", PATIENCE);
    assert!(matches!(wrong, Err(LeaseError::Denied(_))), "{wrong:?}");

    let address = format!("{}?pass=secret", server.address());
    let mut pool = Pool::open(&address, "GPU", PATIENCE).unwrap();
    let mut redis = redis::Client::open(address).unwrap().get_connection().unwrap();
    pool.init(&ids(&[0, 1]), 0, false).unwrap();
    request::<()>(&mut redis, &["SET", "GPU_GPU0", "what is this"]);
    request::<u64>(&mut redis, &["RPUSH", "GPU_IDLE", "none"]);
    request::<u64>(&mut redis, &["RPUSH", "GPU_MANAGED", "none"]);
    let Ok(TicketStatus::Held(held)) = pool.request(&ticket("a", 1)) else { panic!("1 is idle") };
    assert_eq!(held.gpus, [1], "neither a text nor a key of another type is handed out");
    let withheld: Vec<String> = request(&mut redis, &["HKEYS", "GPU_V2:QUAR"]);
    assert_eq!(withheld.len(), 2, "{withheld:?}");

    request::<()>(&mut redis, &["CONFIG", "SET", "maxmemory", "1"]);
    assert!(matches!(pool.request(&ticket("b", 1)), Err(LeaseError::Full(_))));
    assert!(
        matches!(pool.touch("a", TTL, None), Ok(TicketStatus::Held(_))),
        "whoever holds keeps what he holds"
    );
    assert_eq!(pool.release("a", None, (0, 1)), Ok(Released::Done), "a full server still takes back");
    request::<()>(&mut redis, &["CONFIG", "SET", "maxmemory", "0"]);

    request::<()>(&mut redis, &["DEL", "GPU_EVENTS"]);
    request::<()>(&mut redis, &["SET", "GPU_EVENTS", "what is this"]);
    let wrong = pool.request(&ticket("c", 1));
    assert!(matches!(&wrong, Err(LeaseError::WrongType(why)) if why.contains("GPU_EVENTS")), "{wrong:?}");
    assert_eq!(
        request::<Vec<String>>(&mut redis, &["LRANGE", "GPU_IDLE", "0", "-1"]),
        ["1"],
        "nothing was begun"
    );
}

/// Waits until Redis has so many blocked clients.
fn blocked(redis: &mut Connection, count: usize) {
    let began = std::time::Instant::now();
    loop {
        let info: String = request(redis, &["INFO", "clients"]);
        if info.lines().any(|line| line == format!("blocked_clients:{count}")) {
            return;
        }
        assert!(began.elapsed() < Duration::from_mins(1), "{count} are never blocked: {info}");
    }
}

#[test]
fn whoever_came_first_is_served_first_of_whichever_kind() {
    let server = Server::start(&[]);
    let (mut first, mut redis) = (pool(&server), raw(&server));
    first.init(&ids(&[0]), 0, false).unwrap();
    first.request(&ticket("holder", 1)).unwrap();
    let (tell, served) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        for number in 0..6 {
            let (server, tell) = (&server, tell.clone());
            scope.spawn(move || {
                if number % 2 == 0 {
                    let mut pool = pool(server);
                    let name = format!("waiter-{number}");
                    let status = pool.wait(&ticket(&name, 1), (&LocalHost::read(), None), |_| {}).unwrap();
                    assert!(matches!(status, TicketStatus::Held(_)), "{status:?}");
                    tell.send(number).unwrap();
                    pool.release(&name, None, (0, 1)).unwrap();
                } else {
                    let popped: (String, String) = request(&mut raw(server), &["BRPOP", "GPU_IDLE", "0"]);
                    tell.send(number).unwrap();
                    request::<u64>(&mut raw(server), &["LPUSH", "GPU_IDLE", &popped.1]);
                }
            });
            // One of ours is blocked twice: for its wake-up, and in the line.
            blocked(&mut redis, number + 1 + (number / 2 + 1));
        }
        first.release("holder", None, (0, 1)).unwrap();
    });
    drop(tell);
    assert_eq!(served.iter().collect::<Vec<usize>>(), [0, 1, 2, 3, 4, 5]);
    let idle: Vec<String> = request(&mut redis, &["LRANGE", "GPU_IDLE", "0", "-1"]);
    assert_eq!(idle, ["0"], "and it is idle in the end");
    blocked(&mut redis, 0);
}

#[test]
fn scripts_that_were_flushed_hold_up_nobody() {
    let server = Server::start(&[]);
    let (mut first, mut redis) = (pool(&server), raw(&server));
    first.init(&ids(&[0]), 0, false).unwrap();
    first.request(&ticket("holder", 1)).unwrap();
    let heard = AtomicU32::new(0);
    let told = |_| {
        heard.fetch_add(1, Relaxed);
    };
    std::thread::scope(|scope| {
        let waiter =
            scope.spawn(|| pool(&server).wait(&ticket("waiter", 1), (&LocalHost::read(), None), told));
        blocked(&mut redis, 2);
        request::<()>(&mut redis, &["SCRIPT", "FLUSH"]);
        let before = heard.load(Relaxed);
        request::<u64>(&mut redis, &["HDEL", "GPU_V2:OWN", "0"]);
        request::<u64>(&mut redis, &["DEL", "GPU_GPU0"]);
        request::<u64>(&mut redis, &["LPUSH", "GPU_IDLE", "0"]);
        assert!(matches!(waiter.join().unwrap(), Ok(TicketStatus::Held(_))));
        assert_eq!(heard.load(Relaxed), before, "its slot found it, and not its next renewal");
    });
}

#[test]
fn a_wait_has_an_end_and_leaves_nothing_behind() {
    let server = Server::start(&[]);
    let (mut pool, mut redis) = (pool(&server), raw(&server));
    pool.init(&ids(&[0, 1]), 0, false).unwrap();
    pool.request(&ticket("holder", 1)).unwrap();
    let mut heard = Vec::new();
    let until = std::time::Instant::now() + Duration::from_millis(200);
    let status = pool
        .wait(&ticket("late", 2), (&LocalHost::read(), Some(until)), |before| heard.push(before))
        .unwrap();
    assert_eq!((status, heard[0]), (TicketStatus::Waiting { before: 0 }, 0));
    let idle: Vec<String> = request(&mut redis, &["LRANGE", "GPU_IDLE", "0", "-1"]);
    assert_eq!(idle, ["1"], "what had been gathered for it is idle again");
    assert_eq!(pool.touch("late", TTL, None), Ok(TicketStatus::Ended("cancelled".to_owned())));
}

#[test]
fn what_the_dead_of_this_host_held_is_free_at_once() {
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
fn a_record_that_was_overwritten_loses_no_gpu() {
    let server = Server::start(&[]);
    let (mut pool, mut redis) = (pool(&server), raw(&server));
    pool.init(&ids(&[0]), 0, false).unwrap();
    pool.request(&ticket("a", 1)).unwrap();
    request::<()>(&mut redis, &["SET", "GPU_GPU0", "what is this"]);
    assert_eq!(pool.release("a", None, (0, 1)), Ok(Released::Done));
    assert!(matches!(pool.request(&ticket("b", 1)), Ok(TicketStatus::Held(_))));
}

#[test]
fn a_lease_that_the_server_forgot_is_asked_back() {
    let server = Server::start(&[]);
    let (mut pool, mut redis) = (pool(&server), raw(&server));
    pool.init(&ids(&[0, 1, 2]), 0, false).unwrap();
    request::<u64>(&mut redis, &["HSET", "GPU_V2:META", "barrier_ms", "60000"]);
    pool.request(&ticket("first", 1)).unwrap();
    pool.release("first", None, (0, 1)).unwrap();
    let Ok(TicketStatus::Held(other)) = pool.request(&ticket("other", 1)) else { panic!("all are idle") };
    pool.request(&ticket("big", 3)).unwrap();
    // An older state comes back, in which 2 was gathered for `big`, and 0 and the lease of 0 and 2 are not known.
    request::<u64>(&mut redis, &["HSET", "GPU_V2:META", "run", "another"]);
    pool.release("big", None, (0, 1)).unwrap();
    assert_eq!(
        pool.request(&ticket("next", 1)),
        Ok(TicketStatus::Waiting { before: 0 }),
        "nothing is handed out yet"
    );
    let forgotten = Grant { token: 77, gpus: vec![0, 2] };
    assert_eq!(pool.touch("forgotten", TTL, Some(77)), Ok(TicketStatus::Ended("unknown".to_owned())));
    let held = Ok(TicketStatus::Held(forgotten.clone()));
    let mut theirs = ticket("forgotten", 2);
    theirs.about.push(("max_ms", "60000".to_owned()));
    assert_eq!(pool.reclaim(&theirs, &forgotten, TTL), held);
    assert_eq!(pool.touch("forgotten", TTL, Some(77)), held);
    assert!(matches!(pool.extend("forgotten", TTL), Ok(Extended::Until(_))), "it has a time of its own");
    let theirs = Grant { token: 1, ..other.clone() };
    let conflict = Ok(TicketStatus::Conflict(theirs.clone()));
    assert_eq!(pool.reclaim(&ticket("late", 1), &theirs, TTL), conflict, "somebody was given it later");
    pool.release("other", None, (0, 1)).unwrap();
    assert!(matches!(pool.touch("next", TTL, None), Ok(TicketStatus::Waiting { .. })), "nothing at all");
    request::<u64>(&mut redis, &["HSET", "GPU_V2:META", "barrier", "1"]);
    let grant = until_held(&mut pool, "next");
    assert_eq!(grant.gpus, other.gpus);
    assert!(grant.token > 77, "tokens are above all that were given: {grant:?}");
}

#[test]
fn one_that_cannot_be_served_stops_nobody() {
    let server = Server::start(&[]);
    let (mut pool, mut redis) = (pool(&server), raw(&server));
    assert_eq!(pool.init(&ids(&[0, 1, 1, 2]), 0, false), Ok(Init::Done(3)), "each once");
    pool.request(&ticket("holder", 1)).unwrap();
    pool.request(&ticket("big", 3)).unwrap();
    request::<u64>(&mut redis, &["HSET", "GPU_V2:QUAR", "2", "somebody is on it:0"]);
    assert_eq!(pool.request(&ticket("small", 1)), Ok(TicketStatus::Held(Grant { token: 2, gpus: vec![1] })));
    request::<u64>(&mut redis, &["LREM", "GPU_MANAGED", "0", "2"]);
    assert_eq!(
        pool.touch("big", TTL, None),
        Ok(TicketStatus::Ended("refused".to_owned())),
        "there are no three any more"
    );
}

#[test]
fn what_is_withheld_and_released_by_somebody_is_put_back_once() {
    let server = Server::start(&[]);
    let (mut pool, mut redis) = (pool(&server), raw(&server));
    pool.init(&ids(&[0]), 0, false).unwrap();
    request::<u64>(&mut redis, &["HSET", "GPU_GPU0", "PID", "4711"]);
    assert_eq!(
        pool.request(&ticket("a", 1)),
        Ok(TicketStatus::Waiting { before: 0 }),
        "a record of GPU.py's is there"
    );
    let withheld: Vec<String> = request(&mut redis, &["HKEYS", "GPU_V2:QUAR"]);
    assert_eq!(withheld, ["0"]);
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

/// Everything that a server holds, times left out: they are numbers of at least twelve digits, and dates.
fn everything(redis: &mut Connection) -> String {
    let mut keys: Vec<String> = request(redis, &["KEYS", "*"]);
    keys.sort();
    let mut all = String::new();
    for key in keys {
        let kind: String = request(redis, &["TYPE", &key]);
        let words = match kind.as_str() {
            "list" => vec!["LRANGE", &key, "0", "-1"],
            "hash" => vec!["HGETALL", &key],
            "zset" => vec!["ZRANGE", &key, "0", "-1", "WITHSCORES"],
            "stream" => vec!["XRANGE", &key, "-", "+"],
            _ => vec!["GET", &key],
        };
        let told: redis::Value = request(redis, &words);
        let expires = request::<i64>(redis, &["PTTL", &key]) >= 0;
        writeln!(all, "{key}, expires: {expires}: {told:?}").unwrap();
    }
    let digits = |word: &str| word.chars().filter(char::is_ascii_digit).count();
    let words = all.split_inclusive([' ', ',', '\'', '\n']);
    words.map(|word| if digits(word) >= 6 { "time " } else { word }).collect()
}

fn run_of(redis: &mut Connection) -> String {
    let info: redis::InfoDict = redis::cmd("INFO").arg("server").query(redis).unwrap();
    info.get("run_id").unwrap()
}

/// A pool of which a slot has just popped GPU 0, with two who wait for one each.
fn popped(server: &Server) -> Pool {
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
fn the_short_way_of_a_slot_leaves_what_is_unusual_to_the_long_one() {
    let server = Server::start(&[]);
    let mut redis = raw(&server);
    let run = run_of(&mut redis);
    let mut slot = |unusual: &str| {
        popped(&server);
        let words: Vec<&str> = unusual.split(' ').collect();
        if words != [""] {
            request::<redis::Value>(&mut redis, &words);
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
        "HSET GPU_V2:OWN 0 somebody",
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
fn the_short_way_of_a_slot_does_what_the_long_one_does() {
    let server = Server::start(&[]);
    let mut redis = raw(&server);
    let run = run_of(&mut redis);
    let mut outcome = |arguments: &[&str]| {
        let mut pool = popped(&server);
        let mut words = vec!["EVAL", Op::Assign.text(), "1", "GPU"];
        words.extend(arguments);
        let how: String = request(&mut redis, &words);
        // The logs tell of it no later than now.
        assert!(matches!(pool.touch("next", TTL, None), Ok(TicketStatus::Held(_))));
        // How long each had waited differs by itself.
        for wait in ["waited", "wait:10", "wait:100", "wait:1000"] {
            request::<u64>(&mut redis, &["HDEL", "GPU_V2:COUNTS", wait]);
        }
        (how, everything(&mut redis))
    };
    let (long, by_long) = outcome(&[]);
    let (short, by_short) = outcome(&[&run]);
    assert_eq!((long.as_str(), short.as_str()), ("OK", "SERVED"));
    assert_eq!(by_short, by_long);
    assert!(by_short.contains("GPU_V2:WAKE:next"), "{by_short}");
    let (another, by_another) = outcome(&["another server's"]);
    assert_eq!((another.as_str(), by_another), ("OK", by_long), "whoever knows another server asks this one");
}
