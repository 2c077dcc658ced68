//! The client, against a real Redis: what it asks, what Redis then holds, and how it tells what goes wrong.
#![expect(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test starts a server and waits for it"
)]

mod server;

use std::process::Command;
use std::time::Duration;

use bailiff_lease::{Grant, Init, Pool, Released, Standing, Ticket, Trouble};
use redis::Connection;

use server::Server;

const PATIENCE: Duration = Duration::from_secs(5);
const TTL: Duration = Duration::from_mins(1);

fn pool(server: &Server) -> Pool {
    Pool::open(&server.address(), "GPU", PATIENCE).unwrap()
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

fn ask<T: redis::FromRedisValue>(connection: &mut Connection, words: &[&str]) -> T {
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
        pool.ask(&ticket("early", 1)),
        Ok(Standing::Uninitialised),
        "nothing is waited for that nobody will give"
    );
    assert_eq!(pool.init(&[0, 1], 7200, false), Ok(Init::Done(2)));
    assert_eq!(pool.init(&[0, 1, 2], 7200, false), Ok(Init::Already(2)));
    assert_eq!(pool.ask(&ticket("greedy", 3)), Ok(Standing::Impossible { managed: 2 }));
    let held = Standing::Held(Grant { token: 1, gpus: vec![0] });
    assert_eq!(pool.ask(&ticket("a", 1)), Ok(held.clone()), "the first pushed is handed out first");
    assert_eq!(pool.ask(&ticket("a", 1)), Ok(held.clone()), "asked again after a reply was lost");
    assert_eq!(pool.init(&[0, 1], 7200, true), Ok(Init::Held(1)), "nothing is begun anew under a holder");
    assert_eq!(pool.ask(&ticket("b", 2)), Ok(Standing::Waiting { before: 0 }));
    assert_eq!(
        pool.ask(&Ticket { nonblock: true, ..ticket("c", 1) }),
        Ok(Standing::Busy),
        "nobody overtakes"
    );
    assert_eq!(pool.touch("a", TTL, Some(1)), Ok(held));
    assert_eq!(
        pool.touch("a", TTL, Some(7)),
        Ok(Standing::Ended("lost".to_owned())),
        "an old token is worth nothing"
    );
    assert_eq!(pool.release("a", Some(1), (7200, 4711)), Ok(Released::Done));
    assert_eq!(pool.release("a", Some(1), (7200, 4711)), Ok(Released::Already("released".to_owned())));
    let both = Standing::Held(Grant { token: 2, gpus: vec![1, 0] });
    assert_eq!(pool.touch("b", TTL, None), Ok(Standing::Waiting { before: 0 }));
    assert_eq!(pool.touch("b", TTL, None), Ok(both), "its own touch served it");
    assert_eq!(pool.release("nobody", None, (0, 1)), Ok(Released::Unknown));
}

#[test]
fn the_original_reads_what_ours_write() {
    let server = Server::start(&[]);
    let (mut pool, mut redis) = (pool(&server), raw(&server));
    pool.init(&[0, 1, 2], 7200, false).unwrap();
    assert_eq!(ask::<Vec<String>>(&mut redis, &["LRANGE", "GPU_IDLE", "0", "-1"]), ["2", "1", "0"]);
    assert_eq!(
        ask::<Vec<String>>(&mut redis, &["HMGET", "GPU_INIT", "GPUMANAGED", "GPUCOUNT"]),
        ["0,1,2", "3"]
    );
    pool.ask(&ticket("a", 1)).unwrap();
    let now: Vec<String> = ask(&mut redis, &["TIME"]);
    let record: Vec<String> = ask(&mut redis, &["HMGET", "GPU_GPU0", "PID", "TIME", "user"]);
    assert_eq!((record[0].as_str(), record[2].as_str()), ("0", "alice"), "no purge of anybody's ends it");
    let told = Command::new("date")
        .args(["-u", "+%Y-%m-%d %H:%M:%S", "-d", &format!("@{}", now[0].parse::<u64>().unwrap() + 7200)])
        .output()
        .unwrap();
    let told = String::from_utf8(told.stdout).unwrap();
    // The clock may have struck between the two.
    assert_eq!(record[1][..16], told[..16], "two hours east of Greenwich");
    pool.release("a", None, (7200, 42)).unwrap();
    let events: Vec<String> = ask(&mut redis, &["LRANGE", "GPU_EVENTS", "0", "-1"]);
    let lines: Vec<&str> = events.iter().map(|event| &event[21..]).collect();
    assert_eq!(
        lines,
        ["GPU 0 released by PID 42.", "GPU 0 acquired by PID 4711.", "Redis initialized, 3 managed GPUs."]
    );
    assert_eq!(
        ask::<Vec<String>>(&mut redis, &["LRANGE", "GPU_IDLE", "0", "-1"]),
        ["0", "2", "1"],
        "released to the left"
    );
    assert!(!ask::<bool>(&mut redis, &["EXISTS", "GPU_GPU0"]));
}

#[test]
fn what_was_not_renewed_is_given_to_the_next() {
    let server = Server::start(&[]);
    let mut pool = pool(&server);
    pool.init(&[0], 0, false).unwrap();
    let mut short = ticket("short", 1);
    short.about.push(("ack_ms", "1".to_owned()));
    assert!(matches!(pool.ask(&short), Ok(Standing::Held(_))));
    pool.ask(&ticket("next", 1)).unwrap();
    let began = std::time::Instant::now();
    while pool.reap().unwrap() == 0 {
        assert!(began.elapsed() < Duration::from_mins(1), "nothing expires");
    }
    assert_eq!(pool.touch("short", TTL, None), Ok(Standing::Ended("reaped".to_owned())));
    pool.touch("next", TTL, None).unwrap();
    assert_eq!(pool.touch("next", TTL, None), Ok(Standing::Held(Grant { token: 2, gpus: vec![0] })));
}

#[test]
fn after_a_restart_holders_speak_first() {
    let server = Server::start(&[]);
    let (mut pool, mut redis) = (pool(&server), raw(&server));
    pool.init(&[0, 1], 0, false).unwrap();
    pool.ask(&ticket("a", 1)).unwrap();
    // The server was another, and forgets nothing here but who it was.
    ask::<u64>(&mut redis, &["HSET", "GPU_V2:META", "run", "another", "barrier_ms", "1"]);
    assert_eq!(pool.ask(&ticket("b", 1)), Ok(Standing::Waiting { before: 0 }), "idle ids are withheld");
    let began = std::time::Instant::now();
    while !matches!(pool.touch("b", TTL, None), Ok(Standing::Held(_))) {
        assert!(began.elapsed() < Duration::from_mins(1), "the barrier stays");
    }
}

#[test]
fn what_goes_wrong_is_told_and_nothing_is_lost() {
    let server = Server::start(&["--requirepass", "secret"]);
    assert!(matches!(Pool::open("nonsense", "GPU", PATIENCE), Err(Trouble::Address(_))));
    let nobody = Pool::open("redis+unix:///nowhere.sock", "GPU", PATIENCE);
    assert!(matches!(nobody, Err(Trouble::Unreachable { .. })), "{nobody:?}");
    let denied = Pool::open(&server.address(), "GPU", PATIENCE).and_then(|mut pool| pool.reap());
    assert!(matches!(denied, Err(Trouble::Denied(_))), "{denied:?}");
    let wrong = Pool::open(&format!("{}?pass=wrong", server.address()), "GPU", PATIENCE);
    assert!(matches!(wrong, Err(Trouble::Denied(_))), "{wrong:?}");

    let address = format!("{}?pass=secret", server.address());
    let mut pool = Pool::open(&address, "GPU", PATIENCE).unwrap();
    let mut redis = redis::Client::open(address).unwrap().get_connection().unwrap();
    pool.init(&[0, 1], 0, false).unwrap();
    ask::<()>(&mut redis, &["SET", "GPU_GPU0", "what is this"]);
    ask::<u64>(&mut redis, &["RPUSH", "GPU_IDLE", "none"]);
    ask::<u64>(&mut redis, &["RPUSH", "GPU_MANAGED", "none"]);
    let held = Standing::Held(Grant { token: 1, gpus: vec![1] });
    assert_eq!(
        pool.ask(&ticket("a", 1)),
        Ok(Standing::Waiting { before: 0 }),
        "`none` comes first, and is withheld"
    );
    pool.touch("a", TTL, None).unwrap();
    pool.touch("a", TTL, None).unwrap();
    assert_eq!(
        pool.touch("a", TTL, None),
        Ok(held),
        "neither a text nor a key of another type is handed out"
    );
    let withheld: Vec<String> = ask(&mut redis, &["HKEYS", "GPU_V2:QUAR"]);
    assert_eq!(withheld.len(), 2, "{withheld:?}");

    ask::<()>(&mut redis, &["CONFIG", "SET", "maxmemory", "1"]);
    assert!(matches!(pool.ask(&ticket("b", 1)), Err(Trouble::Full(_))));
    assert_eq!(pool.release("a", None, (0, 1)), Ok(Released::Done), "a full server still takes back");
    ask::<()>(&mut redis, &["CONFIG", "SET", "maxmemory", "0"]);

    ask::<()>(&mut redis, &["DEL", "GPU_EVENTS"]);
    ask::<()>(&mut redis, &["SET", "GPU_EVENTS", "what is this"]);
    let wrong = pool.ask(&ticket("c", 1));
    assert!(matches!(&wrong, Err(Trouble::WrongType(why)) if why.contains("GPU_EVENTS")), "{wrong:?}");
    assert_eq!(
        ask::<Vec<String>>(&mut redis, &["LRANGE", "GPU_IDLE", "0", "-1"]),
        ["1"],
        "nothing was begun"
    );
}
