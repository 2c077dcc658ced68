//! The server stops, is full, refuses, throws things away, or somebody calls our clients out of its lines.

use std::time::Duration;

use bailiff_lease::holder::LocalHost;
use bailiff_lease::{LeaseError, Leases, Pool, Released, TicketStatus};
use rustix::process::{Pid, Signal, kill_process};

use crate::people::{
    NOBODY, PATIENCE, TTL, Truth, acquire, assert_all_idle, begin, insist, open, release, renew, tell,
    ticket, until,
};
use crate::server::Server;

/// Somebody waits for the one GPU while `happens` does; then he is served.
fn a_waiter_goes_on(happens: impl FnOnce(&Server)) {
    let server = Server::start(&[]);
    let address = server.address();
    let mut pool = begin(&address, 1, TTL);
    let holder = ticket("holder", 1);
    let grant = acquire(&mut pool, &holder);
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            let (mut pool, ticket) = (open(&address), ticket("waiter", 1));
            let grant = acquire(&mut pool, &ticket);
            renew(&mut pool, &ticket, &grant);
            release(&mut pool, &ticket, &grant);
        });
        blocked(&address, 2);
        happens(&server);
        release(&mut pool, &holder, &grant);
        waiter.join().unwrap();
    });
    assert_all_idle(&mut open(&address));
}

/// Waits until so many connections are blocked.
fn blocked(address: &str, count: u32) {
    until("connections to be blocked", || {
        let info: redis::InfoDict = tell(address, &["INFO", "clients"]);
        (info.get::<u32>("blocked_clients") == Some(count)).then_some(())
    });
}

/// The numbers of both connections that are blocked: in the line, and for the wake-up.
fn numbers(address: &str) -> [String; 2] {
    let list: String = tell(address, &["CLIENT", "LIST"]);
    let blocked = list.lines().filter(|line| {
        let flags = line.split(' ').find_map(|word| word.strip_prefix("flags="));
        flags.is_some_and(|flags| flags.contains('b'))
    });
    let number = |line: &str| line["id=".len()..].split(' ').next().unwrap().to_owned();
    let numbers: Vec<String> = blocked.map(number).collect();
    numbers.try_into().unwrap_or_else(|_| panic!("not two are blocked: {list}"))
}

#[test]
fn connections_that_somebody_kills_come_back() {
    a_waiter_goes_on(|server| {
        for number in numbers(&server.address()) {
            tell::<u64>(&server.address(), &["CLIENT", "KILL", "ID", &number]);
        }
        blocked(&server.address(), 2);
        // Those that were killed last are not yet back in the line.
        for number in numbers(&server.address()) {
            tell::<u64>(&server.address(), &["CLIENT", "KILL", "ID", &number]);
        }
    });
}

#[test]
fn whoever_is_called_out_of_the_line_stands_in_it_again() {
    for how in ["TIMEOUT", "ERROR"] {
        a_waiter_goes_on(|server| {
            for number in numbers(&server.address()) {
                tell::<u64>(&server.address(), &["CLIENT", "UNBLOCK", &number, how]);
            }
        });
    }
}

#[test]
fn a_server_that_stops_for_a_while_is_not_asked_twice() {
    let server = Server::start(&[]);
    let address = server.address();
    let mut pool = begin(&address, 2, TTL);
    let mut hasty = Pool::open(&address, "GPU", Duration::from_millis(200)).unwrap();
    let holder = ticket("holder", 1);
    let grant = acquire(&mut pool, &holder);
    let process = Pid::from_raw(server.pid().try_into().unwrap()).unwrap();
    for turn in 0..3 {
        let lease = ticket(&format!("lease-{turn}"), 1);
        kill_process(process, Signal::STOP).unwrap();
        for _ in 0..2 {
            let asked = hasty.request(&lease);
            assert!(matches!(asked, Err(LeaseError::Silent(_))), "{asked:?}");
        }
        let renewed = hasty.renew(&holder, &grant, TTL);
        assert!(matches!(renewed, Err(LeaseError::Silent(_))), "{renewed:?}");
        kill_process(process, Signal::CONT).unwrap();
        // What it answers late is not taken for the answer to something else.
        renew(&mut hasty, &holder, &grant);
        let theirs = acquire(&mut hasty, &lease);
        assert_eq!(theirs.gpus, [1 - grant.gpus[0]], "asked for once");
        assert_eq!(hasty.audit().unwrap().leases.len(), 2);
        release(&mut hasty, &lease, &theirs);
    }
    release(&mut pool, &holder, &grant);
    assert_all_idle(&mut pool);
}

#[test]
fn a_full_server_still_hands_on() {
    a_waiter_goes_on(|server| {
        tell::<()>(&server.address(), &["CONFIG", "SET", "maxmemory", "1"]);
        let late = open(&server.address()).request(&ticket("late", 1));
        assert!(matches!(late, Err(LeaseError::Full(_))), "{late:?}");
    });
}

#[test]
fn a_server_that_throws_away_what_expires_loses_no_gpu() {
    let server = Server::start(&["--maxmemory-policy", "volatile-lru"]);
    let address = server.address();
    let (mut pool, truth) = (begin(&address, 2, TTL), Truth::default());
    let holder = ticket("holder", 1);
    let grant = acquire(&mut pool, &holder);
    truth.takes("holder", &grant.gpus);
    for turn in 0..20 {
        let ticket = ticket(&format!("lease-{turn}"), 1);
        let theirs = acquire(&mut pool, &ticket);
        truth.takes(&ticket.lease, &theirs.gpus);
        renew(&mut pool, &ticket, &theirs);
        truth.leaves(&ticket.lease, &theirs.gpus);
        release(&mut pool, &ticket, &theirs);
    }
    // What has ended is thrown away, and nothing else: then it is full.
    tell::<()>(&address, &["CONFIG", "SET", "maxmemory", "1"]);
    let full = until("it to be full", || pool.request(&ticket("more", 1)).err());
    assert!(matches!(full, LeaseError::Full(_)), "{full:?}");
    let ended: Vec<String> = tell(&address, &["KEYS", "GPU_V2:LEASE:lease-*"]);
    assert_eq!(ended, [""; 0]);
    renew(&mut pool, &holder, &grant);
    release(&mut pool, &holder, &grant);
    tell::<()>(&address, &["CONFIG", "SET", "maxmemory", "0"]);
    assert_all_idle(&mut pool);
}

#[test]
fn what_is_not_allowed_is_told_and_ends_the_wait() {
    let server = Server::start(&[]);
    let address = server.address();
    let mut pool = begin(&address, 1, TTL);
    let grant = acquire(&mut pool, &ticket("holder", 1));
    tell::<()>(&address, &["ACL", "SETUSER", "bob", "on", ">secret", "~*", "+@all"]);
    let theirs = format!("{address}?user=bob&pass=secret");
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            let mut pool = Pool::open(&theirs, "GPU", PATIENCE).unwrap();
            pool.wait(&ticket("waiter", 1), (&LocalHost::read(), None), |_| {})
        });
        blocked(&address, 2);
        tell::<()>(&address, &["ACL", "SETUSER", "bob", "-evalsha", "-blpop"]);
        for number in numbers(&address) {
            tell::<u64>(&address, &["CLIENT", "UNBLOCK", &number]);
        }
        let told = waiter.join().unwrap();
        assert!(matches!(&told, Err(LeaseError::Denied(why)) if why.contains("permission")), "{told:?}");
    });
    release(&mut pool, &ticket("holder", 1), &grant);
    // What he had asked for before he lost his rights goes to the next, as that of everybody who has ended.
    pool.end("waiter", NOBODY, &[]).unwrap();
    assert_all_idle(&mut pool);
}

/// The rights that docs/leases.md gives are enough; what a user may not is told.
#[test]
fn a_user_with_the_rights_that_the_docs_name_can_do_it_all() {
    let server = Server::start(&[]);
    let docs = include_str!("../../../docs/leases.md");
    let line = docs.lines().find(|line| line.starts_with("ACL SETUSER bailiff ")).unwrap();
    let words: Vec<&str> = line.split(' ').map(|word| word.trim_end_matches("PASSWORD")).collect();
    let words: Vec<String> = words.iter().map(|word| word.replace('>', ">secret")).collect();
    tell::<()>(&server.address(), &words.iter().map(String::as_str).collect::<Vec<_>>());
    let theirs = format!("{}?user=bailiff&pass=secret", server.address());
    let mut pool = begin(&theirs, 1, TTL);
    let holder = ticket("holder", 1);
    let grant = acquire(&mut pool, &holder);
    renew(&mut pool, &holder, &grant);
    assert!(pool.view().unwrap().begun);
    release(&mut pool, &holder, &grant);
    tell::<()>(&server.address(), &["ACL", "SETUSER", "bailiff", "-@scripting", "-@transaction"]);
    assert!(matches!(pool.view(), Err(LeaseError::Denied(_))));
}

#[test]
fn a_key_of_another_type_is_named_and_nothing_is_begun() {
    let server = Server::start(&[]);
    let address = server.address();
    let mut pool = begin(&address, 3, TTL);
    let holder = ticket("holder", 1);
    let grant = acquire(&mut pool, &holder);
    tell::<u64>(&address, &["HSET", "GPU_V2:UUID", "0", "GPU-0"]);
    for key in [
        "IDLE", "MANAGED", "EVENTS", "V2:META", "V2:OWN", "V2:QUAR", "V2:UUID", "V2:Q", "V2:EXP", "V2:POT",
        "V2:BAR", "V2:LOG",
    ] {
        let key = format!("GPU_{key}");
        let before = snapshot(&address);
        let there: u64 = tell(&address, &["EXISTS", &key]);
        if there == 1 {
            tell::<()>(&address, &["RENAME", &key, "aside"]);
        }
        tell::<()>(&address, &["SET", &key, "what is this"]);
        let told = [
            pool.request(&ticket("another", 1)).err(),
            pool.renew(&holder, &grant, TTL).err(),
            pool.release("holder", None, (0, 1)).err(),
            pool.end("holder", NOBODY, &[]).err(),
            pool.audit().err(),
        ];
        for told in told {
            assert!(
                matches!(&told, Some(LeaseError::WrongType(why)) if why.contains(&key)),
                "{key}: {told:?}"
            );
        }
        tell::<u64>(&address, &["DEL", &key]);
        if there == 1 {
            tell::<()>(&address, &["RENAME", "aside", &key]);
        }
        assert_eq!(snapshot(&address), before, "{key}");
    }
    renew(&mut pool, &holder, &grant);
    assert_eq!(pool.release("holder", None, (0, 1)), Ok(Released::Done));
    assert_all_idle(&mut pool);
}

/// All keys and what they hold.
fn snapshot(address: &str) -> Vec<(String, Vec<u8>)> {
    let mut keys: Vec<String> = tell(address, &["KEYS", "*"]);
    keys.sort();
    keys.into_iter().map(|key| (key.clone(), tell(address, &["DUMP", &key]))).collect()
}

#[test]
fn names_of_leases_and_records_of_another_type_stop_nobody() {
    let server = Server::start(&[]);
    let address = server.address();
    let mut pool = begin(&address, 2, TTL);
    tell::<()>(&address, &["SET", "GPU_V2:LEASE:strange", "what is this"]);
    let told = pool.request(&ticket("strange", 1));
    assert!(matches!(&told, Err(LeaseError::WrongType(why)) if why.contains("strange")), "{told:?}");
    tell::<u64>(&address, &["ZADD", "GPU_V2:Q", "-1", "strange"]);
    tell::<u64>(&address, &["ZADD", "GPU_V2:EXP", "9999999999999", "strange"]);
    tell::<()>(&address, &["SET", "GPU_V2:WAKE:a", "what is this"]);
    let ticket = ticket("a", 2);
    let grant = acquire(&mut pool, &ticket);
    tell::<()>(&address, &["SET", "GPU_GPU1", "what is this"]);
    renew(&mut pool, &ticket, &grant);
    tell::<u64>(&address, &["DEL", "GPU_V2:LEASE:strange"]);
    tell::<u64>(&address, &["ZREM", "GPU_V2:EXP", "strange"]);
    let waits: TicketStatus = insist("an answer", || pool.request(&crate::people::ticket("b", 1)));
    assert_eq!(waits, TicketStatus::Waiting { before: 0 });
    release(&mut pool, &ticket, &grant);
    let theirs = acquire(&mut pool, &crate::people::ticket("b", 1));
    release(&mut pool, &crate::people::ticket("b", 1), &theirs);
    assert_all_idle(&mut pool);
}
