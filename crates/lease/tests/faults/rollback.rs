//! Tests a server that restarts with a state older than its last state.

use std::time::Duration;

use bailiff_lease::Leases as _;
use bailiff_lease::holder::LocalHost;
use bailiff_lease::{Grant, Pool, Ticket, TicketStatus};

use crate::clients::{
    DEAD, HolderModel, TTL, acquire, assert_all_idle, create_pool, open, release, renew, retry, run_command,
    ticket, wait_until,
};
use crate::server::Server;

/// Long enough for all holders to reclaim their leases.
const BARRIER: Duration = Duration::from_secs(2);

fn restart_from_saved_state(server: &mut Server) {
    server.kill();
    server.start_again();
}

fn assert_waiting(pool: &mut Pool, lease: &str) {
    let status = retry("an answer", || pool.touch(lease, TTL, None));
    assert!(matches!(status, TicketStatus::Waiting { .. }), "{lease}: {status:?}");
}

fn held(status: TicketStatus) -> Grant {
    match status {
        TicketStatus::Held(grant) => grant,
        other => panic!("{other:?}"),
    }
}

/// Returns the four holders at the moment when the server is killed. When the server's state was saved, one of them
/// held a lease, one was waiting, and two did not exist yet. The leases `over` and `other` were held then, and have
/// ended since.
fn holders(pool: &mut Pool, address: &str) -> [(Ticket, Grant); 4] {
    let [before, over, other, waiting, after, later] =
        [("before", 1), ("over", 2), ("other", 2), ("waiting", 2), ("after", 1), ("later", 1)]
            .map(|(lease, want)| ticket(lease, want));
    let before_grant = acquire(pool, &before);
    let over_grant = acquire(pool, &over);
    let other_grant = acquire(pool, &other);
    assert!(matches!(pool.request(&waiting), Ok(TicketStatus::Waiting { .. })));
    run_command::<()>(address, &["SAVE"]);
    release(pool, &over, &over_grant);
    let waiting_grant = held(pool.touch("waiting", TTL, None).unwrap());
    assert_eq!(waiting_grant.gpus, over_grant.gpus);
    release(pool, &other, &other_grant);
    let (after_grant, later_grant) = (acquire(pool, &after), acquire(pool, &later));
    [(before, before_grant), (waiting, waiting_grant), (after, after_grant), (later, later_grant)]
}

#[test]
fn holders_reclaim_after_rollback() {
    let mut server = Server::start(&[]);
    let address = server.address();
    let (mut pool, model) = (create_pool(&address, 5, BARRIER), HolderModel::default());
    let mut holders = holders(&mut pool, &address).to_vec();
    for (ticket, grant) in &holders {
        model.add(&ticket.lease, &grant.gpus);
    }
    restart_from_saved_state(&mut server);
    let mut pool = open(&address);
    // A new client sends a request before any holder has reclaimed its lease.
    let hurried = ticket("hurried", 1);
    assert!(matches!(pool.request(&hurried), Ok(TicketStatus::Waiting { .. })));
    // In the server's state, the ended leases are still held. Their holders are found to have exited.
    for lease in ["over", "other"] {
        pool.end(lease, DEAD, &[]).unwrap();
        assert_waiting(&mut pool, "hurried");
    }
    for (ticket, grant) in holders.iter().chain(&holders) {
        renew(&mut pool, ticket, grant);
        assert_waiting(&mut pool, "hurried");
    }
    wait_until("the barrier to be over", || pool.audit().unwrap().barrier.is_none().then_some(()));
    // The script that ends the barrier does not grant any GPU itself.
    for _ in 0..2 {
        assert_waiting(&mut pool, "hurried");
    }
    for (ticket, grant) in &holders {
        renew(&mut pool, ticket, grant);
    }
    let (later, later_grant) = holders.pop().unwrap();
    model.remove(&later.lease, &later_grant.gpus);
    release(&mut pool, &later, &later_grant);
    let next = acquire(&mut pool, &hurried);
    model.add("hurried", &next.gpus);
    assert!(holders.iter().all(|(_, grant)| grant.token < next.token), "tokens rise");
    holders.push((hurried, next));
    for (ticket, grant) in &holders {
        release(&mut pool, ticket, grant);
    }
    assert_all_idle(&mut pool);
}

#[test]
fn newer_holder_prevails_over_older_state() {
    let mut server = Server::start(&[]);
    let address = server.address();
    let mut pool = create_pool(&address, 2, BARRIER);
    let (first, second) = (ticket("first", 2), ticket("second", 1));
    let first_grant = acquire(&mut pool, &first);
    run_command::<()>(&address, &["SAVE"]);
    release(&mut pool, &first, &first_grant);
    let second_grant = acquire(&mut pool, &second);

    restart_from_saved_state(&mut server);
    let mut pool = open(&address);
    // The client of `first` is still running and has released its lease, which is held in the server's state.
    renew(&mut pool, &second, &second_grant);
    let status = pool.touch("first", TTL, Some(first_grant.token)).unwrap();
    assert!(!matches!(status, TicketStatus::Held(_)), "{status:?}");
    let third = ticket("third", 1);
    let third_grant = acquire(&mut pool, &third);
    assert_ne!(third_grant.gpus, second_grant.gpus, "the other GPU of `first` is free after the barrier");
    renew(&mut pool, &second, &second_grant);
    release(&mut pool, &third, &third_grant);
    release(&mut pool, &second, &second_grant);
    assert_all_idle(&mut pool);
}

#[test]
fn nothing_expires_during_server_downtime() {
    let mut server = Server::start(&["--appendonly", "yes", "--appendfsync", "always"]);
    let address = server.address();
    let mut pool = create_pool(&address, 1, BARRIER);
    let (mut holder, mut waiter) = (ticket("holder", 1), ticket("waiter", 1));
    for ticket in [&mut holder, &mut waiter] {
        ticket.about.retain(|(field, _)| !["host", "boot"].contains(field));
        ticket.about.extend(["host", "boot"].map(|field| (field, "another".to_owned())));
    }
    let grant = acquire(&mut pool, &holder);
    pool.request(&waiter).unwrap();
    for lease in ["holder", "waiter"] {
        run_command::<u64>(&address, &["ZADD", "GPU_V2:EXP", "1", lease]);
    }
    restart_from_saved_state(&mut server);
    let mut pool = open(&address);
    assert_eq!(
        pool.reap_local_host(&LocalHost::read(), TTL),
        Ok(0),
        "the holders could not renew their leases"
    );
    renew(&mut pool, &holder, &grant);
    assert_waiting(&mut pool, "waiter");
    release(&mut pool, &holder, &grant);
    let grant = acquire(&mut pool, &waiter);
    release(&mut pool, &waiter, &grant);
    assert_all_idle(&mut pool);
}
