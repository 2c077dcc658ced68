//! Tests that the connection to the server can fail at every command and every reply in a lease's life. The client
//! repeats its requests with the same lease name, and each request takes effect once.

use std::time::{Duration, Instant};

use bailiff_lease::holder::LocalHost;
use bailiff_lease::{Grant, Leases, Pool, Released, TicketStatus};

use crate::clients::{TTL, assert_all_idle, create_pool, retry, run_command, ticket, wait_until};
use crate::proxy::{Fault, Plan, Proxy};
use crate::server::Server;

/// The client's timeout on a silent connection.
const SHORT: Duration = Duration::from_millis(300);
/// Maximum number of commands, above what any of the scenarios sends.
const MOST: u32 = 100;
const ALL: [Fault; 4] = [Fault::CutBefore, Fault::CutAfter, Fault::SilentBefore, Fault::SilentAfter];

fn open(proxy: &Proxy) -> Pool {
    retry("a connection", || Pool::open(proxy.address(), "GPU", SHORT))
}

/// Runs a scenario once for each command or reply, with the fault at that position. Each run must start and end with
/// three idle GPUs.
fn sweep(faults: &[Fault], life: fn(&Server, &Proxy)) {
    let server = Server::start(&[]);
    for fault in faults {
        let positions = (0..MOST).take_while(|number| {
            run_command::<()>(&server.address(), &["FLUSHALL"]);
            let mut pool = create_pool(&server.address(), 3, TTL);
            let proxy = Proxy::start(&server.socket(), Plan::Once(*fault, *number));
            life(&server, &proxy);
            let failed = proxy.failed();
            drop(proxy);
            wait_until("GPUs popped by lost slots to be returned", || {
                pool.audit().unwrap().gpus.iter().all(|gpu| gpu.pot == 0).then_some(())
            });
            assert_all_idle(&mut pool);
            failed
        });
        let positions = positions.count();
        assert!(positions > 5, "{fault:?} never occurred");
        println!("{fault:?} at each of {positions} positions");
    }
}

/// Requests, renews and releases a lease, without other clients.
fn alone(_: &Server, proxy: &Proxy) {
    let mut pool = open(proxy);
    let ticket = ticket("a", 2);
    let held = retry("a lease", || pool.request(&ticket));
    let TicketStatus::Held(grant) = held else { panic!("{held:?}") };
    assert_eq!((grant.token, grant.gpus.len()), (1, 2), "granted once");
    for _ in 0..2 {
        assert_eq!(
            retry("a renewal", || pool.renew(&ticket, &grant, TTL)),
            TicketStatus::Held(grant.clone())
        );
    }
    assert_eq!(retry("an audit", || pool.audit()).leases.len(), 1);
    let how = retry("an end", || pool.release("a", Some(grant.token), (0, 1)));
    assert!(matches!(how, Released::Done | Released::Already(_)), "{how:?}");
}

#[test]
fn cut_request_takes_effect_once() {
    sweep(&ALL[..2], alone);
}

#[test]
fn silent_connection_is_replaced() {
    sweep(&ALL[2..], alone);
}

/// Waits until another client, whose connection has no faults, releases its lease.
fn waiting(server: &Server, proxy: &Proxy) {
    let mut pool = Pool::open(&server.address(), "GPU", TTL).unwrap();
    let holder = ticket("holder", 3);
    let Ok(TicketStatus::Held(Grant { token, .. })) = pool.request(&holder) else {
        panic!("all GPUs must be idle")
    };
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            let mut pool = open(proxy);
            let (ticket, local_host) = (ticket("waiter", 1), LocalHost::read());
            let held = retry("a lease", || pool.wait(&ticket, (&local_host, None), |_| {}));
            let TicketStatus::Held(grant) = held else { panic!("{held:?}") };
            assert_eq!(
                retry("a renewal", || pool.renew(&ticket, &grant, TTL)),
                TicketStatus::Held(grant.clone())
            );
            retry("an end", || pool.release("waiter", Some(grant.token), (0, 1)));
        });
        wait_until("a waiting ticket", || (pool.audit().unwrap().queue.len() == 1).then_some(()));
        let started = Instant::now();
        pool.release("holder", Some(token), (0, 1)).unwrap();
        waiter.join().unwrap();
        println!("served after {:?}, failed: {}", started.elapsed(), proxy.failed());
    });
}

#[test]
fn cut_wait_continues() {
    sweep(&ALL[..2], waiting);
}

#[test]
#[ignore = "takes minutes: a silent wait times out after more than ten seconds"]
fn silent_wait_continues() {
    sweep(&ALL[2..], waiting);
}

#[test]
fn slow_connection_only_delays() {
    let server = Server::start(&[]);
    for plan in [Plan::Slow(Duration::from_millis(50), usize::MAX), Plan::Slow(Duration::ZERO, 1)] {
        for life in [alone, waiting] {
            run_command::<()>(&server.address(), &["FLUSHALL"]);
            let mut pool = create_pool(&server.address(), 3, TTL);
            life(&server, &Proxy::start(&server.socket(), plan));
            assert_all_idle(&mut pool);
        }
    }
}
