//! A server comes back with an older state than the one it ended with.

use std::time::Duration;

use bailiff_lease::holder::LocalHost;
use bailiff_lease::{Grant, Pool, Ticket, TicketStatus};

use crate::people::{
    NOBODY, TTL, Truth, acquire, assert_all_idle, begin, insist, open, release, renew, tell, ticket, until,
};
use crate::server::Server;

/// Long enough for all to speak.
const BARRIER: Duration = Duration::from_secs(2);

fn back_to_what_was_saved(server: &mut Server) {
    server.kill();
    server.start_again();
}

fn waits(pool: &mut Pool, lease: &str) {
    let status = insist("an answer", || pool.touch(lease, TTL, None));
    assert!(matches!(status, TicketStatus::Waiting { .. }), "{lease}: {status:?}");
}

fn held(status: TicketStatus) -> Grant {
    match status {
        TicketStatus::Held(grant) => grant,
        other => panic!("{other:?}"),
    }
}

/// Four that hold when the server ends, by what happened since it was saved: one held then, too; one waited; two came later.
/// `over` and `other` held then, and have ended.
fn holders(pool: &mut Pool, address: &str) -> [(Ticket, Grant); 4] {
    let [before, over, other, waiting, after, later] =
        [("before", 1), ("over", 2), ("other", 2), ("waiting", 2), ("after", 1), ("later", 1)]
            .map(|(lease, want)| ticket(lease, want));
    let before_grant = acquire(pool, &before);
    let over_grant = acquire(pool, &over);
    let other_grant = acquire(pool, &other);
    assert!(matches!(pool.request(&waiting), Ok(TicketStatus::Waiting { .. })));
    tell::<()>(address, &["SAVE"]);
    release(pool, &over, &over_grant);
    let waiting_grant = held(pool.touch("waiting", TTL, None).unwrap());
    assert_eq!(waiting_grant.gpus, over_grant.gpus);
    release(pool, &other, &other_grant);
    let (after_grant, later_grant) = (acquire(pool, &after), acquire(pool, &later));
    [(before, before_grant), (waiting, waiting_grant), (after, after_grant), (later, later_grant)]
}

#[test]
fn whoever_held_when_it_ended_holds_again() {
    let mut server = Server::start(&[]);
    let address = server.address();
    let (mut pool, truth) = (begin(&address, 5, BARRIER), Truth::default());
    let mut holders = holders(&mut pool, &address).to_vec();
    for (ticket, grant) in &holders {
        truth.takes(&ticket.lease, &grant.gpus);
    }
    back_to_what_was_saved(&mut server);
    let mut pool = open(&address);
    // Somebody hurries: he asks before any holder has spoken.
    let hurried = ticket("hurried", 1);
    assert!(matches!(pool.request(&hurried), Ok(TicketStatus::Waiting { .. })));
    // By what the server knows, those who had ended still hold; they are seen to be dead.
    for lease in ["over", "other"] {
        pool.end(lease, NOBODY, &[]).unwrap();
        waits(&mut pool, "hurried");
    }
    for (ticket, grant) in holders.iter().chain(&holders) {
        renew(&mut pool, ticket, grant);
        waits(&mut pool, "hurried");
    }
    until("the barrier to be over", || pool.audit().unwrap().barrier.is_none().then_some(()));
    // The script that ends it gives nothing away yet.
    for _ in 0..2 {
        waits(&mut pool, "hurried");
    }
    for (ticket, grant) in &holders {
        renew(&mut pool, ticket, grant);
    }
    let (later, theirs) = holders.pop().unwrap();
    truth.leaves(&later.lease, &theirs.gpus);
    release(&mut pool, &later, &theirs);
    let next = acquire(&mut pool, &hurried);
    truth.takes("hurried", &next.gpus);
    assert!(holders.iter().all(|(_, grant)| grant.token < next.token), "tokens rise");
    holders.push((hurried, next));
    for (ticket, grant) in &holders {
        release(&mut pool, ticket, grant);
    }
    assert_all_idle(&mut pool);
}

#[test]
fn whoever_held_later_has_it_though_the_server_takes_it_for_another_s() {
    let mut server = Server::start(&[]);
    let address = server.address();
    let mut pool = begin(&address, 2, BARRIER);
    let (first, second) = (ticket("first", 2), ticket("second", 1));
    let first_grant = acquire(&mut pool, &first);
    tell::<()>(&address, &["SAVE"]);
    release(&mut pool, &first, &first_grant);
    let second_grant = acquire(&mut pool, &second);

    back_to_what_was_saved(&mut server);
    let mut pool = open(&address);
    // `first` lives on and has long forgotten what it had; the server takes it for a holder.
    renew(&mut pool, &second, &second_grant);
    let told = pool.touch("first", TTL, Some(first_grant.token)).unwrap();
    assert!(!matches!(told, TicketStatus::Held(_)), "{told:?}");
    let third = ticket("third", 1);
    let third_grant = acquire(&mut pool, &third);
    assert_ne!(third_grant.gpus, second_grant.gpus, "what is left of `first` is free after the barrier");
    renew(&mut pool, &second, &second_grant);
    release(&mut pool, &third, &third_grant);
    release(&mut pool, &second, &second_grant);
    assert_all_idle(&mut pool);
}

#[test]
fn nobody_is_late_for_the_time_that_the_server_was_away() {
    let mut server = Server::start(&["--appendonly", "yes", "--appendfsync", "always"]);
    let address = server.address();
    let mut pool = begin(&address, 1, BARRIER);
    let (mut holder, mut waiter) = (ticket("holder", 1), ticket("waiter", 1));
    for ticket in [&mut holder, &mut waiter] {
        ticket.about.retain(|(field, _)| !["host", "boot"].contains(field));
        ticket.about.extend(["host", "boot"].map(|field| (field, "another".to_owned())));
    }
    let grant = acquire(&mut pool, &holder);
    pool.request(&waiter).unwrap();
    for lease in ["holder", "waiter"] {
        tell::<u64>(&address, &["ZADD", "GPU_V2:EXP", "1", lease]);
    }
    back_to_what_was_saved(&mut server);
    let mut pool = open(&address);
    assert_eq!(pool.reap_local_host(&LocalHost::read(), TTL), Ok(0), "they could not speak");
    renew(&mut pool, &holder, &grant);
    waits(&mut pool, "waiter");
    release(&mut pool, &holder, &grant);
    let grant = acquire(&mut pool, &waiter);
    release(&mut pool, &waiter, &grant);
    assert_all_idle(&mut pool);
}
