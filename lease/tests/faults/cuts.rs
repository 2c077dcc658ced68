//! The way to the server fails at every command of a lease's life, and at every answer. The client asks again with the same
//! name, and what it asked for has happened once.

use std::time::{Duration, Instant};

use bailiff_lease::holder::LocalHost;
use bailiff_lease::{Grant, Leases, Pool, Released, TicketStatus};

use crate::people::{TTL, assert_all_idle, begin, insist, tell, ticket, until};
use crate::proxy::{Fault, Plan, Proxy};
use crate::server::Server;

/// No answer of a silent connection is waited for longer.
const SHORT: Duration = Duration::from_millis(300);
/// More commands than any of these lives has.
const MOST: u32 = 100;
const ALL: [Fault; 4] = [Fault::CutBefore, Fault::CutAfter, Fault::SilentBefore, Fault::SilentAfter];

fn open(proxy: &Proxy) -> Pool {
    insist("a connection", || Pool::open(proxy.address(), "GPU", SHORT))
}

/// Lets the way fail at each moment of what is done, until there is none left. Each begins with three GPUs that are idle,
/// and has to end so.
fn sweep(faults: &[Fault], life: fn(&Server, &Proxy)) {
    let server = Server::start(&[]);
    for fault in faults {
        let moments = (0..MOST).take_while(|number| {
            tell::<()>(&server.address(), &["FLUSHALL"]);
            let mut pool = begin(&server.address(), 3, TTL);
            let proxy = Proxy::start(&server.socket(), Plan::Once(*fault, *number));
            life(&server, &proxy);
            let failed = proxy.failed();
            drop(proxy);
            until("what hung in the line to be given back", || {
                pool.audit().unwrap().gpus.iter().all(|gpu| gpu.pot == 0).then_some(())
            });
            assert_all_idle(&mut pool);
            failed
        });
        let moments = moments.count();
        assert!(moments > 5, "{fault:?} never came");
        println!("{fault:?} at each of {moments} moments");
    }
}

/// Takes, holds and gives back, with nobody else there.
fn alone(_: &Server, proxy: &Proxy) {
    let mut pool = open(proxy);
    let ticket = ticket("a", 2);
    let held = insist("a lease", || pool.request(&ticket));
    let TicketStatus::Held(grant) = held else { panic!("{held:?}") };
    assert_eq!((grant.token, grant.gpus.len()), (1, 2), "asked for once");
    for _ in 0..2 {
        assert_eq!(
            insist("a renewal", || pool.renew(&ticket, &grant, TTL)),
            TicketStatus::Held(grant.clone())
        );
    }
    assert_eq!(insist("an audit", || pool.audit()).leases.len(), 1);
    let how = insist("an end", || pool.release("a", Some(grant.token), (0, 1)));
    assert!(matches!(how, Released::Done | Released::Already(_)), "{how:?}");
}

#[test]
fn whatever_is_cut_happens_once() {
    sweep(&ALL[..2], alone);
}

#[test]
fn whoever_is_silent_is_not_waited_for() {
    sweep(&ALL[2..], alone);
}

/// Waits until somebody gives back, who is not disturbed.
fn behind_somebody(server: &Server, proxy: &Proxy) {
    let mut pool = Pool::open(&server.address(), "GPU", TTL).unwrap();
    let holder = ticket("holder", 3);
    let Ok(TicketStatus::Held(Grant { token, .. })) = pool.request(&holder) else { panic!("all are idle") };
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            let mut pool = open(proxy);
            let (ticket, local_host) = (ticket("waiter", 1), LocalHost::read());
            let held = insist("a lease", || pool.wait(&ticket, (&local_host, None), |_| {}));
            let TicketStatus::Held(grant) = held else { panic!("{held:?}") };
            assert_eq!(
                insist("a renewal", || pool.renew(&ticket, &grant, TTL)),
                TicketStatus::Held(grant.clone())
            );
            insist("an end", || pool.release("waiter", Some(grant.token), (0, 1)));
        });
        until("somebody to wait", || (pool.audit().unwrap().queue.len() == 1).then_some(()));
        let began = Instant::now();
        pool.release("holder", Some(token), (0, 1)).unwrap();
        waiter.join().unwrap();
        println!("served after {:?}, failed: {}", began.elapsed(), proxy.failed());
    });
}

#[test]
fn a_wait_that_is_cut_goes_on() {
    sweep(&ALL[..2], behind_somebody);
}

#[test]
#[ignore = "minutes: a silent wait is given up after more than ten seconds"]
fn a_wait_that_is_silent_goes_on() {
    sweep(&ALL[2..], behind_somebody);
}

#[test]
fn a_slow_way_is_long_and_that_is_all() {
    let server = Server::start(&[]);
    for plan in [Plan::Slow(Duration::from_millis(50), usize::MAX), Plan::Slow(Duration::ZERO, 1)] {
        for life in [alone, behind_somebody] {
            tell::<()>(&server.address(), &["FLUSHALL"]);
            let mut pool = begin(&server.address(), 3, TTL);
            life(&server, &Proxy::start(&server.socket(), plan));
            assert_all_idle(&mut pool);
        }
    }
}
