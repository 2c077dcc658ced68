//! Tests a server that is stopped, full, refuses commands or evicts keys, and an administrator who kills or unblocks
//! our connections.

use std::time::Duration;

use bailiff_lease::holder::LocalHost;
use bailiff_lease::{LeaseError, Leases, Pool, Released, TicketStatus};
use rustix::process::{Pid, Signal, kill_process};

use crate::clients::{
    DEAD, HolderModel, PATIENCE, TTL, acquire, assert_all_idle, create_pool, open, release, renew, retry,
    run_command, ticket, wait_until,
};
use crate::server::Server;

/// Checks that a client that waits for the only GPU while `disturb` runs is served after that.
fn check_waiter(disturb: impl FnOnce(&Server)) {
    let server = Server::start(&[]);
    let address = server.address();
    let mut pool = create_pool(&address, 1, TTL);
    let holder = ticket("holder", 1);
    let grant = acquire(&mut pool, &holder);
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            let (mut pool, ticket) = (open(&address), ticket("waiter", 1));
            let grant = acquire(&mut pool, &ticket);
            renew(&mut pool, &ticket, &grant);
            release(&mut pool, &ticket, &grant);
        });
        wait_for_blocked(&address, 2);
        disturb(&server);
        release(&mut pool, &holder, &grant);
        waiter.join().unwrap();
    });
    assert_all_idle(&mut open(&address));
}

/// Waits until this many connections are blocked.
fn wait_for_blocked(address: &str, count: u32) {
    wait_until("connections to be blocked", || {
        let info: redis::InfoDict = run_command(address, &["INFO", "clients"]);
        (info.get::<u32>("blocked_clients") == Some(count)).then_some(())
    });
}

/// Returns the ids of the two blocked connections: the one in the queue, and the one for the wake-up.
fn client_ids(address: &str) -> [String; 2] {
    let list: String = run_command(address, &["CLIENT", "LIST"]);
    let blocked = list.lines().filter(|line| {
        let flags = line.split(' ').find_map(|field| field.strip_prefix("flags="));
        flags.is_some_and(|flags| flags.contains('b'))
    });
    let id = |line: &str| line["id=".len()..].split(' ').next().unwrap().to_owned();
    let ids: Vec<String> = blocked.map(id).collect();
    ids.try_into().unwrap_or_else(|_| panic!("there must be two blocked connections: {list}"))
}

#[test]
fn killed_connections_are_reopened() {
    check_waiter(|server| {
        for id in client_ids(&server.address()) {
            run_command::<u64>(&server.address(), &["CLIENT", "KILL", "ID", &id]);
        }
        wait_for_blocked(&server.address(), 2);
        // Kills the reopened connections too. This time, the GPU is released before the client is back in the queue.
        for id in client_ids(&server.address()) {
            run_command::<u64>(&server.address(), &["CLIENT", "KILL", "ID", &id]);
        }
    });
}

#[test]
fn unblocked_connections_wait_again() {
    for how in ["TIMEOUT", "ERROR"] {
        check_waiter(|server| {
            for id in client_ids(&server.address()) {
                run_command::<u64>(&server.address(), &["CLIENT", "UNBLOCK", &id, how]);
            }
        });
    }
}

#[test]
fn stopped_server_grants_each_request_once() {
    let server = Server::start(&[]);
    let address = server.address();
    let mut pool = create_pool(&address, 2, TTL);
    let mut hasty = Pool::open(&address, "GPU", Duration::from_millis(200)).unwrap();
    let holder = ticket("holder", 1);
    let grant = acquire(&mut pool, &holder);
    let process = Pid::from_raw(server.pid().try_into().unwrap()).unwrap();
    for turn in 0..3 {
        let lease = ticket(&format!("lease-{turn}"), 1);
        kill_process(process, Signal::STOP).unwrap();
        for _ in 0..2 {
            let status = hasty.request(&lease);
            assert!(matches!(status, Err(LeaseError::Silent(_))), "{status:?}");
        }
        let renewed = hasty.renew(&holder, &grant, TTL);
        assert!(matches!(renewed, Err(LeaseError::Silent(_))), "{renewed:?}");
        kill_process(process, Signal::CONT).unwrap();
        // A late reply is not mistaken for the reply to a later request.
        renew(&mut hasty, &holder, &grant);
        let granted = acquire(&mut hasty, &lease);
        assert_eq!(granted.gpus, [1 - grant.gpus[0]], "granted once");
        assert_eq!(hasty.audit().unwrap().leases.len(), 2);
        release(&mut hasty, &lease, &granted);
    }
    release(&mut pool, &holder, &grant);
    assert_all_idle(&mut pool);
}

#[test]
fn full_server_still_serves_waiters() {
    check_waiter(|server| {
        run_command::<()>(&server.address(), &["CONFIG", "SET", "maxmemory", "1"]);
        let late = open(&server.address()).request(&ticket("late", 1));
        assert!(matches!(late, Err(LeaseError::Full(_))), "{late:?}");
    });
}

#[test]
fn evicting_server_loses_no_gpu() {
    let server = Server::start(&["--maxmemory-policy", "volatile-lru"]);
    let address = server.address();
    let (mut pool, model) = (create_pool(&address, 2, TTL), HolderModel::default());
    let holder = ticket("holder", 1);
    let grant = acquire(&mut pool, &holder);
    model.add("holder", &grant.gpus);
    for turn in 0..20 {
        let ticket = ticket(&format!("lease-{turn}"), 1);
        let granted = acquire(&mut pool, &ticket);
        model.add(&ticket.lease, &granted.gpus);
        renew(&mut pool, &ticket, &granted);
        model.remove(&ticket.lease, &granted.gpus);
        release(&mut pool, &ticket, &granted);
    }
    // Only ended leases are evicted. After that, the server is full.
    run_command::<()>(&address, &["CONFIG", "SET", "maxmemory", "1"]);
    let full = wait_until("the memory to be full", || pool.request(&ticket("more", 1)).err());
    assert!(matches!(full, LeaseError::Full(_)), "{full:?}");
    let ended: Vec<String> = run_command(&address, &["KEYS", "GPU_V2:LEASE:lease-*"]);
    assert_eq!(ended, [""; 0]);
    renew(&mut pool, &holder, &grant);
    release(&mut pool, &holder, &grant);
    run_command::<()>(&address, &["CONFIG", "SET", "maxmemory", "0"]);
    assert_all_idle(&mut pool);
}

#[test]
fn missing_permission_ends_the_wait() {
    let server = Server::start(&[]);
    let address = server.address();
    let mut pool = create_pool(&address, 1, TTL);
    let grant = acquire(&mut pool, &ticket("holder", 1));
    run_command::<()>(&address, &["ACL", "SETUSER", "bob", "on", ">secret", "~*", "+@all"]);
    let bob = format!("{address}?user=bob&pass=secret");
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            let mut pool = Pool::open(&bob, "GPU", PATIENCE).unwrap();
            pool.wait(&ticket("waiter", 1), (&LocalHost::read(), None), |_| {})
        });
        wait_for_blocked(&address, 2);
        run_command::<()>(&address, &["ACL", "SETUSER", "bob", "-evalsha", "-blpop"]);
        for id in client_ids(&address) {
            run_command::<u64>(&address, &["CLIENT", "UNBLOCK", &id]);
        }
        let result = waiter.join().unwrap();
        assert!(matches!(&result, Err(LeaseError::Denied(why)) if why.contains("permission")), "{result:?}");
    });
    release(&mut pool, &ticket("holder", 1), &grant);
    // The waiter's earlier ticket is ended like that of an exited client.
    pool.end("waiter", DEAD, &[]).unwrap();
    assert_all_idle(&mut pool);
}

/// The permissions in docs/leases.md are sufficient, and a missing permission is reported.
#[test]
fn documented_acl_is_sufficient() {
    let server = Server::start(&[]);
    let docs = include_str!("../../../../docs/leases.md");
    let line = docs.lines().find(|line| line.starts_with("ACL SETUSER bailiff ")).unwrap();
    let args: Vec<&str> = line.split(' ').map(|argument| argument.trim_end_matches("PASSWORD")).collect();
    let args: Vec<String> = args.iter().map(|argument| argument.replace('>', ">secret")).collect();
    run_command::<()>(&server.address(), &args.iter().map(String::as_str).collect::<Vec<_>>());
    let address = format!("{}?user=bailiff&pass=secret", server.address());
    let mut pool = create_pool(&address, 1, TTL);
    let holder = ticket("holder", 1);
    let grant = acquire(&mut pool, &holder);
    renew(&mut pool, &holder, &grant);
    assert!(pool.view().unwrap().begun);
    release(&mut pool, &holder, &grant);
    run_command::<()>(&server.address(), &["ACL", "SETUSER", "bailiff", "-@scripting", "-@transaction"]);
    assert!(matches!(pool.view(), Err(LeaseError::Denied(_))));
}

#[test]
fn key_of_wrong_type_is_named_and_nothing_changes() {
    let server = Server::start(&[]);
    let address = server.address();
    let mut pool = create_pool(&address, 3, TTL);
    let holder = ticket("holder", 1);
    let grant = acquire(&mut pool, &holder);
    run_command::<u64>(&address, &["HSET", "GPU_V2:UUID", "0", "GPU-0"]);
    for key in [
        "IDLE", "MANAGED", "EVENTS", "V2:META", "V2:OWN", "V2:QUAR", "V2:UUID", "V2:Q", "V2:EXP", "V2:POT",
        "V2:BAR", "V2:LOG",
    ] {
        let key = format!("GPU_{key}");
        let before = snapshot(&address);
        let there: u64 = run_command(&address, &["EXISTS", &key]);
        if there == 1 {
            run_command::<()>(&address, &["RENAME", &key, "aside"]);
        }
        run_command::<()>(&address, &["SET", &key, "a string"]);
        let errors = [
            pool.request(&ticket("another", 1)).err(),
            pool.renew(&holder, &grant, TTL).err(),
            pool.release("holder", None, (0, 1)).err(),
            pool.end("holder", DEAD, &[]).err(),
            pool.audit().err(),
        ];
        for error in errors {
            assert!(
                matches!(&error, Some(LeaseError::WrongType(why)) if why.contains(&key)),
                "{key}: {error:?}"
            );
        }
        run_command::<u64>(&address, &["DEL", &key]);
        if there == 1 {
            run_command::<()>(&address, &["RENAME", "aside", &key]);
        }
        assert_eq!(snapshot(&address), before, "{key}");
    }
    renew(&mut pool, &holder, &grant);
    assert_eq!(pool.release("holder", None, (0, 1)), Ok(Released::Done));
    assert_all_idle(&mut pool);
}

/// Returns all keys with their values.
fn snapshot(address: &str) -> Vec<(String, Vec<u8>)> {
    let mut keys: Vec<String> = run_command(address, &["KEYS", "*"]);
    keys.sort();
    keys.into_iter().map(|key| (key.clone(), run_command(address, &["DUMP", &key]))).collect()
}

#[test]
fn lease_keys_of_wrong_type_do_not_block_others() {
    let server = Server::start(&[]);
    let address = server.address();
    let mut pool = create_pool(&address, 2, TTL);
    run_command::<()>(&address, &["SET", "GPU_V2:LEASE:strange", "a string"]);
    let result = pool.request(&ticket("strange", 1));
    assert!(matches!(&result, Err(LeaseError::WrongType(why)) if why.contains("strange")), "{result:?}");
    run_command::<u64>(&address, &["ZADD", "GPU_V2:Q", "-1", "strange"]);
    run_command::<u64>(&address, &["ZADD", "GPU_V2:EXP", "9999999999999", "strange"]);
    run_command::<()>(&address, &["SET", "GPU_V2:WAKE:a", "a string"]);
    let ticket = ticket("a", 2);
    let grant = acquire(&mut pool, &ticket);
    run_command::<()>(&address, &["SET", "GPU_GPU1", "a string"]);
    renew(&mut pool, &ticket, &grant);
    run_command::<u64>(&address, &["DEL", "GPU_V2:LEASE:strange"]);
    run_command::<u64>(&address, &["ZREM", "GPU_V2:EXP", "strange"]);
    let waits: TicketStatus = retry("an answer", || pool.request(&crate::clients::ticket("b", 1)));
    assert_eq!(waits, TicketStatus::Waiting { before: 0 });
    release(&mut pool, &ticket, &grant);
    let granted = acquire(&mut pool, &crate::clients::ticket("b", 1));
    release(&mut pool, &crate::clients::ticket("b", 1), &granted);
    assert_all_idle(&mut pool);
}
